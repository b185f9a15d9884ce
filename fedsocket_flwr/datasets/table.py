"""``table``: a user's own classification data, in a CSV file of texts or an npz file of arrays."""

import csv
import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.labels import class_table
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import ConfigurationError, DataError

LOG = logging.getLogger(__name__)
Rows = Array | Sequence[str]
LONGEST_FIELD = 10**8
HOW_TO_GET = "give `path` a .csv or .npz file of your own"
DEFAULTS: dict[str, Any] = {
    "label": "label",
    "text": ["text"],
    "columns": [],
    "part": "",
    "header": True,
    "class_names": [],
    "unlabelled": "",
}


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read a table.

    Options: ``label``, the column or array of the labels (see :mod:`fedsocket_flwr.datasets.labels`); ``class_names`` in order,
    and ``unlabelled``, the label of rows to leave out; ``columns`` by which a natural partition can divide; ``part``, the column
    of the published split (``train``, ``dev``, ``test``). In a CSV file, ``text`` lists the columns that together are the text;
    without a ``header`` columns are called ``1``, ``2``, ... Every field is text: ``NA`` or ``null`` is a word. In an npz file
    every array that no option names is a modality: ``uint8`` pictures, floats, or texts.

    Raises
    ------
    DataError
        The file is missing, not such a file, or a row is broken; the row is named.
    """
    chosen = choose_options("data set 'table'", options, DEFAULTS)
    if path is None:
        raise ConfigurationError("data set 'table' needs `path`, a .csv or .npz file")
    file = Path(path)
    require_real_file(file)
    named = [chosen["label"], *chosen["columns"], *([chosen["part"]] if chosen["part"] else [])]
    if file.suffix == ".npz":
        raw, fields = _from_arrays(file, named)
    elif file.suffix == ".csv":
        raw, fields = _from_csv(file, named, chosen["text"], chosen["header"])
    else:
        raise ConfigurationError(f"data set 'table' reads .csv and .npz files, found {file.name}")
    try:
        table = class_table(fields[chosen["label"]], chosen["unlabelled"], [str(name) for name in chosen["class_names"]])
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    if len(table.kept) < len(fields[chosen["label"]]):
        LOG.info("%s: %d rows without a label are left out", file, len(fields[chosen["label"]]) - len(table.kept))
    return Corpus(
        name=file.stem,
        kind="classification",
        raw={modality: _kept(rows, table.kept) for modality, rows in raw.items()},
        labels=table.labels,
        classes=table.classes,
        columns={name: [str(value) for value in _kept(fields[name], table.kept)] for name in chosen["columns"]},
        part=[str(value) for value in _kept(fields[chosen["part"]], table.kept)] if chosen["part"] else None,
    )


def _kept(rows: Rows, kept: Array) -> Rows:
    return rows[kept] if isinstance(rows, np.ndarray) else [rows[row] for row in kept]


def _from_csv(file: Path, named: Sequence[str], text: Sequence[str], header: bool) -> tuple[dict[str, Rows], dict[str, Rows]]:
    records = csv_records(file)
    names = records.pop(0) if header else [str(k + 1) for k in range(len(records[0]))]
    for column in (*named, *text):
        if names.count(column) != 1:
            raise DataError(f"{file} has {names.count(column)} columns called {column!r}, expected one of {', '.join(names)}")
    for number, record in enumerate(records, start=1):
        if len(record) != len(names):
            raise DataError(f"{file}, record {number}: {len(record)} fields, expected {len(names)}")
    fields: dict[str, Rows] = {name: [record[names.index(name)] for record in records] for name in named}
    texts = [" ".join(record[names.index(name)] for name in text) for record in records]
    empty = [number for number, found in enumerate(texts, start=1) if not found.strip()]
    if empty:
        LOG.warning("%s: %d records have an empty text, the first is record %d; they are kept", file, len(empty), empty[0])
    return {"text": texts}, fields


def csv_records(file: Path) -> list[list[str]]:
    """Return the records of a CSV file in UTF-8, every field as text; blank lines are no records."""
    return [record for _, record in numbered_records(file)]


def numbered_records(file: Path) -> list[tuple[int, list[str]]]:
    """Return the records of :func:`csv_records`, each with the number of its last line, which a quoted field may break."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            records = [(reader.line_num, record) for record in reader if record]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}; save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise DataError(f"{file} is not a CSV file: {error}") from error
    finally:
        csv.field_size_limit(limit)
    if not records:
        raise DataError(f"{file} has no records")
    return records


def _from_arrays(file: Path, named: Sequence[str]) -> tuple[dict[str, Rows], dict[str, Rows]]:
    try:
        # Opened here: numpy leaves a truncated file open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            arrays: dict[str, Array] = {name: content[name] for name in content.files}
    except (ValueError, TypeError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{file} is not an npz file of numbers and texts: {error}") from error
    missing = [name for name in named if name not in arrays]
    if missing:
        raise DataError(f"{file} has no array {missing[0]!r} (it has {', '.join(sorted(arrays))})")
    raw = {name: _modality(file, name, array) for name, array in arrays.items() if name not in named}
    if not raw:
        raise DataError(f"{file} has labels only; expected an array for each modality")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"{file} has arrays of different lengths: {lengths}")
    fields: dict[str, Rows] = {named[0]: arrays[named[0]]}
    fields |= {name: [str(value) for value in arrays[name].tolist()] for name in named[1:]}
    return raw, fields


def _modality(file: Path, name: str, array: Array) -> Rows:
    if array.dtype.kind == "U":
        return [str(text) for text in array]
    if array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3)):
        return array
    if array.dtype.kind == "f" and array.ndim in (2, 3):
        if not np.isfinite(array).all():
            raise DataError(f"{file}: row {np.argwhere(~np.isfinite(array))[0][0]} of {name!r} has a value that is not finite")
        return array.astype(np.float32)
    raise DataError(
        f"{file}: array {name!r} is {array.dtype} of shape {array.shape}; expected texts, uint8 pictures (N, H, W[, 3]), or "
        "floats (N, D) or (N, tokens, D)"
    )
