"""The Joint endpoint and its choice on DEV: a mixture of probabilities, class-wise or by one scalar, or of retrieval scores.

Choices are made on DEV and frozen before TEST (FedSocket v1, A.8).

Legend: ``B`` rows, ``C`` classes; in retrieval ``I`` images and ``T`` texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import MeasurementError
from fedsocket_flwr.evaluation.metrics import accuracy, classification_metrics, macro_f1, metrics_from_confusion
from fedsocket_flwr.evaluation.retrieval import retrieval_metrics

Array = NDArray[Any]


@dataclass(frozen=True)
class RhoChoice:
    """The strength of Q chosen on DEV, and what Joint reaches there with it."""

    rho: float
    accuracy: float
    macro_f1: float


@dataclass(frozen=True)
class MixtureChoice:
    """The weight of Q's scores in each direction of retrieval."""

    i2t: float
    t2i: float


def class_weights(counts_C: Array | Sequence[int], rho: float) -> Array:
    """Return Q's weight for each class, from the client's training histogram (Eq. 21).

    ``w_c = kappa / (n_c + kappa)`` with ``kappa = rho * median(positive n)``: the rarer a class at the client, the more Q
    decides. The median of an even number of counts is the mean of the two middle ones. A class that the client lacks has
    weight 1, at rho = 0 too; a client without any training row leaves everything to Q.

    Parameters
    ----------
    counts_C
        Training rows of each class, (C,).
    rho
        Strength of Q, at least 0.

    Returns
    -------
    Array
        ``float64`` weights in [0, 1], (C,).
    """
    counts_C = np.asarray(counts_C, dtype=np.float64)
    held_C = counts_C > 0
    weights_C = np.ones_like(counts_C)
    if held_C.any():
        kappa = rho * np.median(counts_C[held_C])
        weights_C[held_C] = kappa / (counts_C[held_C] + kappa)
    return weights_C


def joint_probabilities(private_BC: Array, q_BC: Array, weights_C: Array) -> Array:
    """Return Joint's scores ``(1 - w) * private + w * q`` (Eq. 21).

    The weights differ between classes, so a row need not sum to 1: divide by its sum where probabilities are wanted.

    Parameters
    ----------
    private_BC, q_BC
        Probabilities of the two branches, (B, C).
    weights_C
        Q's weight for each class, (C,).
    """
    scores_BC: Array = (1 - weights_C) * private_BC + weights_C * q_BC
    return scores_BC


def choose_rho(private_BC: Array, q_BC: Array, labels: Array, counts: Array | Sequence[int], rhos: Sequence[float]) -> RhoChoice:
    """Choose rho by DEV accuracy, then by macro F1, then the smaller one.

    Parameters
    ----------
    private_BC, q_BC
        Probabilities of the two branches on DEV, (B, C).
    labels
        Class of each DEV row, (B,).
    counts
        Training rows of each class, (C,).
    rhos
        Candidates, at least one.

    Raises
    ------
    MeasurementError
        If DEV is empty, a probability is not finite, or the shapes do not fit.
    """
    labels = np.asarray(labels)
    for branch in (private_BC, q_BC):
        if not classification_metrics(branch, labels, len(counts)):
            raise MeasurementError("rho cannot be chosen on an empty DEV set; expected at least one row")
    predictions = {rho: joint_probabilities(private_BC, q_BC, class_weights(counts, rho)).argmax(axis=1) for rho in sorted(rhos)}
    accuracies = {rho: accuracy(predicted, labels) for rho, predicted in predictions.items()}
    best = max(accuracies.values())
    # `max` keeps the first of equals, which is the smaller rho.
    scores = {rho: macro_f1(predictions[rho], labels) for rho, value in accuracies.items() if value == best}
    rho = max(scores, key=scores.__getitem__)
    return RhoChoice(rho=rho, accuracy=best, macro_f1=scores[rho])


def mix_probabilities(private_BC: Array, q_BC: Array, beta: float) -> Array:
    """Return Joint's probabilities ``(1 - beta) * private + beta * q`` of the same-task protocol, whose rows sum to 1.

    Parameters
    ----------
    private_BC, q_BC
        Probabilities of the two branches, (B, C).
    beta
        Q's weight in [0, 1], one for the whole run.
    """
    return mix_scores(private_BC, q_BC, beta)


def choose_beta(confusion_by_beta: Mapping[float, Array]) -> float:
    """Choose beta by accuracy, then by macro F1, then the smaller one.

    Parameters
    ----------
    confusion_by_beta
        Candidate -> counts (C, C) as :func:`fedsocket_flwr.evaluation.metrics.confusion` gives them, summed over the recipients'
        DEV; all candidates were measured on the same rows. At least one.

    Raises
    ------
    MeasurementError
        If no row was counted, the candidates were measured on different rows, or the counts are no confusion matrix.
    """
    betas = sorted(confusion_by_beta)
    metrics = {beta: metrics_from_confusion(confusion_by_beta[beta]) for beta in betas}
    if not all(metrics.values()):
        raise MeasurementError("beta cannot be chosen on an empty DEV set; expected at least one row at every candidate")
    labels_C = {beta: np.sum(confusion_by_beta[beta], axis=1).tolist() for beta in betas}
    for beta in betas:
        if labels_C[beta] != labels_C[betas[0]]:
            raise MeasurementError(
                f"the DEV rows of each class are {labels_C[betas[0]]} at beta {betas[0]} and {labels_C[beta]} at beta {beta}; "
                "expected the same rows at every candidate"
            )
    # Equal F1s must tie whatever the last bit of their sums; `max` keeps the first of equals, the smaller beta.
    return max(betas, key=lambda beta: (metrics[beta]["accuracy"], round(metrics[beta]["macro_f1"], 12)))


def mix_scores(private: Array, q: Array, weight: float) -> Array:
    """Return ``(1 - weight) * private + weight * q``: Joint's score matrix for one direction of retrieval."""
    return (1 - weight) * private + weight * q


def choose_mixtures(
    private_IT: Array, q_IT: Array, image_ids: Array, text_ids: Array, mixtures: Sequence[float], fold_size: int
) -> MixtureChoice:
    """Choose Q's weight for each direction by DEV R@1, then by R@5 + R@10, then the smaller one.

    Parameters
    ----------
    private_IT, q_IT
        Score matrices of the two branches on DEV, equally scaled, (I, T).
    image_ids, text_ids, fold_size
        As in :func:`fedsocket_flwr.evaluation.retrieval.retrieval_metrics`.
    mixtures
        Candidate weights, at least one.

    Raises
    ------
    MeasurementError
        If DEV is empty, a score is not finite, or the shapes do not fit.
    """
    weights = sorted(mixtures)
    rows = [retrieval_metrics(mix_scores(private_IT, q_IT, w), image_ids, text_ids, fold_size) for w in weights]
    if not rows[0]:
        raise MeasurementError("mixtures cannot be chosen on an empty DEV set; expected at least one image")
    chosen = {}
    for direction in ("i2t", "t2i"):
        # Equal recalls must tie whatever the last bit of their sums; `max` keeps the first of equals, the smaller weight.
        keys = [(round(row[f"{direction}_r1"], 12), round(row[f"{direction}_r5"] + row[f"{direction}_r10"], 12)) for row in rows]
        chosen[direction] = weights[max(range(len(weights)), key=keys.__getitem__)]
    return MixtureChoice(**chosen)
