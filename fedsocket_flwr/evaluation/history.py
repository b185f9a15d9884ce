"""The history of a run as data frames."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.run_folder import RunRecord, read_run
from fedsocket_flwr.metric_names import split_metric

DEV_COLUMNS = ("round", "task", "client", "endpoint", "metric", "value")
CLIENT_COLUMNS = ("round", "task", "client", "metric", "value")
ROUND_COLUMNS = ("round", "seconds", "asked", "answered", "refused", "missing", "up", "down", "up_full", "down_full")


class History(NamedTuple):
    """The history of a run.

    Attributes
    ----------
    history
        What was measured on DEV, long form: ``round`` (of the model), ``task``, ``client`` (None: the task's mean), ``endpoint``
        (``private``, ``q`` or ``joint``), ``metric``, ``value``. The weights of Joint are metrics of the endpoint ``joint``.
    rounds
        One row a round of training: ``round``, ``seconds``, numbers of clients ``asked``, ``answered``, ``refused``, ``missing``,
        bytes ``up``, ``down``, ``up_full``, ``down_full``, and one column for each value that the strategy reported.
    clients
        What clients reported of their training, long form: ``round``, ``task``, ``client``, ``metric``, ``value``.
    """

    history: pd.DataFrame
    rounds: pd.DataFrame
    clients: pd.DataFrame


def load_history(folder: Path) -> History:
    """Read the history of the run in ``folder``, finished or not.

    Raises
    ------
    RunError
        If a file of the folder is missing or malformed; the message names it.
    """
    if not (folder / "history.jsonl").exists():
        raise RunError(f"{folder / 'history.jsonl'}: no such file")
    return history_frames(read_run(folder))


def history_frames(run: RunRecord) -> History:
    """Return the history of a run that was read."""
    return History(_dev_frame(run), _round_frame(run), _client_frame(run))


def _task_of(run: RunRecord, client: str) -> str | None:
    facts = run.clients.get(client)
    return facts.task if facts else None


def _dev_frame(run: RunRecord) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for number, dev in run.dev():
        for task, found in dev.get("tasks", {}).items():
            for endpoint, metrics in found.items():
                if isinstance(metrics, dict):
                    rows += [(number, task, None, endpoint, metric, value) for metric, value in metrics.items()]
        for client, metrics in dev.get("clients", {}).items():
            named = ((*split_metric(name), value) for name, value in metrics.items())
            rows += [(number, _task_of(run, client), client, *found) for found in named]
    return _numbers(pd.DataFrame(rows, columns=list(DEV_COLUMNS)), "value")


def _round_frame(run: RunRecord) -> pd.DataFrame:
    rows = []
    for row in run.rounds:
        counts = {name: len(row.get(name, ())) for name in ("asked", "answered", "refused", "missing")}
        rows.append(
            {"round": row["round"], "seconds": row.get("seconds"), **counts, **row.get("bytes", {}), **row.get("strategy", {})}
        )
    frame = pd.DataFrame(rows)
    columns = [*ROUND_COLUMNS, *(column for column in frame.columns if column not in ROUND_COLUMNS)]
    return frame.reindex(columns=columns)


def _client_frame(run: RunRecord) -> pd.DataFrame:
    rows = [
        (row["round"], _task_of(run, client), client, metric, value)
        for row in run.rounds
        for client, metrics in row.get("clients", {}).items()
        for metric, value in metrics.items()
    ]
    return _numbers(pd.DataFrame(rows, columns=list(CLIENT_COLUMNS)), "value")


def _numbers(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    frame[column] = pd.to_numeric(frame[column], errors="coerce")
    return frame
