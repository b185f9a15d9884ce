"""A user's own pictures: ``image_folder``, one folder a class, and ``image_captions``, a folder with a CSV of captions.

The order of a directory never matters: names are compared and sorted in Unicode's composed form. Stray files are passed over with
one line in the log.
"""

import logging
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.captions import match_captions, pairs_of
from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.pictures import read_picture
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.datasets.table import csv_records
from fedsocket_flwr.errors import ConfigurationError, DataError

LOG = logging.getLogger(__name__)
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"))
HOW_TO_GET = "give `path` a folder of your own"


def composed(name: str) -> str:
    """Return a file name in Unicode's composed form: some systems store ``é`` as two characters."""
    return unicodedata.normalize("NFC", name)


def read_classes(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read ``image_folder``: ``path/CLASS/picture``, classes in the order of their names.

    Options: ``size`` (32), every picture is scaled to size x size; ``colour`` (true).

    Raises
    ------
    DataError
        The folder is missing, has fewer than two classes with pictures, or a picture cannot be read.
    """
    corpus = read_split(path, options)
    if len(corpus.classes) < 2:
        raise DataError(f"{path} must have at least two folders with pictures, one a class; found {len(corpus.classes)}")
    return corpus


def read_split(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read a client's own split in the layout of :func:`read_classes`, which may have pictures of one class only."""
    chosen = _options("image_folder", options, {})
    root = _folder("image_folder", path)
    folders = {composed(entry.name): entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    stray = [entry.name for entry in root.iterdir() if not entry.is_dir() or entry.name.startswith(".")]
    images: list[Array] = []
    labels: list[int] = []
    classes: list[str] = []
    for name in sorted(folders):
        files = picture_files(folders[name], stray)
        if not files:
            LOG.warning("%s: the folder %s has no pictures and is no class", root, name)
            continue
        images += [read_picture(file, chosen["size"], chosen["colour"]) for file in files.values()]
        labels += [len(classes)] * len(files)
        classes.append(name)
    _report(root, stray)
    if not classes:
        raise DataError(f"{root} must have folders with pictures, one a class; found none")
    return Corpus("image_folder", "classification", {"image": np.stack(images)}, np.array(labels, dtype=np.int64), tuple(classes))


def read_captions(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read ``image_captions``: pictures in a folder, and in it a CSV file with a picture's name and a caption a record.

    Options: ``captions`` (``captions.csv``), whose first record names the columns ``file`` and ``caption``, several records a
    picture; ``size`` (32) and ``colour`` (true). Captions of absent pictures and pictures without a caption are left out, counted
    and the first named in the log.

    Raises
    ------
    DataError
        The folder or its captions are missing, no caption has its picture, or a picture cannot be read.
    """
    chosen = _options("image_captions", options, {"captions": "captions.csv"})
    root = _folder("image_captions", path)
    table = root / chosen["captions"]
    require_real_file(table)
    names, *records = csv_records(table)
    if "file" not in names or "caption" not in names:
        raise DataError(f"{table} must have the columns file and caption, found {', '.join(names)}")
    stray: list[str] = []
    files = picture_files(root, stray)
    said = []
    for number, record in enumerate(records, start=1):
        if len(record) != len(names):
            raise DataError(f"{table}, record {number}: {len(record)} fields, expected {len(names)}")
        said.append((composed(record[names.index("file")]), record[names.index("caption")]))
    _report(root, [name for name in stray if composed(name) != composed(table.name)])
    captions = match_captions(table, root, files, said)
    texts, pairs = pairs_of(captions)
    return Corpus(
        name="image_captions",
        kind="retrieval",
        raw={
            "image": np.stack([read_picture(files[name], chosen["size"], chosen["colour"]) for name in captions]),
            "text": texts,
        },
        pairs=pairs,
        item=pairs[:, 0],
    )


def _options(name: str, options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    chosen = choose_options(f"data set {name!r}", options, {"size": 32, "colour": True, **more})
    at_least(f"data set {name!r}", chosen, size=1)
    return chosen


def _folder(name: str, path: str | None) -> Path:
    if path is None:
        raise ConfigurationError(f"data set {name!r} needs `path`, a folder of pictures")
    if not Path(path).is_dir():
        raise DataError(f"data set {name!r}: {path} is not a folder")
    return Path(path)


def picture_files(folder: Path, stray: list[str]) -> dict[str, Path]:
    """Return the pictures of a folder by composed name, in sorted order, and add what else lies there to ``stray``."""
    files: dict[str, Path] = {}
    for entry in folder.iterdir():
        name = composed(entry.name)
        if not entry.is_file() or name.startswith(".") or entry.suffix.lower() not in SUFFIXES:
            stray.append(entry.name)
        elif name in files:
            raise DataError(f"{folder} has two files called {name!r} in different Unicode forms")
        else:
            files[name] = entry
    return dict(sorted(files.items()))


def _report(root: Path, stray: list[str]) -> None:
    if stray:
        LOG.info("%s: %d files that are no pictures are passed over, such as %s", root, len(stray), min(stray))
