"""A client's own data: TRAIN, DEV and TEST lie in a folder of its own, and only its node reads them (``docs/own_data.md``).

Nothing is dealt. The task's data set says how each split is read, and where it lies below the folder: ``train.csv``,
``train/CLASS/...``. Labels are brought to the one order of the task's ``classes`` by name, so that all clients count alike.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import Configuration, TaskSettings
from fedsocket_flwr.datasets.catalogue import checked, entry, resolve
from fedsocket_flwr.datasets.corpus import Array, Corpus, Raw
from fedsocket_flwr.datasets.entries import DatasetEntry
from fedsocket_flwr.datasets.image_folder import composed
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.datasets.split_manifest import SPLITS, ClientSplit, number_of_rows
from fedsocket_flwr.errors import ConfigurationError, DataError, PartitionError

__all__ = ["own_corpus", "own_rows", "require_own_reader"]

_CORPORA: dict[str, Corpus] = {}


@dataclass(frozen=True)
class _Part:
    """One split as read, with the file or folder that it came from."""

    place: Path
    corpus: Corpus


def own_corpus(config: Configuration, client: str, data_directory: Path | None) -> Corpus:
    """Return a client's own data as one data set whose ``part`` names the split of each row, read once per process.

    Parameters
    ----------
    config, client
        The configuration, and a client of a task with ``partition.kind: own``.
    data_directory
        The folder of the client's data; None: the folder of its name below the task's ``path``.

    Returns
    -------
    Corpus
        The modalities that the client holds, the rows in the order TRAIN, DEV, TEST; labels count the task's ``classes``.

    Raises
    ------
    ConfigurationError
        No folder is given, the data set cannot be read so, or it lacks a modality.
    DataError
        A split is missing, damaged, empty, of another shape than TRAIN, or has a class that is none of the task's.
    """
    name, settings = config.client(client)
    task = config.tasks[name]
    row = require_own_reader(name, task)
    folder = _folder(name, task, client, data_directory)
    held = task.held_by(settings)
    key = json.dumps([task.dataset, str(folder), task.options, task.classes, held], sort_keys=True, default=str)
    if key not in _CORPORA:
        reader = resolve(row.split_reader or row.reader)
        places = _places(folder, row)
        parts = [_Part(place, _read(place, reader, task, held)) for place in places]
        _CORPORA[key] = _together(f"{task.dataset} of {client}", task, held, parts)
    return _CORPORA[key]


def own_rows(corpus: Corpus, minimum_size: int) -> ClientSplit:
    """Return the rows of each split of what :func:`own_corpus` read, at least ``minimum_size`` of them for training."""
    part = np.asarray(corpus.part)
    rows = ClientSplit(*(tuple(np.flatnonzero(part == split).tolist()) for split in SPLITS))
    if len(rows.train) < minimum_size:
        raise PartitionError(f"{corpus.name!r} has {len(rows.train)} training rows, but partition.minimum_size is {minimum_size}")
    return rows


def require_own_reader(name: str, task: TaskSettings) -> DatasetEntry:
    """Return the row of a task's data set, or raise :class:`ConfigurationError` where no client can have it of its own."""
    row = entry(task.dataset)
    if row.kind != task.kind:
        raise ConfigurationError(f"data set {row.name!r} is for {row.kind}, but the task's kind is {task.kind!r}")
    if not row.own_splits:
        raise ConfigurationError(
            f"tasks.{name}: data set {row.name!r} cannot be a client's own (partition.kind own); expected table, features, "
            "image_folder, image_captions, or one of your own that says its `own_splits`"
        )
    replaced = [option for option in ("class_names", "part") if task.options.get(option)]
    if replaced:
        raise ConfigurationError(
            f"tasks.{name}: option {replaced[0]!r} does not go with partition.kind own, whose classes are the task's `classes` "
            "and whose splits are files of their own"
        )
    return row


def _folder(name: str, task: TaskSettings, client: str, data_directory: Path | None) -> Path:
    folder = data_directory
    if folder is None and task.path is not None:
        folder = Path(task.path) / client
    if folder is None:
        raise ConfigurationError(
            f"task {name!r} is learned from clients' own data: set `data-dir` in the node configuration (in a simulation "
            f"tasks.{name}.path, a folder with one folder a client)"
        )
    if not folder.is_dir():
        given = "" if data_directory else " (the node configuration has no `data-dir`)"
        raise DataError(f"{folder} is not a folder with the client's own data{given}")
    return folder


