"""Flower's processes on this machine: a SuperLink of our own, and the ``flwr`` command against it.

It is hermetic: its home, port and working directory are its own, it installs nothing, and it leaves nothing behind.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.runtime.process_groups import stop_with_descendants
from fedsocket_flwr.runtime.store import state_directory

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


class Flower:
    """The ``flwr`` command against one SuperLink."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self._environment = dict(environment)

    def run(self, app: Path, federation: str, run_config: str) -> None:
        """Run an app to its end; :class:`RunError` with Flower's own words when it did not complete."""
        started = self._call("run", str(app), "--federation-config", federation, "--run-config", run_config)
        run_id = str(started["run-id"])
        try:
            self._follow_log(run_id)
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

    def _follow_log(self, run_id: str) -> None:
        """Wait until the log of a run ends, which is when the run ends, or until it breaks off.

        Asking for the status all the time instead would keep half a processor busy: each ``flwr list`` starts a new Python.
        """
        subprocess.run(
            [_executable("flwr"), "log", run_id, "--stream"],
            env=self._environment,
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )

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
def local_superlink() -> Iterator[Flower]:
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
        yield Flower(home, environment)
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


def _executable(name: str) -> str:
    """Return the command of this very environment, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
