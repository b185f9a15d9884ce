import logging
import time
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsocket_flwr.errors import RegistrationError
from fedsocket_flwr.exchange import registration
from fedsocket_flwr.exchange.registration import RECORD, Roster, answer_registration
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from tests.small_federation import MEMBERS

DIGESTS = {"code": "c" * 64, "configuration": "f" * 64}


@pytest.fixture(autouse=True)
def _no_pause_between_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(registration, "AGAIN_SECONDS", 0.002)


class ScriptedGrid(InProcessGrid):
    """Nodes that come, go, keep silent or cannot be reached. ``online`` has the nodes at each look; the last entry stays."""

    def __init__(
        self, app: ClientApp, nodes: Sequence[dict[str, Any]], online: Sequence[set[int]] = (), silent: Iterable[int] = ()
    ) -> None:
        super().__init__(app, nodes)
        self.online = list(online) or [set(super().get_node_ids())]
        self.silent, self.unreached = set(silent), dict[int, int]()
        self.asked: list[int] = []
        self.sender: dict[str, int] = {}

    def get_node_ids(self) -> Iterable[int]:
        return self.online.pop(0) if len(self.online) > 1 else self.online[0]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.asked += [message.metadata.dst_node_id for message in messages]
        ids = list(super().push_messages(messages))
        for message, message_id in zip(messages, ids, strict=True):
            node = message.metadata.dst_node_id
            if self.unreached.get(node, 0) > 0:
                self.unreached[node] -= 1
                self._replies[message_id] = Message(Error(5, "Node Unavailable"), reply_to=message)
            self.sender[message_id] = node
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([found for found in message_ids if self.sender[found] not in self.silent])

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("registration never waits for one node alone")


def app_of(**digests: str) -> ClientApp:
    app = ClientApp()

    @app.query("register")
    def register(message: Message, context: Context) -> Message:
        asked = message.content.config_records[RECORD]
        assert asked["run"] == "run-1"
        client = str(context.node_config["client"])
        if client == "broken":
            raise RuntimeError("line one\nthe disk is full")
        if client == "stranger":
            return Message(RecordDict({"other": ConfigRecord({})}), reply_to=message)
        if client == "liar":
            return Message(RecordDict({RECORD: ConfigRecord({"membership": '{"client": 3}'})}), reply_to=message)
        own = {name: str(context.node_config.get(name, value)) for name, value in DIGESTS.items()}
        return Message(answer_registration(MEMBERS[client], own), reply_to=message)

    return app


def grid_of(*clients: str | dict[str, Any], **script: Any) -> ScriptedGrid:
    """Return a grid whose nodes 2, 3, ... are these clients."""
    nodes = [{"client": client} if isinstance(client, str) else client for client in clients]
    return ScriptedGrid(app_of(), nodes, **script)


def roster() -> Roster:
    return Roster(request={"run": "run-1"}, digests=DIGESTS)


class TestWhoIsWho:
    def test_every_node_becomes_a_client(self) -> None:
        known = roster()
        known.register(grid_of("news-1", "digits-1"), ["digits-1", "news-1"], 5)
        assert known.nodes == {"news-1": 2, "digits-1": 3}
        assert known.memberships == {client: MEMBERS[client] for client in ("news-1", "digits-1")}
        assert known.refused == {}

    def test_a_known_node_is_asked_once(self) -> None:
        known, grid = roster(), grid_of("news-1", "digits-1")
        for _ in range(3):
            known.register(grid, None, 5)
        assert grid.asked == [2, 3]

    def test_without_expected_clients_whoever_is_there_is_enough(self) -> None:
        known = roster()
        known.register(grid_of("pairs-1"), None, 5)
        assert set(known.nodes) == {"pairs-1"}

    def test_a_client_that_nobody_expected_takes_part_too(self) -> None:
        known = roster()
        known.register(grid_of("pairs-1", "news-1"), ["news-1"], 5)
        assert set(known.nodes) == {"pairs-1", "news-1"}


