"""What fails while a run is on, where the logic is ours and one process is enough: nothing that was learned is lost."""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedsocket_flwr import client_app, engines, server_app
from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import RegistrationError, RunError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.plain_files import read_json_lines
from fedsocket_flwr.run_preparation import prepare_resume, prepare_run
from fedsocket_flwr.runtime import block_files, run_files
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.run_files import held
from tests.toy_runs import (
    Outcome,
    assert_same_arrays,
    assert_same_outcome,
    quick,
    read_outcome,
    run_quickly,
    same_bits,
    store_of,
    toy_config,
)

CLIENTS = tuple(client.name for _, client in toy_config().clients())
GOES_ON = {"participation.minimum_clients": 1, "participation.registration_seconds": 0.05}
Happening = Callable[["Weather", int], None]


class Weather(InProcessGrid):
    """A federation in which things happen: ``before`` is called before the messages of every phase are sent.

    ``lost`` are clients whose answers do not arrive, ``twice`` those whose answers arrive twice.
    """

    def __init__(self, config: Configuration, before: Mapping[int, Happening] | None = None) -> None:
        super().__init__(client_app.app, [{"client": client.name} for _, client in config.clients()])
        self.before = dict(before or {})
        self.lost: set[str] = set()
        self.twice: set[str] = set()

    def node_of(self, client: str) -> int:
        return next(node for node, context in self._contexts.items() if context.node_config["client"] == client)

    def leave(self, client: str) -> None:
        del self._contexts[self.node_of(client)]

    def join(self, client: str) -> None:
        node = max(self._contexts) + 100
        self._contexts[node] = Context(run_id=1, node_id=node, node_config={"client": client}, state=RecordDict(), run_config={})

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        clients = {
            message.metadata.dst_node_id: str(self._contexts[message.metadata.dst_node_id].node_config["client"])
            for message in messages
        }
        ids = list(self.push_messages(messages))
        answers = []
        for message, message_id in zip(messages, ids, strict=True):
            client = clients[message.metadata.dst_node_id]
            (reply,) = self.pull_messages([message_id])
            answers += [reply] * (0 if client in self.lost else 2 if client in self.twice else 1)
        return answers


def carry_out(config: Configuration, folder: Path, before: Mapping[int, Happening] | None = None) -> None:
    """Run in process; ``before[r]`` happens before round r is configured."""
    with quick():
        prepare_run(config, folder, "inprocess")
        engines.compute_features(folder)
        grid = Weather(config, before)

        class Clock:
            def on_start(self, run: Any) -> None:
                self.at(1)

            def on_phase(self, row: Any) -> None:
                if row["phase"] == "train":
                    self.at(row["round"] + 1)

            def on_end(self, status: str) -> None: ...

            def at(self, server_round: int) -> None:
                if server_round in grid.before:
                    grid.before[server_round](grid, server_round)

        server_app.serve(grid, folder, [Clock()])


def outcome_of(config: Configuration, folder: Path, before: Mapping[int, Happening] | None = None) -> Outcome:
    carry_out(config, folder, before)
    return read_outcome(folder)


def new_process() -> None:
    client_app._open_client.cache_clear()


def row(outcome: Outcome, server_round: int) -> dict[str, Any]:
    return outcome.rounds()[server_round - 1]


def test_without_trouble_it_is_the_run_in_process(tmp_path: Path) -> None:
    config = toy_config({"run.rounds": 2})
    expected = run_quickly(config, tmp_path / "plain")
    assert_same_outcome(outcome_of(config, tmp_path / "run"), expected)


def test_a_client_that_raises_is_named_and_the_round_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = Participant.train

    def sometimes(self: Participant, broadcast: Any) -> Any:
        if self.data.client == "words-bag" and broadcast.round == 2:
            raise OSError("the sensor is unplugged")
        return learn(self, broadcast)

    monkeypatch.setattr(Participant, "train", sometimes)
    outcome = outcome_of(toy_config({"run.rounds": 3}), tmp_path / "run")
    assert row(outcome, 2)["refused"] == {"words-bag": "no answer: OSError: the sensor is unplugged (code 2)"}
    assert row(outcome, 2)["answered"] == sorted(set(CLIENTS) - {"words-bag"})
    assert row(outcome, 3)["answered"] == sorted(CLIENTS)
    assert set(outcome.test) == set(CLIENTS)


