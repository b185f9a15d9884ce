"""The server's loop: drives a strategy from any starting round, and the phases after the last one.

Flower's own ``Strategy.start`` always begins at round 1 and knows no closing phases; this loop calls the same ``configure_train``
and ``aggregate_train``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsocket_flwr.metric_names import ENDPOINTS, split_metric

Row = dict[str, Any]
DEV_PREFIX = "dev."
"""A metric ``dev.q.accuracy`` of an answer is the DEV accuracy of Q for the model of the round before."""


class PhasedStrategy(Protocol):
    """What the loop needs of a strategy; ``RegisteredStrategy`` has it."""

    report: Any

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the messages of a round."""

    def aggregate_train(self, server_round: int, replies: Sequence[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the arrays after a round; None keeps the former."""

    def configure_phase(
        self,
        phase: str,
        server_round: int,
        arrays: ArrayRecord,
        clients: Sequence[str],
        settings: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Return the messages of a closing phase."""

    def read_phase(self, server_round: int, replies: Sequence[Message]) -> Sequence[Any]:
        """Return the sound answers of a closing phase."""


def run_rounds(
    grid: Grid,
    strategy: PhasedStrategy,
    arrays: ArrayRecord,
    *,
    first: int,
    last: int,
    seconds: float,
    on_round: Callable[[Row, ArrayRecord], None],
) -> ArrayRecord:
    """Train rounds ``first`` to ``last`` and return the arrays after the last one.

    Parameters
    ----------
    grid, strategy, arrays
        Where clients are, how they are asked and merged, and the arrays before round ``first``.
    first, last
        The rounds to train, both included.
    seconds
        How long a round waits for answers.
    on_round
        Receives the history's row of each round and the arrays after it.
    """
    for server_round in range(first, last + 1):
        began = time.monotonic()
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages, timeout=seconds))
        merged, _ = strategy.aggregate_train(server_round, replies)
        arrays = arrays if merged is None else merged
        row = history_row("train", server_round, server_round - 1, strategy.report, time.monotonic() - began)
        on_round(row, arrays)
    return arrays


def run_phase(
    grid: Grid,
    strategy: PhasedStrategy,
    phase: str,
    server_round: int,
    arrays: ArrayRecord,
    clients: Sequence[str],
    seconds: float,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Row, Sequence[Any]]:
    """Ask ``clients`` once for a closing phase; return the history's row and the sound answers."""
    began = time.monotonic()
    messages = strategy.configure_phase(phase, server_round, arrays, clients, settings)
    answers = strategy.read_phase(server_round, list(grid.send_and_receive(messages, timeout=seconds)))
    return history_row(phase, server_round, server_round, strategy.report, time.monotonic() - began), answers


def history_row(phase: str, server_round: int, dev_round: int, report: Any, seconds: float) -> Row:
    """Return one line of the history. DEV numbers are those of the model after ``dev_round``."""
    row: Row = {"phase": phase, "round": server_round, "seconds": round(seconds, 3), **asdict(report)}
    row["clients"] = {
        client: {name: value for name, value in numbers.items() if not name.startswith(DEV_PREFIX)}
        for client, numbers in report.clients.items()
    }
    measured = {
        client: {
            name.removeprefix(DEV_PREFIX): value
            for name, value in numbers.items()
            # What an answer calls DEV without being of an endpoint belongs to no table, and is left out.
            if name.startswith(DEV_PREFIX) and split_metric(name.removeprefix(DEV_PREFIX))[0] in ENDPOINTS
        }
        for client, numbers in report.clients.items()
    }
    if any(measured.values()):
        row["dev"] = {"round": dev_round, "clients": {client: numbers for client, numbers in measured.items() if numbers}}
    return row