class TestRefusals:
    @pytest.mark.parametrize("digest", ["code", "configuration"])
    def test_another_digest_is_named_with_its_client(self, digest: str) -> None:
        known = roster()
        known.register(grid_of("news-1", {"client": "digits-1", digest: "0" * 64}), ["news-1"], 5)
        assert known.refused == {3: f"client 'digits-1' runs another {digest}: {'0' * 12}, expected {DIGESTS[digest][:12]}"}
        assert set(known.memberships) == {"news-1"}

    def test_a_digest_that_is_missing(self) -> None:
        known = Roster(request={"run": "run-1"}, digests={"licence": "x"})
        with pytest.raises(RegistrationError, match="client 'news-1' runs another licence: None, expected x"):
            known.register(grid_of("news-1"), ["news-1"], 5)

    def test_a_second_node_of_a_client(self) -> None:
        known = roster()
        known.register(grid_of("news-1", "news-1"), ["news-1"], 5)
        assert known.nodes == {"news-1": 2}
        assert known.refused == {3: "node 3 claims client 'news-1', which is node 2"}

    def test_a_node_that_raises_is_named_with_its_last_words(self) -> None:
        known = roster()
        known.register(grid_of("news-1", "broken"), ["news-1"], 5)
        assert known.refused == {3: "the disk is full"}

    @pytest.mark.parametrize("client", ["stranger", "liar"])
    def test_a_node_that_answers_something_else(self, client: str) -> None:
        known = roster()
        known.register(grid_of("news-1", client), ["news-1"], 5)
        assert known.refused[3].startswith("node 3 does not answer as a client: ")

    def test_where_the_refused_node_takes_the_missing_clients_place_nobody_waits(self) -> None:
        began = time.monotonic()
        with pytest.raises(RegistrationError, match=r"2 nodes are online, but no node registered as digits-1 \(.*another code"):
            roster().register(grid_of("news-1", {"client": "digits-1", "code": "old"}), ["news-1", "digits-1"], 60)
        assert time.monotonic() - began < 5

    def test_a_refused_node_is_not_asked_again(self) -> None:
        known, grid = roster(), grid_of("news-1", "broken")
        for _ in range(3):
            known.register(grid, ["news-1"], 5)
        assert grid.asked == [2, 3]


class TestDeclarations:
    DECLARED = MappingProxyType({c: (m.task, frozenset(m.modalities), len(m.class_counts)) for c, m in MEMBERS.items()})

    def test_who_declares_what_the_configuration_says_is_admitted(self) -> None:
        known = Roster({"run": "run-1"}, DIGESTS, self.DECLARED)
        known.register(grid_of("news-1", "digits-1"), None, 5)
        assert set(known.nodes) == {"news-1", "digits-1"}

    @pytest.mark.parametrize(
        ("declared", "reason"),
        [
            ({}, "node 2 claims client 'news-1', which the configuration does not have"),
            (
                {"news-1": ("digits", frozenset({"text"}), 2)},
                "client 'news-1' declares task 'news', text, 2 classes, expected task",
            ),
            ({"news-1": ("news", frozenset({"text", "image"}), 2)}, "expected task 'news', image+text, 2 classes"),
            ({"news-1": ("news", frozenset({"text"}), 4)}, "expected task 'news', text, 4 classes"),
        ],
    )
    def test_who_contradicts_it_is_refused(self, declared: Any, reason: str) -> None:
        known = Roster({"run": "run-1"}, DIGESTS, declared)
        with pytest.raises(RegistrationError):
            known.register(grid_of("news-1"), ["news-1"], 0.05)
        assert reason in known.refused[2]