def test_a_client_that_answers_too_late_goes_on_from_what_the_server_saw(tmp_path: Path) -> None:
    """Its third round starts from the version of round 1: as if round 2 had not been, to the bit."""

    def late(grid: Weather, _: int) -> None:
        grid.lost.add("words-bag")

    def in_time(grid: Weather, _: int) -> None:
        grid.lost.clear()

    late_folder, refused_folder = tmp_path / "late", tmp_path / "raising"
    config = toy_config({"run.rounds": 3})
    outcome = outcome_of(config, late_folder, {2: late, 3: in_time})
    assert row(outcome, 2)["missing"] == ["words-bag"]
    assert row(outcome, 3)["answered"] == sorted(CLIENTS)

    def unplug(grid: Weather, _: int) -> None:
        grid.leave("words-bag")

    def plug(grid: Weather, _: int) -> None:
        grid.join("words-bag")

    never = outcome_of(toy_config({"run.rounds": 3, **GOES_ON}), refused_folder, {2: unplug, 3: plug})
    assert_same_arrays(outcome.q, never.q)
    assert_same_arrays(outcome.private("words-bag"), never.private("words-bag"))


def test_a_second_node_of_a_client_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config({"run.rounds": 2})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        outcome = outcome_of(config, tmp_path / "run", {1: lambda grid, _: grid.join("words-bag")})
    assert "claims client 'words-bag', which is node" in caplog.text
    assert_same_outcome(outcome, outcome_of(config, tmp_path / "alone"))


def test_an_answer_that_is_sent_twice_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = toy_config({"run.rounds": 2})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        outcome = outcome_of(config, tmp_path / "run", {1: lambda grid, _: grid.twice.add("words-bag")})
    assert "Ignored a second answer of client words-bag" in caplog.text
    assert_same_outcome(outcome, outcome_of(config, tmp_path / "once"))


def test_a_task_that_is_away_for_five_rounds_keeps_its_blocks_and_comes_back_where_it_was(tmp_path: Path) -> None:
    """Both clients of a task leave after round 1 and come back, at other nodes, for round 7."""
    words = ["words-bag", "words-bigru"]
    seen: dict[int, Mapping[str, Any]] = {}
    config = toy_config({"run.rounds": 7, **GOES_ON})

    def leave(grid: Weather, _: int) -> None:
        seen[1] = read_q(tmp_path / "run")
        for client in words:
            grid.leave(client)

    def come_back(grid: Weather, _: int) -> None:
        seen[6] = read_q(tmp_path / "run")
        for client in words:
            assert store_of(tmp_path / "run", client).versions() == (1,)
            grid.join(client)

    outcome = outcome_of(config, tmp_path / "run", {2: leave, 7: come_back})
    assert [row(outcome, number)["absent"] for number in range(1, 8)] == [[], *[words] * 5, []]
    owned = [name for name in seen[1] if "words" in name]
    assert len(owned) > 10
    assert all(same_bits(seen[1][name], seen[6][name]) for name in owned)
    assert any(not same_bits(seen[1][name], seen[6][name]) for name in seen[1])
    assert all(not same_bits(outcome.q[name], seen[6][name]) for name in owned if "head" in name)
    assert {store_of(tmp_path / "run", client).versions()[-1] for client in words} == {7}
    assert set(outcome.test) == set(CLIENTS)


def read_q(folder: Path) -> Mapping[str, Any]:
    return block_files.read_blocks(folder / "q.safetensors").arrays


def test_a_client_that_never_comes_back_leaves_a_report_that_says_so(tmp_path: Path) -> None:
    config = toy_config({"run.rounds": 2, **GOES_ON})
    outcome = outcome_of(config, tmp_path / "run", {2: lambda grid, _: grid.leave("words-bag")})
    assert set(outcome.test) == set(CLIENTS) - {"words-bag"}
    write_report(tmp_path / "run")
    assert "| words-bag | was not there | 2, closing |" in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")


def test_without_a_minimum_a_client_that_never_comes_back_makes_test_incomplete_and_a_resumed_run_completes_it(
    tmp_path: Path,
) -> None:
    config = toy_config({"run.rounds": 2})
    with pytest.raises(RunError, match="TEST is incomplete: words-bag: not online"):
        carry_out(config, tmp_path / "run", {2: lambda grid, _: grid.leave("words-bag")})
    with quick():
        assert engines.resume(tmp_path / "run", "inprocess")
    assert set(read_outcome(tmp_path / "run").test) == set(CLIENTS)


def test_clients_that_are_back_join_the_test_of_those_that_were_measured(tmp_path: Path) -> None:
    config = toy_config({"run.rounds": 2, **GOES_ON})
    first = outcome_of(config, tmp_path / "run", {2: lambda grid, _: grid.leave("words-bag")})
    with quick():
        assert prepare_resume(tmp_path / "run")
        grid = Weather(config)
        grid.leave("shapes-mlp")
        server_app.serve(grid, tmp_path / "run")
    both = read_outcome(tmp_path / "run")
    assert set(both.test) == set(CLIENTS)
    assert both.test["shapes-mlp"] == first.test["shapes-mlp"]


