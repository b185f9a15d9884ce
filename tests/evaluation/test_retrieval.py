import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import MeasurementError
from fedsocket_flwr.evaluation.retrieval import CUTOFFS, Array, best_ranks, retrieval_metrics


def brute_force(scores: Array, image_ids: list[int], text_ids: list[int], fold_size: int) -> dict[str, float]:
    """The definition in loops: no vector operation, no mask."""
    images = list(range(len(image_ids)))
    folds = [images[start : start + fold_size] for start in range(0, len(images), fold_size)]
    folds = [fold for fold in folds if len(fold) == fold_size] or folds
    found: dict[str, list[float]] = {}
    for fold in folds:
        texts = [t for t, text in enumerate(text_ids) if any(image_ids[i] == text for i in fold)]
        pairs = {(i, t) for i in fold for t in texts if image_ids[i] == text_ids[t]}
        forward = {i: [(scores[i, t], (i, t) in pairs) for t in texts] for i in fold}
        backward = {t: [(scores[i, t], (i, t) in pairs) for i in fold] for t in texts}
        for direction, queries in (("i2t", forward), ("t2i", backward)):
            for k in CUTOFFS:
                hits = 0
                for candidates in queries.values():
                    best = max(score for score, positive in candidates if positive)
                    hits += sum(1 for score, positive in candidates if not positive and score >= best) < k
                found.setdefault(f"{direction}_r{k}", []).append(hits / len(queries))
    recalls = {name: sum(values) / len(values) for name, values in found.items()}
    return recalls | {"mean_r": sum(recalls.values()) / 6}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), images=st.integers(1, 14), captions=st.integers(1, 3), fold_size=st.integers(1, 16))
def test_equals_the_brute_force_evaluator_with_ties(data: st.DataObject, images: int, captions: int, fold_size: int) -> None:
    image_ids = data.draw(st.lists(st.integers(0, images), min_size=images, max_size=images))
    text_ids = data.draw(st.permutations(sorted(set(image_ids)) * captions + [99]))
    seed = data.draw(st.integers(0, 2**31))
    scores = np.random.default_rng(seed).integers(0, 4, (images, len(text_ids)))
    found = retrieval_metrics(scores, np.array(image_ids), np.array(text_ids), fold_size)
    assert found == pytest.approx(brute_force(scores, image_ids, list(text_ids), fold_size))
    assert all(type(value) is float and 0 <= value <= 1 for value in found.values())


def test_ranks_by_hand() -> None:
    scores = np.array([[3, 2, 1, 0], [1, 1, 0, 5], [2, 2, 2, 2]])
    mask = np.array([[False, True, True, False], [True, False, False, False], [False, False, True, False]])
    # Row 0: best positive 2, one negative above. Row 1: 5 above and 1 ties. Row 2: all three negatives tie.
    assert best_ranks(scores, mask).tolist() == [1, 2, 3]


def test_other_positives_do_not_stand_before_the_best() -> None:
    assert best_ranks(np.array([[1, 1, 1, 0]]), np.array([[True, True, True, False]])).tolist() == [0]


def test_two_captions_an_image_by_hand() -> None:
    image_ids, text_ids = np.array([0, 1, 2]), np.array([0, 0, 1, 1, 2, 2])
    scores = np.array([[9, 0, 8, 0, 0, 0], [7, 0, 5, 6, 0, 0], [9, 9, 9, 9, 1, 8]])
    found = retrieval_metrics(scores, image_ids, text_ids, 3)
    # I2T ranks 0, 1 (7 before 6), 4 (four nines before 8). T2I: text 0 ties 9 with 9 -> 1, text 1 -> 2, text 2 -> 2, text 3 -> 1,
    # text 4 -> 0, text 5 -> 0.
    assert found["i2t_r1"] == pytest.approx(1 / 3)
    assert found["i2t_r5"] == 1.0
    assert found["t2i_r1"] == pytest.approx(2 / 6)
    assert found["mean_r"] == pytest.approx((1 / 3 + 1 + 1 + 1 / 3 + 1 + 1) / 6)


