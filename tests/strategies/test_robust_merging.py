"""Means that no single client can drag away, and the bound on a client's update."""

from functools import partial

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import Array
from fedsocket_flwr.strategies import merging
from fedsocket_flwr.strategies.task_owned import TaskOwnedStrategy, merge_by_owner
from tests.small_federation import CONTRACT, MEMBERS, drawn, same_bits, update_of, zeros

FEW = settings(max_examples=40, deadline=None)
ROBUST: tuple[merging.Mean, ...] = (merging.coordinate_median, partial(merging.trimmed_mean, share=0.34))
NUMBERS = st.floats(-1e6, 1e6, width=32)


def replies(*rows: list[float]) -> list[Array]:
    return [np.array(row, np.float32) for row in rows]


class TestByHand:
    def test_median_of_three(self) -> None:
        found = merging.coordinate_median(replies([1, 9], [2, -50], [1000, 3]), [5, 1, 100])
        assert found.tolist() == [2.0, 3.0]
        assert found.dtype == np.float32

    def test_median_of_four_is_the_middle_of_the_two_in_the_middle(self) -> None:
        assert merging.coordinate_median(replies([1], [2], [4], [90]), [1] * 4).tolist() == [3.0]

    def test_a_quarter_trimmed_of_four(self) -> None:
        assert merging.trimmed_mean(replies([1], [2], [6], [90]), [1] * 4, 0.25).tolist() == [4.0]

    def test_too_few_to_trim(self) -> None:
        assert merging.trimmed_mean(replies([1], [2], [6]), [1] * 3, 0.1).tolist() == [3.0]

    def test_a_reply_of_no_weight_is_not_looked_at(self) -> None:
        assert merging.coordinate_median(replies([1], [2], [50]), [1, 1, 0]).tolist() == [1.5]

    def test_whole_numbers(self) -> None:
        found = merging.coordinate_median([np.array([n]) for n in (1, 2, 70)], [1, 1, 1])
        assert found.tolist() == [2]
        assert found.dtype == np.int64

    def test_the_largest_floats_do_not_overflow(self) -> None:
        large = np.finfo(np.float32).max
        assert merging.trimmed_mean([np.full(2, large)] * 3, [1] * 3, 0.1).tolist() == [large, large]

    @pytest.mark.parametrize("mean", ROBUST)
    def test_nobody_has_weight(self, mean: merging.Mean) -> None:
        with pytest.raises(ContractError, match="positive weight"):
            mean(replies([1], [2]), [0, 0])


class TestProperties:
    @FEW
    @given(hnp.arrays(np.float32, (5, 3), elements=NUMBERS))
    def test_numpys_median(self, rows: Array) -> None:
        found = merging.coordinate_median(list(rows), [1] * 5)
        assert np.array_equal(found, np.median(rows.astype(np.float64), axis=0).astype(np.float32))

    @FEW
    @given(hnp.arrays(np.float32, (7, 2), elements=NUMBERS), st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.45)))
    def test_scipys_trimmed_mean(self, rows: Array, share: float) -> None:
        found = merging.trimmed_mean(list(rows), [1] * 7, share)
        assert found == pytest.approx(scipy.stats.trim_mean(rows.astype(np.float64), share, axis=0), rel=1e-5, abs=1e-3)

    @FEW
    @given(hnp.arrays(np.float32, (5, 3), elements=NUMBERS), st.permutations(range(5)), st.sampled_from(ROBUST))
    def test_the_order_of_replies_changes_no_bit(self, rows: Array, order: list[int], mean: merging.Mean) -> None:
        assert mean(list(rows), [1] * 5).tobytes() == mean([rows[k] for k in order], [1] * 5).tobytes()

    @FEW
    @given(hnp.arrays(np.float32, (5, 3), elements=NUMBERS), st.floats(-(2.0**99), 2.0**99, width=32), st.sampled_from(ROBUST))
    def test_one_liar_in_five_stays_within_the_honest(self, rows: Array, lie: float, mean: merging.Mean) -> None:
        found = mean([*rows[:4], np.full(3, lie, np.float32)], [1, 1, 1, 1, 10**9])
        assert (found >= rows[:4].min(axis=0)).all()
        assert (found <= rows[:4].max(axis=0)).all()


UPDATES = [update_of(member, drawn("reply", client)) for client, member in sorted(MEMBERS.items())]


