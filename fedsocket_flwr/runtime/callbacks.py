"""What is told to the outside while a run goes on: its history on disk, a line a round, and whatever a user adds.

A callback hears of the start, of every finished phase and of the end. It cannot change the run, and cannot lose it by failing.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.metric_names import split_metric
from fedsocket_flwr.plain_files import dump_json, read_json_lines, write_whole
from fedsocket_flwr.runtime.progress import encodable, format_progress

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunFacts:
    """What a callback learns at the start; ``tasks`` maps a task to its kind."""

    run: str
    name: str
    method: str
    seed: int
    rounds: int
    tasks: Mapping[str, str]
    folder: Path

    def in_words(self) -> str:
        """Return what is run in one line."""
        tasks = ", ".join(f"{task} ({kind})" for task, kind in self.tasks.items())
        return f"{self.name}: {self.method}, seed {self.seed}, {self.rounds} rounds, tasks {tasks}"


class Callback(Protocol):
    """Something that follows a run.

    ``on_phase`` gets one complete object of ``history.jsonl`` (see ``docs/run_folder.md``); ``on_end`` gets ``"finished"``, or in
    a few words why the run ended.
    """

    def on_start(self, run: RunFacts) -> None:
        """Hear that the run starts or goes on."""
        ...

    def on_phase(self, row: Row) -> None:
        """Hear that a round, or the closing, is finished."""
        ...

    def on_end(self, status: str) -> None:
        """Hear that the run is over."""
        ...


class Callbacks:
    """Several callbacks as one: each hears everything, in order, and an error in one is logged once and goes no further."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._failed: set[int] = set()

    def on_start(self, run: RunFacts) -> None:
        """Tell every callback that the run starts."""
        self._tell("on_start", run)

    def on_phase(self, row: Row) -> None:
        """Tell every callback that a phase is finished."""
        self._tell("on_phase", row)

    def on_end(self, status: str) -> None:
        """Tell every callback that the run is over."""
        self._tell("on_end", status)

    def _tell(self, event: str, what: object) -> None:
        for place, callback in enumerate(self._callbacks):
            try:
                getattr(callback, event)(what)
            except Exception:
                if place not in self._failed:
                    self._failed.add(place)
                    logger.exception("callback %s failed in %s; the run goes on without it", type(callback).__name__, event)


class HistoryWriter:
    """Append every phase to ``history.jsonl``.

    Parameters
    ----------
    folder
        The run folder.
    resumed_round
        The last round that is kept when the run starts; later ones and the closing line are dropped, since they will be run
        again. 0 begins a new history.
    """

    def __init__(self, folder: Path, resumed_round: int = 0) -> None:
        self.path = folder / "history.jsonl"
        self._resumed_round = resumed_round

    def on_start(self, run: RunFacts) -> None:
        """Drop what will be run again, also a last line that was cut off."""
        rows = read_json_lines(self.path)[0] if self.path.exists() else []
        kept = [row for row in rows if row["phase"] == "train" and row["round"] <= self._resumed_round]
        write_whole(self.path, "".join(dump_json(row) + "\n" for row in kept))

    def on_phase(self, row: Row) -> None:
        """Append one line; after this call it is on disk, whole or not at all."""
        line = (dump_json(row) + "\n").encode()
        with self.path.open("ab") as file:
            size = file.tell()
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, size)
                raise

    def on_end(self, status: str) -> None:
        """Do nothing: every line is on disk already."""


class ProgressPrinter:
    """Print one whole line a round, as :func:`progress.format_progress` makes it.

    The line is never wrapped or redrawn, so the width of the terminal does not matter. Letters that the stream cannot encode are
    written as escapes. The round is bold on a terminal, unless ``NO_COLOR`` is set.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rounds = 0
        self._bold = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def on_start(self, run: RunFacts) -> None:
        """Print what is run."""
        self._rounds = run.rounds
        self._print(run.in_words())

    def on_phase(self, row: Row) -> None:
        """Print the round."""
        line = format_progress(row, self._rounds)
        head, gap, rest = line.partition("  ")
        self._print(line, f"\x1b[1m{head}\x1b[0m{gap}{rest}" if self._bold else line)

    def on_end(self, status: str) -> None:
        """Print how the run ended."""
        self._print(f"run {status}")

    def _print(self, line: str, styled: str | None = None) -> None:
        text = encodable(styled if styled is not None else line, getattr(self._stream, "encoding", None))
        self._stream.write(text + "\n")
        self._stream.flush()


class ProgressLog:
    """Say the same in the log, where Flower shows it to whoever follows a run with ``flwr run --stream`` or ``flwr log``."""

    def __init__(self) -> None:
        self._rounds = 0

    def on_start(self, run: RunFacts) -> None:
        """Say what is run, and where it writes: the folder is on the machine of the ServerApp."""
        self._rounds = run.rounds
        logger.info("%s; folder %s", run.in_words(), run.folder)

    def on_phase(self, row: Row) -> None:
        """Say how the round went."""
        logger.info("%s", format_progress(row, self._rounds))

    def on_end(self, status: str) -> None:
        """Say how the run ended."""
        logger.info("run %s", status)


class TensorBoardWriter:
    """Write scalars for TensorBoard under ``tensorboard/`` of the run folder; needs the extra ``tracking``.

    DEV metrics stand at the round of the model that was measured; everything else at the round in which it was seen.
    """

    def __init__(self, folder: Path, resumed_round: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                "evaluation.tensorboard is true, but TensorBoard is not installed; install the extra: "
                "pip install 'fedsocket-flwr[tracking]', or set evaluation.tensorboard to false"
            ) from error
        purge = resumed_round + 1 if resumed_round else None
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def on_start(self, run: RunFacts) -> None:
        """Write what is run."""
        self._writer.add_text("run", f"{run.name}: {run.method}, seed {run.seed}")

    def on_phase(self, row: Row) -> None:
        """Write the scalars of a phase and flush them."""
        for name, value, step in scalars(row):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_end(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


def scalars(row: Row) -> list[tuple[str, float, int]]:
    """Return every number of a history row as ``(name/with/slashes, value, round)``, for any tracker."""
    step = int(row["round"])
    found = [("round/seconds", row.get("seconds"), step)]
    found += [(f"bytes/{name}", value, step) for name, value in row.get("bytes", {}).items()]
    found += [(f"participation/{name}", len(row[name]), step) for name in ("answered", "refused", "missing") if name in row]
    found += [(f"strategy/{name}", value, step) for name, value in row.get("strategy", {}).items()]
    for client, metrics in row.get("clients", {}).items():
        found += [(f"train/{client}/{name}", value, step) for name, value in metrics.items()]
    dev = row.get("dev") or {}
    for task, endpoints in dev.get("tasks", {}).items():
        for endpoint, metrics in endpoints.items():
            if isinstance(metrics, Mapping):
                found += [(f"dev/{task}/{endpoint}/{name}", value, int(dev["round"])) for name, value in metrics.items()]
    for client, metrics in dev.get("clients", {}).items():
        named = ((*split_metric(name), value) for name, value in metrics.items())
        found += [(f"dev_client/{client}/{endpoint}/{name}", value, int(dev["round"])) for endpoint, name, value in named]
    return [(name, float(value), at) for name, value, at in found if isinstance(value, (int, float))]
