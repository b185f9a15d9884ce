import math

import numpy as np
import pytest
import torch

from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.errors import MeasurementError
from fedsocket_flwr.learning.measuring import (
    ClassificationMeasure,
    CountedMeasure,
    Measurement,
    PooledMeasure,
    RetrievalMeasure,
    build_measure,
    measure,
)
from fedsocket_flwr.protocol_settings import EvaluationSettings

SETTINGS = EvaluationSettings()


def logits(probabilities: list[list[float]]) -> tuple[torch.Tensor]:
    return (torch.tensor(probabilities, dtype=torch.float64).log(),)


def split_of(labels: list[int]) -> Split:
    return Split({}, {}, labels=np.array(labels))


def classification(labels: list[int], counts: tuple[int, ...]) -> ClassificationMeasure:
    return ClassificationMeasure(split_of(labels), counts, SETTINGS)


# Private is right on row 0 and wrong on row 1, Q the other way round.
PRIVATE = logits([[0.9, 0.1], [0.62, 0.38]])
Q = logits([[0.45, 0.55], [0.1, 0.9]])


def test_each_branch_is_measured_and_joint_with_the_rho_that_dev_chooses() -> None:
    measured = measure(classification([0, 1], (10, 10)), PRIVATE, Q)
    assert measured.endpoints["private"]["accuracy"] == 0.5
    assert measured.endpoints["q"]["accuracy"] == 0.5
    # rho = 0.5 gives w = 1/3: row 0 is (0.75, 0.25), row 1 (0.45, 0.55), both right; rho = 0.25 leaves row 1 wrong.
    assert measured.endpoints["joint"] == {"accuracy": 1.0, "macro_f1": 1.0}
    assert measured.choices["joint"] == {"rho": 0.5}
    assert measured.flat()["joint.rho"] == 0.5
    assert measured.flat()["q.accuracy"] == 0.5


def test_a_frozen_choice_is_used_as_it_is() -> None:
    frozen = measure(classification([0, 1], (10, 10)), PRIVATE, Q, choice={"rho": 0.0})
    assert frozen.choices["joint"] == {"rho": 0.0}
    assert frozen.endpoints["joint"]["accuracy"] == 0.5
    # Frozen on DEV, it does not look at the labels of TEST: other labels, same choice.
    assert measure(classification([1, 0], (10, 10)), PRIVATE, Q, choice={"rho": 0.5}).endpoints["joint"]["accuracy"] == 0.0


def test_a_branch_that_is_not_there_has_no_endpoint_and_no_joint() -> None:
    how = classification([0, 1], (10, 10))
    only_q = measure(how, None, Q)
    assert list(only_q.endpoints) == ["q"]
    assert only_q.choices == {}
    assert not any(name.startswith(("joint", "private")) for name in only_q.flat())
    assert list(measure(how, PRIVATE, None).endpoints) == ["private"]
    assert measure(how, None, None) == Measurement({}, {})


def test_q_decides_alone_on_a_class_that_the_client_lacks() -> None:
    how = classification([1, 1], (10, 0))
    joint = how.joint(np.array([[1.0, 0.0]]), np.array([[0.2, 0.8]]), {"rho": 0.0})
    np.testing.assert_allclose(joint, [[1.0, 0.8]])


def test_probabilities_are_taken_in_double_precision() -> None:
    branch = classification([0], (1, 1)).branch((torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float32),))
    assert branch.dtype == np.float64
    np.testing.assert_allclose(branch, [[0.75, 0.25]], rtol=1e-6)
    assert branch.sum() == pytest.approx(1.0, abs=1e-15)


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(MeasurementError, match="not finite"):
        measure(classification([0, 1], (1, 1)), None, (torch.tensor([[math.nan, 0.0], [0.0, 1.0]]),))


# --- retrieval ---


def pairs_split() -> Split:
    """Two images; captions 0 and 2 belong to image 0, caption 1 to image 1."""
    return Split(
        {"image": np.zeros((2, 1), np.float32), "text": np.zeros((3, 1), np.float32)},
        {},
        pairs=np.array([[0, 0], [1, 1], [0, 2]]),
    )


