"""Deploying what was trained: Private, Q or Joint of a client as an object that takes raw inputs.

Interface, checkpoint and calibration are inside; the client's data are not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsocket_flwr.clients.branches import BranchFacts, load_branches
from fedsocket_flwr.clients.checkpoints import Checkpoints, Kept
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.corpus import Inputs, Raw, Split
from fedsocket_flwr.datasets.inputs import private_inputs
from fedsocket_flwr.datasets.interfaces import Interface, build_interface
from fedsocket_flwr.errors import ConfigurationError, MeasurementError, RunError
from fedsocket_flwr.learning.measuring import Measure, Metrics, PooledMeasure, build_measure
from fedsocket_flwr.learning.objectives import build_objective
from fedsocket_flwr.models.predictor import SharedPredictor
from fedsocket_flwr.run_preparation import read_run_configuration
from fedsocket_flwr.runtime.device import limited_threads
from fedsocket_flwr.runtime.run_files import read_identity
from fedsocket_flwr.runtime.store import ClientStore, state_directory

Array = NDArray[Any]
Endpoint = Literal["private", "q", "joint"]
Moment = Literal["best", "last"]


def load_predictor(
    run_folder: Path | str, client: str, endpoint: Endpoint = "joint", moment: Moment = "best", state: Path | None = None
) -> "Predictor":
    """Return one endpoint of a finished run's client.

    Parameters
    ----------
    run_folder
        The folder of the run; it may have been moved.
    client, endpoint
        Whose predictor, and which.
    moment
        ``best``: the round that the client's DEV chose for this endpoint. ``last``: the last round.
    state
        The state directory; None is where this machine keeps it.

    Raises
    ------
    RunError
        The run is not finished, or the client has no such endpoint.
    StoreError
        The client's private state is not on this machine.
    """
    trained = _open(Path(run_folder), client, state)
    kept = trained.kept(moment)
    if endpoint not in kept:
        raise RunError(f"client {client!r} has no endpoint {endpoint!r}; it has {', '.join(kept) or 'none'}")
    private, q = load_branches(trained.config, trained.facts, trained.store, endpoint, kept[endpoint], torch.device("cpu"))
    return Predictor(trained.config, trained.facts, endpoint, kept[endpoint].choice, private, q)


def existing_endpoints(run_folder: Path | str, client: str, moment: Moment = "best") -> tuple[Endpoint, ...]:
    """Return the endpoints that a finished run's client has; errors are those of :func:`load_predictor`."""
    kept = _open(Path(run_folder), client, None).kept(moment)
    return tuple(endpoint for endpoint in get_args(Endpoint) if endpoint in kept)


@dataclass(frozen=True)
class _TrainedClient:
    """What a finished run has kept of a client."""

    config: Configuration
    facts: BranchFacts
    store: ClientStore
    frozen: Mapping[str, Mapping[str, Any]]

    def kept(self, moment: str) -> Mapping[str, Kept]:
        """Return the kept round of every endpoint."""
        if moment not in self.frozen:
            raise RunError(f"no moment is called {moment!r}; there are {', '.join(self.frozen)}")
        return Checkpoints.from_notes(self.frozen[moment]).kept


def _open(folder: Path, client: str, state: Path | None) -> _TrainedClient:
    config = read_run_configuration(folder)
    config.client(client)
    store = ClientStore(state_directory({}) if state is None else state, str(read_identity(folder)["run"]), client)
    # A run that was given more rounds has the choices of the shorter one until it is finished again.
    if not (folder / "test.json").exists():
        raise RunError(f"{folder} is not finished; continue it with --resume {folder}")
    frozen, notes = store.read_note("settled"), store.read_note("facts")
    if frozen is None or notes is None:
        raise RunError(f"client {client!r} of {folder} has frozen no choices on this machine: it ran elsewhere")
    return _TrainedClient(config, BranchFacts.from_notes(notes), store, frozen)


