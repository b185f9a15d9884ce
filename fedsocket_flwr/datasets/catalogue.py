"""Which data sets there are: one row each in :mod:`fedsocket_flwr.datasets.entries`, and one file that reads it.

Another project's data set needs no row: a task names it as ``package.module:name`` of a :class:`DatasetEntry`.

A reader is a function ``read(path, options) -> Corpus``. It finds its files by itself when ``path`` is None, refuses options that
it does not know, and raises :class:`~fedsocket_flwr.errors.DataError` for data that are missing or altered.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets.corpus import Corpus, Raw
from fedsocket_flwr.datasets.entries import ROWS, DatasetEntry
from fedsocket_flwr.datasets.interface_packages import INTERFACE_FILES, fetch_interface, prepare_interface
from fedsocket_flwr.datasets.options import unknown_name
from fedsocket_flwr.datasets.packages import data_folder, fetched
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.datasets.published import compared_with_published
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.import_paths import is_import_path, load

__all__ = ["CATALOGUE", "DatasetEntry", "availability", "checked", "entry", "fetch", "prepare", "read_corpus", "resolve"]

Reader = Callable[[str | None, Mapping[str, Any]], Corpus]
CATALOGUE: dict[str, DatasetEntry] = {row.name: row for row in ROWS}
# Pictures that are decoded together when all are to be seen.
PICTURES = 256
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
    """Read a data set with every check and return what was found; :class:`DataError` says what to do where something is wrong.

    The name of packaged weights or word vectors (``INTERFACE_FILES``) has their files found and compared.
    """
    if name in INTERFACE_FILES and path is None:
        return prepare_interface(name)
    row = entry(name)
    reader: Reader = resolve(row.reader)
    corpus = checked(reader(path, {}))
    counts = {f"rows of {modality}": str(len(raw)) for modality, raw in sorted(corpus.raw.items())}
    if corpus.labels is not None:
        histogram = np.bincount(corpus.labels, minlength=len(corpus.classes))
        counts |= {f"class {label}": str(n) for label, n in zip(corpus.classes, histogram, strict=True)}
    if corpus.item is not None:
        counts |= {"pairs": str(len(corpus.item)), "items": str(len(np.unique(corpus.item)))}
    for raw in corpus.raw.values():
        _decode_all(raw)
    where = str(resolve(row.locate)(path)) if row.locate is not None else path or "computed"
    checksums = compared_with_published(Path(path), row.published) if row.published and path is not None else ""
    checksums = checksums or ("as published" if row.checksums else "none published")
    return {"name": name, "where": where, **counts, "checksums": checksums}


def _decode_all(raw: Raw) -> None:
    """Decode pictures that are decoded only when asked for: a damaged one raises :class:`DataError`."""
    if isinstance(raw, Pictures):
        for start in range(0, len(raw), PICTURES):
            raw[start : start + PICTURES]


def fetch(name: str) -> dict[str, str]:
    """Fetch the packages of a data set, or of weights or word vectors, check what came, and return what :func:`prepare` finds.

    Raises
    ------
    ConfigurationError
        The data set comes with no package.
    DataError
        A package manager is not there or fails, or the data are not the published ones; then nothing is left behind.
    """
    if name in INTERFACE_FILES:
        return fetch_interface(name)
    row = entry(name)
    if not row.packages:
        raise ConfigurationError(f"data set {name!r} lies in no package that can be fetched; {row.how_to_get}")
    target = data_folder(name)
    with fetched(row.packages, target) as folder:
        found = prepare(name, str(folder / row.inside))
    return {**found, "where": str(target / row.inside)}
