"""The clients of FedSocket's same-task protocol (FedSocket v1, A.4-A.6, Eq. 11 and 19): donors teach recipients through Q.

A donor observes more than Q reads. Once, before its first round, it cross-fits a teacher by groups, whose logits for a group
come from models that never saw the group; its local Q learns from labels and from that teacher where it is right. A recipient's
local Q learns from labels and from the recipient's own Private. Private of both learns from labels and the frozen global Q.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsocket_flwr.clients.branches import new_private, new_q
from fedsocket_flwr.clients.checkpoints import Checkpoints
from fedsocket_flwr.clients.participant import Participant, State
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.errors import ContractError, DataError
from fedsocket_flwr.learning.crossfit import cross_fit, group_folds
from fedsocket_flwr.learning.measuring import Measure, PooledMeasure
from fedsocket_flwr.learning.objectives import ClassificationObjective, CrossFittedObjective
from fedsocket_flwr.learning.optimisers import build_optimiser
from fedsocket_flwr.learning.teaching import Schedule, Stage, Teacher, train_private, train_q

Array = NDArray[Any]

TEACHER = "teacher"
"""Name of the out-of-fold logits in the store; they never leave the client."""


class SameTaskClient(Participant):
    """A donor or a recipient; see :class:`fedsocket_flwr.clients.participant.Participant` for the rest."""

    kept_blocks = frozenset({TEACHER})

    @property
    def donor(self) -> bool:
        """Whether the client observes more than Q reads."""
        return self.config.role(self.data.client) == "donor"

    @property
    def gates_class_rows(self) -> bool:
        """Whether the rows of classes that the client lacks stay as they came."""
        return self.config.merging.gate_class_rows

    def require_models(self) -> None:
        """Also refuse a donor whose groups are too few to be cross-fitted."""
        super().require_models()
        train = self.data.train
        if self.donor and self.config.training.teaching.cross_fit and train.groups is not None and train.labels is not None:
            group_folds(train.groups, train.labels)

    def learn(self, state: State, server_round: int) -> dict[str, float]:
        """Warm up and cross-fit once; then Q teaches Private, and Q learns; return the losses of both."""
        if state.q is None or state.q_optimiser is None:
            raise ContractError("the same-task protocol needs a shared predictor")
        if self.training.examples == 0:
            return {}
        epochs, teaching = self.settings.epochs, self.config.training.teaching
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("private", server_round))
            if state.version == 0:
                warm_up = self.schedule("warm-up", server_round, self.config.training.warm_up_epochs)
                train_private(self.training, state.private, state.optimiser, warm_up)
            global_q = self.training.q_table(state.q)
            private_loss = train_private(
                self.training,
                state.private,
                state.optimiser,
                self.schedule("Private", server_round, epochs),
                Teacher(global_q, teaching.distil_private),
            )
            torch.manual_seed(self.seed("q", server_round))
            schedule = self.schedule("Q", server_round, epochs)
            if self.donor:
                teacher = self._out_of_fold(state) if teaching.cross_fit else None
                q_loss = train_q(self._cross_fitted, state.q, state.q_optimiser, schedule, teacher)
            else:
                own = self.training.private_table(state.private) if teaching.recipient_teacher == "private" else global_q
                q_loss = train_q(self._plain, state.q, state.q_optimiser, schedule, Teacher(own, teaching.distil_q))
        return {"loss.private": private_loss, "loss.q": q_loss}

    # --- the donor's teacher ----------------------------------------------------------------------------------------------------

    def _out_of_fold(self, state: State) -> Teacher:
        """Return the donor's cross-fitted teacher: made before the first round, kept in the store."""
        if state.version == 0:
            logits_NC = self._cross_fit()
            self.store.save_blocks(TEACHER, {"logits": logits_NC.cpu().numpy()})
        else:
            logits_NC = torch.tensor(np.asarray(self.store.load_blocks(TEACHER)["logits"]), device=self.device)
        return Teacher((logits_NC,), self.config.training.teaching.cross_fit)

    def _cross_fit(self) -> Tensor:
        train = self.data.train
        if train.groups is None:
            raise DataError(
                f"client {self.data.client!r}: cross-fitting needs `partition.group`, the column that names a row's group"
            )
        try:
            return cross_fit(train.groups, np.asarray(train.labels), self._fit).to(self.device)
        except DataError as error:
            raise DataError(f"client {self.data.client!r}: {error}") from error

    def _fit(self, fold: int, rows: Tensor) -> "FittedTeacher":
        """Fit Q_prior, a fresh Q, and r, the donor's own architecture, on these rows alone; labels are all that teaches them."""
        outside = rows_of(self.teacher_split, rows.numpy())
        prior = new_q(self.config, self.facts, self.device, self.seed(f"prior of fold {fold}", 0))
        optimiser = build_optimiser(self.config.training.q, prior.parameters())
        train_q(self.plain_objective(outside), prior, optimiser, self._teacher_schedule("Q", fold), None)
        residual = new_private(self.config, self.facts, self.device, self.seed(f"residual of fold {fold}", 0))
        optimiser = build_optimiser(self.settings, residual.parameters())
        train_private(self.objective(outside), residual, optimiser, self._teacher_schedule("Private", fold))
        whole = self.plain_objective(self.teacher_split)
        return FittedTeacher(whole.q_table(prior)[0], whole.private_table(residual)[0])

    def _teacher_schedule(self, stage: Stage, fold: int) -> Schedule:
        generator = torch.Generator().manual_seed(self.seed(f"teacher of fold {fold}, {stage}", 0))
        return Schedule(stage, self.config.training.warm_up_epochs, self.settings.batch_size, generator)

    @cached_property
    def teacher_split(self) -> Split:
        """What the donor's teacher sees: everything, or only the modalities that Q reads."""
        train = self.data.train
        if self.config.training.teaching.donor_teacher == "full":
            return train
        shared = self.config.tasks[self.data.task].q_modalities
        return replace(train, inputs={m: v if m in shared else np.zeros(v.shape, v.dtype) for m, v in train.inputs.items()})

    def plain_objective(self, split: Split) -> ClassificationObjective:
        """Return the task's losses with plain cross-entropy, as Q learns here."""
        return ClassificationObjective(self.data.task, split, self.device, 0.0, self.config.training.teaching.temperature)

    @cached_property
    def _plain(self) -> ClassificationObjective:
        return self.plain_objective(self.data.train)

    @cached_property
    def _cross_fitted(self) -> CrossFittedObjective:
        temperature = self.config.training.teaching.temperature
        return CrossFittedObjective(self.data.task, self.data.train, self.device, 0.0, temperature)

    # --- Joint, with one beta for the run ---------------------------------------------------------------------------------------

    def measure_of(self, split: Split) -> Measure:
        """Return accuracy, macro F1 and UAR, with confusion matrices for the server to pool."""
        return PooledMeasure(split, self.facts.class_counts, self.config.evaluation, self.donor)

    def settle(self, checkpoints: Checkpoints, moment: str, settings: Mapping[str, Any]) -> Checkpoints:
        """Take the run's beta for Joint, with the round that was best for it."""
        kept = {endpoint: found for endpoint, found in checkpoints.kept.items() if "@" not in endpoint}
        candidate = f"joint@{settings.get(f'{moment}.beta')}"
        if candidate in checkpoints.kept:
            kept["joint"] = checkpoints.kept[candidate]
        return Checkpoints(kept)


@dataclass(frozen=True)
class FittedTeacher:
    """Logits of Q_prior and of r for all rows of the donor (N, C), fitted on the rows outside one fold."""

    prior: Tensor
    residual: Tensor

    def prior_logits(self, rows: Tensor) -> Tensor:
        """Return Q_prior(v) of any rows."""
        return self.prior[rows]

    def residual_logits(self, rows: Tensor) -> Tensor:
        """Return r(v, a) of any rows."""
        return self.residual[rows]


def rows_of(split: Split, rows: Array) -> Split:
    """Return some rows of a classification split."""
    return Split(
        inputs={modality: values[rows] for modality, values in split.inputs.items()},
        features={modality: values[rows] for modality, values in split.features.items()},
        labels=np.asarray(split.labels)[rows],
    )
