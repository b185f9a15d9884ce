"""A client's data, ready for training: its rows of the corpus, as its private model and as Q take them.

The pieces are kept per process, so that ten clients in one process read each data set once, divide it once and map each feature
file once. The arrays of a split may be shared between clients: nobody writes to them.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import Configuration, InterfaceSettings, TaskSettings
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.corpus import Array, ClientData, Corpus, Inputs, Raw, Split
from fedsocket_flwr.datasets.features import Progress, features
from fedsocket_flwr.datasets.groups import column_values, group_ids
from fedsocket_flwr.datasets.inputs import private_inputs
from fedsocket_flwr.datasets.interfaces import Interface, build_interface
from fedsocket_flwr.datasets.own_data import own_corpus, own_rows
from fedsocket_flwr.datasets.partitions import task_splits
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.datasets.split_manifest import SPLITS, class_counts, deal_digest, number_of_rows, task_manifest
from fedsocket_flwr.errors import ConfigurationError, DataError

KEPT_SPLITS = 64
_INTERFACES: dict[str, Interface] = {}
_GROUPS: dict[tuple[int, str], tuple[Corpus, Array]] = {}
_FEATURES: dict[tuple[str, int, str, Path], tuple[Corpus, Array]] = {}
_SPLITS: OrderedDict[str, Split] = OrderedDict()


@dataclass(frozen=True)
class _Reading:
    """How a client reads its task's data: the modalities that it holds, those of them that Q reads, the features it needs."""

    task: TaskSettings
    corpus: Corpus
    held: tuple[str, ...]
    shared: tuple[str, ...]
    whole: Mapping[str, Array]
    groups: Array | None


def open_client_data(config: Configuration, client: str, cache_dir: Path, data_directory: Path | None = None) -> ClientData:
    """Return one client's TRAIN, DEV and TEST: inputs of the modalities that it holds, features of those of them that Q reads.

    Parameters
    ----------
    config
        The run's configuration.
    client
        Name of the client.
    cache_dir
        Folder of the feature cache.
    data_directory
        Where this node has its data: the client's own (``partition.kind: own``), or the whole data set in another place than the
        task's ``path``. None: as the task says.

    Raises
    ------
    ConfigurationError
        There is no such client, the data set does not fit the task, or an interface cannot read its rows.
    DataError
        The data are missing or altered; :class:`PartitionError` where they cannot be divided as asked.
    """
    name, settings = config.client(client)
    held = config.tasks[name].held_by(settings)
    if config.tasks[name].has_own_data:
        task = config.tasks[name]
        corpus = own_corpus(config, client, data_directory)
        rows = own_rows(corpus, task.partition.minimum_size)
    else:
        config = _with_data_at(config, name, data_directory)
        task = config.tasks[name]
        corpus = read_corpus(task)
        rows = task_splits(config, name, cache_dir)[client]
    reading = _reading(config, client, corpus, cache_dir)
    if task.has_own_data:
        _require_vectors(config, client, reading.whole)
    train, dev, test = (_split(reading, getattr(rows, split)) for split in SPLITS)
    return ClientData(client, name, corpus.kind, held, corpus.classes, train, dev, test)


def open_split(config: Configuration, client: str, corpus: Corpus, rows: Iterable[int], cache_dir: Path) -> Split:
    """Return rows of any data set of a client's kind, as its private model and Q take them; errors as above."""
    return _made_split(_reading(config, client, corpus, cache_dir), np.asarray(tuple(rows), dtype=np.int64))


def _reading(config: Configuration, client: str, corpus: Corpus, cache_dir: Path) -> _Reading:
    name, settings = config.client(client)
    task = config.tasks[name]
    held = task.held_by(settings)
    shared = tuple(modality for modality in held if modality in task.q_modalities)
    needed = tuple(modality for modality in held if modality in task.interface_modalities)
    whole = {modality: _features(config.interfaces[modality], corpus, modality, cache_dir) for modality in needed}
    return _Reading(task, corpus, held, shared, whole, _groups(corpus, task.partition.group, name))


def _with_data_at(config: Configuration, name: str, data_directory: Path | None) -> Configuration:
    """Return the configuration with a task's data set in another place."""
    if data_directory is None:
        return config
    task = config.tasks[name].model_copy(update={"path": str(data_directory)})
    return config.model_copy(update={"tasks": {**config.tasks, name: task}})


