"""Equal configurations give equal bits: twice in a row, after a cut anywhere, through every engine."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr import client_app, engines, server_app
from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import write_configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.run_preparation import prepare_resume, read_run_configuration
from fedsocket_flwr.runtime.callbacks import HistoryWriter
from tests.toy_runs import (
    Cut,
    Outcome,
    assert_same_arrays,
    assert_same_outcome,
    read_outcome,
    resume_quickly,
    run_quickly,
    store_of,
    toy_config,
)

Run = Callable[..., Outcome]
CLIENTS = tuple(client.name for _, client in toy_config().clients())
ROUNDS = {"run.rounds": 3}
# What a run keeps between its rounds, all of it in use.
EVERYTHING = ROUNDS | {"training.q_optimiser": "keep", "participation.share": 0.5, "merging.modality": "projected"}


def new_process() -> None:
    """Forget what a process keeps in memory, as a resumed run finds it."""
    client_app._open_client.cache_clear()
    client_app._configuration.cache_clear()


def rounds_of(outcome: Outcome) -> list[int]:
    return [row["round"] for row in outcome.rounds()]


def cut_at_call(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """End the process at the n-th call of a function."""
    real, calls = getattr(owner, name), iter(range(1, 1_000))

    def cutting(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    patch.setattr(owner, name, cutting)


# --- twice in a row ---


@pytest.mark.parametrize("settings", [ROUNDS, EVERYTHING, ROUNDS | {"exchange.sharing": "own"}, ROUNDS | {"run.method": "local"}])
def test_a_run_is_the_same_twice_in_a_row(outcome: Run, tmp_path: Path, settings: dict[str, Any]) -> None:
    expected = outcome(settings)
    new_process()
    assert_same_outcome(run_quickly(toy_config(settings), tmp_path / "again"), expected)


def test_another_seed_is_another_run_on_the_same_split(outcome: Run) -> None:
    first, second = outcome(ROUNDS), outcome(ROUNDS | {"run.seed": 2})
    assert any(first.q[name].tobytes() != second.q[name].tobytes() for name in first.q)
    splits = [(found.folder / "splits.json").read_bytes() for found in (first, second)]
    assert splits[0] == splits[1]


# --- cuts ---


@pytest.mark.parametrize("settings", [ROUNDS, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_that_is_cut_after_a_round_ends_as_if_it_were_not(
    outcome: Run, tmp_path: Path, settings: dict[str, Any], after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_quickly(toy_config(settings), tmp_path / "run", [Cut(after)])
    new_process()
    assert_same_outcome(resume_quickly(tmp_path / "run"), outcome(settings))


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        pytest.param(Participant, "train", 1, id="before anything"),
        pytest.param(Participant, "train", 9, id="in the middle of round 2"),
        pytest.param(Participant, "_save", 10, id="after a client has learned"),
        pytest.param(HistoryWriter, "on_phase", 2, id="before the history of round 2"),
        pytest.param(server_app, "save_checkpoint", 1, id="between history and checkpoint of round 1"),
        pytest.param(server_app, "save_checkpoint", 2, id="between history and checkpoint of round 2"),
        pytest.param(Participant, "close", 4, id="in the closing"),
        pytest.param(Participant, "test", 3, id="in TEST"),
    ],
)
def test_a_cut_at_any_place_leaves_no_trace(outcome: Run, tmp_path: Path, owner: Any, name: str, call: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_at_call(patch, owner, name, call)
        with pytest.raises(KeyboardInterrupt):
            run_quickly(toy_config(ROUNDS), tmp_path / "run")
    new_process()
    resumed = resume_quickly(tmp_path / "run")
    assert rounds_of(resumed) == [1, 2, 3]
    assert_same_outcome(resumed, outcome(ROUNDS))


def test_a_run_can_be_cut_again_and_again(outcome: Run, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_at_call(patch, Participant, "train", 8)
        with pytest.raises(KeyboardInterrupt):
            run_quickly(toy_config(ROUNDS), tmp_path / "run")
    for name, call in (("train", 3), ("train", 5), ("close", 2)):
        new_process()
        with pytest.MonkeyPatch.context() as patch:
            cut_at_call(patch, Participant, name, call)
            with pytest.raises(KeyboardInterrupt):
                resume_quickly(tmp_path / "run")
    assert_same_outcome(resume_quickly(tmp_path / "run"), outcome(ROUNDS))


# --- more rounds ---


def test_a_finished_run_continues_to_more_rounds_from_a_moved_folder(outcome: Run, tmp_path: Path) -> None:
    run_quickly(toy_config({"run.rounds": 4}), tmp_path / "r1")
    moved = tmp_path / "r 2"
    (tmp_path / "r1").rename(moved)
    new_process()
    resumed = resume_quickly(moved, rounds=6)
    assert rounds_of(resumed) == [1, 2, 3, 4, 5, 6]
    assert_same_outcome(resumed, outcome({"run.rounds": 6}))
    assert read_run_configuration(moved).run.rounds == 6
    # Again, unchanged: there is nothing to do, and nothing is touched.
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    assert engines.resume(moved, "inprocess") is False
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before
    with pytest.raises(RunError, match="has finished 6 rounds; it cannot go back to 3"):
        engines.resume(moved, "inprocess", rounds=3)
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


def test_a_cut_while_more_rounds_are_asked_for_is_no_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_quickly(toy_config({"run.rounds": 1}), tmp_path / "run")
    assert prepare_resume(tmp_path / "run", rounds=2)
    # Cut right here: the configuration says two rounds, one is done.
    new_process()
    assert rounds_of(resume_quickly(tmp_path / "run")) == [1, 2]


def test_a_cut_run_may_end_earlier_than_it_was_meant_to(outcome: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_quickly(toy_config({"run.rounds": 6}), tmp_path / "run", [Cut(after=2)])
    assert_same_outcome(resume_quickly(tmp_path / "run", rounds=3), outcome(ROUNDS))


def test_a_run_whose_test_lacks_a_client_is_asked_for_it_again(
    outcome: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Participant.test

    def failing(self: Participant, broadcast: Any) -> Any:
        if self.data.client == "words-bag":
            raise OSError("the disk is gone")
        return real(self, broadcast)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Participant, "test", failing)
        with pytest.raises(RunError, match="TEST is incomplete: words-bag: no answer: OSError: the disk is gone"):
            run_quickly(toy_config(ROUNDS), tmp_path / "run")
    assert set(read_outcome(tmp_path / "run").test) == set(CLIENTS) - {"words-bag"}
    assert_same_outcome(resume_quickly(tmp_path / "run"), outcome(ROUNDS))


# --- names are keys ---


def reordered(config: Configuration) -> Configuration:
    """The clients of every task in the opposite order."""
    settings = config.model_dump(mode="json")
    for task in settings["tasks"].values():
        task["clients"].reverse()
    return Configuration.model_validate(settings)


def test_the_order_of_clients_in_the_file_changes_nothing(outcome: Run, tmp_path: Path) -> None:
    """Where the partition gives everybody the same rows; other partitions deal their parts in the order of the file."""
    same_rows = ROUNDS | {f"tasks.{task}.partition.kind": "all" for task in ("shapes", "words", "pairs")}
    expected = outcome(same_rows)
    found = run_quickly(reordered(toy_config(same_rows)), tmp_path / "run")
    assert_same_arrays(found.q, expected.q)
    for client in CLIENTS:
        assert_same_arrays(found.states[client], expected.states[client])
    assert found.test == expected.test


def test_a_client_more_changes_no_private_seed(outcome: Run) -> None:
    """One round of Local, every row for everybody: who else is there cannot matter."""
    local = {"run.method": "local", "run.rounds": 1, "tasks.words.partition.kind": "all"}
    clients = toy_config().model_dump(mode="json")["tasks"]["words"]["clients"]
    more = outcome(local | {"tasks.words.clients": [{"name": "first", "model": "text_bag"}, *clients]})
    for client in ("words-bag", "words-bigru"):
        assert_same_arrays(more.private(client), outcome(local).private(client))


# --- over real processes ---


@pytest.fixture
def real_home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the features of the other runs; private models are apart by the run's name."""
    monkeypatch.setenv("FEDSOCKET_HOME", str(shared_home))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ray_gives_the_bits_of_one_process(outcome: Run, tmp_path: Path, real_home: None, workers: int) -> None:
    config = toy_config(ROUNDS | {"resources.workers": workers})
    assert_same_outcome(read_outcome(engines.start(config, tmp_path / "r 1", "ray")), outcome(ROUNDS))


