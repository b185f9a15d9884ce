import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.strategies.merging import (
    class_row_mean,
    conflict_cosines,
    flatten,
    mean_update,
    project_conflicts,
    stabilise,
    unflatten,
    weighted_mean,
)

FEW = settings(max_examples=40, deadline=None)
FLOATS = st.sampled_from([np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)])
TYPES = st.sampled_from([np.dtype(name) for name in ("float16", "float32", "float64", "int8", "int64", "uint64", "bool")])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
WEIGHTS = st.floats(min_value=1e-3, max_value=1e6)


def finite(dtype: np.dtype, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    elements = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    return hnp.arrays(dtype, shape, elements=elements)


@st.composite
def replies(draw: st.DrawFn, dtypes: st.SearchStrategy[np.dtype] = TYPES) -> tuple[list[np.ndarray], list[float]]:
    dtype, shape, number = draw(dtypes), draw(SHAPES), draw(st.integers(1, 5))
    arrays = draw(st.lists(finite(dtype, shape), min_size=number, max_size=number))
    return arrays, draw(st.lists(WEIGHTS, min_size=number, max_size=number))


def updates(tasks: st.SearchStrategy[int], width: int = 6) -> st.SearchStrategy[np.ndarray]:
    elements = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3))
    return tasks.flatmap(lambda number: hnp.arrays(np.float64, (number, width), elements=elements))


class TestWeightedMean:
    def test_hand_computed(self) -> None:
        merged = weighted_mean([np.array([1.0, -2.0], np.float32), np.array([5.0, 2.0], np.float32)], [1, 3])
        np.testing.assert_array_equal(merged, np.array([4.0, 1.0], np.float32), strict=True)

    def test_one_client_is_returned_as_a_new_array(self) -> None:
        only = np.array([0.1, -0.0], np.float32)
        merged = weighted_mean([only], [7])
        assert merged.tobytes() == only.tobytes()
        assert not np.shares_memory(merged, only)

    def test_sums_in_float64(self) -> None:
        arrays = [np.array([value], np.float32) for value in (2.0**24, 1.0, 1.0)]
        assert weighted_mean(arrays, [1, 1, 1])[0] == np.float32((2.0**24 + 2) / 3)

    @pytest.mark.parametrize(
        ("values", "weights", "expected"),
        [([3, 4], [1, 1], 4), ([2, 3], [1, 1], 2), ([3, 4], [3, 1], 3), ([-3, -4], [5, 5], -4), ([2, 2, 3, 3], [3, 3, 3, 3], 2)],
    )
    def test_integers_keep_their_type_and_round_half_to_even(self, values: list[int], weights: list[int], expected: int) -> None:
        merged = weighted_mean([np.array(value, np.int64) for value in values], weights)
        np.testing.assert_array_equal(merged, np.array(expected, np.int64), strict=True)

    def test_largest_integers_do_not_wrap(self) -> None:
        largest = np.iinfo(np.int64).max
        merged = weighted_mean([np.array([largest]), np.array([largest - 2])], [1, 1])
        assert largest - 2 <= merged[0] <= largest

    def test_booleans_vote_and_a_tie_is_false(self) -> None:
        arrays = [np.array([True, True, False]), np.array([True, False, True]), np.array([False, False, False])]
        np.testing.assert_array_equal(weighted_mean(arrays, [1, 3, 2]), np.array([True, False, False]), strict=True)

    def test_weight_zero_is_not_looked_at(self) -> None:
        merged = weighted_mean([np.array([np.nan]), np.array([2.0])], [0, 5])
        assert merged[0] == 2.0

    @pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1, np.nan], [1, np.inf], [1], [1e308, 1e308]])
    def test_refuses_weights(self, weights: list[float]) -> None:
        with pytest.raises(ContractError):
            weighted_mean([np.zeros(2), np.zeros(2)], weights)

    @pytest.mark.parametrize("other", [np.zeros(3), np.zeros((2, 1)), np.zeros(()), np.zeros(2, np.float32)])
    def test_refuses_replies_that_differ(self, other: np.ndarray) -> None:
        with pytest.raises(ContractError, match="replies differ"):
            weighted_mean([np.zeros(2), other], [1, 1])

    def test_refuses_nobody_and_types_without_a_mean(self) -> None:
        with pytest.raises(ContractError, match="at least one reply"):
            weighted_mean([], [])
        with pytest.raises(ContractError, match="complex"):
            weighted_mean([np.zeros(2, complex)], [1])

    def test_does_not_change_its_arguments(self) -> None:
        arrays = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
        for array in arrays:
            array.flags.writeable = False
        weighted_mean(arrays, [1, 2])

    @FEW
    @given(replies())
    def test_identical_updates_are_returned_bit_for_bit(self, drawn: tuple[list[np.ndarray], list[float]]) -> None:
        arrays, weights = drawn
        merged = weighted_mean([arrays[0]] * len(arrays), weights)
        assert merged.dtype == arrays[0].dtype
        assert merged.shape == arrays[0].shape
        assert merged.tobytes() == arrays[0].tobytes()

    @FEW
    @given(replies())
    def test_finite_replies_give_a_finite_mean_between_them(self, drawn: tuple[list[np.ndarray], list[float]]) -> None:
        merged = weighted_mean(*drawn)
        assert np.isfinite(merged).all()
        assert (merged >= np.min(drawn[0], axis=0)).all()
        assert (merged <= np.max(drawn[0], axis=0)).all()

    @FEW
    @given(replies(), st.randoms(use_true_random=False))
    def test_order_of_arrival_changes_nothing_after_the_sort(self, drawn: tuple[list[np.ndarray], list[float]], random) -> None:
        answers = [(f"client-{index}", array, weight) for index, (array, weight) in enumerate(zip(*drawn, strict=True))]
        shuffled = random.sample(answers, len(answers))

        def merge(received: list[tuple[str, np.ndarray, float]]) -> bytes:
            ordered = sorted(received, key=lambda answer: answer[0])
            return weighted_mean([array for _, array, _ in ordered], [weight for _, _, weight in ordered]).tobytes()

        assert merge(answers) == merge(shuffled)

    @FEW
    @given(replies(FLOATS), st.integers(-8, 8))
    def test_scaling_all_weights_changes_nothing(self, drawn: tuple[list[np.ndarray], list[float]], power: int) -> None:
        arrays, weights = drawn
        scaled = weighted_mean(arrays, [weight * 2.0**power for weight in weights])
        assert scaled.tobytes() == weighted_mean(arrays, weights).tobytes()