def test_numbers_of_names_that_nobody_asked_for_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Participant._update

    def inventive(self: Participant, broadcast: Any, version: int, blocks: Any, metrics: Any, counts: Any = None) -> Any:
        more = {"dev.garbage": 1.0, "dev.evil.q.accuracy": 1.0, "x": 1.0, "best.x.y": 2.0, "choices.never.q.round": 3.0}
        return update(self, broadcast, version, blocks, {**metrics, **more}, counts)

    expected = outcome_of(toy_config({"run.rounds": 2}), tmp_path / "plain")
    monkeypatch.setattr(Participant, "_update", inventive)
    found = outcome_of(toy_config({"run.rounds": 2}), tmp_path / "inventive")
    assert found.test == expected.test
    assert [row["dev"] for row in found.history if "dev" in row] == [row["dev"] for row in expected.history if "dev" in row]
    write_report(tmp_path / "inventive")


def test_a_client_whose_closing_was_lost_is_not_tested_with_older_choices(tmp_path: Path) -> None:
    """It closed after round 1; the run then goes on to round 2, where its closing is lost."""
    carry_out(toy_config({"run.rounds": 1}), tmp_path / "run")
    with quick():
        assert prepare_resume(tmp_path / "run", rounds=2, overrides=["participation.minimum_clients=1"])
        grid = Weather(toy_config())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Participant, "close", lossy(Participant.close))
            server_app.serve(grid, tmp_path / "run")
    assert set(read_outcome(tmp_path / "run").test) == set(CLIENTS) - {"words-bag"}


def lossy(close: Callable[..., Any]) -> Callable[..., Any]:
    def closing(self: Participant, broadcast: Any) -> Any:
        if self.data.client == "words-bag":
            raise OSError("the line is dead")
        return close(self, broadcast)

    return closing


def test_a_full_disk_costs_a_client_one_round_and_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"words-bag"}
    # The write itself fails, as it does on a full disk: what was there before stays.
    real_open = open

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opening(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        opened = real_open(file, mode, *arguments, **named)
        written = mode == "r+b" and "/words-bag/" in str(file) and ".version-00000002" in str(file)
        return Full(opened) if full and written else opened

    monkeypatch.setattr(block_files, "open", opening, raising=False)
    outcome = outcome_of(toy_config({"run.rounds": 3}), tmp_path / "run", {3: lambda *_: full.clear()})
    refused = row(outcome, 2)["refused"]["words-bag"]
    assert "No space left on device" in refused
    assert "what was there before is unchanged" in refused
    assert row(outcome, 3)["answered"] == sorted(CLIENTS)
    assert store_of(tmp_path / "run", "words-bag").versions()[-1] == 3


@pytest.mark.parametrize("damage", ["truncated", "flipped", "lost"])
def test_a_damaged_private_model_costs_one_round_and_is_said(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def harm(grid: Weather, _: int) -> None:
        store = store_of(tmp_path / "run", "words-bag")
        path = store._version_path(2)
        data = bytearray(path.read_bytes())
        if damage == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            data[-5] ^= 1
            path.write_bytes(data)
        else:
            path.unlink()
        new_process()

    with caplog.at_level(logging.WARNING):
        outcome = outcome_of(toy_config({"run.rounds": 3}), tmp_path / "run", {3: harm})
    assert row(outcome, 3)["answered"] == sorted(CLIENTS)
    assert row(outcome, 3)["clients"]["words-bag"]["rolled_back_to"] == 1
    assert "client words-bag goes on from version 1 of its private model" in caplog.text
    assert store_of(tmp_path / "run", "words-bag").versions()[-1] == 3
    assert set(outcome.test) == set(CLIENTS)


def test_where_no_version_is_whole_the_client_is_refused_and_named(tmp_path: Path) -> None:
    def harm(grid: Weather, _: int) -> None:
        store = store_of(tmp_path / "run", "words-bag")
        for version in store.versions():
            store._version_path(version).write_bytes(b"nothing")
        new_process()

    carry_out(toy_config({"run.rounds": 3, "participation.minimum_clients": 1}), tmp_path / "run", {3: harm})
    third = read_json_lines(tmp_path / "run" / "history.jsonl")[0][2]
    assert "is damaged" in third["refused"]["words-bag"]
    assert third["answered"] == sorted(set(CLIENTS) - {"words-bag"})


def test_one_run_folder_is_carried_on_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "RELEASE_SECONDS", 0.3)
    config = toy_config({"run.rounds": 1})
    with quick():
        folder = prepare_run(config, tmp_path / "run", "inprocess")
        with held(folder), pytest.raises(RunError, match="another process is carrying on this run"):
            engines.resume(folder, "inprocess")
        assert engines.resume(folder, "inprocess")


def test_a_node_with_another_version_of_the_package_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_app, "code_digest", lambda: "0" * 64)
    with pytest.raises(RegistrationError, match="client 'shapes-cnn' runs another code: 000000000000, expected"):
        carry_out(toy_config({"run.rounds": 1}), tmp_path / "run")
