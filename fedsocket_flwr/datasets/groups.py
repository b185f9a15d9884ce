"""Columns of a data set by which rows belong together: the owner of a row, its group, its unit."""

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.errors import PartitionError


def column_values(corpus: Corpus, column: str, task: str) -> Array:
    """Return a column's values as text, one a row (pair).

    Parameters
    ----------
    corpus, column
        The data set and the column's name.
    task
        Name of the task, for the message.

    Raises
    ------
    PartitionError
        The data set has no such column.
    """
    if column not in corpus.columns:
        known = ", ".join(sorted(corpus.columns)) or "none"
        raise PartitionError(f"task {task!r}: data set {corpus.name!r} has no column {column!r} (columns: {known})")
    return np.asarray([str(value) for value in corpus.columns[column]])


def group_ids(corpus: Corpus, column: str, task: str) -> Array:
    """Return the group of each row (pair): ``int64``, its value's place among all sorted values of the column."""
    ids: Array = np.unique(column_values(corpus, column, task), return_inverse=True)[1]
    return ids.astype(np.int64)
