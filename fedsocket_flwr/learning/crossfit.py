"""Same-task cross-fitting: out-of-fold teacher logits, and how local Q learns from them (FedSocket v1, Eq. 11 and 19).

A donor's rows come in groups (a dialogue, a video, a person) that are divided into folds, by group and never by sample. What
teaches a fold's rows is fitted on the other folds alone: the prior, the residual, and the mean by which the residual is centred.

Legend: ``N`` rows of a donor, ``R`` rows asked for, ``B`` batch, ``C`` classes.
"""

from collections.abc import Callable, Sequence
from math import fsum
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsocket_flwr.errors import DataError
from fedsocket_flwr.learning.losses import at_least_float32

Array = NDArray[Any]

FOLDS = 2
# Eq. 11: how much the residual may add to a logit, and the deviation from the mean at which it begins to saturate.
CORRECTION_BOUND = 1.5
CORRECTION_SCALE = 3.0


class Fitted(Protocol):
    """A prior and a residual that were fitted together on some rows of a donor."""

    def prior_logits(self, rows: Tensor) -> Tensor:
        """Return Q_prior(v), (R, C), for any rows of the donor."""
        ...

    def residual_logits(self, rows: Tensor) -> Tensor:
        """Return r(v, a), (R, C), for any rows of the donor."""
        ...


Fit = Callable[[int, Tensor], Fitted]
"""Fits prior and residual: number of the fold that is held out (for seeds), and the rows of the others (``int64``, ascending)."""


def group_folds(groups_N: Sequence[str] | Array, labels_N: Sequence[int] | Array, folds: int = FOLDS) -> NDArray[np.int64]:
    """Return the fold of each row: whole groups, dealt so that folds are about even in rows and in classes.

    The largest group goes first (equal ones in the order of their names), each to the fold with which it has least in common:
    the sum, over all rows and over each class, of the share that the fold already has times the share that the group brings. Ties
    go to the fold with fewer rows, then to the first. No chance is involved, and the order of the rows plays no part. Every fold
    has a group.

    Parameters
    ----------
    groups_N
        Group of each row, (N,).
    labels_N
        Class of each row, integers from 0, (N,). They decide how groups are spread, nothing that is fitted.
    folds
        Number of folds, at least 2.

    Returns
    -------
    NDArray
        Folds from 0, ``int64``, (N,).

    Raises
    ------
    DataError
        If there are fewer groups than folds.
    """
    names, group_of_N = np.unique(np.asarray(groups_N), return_inverse=True)
    if len(names) < folds:
        found = ", ".join(repr(str(name)) for name in names) or "none"
        raise DataError(f"cross-fitting needs at least {folds} groups of training rows, found {len(names)}: {found}")
    labels_N = np.asarray(labels_N)
    # A first column that all rows have in common makes their number one more thing to be even in.
    counts_GK = np.zeros((len(names), int(labels_N.max()) + 2))
    counts_GK[:, 0] = np.bincount(group_of_N)
    np.add.at(counts_GK, (group_of_N, labels_N + 1), 1)
    totals_K = counts_GK.sum(axis=0)
    shares_GK = counts_GK[:, totals_K > 0] / totals_K[totals_K > 0]
    dealt_FK = np.zeros((folds, shares_GK.shape[1]))
    fold_of_G = np.zeros(len(names), dtype=np.int64)
    for group in np.argsort(-counts_GK[:, 0], kind="stable"):
        # fsum: a tie must be one on every machine, whatever the order in which it adds.
        common = [fsum(dealt_FK[fold] * shares_GK[group]) for fold in range(folds)]
        fold = min(range(folds), key=lambda fold: (common[fold], dealt_FK[fold, 0], fold))
        dealt_FK[fold] += shares_GK[group]
        fold_of_G[group] = fold
    return fold_of_G[group_of_N]


def out_of_fold_logits(prior_RC: Tensor, residual_RC: Tensor, centre_C: Tensor) -> Tensor:
    """Return the teacher ``Q_prior + 1.5 * tanh((r - centre) / 3)``, a prior with a bounded private correction (Eq. 11).

    Parameters
    ----------
    prior_RC, residual_RC
        Logits of the prior and of the residual, (R, C).
    centre_C
        Mean of the residual's logits over the rows that it was fitted on, one for each class.
    """
    return prior_RC + CORRECTION_BOUND * torch.tanh((residual_RC - centre_C) / CORRECTION_SCALE)


def cross_fit(groups_N: Sequence[str] | Array, labels_N: Sequence[int] | Array, fit: Fit, folds: int = FOLDS) -> Tensor:
    """Return out-of-fold teacher logits for all rows of a donor (Eq. 11).

    For each fold, prior and residual are fitted on the rows outside it, the residual is centred by its mean logits over those
    same rows, and the two predict the fold. Nothing that is fitted for a group has seen the group.

    Parameters
    ----------
    groups_N, labels_N, folds
        As in :func:`group_folds`.
    fit
        Fits prior and residual; called once a fold, in their order. It must look at no rows but those that it is given.

    Returns
    -------
    Tensor
        Teacher logits without gradient, (N, C).

    Raises
    ------
    DataError
        If there are fewer groups than folds.
    """
    fold_N = torch.from_numpy(group_folds(groups_N, labels_N, folds))
    rows, logits = [], []
    for fold in range(folds):
        held, others = (fold_N == fold).nonzero().flatten(), (fold_N != fold).nonzero().flatten()
        fitted = fit(fold, others)
        with torch.no_grad():
            centre_C = fitted.residual_logits(others).mean(dim=0)
            logits.append(out_of_fold_logits(fitted.prior_logits(held), fitted.residual_logits(held), centre_C))
        rows.append(held)
    return torch.cat(logits)[torch.cat(rows).argsort().to(logits[0].device)]


def cross_fitted_distillation(student_BC: Tensor, teacher_BC: Tensor, labels_B: Tensor, temperature: float) -> Tensor:
    """Return the teacher's term of Eq. 19, ``mean_i [argmax t_i = y_i] T^2 KL(softmax(t_i / T) || softmax(s_i / T))``.

    The mean runs over the whole batch: a row whose teacher is wrong counts as 0, and a teacher that is rarely right teaches
    little.

    Parameters
    ----------
    student_BC, teacher_BC
        Logits, (B, C), B at least 1; the teacher gets no gradient.
    labels_B
        Class of each row, ``int64``.
    temperature
        T, above 0.
    """
    student_BC, teacher_BC = at_least_float32(student_BC), at_least_float32(teacher_BC.detach())
    right_B = teacher_BC.argmax(dim=1) == labels_B
    student_log_BC = functional.log_softmax(student_BC / temperature, dim=1)
    teacher_log_BC = functional.log_softmax(teacher_BC / temperature, dim=1)
    divergence_B = functional.kl_div(student_log_BC, teacher_log_BC, reduction="none", log_target=True).sum(dim=1)
    return temperature**2 * (right_B * divergence_B).mean()
