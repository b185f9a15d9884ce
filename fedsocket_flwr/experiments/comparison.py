"""What a sweep's finished members say together: every arm over seeds, and the contrasts paired by seed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.evaluation.statistics import PairedDifference, Sample, compare_pairs, describe
from fedsocket_flwr.experiments.sweep_file import Contrast, PlannedEnsemble, Side, SweepPlan
from fedsocket_flwr.metric_names import ENDPOINTS, METRIC_LABELS
from fedsocket_flwr.plain_files import read_json, read_text

PLAN_FILE = "sweep.json"
# (cell, task or group, metric, endpoint) -> seed -> value
Values = Mapping[tuple[str, str, str, str], Mapping[int, float]]


@dataclass(frozen=True)
class ArmResult:
    """One metric of one endpoint of one cell on one task, or one group of its clients, over the seeds that have it."""

    cell: str
    task: str
    metric: str
    endpoint: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    sample: Sample


@dataclass(frozen=True)
class ContrastResult:
    """One contrast for one metric on one task or group; ``difference`` is None if no seed is on both sides."""

    name: str
    task: str
    metric: str
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    values: tuple[float, ...]
    difference: PairedDifference | None


@dataclass(frozen=True)
class Comparison:
    """A sweep's results.

    Attributes
    ----------
    plan
        What the sweep consists of.
    arms, contrasts
        The results, in the order of the plan, then of tasks and metrics.
    unfinished
        Members without a result: cell, seed, and place below the sweep's folder.
    groups
        Those of :attr:`tasks` that are groups of a task's clients, as in ``activity: recipients``.
    """

    plan: SweepPlan
    arms: tuple[ArmResult, ...]
    contrasts: tuple[ContrastResult, ...]
    unfinished: tuple[str, ...]
    groups: frozenset[str] = frozenset()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with results, each followed by its groups of clients."""
        return tuple(dict.fromkeys(result.task for result in self.arms))

    def metrics(self, task: str) -> tuple[str, ...]:
        """Metrics with results on a task."""
        return tuple(dict.fromkeys(result.metric for result in self.arms if result.task == task))


