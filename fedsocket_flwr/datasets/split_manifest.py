"""The split manifest: which row is whose, written with a run and accepted back as input.

Indices are rows of the corpus for classification and rows of ``Corpus.pairs`` for retrieval.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.errors import PartitionError

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class ClientSplit:
    """Indices of one client, each tuple in ascending order."""

    train: tuple[int, ...]
    dev: tuple[int, ...]
    test: tuple[int, ...]


def split_checksum(splits: Mapping[str, ClientSplit]) -> str:
    """Return the SHA-256 over who has which rows, independent of the order of the clients."""
    canonical = json.dumps({client: [split.train, split.dev, split.test] for client, split in splits.items()}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def class_counts(corpus: Corpus, rows: tuple[int, ...]) -> list[int]:
    """Return how many of the rows have each class (empty for retrieval)."""
    if corpus.labels is None:
        return []
    return [int(n) for n in np.bincount(corpus.labels[list(rows)], minlength=len(corpus.classes))]


def task_manifest(corpus: Corpus, splits: Mapping[str, ClientSplit]) -> dict[str, Any]:
    """Return one task's part of the manifest, in JSON's types."""
    return {
        "dataset": corpus.name,
        "rows": number_of_rows(corpus),
        "classes": list(corpus.classes),
        "clients": {
            client: {
                "train": list(split.train),
                "dev": list(split.dev),
                "test": list(split.test),
                "class_counts": {name: class_counts(corpus, getattr(split, name)) for name in SPLITS},
            }
            for client, split in splits.items()
        },
        "checksum": split_checksum(splits),
    }


def deal_digest(part: Mapping[str, Any]) -> str:
    """Return the SHA-256 of one task's part of a manifest: rows, classes, who has which rows and how many of each class.

    The data set's name, which may be a file's, plays no part: equal digests mean equal data as far as labels say.
    """
    facts = {key: value for key, value in part.items() if key != "dataset"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def number_of_rows(corpus: Corpus) -> int:
    """Return the number of rows, or of pairs."""
    known = corpus.pairs if corpus.pairs is not None else corpus.labels
    return 0 if known is None else len(known)


def read_manifest(path: Path, task: str, clients: tuple[str, ...], corpus: Corpus) -> dict[str, ClientSplit]:
    """Return the splits that a manifest file gives a task.

    Parameters
    ----------
    path
        A manifest as :func:`fedsocket_flwr.datasets.partitions.manifest` makes it; ``class_counts`` and ``checksum`` may be left
        out.
    task, clients, corpus
        The task, the names of its clients, and its data.

    Raises
    ------
    PartitionError
        One message with everything that is wrong: not such a file, another data set, a client too many or too few, an index out
        of range or twice, a row in TRAIN and in DEV or TEST, a checksum that does not fit.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content["tasks"][task]
        clients_found = dict(found["clients"])
    except OSError as error:
        raise PartitionError(f"cannot read the split manifest {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PartitionError(
            f"{path} is not a split manifest with tasks.{task}.clients ({type(error).__name__}: {error})"
        ) from error
    problems = []
    if found.get("dataset", corpus.name) != corpus.name or found.get("rows", number_of_rows(corpus)) != number_of_rows(corpus):
        problems.append(
            f"it was made for {found.get('rows', '?')} rows of {found.get('dataset', '?')!r}, the task reads "
            f"{number_of_rows(corpus)} rows of {corpus.name!r}"
        )
    problems += [f"client {client!r} is not in the configuration" for client in clients_found if client not in clients]
    problems += [f"client {client!r} of the configuration is missing" for client in clients if client not in clients_found]
    splits: dict[str, ClientSplit] = {}
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    for client in clients:
        if client in clients_found:
            rows = {split: _indices(client, split, clients_found[client], number_of_rows(corpus), problems) for split in SPLITS}
            # Clients that share a part share its tuple.
            splits[client] = ClientSplit(**{split: shared.setdefault(found, found) for split, found in rows.items()})
    if not problems:
        problems += _overlaps(splits, corpus)
    if not problems and found.get("checksum", split_checksum(splits)) != split_checksum(splits):
        problems.append("its rows do not fit its checksum; remove `checksum` if the rows were changed on purpose")
    if problems:
        raise PartitionError(f"the split manifest {path} cannot be used for task {task!r}: {'; '.join(problems)}")
    return splits


def _indices(client: str, split: str, found: Any, rows: int, problems: list[str]) -> tuple[int, ...]:
    """Return one list of indices, sorted, and note what is wrong with it."""
    values = found.get(split) if isinstance(found, dict) else None
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        problems.append(f"client {client!r} needs a list of row numbers under {split!r}")
        return ()
    outside = [value for value in values if not 0 <= value < rows]
    if outside:
        problems.append(f"client {client!r} has row {outside[0]} in {split}, but rows go from 0 to {rows - 1}")
    if len(set(values)) != len(values):
        twice = next(value for position, value in enumerate(sorted(values)) if value == sorted(values)[position - 1] and position)
        problems.append(f"client {client!r} has row {twice} twice in {split}")
    return tuple(sorted(values))


def _overlaps(splits: Mapping[str, ClientSplit], corpus: Corpus) -> list[str]:
    """Say which rows (for retrieval: items) are in two splits of the task, whoever holds them."""
    unit = corpus.item if corpus.item is not None else np.arange(number_of_rows(corpus))
    name = "row" if corpus.item is None else "item"
    held = {split: {int(unit[row]) for one in splits.values() for row in getattr(one, split)} for split in SPLITS}
    problems = []
    for first, second in (("train", "test"), ("train", "dev"), ("dev", "test")):
        both = sorted(held[first] & held[second])
        if both:
            problems.append(f"{len(both)} {name}s are in {first.upper()} and in {second.upper()}, the first is {name} {both[0]}")
    return problems