class TestWaiting:
    def test_a_refused_node_does_not_cut_the_wait_for_the_minimum_short(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", "broken", online=[{2, 3, 4}] * 3 + [{2, 4}] * 20 + [{2, 3, 4}])
        known.register(grid, None, 30, minimum=2)
        known._release_absent({2, 4})
        known.register(grid, None, 30, minimum=2)
        assert set(known.nodes) == {"news-1", "digits-1"}

    def test_nodes_that_come_late(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", "digits-2", online=[set(), {2}, {2, 4}, {2, 4}, {2, 3, 4}])
        known.register(grid, ["digits-1", "digits-2", "news-1"], 30)
        assert set(known.nodes) == {"digits-1", "digits-2", "news-1"}
        assert grid.asked == [2, 4, 3]

    def test_a_refused_node_does_not_end_the_wait_for_one_that_comes_late(self) -> None:
        known = roster()
        grid = grid_of("broken", "news-1", "digits-1", online=[{2}, {2}, {2, 3, 4}])
        known.register(grid, ["digits-1", "news-1"], 30)
        assert set(known.nodes) == {"digits-1", "news-1"}
        assert known.refused == {2: "the disk is full"}

    def test_who_is_missing_when_the_time_is_over_is_named(self) -> None:
        expected = r"1 nodes are online, but no node registered as digits-1, pairs-1 \(none was refused\)"
        with pytest.raises(RegistrationError, match=expected):
            roster().register(grid_of("news-1"), ["pairs-1", "news-1", "digits-1"], 0.05)

    def test_nobody_comes(self) -> None:
        with pytest.raises(RegistrationError, match=r"0 nodes are online, but no node registered as a client"):
            roster().register(grid_of("news-1", online=[set()]), None, 0.05)

    def test_the_answer_of_a_silent_node_counts_whenever_it_comes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registration, "ANSWER_SECONDS", 0.02)
        known, grid = roster(), grid_of("news-1", "digits-1", silent=[3])
        known.register(grid, ["news-1"], 5)
        assert set(known.nodes) == {"news-1"}
        grid.silent.clear()
        known.register(grid, ["news-1", "digits-1"], 5)
        assert grid.asked == [2, 3]
        assert known.nodes == {"news-1": 2, "digits-1": 3}

    def test_a_silent_node_holds_nobody_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registration, "ANSWER_SECONDS", 0.02)
        known, grid = roster(), grid_of("news-1", "digits-1", silent=[3])
        began = time.monotonic()
        for _ in range(3):
            known.register(grid, None, 60)
        assert time.monotonic() - began < 5
        assert set(known.nodes) == {"news-1"}

    def test_a_client_that_answers_soon_is_waited_for(self) -> None:
        known = roster()

        class Slow(ScriptedGrid):
            looks = 0

            def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
                self.looks += 1
                return super().pull_messages(message_ids) if self.looks > 3 else []

        known.register(Slow(app_of(), [{"client": "news-1"}, {"client": "digits-1"}]), None, 60)
        assert set(known.nodes) == {"news-1", "digits-1"}

    def test_with_a_minimum_the_run_goes_on_without_the_missing(self, caplog: pytest.LogCaptureFixture) -> None:
        known = roster()
        with caplog.at_level(logging.WARNING, logger="flwr"):
            known.register(grid_of("news-1", "pairs-1"), ["pairs-1", "news-1", "digits-1"], 0.05, minimum=2)
        assert set(known.nodes) == {"news-1", "pairs-1"}
        assert "Going on without digits-1" in caplog.text

    def test_fewer_than_the_minimum(self) -> None:
        expected = r"no node registered as digits-1, pairs-1 \(none was refused\); 2 clients are needed, 1 registered"
        with pytest.raises(RegistrationError, match=expected):
            roster().register(grid_of("news-1"), ["pairs-1", "news-1", "digits-1"], 0.05, minimum=2)

    def test_a_later_round_waits_for_the_minimum_too(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", online=[{2}, {2}, {2}, {2, 3}])
        known.register(grid, None, 30, minimum=2)
        assert set(known.nodes) == {"news-1", "digits-1"}

    def test_all_expected_clients_are_waited_for_although_the_minimum_is_there(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", online=[{2}, {2}, {2}, {2, 3}])
        known.register(grid, ["news-1", "digits-1"], 30, minimum=1)
        assert set(known.nodes) == {"news-1", "digits-1"}

    def test_a_node_that_could_not_be_reached_is_asked_again_and_not_refused(self) -> None:
        known, grid = roster(), grid_of("news-1", "digits-1")
        grid.unreached[3] = 2
        known.register(grid, ["news-1", "digits-1"], 30)
        assert known.nodes == {"news-1": 2, "digits-1": 3}
        assert known.refused == {}
        assert grid.asked == [2, 3, 3, 3]


class TestReturning:
    def test_a_client_that_returns_under_a_new_node_is_the_same_client(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", "news-1", online=[{2, 3}, {3, 4}])
        known.register(grid, None, 5)
        known.register(grid, None, 5)
        assert known.nodes == {"digits-1": 3, "news-1": 4}
        assert set(known.memberships) == {"digits-1", "news-1"}

    def test_a_client_that_left_is_no_longer_at_a_node_but_still_known(self) -> None:
        known = roster()
        grid = grid_of("news-1", "digits-1", online=[{2, 3}, {3}])
        known.register(grid, None, 5)
        known.register(grid, None, 5)
        assert known.nodes == {"digits-1": 3}
        assert set(known.memberships) == {"digits-1", "news-1"}

    def test_a_restarted_node_gets_its_place_once_the_old_one_counts_as_gone(self) -> None:
        """Flower keeps a node that died online for a while; its successor's claim is refused only until then."""
        known = roster()
        grid = grid_of("news-1", "digits-1", "news-1", online=[{2, 3}, {2, 3, 4}, {3, 4}])
        for _ in range(2):
            known.register(grid, None, 5)
        assert known.refused == {4: "node 4 claims client 'news-1', which is node 2"}
        known.register(grid, None, 5)
        assert known.nodes == {"digits-1": 3, "news-1": 4}
        assert known.refused == {}