class TestMeanUpdate:
    def test_hand_computed(self) -> None:
        previous = np.array([1.0, 10.0], np.float32)
        update = mean_update(previous, [np.array([2.0, 6.0], np.float32), np.array([4.0, 14.0], np.float32)], [3, 1])
        np.testing.assert_array_equal(update, np.array([1.5, -2.0]), strict=True)

    def test_is_not_rounded_to_the_replies_type(self) -> None:
        previous = np.array([1.0], np.float32)
        update = mean_update(previous, [np.nextafter(previous, np.float32(2)), previous], [1, 1])
        assert update[0] == 2.0**-24

    def test_scalars_and_errors(self) -> None:
        np.testing.assert_array_equal(mean_update(np.array(1), [np.array(3)], [5]), np.array(2.0), strict=True)
        with pytest.raises(ContractError, match="replies differ"):
            mean_update(np.zeros(2), [np.zeros(3)], [1])
        with pytest.raises(ContractError, match="positive weight"):
            mean_update(np.zeros(2), [np.zeros(2)], [0])

    @FEW
    @given(replies(FLOATS))
    def test_replies_that_did_not_move_give_zeros(self, drawn: tuple[list[np.ndarray], list[float]]) -> None:
        arrays, weights = drawn
        assert not mean_update(arrays[0], [arrays[0]] * len(arrays), weights).any()