class TestMergeByOwner:
    def test_the_weighted_mean_is_the_default_to_the_bit(self) -> None:
        merged, _ = merge_by_owner(CONTRACT, zeros(), UPDATES, MEMBERS)
        named, _ = merge_by_owner(CONTRACT, zeros(), UPDATES, MEMBERS, mean=merging.mean_of("weighted", 0.1))
        assert same_bits(merged, named)

    def test_median_of_two_clients_of_a_task(self) -> None:
        merged, _ = merge_by_owner(CONTRACT, zeros(), UPDATES, MEMBERS, mean=merging.coordinate_median)
        first, second = (drawn("reply", client)["digits.body"].astype(np.float64) for client in ("digits-1", "digits-2"))
        assert np.array_equal(merged["digits.body"], (first / 2 + second / 2).astype(np.float32))

    def test_a_class_row_is_that_of_its_only_holder(self) -> None:
        previous = drawn("before")
        merged, _ = merge_by_owner(CONTRACT, previous, UPDATES, MEMBERS, mean=merging.coordinate_median)
        head = merged["digits.head"]
        assert np.array_equal(head[0], drawn("reply", "digits-1")["digits.head"][0]), "only digits-1 holds class 0"
        assert np.array_equal(head[2], previous["digits.head"][2]), "nobody holds class 2"

    def test_row_by_row_with_the_weighted_mean_is_the_fast_path(self) -> None:
        rows = [update.blocks["digits.head"] for update in UPDATES[:2]]
        counts_KC = np.array([MEMBERS[client].class_counts for client in ("digits-1", "digits-2")])
        previous = drawn("before")["digits.head"]
        slow = merging.class_rows(
            lambda arrays, weights: merging.weighted_mean(arrays, weights), previous, rows, [10, 30], counts_KC
        )
        fast = merging.class_rows(merging.weighted_mean, previous, rows, [10, 30], counts_KC)
        assert slow.tobytes() == fast.tobytes()

    def test_the_residual_moves_by_the_tasks_medians(self) -> None:
        merged, _ = merge_by_owner(CONTRACT, zeros(), UPDATES, MEMBERS, residual="mean", mean=merging.coordinate_median)
        of = {client: drawn("reply", client)["residual.a"].astype(np.float64) for client in MEMBERS}
        tasks = [(of["digits-1"] + of["digits-2"]) / 2, of["news-1"], (of["pairs-1"] + of["pairs-2"]) / 2]
        assert merged["residual.a"] == pytest.approx(np.mean(tasks, axis=0), rel=1e-6)

    def test_the_strategy_takes_the_rule_by_name(self) -> None:
        merged, _ = merge_by_owner(CONTRACT, zeros(), UPDATES, MEMBERS, mean=merging.coordinate_median)
        strategy = TaskOwnedStrategy(CONTRACT, task_mean="median")
        strategy.roster.memberships.update(MEMBERS)
        assert same_bits(strategy.merge(zeros(), UPDATES)[0], merged)


class TestNormBound:
    def test_by_hand(self) -> None:
        before = replies([0, 0], [1])
        clipped, norm = merging.clip_update(before, replies([3, 0], [5]), 2.5)
        assert norm == 5.0
        assert [array.tolist() for array in clipped] == [[1.5, 0.0], [3.0]]

    def test_a_short_update_is_untouched(self) -> None:
        after = replies([3, 0], [5])
        clipped, norm = merging.clip_update(replies([0, 0], [1]), after, 5.0)
        assert norm == 5.0
        assert all(a is b for a, b in zip(clipped, after, strict=True))

    def test_whole_numbers_neither_count_nor_move(self) -> None:
        before, after = [np.array([0]), *replies([0])], [np.array([1000]), *replies([4])]
        clipped, norm = merging.clip_update(before, after, 1.0)
        assert norm == 4.0
        assert [array.tolist() for array in clipped] == [[1000], [1.0]]

    @FEW
    @given(hnp.arrays(np.float32, (2, 6), elements=NUMBERS), st.floats(0.01, 1e4))
    def test_the_result_is_within_the_bound(self, rows: Array, bound: float) -> None:
        clipped, norm = merging.clip_update([rows[0]], [rows[1]], bound)
        distance = float(np.linalg.norm(clipped[0].astype(np.float64) - rows[0]))
        assert distance <= min(norm, bound) * (1 + 1e-6) + 1e-6 * float(np.abs(rows).max())
