"""Pure arithmetic on arrays of replies: means, class rows, conflict projection, stabiliser.

Nothing here knows of clients, messages or rounds. Sums run in float64 in the order of the arguments, so the caller sorts once
(by client id, by task name) and the result does not depend on who answered first. Finite arguments give finite results.

Shape legend: ``K`` replies, ``C`` classes, ``T`` tasks, ``P`` parameters of the flat vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import Array

Vector = NDArray[np.float64]
MeanRule = Literal["weighted", "median", "trimmed"]
Mean = Callable[[Sequence[Array], Sequence[float]], Array]
"""What several replies of one block become, by their weights: :func:`weighted_mean` or a robust one."""


def weighted_mean(arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return the weighted mean of arrays that agree in shape and type.

    Parameters
    ----------
    arrays
        One array a reply. Floats are averaged, integers too with halves rounded to even, booleans vote (a tie is False).
    weights
        One non-negative number a reply, usually its training examples. A reply of weight zero is not looked at.

    Returns
    -------
    Array
        A new array of the replies' shape and type. The mean of identical arrays is that array, bit for bit.

    Raises
    ------
    ContractError
        If there is no array, nobody has weight, a weight is negative or not finite, or shapes or types differ.
    """
    _require_alike(arrays)
    weighing, mass = _weighing(arrays, weights)
    first, share = weighing[0]
    total = np.multiply(first, share, out=np.empty(first.shape), dtype=np.float64)
    product = np.empty(first.shape)
    with np.errstate(over="ignore"):
        for array, share in weighing[1:]:
            np.multiply(array, share, out=product, dtype=np.float64)
            np.add(total, product, out=total)
        np.divide(total, mass, out=total)
    mean = _as_type(total, first.dtype)
    if _rounds_in_float64(first.dtype):
        low, high = _widest_bounds(mean)
        for array, _ in weighing:
            np.minimum(low, array, out=low)
            np.maximum(high, array, out=high)
        _clip(mean, low, high)
    return mean


