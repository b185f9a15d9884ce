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
from fedsocket_flwr.text import one_line

POLL_SECONDS = 0.5
OWN = "run"
"""What a home of ours calls its SuperLink."""
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
    """The ``flwr`` command against one SuperLink.

    Parameters
    ----------
    home
        The folder of ``config.toml``, which names SuperLinks.
    environment
        Of the command; its ``FLWR_HOME`` is ``home``.
    superlink
        The name of the SuperLink there.
    """

    def __init__(self, home: Path, environment: Mapping[str, str], superlink: str = OWN) -> None:
        self.home = home
        self.superlink = superlink
        self._environment = dict(environment)

    def run(self, app: Path, federation: str | None = None, run_config: str = "", show_log: bool = False) -> None:
        """Run an app to its end; :class:`RunError` with Flower's own words when it did not complete.

        ``federation`` is for simulations; ``show_log`` prints Flower's log of the run meanwhile.
        """
        run_id = self.start(app, federation, run_config)
        try:
            found = self.wait(run_id, show_log)
        except BaseException:
            with contextlib.suppress(RunError):
                self.call("stop", run_id, self.superlink)
            raise
        if found["status"] != "finished:completed":
            raise RunError(f"the run ended as {found['status']}: {found.get('status-details') or 'no details'}")

    def start(self, app: Path, federation: str | None = None, run_config: str = "") -> str:
        """Start an app and return the run's id."""
        options = ["--federation-config", federation] if federation else []
        options += ["--run-config", run_config] if run_config else []
        return str(self.call("run", str(app), self.superlink, *options)["run-id"])

    def wait(self, run_id: str, show_log: bool = False) -> Mapping[str, Any]:
        """Wait until a run has ended, and return what ``flwr list`` says of it."""
        while True:
            self._follow_log(run_id, show_log)
            (found,) = self.call("list", self.superlink, "--run-id", run_id)["runs"]
            if str(found["status"]).startswith("finished"):
                return dict(found)
            time.sleep(POLL_SECONDS)

    def call(self, *arguments: str) -> Any:
        """Call ``flwr`` and return what it prints as JSON; :class:`RunError` where it did not succeed."""
        done = subprocess.run(
            [executable("flwr"), *arguments, "--format", "json"],
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
            raise RunError(f"flwr {arguments[0]} failed: {one_line(done.stdout + done.stderr)}") from None
        if not answer.get("success"):
            raise RunError(f"flwr {arguments[0]} failed: {one_line(answer.get('error-message') or done.stderr)}")
        return answer

    def _follow_log(self, run_id: str, show: bool) -> None:
        """Wait until the log of a run ends, which is when the run ends, or until it breaks off.

        Asking for the status all the time instead would keep half a processor busy: each ``flwr list`` starts a new Python.
        """
        subprocess.run(
            [executable("flwr"), "log", run_id, self.superlink, "--stream"],
            env=self._environment,
            cwd=self.home,
            stdout=None if show else subprocess.DEVNULL,
            stderr=None if show else subprocess.DEVNULL,
            check=False,
        )


@contextlib.contextmanager
def local_superlink() -> Iterator[Flower]:
    """Start a SuperLink for simulations with a home, a port and a working directory of its own; end it with all it started."""
    home = Path(tempfile.mkdtemp(prefix="fedsocket-flower-"))
    port = free_port()
    environment = flower_environment(home)
    write_connection(home, f"127.0.0.1:{port}", "insecure = true")
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    superlink = start_process(command, environment, home, home / "superlink.log")
    try:
        wait_for_port(port, superlink, home / "superlink.log")
        yield Flower(home, environment)
    finally:
        # Flower's helpers and Ray are in sessions of their own: without their parent they would carry the run on.
        stop_with_descendants(superlink, STOP_SECONDS)
        shutil.rmtree(home, ignore_errors=True)


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process whose home is ``home`` and which finds the modules that this process finds."""
    return {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "FEDSOCKET_HOME": str(state_directory({})),
        # Flower starts its helpers by name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": _import_folders(),
    }


def write_connection(home: Path, address: str, trust: str) -> None:
    """Tell the ``flwr`` command of this home which SuperLink to talk to, and how to trust it (a line of TOML)."""
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{OWN}"\n\n[superlink.{OWN}]\naddress = "{address}"\n{trust}\n', encoding="utf-8"
    )


def start_process(command: list[str], environment: Mapping[str, str], folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start one of Flower's commands in a session and a folder of its own; what it prints is added to ``log``.

    The folder is a neutral one: Ray's workers search the SuperLink's folder for modules before anything else.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            [executable(command[0]), *command[1:]],
            env=dict(environment),
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def free_port() -> int:
    """Return a port of loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when somebody listens on a port of loopback; :class:`RunError` with the log when the process has ended instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.1)
    raise RunError(f"Flower's SuperLink did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def executable(name: str) -> str:
    """Return the command of this very environment, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _import_folders() -> str:
    """Return where this process finds modules, in its order: a user's model that it can import, the workers can too."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
