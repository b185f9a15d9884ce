"""Real processes on loopback: a SuperLink with TLS and node authentication, and SuperNodes that are killed and come back."""

import contextlib
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.evaluation.incidents import incidents
from fedsocket_flwr.experiments.credentials import make_node_key, make_server_credentials
from fedsocket_flwr.experiments.local_deployment import LocalDeployment, chosen_clients
from fedsocket_flwr.plain_files import read_json_lines
from fedsocket_flwr.run_preparation import prepare_resume, prepare_run
from fedsocket_flwr.runtime.process_groups import process_table
from tests.toy_runs import Outcome, assert_same_outcome, read_outcome, run_quickly, toy_config

SMALL = ("shapes-mlp", "words-bag", "words-bigru")
"""Few clients keep the test short: every message costs a process of seconds."""


def small_config(settings: dict[str, Any] | None = None) -> Configuration:
    """Return the toy configuration with three clients of two tasks."""
    config = toy_config(settings)
    tasks = {}
    for name, task in config.tasks.items():
        kept = tuple(client for client in task.clients if client.name in SMALL)
        if kept:
            tasks[name] = task.model_copy(update={"clients": kept})
    return config.model_copy(update={"tasks": tasks})


class TestCredentials:
    def test_the_server_is_who_the_authority_says(self, tmp_path: Path) -> None:
        made = make_server_credentials(tmp_path)
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=made.authority)
        server.load_cert_chain(made.certificate, made.key)
        for host, trusted in (("localhost", True), ("127.0.0.1", True), ("example.org", False)):
            assert shakes_hands(server, client, host) == trusted

    def test_keys_are_for_their_owner_alone_and_differ(self, tmp_path: Path) -> None:
        publics = [make_node_key(tmp_path / name).read_bytes() for name in ("a", "b")]
        assert publics[0] != publics[1]
        assert publics[0].startswith(b"ecdsa-sha2-nistp384 ")
        assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def shakes_hands(server: Any, client: Any, host: str) -> bool:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(6):
        for side in (other, one):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return other.cipher() is not None


class TestChosenClients:
    def test_all_by_default(self) -> None:
        config = small_config()
        assert chosen_clients(config, None) == (config, SMALL)
        assert chosen_clients(config, list(SMALL))[0] == config

    def test_a_few_go_on_without_the_others(self) -> None:
        config, clients = chosen_clients(small_config(), ["words-bag"])
        assert clients == ("words-bag",)
        assert (config.participation.minimum_clients, config.participation.registration_seconds) == (1, 60.0)

    def test_a_stranger(self) -> None:
        with pytest.raises(ConfigurationError, match="no client is called 'nobody'"):
            chosen_clients(small_config(), ["nobody"])

    def test_fewer_than_are_needed(self) -> None:
        with pytest.raises(ConfigurationError, match="minimum_clients is 3, but only 1"):
            chosen_clients(small_config({"participation.minimum_clients": 3}), ["words-bag"])


# --- over real processes ----------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "history.jsonl"
    rows = read_json_lines(path)[0] if path.exists() else []
    return [row for row in rows if row["phase"] == "train"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployed-home")


@pytest.fixture(autouse=True)
def _one_home(home: Path, _state_of_its_own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes live longer than a test, so their state directory does too."""
    monkeypatch.setenv("FEDSOCKET_HOME", str(home))


@pytest.fixture(scope="module")
def deployment(home: Path) -> Iterator[LocalDeployment]:
    """One deployment for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(home))
        with LocalDeployment(SMALL) as started:
            yield started


def prepared(config: Configuration, folder: Path) -> Path:
    made = prepare_run(config, folder, "deployment")
    engines.compute_features(made)
    return made


def expected(config: Configuration, folder: Path) -> Outcome:
    return run_quickly(config, folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deployed_run_gives_the_bits_of_a_simulated_one(deployment: LocalDeployment, tmp_path: Path) -> None:
    config = small_config({"run.rounds": 2})
    folder = prepared(config, tmp_path / "deployed")
    told: list[str] = []

    class Listener:
        def on_start(self, run: Any) -> None:
            told.append("start")

        def on_phase(self, row: Any) -> None:
            told.append(row["phase"])

        def on_end(self, status: str) -> None:
            told.append(status)

    deployment.carry_out(folder, [Listener()])
    assert told == ["start", "train", "train", "close", "finished"]
    assert_same_outcome(read_outcome(folder), expected(config, tmp_path / "simulated"))
    assert (folder / "report.md").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_processes_lose_no_private_model_and_no_finished_round(deployment: LocalDeployment, tmp_path: Path) -> None:
    """One run through everything that can be killed.

    A SuperNode dies in training and is started again; the SuperLink dies and comes back, and the run is resumed; the ServerApp
    dies, and the run is resumed. What was finished stays, and who was away is named.
    """
    config = small_config({"run.rounds": 60, "participation.minimum_clients": 2, "participation.registration_seconds": 120.0})
    folder = prepared(config, tmp_path / "run")
    deployment.start_run(folder)
    wait_for(lambda: len(rounds_of(folder)) >= 1, 180, "the first round")

    began = time.monotonic()
    deployment.kill_node("words-bag")
    wait_for(lambda: any("words-bag" not in row["answered"] for row in rounds_of(folder)), 240, "a round without words-bag")
    noticed = time.monotonic() - began

    def is_back() -> bool:
        deployment.keep_node("words-bag")
        time.sleep(5)
        return "words-bag" in rounds_of(folder)[-1]["answered"]

    wait_for(is_back, 240, "words-bag to be back")
    back = time.monotonic() - began
    print(f"\na killed SuperNode: its round ended after {noticed:.0f} s, it took part again after {back:.0f} s")

    done = rounds_of(folder)
    deployment.kill_superlink()
    deployment.start_superlink()
    began = time.monotonic()
    assert prepare_resume(folder)
    deployment.start_run(folder)
    wait_for(lambda: len(rounds_of(folder)) > len(done), 240, "a round after the SuperLink was killed")
    print(f"a killed SuperLink: the next round was finished {time.monotonic() - began:.0f} s after the resume")
    assert rounds_of(folder)[: len(done)] == done

    server_app = server_app_of(deployment)
    done = rounds_of(folder)
    os.kill(server_app, signal.SIGKILL)
    time.sleep(1)
    began = time.monotonic()
    assert prepare_resume(folder, rounds=len(done) + 2)
    deployment.carry_out(folder)
    print(f"a killed ServerApp: two more rounds and TEST took {time.monotonic() - began:.0f} s")
    assert rounds_of(folder)[: len(done)] == done
    outcome = read_outcome(folder)
    assert set(outcome.test) == set(SMALL)
    assert {entry["client"] for entry in incidents(outcome.history)} == {"words-bag"}


def server_app_of(deployment: LocalDeployment) -> int:
    """Return the process of the ServerApp, found by the home that it inherited."""
    mark = f"FLWR_HOME={deployment.folder}/superlink".encode()
    for entry in process_table():
        with contextlib.suppress(OSError):
            folder = Path("/proc") / str(entry.pid)
            if b"flwr-serverapp" in (folder / "cmdline").read_bytes() and mark in (folder / "environ").read_bytes():
                return entry.pid
    raise AssertionError("no ServerApp runs")