def embeddings(images: list[list[float]], texts: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(images), torch.tensor(texts)


RIGHT = embeddings([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
WRONG = embeddings([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
COLLAPSED = embeddings([[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0]] * 3)


def test_retrieval_scores_are_fifteen_times_the_cosine() -> None:
    np.testing.assert_array_equal(RetrievalMeasure(pairs_split(), SETTINGS).branch(RIGHT), [[15, 0, 15], [0, 15, 0]])


def test_retrieval_is_measured_in_folds_of_images_with_all_their_captions() -> None:
    """Images 0 and 2, and 1 and 3, cannot be told apart: right in folds of two, a tie, and so a miss, among all four."""
    pairs = np.stack([np.repeat(np.arange(4), 5), np.arange(20)], axis=1)
    inputs = {"image": np.zeros((4, 1)), "text": np.zeros((20, 1))}
    images = torch.eye(2)[[0, 1, 0, 1]]
    table = (images, images.repeat_interleave(5, dim=0))
    for fold_size, right in ((2, 1.0), (4, 0.0)):
        how = RetrievalMeasure(Split(inputs, {}, pairs=pairs), EvaluationSettings(fold_size=fold_size))
        found = measure(how, table, table).endpoints
        assert found["private"]["i2t_r1"] == found["private"]["t2i_r1"] == found["joint"]["i2t_r1"] == right


def test_retrieval_mixes_each_direction_with_its_own_weight() -> None:
    how = RetrievalMeasure(pairs_split(), SETTINGS)
    measured = measure(how, WRONG, RIGHT)
    assert measured.endpoints["private"]["i2t_r1"] == 0.0
    assert measured.endpoints["q"]["i2t_r1"] == measured.endpoints["q"]["t2i_r1"] == 1.0
    assert measured.endpoints["joint"]["mean_r"] == 1.0
    # The smallest weight with which Q outweighs Private.
    assert measured.choices["joint"] == {"i2t": 0.6, "t2i": 0.6}
    one_way = measure(how, WRONG, RIGHT, choice={"i2t": 1.0, "t2i": 0.0})
    assert one_way.endpoints["joint"]["i2t_r1"] == 1.0
    assert one_way.endpoints["joint"]["t2i_r1"] == 0.0
    assert how.headline(one_way.endpoints["joint"]) == 0.5


def test_mean_recall_of_joint_is_over_its_own_six_recalls() -> None:
    joint = measure(RetrievalMeasure(pairs_split(), SETTINGS), WRONG, RIGHT, choice={"i2t": 1.0, "t2i": 0.0}).endpoints["joint"]
    recalls = [value for name, value in joint.items() if name != "mean_r"]
    assert len(recalls) == 6
    assert joint["mean_r"] == pytest.approx(sum(recalls) / 6)


def test_a_collapsed_retriever_finds_nothing() -> None:
    measured = measure(RetrievalMeasure(pairs_split(), SETTINGS), None, COLLAPSED)
    assert measured.endpoints["q"]["i2t_r1"] == measured.endpoints["q"]["t2i_r1"] == 0.0


def test_without_dev_joint_has_a_choice_nevertheless() -> None:
    assert build_measure("classification", split_of([]), (3, 4), SETTINGS).default_choice() == {"rho": 1.0}
    empty = Split({"image": np.zeros((0, 1)), "text": np.zeros((0, 1))}, {}, pairs=np.zeros((0, 2), dtype=np.int64))
    assert build_measure("retrieval", empty, (), SETTINGS).default_choice() == {"i2t": 0.5, "t2i": 0.5}


def test_a_counted_classifier_keeps_its_rule_and_gains_uar_and_counts() -> None:
    split = split_of([0, 0, 1])
    private = logits([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
    q = logits([[0.6, 0.4], [0.6, 0.4], [0.6, 0.4]])
    counted = measure(build_measure("classification", split, (5, 1), SETTINGS, counted=True), private, q)
    plain = measure(build_measure("classification", split, (5, 1), SETTINGS), private, q)
    assert isinstance(build_measure("classification", split, (5, 1), SETTINGS, counted=True), CountedMeasure)
    # Rows are labels: of two zeros one is taken for a one; recalls 1/2 and 1.
    assert counted.counts["private"] == (1, 1, 0, 1)
    assert counted.endpoints["private"] == pytest.approx({"accuracy": 2 / 3, "macro_f1": 2 / 3, "uar": 0.75})
    assert counted.choices == plain.choices
    assert {e: {m: v for m, v in found.items() if m != "uar"} for e, found in counted.endpoints.items()} == plain.endpoints
    assert plain.counts == {"private": (), "q": (), "joint": ()}


# --- one beta for the run ---


def pooled(labels: list[int], donor: bool = False, betas: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0)) -> PooledMeasure:
    return PooledMeasure(split_of(labels), (5, 5), EvaluationSettings(betas=betas), donor)


def test_a_recipient_measures_every_beta_and_counts_them() -> None:
    # Mixtures of class 0: row 0 has 0.9 to 0.45, row 1 0.62 to 0.1. Row 1 turns right between 0.2 (0.516) and 0.5 (0.36); row 0
    # is wrong at 1 only.
    measured = measure(pooled([0, 1]), PRIVATE, Q)
    assert measured.choices["joint"] == {"beta": 0.5}
    assert measured.counts == {
        "private": (1, 0, 1, 0),
        "q": (0, 1, 0, 1),
        "joint": (1, 0, 0, 1),
        "joint@0.0": (1, 0, 1, 0),
        "joint@0.2": (1, 0, 1, 0),
        "joint@0.5": (1, 0, 0, 1),
        "joint@1.0": (0, 1, 0, 1),
    }
    assert measured.endpoints["joint@1.0"] == pytest.approx({"accuracy": 0.5, "macro_f1": 1 / 3, "uar": 0.5})
    # The history has the three endpoints; candidates are for the server.
    assert not any("@" in name for name in measured.flat())
    assert measured.flat()["joint.beta"] == 0.5


def test_a_frozen_beta_measures_no_candidate() -> None:
    frozen = measure(pooled([0, 1]), PRIVATE, Q, choice={"beta": 0.2})
    assert set(frozen.endpoints) == {"private", "q", "joint"}
    assert frozen.counts["joint"] == (1, 0, 1, 0)


def test_a_donor_s_joint_is_its_private_to_the_bit() -> None:
    how = pooled([0, 1], donor=True)
    measured = measure(how, PRIVATE, Q)
    assert measured.choices == {"joint": {"beta": 0.0}}
    assert measured.counts["joint"] == measured.counts["private"]
    private, q = how.branch(PRIVATE), how.branch(Q)
    assert how.joint(private, q, {"beta": 0.0}).tobytes() == private.tobytes()
    assert how.default_choice() == {"beta": 0.0}
    assert pooled([0, 1]).default_choice() == {"beta": 0.5}


def test_without_private_there_is_no_candidate() -> None:
    only_q = measure(pooled([0, 1]), None, Q)
    assert set(only_q.counts) == {"q"}
