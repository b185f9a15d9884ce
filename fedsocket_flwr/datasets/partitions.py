"""Who holds which rows: TEST, DEV and TRAIN of a task are drawn, and TRAIN is dealt to its clients.

Everything is drawn from the partition's own seed and the task's name, never from the run's seed or a client's name: a sweep over
seeds keeps the split, and the k-th client of the file holds the k-th part whatever it is called. Indices are rows of the corpus,
or rows of ``Corpus.pairs`` for retrieval.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsocket_flwr.config import ClientSettings, Configuration, PartitionSettings, TaskSettings
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.donors_recipients import DonorsAndRecipients
from fedsocket_flwr.datasets.draws import deal_in_proportion, stratified
from fedsocket_flwr.datasets.groups import column_values
from fedsocket_flwr.datasets.split_manifest import ClientSplit, number_of_rows, read_manifest, task_manifest
from fedsocket_flwr.errors import PartitionError
from fedsocket_flwr.plain_files import write_whole
from fedsocket_flwr.seeds import derive_seed, numpy_generator

__all__ = ["ClientSplit", "manifest", "split_task", "task_splits"]

# flwr-datasets tries eleven times a seed; ten seeds are enough to tell bad luck from a split that does not exist.
DIRICHLET_SEEDS = 10
# Raise it when the same settings and data give other splits than before.
DRAW_VERSION = 1
_SPLITS: dict[str, dict[str, ClientSplit]] = {}
_TEXTS: dict[int, tuple[TaskSettings, str]] = {}


def split_task(name: str, task: TaskSettings, corpus: Corpus, test: Literal["shared", "own"]) -> dict[str, ClientSplit]:
    """Divide a task's data over its clients.

    TEST, DEV and TRAIN are drawn first, in that order, with the sizes of the settings; without a size TEST is a fifth and DEV a
    tenth (rounded down), and TRAIN what is left. Where the data set has a published split, TEST and DEV come from it (all of it
    without a size). Draws keep the share of every class by the largest remainder, so a class of very few rows may be absent from
    DEV. Retrieval draws items, so that no item is in two splits; sizes then count items.

    TRAIN is dealt by a flwr-datasets partitioner: ``dirichlet`` over the labels, ``iid``, or ``natural`` by the value of a
    column; ``all`` gives everyone every training row. With ``test: shared`` all clients have the whole DEV and TEST, in retrieval
    one image an item with all its captions. With ``own`` they are dealt into disjoint parts: by the client's value of the column
    (natural), else in the proportions of the clients' training labels.

    ``donors_recipients`` draws whole groups instead: see :mod:`fedsocket_flwr.datasets.donors_recipients`.

    Parameters
    ----------
    name, task
        The task and its settings.
    corpus
        Its data.
    test
        ``shared`` or ``own``, as in ``evaluation.test``.

    Returns
    -------
    dict
        Client name -> :class:`ClientSplit`, in the order of the file.

    Raises
    ------
    PartitionError
        The data cannot be divided so; the message says what to change.
    """
    names = tuple(client.name for client in task.clients)
    if task.partition.manifest is not None:
        return read_manifest(Path(task.partition.manifest), name, names, corpus)
    if task.partition.kind == "donors_recipients":
        train, *rest = _donors_recipients(name, task, corpus, test)
    else:
        dealing = _Dealing(name, task.partition, task.clients, corpus)
        units = dealing.draw()
        train = dealing.train(units["train"])
        rest = [dealing.shared(units[s]) if test == "shared" else dealing.own(s, units[s], train) for s in ("dev", "test")]
    # Clients that share a part share its tuple: a thousand copies of DEV would be most of the memory.
    rows = {id(part): tuple(np.sort(part).tolist()) for parts in (train, *rest) for part in parts}
    return {client: ClientSplit(*(rows[id(parts[k])] for parts in (train, *rest))) for k, client in enumerate(names)}


def _donors_recipients(name: str, task: TaskSettings, corpus: Corpus, test: Literal["shared", "own"]) -> list[list[Array]]:
    """Return TRAIN, DEV and TEST of every client."""
    roles = [task.role_of(client) for client in task.clients]
    draw = DonorsAndRecipients(name, task.partition, corpus, [client.name for client in task.clients], roles)
    train, dealt = draw.train()
    if test == "own":
        return [train, draw.own("dev", dealt), draw.own("test", dealt)]
    return [train, [draw.dev] * len(roles), [draw.test] * len(roles)]


def task_splits(config: Configuration, name: str, cache_dir: Path | None = None) -> dict[str, ClientSplit]:
    """Return the splits of a task of a configuration, computed once per process.

    Parameters
    ----------
    config, name
        The configuration and the task's name.
    cache_dir
        Where a manifest of the splits is kept for other processes: a deployed client's process is new at every message, and
        loading the partitioners takes it longer than all else. None keeps nothing.
    """
    task, test = config.tasks[name], config.evaluation.test
    key = json.dumps([name, _text(task), test])
    if key not in _SPLITS:
        corpus = read_corpus(task)
        if cache_dir is None or task.partition.manifest is not None:
            _SPLITS[key] = split_task(name, task, corpus, test)
        else:
            _SPLITS[key] = _kept_splits(name, task, corpus, test, cache_dir / f"splits-{_draw_digest(key, corpus)[:20]}.json")
    return _SPLITS[key]


def _text(task: TaskSettings) -> str:
    """Return all settings of a task as text, made once: with a thousand clients that takes longer than to open one."""
    # The settings are kept beside their text, so their id cannot be given to other ones.
    if id(task) not in _TEXTS:
        _TEXTS[id(task)] = (task, json.dumps(task.model_dump(mode="json"), sort_keys=True))
    return _TEXTS[id(task)][1]


def _draw_digest(key: str, corpus: Corpus) -> str:
    """Name all that a draw depends on: settings, labels and columns, and the versions of what draws."""
    versions = [importlib.metadata.version(package) for package in ("flwr-datasets", "numpy")]
    facts = [None if known is None else known.tolist() for known in (corpus.labels, corpus.pairs, corpus.item)]
    columns = {column: list(values) for column, values in corpus.columns.items()}
    part = None if corpus.part is None else list(corpus.part)
    return hashlib.sha256(json.dumps([DRAW_VERSION, versions, key, facts, columns, part], sort_keys=True).encode()).hexdigest()


def _kept_splits(
    name: str, task: TaskSettings, corpus: Corpus, test: Literal["shared", "own"], path: Path
) -> dict[str, ClientSplit]:
    """Return the splits that a manifest in the cache holds; where none is or it is damaged, draw them and try to keep them."""
    with contextlib.suppress(PartitionError):
        return read_manifest(path, name, tuple(client.name for client in task.clients), corpus)
    splits = split_task(name, task, corpus, test)
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"version": 1, "tasks": {name: task_manifest(corpus, splits)}}, ensure_ascii=False))
    return splits


def manifest(config: Configuration, cache_dir: Path | None = None) -> dict[str, Any]:
    """Return the split manifest of a configuration, in JSON's types: indices and class counts per client, a checksum per task.

    ``cache_dir`` is that of :func:`task_splits`. Of clients' own data only the names of the classes are known.
    """
    tasks: dict[str, Any] = {}
    for name, task in config.tasks.items():
        if task.has_own_data:
            tasks[name] = {"dataset": task.dataset, "classes": list(task.classes or ()), "clients": {}}
        else:
            tasks[name] = task_manifest(read_corpus(task), task_splits(config, name, cache_dir))
    return {"version": 1, "tasks": tasks}


class _Dealing:
    """One task's draw. A unit is what must stay together: a row in classification, an item (all its pairs) in retrieval."""

    def __init__(self, name: str, partition: PartitionSettings, clients: Sequence[ClientSettings], corpus: Corpus) -> None:
        self.name, self.partition, self.clients, self.corpus = name, partition, clients, corpus
        self.rows = np.arange(number_of_rows(corpus), dtype=np.int64)
        self.unit = self.rows if corpus.item is None else np.asarray(corpus.item, dtype=np.int64)
        self.strata = np.zeros(len(self.rows), dtype=np.int64) if corpus.labels is None else corpus.labels
        self.column: Array | None = None
        if partition.kind == "natural":
            self.column = self._natural_column()

    def _generator(self, *purpose: str) -> np.random.Generator:
        return numpy_generator("partition", self.partition.seed, self.name, *purpose)

    def _error(self, message: str) -> PartitionError:
        return PartitionError(f"task {self.name!r}: {message}")

    def _natural_column(self) -> Array:
        """Return the column that names the owner of a row, after checking every client's value."""
        column = self.partition.column or ""
        values = column_values(self.corpus, column, self.name)
        known = ", ".join(repr(str(value)) for value in np.unique(values)[:20])
        taken: dict[str, str] = {}
        for client in self.clients:
            if client.natural_id is None:
                raise self._error(f"client {client.name!r} needs `natural_id`, one of the values of {column!r}: {known}")
            if client.natural_id not in values:
                raise self._error(f"client {client.name!r}: {column!r} has no value {client.natural_id!r}; its values: {known}")
            if client.natural_id in taken:
                raise self._error(
                    f"clients {taken[client.natural_id]!r} and {client.name!r} claim the same {client.natural_id!r}"
                )
            taken[client.natural_id] = client.name
        return values

    def _held(self) -> Array:
        """Say which rows some client can hold; all of them unless the partition is natural."""
        if self.column is None:
            return np.ones(len(self.rows), dtype=bool)
        return np.isin(self.column, [client.natural_id or "" for client in self.clients])

    # ------------------------------------------------------------------ which units are TEST, DEV, TRAIN
    def draw(self) -> dict[str, Array]:
        """Return the units of each split."""
        part = np.full(len(self.rows), "train") if self.corpus.part is None else np.asarray(self.corpus.part)
        usable = self._held() | (part != "train")
        pools = {split: np.unique(self.unit[usable & (part == split)]) for split in ("test", "dev", "train")}
        if sum(len(pool) for pool in pools.values()) != len(np.unique(self.unit[usable])):
            raise self._error(f"an item of {self.corpus.name!r} is in two of its published splits")
        published = {split for split in ("test", "dev") if len(pools[split])}
        everything = len(pools["train"])
        defaults = {"test": everything // 5, "dev": everything // 10}
        sizes = {"test": self.partition.test, "dev": self.partition.dev, "train": self.partition.train}
        drawn: dict[str, Array] = {}
        for split in ("test", "dev", "train"):
            source = split if split in published else "train"
            whole = split == "train" or split in published
            size = sizes[split]
            size = size if size is not None else len(pools[source]) if whole else defaults[split]
            if size > len(pools[source]):
                raise self._error(
                    f"partition.{split} asks for {size} of {self.corpus.name!r}, but only {len(pools[source])} are left "
                    f"(in all {everything}); lower partition.train, dev or test"
                )
            drawn[split] = stratified(pools[source], self._strata_of(pools[source]), size, self._generator(split))
            pools[source] = np.setdiff1d(pools[source], drawn[split])
        if not len(drawn["train"]):
            raise self._error("no training rows are left; lower partition.dev or partition.test")
        return drawn

    def _strata_of(self, units: Array) -> Array:
        """Return the class of each unit (retrieval: one stratum)."""
        return np.zeros(len(units), dtype=np.int64) if self.corpus.labels is None else self.strata[units]

    def _rows_of(self, units: Array) -> Array:
        return self.rows[np.isin(self.unit, units)]

    # ------------------------------------------------------------------ TRAIN
    def train(self, units: Array) -> list[Array]:
        """Return the training rows of each client, after checking that each has the minimum."""
        rows = self._rows_of(units)
        match self.partition.kind:
            case "all":
                parts = [rows] * len(self.clients)
            case "natural":
                parts = self._natural(rows)
            case "iid":
                parts = [self._rows_of(part) for part in self._iid(units)]
            case _:
                parts = self._dirichlet(rows)
        small = [
            (client.name, len(part))
            for client, part in zip(self.clients, parts, strict=True)
            if len(part) < self.partition.minimum_size
        ]
        if small:
            found = ", ".join(f"{client} has {size}" for client, size in small)
            raise self._error(
                f"partition.minimum_size is {self.partition.minimum_size} training rows a client, but {found}; "
                "lower minimum_size, raise partition.train, or have fewer clients"
            )
        return parts

    def _natural(self, rows: Array) -> list[Array]:
        from flwr_datasets.partitioner import NaturalIdPartitioner

        assert self.column is not None
        values = self.column[rows]
        partitioner = NaturalIdPartitioner(partition_by="column")
        number = {value: k for k, value in enumerate(sorted(set(values.tolist())))}
        # A value may be in the data but not among the training rows that were drawn: its client is left empty.
        wanted = [number.get(client.natural_id or "") for client in self.clients]
        return _load(partitioner, rows, wanted, column=values.tolist())

    def _iid(self, units: Array) -> list[Array]:
        from flwr_datasets.partitioner import IidPartitioner

        self._require_a_row_each(len(units))
        # The partitioner cuts contiguous shards, so the shuffle is ours.
        shuffled = self._generator("iid").permutation(units)
        return _load(IidPartitioner(num_partitions=len(self.clients)), shuffled, range(len(self.clients)))

    def _dirichlet(self, rows: Array) -> list[Array]:
        from flwr_datasets.partitioner import DirichletPartitioner

        settings = self.partition
        if self.corpus.labels is None:
            raise self._error("a dirichlet partition needs labels, which retrieval has not; use iid, natural or all")
        self._require_a_row_each(len(rows))
        if settings.minimum_size * len(self.clients) <= len(rows):
            shuffled = self._generator("dirichlet").permutation(rows)
            for attempt in range(DIRICHLET_SEEDS):
                partitioner = DirichletPartitioner(
                    num_partitions=len(self.clients),
                    partition_by="label",
                    alpha=settings.alpha,
                    min_partition_size=settings.minimum_size,
                    shuffle=False,
                    seed=derive_seed("partition", settings.seed, self.name, "dirichlet", attempt),
                )
                # The partitioner raises ValueError when eleven tries did not reach the minimum size.
                with contextlib.suppress(ValueError):
                    return _load(partitioner, shuffled, range(len(self.clients)), label=self.strata[shuffled].tolist())
        raise self._error(
            f"no Dirichlet split with alpha {settings.alpha} gives each of {len(self.clients)} clients at least "
            f"{settings.minimum_size} of {len(rows)} training rows ({DIRICHLET_SEEDS} seeds tried); raise partition.alpha, lower "
            "partition.minimum_size, raise partition.train, or have fewer clients"
        )

    def _require_a_row_each(self, available: int) -> None:
        if available < len(self.clients):
            raise self._error(f"{available} training rows cannot be dealt to {len(self.clients)} clients; raise partition.train")

    # ------------------------------------------------------------------ DEV and TEST
    def shared(self, units: Array) -> list[Array]:
        """Return the same rows for every client; in retrieval one image an item, dealt round-robin over its images."""
        rows = self._rows_of(units)
        if self.corpus.pairs is not None:
            rows = rows[self._held()[rows]] if self.corpus.part is None else rows
            rows = self._one_image_an_item(rows, units)
        return [rows] * len(self.clients)

    def _one_image_an_item(self, rows: Array, units: Array) -> Array:
        assert self.corpus.pairs is not None
        images = self.corpus.pairs[rows, 0]
        turn = {int(unit): k for k, unit in enumerate(units)}
        of_item: dict[int, list[int]] = {}
        for image, unit in zip(images.tolist(), self.unit[rows].tolist(), strict=True):
            known = of_item.setdefault(unit, [])
            if image not in known:
                known.append(image)
        chosen = [sorted(known)[turn[unit] % len(known)] for unit, known in of_item.items()]
        return rows[np.isin(images, chosen)]

    def own(self, split: str, units: Array, train: list[Array]) -> list[Array]:
        """Return disjoint rows: by the client's column value, else in the proportions of its training rows."""
        if self.column is not None:
            rows = self._rows_of(units)
            return [rows[self.column[rows] == client.natural_id] for client in self.clients]
        sizes = np.array([len(part) for part in train], dtype=np.float64)
        strata = self._strata_of(units)
        weights = {
            int(s): np.array([np.sum(self.strata[part] == s) for part in train], dtype=np.float64) for s in np.unique(strata)
        }
        dealt = deal_in_proportion(units, strata, weights, sizes, self._generator(split, "own"))
        return [self._rows_of(part) for part in dealt]


def _load(partitioner: Any, rows: Array, numbers: Sequence[int | None], **columns: list[Any]) -> list[Array]:
    """Let a flwr-datasets partitioner deal ``rows``, described by ``columns``, and return the wanted partitions' rows."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"row": rows.tolist(), **columns})
    # Its progress bar and its advice on every failed try would end up in the run's log.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return [rows[:0] if k is None else np.asarray(partitioner.load_partition(k)[:]["row"], dtype=np.int64) for k in numbers]
