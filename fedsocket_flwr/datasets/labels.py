"""One class table for a user's own labels, whatever form they come in."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
# A text that is a whole number: `3`, `-1`, `2.0`; not `007` or `1e5`, which are names.
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0*)?")
UNLABELLED = "-1"


@dataclass(frozen=True)
class ClassTable:
    """Labels of the rows that were kept, and the classes that they count.

    Attributes
    ----------
    labels
        ``int64`` (kept rows,), 0 to C - 1.
    classes
        Original value of each class as text (or its given name), in the order of the labels.
    kept
        ``int64`` rows that have a label.
    """

    labels: Array
    classes: tuple[str, ...]
    kept: Array


def class_table(values: Array | Sequence[str], unlabelled: str = "", names: Sequence[str] = ()) -> ClassTable:
    """Bring labels to one form.

    Parameters
    ----------
    values
        N labels: texts, integers, floats that are whole, or booleans; as (N,), (N, 1), or one-hot rows (N, C), which are
        converted with a notice. Whole numbers are ordered by size and texts by letters, so ``0, 1, 2``, ``0.0, 1.0, 2.0`` and
        their texts give the same table, and gaps between numbers do not matter.
    unlabelled
        The value that says that a row has no label; such rows are left out. Nothing: every row has one, and -1 is refused.
    names
        Names of all classes in order. Numbers count them from 0 or from 1.

    Raises
    ------
    DataError
        A label that is no class, with the number of its row (counted from 0).
    """
    texts = _texts(values)
    kept = np.array([row for row, text in enumerate(texts) if not unlabelled or text != unlabelled], dtype=np.int64)
    found = [texts[row] for row in kept]
    if UNLABELLED in found:
        raise DataError(
            f"row {kept[found.index(UNLABELLED)]} has the label -1, which stands for `unlabelled` in many data sets; set the "
            "option unlabelled to '-1' to leave such rows out, or give the class another name"
        )
    if "" in found:
        raise DataError(f"row {kept[found.index('')]} has no label")
    if names:
        return ClassTable(_by_name(found, kept, names), tuple(names), kept)
    classes = sorted(set(found), key=int) if all(_WHOLE.fullmatch(text) for text in found) else sorted(set(found))
    number = {text: label for label, text in enumerate(classes)}
    return ClassTable(np.array([number[text] for text in found], dtype=np.int64), tuple(classes), kept)


def _texts(values: Array | Sequence[str]) -> list[str]:
    """Return the labels as texts; if all of them are whole numbers, in the one spelling of integers."""
    if not isinstance(values, np.ndarray):
        matches = [_WHOLE.fullmatch(text) for text in values]
        return [str(int(match[1])) for match in matches if match] if all(matches) else list(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2:
        values = _from_one_hot(values)
    if values.ndim != 1:
        raise DataError(f"labels must be of shape (N,), (N, 1) or one-hot (N, C), found {values.shape}")
    if values.dtype.kind == "U":
        return _texts([str(value) for value in values])
    if values.dtype.kind not in "biuf":
        raise DataError(f"labels must be numbers or texts, found {values.dtype}")
    if values.dtype.kind == "f":
        broken = np.flatnonzero(~(np.isfinite(values) & (values == np.round(values))))
        if len(broken):
            raise DataError(f"row {broken[0]} has the label {values[broken[0]]}, which is not a whole number")
    return [str(int(value)) for value in values]


def _from_one_hot(values: Array) -> Array:
    wrong = np.flatnonzero(((values != 0) & (values != 1)).any(axis=1) | ((values == 1).sum(axis=1) != 1))
    if len(wrong):
        raise DataError(f"labels of shape {values.shape} must be one-hot, but row {wrong[0]} is {values[wrong[0]].tolist()[:10]}")
    LOG.warning("labels of shape %s are taken as one-hot rows of %d classes", values.shape, values.shape[1])
    labels: Array = np.argmax(values, axis=1)
    return labels


def _by_name(found: list[str], kept: Array, names: Sequence[str]) -> Array:
    """Return the labels as positions in the given names."""
    number = {name: label for label, name in enumerate(names)}
    if len(number) != len(names):
        raise DataError(f"a class name is given twice in {list(names)}")
    if all(_WHOLE.fullmatch(text) for text in found) and not set(found) <= set(number):
        values = [int(text) for text in found]
        first = [start for start in (0, 1) if min(values) >= start and max(values) < len(names) + start]
        if len(first) == 2:
            raise DataError(
                f"labels {min(values)} to {max(values)} count {len(names)} class names from 0 or from 1: neither end occurs"
            )
        if first:
            return np.array(values, dtype=np.int64) - first[0]
        worst = values.index(min(values) if min(values) < 0 else max(values))
        raise DataError(f"row {kept[worst]} has the label {found[worst]!r}, but there are {len(names)} class names")
    for row, text in zip(kept, found, strict=True):
        if text not in number:
            raise DataError(f"row {row} has the label {text!r}, which is none of the {len(names)} class names")
    return np.array([number[text] for text in found], dtype=np.int64)
