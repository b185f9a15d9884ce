"""Groups of a task's clients, measured over the pooled TEST rows of their clients (FedSocket v1, Eq. 6 and Appendix I).

Legend: ``C`` classes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.metrics import metrics_from_confusion
from fedsocket_flwr.evaluation.run_folder import Record, RunRecord
from fedsocket_flwr.metric_names import ENDPOINTS

Array = NDArray[Any]
# Task -> group -> {"clients": n, "rows": n, "endpoints": {endpoint: {metric: value}}}
Groups = dict[str, dict[str, dict[str, Any]]]


def group_results(run: RunRecord, moment: str) -> Groups:
    """Return the groups of every task whose clients came with confusion matrices.

    Accuracy, macro F1 and UAR are those of the sum of the clients' matrices, so a client weighs as many rows as it has. An
    endpoint that a client lacks is pooled over the others.

    Parameters
    ----------
    run
        A run folder as read.
    moment
        ``best`` or ``last``.

    Returns
    -------
    dict
        Task -> group -> ``clients`` and ``rows``, the numbers of clients and TEST rows that are pooled, and ``endpoints``,
        endpoint -> metric -> value. A group without rows is absent, and so is a task without groups.

    Raises
    ------
    RunError
        A matrix is not C by C, with the C of the task's other ones; the message names the file, client and matrix.
    """
    found: Groups = {}
    for task in run.tasks:
        matrices = _matrices(run, task, moment)
        members = group_members(run.config["tasks"][task])
        groups = {group: _pooled([matrices[name] for name in names if name in matrices]) for group, names in members.items()}
        present = {group: pooled for group, pooled in groups.items() if pooled["rows"]}
        if present:
            found[task] = present
    return found


def group_members(task: Record) -> dict[str, list[str]]:
    """Return the names of a task's clients by group, from its section of a stored configuration.

    The groups are ``all``, ``recipients``, ``donors`` (who hold a modality beyond those that Q reads) and, for each private model
    of recipients, ``recipients: MODEL``.
    """
    members: dict[str, list[str]] = {"all": [], "recipients": [], "donors": []}
    for client in task["clients"]:
        donor = is_donor(task, client)
        groups = ["all", "donors"] if donor else ["all", "recipients", f"recipients: {client.get('model', '')}"]
        for group in groups:
            members.setdefault(group, []).append(client["name"])
    return members


def is_donor(task: Record, client: Record) -> bool:
    """Say whether a client holds a modality beyond those that Q reads; one that names none holds all of its task's."""
    held = client.get("modalities") or task.get("modalities") or ()
    return task.get("shared") is not None and not set(held) <= set(task["shared"])


def group_label(group: str) -> str:
    """Return a group's name for people."""
    return group[:1].upper() + group[1:]


def _matrices(run: RunRecord, task: str, moment: str) -> dict[str, dict[str, Array]]:
    """Return client -> endpoint -> confusion matrix (C, C)."""
    found: dict[str, dict[str, Array]] = {}
    classes: int | None = None
    for name, tested in (run.test or {}).items():
        for endpoint, counts in _counts(tested, moment) if tested["task"] == task else ():
            classes = classes or math.isqrt(len(counts))
            if not counts or len(counts) != classes**2:
                raise RunError(
                    f"{run.folder / 'test.json'}: clients.{name}.confusion.{moment}.{endpoint} has {len(counts)} counts, "
                    f"expected {classes} x {classes}"
                )
            found.setdefault(name, {})[endpoint] = np.array(counts, dtype=np.int64).reshape(classes, classes)
    return found


def _counts(tested: Record, moment: str) -> Iterator[tuple[str, list[int]]]:
    matrices = tested.get("confusion") or {}
    yield from ((endpoint, matrices[key]) for endpoint in ENDPOINTS if (key := f"{moment}.{endpoint}") in matrices)


def _pooled(clients: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Return a group's entry; a client has as many rows as the endpoint with most."""
    rows = [max(int(matrix.sum()) for matrix in by_endpoint.values()) for by_endpoint in clients]
    endpoints = {}
    for endpoint in ENDPOINTS:
        matrices = [by_endpoint[endpoint] for by_endpoint in clients if endpoint in by_endpoint]
        metrics = metrics_from_confusion(np.sum(matrices, axis=0)) if matrices else {}
        if metrics:
            endpoints[endpoint] = metrics
    return {"clients": sum(number > 0 for number in rows), "rows": sum(rows), "endpoints": endpoints}