@pytest.mark.slow
def test_a_ray_run_continues_to_more_rounds_and_tells_of_them(outcome: Run, tmp_path: Path, real_home: None) -> None:
    """What was run in one process goes on in workers; callbacks hear of the new rounds only."""
    told = []

    class Listener(Cut):
        def on_phase(self, row: Any) -> None:
            told.append((row["phase"], row["round"]))

        def on_end(self, status: str) -> None:
            told.append(("end", status))

    run_quickly(toy_config({"run.rounds": 1}), tmp_path / "run")
    assert engines.resume(tmp_path / "run", "ray", 3, [Listener(0)])
    assert told == [("train", 2), ("train", 3), ("close", 3), ("end", "finished")]
    assert_same_outcome(read_outcome(tmp_path / "run"), outcome(ROUNDS))


@pytest.mark.slow
def test_a_ray_run_that_is_terminated_continues_to_the_same_bits(outcome: Run, tmp_path: Path, real_home: None) -> None:
    settings = {"run.rounds": 50}
    write_configuration(toy_config(settings), tmp_path / "toy.yaml")
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedsocket_flwr.cli", "run", str(tmp_path / "toy.yaml"), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_rounds(folder, 2, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    done = len(read_rows(folder))
    assert 2 <= done < 50
    time.sleep(2)
    assert len(read_rows(folder)) == done, "something still runs"
    assert engines.resume(folder, "ray")
    assert_same_outcome(read_outcome(folder), outcome(settings))


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(outcome: Run, tmp_path: Path, real_home: None) -> None:
    """The same name, the same seed, the same clients, the same state directory."""
    failures: list[BaseException] = []

    def start(name: str, seed: int) -> None:
        try:
            engines.start(toy_config(ROUNDS | {"run.seed": seed, "resources.workers": 1}), tmp_path / name, "ray")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(f"run-{seed}-{copy}", seed)) for seed, copy in ((1, 0), (1, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for copy in (0, 1):
        assert_same_outcome(read_outcome(tmp_path / f"run-1-{copy}"), outcome(ROUNDS))
    stores = {store_of(tmp_path / f"run-1-{copy}", "words-bag")._folder for copy in (0, 1)}
    assert len(stores) == 2


def read_rows(folder: Path) -> list[bytes]:
    path = folder / "history.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def wait_for_rounds(folder: Path, rounds: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 180
    while len(read_rows(folder)) < rounds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, os.listdir(folder)
        time.sleep(0.05)