def require_same_deal(config: Configuration, client: str, cache_dir: Path, data_directory: Path | None, expected: str) -> None:
    """Refuse data that are dealt otherwise than the server's: it is another data set, and rows would be torn.

    ``expected`` is the server's :func:`~fedsocket_flwr.datasets.split_manifest.deal_digest` of the client's task.
    """
    name, _ = config.client(client)
    here = config if data_directory is None else _with_data_at(config, name, data_directory)
    corpus, splits = read_corpus(here.tasks[name]), task_splits(here, name, cache_dir)
    if deal_digest(task_manifest(corpus, splits)) != expected:
        raise DataError(
            f"{data_directory or here.tasks[name].dataset} holds another data set than the server's for task {name!r}: "
            f"its {number_of_rows(corpus)} rows in {len(corpus.classes)} classes are dealt otherwise"
        )


def _require_vectors(config: Configuration, client: str, whole: Mapping[str, Array]) -> None:
    """Refuse own data of which Q would read tokens: the server, which never sees a row, takes them for one vector a row."""
    name, _ = config.client(client)
    for modality, features_of in whole.items():
        if modality in config.tasks[name].q_modalities and features_of.ndim == 3:
            raise ConfigurationError(
                f"interfaces.{modality} gives tokens of shape {features_of.shape[1:]}, but of clients' own data Q reads one "
                "vector a row"
            )


def warm_features(config: Configuration, cache_dir: Path, progress: Progress | None = None) -> None:
    """Compute every feature file of a configuration that is not there yet; those of clients' own data are the clients'."""
    for task in dealt_tasks(config).values():
        corpus = read_corpus(task)
        for modality in task.interface_modalities:
            _features(config.interfaces[modality], corpus, modality, cache_dir, progress)


