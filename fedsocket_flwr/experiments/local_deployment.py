"""A whole deployment on one machine: a SuperLink with TLS and node authentication, and one SuperNode a client, on loopback.

What ``docs/deployment.md`` does step by step on several machines is done here in one process group, with keys and certificates of
its own, so that the guide can be tried and the very processes of production can be tested.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.experiments.credentials import make_node_key, make_server_credentials
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.run_preparation import report_what_is_there
from fedsocket_flwr.runtime.callbacks import Callback
from fedsocket_flwr.runtime.process_groups import processes_with, stop_with_descendants
from fedsocket_flwr.runtime.superlink import (
    STOP_SECONDS,
    Flower,
    flower_environment,
    free_port,
    start_process,
    wait_for_port,
    write_connection,
)

WAIT_FOR_OTHERS_SECONDS = 60.0


class LocalDeployment:
    """SuperLink and SuperNodes, started on entering and taken down on leaving.

    Parameters
    ----------
    clients
        One SuperNode each.
    node_settings
        Client -> further settings of its node, such as ``data-dir`` and ``state-dir``. Without a ``state-dir`` all nodes keep
        their private models in this user's state directory, where ``fedsocket-flwr predict`` finds them.
    """

    def __init__(self, clients: Sequence[str], node_settings: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.clients = tuple(clients)
        self.folder = Path(tempfile.mkdtemp(prefix="fedsocket-deployment-"))
        self._settings = dict(node_settings or {})
        self._port = free_port()
        self._superlink: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._credentials = make_server_credentials(self.folder)
            trust = f"root-certificates = {json.dumps(str(self._credentials.authority))}"
            write_connection(self.folder, f"127.0.0.1:{self._port}", trust)
            self.flwr = Flower(self.folder, flower_environment(self.folder))
            self.start_superlink()
            for client in self.clients:
                public = make_node_key(self._key(client))
                self.flwr.call("supernode", "register", str(public), self.flwr.superlink)
                self.start_node(client)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self._port}"

    def start_superlink(self) -> None:
        """Start the SuperLink; after a kill it comes back with its database: the keys of its nodes and the list of runs."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--ssl-ca-certfile", str(self._credentials.authority), "--ssl-certfile", str(self._credentials.certificate)]
        command += ["--ssl-keyfile", str(self._credentials.key), "--enable-supernode-auth"]
        command += ["--database", str(self.folder / "superlink.db")]
        log = self.folder / "superlink.log"
        self._superlink = start_process(command, flower_environment(self._home("superlink")), self.folder, log)
        wait_for_port(self._port, self._superlink, log)

    def start_node(self, client: str) -> None:
        """Start the SuperNode of a client, for the first time or again."""
        settings = {"client": client, **self._settings.get(client, {})}
        command = ["flower-supernode", "--root-certificates", str(self._credentials.authority), "--superlink", self.address]
        command += ["--auth-supernode-private-key", str(self._key(client)), "--port", str(free_port())]
        command += ["--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())]
        home = self._home(f"node-{file_slug(client)}")
        self._nodes[client] = start_process(command, flower_environment(home), home, home / "supernode.log")

    def keep_node(self, client: str) -> bool:
        """Start the SuperNode of a client again if it has ended, as a service manager does; say whether it was still up.

        One that was killed is refused under its own key until the SuperLink has noticed, which takes it about a minute, and ends.
        """
        process = self._nodes.get(client)
        if process is not None and process.poll() is None:
            return True
        self.start_node(client)
        return False

    def stop_node(self, client: str) -> None:
        """Stop a SuperNode as an operator does: it says that it leaves."""
        stop_with_descendants(self._nodes.pop(client), STOP_SECONDS)

    def kill_node(self, client: str) -> None:
        """Kill a SuperNode (``-9``) and nothing that it has started."""
        _kill(self._nodes[client])

    def kill_superlink(self) -> None:
        """Kill the SuperLink (``-9``) and nothing that it has started."""
        assert self._superlink is not None, "the SuperLink was not started"
        _kill(self._superlink)

    def start_run(self, run_folder: Path) -> str:
        """Start or continue the prepared run of a folder and return Flower's id of it."""
        return self.flwr.start(engines.thin_app(self.folder / "app", resume=str(run_folder)))

    def carry_out(self, run_folder: Path, callbacks: Sequence[Callback] = ()) -> None:
        """Run the prepared run of a folder to its end; :class:`RunError` when it fails."""
        try:
            with engines.followed(run_folder, callbacks):
                self.flwr.run(engines.thin_app(self.folder / "app", resume=str(run_folder)))
        except BaseException:
            # The ServerApp may have been killed before it could.
            report_what_is_there(run_folder)
            raise

    def logs(self) -> str:
        """Return what all processes printed, for a person who looks for a cause."""
        paths = sorted(self.folder.rglob("*.log"))
        return "\n".join(f"==> {path.name} of {path.parent.name}\n{path.read_text('utf-8', 'replace')}" for path in paths)

    def close(self) -> None:
        """Stop everything and remove the folder."""
        processes = [*self._nodes.values(), *([self._superlink] if self._superlink else [])]
        # All are asked to stop before any is waited for.
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            stop_with_descendants(process, STOP_SECONDS)
        # What a killed process had started lost its parent; its environment still says where it belongs.
        for pid in processes_with(f"FLWR_HOME={self.folder}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._nodes, self._superlink = {}, None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _home(self, name: str) -> Path:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return home

    def _key(self, client: str) -> Path:
        return self.folder / f"key-{file_slug(client)}"


def chosen_clients(config: Configuration, names: Sequence[str] | None) -> tuple[Configuration, tuple[str, ...]]:
    """Return which clients get a SuperNode, and the configuration of a run that goes on without the others.

    Raises
    ------
    ConfigurationError
        A name is no client's, or the configuration needs more clients than were chosen.
    """
    everyone = tuple(client.name for _, client in config.clients())
    if names is None:
        return config, everyone
    clients = tuple(config.client(name)[1].name for name in dict.fromkeys(names))
    if len(clients) == len(everyone):
        return config, clients
    participation = config.participation
    if (participation.minimum_clients or 0) > len(clients):
        raise ConfigurationError(
            f"participation.minimum_clients is {participation.minimum_clients}, but only {len(clients)} clients were chosen"
        )
    changed = participation.model_copy(
        update={
            "minimum_clients": participation.minimum_clients or len(clients),
            "registration_seconds": min(participation.registration_seconds, WAIT_FOR_OTHERS_SECONDS),
        }
    )
    return config.model_copy(update={"participation": changed}), clients


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
