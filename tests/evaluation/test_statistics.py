import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.evaluation.statistics import compare_pairs, describe, sign_flip_p_value

VALUES = st.lists(st.integers(-50, 50).map(lambda n: n / 100), min_size=1, max_size=7)


def test_mean_and_sample_deviation_by_hand() -> None:
    sample = describe([0.80, 0.82, 0.87])
    assert sample.count == 3
    assert sample.mean == pytest.approx(0.83)
    # Squared deviations 9e-4, 1e-4 and 16e-4, divided by two.
    assert sample.standard_deviation == pytest.approx(math.sqrt(13e-4))
    # The 97.5 % point of t with two degrees of freedom is 4.30265 (any table).
    assert sample.interval is not None
    assert sample.interval.high - 0.83 == pytest.approx(4.30265 * math.sqrt(13e-4 / 3), rel=1e-5)
    assert 0.83 - sample.interval.low == pytest.approx(sample.interval.high - 0.83)


def test_one_seed_has_neither_deviation_nor_interval() -> None:
    sample = describe([0.5])
    assert (sample.count, sample.mean, sample.standard_deviation, sample.interval) == (1, 0.5, None, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    sample = describe([0.25] * 4)
    assert (sample.mean, sample.standard_deviation) == (0.25, 0.0)
    assert sample.interval is not None
    assert (sample.interval.low, sample.interval.high) == (0.25, 0.25)


def test_another_confidence_gives_another_interval() -> None:
    narrow, wide = describe([0.1, 0.4], confidence=0.5).interval, describe([0.1, 0.4]).interval
    assert narrow is not None
    assert wide is not None
    # t with one degree of freedom: 1 at 75 %, 12.7062 at 97.5 %; the deviation of the mean is 0.15.
    assert narrow.high == pytest.approx(0.25 + 0.15)
    assert wide.high == pytest.approx(0.25 + 0.15 * 12.7062, rel=1e-5)


@pytest.mark.parametrize("values", [[], [math.nan], [0.1, math.inf]])
def test_values_that_cannot_be_described_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        describe(values)
    with pytest.raises(ValueError, match="finite"):
        sign_flip_p_value(values)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 20])
def test_differences_of_one_sign_have_the_smallest_p_value(count: int) -> None:
    differences = [0.01 * (place + 1) for place in range(count)]
    assert sign_flip_p_value(differences) == 2 / 2**count
    assert sign_flip_p_value([-difference for difference in differences]) == 2 / 2**count


def test_a_p_value_by_hand() -> None:
    # Of |3 + 2 - 1| = 4: the eight sums are +-6, +-4, +-2, +-0, so four of eight reach it.
    assert sign_flip_p_value([0.03, 0.02, -0.01]) == 0.5
    # A sum of zero is reached by every pattern.
    assert sign_flip_p_value([0.0, 0.0, 0.0]) == 1.0
    assert sign_flip_p_value([0.5, -0.5]) == 1.0


def test_sums_that_rounding_tells_apart_are_ties() -> None:
    # 0.1 + 0.2 is not 0.3 in binary: without a tolerance the patterns with the sums +-0.3 +-0.3 would not count as equal.
    assert 0.1 + 0.2 - 0.3 != 0
    assert sign_flip_p_value([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip_p_value([0.91 - 0.90, 0.82 - 0.81, -(0.73 - 0.72)]) == 1.0


def test_more_pairs_than_are_enumerated_have_no_p_value() -> None:
    paired = compare_pairs([0.5] * 21, [0.4] * 21)
    assert paired.p_value is None
    assert paired.wins == 21
    with pytest.raises(ValueError, match="1 to 20"):
        sign_flip_p_value([0.1] * 21)


def test_pairs_by_hand() -> None:
    paired = compare_pairs([0.80, 0.75, 0.70], [0.70, 0.75, 0.72])
    assert paired.differences.mean == pytest.approx(0.08 / 3)
    assert paired.wins == 1  # A tie is no win.
    # |0.10 + 0 - 0.02| = 0.08 is reached by the signs of 0.10 and 0.02 in any of their four patterns; zero doubles both sides.
    assert paired.p_value == 1.0


def test_one_pair_has_a_p_value_of_one_and_no_interval() -> None:
    paired = compare_pairs([0.9], [0.8])
    assert (paired.p_value, paired.wins, paired.differences.interval) == (1.0, 1, None)


def test_pairs_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare_pairs([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="1 to 20"):
        compare_pairs([], [])


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_the_p_value_is_that_of_the_plain_enumeration(differences: list[float]) -> None:
    hundredths = [round(100 * difference) for difference in differences]  # Whole numbers: no rounding, so exact ties.
    observed = abs(sum(hundredths))
    patterns = list(itertools.product((1, -1), repeat=len(hundredths)))
    reached = sum(abs(sum(s * d for s, d in zip(signs, hundredths, strict=True))) >= observed for signs in patterns)
    assert sign_flip_p_value(differences) == reached / len(patterns)


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_neither_order_nor_swapped_sides_nor_scale_change_the_p_value(values: list[float], random: Random) -> None:
    shuffled = random.sample(values, len(values))
    p_value = sign_flip_p_value(values)
    assert sign_flip_p_value(shuffled) == p_value
    assert sign_flip_p_value([-value for value in values]) == p_value
    assert sign_flip_p_value([3 * value for value in values]) == p_value
    assert 2 / 2 ** len(values) <= p_value <= 1
