"""Accuracy and macro F1 of a classifier, and the mean of metrics over clients.

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
    occurrences_C = np.bincount(labels, minlength=classes) + np.bincount(predictions, minlength=classes)
    occurs_C = occurrences_C > 0
    return float(np.mean(2 * right_C[occurs_C] / occurrences_C[occurs_C]))


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