class Predictor:
    """One endpoint of one client; made by :func:`load_predictor`.

    Attributes
    ----------
    facts
        The client's task, modalities and classes.
    endpoint
        ``private``, ``q`` or ``joint``.
    """

    def __init__(
        self,
        config: Configuration,
        facts: BranchFacts,
        endpoint: Endpoint,
        choice: Mapping[str, float],
        private: nn.Module | None,
        q: SharedPredictor | None,
    ) -> None:
        self.facts = facts
        self.endpoint = endpoint
        self._config = config
        self._task = config.tasks[facts.task]
        self._choice = choice
        self._private = private
        self._q = q

    @cached_property
    def _interfaces(self) -> Mapping[str, Interface]:
        known = self._config.interfaces
        return {modality: build_interface(known[modality]) for modality in self.facts.modalities if modality in known}

    def probabilities(self, raw: Mapping[str, Raw]) -> Array:
        """Return class probabilities (N, C) of raw rows; Joint's class-wise mixture is normalised to sum to one."""
        if self.facts.kind != "classification":
            raise ConfigurationError(f"client {self.facts.client!r} retrieves; call `scores` with images and texts")
        scores = self._scores(self._split(raw))
        normalised: Array = scores / scores.sum(axis=1, keepdims=True)
        return normalised

    def classes(self, raw: Mapping[str, Raw]) -> list[str]:
        """Return the name of the most probable class of each raw row."""
        return [self.facts.classes[index] for index in self._scores(self._split(raw)).argmax(axis=1)]

    def scores(self, images: Raw, texts: Raw) -> dict[str, Array]:
        """Return the scores (images, texts) of each direction of retrieval, ``i2t`` and ``t2i``."""
        if self.facts.kind != "retrieval":
            raise ConfigurationError(f"client {self.facts.client!r} classifies; call `probabilities`")
        found = self._scores(self._split({"image": images, "text": texts}))
        return dict(found) if isinstance(found, Mapping) else {"i2t": found, "t2i": found}

    def rank_texts(self, images: Raw, texts: Raw) -> Array:
        """Return for each image the indices of the texts, best first."""
        order: Array = np.argsort(-self.scores(images, texts)["i2t"], axis=1, kind="stable")
        return order

    def rank_images(self, images: Raw, texts: Raw) -> Array:
        """Return for each text the indices of the images, best first."""
        order: Array = np.argsort(-self.scores(images, texts)["t2i"].T, axis=1, kind="stable")
        return order

    @property
    def parameters(self) -> int:
        """How many parameters the endpoint's models have, the fixed interface apart."""
        models = (model for model in (self._private, self._q) if model is not None)
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    def branch_scores(self, split: Split) -> Array:
        """Return Private's or Q's scores as they are measured: probabilities (N, C), or in retrieval scores (images, texts)."""
        self._require_shapes(split.inputs)
        scores: Array = self._scores(split)
        return scores

    def measure(self, split: Split) -> Metrics:
        """Return the endpoint's metrics on labelled rows, as TEST was measured, with the frozen choice.

        Raises
        ------
        MeasurementError
            Inputs have another shape than those that the model was trained on, or there are no rows.
        """
        if split.examples == 0:
            raise MeasurementError(f"client {self.facts.client!r}: there are no rows to measure")
        self._require_shapes(split.inputs)
        return self._measure_of(split).metrics(self._scores(split))

    def _split(self, raw: Mapping[str, Raw]) -> Split:
        missing = [modality for modality in self.facts.modalities if modality not in raw]
        if missing:
            raise MeasurementError(
                f"client {self.facts.client!r} reads {', '.join(self.facts.modalities)}; missing: {missing[0]}"
            )
        held = {modality: raw[modality] for modality in self.facts.modalities}
        features = {m: self._interfaces[m](rows) for m, rows in held.items() if self._needs_features(m)}
        inputs: Mapping[str, Inputs] = features
        if self._task.private_inputs == "raw":
            inputs = {modality: private_inputs(modality, rows, self._task) for modality, rows in held.items()}
        self._require_shapes(inputs)
        features = {modality: found for modality, found in features.items() if modality in self._task.q_modalities}
        if self.facts.kind == "retrieval":
            # No pair is known; what is measured is every image against every text.
            return Split(inputs, features, pairs=np.zeros((0, 2), dtype=np.int64))
        return Split(inputs, features, labels=np.zeros(len(next(iter(held.values()))), dtype=np.int64))

    def _require_shapes(self, inputs: Mapping[str, Inputs]) -> None:
        for modality, rows in inputs.items():
            expected = self.facts.input_shapes[modality]
            if tuple(rows.shape[1:]) != expected:
                raise MeasurementError(
                    f"{modality} inputs have shape {tuple(rows.shape[1:])}, the model was trained on {expected}"
                )

    def _needs_features(self, modality: str) -> bool:
        read_by_q = self._q is not None and modality in self._task.q_modalities
        return read_by_q or self._task.private_inputs == "features"

    def _measure_of(self, split: Split) -> Measure:
        facts, settings = self.facts, self._config.evaluation
        if "beta" in self._choice:
            return PooledMeasure(split, facts.class_counts, settings, donor=False)
        return build_measure(facts.kind, split, facts.class_counts, settings, counted=self._task.shared is not None)

    def _scores(self, split: Split) -> Any:
        facts, config = self.facts, self._config
        objective = build_objective(facts.kind, facts.task, split, torch.device("cpu"), config.training.teaching)
        how = self._measure_of(split)
        with limited_threads(config.resources.threads):
            private = how.branch(objective.private_table(self._private)) if self._private is not None else None
            q = how.branch(objective.q_table(self._q)) if self._q is not None else None
        if private is None or q is None:
            return private if q is None else q
        return how.joint(private, q, self._choice)