class TestClassRowMean:
    def test_hand_computed(self) -> None:
        previous = np.array([[10.0, 10.0], [20.0, 20.0], [0.1, -0.0]], np.float32)
        first = np.array([[1.0, 2.0], [8.0, 8.0], [5.0, 5.0]], np.float32)
        second = np.array([[3.0, 4.0], [np.nan, np.nan], [6.0, 6.0]], np.float32)
        merged = class_row_mean(previous, [first, second], examples=[10, 30], counts_KC=np.array([[9, 1, 0], [30, 0, 0]]))
        np.testing.assert_array_equal(merged[0], np.array([2.5, 3.5], np.float32), strict=True)
        np.testing.assert_array_equal(merged[1], first[1])
        assert merged[2].tobytes() == previous[2].tobytes()

    def test_bias_and_one_client(self) -> None:
        merged = class_row_mean(np.array([1.0, 2.0]), [np.array([5.0, 6.0])], [3], np.array([[0, 3]]))
        np.testing.assert_array_equal(merged, [1.0, 6.0])

    def test_nobody_keeps_the_head(self) -> None:
        previous = np.array([[0.1], [-0.0]], np.float32)
        for merged in (
            class_row_mean(previous, [], [], np.zeros((0, 2))),
            class_row_mean(previous, [previous + 1], [0], np.array([[1, 1]])),
            class_row_mean(previous, [previous + 1], [5], np.array([[0, 0]])),
        ):
            assert merged.tobytes() == previous.tobytes()
            assert not np.shares_memory(merged, previous)

    @pytest.mark.parametrize("counts", [[[1, -1]], [[1]], [[1, 1], [1, 1]]])
    def test_refuses_counts(self, counts: list[list[int]]) -> None:
        with pytest.raises(ContractError, match="counts"):
            class_row_mean(np.zeros((2, 1)), [np.ones((2, 1))], [1], np.array(counts))

    @FEW
    @given(st.data())
    def test_rows_equal_the_mean_over_their_holders(self, data: st.DataObject) -> None:
        dtype = data.draw(TYPES)
        number, classes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        arrays = [data.draw(finite(dtype, (classes, 2))) for _ in range(number)]
        previous = data.draw(finite(dtype, (classes, 2)))
        examples = data.draw(st.lists(st.integers(0, 100), min_size=number, max_size=number))
        counts = data.draw(hnp.arrays(np.int64, (number, classes), elements=st.integers(0, 2)))
        merged = class_row_mean(previous, arrays, examples, counts)
        assert merged.dtype == dtype
        for row in range(classes):
            holders = [k for k in range(number) if counts[k, row] > 0 and examples[k] > 0]
            expected = (
                weighted_mean([arrays[k][row] for k in holders], [examples[k] for k in holders]) if holders else previous[row]
            )
            assert merged[row].tobytes() == expected.tobytes()


def plain_loop(updates_TP: np.ndarray, epsilon: float) -> np.ndarray:
    projected = []
    for task, update in enumerate(updates_TP):
        moved = update.copy()
        for other, against in enumerate(updates_TP):
            if other != task:
                moved = moved - min(0.0, moved @ against) / (against @ against + epsilon) * against
        projected.append(moved)
    return np.array(projected)


class TestProjectConflicts:
    def test_two_tasks(self) -> None:
        projected = project_conflicts(np.array([[1.0, 0.0], [-1.0, 1.0]]), epsilon=0.0)
        np.testing.assert_allclose(projected, [[0.5, 0.5], [0.0, 1.0]], rtol=1e-15)

    def test_three_tasks_in_the_given_order(self) -> None:
        given_order = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])
        projected = project_conflicts(given_order, epsilon=0.0)
        # u1: off D2 -> (.5, .5, 0); then off D3 (inner -.5) -> (.5, .25, .25).
        # u2: off D1 -> (0, 1, 0); then off D3 (inner -1) -> (0, .5, .5).
        # u3: no conflict with D1; off D2 (inner -1) -> (-.5, -.5, 1).
        np.testing.assert_allclose(projected, [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [-0.5, -0.5, 1.0]], atol=1e-15)

    def test_order_matters_from_three_tasks_on(self) -> None:
        updates_TP = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])
        first = project_conflicts(updates_TP[[0, 2, 1]], epsilon=0.0)[0]
        np.testing.assert_allclose(first, [0.5, 0.5, 0.0], atol=1e-15)

    def test_opposite_updates_cancel(self) -> None:
        update = np.array([3.0, -4.0])
        np.testing.assert_allclose(project_conflicts(np.stack([update, -2 * update])), np.zeros((2, 2)), atol=1e-12)

    def test_zero_update_is_unharmed(self) -> None:
        updates_TP = np.array([[1.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
        for epsilon in (0.0, 1e-12):
            projected = project_conflicts(updates_TP, epsilon)
            assert np.isfinite(projected).all()
            np.testing.assert_array_equal(projected[1], [0.0, 0.0])

    def test_without_conflict_nothing_moves(self) -> None:
        updates_TP = np.array([[0.1, 0.0, 0.3], [0.7, 0.2, 0.0], [0.0, 0.9, 0.1]])
        assert project_conflicts(updates_TP).tobytes() == updates_TP.tobytes()

    @pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 0)])
    def test_one_task_and_empty(self, shape: tuple[int, int]) -> None:
        np.testing.assert_array_equal(project_conflicts(np.ones(shape)), np.ones(shape), strict=True)

    def test_refuses_a_vector(self) -> None:
        with pytest.raises(ContractError, match="shape"):
            project_conflicts(np.zeros(3))

    @FEW
    @given(updates(st.integers(1, 5)))
    def test_gram_form_equals_the_plain_loop(self, updates_TP: np.ndarray) -> None:
        largest = np.abs(updates_TP).max(initial=0.0)
        np.testing.assert_allclose(project_conflicts(updates_TP), plain_loop(updates_TP, 1e-12), rtol=1e-12, atol=1e-12 * largest)

    @FEW
    @given(updates(st.just(2)))
    def test_no_conflict_is_left_with_a_single_other_task(self, updates_TP: np.ndarray) -> None:
        projected = project_conflicts(updates_TP)
        scale = np.linalg.norm(updates_TP, axis=1)
        for task, other in ((0, 1), (1, 0)):
            # The epsilon leaves its share of a conflict with a tiny update; the rest is rounding.
            left_by_epsilon = scale[task] * scale[other] * 1e-12 / (scale[other] ** 2 + 1e-12)
            assert projected[task] @ updates_TP[other] >= -left_by_epsilon - 1e-12 * (1 + scale[task]) * (1 + scale[other])

    @FEW
    @given(updates(st.integers(1, 4)), st.integers(-20, 20))
    def test_scaling_equivariance(self, updates_TP: np.ndarray, power: int) -> None:
        factor = 2.0**power
        scaled = project_conflicts(factor * updates_TP, epsilon=1e-12 * factor**2)
        np.testing.assert_array_equal(scaled, factor * project_conflicts(updates_TP, epsilon=1e-12))

    @FEW
    @given(updates(st.integers(1, 4)))
    def test_a_longer_update_never_comes_out(self, updates_TP: np.ndarray) -> None:
        before, after = np.linalg.norm(updates_TP, axis=1), np.linalg.norm(project_conflicts(updates_TP), axis=1)
        assert (after <= before * (1 + 1e-12)).all()


