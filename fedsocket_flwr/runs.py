"""Runs in Python: start one, open a finished one, read its numbers, use its predictors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.plain_files import read_json
from fedsocket_flwr.runtime.callbacks import Callback

if TYPE_CHECKING:
    import pandas as pd

    from fedsocket_flwr.endpoints import Endpoint, Predictor


@dataclass(frozen=True)
class Run:
    """A run on disk; see ``docs/run_folder.md`` for the files."""

    folder: Path

    @cached_property
    def config(self) -> Configuration:
        """The resolved configuration."""
        return read_configuration(self.folder / "config.yaml")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of the run, as in ``summary.json``."""
        summary: dict[str, Any] = read_json(self.folder / "summary.json")
        return summary

    @property
    def history(self) -> "pd.DataFrame":
        """DEV in long form: round of the model, task, client (None: the task's mean), endpoint, metric, value."""
        from fedsocket_flwr.evaluation.history import load_history

        return load_history(self.folder).history

    @property
    def rounds(self) -> "pd.DataFrame":
        """One row a round: seconds, participation, bytes, the strategy's numbers."""
        from fedsocket_flwr.evaluation.history import load_history

        return load_history(self.folder).rounds

    def predictor(self, client: str, endpoint: "Endpoint" = "joint") -> "Predictor":
        """Return one endpoint of a client, ready for raw inputs."""
        from fedsocket_flwr.endpoints import load_predictor

        return load_predictor(self.folder, client, endpoint)


def run(
    config: Configuration | str | Path,
    *,
    out: Path | str | None = None,
    engine: engines.Engine = "inprocess",
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Carry out a run and return it.

    Parameters
    ----------
    config
        A configuration, the path of a YAML file, or the name of a shipped configuration.
    out
        The run folder; None makes ``runs/<name>-<seed>``.
    engine
        ``inprocess`` needs nothing but this process; ``ray`` uses all processors through Flower.
    callbacks
        What follows the run, in this process; see :class:`fedsocket_flwr.runtime.callbacks.Callback`.
    """
    resolved = config if isinstance(config, Configuration) else read_configuration(config)
    return Run(engines.start(resolved, None if out is None else Path(out), engine, callbacks))


def open_run(folder: Path | str) -> Run:
    """Return the run of a folder, or raise :class:`RunError`."""
    if not (Path(folder) / "config.yaml").exists():
        raise RunError(f"{folder} is no run folder: it has no config.yaml")
    return Run(Path(folder))
