import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import MeasurementError
from fedsocket_flwr.evaluation.metrics import classification_metrics, confusion
from fedsocket_flwr.evaluation.retrieval import retrieval_metrics
from fedsocket_flwr.learning.calibration import (
    MixtureChoice,
    choose_beta,
    choose_mixtures,
    choose_rho,
    class_weights,
    joint_probabilities,
    mix_probabilities,
    mix_scores,
)

RHOS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BETAS = (0.0, 0.2, 0.35, 0.5, 0.75, 1.0)
MIXTURES = tuple(step / 10 for step in range(11))


def test_class_weights_by_hand() -> None:
    # Positive counts 2, 4, 6, 20: the median is 5, kappa = 2.5 at rho 0.5.
    weights = class_weights([6, 0, 2, 20, 4], 0.5)
    assert weights.tolist() == pytest.approx([2.5 / 8.5, 1.0, 2.5 / 4.5, 2.5 / 22.5, 2.5 / 6.5])


def test_rho_zero_leaves_only_absent_classes_to_q() -> None:
    assert class_weights([3, 0, 1], 0.0).tolist() == [0.0, 1.0, 0.0]


def test_a_client_without_rows_leaves_everything_to_q() -> None:
    assert class_weights([0, 0], 0.5).tolist() == [1.0, 1.0]


def test_joint_probabilities_by_hand() -> None:
    scores = joint_probabilities(np.array([[0.8, 0.2]]), np.array([[0.4, 0.6]]), np.array([0.25, 1.0]))
    assert scores.tolist() == [[pytest.approx(0.7), pytest.approx(0.6)]]


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 500), min_size=1, max_size=8), rho=st.sampled_from(RHOS))
def test_weights_are_fractions_and_fall_with_the_count(counts: list[int], rho: float) -> None:
    weights = class_weights(counts, rho)
    assert bool(((weights >= 0) & (weights <= 1)).all())
    ordered = weights[np.argsort(counts, kind="stable")]
    assert bool((np.diff(ordered) <= 1e-15).all())


def test_rho_follows_accuracy() -> None:
    # Both classes are held alike. Private is wrong by 0.4, Q right by 0.6: Joint turns right where w = rho / (1 + rho) > 0.4.
    private, q = np.array([[0.7, 0.3]]), np.array([[0.2, 0.8]])
    choice = choose_rho(private, q, np.array([1]), [10, 10], RHOS)
    assert (choice.rho, choice.accuracy, choice.macro_f1) == (1.0, 1.0, 1.0)


def test_macro_f1_breaks_a_tie_of_accuracy_and_the_smaller_rho_after_it() -> None:
    # rho 0 reads Private (0 0 0 0: accuracy 1/2, F1 (2/3 + 0)/2), rho 16 reads Q (0 1 0 1: 1/2, F1 1/2).
    labels = np.array([0, 0, 1, 1])
    private = np.tile([0.9, 0.1], (4, 1))
    q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    choice = choose_rho(private, q, labels, [5, 5], (16.0, 8.0, 0.0))
    assert (choice.rho, choice.accuracy, choice.macro_f1) == (8.0, 0.5, pytest.approx(0.5))


def test_all_tied_takes_the_smallest_rho_in_any_order() -> None:
    private = np.eye(3)
    assert choose_rho(private, private, np.arange(3), [1, 2, 3], RHOS[::-1]).rho == 0.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_choice_is_the_best_of_an_exhaustive_search(seed: int) -> None:
    generator = np.random.default_rng(seed)
    private, q = generator.dirichlet([0.5] * 4, 12), generator.dirichlet([0.5] * 4, 12)
    labels, counts = generator.integers(0, 4, 12), generator.integers(0, 30, 4)
    rows = []
    for rho in RHOS:
        metrics = classification_metrics(joint_probabilities(private, q, class_weights(counts, rho)), labels, 4)
        rows.append((-metrics["accuracy"], -metrics["macro_f1"], rho))
    choice = choose_rho(private, q, labels, counts, RHOS)
    assert (-choice.accuracy, -choice.macro_f1, choice.rho) == min(rows)


def test_rho_refuses_what_cannot_be_measured() -> None:
    rows = np.full((2, 2), 0.5)
    with pytest.raises(MeasurementError, match="empty DEV"):
        choose_rho(rows[:0], rows[:0], np.zeros(0, dtype=np.int64), [1, 1], RHOS)
    with pytest.raises(MeasurementError, match="not finite"):
        choose_rho(rows, rows * np.nan, np.zeros(2, dtype=np.int64), [1, 1], RHOS)


def test_mixed_probabilities_by_hand_and_the_branches_at_the_ends() -> None:
    private, q = np.array([[0.9, 0.1]]), np.array([[0.3, 0.7]])
    assert mix_probabilities(private, q, 0.35).tolist() == [[pytest.approx(0.69), pytest.approx(0.31)]]
    assert mix_probabilities(private, q, 0.0).tolist() == private.tolist()
    assert mix_probabilities(private, q, 1.0).tolist() == q.tolist()


