"""One application, three ways to run it: in this process, through Flower and Ray on this machine, or at a named SuperLink.

The Ray engine is hermetic: its SuperLink has a home, a port and a working directory of its own, installs nothing, and leaves
nothing behind; what the exit status says is what happened.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
from fedsocket_flwr.runtime.process_groups import stop_with_descendants
from fedsocket_flwr.runtime.run_files import load_checkpoint
from fedsocket_flwr.runtime.store import state_directory

Engine = Literal["ray", "inprocess"]
POLL_SECONDS = 0.5
START_SECONDS = 60.0
STOP_SECONDS = 20.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Flower and Ray neither report home nor install anything."""

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
resume = ""
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


def resume(folder: Path, engine: Engine, rounds: int | None = None, callbacks: Sequence[Callback] = ()) -> bool:
    """Continue a cut run, or a finished one with more rounds; return False when there was nothing left to do."""
    if not prepare_resume(folder, rounds):
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
        with _local_superlink() as flwr, _followed(folder, callbacks):
            app = flwr.home / "app"
            app.mkdir()
            (app / "pyproject.toml").write_text(THIN_APP, encoding="utf-8")
            flwr.run(app, federation, f'resume="{folder}"')
    except BaseException:
        # The ServerApp may have been killed before it could.
        report_what_is_there(folder)
        raise


class _Flower:
    """The ``flwr`` command against one SuperLink."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self._environment = dict(environment)

    def run(self, app: Path, federation: str, run_config: str) -> None:
        """Run an app to its end; :class:`RunError` with Flower's own words when it did not complete."""
        started = self._call("run", str(app), "--federation-config", federation, "--run-config", run_config)
        run_id = str(started["run-id"])
        try:
            while True:
                (found,) = self._call("list", "--run-id", run_id)["runs"]
                if str(found["status"]).startswith("finished"):
                    break
                time.sleep(POLL_SECONDS)
        except BaseException:
            with contextlib.suppress(RunError):
                self._call("stop", run_id)
            raise
        if found["status"] != "finished:completed":
            raise RunError(f"the run ended as {found['status']}: {found.get('status-details') or 'no details'}")

    def _call(self, *arguments: str) -> Any:
        done = subprocess.run(
            [_executable("flwr"), *arguments, "--format", "json"],
            env=self._environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        # Flower exits with 0 whatever happened when it prints JSON; the text alone tells.
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise RunError(f"flwr {arguments[0]} failed: {done.stdout}{done.stderr}") from None
        if not answer.get("success"):
            raise RunError(f"flwr {arguments[0]} failed: {answer.get('error-message', done.stderr)}")
        return answer


@contextlib.contextmanager
def _local_superlink() -> Iterator[_Flower]:
    """Start a SuperLink with a home, a port and a working directory of its own; take it down with all that it started."""
    home = Path(tempfile.mkdtemp(prefix="fedsocket-flower-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "FEDSOCKET_HOME": str(state_directory({})),
        # The SuperLink starts its helpers by name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": _import_folders(),
    }
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "run"\n\n[superlink.run]\naddress = "127.0.0.1:{port}"\ninsecure = true\n', encoding="utf-8"
    )
    log_path = home / "superlink.log"
    with log_path.open("wb") as log:
        superlink = subprocess.Popen(
            [_executable("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            # A neutral folder: Ray's workers search the SuperLink's folder for modules before anything else.
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for_port(port, superlink, log_path)
        yield _Flower(home, environment)
    finally:
        # Flower's helpers and Ray are in sessions of their own: without their parent they would carry the run on.
        stop_with_descendants(superlink, STOP_SECONDS)
        shutil.rmtree(home, ignore_errors=True)


def _import_folders() -> str:
    """Return where this process finds modules, in its order: a user's model that it can import, the workers can too."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))


def _wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.1)
    raise RunError(f"Flower's SuperLink did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


@contextlib.contextmanager
def _followed(folder: Path, callbacks: Sequence[Callback]) -> Iterator[None]:
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


def _executable(name: str) -> str:
    """Return the command of this very environment, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