class TestConflictCosines:
    def test_hand_computed(self) -> None:
        cosines = conflict_cosines(np.array([[2.0, 0.0], [-3.0, 3.0], [0.0, 0.0]]))
        root = np.sqrt(0.5)
        np.testing.assert_allclose(cosines, [[1.0, -root, 0.0], [-root, 1.0, 0.0], [0.0, 0.0, 0.0]], rtol=1e-15)

    @FEW
    @given(updates(st.integers(1, 4)))
    def test_finite_symmetric_and_bounded(self, updates_TP: np.ndarray) -> None:
        cosines = conflict_cosines(updates_TP)
        np.testing.assert_array_equal(cosines, cosines.T)
        assert (np.abs(cosines) <= 1).all()


class TestStabilise:
    def test_half_way(self) -> None:
        moved = stabilise(np.array([1.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))
        np.testing.assert_array_equal(moved, np.array([1.5, 1.0], np.float32), strict=True)

    def test_step_zero_and_one(self) -> None:
        previous, mean = np.array(1.0), np.array(3.0)
        assert stabilise(previous, mean, 0.0) == previous
        assert stabilise(previous, mean, 1.0) == mean

    def test_keeps_types(self) -> None:
        np.testing.assert_array_equal(stabilise(np.array(3), np.array(4)), np.array(4), strict=True)
        np.testing.assert_array_equal(stabilise(np.array([True]), np.array([False])), np.array([False]), strict=True)

    def test_refuses_another_shape(self) -> None:
        with pytest.raises(ContractError, match="replies differ"):
            stabilise(np.zeros(2), np.zeros(3))


class TestFlatten:
    def test_row_major_one_after_the_other(self) -> None:
        vector = flatten([np.array([[1, 2], [3, 4]], order="F"), np.array(5.0, np.float32), np.zeros((0, 3))])
        np.testing.assert_array_equal(vector, np.array([1.0, 2, 3, 4, 5]), strict=True)

    def test_nothing(self) -> None:
        assert flatten([]).shape == (0,)
        assert unflatten(flatten([]), []) == []

    def test_refuses_another_length(self) -> None:
        with pytest.raises(ContractError, match="4 elements"):
            unflatten(np.zeros(3), [np.zeros((2, 2))])

    @FEW
    @given(st.lists(st.tuples(FLOATS, SHAPES), max_size=4).flatmap(lambda kinds: st.tuples(*(finite(*kind) for kind in kinds))))
    def test_inverse(self, arrays: tuple[np.ndarray, ...]) -> None:
        vector = flatten(arrays)
        restored = unflatten(vector, arrays)
        for before, after in zip(arrays, restored, strict=True):
            np.testing.assert_array_equal(after, before, strict=True)
            assert not np.shares_memory(after, vector)
