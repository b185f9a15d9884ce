"""The tables of a run's report."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedsocket_flwr.evaluation.groups import group_label
from fedsocket_flwr.evaluation.run_folder import RunRecord
from fedsocket_flwr.evaluation.summary import clients_measured, endpoint_means
from fedsocket_flwr.evaluation.tables import Cell, Column, Table
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, ENDPOINTS, METRIC_LABELS, headline_metrics, metric_label, split_metric
from fedsocket_flwr.plain_files import dump_json

Endpoints = Mapping[str, Mapping[str, float]]
COMPARED = tuple(ENDPOINT_LABELS.values())
ENDPOINT_COLUMNS = tuple(Column(ENDPOINT_LABELS[endpoint], "percent") for endpoint in ENDPOINTS)
GAIN_COLUMN = Column("Joint − better branch", "points")
# Sections of the configuration that have tables of their own.
_SHOWN_ELSEWHERE = ("tasks", "interfaces")


def run_tables(run: RunRecord, summary: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of a run by their file names; ``summary`` is that of :func:`summary.summarise`."""
    return {
        "endpoints": _test_table(run, "best", headline_only=True),
        "endpoints_last": _test_table(run, "last", headline_only=True),
        "endpoints_all": _test_table(run, "best", headline_only=False),
        "groups": group_table(summary, summary["groups"]),
        "dev": _dev_table(run, summary),
        "clients": _client_table(run, summary),
        "client_results": _client_results(run),
        "communication": _communication_table(summary),
        "interfaces": _interface_table(run),
        "settings": _settings_table(run),
        "incidents": _incidents_table(summary),
    }


def _ordered(metrics: set[str]) -> list[str]:
    known = [metric for metric in METRIC_LABELS if metric in metrics]
    return [*known, *sorted(metrics - set(known))]


def _endpoint_rows(endpoints: Endpoints, headline_only: bool) -> Iterator[tuple[str, tuple[float | None, ...]]]:
    """Yield a metric, its value per endpoint, and how far Joint is above the better of Private and Q."""
    present = {metric for endpoint in ENDPOINTS for metric in endpoints.get(endpoint, {})}
    for metric in headline_metrics(present) if headline_only else _ordered(present):
        values = [endpoints.get(endpoint, {}).get(metric) for endpoint in ENDPOINTS]
        branches = [value for value in values[:2] if value is not None]
        gain = values[2] - max(branches) if values[2] is not None and branches else None
        yield metric, (*values, gain)


def _endpoint_table(rows: list[tuple[Cell, ...]]) -> Table:
    return Table((Column("Task"), Column("Metric"), Column("Clients"), *ENDPOINT_COLUMNS, GAIN_COLUMN), tuple(rows), COMPARED)


def _test_table(run: RunRecord, choice: str, headline_only: bool) -> Table:
    return _endpoint_table(
        [
            (task, metric_label(metric), f"{clients_measured(run, task, choice, metric)} of {len(run.of_task(task))}", *values)
            for task, endpoints in endpoint_means(run, choice).items()
            for metric, values in _endpoint_rows(endpoints, headline_only)
        ]
    )


def group_table(summary: Mapping[str, Any], tasks: Iterable[str]) -> Table:
    """Return the groups of some tasks: a row a metric, the endpoints at their best DEV round and then at the last round."""
    last_columns = (Column(f"{heading}, last round", "percent") for heading in COMPARED)
    names = (Column("Task"), Column("Group"), Column("Clients", "integer"), Column("TEST rows", "integer"), Column("Metric"))
    rows: list[tuple[Cell, ...]] = []
    for task in tasks:
        for group, found in summary["groups"][task].items():
            best = found["endpoints"]
            last = summary["groups_last"].get(task, {}).get(group, {}).get("endpoints", {})
            for metric in _ordered({metric for metrics in best.values() for metric in metrics}):
                values = [metrics.get(endpoint, {}).get(metric) for metrics in (best, last) for endpoint in ENDPOINTS]
                rows.append((task, group_label(group), found["clients"], found["rows"], metric_label(metric), *values))
    return Table((*names, *ENDPOINT_COLUMNS, *last_columns), tuple(rows), COMPARED)


def _dev_table(run: RunRecord, summary: Mapping[str, Any]) -> Table:
    tasks: Mapping[str, Any] = summary.get("dev", {}).get("tasks", {})
    return _endpoint_table(
        [
            (task, metric_label(metric), f"{found.get('clients', 0)} of {len(run.of_task(task))}", *values)
            for task, found in ((task, tasks[task]) for task in run.tasks if task in tasks)
            for metric, values in _endpoint_rows({name: found.get(name) or {} for name in ENDPOINTS}, headline_only=True)
        ]
    )


