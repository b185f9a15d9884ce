"""What every learning client does around its algorithm: state, DEV, checkpoints, closing, TEST.

A round starts from the private state of the version that the server last saw and ends in a new version, so repeating it gives the
same bits. Every draw is seeded by (run seed, client, round, purpose).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsocket_flwr.clients.branches import (
    BranchFacts,
    load_branches,
    load_module_arrays,
    module_arrays,
    module_views,
    named,
    new_private,
    new_q,
    q_name,
    under,
)
from fedsocket_flwr.clients.checkpoints import Checkpoints, Kept
from fedsocket_flwr.config import Configuration, modality_key
from fedsocket_flwr.datasets.corpus import ClientData, Split
from fedsocket_flwr.errors import DivergenceError, StoreError
from fedsocket_flwr.exchange.contract import Blocks, Broadcast, Membership, Update
from fedsocket_flwr.learning.measuring import Choice, Measure, Measurement, build_measure, measure
from fedsocket_flwr.learning.objectives import Objective, Table, build_objective
from fedsocket_flwr.learning.optimisers import build_optimiser, load_optimiser_arrays, optimiser_arrays
from fedsocket_flwr.learning.teaching import Schedule, Stage
from fedsocket_flwr.metric_names import ROLLED_BACK
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, initial_predictor
from fedsocket_flwr.runtime.store import ClientStore, Snapshot
from fedsocket_flwr.seeds import derive_seed

Array = NDArray[Any]


@dataclass
class State:
    """A client between rounds. ``version`` 0 has never trained; ``q`` is the Q that arrived, or its own.

    ``former`` are the checkpoints of that version, ``checkpoints`` those with the round that was measured since.
    """

    version: int
    private: nn.Module
    fusion_gate: nn.Parameter
    optimiser: torch.optim.Optimizer
    q: SharedPredictor | None
    q_optimiser: torch.optim.Optimizer | None
    checkpoints: Checkpoints
    former: Checkpoints


class Participant(ABC):
    """One client of a federation; a subclass says how it learns.

    Parameters
    ----------
    config, data, store
        The run's configuration, the client's data, and where its state lives.
    shape
        Q's shape: over the whole federation where the client draws its first Q itself, else at least what it can execute; None
        for a method without Q.
    device
        Where models run while a message is worked on.
    """

    kept_blocks: frozenset[str] = frozenset()
    """Blocks in the store, beyond checkpoints of Q, that a client needs from round to round."""

    def __init__(
        self,
        config: Configuration,
        data: ClientData,
        store: ClientStore,
        shape: PredictorShape | None,
        device: torch.device,
    ) -> None:
        self.config = config
        self.data = data
        self.facts = BranchFacts.of(data)
        self.store = store
        self.shape = shape
        self.device = device
        self.settings = config.training.private[modality_key(data.modalities)]

    @property
    def gates_class_rows(self) -> bool:
        """Whether the rows of classes that the client lacks stay as they came."""
        return True

    @abstractmethod
    def learn(self, state: State, server_round: int) -> dict[str, float]:
        """Train ``state.private``, and ``state.q`` where there is one, in place; return losses for the history."""

    def membership(self) -> Membership:
        """Return what the client declares at registration."""
        return Membership(
            client=self.data.client,
            task=self.data.task,
            modalities=self.data.modalities,
            examples=self.data.train.examples,
            class_counts=self.facts.class_counts,
        )

    def require_models(self) -> None:
        """Build Private and Q once for the client's data; :class:`ConfigurationError` says what does not fit."""
        new_private(self.config, self.facts, torch.device("cpu"))
        if self.shape:
            new_q(self.config, self.facts, torch.device("cpu"))

    # --- the phases -------------------------------------------------------------------------------------------------------------

    def train(self, broadcast: Broadcast) -> tuple[Update, str]:
        """Measure DEV of the model that arrived, learn for one round, keep the new private state.

        Returns
        -------
        update, failure
            A client whose loss diverged says so, keeps its former state and returns the blocks as they came.
        """
        began = time.monotonic()
        with self.store.locked():
            state = self._load(broadcast)
            measured = self._measure_dev(state, broadcast.round - 1)
            try:
                losses = self.learn(state, broadcast.round)
            except DivergenceError as error:
                return self._update(broadcast, broadcast.base_version, broadcast.blocks, {}), str(error)
            self._save(state, broadcast)
        blocks = {**broadcast.blocks, **self._trained_blocks(state, broadcast.blocks)}
        metrics = _dev_metrics(measured) | losses | _rolled_back(state, broadcast) | {"seconds": time.monotonic() - began}
        return self._update(broadcast, broadcast.round, blocks, metrics), ""

    def close(self, broadcast: Broadcast) -> Update:
        """Measure DEV of the last model and freeze every choice."""
        with self.store.locked():
            state = self._load(broadcast)
            measured = self._measure_dev(state, broadcast.round)
            defaults = self._defaults(state, broadcast.round)
            last = Checkpoints.of(measured, self.measure_of(self.data.dev), broadcast.round, state.version).completed_by(defaults)
            best = state.checkpoints.completed_by(defaults)
            if state.q is not None and broadcast.round not in state.checkpoints.q_rounds():
                self.store.save_blocks(q_name(broadcast.round), module_views(state.q))
            frozen = {"best": best.to_notes(), "last": last.to_notes()}
            self.store.write_note("closing", {"round": broadcast.round, **frozen})
            self.store.write_note("facts", self.facts.to_notes())
            self.store.settle()
        counts = {
            f"{moment}.{endpoint}": kept.counts
            for moment, checkpoints in (("best", best), ("last", last))
            for endpoint, kept in checkpoints.kept.items()
            if kept.counts
        }
        return self._update(broadcast, state.version, {}, _dev_metrics(measured) | _rolled_back(state, broadcast), counts)

    def test(self, broadcast: Broadcast) -> Update:
        """Measure TEST once, with the frozen choices."""
        frozen = self.store.read_note("closing")
        if frozen is None:
            raise StoreError(f"client {self.data.client!r} has frozen no choices: TEST comes after the closing phase")
        if frozen.pop("round") != broadcast.round:
            raise StoreError(f"client {self.data.client!r} froze its choices after another round than {broadcast.round}")
        metrics: dict[str, float] = {}
        counts: dict[str, tuple[int, ...]] = {}
        settled = {
            moment: self.settle(Checkpoints.from_notes(notes), moment, broadcast.settings) for moment, notes in frozen.items()
        }
        self.store.write_note("settled", {moment: checkpoints.to_notes() for moment, checkpoints in settled.items()})
        for moment, checkpoints in settled.items():
            for endpoint, kept in checkpoints.kept.items():
                measured = self._measure_kept(endpoint, kept)
                found = measured.endpoints.get(endpoint, {})
                metrics |= {f"{moment}.{endpoint}.{name}": value for name, value in found.items()}
                metrics[f"choices.{moment}.{endpoint}.round"] = kept.round
                metrics |= {f"choices.{moment}.{endpoint}.{name}": value for name, value in kept.choice.items()}
                if measured.counts.get(endpoint):
                    counts[f"{moment}.{endpoint}"] = tuple(measured.counts[endpoint])
        return self._update(broadcast, broadcast.base_version, {}, metrics, counts)

    def settle(self, checkpoints: Checkpoints, moment: str, settings: Mapping[str, Any]) -> Checkpoints:
        """Return the kept rounds to be tested; a choice that belongs to the federation comes in ``settings``."""
        return checkpoints

    # --- measuring --------------------------------------------------------------------------------------------------------------

    def objective(self, split: Split) -> Objective:
        """Return the task's losses over one split, on the client's device."""
        return build_objective(self.data.kind, self.data.task, split, self.device, self.config.training.teaching)

    @cached_property
    def training(self) -> Objective:
        """The training split."""
        return self.objective(self.data.train)

    @cached_property
    def _dev(self) -> Objective:
        return self.objective(self.data.dev)

    def _trained(self, state: State) -> bool:
        """Say whether there is a Private to speak of: a client that never trained has a Q only."""
        return state.version > 0 and self.data.train.examples > 0

    def measure_of(self, split: Split) -> Measure:
        """Return how the client's task is measured on a split.

        A task that says what all its clients share has donors and recipients, whatever the method: they are also measured as
        groups, for which confusion matrices are needed.
        """
        counted = self.config.tasks[self.data.task].shared is not None
        return build_measure(self.data.kind, split, self.facts.class_counts, self.config.evaluation, counted)

    def _measure_dev(self, state: State, model_round: int) -> Measurement:
        """Measure the model of a round on DEV, and keep it where it is the best so far."""
        if model_round == 0 or self.data.dev.examples == 0:
            return Measurement({})
        how = self.measure_of(self.data.dev)
        private = self._dev.private_table(state.private) if self._trained(state) else None
        q = self._dev.q_table(state.q) if state.q else None
        measured = measure(how, private, q)
        state.checkpoints = state.checkpoints.improved_by(Checkpoints.of(measured, how, model_round, state.version))
        if state.q is not None and model_round in state.checkpoints.q_rounds():
            self.store.save_blocks(q_name(model_round), module_views(state.q))
        return measured

    def _defaults(self, state: State, model_round: int) -> Checkpoints:
        """Return the last round for every endpoint that exists, with the choices of a client without DEV."""
        how = self.measure_of(self.data.dev)
        choices: dict[str, Choice] = {**({"private": {}} if self._trained(state) else {}), **({"q": {}} if state.q else {})}
        if len(choices) == 2:
            choices["joint"] = how.default_choice()
            choices |= {f"joint@{name}": candidate for name, candidate in how.candidates().items()}
        return Checkpoints({e: Kept(model_round, state.version, 0.0, dict(choice)) for e, choice in choices.items()})

    def _measure_kept(self, endpoint: str, kept: Kept) -> Measurement:
        """Measure TEST with one endpoint's kept round; nothing where there is no TEST."""
        if self.data.test.examples == 0:
            return Measurement({})
        private, q = load_branches(self.config, self.facts, self.store, endpoint, kept, self.device)
        objective = self.objective(self.data.test)
        tables: tuple[Table | None, Table | None] = (
            objective.private_table(private) if private else None,
            objective.q_table(q) if q else None,
        )
        return measure(self.measure_of(self.data.test), *tables, choice=kept.choice)

    # --- state ------------------------------------------------------------------------------------------------------------------

    def seed(self, purpose: str, server_round: int) -> int:
        """Return the seed of one draw of this client."""
        return derive_seed(self.config.run.seed, self.data.client, server_round, purpose)

    def schedule(self, stage: Stage, server_round: int, epochs: int) -> Schedule:
        """Return how a stage draws its batches: Private's and Q's draws never depend on each other."""
        generator = torch.Generator().manual_seed(self.seed(f"batches of {stage}", server_round))
        return Schedule(stage, epochs, self.settings.batch_size, generator)

    def _load(self, broadcast: Broadcast) -> State:
        """Return the state at the version that the server last saw, with the Q that arrived."""
        version = broadcast.base_version
        private = new_private(self.config, self.facts, self.device)
        fusion_gate = nn.Parameter(torch.zeros((), device=self.device))
        q = new_q(self.config, self.facts, self.device) if self.shape else None
        optimiser = build_optimiser(self.settings, private.parameters(), [fusion_gate])
        q_optimiser = build_optimiser(self.config.training.q, q.parameters()) if q else None
        checkpoints = Checkpoints({})
        blocks: Blocks = broadcast.blocks
        if version:
            version, snapshot = self.store.load_intact(version)
            checkpoints = Checkpoints.from_notes(snapshot.notes["checkpoints"])
            load_module_arrays(private, under("private", snapshot.arrays))
            with torch.no_grad():
                fusion_gate.copy_(torch.tensor(snapshot.arrays["fusion_gate"]))
            if self.config.training.private_optimiser == "keep":
                load_optimiser_arrays(optimiser, under("optimiser", snapshot.arrays))
            if q_optimiser and self.config.training.q_optimiser == "keep":
                load_optimiser_arrays(q_optimiser, under("q_optimiser", snapshot.arrays))
            blocks = blocks or under("q", snapshot.arrays)
        if q is not None:
            assert self.shape is not None
            load_module_arrays(q, blocks or module_arrays(initial_predictor(self.shape, self.config.run.seed)))
        return State(version, private, fusion_gate, optimiser, q, q_optimiser, checkpoints, former=checkpoints)

    def _save(self, state: State, broadcast: Broadcast) -> None:
        """Keep the state as the version of this round; what neither it nor the former version needs is removed."""
        arrays: dict[str, Array] = {
            **named("private", module_views(state.private)),
            "fusion_gate": state.fusion_gate.detach().cpu().numpy(),
        }
        if self.config.training.private_optimiser == "keep":
            arrays |= named("optimiser", optimiser_arrays(state.optimiser))
        if state.q_optimiser and self.config.training.q_optimiser == "keep":
            arrays |= named("q_optimiser", optimiser_arrays(state.q_optimiser))
        if state.q and not broadcast.blocks:
            arrays |= named("q", module_views(state.q))
        snapshot = Snapshot(arrays, {"checkpoints": state.checkpoints.to_notes()})
        needed = state.checkpoints.versions() | state.former.versions() | {state.version}
        self.store.save(broadcast.round, snapshot, keep=needed)
        q_rounds = state.checkpoints.q_rounds() | state.former.q_rounds()
        self.store.remove_blocks(keep=self.kept_blocks | {q_name(number) for number in q_rounds})

    def _trained_blocks(self, state: State, received: Blocks) -> dict[str, Array]:
        """Return what the client trained of the blocks it received; a gated row of a class that it lacks stays as it came."""
        if state.q is None or not received:
            return {}
        trained = module_arrays(state.q)
        if not self.gates_class_rows:
            return trained
        held = np.array(self.facts.class_counts) > 0
        for block in state.q.contract().blocks:
            if block.owner.kind == "class_rows":
                trained[block.name][~held] = received[block.name][~held]
        return trained

    def _update(
        self,
        broadcast: Broadcast,
        version: int,
        blocks: Blocks,
        metrics: Mapping[str, float],
        counts: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Update:
        return Update(
            client=self.data.client,
            round=broadcast.round,
            version=version,
            blocks=blocks,
            examples=self.data.train.examples,
            class_counts=self.facts.class_counts,
            metrics=metrics,
            counts=counts or {},
        )


def _rolled_back(state: State, broadcast: Broadcast) -> dict[str, float]:
    """Say which version the client went on from, where it is not the one that the server last saw."""
    return {} if state.version == broadcast.base_version else {ROLLED_BACK: float(state.version)}


def _dev_metrics(measured: Measurement) -> dict[str, float]:
    return {f"dev.{name}": value for name, value in measured.flat().items()}