def test_beta_follows_accuracy_then_macro_f1_then_the_smaller() -> None:
    # 8 rows of class 0, 2 of class 1. Right: 8, 8, 8, 7; F1 of class 1: 0, 2*1/(2+2), the same, 2*2/(2+5).
    none, one, less = np.array([[8, 0], [2, 0]]), np.array([[7, 1], [1, 1]]), np.array([[5, 3], [0, 2]])
    assert choose_beta({0.0: none, 0.5: one, 0.2: one, 1.0: less}) == 0.2
    assert choose_beta({1.0: none, 0.75: less}) == 1.0
    assert choose_beta({1.0: less, 0.0: less, 0.35: less}) == 0.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_beta_of_pooled_counts_is_the_best_of_an_exhaustive_search_over_pooled_rows(seed: int) -> None:
    generator = np.random.default_rng(seed)
    recipients = [
        (generator.dirichlet([0.5] * 4, rows), generator.dirichlet([0.5] * 4, rows), generator.integers(0, 4, rows))
        for rows in (7, 0, 5)
    ]
    pooled = {
        beta: np.sum([confusion(mix_probabilities(p, q, beta), y, 4) for p, q, y in recipients], axis=0) for beta in BETAS[::-1]
    }
    private, q, labels = (np.concatenate(arrays) for arrays in zip(*recipients, strict=True))
    rows = []
    for beta in BETAS:
        metrics = classification_metrics(mix_probabilities(private, q, beta), labels, 4)
        rows.append((-metrics["accuracy"], -round(metrics["macro_f1"], 9), beta))
    assert choose_beta(pooled) == min(rows)[2]


def test_beta_refuses_what_cannot_be_compared() -> None:
    some = np.array([[1, 0], [0, 1]])
    with pytest.raises(MeasurementError, match="empty DEV"):
        choose_beta({0.0: np.zeros((2, 2), dtype=np.int64), 1.0: np.zeros((2, 2), dtype=np.int64)})
    with pytest.raises(MeasurementError, match=r"\[1, 1\] at beta 0.0 and \[2, 1\] at beta 1.0"):
        choose_beta({0.0: some, 1.0: np.array([[1, 1], [0, 1]])})
    with pytest.raises(MeasurementError, match="count -1"):
        choose_beta({0.0: some, 1.0: np.array([[2, -1], [0, 1]])})


def test_mix_scores_keeps_the_branches_at_the_ends() -> None:
    private, q = np.array([[1.5]]), np.array([[-2.25]])
    assert [mix_scores(private, q, w).item() for w in (0.0, 0.5, 1.0)] == [1.5, -0.375, -2.25]


def test_each_direction_takes_its_own_weight() -> None:
    ids = np.arange(2)
    # I2T: Private is right for both images. T2I: column 0 of Private is wrong (5 above 4) until Q adds to image 0, text 0.
    private = np.array([[4.0, 0.0], [5.0, 6.0]])
    q = np.array([[8.0, 0.0], [5.0, 6.0]])
    # Column 0: (1 - w) 4 + w 8 > 5 from w = 0.3 on.
    assert choose_mixtures(private, q, ids, ids, MIXTURES, 2) == MixtureChoice(i2t=0.0, t2i=0.3)


def test_recall_at_five_and_ten_break_a_tie() -> None:
    size = 12
    ids = np.arange(size)
    # Nobody is first. Private puts the pair last, Q second.
    private, q = 2 - np.eye(size), np.ones((size, size)) + 0.5 * np.eye(size) + np.roll(np.eye(size), 1, axis=1)
    assert choose_mixtures(private, q, ids, ids, (0.0, 1.0), size) == MixtureChoice(i2t=1.0, t2i=1.0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), fold_size=st.sampled_from([3, 8, 20]))
def test_the_mixtures_are_the_best_of_an_exhaustive_search(seed: int, fold_size: int) -> None:
    generator = np.random.default_rng(seed)
    private, q = generator.normal(size=(16, 32)), generator.normal(size=(16, 32))
    image_ids, text_ids = np.arange(16), np.repeat(np.arange(16), 2)
    choice = choose_mixtures(private, q, image_ids, text_ids, MIXTURES[::-1], fold_size)
    for direction in ("i2t", "t2i"):
        rows = []
        for weight in MIXTURES:
            found = retrieval_metrics(mix_scores(private, q, weight), image_ids, text_ids, fold_size)
            recalls = {k: round(found[f"{direction}_r{k}"], 9) for k in (1, 5, 10)}
            rows.append((-recalls[1], round(-recalls[5] - recalls[10], 9), weight))
        assert getattr(choice, direction) == min(rows)[2]


def test_mixtures_refuse_an_empty_dev() -> None:
    with pytest.raises(MeasurementError, match="empty DEV"):
        choose_mixtures(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), np.zeros(0), MIXTURES, 200)