def _client_table(run: RunRecord, summary: Mapping[str, Any]) -> Table:
    columns = (
        Column("Client"),
        Column("Task"),
        Column("Private model"),
        Column("TRAIN", "integer"),
        Column("DEV", "integer"),
        Column("TEST", "integer"),
        Column("Rounds merged", "integer"),
    )
    merged: Mapping[str, int] = summary["participation"]
    rows = [(c.name, c.task, c.model, c.train, c.dev, c.test, merged.get(c.name, 0)) for c in run.clients.values()]
    return Table(columns, tuple(rows))


def _client_results(run: RunRecord) -> Table:
    columns = (
        Column("Client"),
        Column("Metric"),
        *ENDPOINT_COLUMNS,
        Column("Best rounds (Private / Q / Joint)"),
        Column("Joint's choices"),
    )
    rows: list[tuple[Cell, ...]] = []
    tested = run.test or {}
    for name, found in ((name, tested[name]) for name in run.clients if name in tested):
        best = {endpoint: found.get("best", {}).get(endpoint) or {} for endpoint in ENDPOINTS}
        choices = found.get("choices") or {}
        at = " / ".join(_number(choices.get(f"{endpoint}.round")) for endpoint in ENDPOINTS)
        rows += [
            (name, metric_label(metric), *values[:3], at, _weights(choices)) for metric, values in _endpoint_rows(best, True)
        ]
    return Table(columns, tuple(rows), COMPARED)


def _weights(choices: Mapping[str, Any]) -> str:
    """Say what was chosen for Joint apart from rounds, as in ``rho 0.5``; what belongs to the last round is marked."""
    names = [name for name in choices if not name.endswith("round")]
    best = [f"{split_metric(name)[1]} {_number(choices[name])}" for name in names if not name.startswith("last.")]
    last = [f"{name.removeprefix('last.')} {_number(choices[name])}" for name in names if name.startswith("last.")]
    return ", ".join(best) + (f" (last round: {', '.join(last)})" if last else "")


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _communication_table(summary: Mapping[str, Any]) -> Table:
    sent = summary["bytes"]
    columns = (
        Column("Payload"),
        Column("Up", "bytes"),
        Column("Down", "bytes"),
        Column("Both", "bytes"),
        Column("Share of whole Q, %", "percent"),
    )
    whole = sent["up_full"] + sent["down_full"]
    rows = []
    for label, up, down in (
        ("as sent", sent["up"], sent["down"]),
        ("if the whole Q travelled", sent["up_full"], sent["down_full"]),
    ):
        rows.append((label, up, down, up + down, (up + down) / whole if whole else None))
    return Table(columns, tuple(rows))


def _interface_table(run: RunRecord) -> Table:
    used = run.environment.get("interfaces")
    found = used if isinstance(used, dict) and used else run.config.get("interfaces") or {}
    rows = [(name, _brief(value)) for name, value in found.items()]
    return Table((Column("Modality"), Column("Interface h_m")), tuple(rows))


def interfaces_as_run(run: RunRecord) -> bool:
    """Say whether the environment recorded the interfaces that were used, so that the configuration need not be trusted."""
    return bool(run.environment.get("interfaces"))


def _settings_table(run: RunRecord) -> Table:
    rows = [(name, _brief(section)) for name, section in run.config.items() if name not in _SHOWN_ELSEWHERE and section]
    return Table((Column("Section"), Column("Settings")), tuple(rows))


def _brief(value: Any) -> str:
    """Return settings in one line, as in ``kind: pixels, options (size: 28)``."""
    if isinstance(value, Mapping):
        pairs = ((str(key), item) for key, item in value.items() if item is not None and item != {} and item != [])
        return ", ".join(
            f"{key} ({_brief(item)})" if isinstance(item, Mapping) else f"{key}: {_brief(item)}" for key, item in pairs
        )
    if isinstance(value, list):
        return " ".join(_brief(item) for item in value)
    return value if isinstance(value, str) else dump_json(value)


def _incidents_table(summary: Mapping[str, Any]) -> Table:
    rows = tuple((entry["client"], entry["what"], entry["rounds"]) for entry in summary["incidents"])
    return Table((Column("Client"), Column("What happened"), Column("Rounds")), rows)
