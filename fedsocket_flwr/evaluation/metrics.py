"""Accuracy, macro F1 and UAR of a classifier, from scores or from pooled counts, and the mean of metrics over clients.

Computed by counting, with scikit-learn's definitions; scikit-learn itself takes a second to load, in every process that measures.

Legend: ``N`` rows, ``C`` classes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import MeasurementError

Array = NDArray[Any]


def classification_metrics(scores_NC: Array, labels: Array, classes: int) -> dict[str, float]:
    """Return ``accuracy`` and ``macro_f1``, fractions in [0, 1].

    The prediction is the class with the highest score, the first one of a tie.

    Parameters
    ----------
    scores_NC
        Logits, probabilities or other scores, (N, C).
    labels
        Class of each row, integers in [0, C).
    classes
        C.

    Returns
    -------
    dict[str, float]
        Both metrics; empty where there are no rows.

    Raises
    ------
    MeasurementError
        If a score is not finite, or shapes or labels do not fit.
    """
    scores_NC, labels = np.asarray(scores_NC), np.asarray(labels)
    if len(labels) == 0 and len(scores_NC) == 0:
        return {}
    _check(scores_NC, labels, classes)
    predictions = scores_NC.argmax(axis=1)
    return {"accuracy": accuracy(predictions, labels), "macro_f1": macro_f1(predictions, labels)}


def accuracy(predictions: Array, labels: Array) -> float:
    """Return the fraction of rows, at least one, whose predicted class is the label."""
    return float(np.mean(predictions == labels))


def macro_f1(predictions: Array, labels: Array) -> float:
    """Return the unweighted mean of F1 over the classes that occur among the labels or the predictions.

    A class that occurs in neither has no F1 and is left out; one that occurs on one side only has F1 = 0. This is
    ``sklearn.metrics.f1_score(average="macro")``.

    Parameters
    ----------
    predictions, labels
        Classes as integers from 0, (N,), N at least 1.
    """
    classes = int(max(predictions.max(), labels.max())) + 1
    right_C = np.bincount(labels[predictions == labels], minlength=classes)
    return _mean_f1(right_C, np.bincount(labels, minlength=classes) + np.bincount(predictions, minlength=classes))


def confusion(scores_NC: Array, labels: Array, classes: int) -> Array:
    """Return how many rows of each class were predicted as which, counts that can be summed over clients.

    Parameters and errors are those of :func:`classification_metrics`, and so is the prediction.

    Returns
    -------
    Array
        ``int64`` counts, (C, C): a row for each label, a column for each prediction; zeros where there are no rows.
    """
    scores_NC, labels = np.asarray(scores_NC), np.asarray(labels)
    if len(labels) == 0 and len(scores_NC) == 0:
        return np.zeros((classes, classes), dtype=np.int64)
    _check(scores_NC, labels, classes)
    cells = np.bincount(labels * classes + scores_NC.argmax(axis=1), minlength=classes**2)
    return cells.reshape(classes, classes).astype(np.int64, copy=False)


def metrics_from_confusion(confusion_CC: Array) -> dict[str, float]:
    """Return ``accuracy``, ``macro_f1`` and ``uar``, fractions in [0, 1], of the rows that were counted.

    UAR, the unweighted average recall, is the mean of the recall over the classes that occur among the labels
    (``sklearn.metrics.balanced_accuracy_score``). Accuracy and macro F1 have the very bits of :func:`classification_metrics`.

    Parameters
    ----------
    confusion_CC
        Counts as in :func:`confusion`, or a sum of such counts.

    Returns
    -------
    dict[str, float]
        The three metrics; empty where no rows were counted.

    Raises
    ------
    MeasurementError
        If the counts are not a square of whole numbers of at least 0.
    """
    confusion_CC = np.asarray(confusion_CC)
    if confusion_CC.ndim != 2 or len(set(confusion_CC.shape)) != 1 or not np.issubdtype(confusion_CC.dtype, np.integer):
        found = f"{confusion_CC.dtype} of shape {confusion_CC.shape}"
        raise MeasurementError(f"a confusion matrix is {found}, expected integers of shape (classes, classes)")
    if (confusion_CC < 0).any():
        raise MeasurementError(f"a confusion matrix has the count {confusion_CC.min()}, expected counts of at least 0")
    rows = int(confusion_CC.sum())
    if rows == 0:
        return {}
    right_C, labels_C = confusion_CC.diagonal(), confusion_CC.sum(axis=1)
    occurs_C = labels_C > 0
    return {
        "accuracy": int(right_C.sum()) / rows,
        "macro_f1": _mean_f1(right_C, labels_C + confusion_CC.sum(axis=0)),
        "uar": float(np.mean(right_C[occurs_C] / labels_C[occurs_C])),
    }


def mean_over_clients(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the unweighted mean of each metric over the clients that have it.

    Parameters
    ----------
    rows
        One mapping from metric to value for each client; a client without data has none.

    Returns
    -------
    dict[str, float]
        Metrics in the order in which they first occur; the order of the clients does not change a bit of the values.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(float(value))
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


def _mean_f1(right_C: Array, occurrences_C: Array) -> float:
    """Return the mean F1 over the classes that occur; occurrences among the labels and the predictions are added."""
    occurs_C = occurrences_C > 0
    return float(np.mean(2 * right_C[occurs_C] / occurrences_C[occurs_C]))


def _check(scores_NC: Array, labels: Array, classes: int) -> None:
    if scores_NC.shape != (len(labels), classes):
        raise MeasurementError(f"scores have shape {scores_NC.shape}, expected {(len(labels), classes)}: rows by classes")
    bad = np.argwhere(~np.isfinite(scores_NC))
    if len(bad):
        row, column = bad[0]
        raise MeasurementError(
            f"{len(bad)} of {scores_NC.size} scores are not finite, first {scores_NC[row, column]} at row {row}, class {column}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise MeasurementError(f"labels run from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
