"""One application, two ways to run it here: in this process, or through Flower and Ray.

The Ray engine writes a thin app and runs it at a SuperLink of its own (:mod:`fedsocket_flwr.runtime.superlink`); an error of the
run is an error here.
"""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.client_data import warm_features
from fedsocket_flwr.datasets.features import Progress
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.methods import feature_directory
from fedsocket_flwr.plain_files import read_json_lines
from fedsocket_flwr.run_preparation import prepare_resume, prepare_run, read_run_configuration, report_what_is_there, run_facts
from fedsocket_flwr.runtime.callbacks import Callback, Callbacks
from fedsocket_flwr.runtime.device import available_cpus
from fedsocket_flwr.runtime.run_files import load_checkpoint
from fedsocket_flwr.runtime.store import state_directory
from fedsocket_flwr.runtime.superlink import QUIET, Flower, local_superlink

Engine = Literal["ray", "inprocess"]
POLL_SECONDS = 0.5
THIN_APP = """\
[project]
name = "fedsocket-run"
version = "0.1.0"
description = "One run of fedsocket-flwr; the package itself is installed."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsocket"

[tool.flwr.app.components]
serverapp = "fedsocket_flwr.server_app:app"
clientapp = "fedsocket_flwr.client_app:app"

[tool.flwr.app.config]
"""


def start(config: Configuration, out: Path | None, engine: Engine, callbacks: Sequence[Callback] = ()) -> Path:
    """Prepare a run, carry it out and return its folder.

    Raises
    ------
    FedSocketError
        The run cannot start or has failed; what was finished is on disk.
    """
    folder = prepare_run(config, out, engine)
    carry_out(folder, engine, callbacks)
    return folder


def resume(
    folder: Path,
    engine: Engine,
    rounds: int | None = None,
    callbacks: Sequence[Callback] = (),
    overrides: Sequence[str] = (),
    given: Configuration | None = None,
) -> bool:
    """Continue a cut run, or a finished one with more rounds; return False when there was nothing left to do.

    ``rounds``, ``overrides`` and ``given`` are those of :func:`~fedsocket_flwr.run_preparation.prepare_resume`.
    """
    if not prepare_resume(folder, rounds, overrides, given):
        return False
    carry_out(folder.absolute(), engine, callbacks)
    return True


def carry_out(folder: Path, engine: Engine, callbacks: Sequence[Callback] = ()) -> None:
    """Run the prepared run of a folder to its end."""
    config = read_run_configuration(folder)
    compute_features(folder)
    if engine == "inprocess":
        _in_process(config, folder, callbacks)
    else:
        _through_ray(config, folder, callbacks)


def compute_features(folder: Path, progress: Progress | None = None) -> None:
    """Compute a prepared run's interface features: once, with one process, before any worker waits for them."""
    warm_features(read_run_configuration(folder), feature_directory(state_directory({})), progress)


def _in_process(config: Configuration, folder: Path, callbacks: Sequence[Callback]) -> None:
    from fedsocket_flwr import client_app, server_app
    from fedsocket_flwr.runtime.inprocess import InProcessGrid

    number = len(list(config.clients()))
    nodes: list[dict[str, Any]] = [{"partition-id": k, "num-partitions": number} for k in range(number)]
    server_app.serve(InProcessGrid(client_app.app, nodes), folder, callbacks)


def _through_ray(config: Configuration, folder: Path, callbacks: Sequence[Callback]) -> None:
    resources = config.resources
    workers = resources.workers or max(1, available_cpus() // resources.cpus)
    federation = (
        f"num-supernodes={len(list(config.clients()))} client-resources-num-cpus={resources.cpus} "
        f"client-resources-num-gpus={float(resources.gpus)} init-args-num-cpus={workers * resources.cpus}"
    )
    try:
        with local_superlink() as flwr, followed(folder, callbacks):
            flwr.run(thin_app(flwr.home / "app", resume=str(folder)), federation)
    except BaseException:
        # The ServerApp may have been killed before it could.
        report_what_is_there(folder)
        raise


def submit(superlink: str, **settings: str) -> None:
    """Have a run carried out by a SuperLink that is up, and show its log until it ends.

    Parameters
    ----------
    superlink
        Its name in Flower's own configuration (``config.toml`` in ``FLWR_HOME``, else in ``~/.flwr``).
    **settings
        Those of the ServerApp: ``configuration``, the whole configuration as JSON, and perhaps ``out``; or ``resume``. Folders
        are on the SuperLink's host.

    Raises
    ------
    RunError
        There is no such SuperLink, or the run failed.
    """
    home = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedsocket-app-") as scratch:
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(home)}
        Flower(home, environment, superlink).run(thin_app(Path(scratch) / "app", **settings), show_log=True)


def thin_app(folder: Path, **settings: str) -> Path:
    """Write the app that Flower is given, which only names the installed package and its settings, and return its folder."""
    folder.mkdir(exist_ok=True)
    # JSON's texts are TOML's, as long as letters stand for themselves.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items()]
    (folder / "pyproject.toml").write_text(THIN_APP + "".join(lines), encoding="utf-8")
    return folder


@contextlib.contextmanager
def followed(folder: Path, callbacks: Sequence[Callback]) -> Iterator[None]:
    """Tell callbacks of this process what the ServerApp's process writes into the history."""
    together = Callbacks(callbacks)
    facts = run_facts(folder)
    together.on_start(facts)
    checkpoint = load_checkpoint(folder)
    done = checkpoint.round if checkpoint else 0
    stop = threading.Event()
    follower = threading.Thread(target=_follow, args=(folder, together, stop, done, facts.rounds), daemon=True)
    follower.start()
    status = "interrupted"
    try:
        yield
        status = "finished"
    except RunError as error:
        status = f"failed: {error}"
        raise
    finally:
        stop.set()
        follower.join()
        together.on_end(status)


def _follow(folder: Path, callbacks: Callbacks, stop: threading.Event, done: int, rounds: int) -> None:
    told = done
    while True:
        last_look = stop.is_set()
        path = folder / "history.jsonl"
        rows = read_json_lines(path)[0] if path.exists() else []
        # A run that was given more rounds still has the closing line of the shorter one, until its ServerApp has started.
        closing = [row for row in rows if row["phase"] != "train" and row["round"] == rounds]
        for row in [row for row in rows if row["phase"] == "train" and row["round"] > told] + closing:
            callbacks.on_phase(row)
            told = row["round"]
        if last_look or closing:
            return
        stop.wait(POLL_SECONDS)
