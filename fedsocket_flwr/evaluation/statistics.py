"""What a few seeds say: mean, sample standard deviation, and paired differences with interval, exact p value and wins.

Every function is pure. What too few values cannot give (a standard deviation or an interval from one value) is None, never NaN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LARGEST_ENUMERATION = 20
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Interval:
    """A confidence interval for a mean."""

    low: float
    high: float


@dataclass(frozen=True)
class Sample:
    """A metric over seeds.

    Attributes
    ----------
    count
        Number of seeds.
    mean
        Arithmetic mean.
    standard_deviation
        Sample standard deviation (divisor ``count - 1``); None for one seed.
    interval
        95 % t interval of the mean; None for one seed.
    """

    count: int
    mean: float
    standard_deviation: float | None
    interval: Interval | None


@dataclass(frozen=True)
class PairedDifference:
    """Differences of two arms over the seeds that both have.

    Attributes
    ----------
    differences
        Their mean, sample standard deviation and 95 % t interval.
    p_value
        Exact two-sided sign-flip p value; None for more than 20 pairs, which are not enumerated.
    wins
        Number of seeds with a difference above zero.
    """

    differences: Sample
    p_value: float | None
    wins: int


def describe(values: Sequence[float], confidence: float = 0.95) -> Sample:
    """Return mean, sample standard deviation and t interval of one value a seed.

    Parameters
    ----------
    values
        One finite value a seed, at least one.
    confidence
        Coverage of the interval, in (0, 1).

    Raises
    ------
    ValueError
        If there is no value or one is not finite.
    """
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"expected at least one value and only finite ones, found {list(values)}")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Sample(count, mean, None, None)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = float(stats.t.ppf((1 + confidence) / 2, count - 1)) * deviation / math.sqrt(count)
    return Sample(count, mean, deviation, Interval(mean - reach, mean + reach))


def compare_pairs(minuend: Sequence[float], subtrahend: Sequence[float]) -> PairedDifference:
    """Compare two arms seed by seed.

    Parameters
    ----------
    minuend, subtrahend
        One finite value a seed each, the same seeds in the same order.

    Raises
    ------
    ValueError
        If the lengths differ, there is no pair, or a value is not finite.
    """
    differences = [first - second for first, second in zip(minuend, subtrahend, strict=True)]
    exact = sign_flip_p_value(differences) if len(differences) <= LARGEST_ENUMERATION else None
    return PairedDifference(describe(differences), exact, sum(difference > 0 for difference in differences))


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Return the exact two-sided p value of the sign-flip test that the mean difference is zero.

    Under the hypothesis every difference could as well have had the other sign. The p value is the share of all ``2^n`` patterns
    of signs whose sum is, in absolute value, at least the observed one; sums that differ by no more than rounding count as equal.
    It is never below ``2 / 2^n``.

    Parameters
    ----------
    differences
        One finite difference a pair, 1 to 20 of them.

    Raises
    ------
    ValueError
        If there are none or more than 20, or one is not finite.
    """
    if not 1 <= len(differences) <= LARGEST_ENUMERATION or not all(math.isfinite(value) for value in differences):
        raise ValueError(f"expected 1 to {LARGEST_ENUMERATION} finite differences, found {list(differences)}")
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate((sums + difference, sums - difference))
    # The first pattern has every sign as observed. Rounding scales with the differences, not with their sum, which may cancel.
    tolerance = _ROUNDING * math.fsum(abs(difference) for difference in differences)
    return float(np.mean(np.abs(sums) >= abs(sums[0]) - tolerance))