def _places(folder: Path, row: DatasetEntry) -> list[Path]:
    """Return where the three splits lie."""
    found = {
        split: [place for form in row.own_splits if (place := folder / form.format(split=split)).exists()] for split in SPLITS
    }
    missing = [split for split in SPLITS if not found[split]]
    if missing:
        expected = ", ".join(" or ".join(form.format(split=split) for form in row.own_splits) for split in missing)
        raise DataError(f"{folder} lacks {expected}; data set {row.name!r} of a client has TRAIN, DEV and TEST")
    twice = [split for split in SPLITS if len(found[split]) > 1]
    if twice:
        raise DataError(f"{folder} has both {' and '.join(place.name for place in found[twice[0]])}; expected one of them")
    return [found[split][0] for split in SPLITS]


def _read(place: Path, reader: Callable[[str, Mapping[str, Any]], Corpus], task: TaskSettings, held: Sequence[str]) -> Corpus:
    """Return one split with its labels counted in the order of the task's classes."""
    corpus = checked(reader(str(place), task.options))
    lacking = [modality for modality in held if modality not in corpus.raw]
    if lacking:
        raise DataError(f"{place} has no modality {', '.join(lacking)} (it has {', '.join(sorted(corpus.raw))})")
    if corpus.part is not None:
        raise DataError(f"{place} divides itself into parts; a client's own splits lie in files of their own")
    if corpus.labels is None:
        return corpus
    number = {composed(name): label for label, name in enumerate(task.classes or ())}
    labels_of = np.array([number.get(composed(name), -1) for name in corpus.classes], dtype=np.int64)
    labels: Array = labels_of[corpus.labels]
    unknown = np.flatnonzero(labels < 0)
    if len(unknown):
        row = unknown[0]
        raise DataError(
            f"{place}: row {row} has the class {corpus.classes[corpus.labels[row]]!r}, which is none of the task's `classes` "
            f"{', '.join(task.classes or ())}"
        )
    return replace(corpus, labels=labels, classes=task.classes or ())


def _together(name: str, task: TaskSettings, held: Sequence[str], parts: Sequence[_Part]) -> Corpus:
    """Return the splits one after the other as one data set."""
    corpora = [part.corpus for part in parts]
    numbers = [number_of_rows(corpus) for corpus in corpora]
    raw = {modality: _joined(modality, parts) for modality in held}
    columns = {column: [v for corpus in corpora for v in corpus.columns[column]] for column in corpora[0].columns}
    part = [split for split, number in zip(SPLITS, numbers, strict=True) for _ in range(number)]
    if task.kind == "classification":
        labels = np.concatenate([corpus.labels for corpus in corpora if corpus.labels is not None])
        return checked(Corpus(name, task.kind, raw, labels, task.classes or (), columns=columns, part=part))
    pairs, items = _pairs_and_items(corpora)
    return checked(Corpus(name, task.kind, raw, pairs=pairs, columns=columns, part=part, item=items))


def _pairs_and_items(corpora: Sequence[Corpus]) -> tuple[Array, Array]:
    """Return the pairs and items of the splits, counted on from one split to the next."""
    pairs, items = [], []
    images = texts = first_item = 0
    for corpus in corpora:
        assert corpus.pairs is not None
        assert corpus.item is not None
        pairs.append(corpus.pairs + np.array([images, texts]))
        items.append(corpus.item + first_item)
        images, texts = images + len(corpus.raw["image"]), texts + len(corpus.raw["text"])
        first_item += int(corpus.item.max()) + 1
    return np.concatenate(pairs), np.concatenate(items)


def _joined(modality: str, parts: Sequence[_Part]) -> Raw:
    """Return the rows of a modality of all splits, which must be of one form."""
    rows = [part.corpus.raw[modality] for part in parts]
    forms = [_form(found) for found in rows]
    for part, form in zip(parts, forms, strict=True):
        if form != forms[0]:
            raise DataError(f"{part.place}: {modality} is {form}, but {forms[0]} in {parts[0].place}")
    if isinstance(rows[0], Pictures):
        files = tuple(file for found in rows if isinstance(found, Pictures) for file in found.files)
        return replace(rows[0], files=files)
    if isinstance(rows[0], np.ndarray):
        return np.concatenate([found for found in rows if isinstance(found, np.ndarray)])
    return [text for found in rows if not isinstance(found, Pictures | np.ndarray) for text in found]


def _form(rows: Raw) -> str:
    """Say in words what one row of a modality is."""
    if isinstance(rows, Pictures | np.ndarray):
        return f"{rows.dtype} of shape {(*rows.shape[1:],)}"
    return "texts"
