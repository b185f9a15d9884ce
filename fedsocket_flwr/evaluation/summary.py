"""The numbers of a finished or cut-off run, as ``summary.json`` holds them."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from fedsocket_flwr.evaluation.groups import group_results
from fedsocket_flwr.evaluation.incidents import incidents
from fedsocket_flwr.evaluation.run_folder import Record, RunRecord
from fedsocket_flwr.metric_names import ENDPOINTS

BYTES = ("up", "down", "up_full", "down_full")


def summarise(run: RunRecord) -> dict[str, Any]:
    """Return the content of ``summary.json`` (its schema: ``docs/run_folder.md``)."""
    settings = run.config["run"]
    rounds = run.rounds
    summary: dict[str, Any] = {
        "run": run.run.get("run"),
        "name": settings.get("name"),
        "method": settings.get("method"),
        "seed": settings.get("seed"),
        "rounds": run.rounds_wanted,
        "rounds_done": len(rounds),
        "status": "complete" if run.complete else "unfinished",
        "engine": run.run.get("engine"),
        "q_parameters": run.q_parameters,
        "bytes": {name: sum(int(row.get("bytes", {}).get(name, 0)) for row in rounds) for name in BYTES},
        "seconds": sum(float(row.get("seconds", 0.0)) for row in rounds),
        "endpoints": endpoint_means(run, "best"),
        "endpoints_last": endpoint_means(run, "last"),
        "groups": group_results(run, "best"),
        "groups_last": group_results(run, "last"),
        "clients": {} if run.test is None else dict(run.test),
        "participation": participation(run),
        "refused": refused(run),
        "incidents": incidents(run.rows),
        "notes": list(run.notes),
    }
    measured = list(run.dev())
    if measured:
        number, dev = measured[-1]
        summary["dev"] = {"round": number, "tasks": dev.get("tasks", {})}
    return summary


def endpoint_means(run: RunRecord, choice: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return task -> endpoint -> metric -> unweighted mean over the task's clients that have it, for ``best`` or ``last``."""
    clients = list((run.test or {}).values())
    means: dict[str, dict[str, dict[str, float]]] = {}
    for task in run.tasks:
        own = [client.get(choice, {}) for client in clients if client["task"] == task]
        endpoints = {endpoint: _means([client.get(endpoint) or {} for client in own]) for endpoint in ENDPOINTS}
        if any(endpoints.values()):
            means[task] = {endpoint: metrics for endpoint, metrics in endpoints.items() if metrics}
    return means


def _means(clients: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metrics in clients:
        for metric, value in metrics.items():
            if value is not None:
                values.setdefault(metric, []).append(float(value))
    return {metric: fmean(found) for metric, found in values.items()}


def clients_measured(run: RunRecord, task: str, choice: str, metric: str) -> int:
    """Return over how many of a task's clients the mean of a TEST metric goes."""
    own = [client.get(choice, {}) for client in (run.test or {}).values() if client["task"] == task]
    return sum(any(metric in (client.get(endpoint) or {}) for endpoint in ENDPOINTS) for client in own)


def participation(run: RunRecord) -> dict[str, int]:
    """Return client -> number of rounds in which its update was merged."""
    merged = [set(row.get("answered", ())) - set(row.get("refused", {})) for row in run.rounds]
    names = dict.fromkeys([*run.clients, *(client for answered in merged for client in sorted(answered))])
    return {client: sum(client in answered for answered in merged) for client in names}


def refused(run: RunRecord) -> list[Record]:
    """Return one ``{round, client, reason}`` for every refused update."""
    return [
        {"round": row.get("round"), "client": client, "reason": reason}
        for row in run.rows
        for client, reason in (row.get("refused") or {}).items()
    ]
