"""Feature folders of the FedMultimodal benchmark (Feng et al., 2023), written over into the layout of ``features``.

The benchmark keeps ``MODALITY/FEATURE/DATASET[/alphaNN][/foldN]/CLIENT.pkl``: a list of ``[key, path, label, ..., features]`` for
every client, and for ``dev`` and ``test``. The pickles are read through an allow-list. Sequences are of any length there; here a
video becomes :data:`TOKENS` means over equal stretches of time, and all else its mean over time.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.datasets.feature_files import LAYOUT, write_features
from fedsocket_flwr.datasets.safe_pickle import read_pickle
from fedsocket_flwr.datasets.sources import read_bytes
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
TOKENS = 8
HELD_OUT = ("dev", "test")
HOW_TO_GET = "make it with FedMultimodal's own feature extraction"


@dataclass(frozen=True)
class _Source:
    """A data set of the benchmark.

    Attributes
    ----------
    modalities
        Name of the benchmark's folder -> name here. What was a text is a vector now.
    group
        The part of a key that tells what must not be torn: a dialogue, an actor's sentence, a filmed scene.
    classes
        Names of the classes; nothing where the keys begin with them.
    """

    modalities: Mapping[str, str]
    group: str
    classes: tuple[str, ...] = ()


SOURCES = {
    "meld": _Source({"text": "transcript", "audio": "audio"}, r"dia\d+", ("neutral", "sadness", "joy", "anger")),
    "crema_d": _Source({"video": "video", "audio": "audio"}, r"\d+_[A-Z]+", ("anger", "sadness", "happiness", "neutral")),
    "ucf101": _Source({"video": "video", "audio": "audio"}, r"v_.+_g\d+"),
}


@dataclass(frozen=True)
class _Row:
    key: str
    label: int
    values: Array


def convert(source: Path, target: Path, variant: str | None = None) -> None:
    """Write one data set of the benchmark into a folder of the ``features`` layout.

    Parameters
    ----------
    source
        The benchmark's ``feature`` folder, or the folder that holds it.
    target
        The folder to write.
    variant
        Which one, where the source has several: ``crema_d/fold1``, ``ucf101/alpha01/fold1``.

    Raises
    ------
    DataError
        The source has no such folders, several of them, or a file is not of the benchmark's form.
    """
    root = source / "feature" if (source / "feature").is_dir() else source
    folders = _folders(root, variant)
    name = next(iter(folders.values())).relative_to(root).parts[2]
    described, rows, dropped = SOURCES[name], [], 0
    for client in _clients(folders):
        tables = {modality: _rows(folder / f"{client}.pkl", modality) for modality, folder in folders.items()}
        first, *others = tables.values()
        both = [key for key in first if all(key in other for other in others)]
        dropped += max(len(table) for table in tables.values()) - len(both)
        rows += [(client, {modality: table[key] for modality, table in tables.items()}) for key in both]
    if not rows:
        raise DataError(f"{root}: no row of {name} has all of {', '.join(folders)}; {HOW_TO_GET}")
    if dropped:
        LOG.warning("%d rows of %s lack a modality and were left out", dropped, name)
    any_row = [next(iter(row.values())) for _, row in rows]
    classes = described.classes or _classes_of_keys(any_row)
    clients = [client for client, _ in rows]
    groups = [_group(described, row.key, client) for client, row in zip(clients, any_row, strict=True)]
    write_features(
        target,
        name,
        classes,
        {described.modalities[modality]: np.stack([row[modality].values for _, row in rows]) for modality in folders},
        np.array([row.label for row in any_row]),
        {"client": clients, "group": groups, "key": [row.key for row in any_row]},
        [client if client in HELD_OUT else "train" for client in clients],
    )


def _folders(root: Path, variant: str | None) -> dict[str, Path]:
    """Return the folder of each modality of the one data set that is meant."""
    found: dict[str, dict[str, list[Path]]] = {}
    for folder in sorted({file.parent for file in root.rglob("test.pkl")}):
        modality, _, *rest = folder.relative_to(root).parts
        if rest and rest[0] in SOURCES and modality in SOURCES[rest[0]].modalities:
            found.setdefault("/".join(rest), {}).setdefault(modality, []).append(folder)
    if variant is not None:
        found = {known: folders for known, folders in found.items() if known == variant}
    if len(found) != 1:
        raise DataError(
            f"{root} must hold MODALITY/FEATURE/DATASET/.../CLIENT.pkl of one data set ({', '.join(SOURCES)}), found "
            f"{', '.join(found) or 'none'}{f' called {variant!r}' if variant else ''}; name one as variant, or {HOW_TO_GET}"
        )
    name, folders = next(iter(found.items()))
    wanted = SOURCES[name.split("/")[0]].modalities
    for modality in wanted:
        if len(folders.get(modality, [])) != 1:
            listed = ", ".join(str(folder) for folder in folders.get(modality, [])) or "none"
            raise DataError(f"{root}: {name} needs features of one kind for {modality}, found {listed}; {HOW_TO_GET}")
    return {modality: folders[modality][0] for modality in wanted}


def _clients(folders: Mapping[str, Path]) -> list[str]:
    """Return the names of the clients, ``dev`` and ``test``, which must be the same for every modality."""
    names = {modality: {file.stem for file in folder.glob("*.pkl")} for modality, folder in folders.items()}
    first = next(iter(names.values()))
    for modality, other in names.items():
        if other != first:
            lone = min(first ^ other)
            raise DataError(f"{folders[modality]}: client {lone!r} has features of one modality only; {HOW_TO_GET}")
    return sorted(first)


def _rows(file: Path, modality: str) -> dict[str, _Row]:
    """Return the rows of a client that have features, by key."""
    found = read_pickle(file, read_bytes(file, HOW_TO_GET))
    if not isinstance(found, list):
        raise DataError(f"{file} holds a {type(found).__name__}, expected a list of [key, path, label, ..., features]")
    rows: dict[str, _Row] = {}
    for number, row in enumerate(found):
        if not isinstance(row, list) or len(row) < 4 or not isinstance(row[0], str) or not _is_label(row[-2]):
            raise DataError(f"{file}: row {number} is not [key, path, label, ..., features] but {_shortened(row)}")
        if row[0] in rows:
            raise DataError(f"{file}: the key {row[0]!r} stands twice")
        if row[-1] is not None:
            rows[row[0]] = _Row(row[0], int(row[-2]), _pooled(file, number, row[-1], TOKENS if modality == "video" else None))
    return rows


def _is_label(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _shortened(row: Any) -> str:
    return str([type(value).__name__ for value in row][:6]) if isinstance(row, list) else type(row).__name__


def _pooled(file: Path, number: int, values: Any, tokens: int | None) -> Array:
    """Return the mean over time (width,), or the means over equal stretches (tokens, width); a short one repeats its frames."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim not in (1, 2, 3) or not values.size:
        raise DataError(
            f"{file}: row {number} has features {type(values).__name__} {getattr(values, 'shape', '')}, expected floats"
        )
    frames = values[0] if values.ndim == 3 else np.atleast_2d(values)
    if tokens is None:
        return np.asarray(frames.mean(axis=0, dtype=np.float64), dtype=np.float32)
    starts = np.arange(tokens) * len(frames) // tokens
    ends = np.maximum(starts + 1, (np.arange(tokens) + 1) * len(frames) // tokens)
    means = [frames[start:end].mean(axis=0, dtype=np.float64) for start, end in zip(starts, ends, strict=True)]
    return np.stack(means).astype(np.float32)


def _group(described: _Source, key: str, client: str) -> str:
    """Return a row's group; DEV's and TEST's numbers start anew."""
    match = re.search(described.group, key)
    if match is None:
        raise DataError(f"the key {key!r} of client {client!r} names no group, expected {described.group} in it")
    return f"{client}-{match[0]}" if client in HELD_OUT else match[0]


def _classes_of_keys(rows: list[_Row]) -> tuple[str, ...]:
    """Return the classes of keys ``CLASS/...``, in the order of their labels."""
    names = {row.label: row.key.split("/")[0] for row in rows}
    if sorted(names) != list(range(len(names))):
        raise DataError(f"the labels {sorted(names)} leave a class out; see {LAYOUT} to write the features with all classes")
    return tuple(names[label] for label in sorted(names))
