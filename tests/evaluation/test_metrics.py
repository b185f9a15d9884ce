import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score

from fedsocket_flwr.errors import MeasurementError
from fedsocket_flwr.evaluation.metrics import (
    classification_metrics,
    confusion,
    macro_f1,
    mean_over_clients,
    metrics_from_confusion,
)


def test_accuracy_and_macro_f1_by_hand() -> None:
    scores = np.array([[9, 1, 0], [9, 1, 0], [1, 9, 0], [9, 1, 0]])  # predictions 0 0 1 0
    metrics = classification_metrics(scores, np.array([0, 0, 1, 1]), 3)
    # F1: class 0 2*2/(2+3), class 1 2*1/(2+1); class 2 occurs nowhere and has none.
    assert metrics == {"accuracy": 0.75, "macro_f1": pytest.approx((4 / 5 + 2 / 3) / 2)}
    assert all(type(value) is float for value in metrics.values())


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    assert macro_f1(np.array([0, 2]), np.array([0, 0])) == pytest.approx((2 / 3 + 0) / 2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
)
def test_equals_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predictions, labels = np.array(rows).T
    metrics = classification_metrics(np.eye(7)[predictions], labels, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(expected)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predictions))


def test_no_rows_have_no_metrics() -> None:
    assert classification_metrics(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), 3) == {}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused_with_its_place(value: float) -> None:
    scores = np.zeros((4, 3))
    scores[2, 1] = value
    with pytest.raises(MeasurementError, match=r"1 of 12 scores are not finite.*row 2, class 1"):
        classification_metrics(scores, np.zeros(4, dtype=np.int64), 3)


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [((2, 3), [0, 1, 2], "expected \\(3, 3\\)"), ((2, 4), [0, 1], "expected \\(2, 3\\)"), ((2, 3), [0, 3], "0 to 3.*0 to 2")],
)
def test_what_does_not_fit_is_refused(shape: tuple[int, int], labels: list[int], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        classification_metrics(np.zeros(shape), np.array(labels), 3)


def test_confusion_by_hand() -> None:
    scores = np.array([[9, 1, 0], [9, 1, 0], [1, 9, 0], [9, 1, 0]])  # predictions 0 0 1 0
    counts = confusion(scores, np.array([0, 0, 1, 2]), 3)
    assert counts.tolist() == [[2, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert counts.dtype == np.int64
    # Recall 1, 1, 0; F1 2*2/(2+3), 1, 0.
    assert metrics_from_confusion(counts) == {"accuracy": 0.75, "macro_f1": pytest.approx(0.6), "uar": pytest.approx(2 / 3)}


def test_uar_is_over_the_classes_that_occur_among_the_labels() -> None:
    # One row of class 0 is predicted as class 1, which has no row of its own: F1 counts it, UAR does not.
    metrics = metrics_from_confusion(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 0]]))
    assert metrics == {"accuracy": 0.75, "macro_f1": pytest.approx((6 / 7 + 0) / 2), "uar": 0.75}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
def test_pooled_counts_equal_scikit_learn_and_the_metrics_of_all_rows(rows: list[tuple[int, int]], cut: int) -> None:
    predictions, labels = np.array(rows).T
    scores = np.eye(7)[predictions]
    pooled = confusion(scores[:cut], labels[:cut], 7) + confusion(scores[cut:], labels[cut:], 7)
    assert pooled.tolist() == confusion_matrix(labels, predictions, labels=range(7)).tolist()
    metrics = metrics_from_confusion(pooled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics["uar"] == pytest.approx(balanced_accuracy_score(labels, predictions))
    direct = classification_metrics(scores, labels, 7)
    assert {name: metrics[name] for name in direct} == direct, "to the bit"


def test_no_counts_have_no_metrics() -> None:
    nothing = confusion(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), 3)
    assert nothing.tolist() == [[0] * 3] * 3
    assert metrics_from_confusion(nothing) == {}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), "int64 of shape \\(2, 3\\), expected integers of shape \\(classes, classes\\)"),
        (np.zeros(4, dtype=np.int64), "of shape \\(4,\\)"),
        (np.zeros((2, 2)), "is float64"),
        (np.array([[1, -3], [0, 0]]), "has the count -3"),
    ],
)
def test_what_is_no_confusion_matrix_is_refused(counts: np.ndarray, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        metrics_from_confusion(counts)


def test_confusion_refuses_what_the_metrics_refuse() -> None:
    with pytest.raises(MeasurementError, match="not finite"):
        confusion(np.array([[np.nan, 0.0]]), np.array([0]), 2)
    with pytest.raises(MeasurementError, match=r"0 to 2.*0 to 1"):
        confusion(np.zeros((2, 2)), np.array([0, 2]), 2)


def test_the_mean_is_over_the_clients_that_have_the_metric() -> None:
    rows = [{"accuracy": 0.5, "macro_f1": 0.1}, {}, {"accuracy": 1.0}]
    assert mean_over_clients(rows) == {"accuracy": 0.75, "macro_f1": 0.1}
    assert mean_over_clients([{}, {}]) == mean_over_clients([]) == {}


def test_the_order_of_clients_changes_no_bit_of_a_mean() -> None:
    rows = [{"accuracy": value} for value in (0.1, 0.2, 0.3, 0.7, 1e-17)]
    assert mean_over_clients(rows) == mean_over_clients(rows[::-1])
