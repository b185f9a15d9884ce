"""A callback: a CSV file of every task's DEV metrics, a line a number."""

import csv
from pathlib import Path

from fedsocket_flwr.runtime.callbacks import Row, RunFacts


class DevLog:
    """Follow a run; one that is continued goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_start(self, run: RunFacts) -> None:
        """Begin the file."""
        if not self._path.exists():
            self._write(["round", "task", "endpoint", "metric", f"{run.name}, seed {run.seed}"])

    def on_phase(self, row: Row) -> None:
        """Add the round's lines; ``row`` is an object of ``history.jsonl``, see docs/run_folder.md."""
        dev = row.get("dev")
        if dev is None:
            return
        for task, endpoints in dev["tasks"].items():
            for endpoint in ("private", "q", "joint"):
                for metric, value in endpoints.get(endpoint, {}).items():
                    self._write([dev["round"], task, endpoint, metric, value])

    def on_end(self, status: str) -> None:
        """Say how it ended."""
        self._write(["end", "", "", "", status])

    def _write(self, fields: list[object]) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(fields)