def coordinate_median(arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return the median of every coordinate over the replies of positive weight (Yin et al. 2018, Definition 1).

    Arguments, type and errors are those of :func:`weighted_mean`. How heavy a reply is does not count, so that nobody gains by
    declaring more examples; of an even number of replies it is the mean of the two in the middle.
    """
    return trimmed_mean(arrays, weights, 0.5)


def trimmed_mean(arrays: Sequence[Array], weights: Sequence[float], share: float) -> Array:
    """Return the mean of every coordinate without its smallest and largest replies (Yin et al. 2018, Definition 2).

    Parameters
    ----------
    arrays, weights
        As in :func:`weighted_mean`; a weight only says whether a reply counts at all.
    share
        The share of the replies that is dropped at each end, rounded down; but never so many that less than one is left, or two
        of an even number: 0.5 is the median.
    """
    _require_alike(arrays)
    weighing, _ = _weighing(arrays, weights)
    # Two zeros of either sign compare as equal, and would stay in the order of the replies: adding zero leaves one kind.
    sorted_K = np.sort(np.stack([array for array, _ in weighing]).astype(np.float64) + 0.0, axis=0)
    replies = len(weighing)
    dropped = min(int(share * replies), (replies - 1) // 2)
    kept = sorted_K[dropped : replies - dropped]
    # Divided before they are summed: the sum of large replies would be infinite.
    mean = np.clip((kept / len(kept)).sum(axis=0), kept[0], kept[-1])
    return _as_type(np.asarray(mean), arrays[0].dtype)


def mean_of(rule: MeanRule, trim: float) -> Mean:
    """Return the mean that a rule names."""
    if rule == "median":
        return coordinate_median
    return partial(trimmed_mean, share=trim) if rule == "trimmed" else weighted_mean


def class_rows(mean: Mean, previous: Array, arrays: Sequence[Array], examples: Sequence[float], counts_KC: Array) -> Array:
    """Return a classification head whose row c is ``mean`` over the clients that hold class c; see :func:`class_row_mean`."""
    if mean is weighted_mean:
        return class_row_mean(previous, arrays, examples, counts_KC)
    merged = previous.copy()
    for row, counts_K in enumerate(np.asarray(counts_KC).reshape(len(arrays), len(previous)).T):
        holders = [k for k, (count, weight) in enumerate(zip(counts_K, examples, strict=True)) if count > 0 and weight > 0]
        if holders:
            merged[row] = mean([arrays[k][row] for k in holders], [examples[k] for k in holders])
    return merged


def clip_update(previous: Sequence[Array], arrays: Sequence[Array], bound: float) -> tuple[list[Array], float]:
    """Return arrays moved back towards ``previous`` so that their distance from it is at most ``bound``, and what it was.

    Parameters
    ----------
    previous, arrays
        All blocks of one reply before and after, in one order. Only floats are measured and moved.
    bound
        The largest L2 norm of all differences together.

    Returns
    -------
    clipped, norm
        The arrays themselves, bit for bit, where ``norm`` is within the bound.
    """
    pairs = [(before, after) for before, after in zip(previous, arrays, strict=True) if after.dtype.kind == "f"]
    norm = float(np.linalg.norm([np.linalg.norm(np.subtract(after, before, dtype=np.float64)) for before, after in pairs]))
    if norm <= bound:
        return list(arrays), norm
    return [
        stabilise(before, after, bound / norm) if after.dtype.kind == "f" else after
        for before, after in zip(previous, arrays, strict=True)
    ], norm


def mean_update(previous: Array, arrays: Sequence[Array], weights: Sequence[float], mean: Mean | None = None) -> Vector:
    """Return D = the mean of the replies less what they started from, in float64 (FedSocket v1, A.7).

    Arguments and errors are those of :func:`weighted_mean`, which is the mean unless another is given. Replies that did not move
    give exact zeros.
    """
    _require_alike([previous, *arrays])
    if mean is not None and mean is not weighted_mean:
        return np.subtract(mean(arrays, weights), previous, dtype=np.float64)
    weighing, mass = _weighing(arrays, weights)
    total, moved = np.zeros(previous.shape), np.empty(previous.shape)
    for array, share in weighing:
        np.subtract(array, previous, out=moved, dtype=np.float64)
        np.multiply(moved, share, out=moved)
        np.add(total, moved, out=total)
    return np.divide(total, mass, out=total)


def class_row_mean(previous: Array, arrays: Sequence[Array], examples: Sequence[float], counts_KC: Array) -> Array:
    """Return a classification head whose row c is the mean over the clients that hold class c.

    Parameters
    ----------
    previous
        The head before this round, with one row a class: shape ``(C, ...)``.
    arrays
        One head a reply, in the shape and type of ``previous``. The row of a class that its client lacks is not looked at.
    examples
        Training examples a reply; they weigh the mean.
    counts_KC
        Training examples a reply and class; only their sign counts.

    Returns
    -------
    Array
        A new array. Row c is ``previous[c]``, bit for bit, where nobody with examples holds c. Where everybody holds every class,
        it equals :func:`weighted_mean`, bit for bit.

    Raises
    ------
    ContractError
        If shapes or types differ, or a weight or count is negative.
    """
    shares = _shares(examples, len(arrays))
    _require_alike([previous, *arrays])
    if not arrays:
        return previous.copy()
    counts_KC = np.asarray(counts_KC)
    if counts_KC.shape != (len(arrays), *previous.shape[:1]) or (counts_KC < 0).any():
        raise ContractError(
            f"expected counts for {len(arrays)} replies of rows {previous.shape}, none negative, found {counts_KC}"
        )
    total, mass_C = np.full(previous.shape, -0.0), np.zeros(len(previous))
    bounded = _rounds_in_float64(previous.dtype)
    low, high = _widest_bounds(previous) if bounded else (previous, previous)
    with np.errstate(over="ignore"):
        for array, share, counts_C in zip(arrays, shares, counts_KC, strict=True):
            rows = np.flatnonzero(counts_C * (share > 0))
            held = array[rows]
            total[rows] += np.multiply(held, share, dtype=np.float64)
            mass_C[rows] += share
            if bounded:
                low[rows] = np.minimum(low[rows], held)
                high[rows] = np.maximum(high[rows], held)
        rows = np.flatnonzero(mass_C)
        mean = _as_type(total[rows] / mass_C[rows].reshape(-1, *[1] * (previous.ndim - 1)), previous.dtype)
    if bounded:
        _clip(mean, low[rows], high[rows])
    merged = previous.copy()
    merged[rows] = mean
    return merged


def project_conflicts(updates_TP: Vector, epsilon: float = 1e-12) -> Vector:
    """Project each task's update off the updates that it conflicts with (FedSocket v1, Eq. 20).

    ``u_t -= min(0, <u_t, D_s>) / (|D_s|^2 + epsilon) * D_s`` for every other task s in order, with D the updates as given.

    Parameters
    ----------
    updates_TP
        One flat update a task, in a fixed order (the order matters from three tasks on). Products of two updates must be below
        the largest float64, which holds for every float32 model.
    epsilon
        Keeps a zero update harmless, in squared units of the updates.

    Returns
    -------
    Vector
        The projected updates, shape ``(T, P)``. A task without conflict keeps its update bit for bit.

    Notes
    -----
    Every ``u_t`` is a combination of the given updates, so its inner products follow from the ``T x T`` Gram matrix: the loop
    below runs over coefficients only, and one matrix product makes the vectors.
    """
    updates_TP = _require_matrix(updates_TP)
    gram_TT = updates_TP @ updates_TP.T
    coefficients_TT = np.eye(len(updates_TP))
    for task, coefficients_T in enumerate(coefficients_TT):
        for other in range(len(updates_TP)):
            inner = float(coefficients_T @ gram_TT[:, other])
            if other != task and inner < 0:
                coefficients_T[other] -= inner / (gram_TT[other, other] + epsilon)
    changed = np.flatnonzero((coefficients_TT != np.eye(len(updates_TP))).any(axis=1))
    projected_TP = updates_TP.copy()
    projected_TP[changed] = coefficients_TT[changed] @ updates_TP
    return projected_TP


def conflict_cosines(updates_TP: Vector) -> Vector:
    """Return the cosines between the tasks' updates, shape ``(T, T)``; 0 where an update is zero, below 0 where two conflict."""
    updates_TP = _require_matrix(updates_TP)
    gram_TT = updates_TP @ updates_TP.T
    norms_T = np.sqrt(np.diagonal(gram_TT))
    scale_TT = np.outer(norms_T, norms_T)
    cosines_TT: Vector = np.zeros_like(gram_TT)
    np.divide(gram_TT, scale_TT, out=cosines_TT, where=scale_TT > 0)
    np.clip(cosines_TT, -1.0, 1.0, out=cosines_TT)
    return cosines_TT


def stabilise(previous: Array, mean: Array, step: float = 0.5) -> Array:
    """Return ``previous + step * (mean - previous)``, the damped server step of the same-task protocol (FedSocket v1, A.7).

    Shape and type are those of ``previous``; halves of integers round to even, a boolean that is half way is False.
    """
    _require_alike([previous, mean])
    target = np.asarray(mean, dtype=np.float64)
    moved = np.asarray(np.add(previous, step * np.subtract(target, previous), dtype=np.float64))
    return _as_type(moved, previous.dtype)


def flatten(arrays: Sequence[Array]) -> Vector:
    """Return all elements as one float64 vector, array after array in row-major order."""
    return np.concatenate([np.zeros(0), *(np.ravel(array) for array in arrays)]).astype(np.float64, copy=False)


def unflatten(vector: Vector, like: Sequence[Array]) -> list[Array]:
    """Cut a vector into arrays of the shapes and types of ``like``; the inverse of :func:`flatten`.

    Raises
    ------
    ContractError
        If the vector has another number of elements than ``like``.
    """
    sizes = [prod(array.shape) for array in like]
    if vector.shape != (sum(sizes),):
        raise ContractError(f"expected a vector of {sum(sizes)} elements, found shape {vector.shape}")
    parts = np.split(np.asarray(vector, dtype=np.float64), np.cumsum(sizes)[:-1]) if sizes else []
    return [_as_type(part.reshape(array.shape).copy(), array.dtype) for part, array in zip(parts, like, strict=True)]


def _shares(weights: Sequence[float], replies: int) -> list[float]:
    """Scale the weights by one power of two so that their sum is below 1.

    Such a scaling is exact: counts stay as good as integers, and no product can exceed the largest value of a reply.
    """
    weights = [float(weight) for weight in weights]
    if len(weights) != replies:
        raise ContractError(f"expected one weight for each of {replies} replies, found {len(weights)}")
    total = float(sum(weights))
    if not np.isfinite(total) or any(weight < 0 for weight in weights):
        raise ContractError(f"weights must be non-negative and finite in sum, found {weights}")
    _, exponent = np.frexp(total)
    return [float(np.ldexp(weight, -exponent)) for weight in weights]


def _weighing(arrays: Sequence[Array], weights: Sequence[float]) -> tuple[list[tuple[Array, float]], float]:
    """Return the replies of positive weight with their shares, and the sum of the shares."""
    shares = _shares(weights, len(arrays))
    mass = float(sum(shares))
    if mass == 0:
        raise ContractError(f"a mean needs a reply of positive weight, found the weights {list(weights)}")
    return [(array, share) for array, share in zip(arrays, shares, strict=True) if share > 0], mass


def _require_alike(arrays: Sequence[Array]) -> None:
    if not arrays:
        raise ContractError("a mean needs at least one reply, found none")
    first = arrays[0]
    if first.dtype.kind not in "fiub" or first.dtype.itemsize > 8:
        raise ContractError(f"arrays of type {first.dtype} cannot be merged; expected floats, integers or booleans")
    for array in arrays:
        if array.shape != first.shape or array.dtype != first.dtype:
            raise ContractError(f"replies differ: {array.dtype} {array.shape} beside {first.dtype} {first.shape}")


def _require_matrix(updates_TP: Vector) -> Vector:
    updates_TP = np.asarray(updates_TP, dtype=np.float64)
    if updates_TP.ndim != 2:
        raise ContractError(f"expected one flat update a task, shape (tasks, parameters), found shape {updates_TP.shape}")
    return updates_TP


def _as_type(values: Vector, dtype: np.dtype[Any]) -> Array:
    """Cast float64 values, which may be overwritten, back to a type of blocks."""
    if dtype.kind == "b":
        return np.asarray(values > 0.5)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # The largest 64-bit integer is no float64; the next float above it would wrap around.
        largest = float(limits.max) if int(float(limits.max)) <= limits.max else float(np.nextafter(float(limits.max), 0))
        np.clip(np.rint(values, out=values), float(limits.min), largest, out=values)
    return values.astype(dtype)


def _rounds_in_float64(dtype: np.dtype[Any]) -> bool:
    """Say whether a sum in float64 has no spare digits for this type, so that a mean can leave the range of its terms."""
    return dtype.kind in "fiu" and dtype.itemsize == 8


def _widest_bounds(array: Array) -> tuple[Array, Array]:
    """Return arrays filled with the largest and the smallest value of a type, to take a running minimum and maximum from."""
    limits: Any = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
    return np.full_like(array, limits.max), np.full_like(array, limits.min)


def _clip(mean: Array, low: Array, high: Array) -> None:
    """Move what rounding pushed out back between the smallest and the largest reply."""
    np.minimum(np.maximum(mean, low, out=mean), high, out=mean)
