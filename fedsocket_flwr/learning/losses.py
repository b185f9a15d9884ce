"""The losses of Stages II and III (FedSocket v1, Eq. 12-18) as pure functions of logits and of score matrices.

Everything is written in log space and computed in float32 at least: under autocast a small probability would become 0, its
logarithm infinite, and the gradient NaN behind a finite loss. Products that autocast would send to half precision (matrix
products) are written as elementwise products for the same reason.

Legend: ``B`` batch, ``C`` classes; in retrieval ``R`` rows and ``C`` columns of a score matrix. Every loss is a scalar tensor.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

# Keeps a batch without one reliable row at loss 0 (Eq. 14).
EPSILON = 1e-8
# Below this, `1 - H / log C` is rounding: a uniform teacher must weigh exactly nothing, or Eq. 14 would normalise the noise to 1.
ROUNDING = 1e-6
# Weight of a confident but wrong teacher, and what being right adds (Eq. 13).
WRONG_WEIGHT = 0.25
RIGHT_WEIGHT = 0.75


def smoothed_cross_entropy(logits_BC: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
    """Return the label-smoothed cross-entropy CE_ls, a mean over the batch (first term of Eq. 15 and 17).

    The target of a row puts ``1 - smoothing`` on its label and spreads ``smoothing`` evenly over all C classes.

    Parameters
    ----------
    logits_BC
        Logits, (B, C), B at least 1.
    labels_B
        Class of each row, ``int64``.
    smoothing
        Share that is spread, in [0, 1).
    """
    return functional.cross_entropy(at_least_float32(logits_BC), labels_B, label_smoothing=smoothing)


def reliability_weights(teacher_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return how far each row of a teacher is to be trusted, in [0, 1] (Eq. 12-13).

    ``w = (1 - H(softmax(t)) / log C) * (0.25 + 0.75 * [argmax t = y])``, entropy and correctness at temperature 1. A teacher that
    is uniform up to rounding weighs 0; so does any teacher over a single class, which has nothing to say.

    Parameters
    ----------
    teacher_BC
        Teacher logits, (B, C); no gradient flows through them.
    labels_B
        Class of each row, ``int64``.

    Returns
    -------
    Tensor
        Weights of shape (B,).
    """
    teacher_BC = at_least_float32(teacher_BC.detach())
    classes = teacher_BC.shape[1]
    if classes == 1:
        return teacher_BC.new_zeros(teacher_BC.shape[0])
    entropy_B = torch.special.entr(teacher_BC.softmax(dim=1)).sum(dim=1)
    confidence_B = functional.threshold(1 - entropy_B / math.log(classes), ROUNDING, 0.0)
    right_B = teacher_BC.argmax(dim=1) == labels_B
    return confidence_B * (WRONG_WEIGHT + RIGHT_WEIGHT * right_B)


def reliable_distillation(student_BC: Tensor, teacher_BC: Tensor, labels_B: Tensor, temperature: float) -> Tensor:
    """Return the reliability-weighted distillation loss L_RKD(student, sg(teacher); y) (Eq. 14).

    ``sum_i w_i T^2 KL(softmax(t_i / T) || softmax(s_i / T)) / (sum_i w_i + epsilon)`` with the weights of
    :func:`reliability_weights`. A batch of which no row is reliable has loss 0 and gradient 0.

    Parameters
    ----------
    student_BC, teacher_BC
        Logits, (B, C); the teacher gets no gradient.
    labels_B
        Class of each row, ``int64``; they decide the weights only.
    temperature
        T, above 0.
    """
    weights_B = reliability_weights(teacher_BC, labels_B)
    student_log_BC = functional.log_softmax(at_least_float32(student_BC) / temperature, dim=1)
    teacher_log_BC = functional.log_softmax(at_least_float32(teacher_BC.detach()) / temperature, dim=1)
    divergence_B = functional.kl_div(student_log_BC, teacher_log_BC, reduction="none", log_target=True).sum(dim=1)
    return temperature**2 * (weights_B * divergence_B).sum() / (weights_B.sum() + EPSILON)


def fused_logits(private: Tensor, q: Tensor, gate_logit: Tensor) -> Tensor:
    """Return ``(1 - g) * private + g * q`` with ``g = sigmoid(gate_logit)``: the fused branch of Eq. 15.

    Gradients flow into all three; the frozen global Q is frozen by the caller.

    Parameters
    ----------
    private, q
        Logits of the two branches, of one shape.
    gate_logit
        The learned scalar ``a`` of the client.
    """
    return torch.lerp(at_least_float32(private), at_least_float32(q), at_least_float32(gate_logit).sigmoid())


def positives(items_row: Tensor, items_column: Tensor) -> Tensor:
    """Return the mask (R, C) of the pairs that show the same item; ``items_*`` number the item of each row and column."""
    return items_row.unsqueeze(1) == items_column.unsqueeze(0)


def multi_positive_nce(scores_RC: Tensor, positives_RC: Tensor) -> Tensor:
    """Return the multi-positive InfoNCE loss L_MPNCE of both directions (Eq. 16 and 18).

    A row's loss is ``-log sum_{c positive} softmax(scores_r)_c``; a column's likewise over the rows. The loss is the mean over
    the rows and the mean over the columns, averaged.

    Parameters
    ----------
    scores_RC
        Scaled similarities, (R, C), with R = C where rows and columns are the two sides of a batch of pairs.
    positives_RC
        Boolean mask; every row and every column needs a positive, or the loss is infinite.
    """
    scores_RC = at_least_float32(scores_RC)
    positive_RC = scores_RC.masked_fill(~positives_RC, -math.inf)
    rows = (scores_RC.logsumexp(dim=1) - positive_RC.logsumexp(dim=1)).mean()
    columns = (scores_RC.logsumexp(dim=0) - positive_RC.logsumexp(dim=0)).mean()
    return (rows + columns) / 2


def symmetric_divergence(student_scores: Tensor, teacher_scores: Tensor) -> Tensor:
    """Return L_symKL(student, sg(teacher)), the divergence of two score matrices in both directions (Eq. 16 and 18).

    Rows (and columns) of scores are read as distributions by a softmax without temperature. The loss of one row is
    ``(KL(t || s) + KL(s || t)) / 2 = sum_c (t_c - s_c)(log t_c - log s_c) / 2``; the mean over the rows and the mean over the
    columns are averaged.

    Parameters
    ----------
    student_scores, teacher_scores
        Score matrices of one shape (R, C); the teacher gets no gradient.
    """
    student_RC, teacher_RC = at_least_float32(student_scores), at_least_float32(teacher_scores.detach())
    return (_jeffreys_mean(student_RC, teacher_RC, dim=1) + _jeffreys_mean(student_RC, teacher_RC, dim=0)) / 2


def _jeffreys_mean(student_RC: Tensor, teacher_RC: Tensor, dim: int) -> Tensor:
    student_log_RC, teacher_log_RC = student_RC.log_softmax(dim), teacher_RC.log_softmax(dim)
    gap_RC = (teacher_log_RC.exp() - student_log_RC.exp()) * (teacher_log_RC - student_log_RC)
    return gap_RC.sum() / (2 * student_RC.shape[1 - dim])


def at_least_float32(values: Tensor) -> Tensor:
    """Return values of half precision in float32, and others as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
