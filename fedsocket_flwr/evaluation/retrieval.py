"""Recall at 1, 5 and 10 in both directions of image-text retrieval.

Ranks are pessimistic: a negative that scores as high as the best positive stands before it, so a collapsed retriever, which gives
every pair one score, is at or below chance.

Legend: ``I`` images, ``T`` texts; ``Q`` queries and ``C`` candidates of one direction.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import MeasurementError

Array = NDArray[Any]

CUTOFFS = (1, 5, 10)


def retrieval_metrics(scores_IT: Array, image_ids: Array, text_ids: Array, fold_size: int) -> dict[str, float]:
    """Return ``i2t_r1`` to ``t2i_r10`` and their mean ``mean_r``, fractions in [0, 1].

    Images are taken in their order in folds of ``fold_size`` images together with all their texts; every number is the mean over
    the folds. A remainder smaller than a fold is left out, unless it is the only fold. Texts that belong to none of a fold's
    images are no candidates in it.

    Parameters
    ----------
    scores_IT
        Score of every image with every text, (I, T); higher means closer.
    image_ids, text_ids
        What each image shows and each text describes; equal ids are positives.
    fold_size
        Images in a fold, at least 1.

    Returns
    -------
    dict[str, float]
        The seven metrics; empty where there are no images.

    Raises
    ------
    MeasurementError
        If a score is not finite, the shapes do not fit, or an image has no text.
    """
    scores_IT, image_ids, text_ids = np.asarray(scores_IT), np.asarray(image_ids), np.asarray(text_ids)
    _check(scores_IT, image_ids, text_ids)
    if len(image_ids) == 0:
        return {}
    folds = max(len(image_ids) // fold_size, 1)
    rows = [_fold_recalls(scores_IT, image_ids, text_ids, slice(k * fold_size, (k + 1) * fold_size)) for k in range(folds)]
    recalls = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return recalls | {"mean_r": float(np.mean(list(recalls.values())))}


def best_ranks(scores_QC: Array, positives_QC: Array) -> Array:
    """Return for every query the number of negatives that score at least as high as its best positive: 0 is the best rank.

    Parameters
    ----------
    scores_QC
        Scores, (Q, C).
    positives_QC
        Boolean mask of the same shape; every query needs a positive.

    Returns
    -------
    Array
        ``int64`` of shape (Q,). The query counts as found among the first k where its rank is below k.
    """
    best_Q = np.where(positives_QC, scores_QC, -np.inf).max(axis=1)
    ahead_QC = (scores_QC >= best_Q[:, np.newaxis]) & ~positives_QC
    ranks: Array = np.count_nonzero(ahead_QC, axis=1)
    return ranks


def _fold_recalls(scores_IT: Array, image_ids: Array, text_ids: Array, fold: slice) -> dict[str, float]:
    ids = image_ids[fold]
    texts = np.flatnonzero(np.isin(text_ids, ids))
    scores = scores_IT[fold, texts]
    positives = ids[:, np.newaxis] == text_ids[texts]
    recalls: dict[str, float] = {}
    for direction, ranks in (("i2t", best_ranks(scores, positives)), ("t2i", best_ranks(scores.T, positives.T))):
        recalls |= {f"{direction}_r{k}": float(np.mean(ranks < k)) for k in CUTOFFS}
    return recalls


def _check(scores_IT: Array, image_ids: Array, text_ids: Array) -> None:
    if scores_IT.shape != (len(image_ids), len(text_ids)):
        raise MeasurementError(
            f"scores have shape {scores_IT.shape}, expected {(len(image_ids), len(text_ids))}: images by texts"
        )
    bad = np.argwhere(~np.isfinite(scores_IT))
    if len(bad):
        image, text = bad[0]
        raise MeasurementError(
            f"{len(bad)} of {scores_IT.size} scores are not finite, first {scores_IT[image, text]} at image {image}, text {text}"
        )
    lonely = np.flatnonzero(~np.isin(image_ids, text_ids))
    if len(lonely):
        raise MeasurementError(f"{len(lonely)} images have no text, first image {lonely[0]} with id {image_ids[lonely[0]]}")