def read_plan(out: Path) -> SweepPlan:
    """Read a sweep folder's plan, or raise :class:`RunError` that names the file."""
    path = out / PLAN_FILE
    if not path.exists():
        raise RunError(f"{out}: holds no sweep ({PLAN_FILE} is missing)")
    try:
        return SweepPlan.model_validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RunError(f"{path}: damaged ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None


def stored_digest(folder: Path) -> str | None:
    """Return the checksum of the configuration stored in a run folder, or None if there is none that can be read."""
    try:
        return read_configuration(folder / "config.yaml").digest()
    except ConfigurationError:
        return None


def read_finished(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return a run's summary if the run is finished and of the configuration with this checksum, else None."""
    try:
        summary = read_json(folder / "summary.json")
    except RunError:
        return None
    # A report of a run that was cut off has a summary too, which says so.
    finished = isinstance(summary, dict) and summary.get("status", "complete") == "complete"
    return summary if finished and stored_digest(folder) == digest else None


def read_ensemble(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return an ensemble's summary if it was made of what this checksum says, else None."""
    try:
        summary = read_json(folder / "summary.json")
    except RunError:
        return None
    made_of = summary.get("ensemble", {}).get("digest") if isinstance(summary, dict) else None
    return summary if made_of == digest else None


def collect(out: Path) -> Comparison:
    """Read the finished members of a sweep's folder and work out its comparison.

    Raises
    ------
    RunError
        If the folder holds no sweep, or a summary is malformed.
    """
    plan = read_plan(out)
    values: dict[tuple[str, str, str, str], dict[int, float]] = {}
    unfinished = []
    groups: set[str] = set()
    for cell in plan.compared:
        read = read_ensemble if isinstance(cell, PlannedEnsemble) else read_finished
        for seed in plan.seeds:
            folder = out / cell.folder / str(seed)
            summary = read(folder, cell.digests[str(seed)])
            if summary is None:
                unfinished.append(f"{cell.label}, seed {seed}, in {cell.folder}/{seed}")
                continue
            for (task, metric, endpoint), value in _measured(summary, folder):
                if not plan.metrics or metric in plan.metrics:
                    values.setdefault((cell.label, task, metric, endpoint), {})[seed] = value
            groups |= {_label(task, group) for task, found in summary.get("groups", {}).items() for group in found}
    arms, contrasts = tuple(_arms(plan, values)), tuple(_contrasts(plan, values))
    return Comparison(plan, arms, contrasts, tuple(unfinished), frozenset(groups))


def better_branch(private: Mapping[int, float], q: Mapping[int, float]) -> dict[int, float]:
    """Return per seed the larger of Private and Q; a seed with one of them has that one."""
    return {seed: max(side[seed] for side in (private, q) if seed in side) for seed in {**private, **q}}


def _measured(summary: Mapping[str, Any], folder: Path) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yield ``(task or group, metric, endpoint), value``; a task is followed by its groups."""
    section = "endpoints"
    try:
        for task, endpoints in summary["endpoints"].items():
            section = "endpoints"
            yield from _numbers(task, endpoints)
            section = "groups"
            for group, found in summary.get("groups", {}).get(task, {}).items():
                yield from _numbers(_label(task, group), found["endpoints"])
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise RunError(
            f"{folder / 'summary.json'}: `{section}` is not endpoint -> metric -> number for each ({error})"
        ) from error


def _numbers(label: str, endpoints: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str, str], float]]:
    for endpoint, metrics in endpoints.items():
        for metric, value in metrics.items():
            yield (label, metric, endpoint), float(value)


def _label(task: str, group: str) -> str:
    """Name a group of a task's clients where tasks are named."""
    return f"{task}: {group}"


def _measures(values: Values) -> list[tuple[str, str]]:
    """Return ``(task, metric)`` in the order in which tasks were found and metrics are listed."""
    order = list(METRIC_LABELS)
    tasks = list(dict.fromkeys(task for _, task, _, _ in values))
    found = {(task, metric) for _, task, metric, _ in values}
    place = {metric: order.index(metric) if metric in order else len(order) for _, metric in found}
    return sorted(found, key=lambda measure: (tasks.index(measure[0]), place[measure[1]], measure[1]))


def _arms(plan: SweepPlan, values: Values) -> Iterator[ArmResult]:
    for cell in plan.compared:
        for task, metric in _measures(values):
            for endpoint in ENDPOINTS:
                by_seed = values.get((cell.label, task, metric, endpoint), {})
                if by_seed:
                    found = tuple(by_seed.values())
                    yield ArmResult(cell.label, task, metric, endpoint, tuple(by_seed), found, describe(found))


def _contrasts(plan: SweepPlan, values: Values) -> Iterator[ContrastResult]:
    for contrast in plan.contrasts:
        for task, metric in _measures(values):
            minuend = _side(contrast.minuend, task, metric, values)
            subtrahend = _side(contrast.subtrahend, task, metric, values)
            if minuend or subtrahend:
                yield _paired(contrast, task, metric, plan.seeds, minuend, subtrahend)


def _side(side: Side, task: str, metric: str, values: Values) -> Mapping[int, float]:
    if side.endpoint == "better_branch":
        private, q = (values.get((side.arm, task, metric, endpoint), {}) for endpoint in ("private", "q"))
        return better_branch(private, q)
    return values.get((side.arm, task, metric, side.endpoint), {})


def _paired(
    contrast: Contrast,
    task: str,
    metric: str,
    seeds: tuple[int, ...],
    minuend: Mapping[int, float],
    subtrahend: Mapping[int, float],
) -> ContrastResult:
    both = tuple(seed for seed in seeds if seed in minuend and seed in subtrahend)
    left_out = tuple(seed for seed in seeds if seed not in both)
    first, second = [minuend[seed] for seed in both], [subtrahend[seed] for seed in both]
    differences = tuple(a - b for a, b in zip(first, second, strict=True))
    return ContrastResult(
        contrast.name, task, metric, both, left_out, differences, compare_pairs(first, second) if both else None
    )
