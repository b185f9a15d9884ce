"""Stages I to III of a client's round (FedSocket v1, A.4-A.6): warm-up, Q teaches Private, Private teaches Q."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedsocket_flwr.errors import DivergenceError
from fedsocket_flwr.learning.objectives import Objective, Table, batches
from fedsocket_flwr.models.predictor import SharedPredictor

Stage = Literal["warm-up", "Private", "Q"]


@dataclass(frozen=True)
class Schedule:
    """How long a stage lasts and how its rows are drawn."""

    stage: Stage
    epochs: int
    batch_size: int
    generator: torch.Generator


@dataclass(frozen=True)
class Teacher:
    """A frozen teacher's outputs for all training rows, and how much it counts."""

    table: Table
    distillation: float
    fusion: float = 0.0


def train_private(
    objective: Objective,
    private: nn.Module,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    teacher: Teacher | None = None,
    fusion_gate: Tensor | None = None,
) -> float:
    """Train Private on labels and, in Stage II, from frozen global Q and through the fused branch (Eq. 15-16).

    Without a teacher this is Stage I, and all that Local does. Batches are drawn from the schedule's own generator, so a teacher
    of weight zero leaves the very bits of no teacher.

    Parameters
    ----------
    objective
        The client's training split.
    private, optimiser
        The model and what updates it; the optimiser also holds ``fusion_gate``.
    schedule
        Epochs, batch size, generator.
    teacher
        Outputs of the frozen global Q.
    fusion_gate
        The logit of the client's learned fusion gate; needed when the teacher's fusion weight is above zero.

    Returns
    -------
    float
        Mean loss over the last epoch.

    Raises
    ------
    DivergenceError
        The loss, or a weight after the last step, became infinite or NaN.
    """

    def loss_of(rows: Tensor) -> Tensor:
        targets = objective.targets(rows)
        p = objective.private_outputs(private, rows)
        loss = objective.label_loss(p, targets)
        if teacher is not None and (teacher.distillation or teacher.fusion):
            q = objective.from_table(teacher.table, rows)
            if teacher.distillation:
                loss = loss + teacher.distillation * objective.distillation(p, q, targets)
            if teacher.fusion:
                assert fusion_gate is not None
                loss = loss + teacher.fusion * objective.label_loss(objective.fuse(p, q, fusion_gate), targets)
        return loss

    _training_mode(private, single_rows=min(objective.examples, schedule.batch_size) == 1)
    return _train(objective, private, optimiser, schedule, loss_of)


def train_q(
    objective: Objective,
    q: SharedPredictor,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    teacher: Teacher | None,
) -> float:
    """Train a local copy of Q on labels and from Private, Stage III (Eq. 17-18); without a teacher it is Label Q.

    Parameters, return value and errors are those of :func:`train_private`.
    """

    def loss_of(rows: Tensor) -> Tensor:
        targets = objective.targets(rows)
        outputs = objective.q_outputs(q, rows)
        loss = objective.label_loss(outputs, targets)
        if teacher is not None and teacher.distillation:
            p = objective.from_table(teacher.table, rows)
            loss = loss + teacher.distillation * objective.distillation(outputs, p, targets)
        return loss

    q.train()
    return _train(objective, q, optimiser, schedule, loss_of)


def _train(
    objective: Objective,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    loss_of: Callable[[Tensor], Tensor],
) -> float:
    device = next(model.parameters()).device
    mean = 0.0
    for epoch in range(schedule.epochs):
        total = torch.zeros((), device=device)
        for rows in batches(objective.examples, schedule.batch_size, schedule.generator, device):
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += len(rows) * loss.detach()
        # One look an epoch: a loss that once was NaN stays in the sum.
        mean = float(total) / objective.examples
        if not math.isfinite(mean):
            raise DivergenceError(f"the loss of {schedule.stage} became {mean} in epoch {epoch + 1} of {schedule.epochs}")
    # The last step may break weights that no loss has seen yet; kept, they would break every round that follows.
    broken = [name for name, values in model.state_dict().items() if not bool(torch.isfinite(values).all())]
    if broken:
        raise DivergenceError(f"{schedule.stage} ended with weights that are not finite, the first is {broken[0]!r}")
    return mean


def _training_mode(model: nn.Module, single_rows: bool) -> None:
    """Switch to training; a single row is normalised by the running statistics, since it has no variance of its own."""
    model.train()
    if single_rows:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
