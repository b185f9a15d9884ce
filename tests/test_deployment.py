"""Real processes on loopback: a SuperLink with TLS and node authentication, and SuperNodes that are killed and come back."""

import os
import signal
import ssl
import subprocess
import sys
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
from fedsocket_flwr.runtime.process_groups import processes_with
from fedsocket_flwr.runtime.run_files import load_checkpoint
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
    """Return the rows of the finished rounds.

    A round is finished with its checkpoint. Its row is there a moment before: who is killed between the two repeats the round.
    """
    checkpoint = load_checkpoint(folder)
    rows = read_json_lines(folder / "history.jsonl")[0] if checkpoint else []
    return [row for row in rows if row["phase"] == "train" and checkpoint and row["round"] <= checkpoint.round]


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
def test_a_run_handed_to_a_superlink_gives_the_bits_of_a_simulated_one(
    deployment: LocalDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As ``fedsocket-flwr run --superlink`` does: the configuration goes along, the folder is made by the ServerApp."""
    config, folder = small_config({"run.rounds": 2}), tmp_path / "deployed"
    monkeypatch.setenv("FLWR_HOME", str(deployment.folder))
    engines.submit(deployment.flwr.superlink, configuration=config.to_json(), out=str(folder))
    assert f"Run folder: {folder}" in capfd.readouterr().out
    assert_same_outcome(read_outcome(folder), run_quickly(config, tmp_path / "simulated"))
    assert (folder / "report.md").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_superlink_and_serverapp_are_killed_goes_on_to_the_same_bits(
    deployment: LocalDeployment, tmp_path: Path
) -> None:
    config = small_config({"run.rounds": 4})
    folder = prepared(config, tmp_path / "cut")
    deployment.start_run(folder)
    wait_for(lambda: len(rounds_of(folder)) >= 1, 180, "the first round")
    done = rounds_of(folder)
    deployment.kill_superlink()
    deployment.start_superlink()
    began = time.monotonic()
    assert prepare_resume(folder)
    deployment.start_run(folder)
    wait_for(lambda: len(rounds_of(folder)) > len(done), 240, "a round after the SuperLink was killed")
    print(f"\na killed SuperLink: the next round was finished {time.monotonic() - began:.0f} s after it was up again")
    assert rounds_of(folder)[: len(done)] == done

    done = rounds_of(folder)
    os.kill(server_app_of(deployment), signal.SIGKILL)
    began = time.monotonic()
    assert prepare_resume(folder)
    deployment.carry_out(folder)
    print(f"a killed ServerApp: {len(rounds_of(folder)) - len(done)} rounds and TEST took {time.monotonic() - began:.0f} s")
    assert rounds_of(folder)[: len(done)] == done
    assert_same_outcome(read_outcome(folder), run_quickly(config, tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_supernode_comes_back_and_another_one_never_does(deployment: LocalDeployment, tmp_path: Path) -> None:
    """The last test of the shared deployment: it ends with one node less."""
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
    print(f"\na killed SuperNode: the round without it ended after {noticed:.0f} s, it took part again after {back:.0f} s")

    os.kill(server_app_of(deployment), signal.SIGKILL)
    deployment.stop_node("words-bigru")
    done = len(rounds_of(folder))
    assert prepare_resume(folder, rounds=done + 1, overrides=["participation.registration_seconds=20"])
    deployment.carry_out(folder)
    outcome = read_outcome(folder)
    assert outcome.rounds()[-1]["absent"] == ["words-bigru"]
    assert set(outcome.test) == {"shapes-mlp", "words-bag"}
    assert {entry["client"] for entry in incidents(outcome.history)} == {"words-bag", "words-bigru"}


def server_app_of(deployment: LocalDeployment) -> int:
    """Return the process of the ServerApp, found by the home that it inherited."""
    for pid in processes_with(f"FLWR_HOME={deployment.folder}/superlink"):
        if b"flwr-serverapp" in (Path("/proc") / str(pid) / "cmdline").read_bytes():
            return pid
    raise AssertionError("no ServerApp runs")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_takes_everything_down_after_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedsocket_flwr.cli", "local-deployment", "toy", "--clients", "words-bag,shapes-mlp"]
    command += ["--out", str(folder), "--set", "run.rounds=50", "--set", "participation.registration_seconds=15"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        # A job that a shell has put into the background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            wait_for(lambda: process.poll() is not None or len(rounds_of(folder)) >= 1, 240, "the first round")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "with TLS; SuperNodes of words-bag, shapes-mlp" in said
    assert "everything up to the last finished round is on disk" in said
    first = rounds_of(folder)[0]
    assert first["answered"] == ["shapes-mlp", "words-bag"]
    assert first["absent"] == ["pairs-a", "pairs-b", "shapes-cnn", "words-bigru"]
    assert (folder / "report.md").exists()
    wait_for(lambda: not processes_with(f"FLWR_HOME={tmp_path}"), 20, "the processes of the deployment to end")
    assert list(tmp_path.glob("fedsocket-deployment-*")) == []
