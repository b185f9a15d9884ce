"""Arithmetic of dividing rows: whole numbers in given proportions, and draws that keep the proportions of strata.

Legend: ``N`` rows, ``K`` parts.
"""

import numpy as np

from fedsocket_flwr.datasets.corpus import Array


def apportion(total: int, weights: Array) -> Array:
    """Divide ``total`` into whole numbers in proportion to ``weights`` by the largest remainder.

    Parameters
    ----------
    total
        What is divided.
    weights
        Non-negative weights of the K parts, not all zero.

    Returns
    -------
    numpy.ndarray
        ``int64`` (K,) that sums to ``total``. Each part is its exact share rounded down, or one more; of equal remainders the
        earlier part comes first. With whole weights no part exceeds its weight as long as ``total`` does not exceed their sum.
    """
    scaled = total * np.asarray(weights, dtype=np.float64) / np.sum(weights)
    parts: Array = np.floor(scaled + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(scaled - parts, 9), kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts


def stratified(pool: Array, strata: Array, size: int, generator: np.random.Generator) -> Array:
    """Draw ``size`` of the pool so that every stratum has its share (:func:`apportion`), without replacement.

    Parameters
    ----------
    pool
        Rows to draw from.
    strata
        Stratum of each row of the pool.
    size
        How many to draw, at most the pool's size.
    generator
        Source of the draw.

    Returns
    -------
    numpy.ndarray
        Drawn rows in ascending order.
    """
    if size == 0:
        return pool[:0]
    values, counts = np.unique(strata, return_counts=True)
    drawn = [
        generator.permutation(pool[strata == value])[:quota] for value, quota in zip(values, apportion(size, counts), strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def deal_in_proportion(
    pool: Array, strata: Array, weights: dict[int, Array], total: Array, generator: np.random.Generator
) -> list[Array]:
    """Deal the whole pool into K disjoint parts, stratum by stratum.

    Parameters
    ----------
    pool, strata
        Rows and their strata.
    weights
        Stratum -> weight of each of the K parts.
    total
        Weights (K,) for a stratum that no part has a weight in.
    generator
        Source of the draw.

    Returns
    -------
    list of numpy.ndarray
        K arrays of rows in ascending order. What rounding takes from a part in one stratum is made up in the next ones.
    """
    parts: list[list[Array]] = [[pool[:0]] for _ in total]
    owed = np.zeros(len(total))
    for stratum in np.unique(strata):
        rows = generator.permutation(pool[strata == stratum])
        share = weights.get(int(stratum), total)
        share = share if share.sum() > 0 else total
        exact = len(rows) * share / share.sum()
        counts = np.floor(exact + 1e-9).astype(np.int64)
        wanting = np.where(share > 0, owed + exact - counts, -np.inf)
        counts[np.argsort(-np.round(wanting, 9), kind="stable")[: len(rows) - int(counts.sum())]] += 1
        owed += exact - counts
        for part, piece in zip(parts, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
