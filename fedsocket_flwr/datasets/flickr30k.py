"""``flickr30k``: Flickr30k (Young et al., 2014), its pictures with Karpathy's split file or the original captions."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsocket_flwr.datasets.captions import match_captions, pairs_of
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.image_folder import composed, picture_files
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.datasets.published import data_set_folder
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import ConfigurationError, DataError

LOG = logging.getLogger(__name__)
KARPATHY, TOKENS = "dataset_flickr30k.json", "results_20130124.token"
CAPTIONS = 5
LAYOUT = f"flickr30k-images and {KARPATHY} or {TOKENS}"
HOW_TO_GET = f"ask for the pictures as their publishers say, and give `path` the folder with {LAYOUT}"
PARTS = ("train", "dev", "test")
# Karpathy's names of the splits; `restval` is further training data in his file of another data set.
PART_OF = {"train": "train", "restval": "train", "val": "dev", "test": "test"}
DEFAULTS: dict[str, Any] = {
    "size": 224,
    "images": "flickr30k-images",
    "captions": "",
    "splits": ["train.txt", "val.txt", "test.txt"],
}
# Name of a picture and a caption of it.
Said = list[tuple[str, str]]


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read Flickr30k: pictures in RGB, decoded when they are asked for, and about five captions each.

    Options: ``size`` (224), every picture is scaled to size x size; ``images`` (``flickr30k-images``), the folder of the
    pictures; ``captions``, a ``.json`` file of Karpathy's layout or one of the original layout, by default the one that is
    there; ``splits`` (``train.txt``, ``val.txt``, ``test.txt``), for the original layout the files that list the pictures of
    TRAIN, DEV and TEST: without them, the split is drawn.

    Captions of absent pictures, pictures without a caption or in no split are left out; these, and pictures with another number
    of captions than five, are counted and the first is named in the log.

    Raises
    ------
    DataError
        A file is missing or not in that layout; it is named, with the line or entry.
    """
    chosen = choose_options("data set 'flickr30k'", options, DEFAULTS)
    at_least("data set 'flickr30k'", chosen, size=1)
    root = data_set_folder("flickr30k", path, LAYOUT)
    images = root / chosen["images"]
    if not images.is_dir():
        raise DataError(f"{images} is not a folder; expected the pictures there (option `images`)")
    table = _table(root, chosen["captions"])
    said, part = _karpathy(table) if table.suffix == ".json" else (_tokens(table), _listed(root, chosen["splits"]))
    files = picture_files(images, [])
    captions = match_captions(table, images, files, said)
    if part:
        captions = _in_a_split(table, captions, part)
    others = [name for name, found in captions.items() if len(found) != CAPTIONS]
    if others:
        LOG.warning("%s: %d pictures have not %d captions, the first is %s", table, len(others), CAPTIONS, others[0])
    texts, pairs = pairs_of(captions)
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    if empty:
        LOG.warning("%s: %d captions are empty, the first is of %s; they are kept", table, len(empty), _of(captions, empty[0]))
    return Corpus(
        name="flickr30k",
        kind="retrieval",
        raw={"image": Pictures(tuple(files[name] for name in captions), chosen["size"]), "text": texts},
        pairs=pairs,
        part=[part[name] for name, found in captions.items() for _ in found] if part else None,
        item=pairs[:, 0],
    )


def _table(root: Path, name: str) -> Path:
    """Return the file of the captions."""
    names = (name,) if name else (KARPATHY, TOKENS)
    for known in names:
        if (root / known).exists():
            require_real_file(root / known)
            return root / known
    raise DataError(f"{root} has no {' and no '.join(names)}; expected {LAYOUT}")


def _karpathy(file: Path) -> tuple[Said, dict[str, str]]:
    """Return the captions, and the split of each picture."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["images"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not a split file with `images` ({type(error).__name__}: {error})") from error
    said: Said = []
    part: dict[str, str] = {}
    for number, entry in enumerate(entries):
        try:
            name, split = composed(entry["filename"]), entry["split"]
            captions = [sentence["raw"] for sentence in entry["sentences"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{file}: images[{number}] lacks filename, split or sentences[].raw ({error})") from error
        if split not in PART_OF:
            raise DataError(f"{file}: images[{number}] ({name}) has the split {split!r}, expected {', '.join(PART_OF)}")
        if name in part:
            raise DataError(f"{file}: images[{number}] names {name} for the second time")
        if not all(isinstance(caption, str) for caption in captions):
            raise DataError(f"{file}: images[{number}] ({name}) has a caption that is no text")
        part[name] = PART_OF[split]
        said += [(name, caption) for caption in captions]
    return said, part


def _tokens(file: Path) -> Said:
    """Return the captions of the original file: a line is the picture's name, ``#`` and a number, a tab, and the caption."""
    said: Said = []
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        key, tab, caption = line.removesuffix("\r").partition("\t")
        name, mark, count = key.rpartition("#")
        if not (tab and mark and name and count.isdigit()):
            raise DataError(f"{file}, line {number}: expected NAME.jpg#NUMBER, a tab and a caption, found {line[:60]!r}")
        said.append((composed(name), caption))
    return said


def _listed(root: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the split of each listed picture; lists have a name a line, with or without its ending."""
    if len(names) != len(PARTS):
        raise ConfigurationError(f"option 'splits' of data set 'flickr30k' must name three files, found {list(names)}")
    there = [name for name in names if (root / name).exists()]
    if not there:
        LOG.info("%s has none of %s: TEST and DEV are drawn", root, ", ".join(names))
        return {}
    part: dict[str, str] = {}
    for name, split in zip(names, PARTS, strict=True):
        for number, line in enumerate(_text(root / name).splitlines(), start=1):
            picture = composed(line.strip())
            if not picture:
                continue
            picture += "" if Path(picture).suffix else ".jpg"
            if picture in part:
                raise DataError(f"{root / name}, line {number}: {picture} is listed for {part[picture]} already")
            part[picture] = split
    return part


def _text(file: Path) -> str:
    require_real_file(file)
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from error


def _in_a_split(table: Path, captions: Mapping[str, list[str]], part: Mapping[str, str]) -> dict[str, list[str]]:
    outside = [name for name in captions if name not in part]
    if outside:
        LOG.warning("%s: %d pictures are in no split and are left out, the first is %s", table, len(outside), outside[0])
    if len(outside) == len(captions):
        raise DataError(f"{table}: no picture with a caption is in a split")
    return {name: found for name, found in captions.items() if name in part}


def _of(captions: Mapping[str, Sequence[str]], row: int) -> str:
    """Return the name of the picture that a caption is of."""
    return [name for name, found in captions.items() for _ in found][row]
