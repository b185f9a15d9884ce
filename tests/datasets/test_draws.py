import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.datasets.draws import apportion, deal_in_proportion, stratified


def test_apportion_by_hand():
    # Exact shares 4.5, 3.0, 2.5: the floors are 4, 3, 2 and the one that is left goes to the first of the equal remainders.
    assert apportion(10, np.array([45, 30, 25])).tolist() == [5, 3, 2]
    # 0.1 of four samples rounds down to nothing; a class of one sample may get none.
    assert apportion(1, np.array([1, 1, 98])).tolist() == [0, 0, 1]
    assert apportion(0, np.array([1, 2])).tolist() == [0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(sum), st.data())
def test_apportion_sums_and_never_exceeds_what_is_there(counts, data):
    total = data.draw(st.integers(0, sum(counts)))
    parts = apportion(total, np.array(counts))
    assert parts.sum() == total
    assert (parts <= np.array(counts)).all()
    assert (abs(parts - total * np.array(counts) / sum(counts)) < 1).all()


def test_stratified_keeps_shares_and_draws_each_once():
    strata = np.repeat([0, 1, 2], [60, 30, 10])
    drawn = stratified(np.arange(100), strata, 20, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 20
    assert np.bincount(strata[drawn]).tolist() == [12, 6, 2]


@pytest.mark.parametrize("size", [0, 100])
def test_stratified_draws_nothing_or_all(size):
    assert len(stratified(np.arange(100), np.zeros(100, int), size, np.random.default_rng(0))) == size


def test_deal_in_proportion_by_hand():
    pool, strata = np.arange(30), np.repeat([0, 1, 2], 10)
    weights = {0: np.array([3.0, 1.0]), 1: np.array([0.0, 5.0])}
    first, second = deal_in_proportion(pool, strata, weights, np.array([1.0, 1.0]), np.random.default_rng(0))
    # Stratum 0: 7.5 and 2.5. Stratum 1 belongs to the second alone. Stratum 2, which nobody has, by the totals, and what rounding
    # gave to one in stratum 0 is made up nowhere, since 5 and 5 are whole.
    assert np.bincount(strata[first], minlength=3).tolist() == [8, 0, 5]
    assert np.bincount(strata[second], minlength=3).tolist() == [2, 10, 5]
    assert sorted([*first, *second]) == pool.tolist()


def test_what_rounding_takes_is_made_up():
    # Ten strata of one row each, two equal parts: five each, not ten and none.
    parts = deal_in_proportion(np.arange(10), np.arange(10), {}, np.array([1.0, 1.0]), np.random.default_rng(0))
    assert [len(part) for part in parts] == [5, 5]