@pytest.mark.parametrize("score", [0.0, 15.0])
def test_a_collapsed_retriever_is_not_above_chance(score: float) -> None:
    ids = np.arange(50)
    found = retrieval_metrics(np.full((50, 50), score), ids, ids, 50)
    assert all(found[f"{direction}_r{k}"] <= k / 50 for direction in ("i2t", "t2i") for k in CUTOFFS)


def test_folds_are_averaged_and_a_remainder_is_left_out() -> None:
    ids = np.arange(5)
    scores = np.eye(5)
    scores[0] = [0, 1, 0, 0, 0]  # image 0 misses in the first fold of two; image 4 would miss too
    scores[4] = 1
    found = retrieval_metrics(scores, ids, ids, 2)
    assert found["i2t_r1"] == pytest.approx((1 / 2 + 1) / 2)
    assert retrieval_metrics(scores, ids, ids, 5)["i2t_r1"] == pytest.approx(3 / 5)
    assert retrieval_metrics(scores, ids, ids, 200)["i2t_r1"] == pytest.approx(3 / 5)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), fold_size=st.integers(2, 9), levels=st.sampled_from([3, 1000]))
def test_five_captions_an_image_in_five_folds_equal_brute_force(seed: int, fold_size: int, levels: int) -> None:
    generator = np.random.default_rng(seed)
    images = 5 * fold_size
    text_ids = generator.permutation(np.repeat(np.arange(images), 5))
    scores = generator.integers(0, levels, (images, len(text_ids))) / levels
    found = retrieval_metrics(scores, np.arange(images), text_ids, fold_size)
    assert found == pytest.approx(brute_force(scores, list(range(images)), text_ids.tolist(), fold_size))


def test_five_folds_of_two_hundred_images_by_hand() -> None:
    """Each fold is 200 images with 1,000 captions, one aggregate for all: what a fold loses counts a fifth.

    All is right but for three changes. Image 0's best negative is caption 5 (of image 1), above its own: rank 1 of I2T, and of
    T2I for caption 5. All five captions of image 201 score as high with image 202: rank 1 of T2I five times; image 202 ties its
    own captions with them and falls to rank 5. Image 999 scores 9 with the 7 captions 4,000 to 4,006, all of its own fold, and
    falls to rank 7; their images' captions fall to rank 1.
    """
    images, text_ids = np.arange(1000), np.repeat(np.arange(1000), 5)
    scores = (images[:, None] == text_ids).astype(float)
    scores[0, 5] = 2
    scores[202, text_ids == 201] = 1
    scores[999, 4000:4007] = 9
    # Of another fold, so no candidate.
    scores[500, 0] = 100
    found = retrieval_metrics(scores, images, text_ids, 200)
    assert found == pytest.approx(
        {
            "i2t_r1": 1 - 3 / 200 / 5,
            "i2t_r5": 1 - 2 / 200 / 5,
            "i2t_r10": 1,
            "t2i_r1": 1 - (1 + 5 + 7) / 1000 / 5,
            "t2i_r5": 1,
            "t2i_r10": 1,
            "mean_r": (6 - 3 / 1000 - 2 / 1000 - 13 / 5000) / 6,
        }
    )


def test_an_image_of_one_fold_is_no_candidate_in_another() -> None:
    ids = np.arange(4)
    scores = np.eye(4)
    scores[0, 3] = 9
    assert retrieval_metrics(scores, ids, ids, 2)["i2t_r1"] == 1.0
    assert retrieval_metrics(scores, ids, ids, 4)["i2t_r1"] == 0.75


def test_no_images_have_no_metrics() -> None:
    assert retrieval_metrics(np.zeros((0, 0)), np.zeros(0), np.zeros(0), 200) == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_refused_with_its_place(value: float) -> None:
    scores = np.eye(3)
    scores[1, 2] = value
    with pytest.raises(MeasurementError, match=r"1 of 9 scores are not finite.*image 1, text 2"):
        retrieval_metrics(scores, np.arange(3), np.arange(3), 3)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MeasurementError, match="expected \\(3, 2\\)"):
        retrieval_metrics(np.zeros((2, 3)), np.arange(3), np.arange(2), 3)
    with pytest.raises(MeasurementError, match="1 images have no text, first image 2 with id 7"):
        retrieval_metrics(np.zeros((3, 2)), np.array([0, 1, 7]), np.arange(2), 3)