def private_input_shapes(config: Configuration, client: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of what a client's private model takes, by modality, from the data set's first row."""
    name, settings = config.client(client)
    task = config.tasks[name]
    raw = read_corpus(task).raw
    if task.private_inputs == "features":
        return {m: tuple(shared_interface(config.interfaces[m])(raw[m][:1]).shape[1:]) for m in task.held_by(settings)}
    return {m: tuple(private_inputs(m, raw[m][:1], task).shape[1:]) for m in task.held_by(settings)}


def dealt_tasks(config: Configuration) -> dict[str, TaskSettings]:
    """Return the tasks whose data set is read whole and dealt, by name; those of clients' own data are left out."""
    return {name: task for name, task in config.tasks.items() if not task.has_own_data}


def task_classes(config: Configuration, task: str) -> tuple[str, ...]:
    """Return the names of a task's classes in the order of the labels (empty for retrieval)."""
    settings = config.tasks[task]
    return settings.classes or () if settings.has_own_data else read_corpus(settings).classes


def require_groups(config: Configuration, clients: Iterable[str], least: int) -> None:
    """Refuse clients whose training rows are of fewer groups than ``least``; a client without training rows needs none.

    Clients' own data are left to the clients.

    Raises
    ------
    ConfigurationError
        The task of one of these clients names no ``partition.group``.
    DataError
        A client has too few groups; the message names it and them.
    """
    for client in clients:
        name, _ = config.client(client)
        task = config.tasks[name]
        column = task.partition.group
        rows = np.zeros(0, dtype=np.int64)
        if not task.has_own_data:
            rows = np.asarray(task_splits(config, name)[client].train, dtype=np.int64)
        if column is None and (len(rows) or task.has_own_data):
            raise ConfigurationError(
                f"tasks.{name}: client {client!r} is cross-fitted by group: set partition.group to the column that names a row's "
                "group, or training.teaching.cross_fit to 0"
            )
        if column is None or len(rows) == 0:
            continue
        found = np.unique(column_values(read_corpus(task), column, name)[rows]).tolist()
        if len(found) < least:
            raise DataError(
                f"task {name!r}: the training rows of client {client!r} are all of {column} {', '.join(map(repr, found))}, and "
                f"cross-fitting needs at least {least} groups; give it more, or set training.teaching.cross_fit to 0"
            )


def token_modalities(config: Configuration) -> frozenset[str]:
    """Return the modalities that Q reads as tokens (N, tokens, width), as the first row of every task's data gives them.

    Of clients' own data Q reads vectors.

    Raises
    ------
    ConfigurationError
        A modality has tokens in one task and vectors in another, so that one Q cannot read both.
    """
    found: dict[str, dict[bool, str]] = {}
    for name, task in config.tasks.items():
        for modality in task.q_modalities:
            raw = () if task.has_own_data else read_corpus(task).raw[modality]
            # Pictures and texts become one vector each: only rows that are tokens already need a look, which may cost weights.
            tokens = isinstance(raw, np.ndarray) and raw.dtype.kind == "f" and raw.ndim == 3
            tokens = tokens and shared_interface(config.interfaces[modality])(raw[:1]).ndim == 3
            found.setdefault(modality, {})[tokens] = name
    for modality, tasks in found.items():
        if len(tasks) == 2:
            raise ConfigurationError(
                f"interfaces.{modality} gives tokens for tasks.{tasks[True]} and vectors for tasks.{tasks[False]}; "
                "give one of them a modality of another name"
            )
    return frozenset(modality for modality, tasks in found.items() if True in tasks)


def describe_clients(config: Configuration) -> list[dict[str, Any]]:
    """Return one row a client, in the order of the file: task, sizes, and the training count of each class by name.

    Sizes of clients' own data are None and their counts empty: registration tells.
    """
    rows: list[dict[str, Any]] = []
    for name, task in config.tasks.items():
        if task.has_own_data:
            unknown: dict[str, Any] = {**dict.fromkeys(SPLITS), "class_counts": {}}
            rows += [{"client": client.name, "task": name, "model": client.model, **unknown} for client in task.clients]
            continue
        corpus, splits = read_corpus(task), task_splits(config, name)
        for client in task.clients:
            split = splits[client.name]
            counts = dict(zip(corpus.classes, class_counts(corpus, split.train), strict=True)) if corpus.classes else {}
            sizes = {which: len(getattr(split, which)) for which in SPLITS}
            rows.append({"client": client.name, "task": name, "model": client.model, **sizes, "class_counts": counts})
    return rows


def shared_interface(settings: InterfaceSettings) -> Interface:
    """Return the interface of these settings, built once per process."""
    key = json.dumps(settings.model_dump(mode="json"), sort_keys=True, default=str)
    if key not in _INTERFACES:
        _INTERFACES[key] = build_interface(settings)
    return _INTERFACES[key]


def _features(
    settings: InterfaceSettings, corpus: Corpus, modality: str, cache_dir: Path, progress: Progress | None = None
) -> Array:
    """Return the features of a whole modality, mapped once per process."""
    interface = shared_interface(settings)
    # The corpus is kept beside its features, so its id cannot be given to another one.
    place = (interface.digest, id(corpus), modality, cache_dir)
    if place not in _FEATURES:
        try:
            _FEATURES[place] = (corpus, features(interface, corpus, modality, cache_dir, progress))
        except ConfigurationError as error:
            raise ConfigurationError(f"interfaces.{modality}: {error}") from error
    return _FEATURES[place][1]


def _groups(corpus: Corpus, column: str | None, task: str) -> Array | None:
    """Return the group of every row of a corpus, found once per process."""
    if column is None:
        return None
    place = (id(corpus), column)
    if place not in _GROUPS:
        _GROUPS[place] = (corpus, group_ids(corpus, column, task))
    return _GROUPS[place][1]


def _split(reading: _Reading, rows: tuple[int, ...]) -> Split:
    """Return one split; clients that read a shared DEV or TEST alike share its arrays."""
    task, group = reading.task, reading.task.partition.group
    shape = [task.dataset, task.path, task.options, reading.held, task.text_length, task.text_buckets, rows]
    more = [reading.shared, task.private_inputs, group]
    key = json.dumps([shape, more, [id(array) for array in reading.whole.values()]], sort_keys=True, default=str)
    if key not in _SPLITS:
        _SPLITS[key] = _made_split(reading, np.asarray(rows, dtype=np.int64))
        if len(_SPLITS) > KEPT_SPLITS:
            _SPLITS.popitem(last=False)
    _SPLITS.move_to_end(key)
    return _SPLITS[key]


def _made_split(reading: _Reading, rows: Array) -> Split:
    corpus = reading.corpus
    picked = dict.fromkeys(reading.held, rows)
    labels, pairs = None, None
    if corpus.pairs is not None:
        images, image_rows = np.unique(corpus.pairs[rows, 0], return_inverse=True)
        texts, text_rows = np.unique(corpus.pairs[rows, 1], return_inverse=True)
        picked = {"image": images, "text": texts}
        pairs = np.stack([image_rows, text_rows], axis=1).astype(np.int64)
    elif corpus.labels is not None:
        labels = corpus.labels[rows]
    taken = {m: np.asarray(whole[picked[m]], dtype=np.float32) for m, whole in reading.whole.items()}
    inputs: dict[str, Inputs] = {}
    if reading.task.private_inputs == "features":
        inputs = {m: taken[m] for m in reading.held}
    else:
        inputs = {m: private_inputs(m, take(corpus.raw[m], picked[m]), reading.task) for m in reading.held}
    return Split(
        inputs=inputs,
        features={m: taken[m] for m in reading.shared},
        labels=labels,
        pairs=pairs,
        groups=None if reading.groups is None else reading.groups[rows],
    )


def take(raw: Raw, rows: Iterable[int]) -> Raw:
    """Return rows of one modality; pictures in files stay in files."""
    if isinstance(raw, Pictures):
        return raw.subset(np.asarray(rows))
    return raw[np.asarray(rows)] if isinstance(raw, np.ndarray) else [raw[row] for row in rows]
