"""Capacity controls: two branches of finished runs mixed as Joint mixes Private and Q (FedSocket v1, Tables 5 and 11).

What Joint gains over Private may come of a second predictor alone. So Private is mixed with another one instead: an independent
Private of another seed or size, another checkpoint of its own, or a Q that never was exchanged. The rule and its candidates are
Joint's own; the weight is chosen on DEV, then TEST is measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.client_data import open_client_data
from fedsocket_flwr.datasets.corpus import ClientData, Split
from fedsocket_flwr.datasets.split_manifest import deal_digest
from fedsocket_flwr.endpoints import Predictor, load_predictor
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.run_folder import read_run
from fedsocket_flwr.evaluation.summary import summarise
from fedsocket_flwr.experiments.sweep_file import Branch
from fedsocket_flwr.learning.calibration import choose_beta, mix_probabilities
from fedsocket_flwr.learning.measuring import Choice, Measure, PooledMeasure, build_measure
from fedsocket_flwr.methods import feature_directory
from fedsocket_flwr.plain_files import dump_json, read_json, write_whole
from fedsocket_flwr.run_preparation import read_run_configuration
from fedsocket_flwr.runtime.store import state_directory

Array = np.ndarray[Any, Any]


def write_ensemble(folder: Path, first: tuple[Path, Branch], second: tuple[Path, Branch], digest: str) -> None:
    """Measure an ensemble and write its ``summary.json``.

    The file has the form of a run's, with ``private`` and ``q`` for the two branches and ``joint`` for their mixture; each client
    also has the number of ``parameters`` of either branch. ``ensemble`` says what it is made of.

    Parameters
    ----------
    folder
        Where the file is written.
    first, second
        The folder of a finished run whose private models are on this machine, and which of its branches.
    digest
        Of all that the ensemble is made of; it is written down.

    Raises
    ------
    RunError, StoreError
        A branch is not there, or the runs divide their data otherwise.
    """
    _require_same_rows(first[0], second[0])
    config = read_run_configuration(first[0])
    mixtures = [
        _Mixture(config, client.name, _Member(*first, client.name), _Member(*second, client.name))
        for _, client in config.clients()
    ]
    betas = {name: _common_beta([one for one in mixtures if one.task == name]) for name in config.tasks}
    tested = {one.client: one.tested(betas[one.task]) for one in mixtures}
    record = read_run(first[0])
    made_of = {
        "digest": digest,
        "first": first[1].model_dump() | {"run": record.run.get("run")},
        "second": second[1].model_dump() | {"run": read_run(second[0]).run.get("run")},
    }
    summary = summarise(replace(record, test=tested)) | {"ensemble": made_of}
    write_whole(folder / "summary.json", dump_json(summary, indent=2) + "\n")


def _require_same_rows(first: Path, second: Path) -> None:
    one, two = ({t: deal_digest(p) for t, p in read_json(run / "splits.json")["tasks"].items()} for run in (first, second))
    if one != two:
        raise RunError(f"{first} and {second} divide their data otherwise; an ensemble needs one TRAIN, DEV and TEST for both")


@dataclass(frozen=True)
class _Member:
    """One branch of one client of a finished run, and the data that it reads."""

    run: Path
    branch: Branch
    client: str

    @cached_property
    def data(self) -> ClientData:
        config = read_run_configuration(self.run)
        return open_client_data(config, self.client, feature_directory(state_directory({})))

    @cached_property
    def predictor(self) -> Predictor:
        return load_predictor(self.run, self.client, self.branch.endpoint, self.branch.moment)

    def scores(self, which: Callable[[ClientData], Split]) -> Array:
        return self.predictor.branch_scores(which(self.data))


@dataclass(frozen=True)
class _Mixture:
    """The two branches of one client."""

    config: Configuration
    client: str
    first: _Member
    second: _Member

    @property
    def task(self) -> str:
        return self.config.client(self.client)[0]

    @property
    def pooled(self) -> bool:
        """Whether one weight holds for all recipients of the task, as in the same-task protocol; a donor keeps its own branch."""
        return self.config.tasks[self.task].shared is not None

    @property
    def donor(self) -> bool:
        return self.config.role(self.client) == "donor"

    def measure_of(self, split: Split) -> Measure:
        data, settings = self.first.data, self.config.evaluation
        if self.pooled:
            return PooledMeasure(split, data.class_counts(), settings, self.donor)
        return build_measure(data.kind, split, data.class_counts(), settings)

    @cached_property
    def dev(self) -> tuple[Array, Array]:
        return self.first.scores(lambda data: data.dev), self.second.scores(lambda data: data.dev)

    def dev_counts(self, beta: float) -> Array:
        """Return DEV's confusion matrix (C, C) of a mixture."""
        measure = PooledMeasure(self.first.data.dev, self.first.data.class_counts(), self.config.evaluation, self.donor)
        return measure.confusion(mix_probabilities(*self.dev, beta))

    def tested(self, beta: float | None) -> dict[str, Any]:
        """Return what ``test.json`` would hold of the client."""
        dev, test = self.first.data.dev, self.first.data.test
        how = self.measure_of(test)
        entry: dict[str, Any] = {"task": self.task, "best": {}, "last": {}, "choices": {}}
        entry["parameters"] = {"first": self.first.predictor.parameters, "second": self.second.predictor.parameters}
        if test.examples == 0:
            return entry
        chosen: Choice = how.default_choice()
        if beta is not None and not self.donor:
            chosen = {"beta": beta}
        elif beta is None and dev.examples:
            chosen = self.measure_of(dev).choose(*self.dev)
        branches = self.first.scores(lambda data: data.test), self.second.scores(lambda data: data.test)
        scores = {"private": branches[0], "q": branches[1], "joint": how.joint(*branches, chosen)}
        entry["best"] = {endpoint: how.metrics(found) for endpoint, found in scores.items()}
        entry["choices"] = {f"joint.{name}": value for name, value in chosen.items()}
        counts: Mapping[str, Any] = {f"best.{endpoint}": list(how.counts(found)) for endpoint, found in scores.items()}
        return entry | ({"confusion": counts} if self.pooled else {})


def _common_beta(mixtures: list[_Mixture]) -> float | None:
    """Return the one weight of a task's recipients, chosen on their pooled DEV; None where each client chooses its own."""
    recipients = [one for one in mixtures if one.pooled and not one.donor and one.first.data.dev.examples]
    if not recipients:
        return None
    betas = recipients[0].config.evaluation.betas
    return choose_beta({beta: np.sum([one.dev_counts(beta) for one in recipients], axis=0) for beta in betas})
