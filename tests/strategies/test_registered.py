import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import ContractError, RegistrationError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Array, Blocks, Broadcast, Contract, Membership, Update
from fedsocket_flwr.exchange.registration import Roster
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.strategies import RegisteredStrategy
from tests.small_federation import CONTRACT, MEMBERS, drawn, drift, grid_of, same_bits, sent_message

FEW = settings(max_examples=20, deadline=None)
START = drawn("start")


class Recording(RegisteredStrategy):
    """Keep the blocks and remember the updates."""

    def merge(self, previous: Blocks, updates: Sequence[Update]) -> tuple[Blocks, dict[str, float]]:
        self.updates = list(updates)
        return previous, {"seen": float(len(updates))}


def arrays(blocks: Blocks = START) -> ArrayRecord:
    return payload.array_record(payload.serialise(blocks))


def configured(strategy: RegisteredStrategy, grid: InProcessGrid, server_round: int = 1) -> list[Message]:
    return strategy.configure_train(server_round, arrays(), ConfigRecord(), grid)


def one_round(strategy: RegisteredStrategy, grid: InProcessGrid, server_round: int = 1) -> ArrayRecord:
    replies = list(grid.send_and_receive(configured(strategy, grid, server_round)))
    merged, _ = strategy.aggregate_train(server_round, replies)
    assert merged is not None
    return merged


def crowd(per_task: Mapping[str, int], first_node: int = 2, backwards: bool = False) -> Roster:
    """Return a roster of clients ``task-0``, ``task-1``, ... at nodes in one or the other order."""
    clients = [(f"{task}-{number}", task) for task, size in per_task.items() for number in range(size)]
    members = {client: Membership(client, task, ("image",), 1) for client, task in clients}
    ordered = [client for client, _ in (reversed(clients) if backwards else clients)]
    return Roster(memberships=members, nodes={client: node for node, client in enumerate(ordered, start=first_node)})


def chooser(roster: Roster, seed: int = 1, **how: Any) -> Recording:
    return Recording(Contract(()), roster=roster, seed=seed, **how)


def by_task(chosen: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for client in chosen:
        task = client.rpartition("-")[0]
        found[task] = found.get(task, 0) + 1
    return found


class TestParticipation:
    SIZES: Mapping[str, int] = {"digits": 10, "news": 3, "pairs": 1}

    def test_everybody_by_default(self) -> None:
        roster = crowd(self.SIZES)
        assert chooser(roster).choose(1) == sorted(roster.nodes)

    @pytest.mark.parametrize(
        ("share", "tasks", "expected"),
        [
            (0.5, {}, {"digits": 5, "news": 2, "pairs": 1}),
            (0.3, {}, {"digits": 3, "news": 1, "pairs": 1}),
            (0.01, {}, {"digits": 1, "news": 1, "pairs": 1}),
            (0.01, {"digits": 0.8}, {"digits": 8, "news": 1, "pairs": 1}),
            (1.0, {"news": 0.34}, {"digits": 10, "news": 1, "pairs": 1}),
        ],
    )
    def test_a_share_of_every_task_and_at_least_one(
        self, share: float, tasks: dict[str, float], expected: dict[str, int]
    ) -> None:
        strategy = chooser(crowd(self.SIZES), share=share, task_shares=tasks)
        for server_round in range(1, 6):
            assert by_task(strategy.choose(server_round)) == expected

    @FEW
    @given(st.integers(0, 2**63 - 1), st.integers(1, 1000), st.integers(3, 10**9))
    def test_node_ids_do_not_matter(self, seed: int, server_round: int, first_node: int) -> None:
        here = chooser(crowd(self.SIZES), seed, share=0.4)
        there = chooser(crowd(self.SIZES, first_node, backwards=True), seed, share=0.4)
        assert here.choose(server_round) == there.choose(server_round)

    def test_seed_and_round_matter(self) -> None:
        first, second = (chooser(crowd(self.SIZES), seed, share=0.4) for seed in (1, 2))
        assert len({tuple(first.choose(number)) for number in range(1, 9)}) > 4
        assert [first.choose(number) for number in range(1, 5)] != [second.choose(number) for number in range(1, 5)]

    def test_everyone_gets_a_turn(self) -> None:
        strategy = chooser(crowd({"digits": 10}), share=0.2)
        turns = dict.fromkeys(strategy.roster.nodes, 0)
        for server_round in range(1, 201):
            for client in strategy.choose(server_round):
                turns[client] += 1
        # 200 rounds x 0.2: 40 turns each in the mean, with a standard deviation of 5.7.
        assert sum(turns.values()) == 400
        assert all(20 < number < 60 for number in turns.values())

    def test_who_is_gone_is_not_asked_and_the_share_is_of_those_present(self) -> None:
        roster = crowd({"digits": 10})
        strategy = chooser(roster, share=0.5)
        roster.nodes = {client: node for client, node in roster.nodes.items() if client < "digits-4"}
        assert len(strategy.choose(1)) == 2
        assert set(strategy.choose(1)) <= {"digits-0", "digits-1", "digits-2", "digits-3"}

    def test_only_the_chosen_get_a_message(self) -> None:
        strategy, grid = Recording(CONTRACT, share=0.5), grid_of()
        messages = configured(strategy, grid)
        assert strategy.report.asked == strategy.choose(1)
        assert [strategy.roster.nodes[client] for client in strategy.report.asked] == [m.metadata.dst_node_id for m in messages]
        assert by_task(strategy.report.asked) == {"digits": 1, "news": 1, "pairs": 1}


class TestMessages:
    def test_a_client_gets_what_it_can_execute(self) -> None:
        strategy, grid = Recording(CONTRACT, run="run-7"), grid_of()
        for client, message in zip(sorted(MEMBERS), configured(strategy, grid, 4), strict=True):
            broadcast = payload.read_broadcast(message)
            expected = {block.name: START[block.name] for block in CONTRACT.readable(MEMBERS[client])}
            assert same_bits(broadcast.blocks, expected)
            assert (broadcast.run, broadcast.round, broadcast.phase, broadcast.base_version) == ("run-7", 4, "train", 0)

    def test_the_full_payload_has_all_blocks(self) -> None:
        for message in configured(Recording(CONTRACT, payload_mode="full"), grid_of()):
            assert same_bits(payload.read_broadcast(message).blocks, START)

    def test_the_clients_version_comes_back_to_it(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        one_round(strategy, grid, 1)
        assert strategy.versions == dict.fromkeys(MEMBERS, 1)
        assert {payload.read_broadcast(message).base_version for message in configured(strategy, grid, 2)} == {1}

    def test_a_resumed_strategy_goes_on_from_the_versions(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        one_round(strategy, grid, 5)
        resumed = Recording(CONTRACT)
        resumed.load_state(json.loads(json.dumps(strategy.state())))
        assert {payload.read_broadcast(message).base_version for message in configured(resumed, grid_of(), 6)} == {5}

    def test_arrays_of_another_model_are_refused(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        for blocks in ({}, {"odd": np.zeros(1)}, dict(reversed(START.items()))):
            with pytest.raises(ContractError, match="not the blocks of the contract"):
                strategy.configure_train(1, arrays(blocks), ConfigRecord(), grid)

    def test_closing_sends_the_blocks_and_testing_none(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        strategy.register(grid)
        (close,) = strategy.configure_phase("close", 3, arrays(), ["news-1"])
        (test,) = strategy.configure_phase("test", 3, arrays(), ["news-1"])
        assert (close.metadata.message_type, test.metadata.message_type) == ("query.close", "query.test")
        assert set(payload.read_broadcast(close).blocks) == {block.name for block in CONTRACT.readable(MEMBERS["news-1"])}
        assert payload.read_broadcast(test).blocks == {}

    def test_messages_and_answers_are_sorted_by_client(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        strategy.register(grid)
        replies = list(grid.send_and_receive(strategy.configure_phase("close", 1, arrays(), ["pairs-1", "digits-2", "news-1"])))
        assert [update.client for update in strategy.read_phase(1, replies)] == ["digits-2", "news-1", "pairs-1"]


class TestAnswers:
    @FEW
    @given(st.permutations(range(len(MEMBERS))))
    def test_updates_are_sorted_whoever_answered_first(self, order: list[int]) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        replies = list(grid.send_and_receive(configured(strategy, grid)))
        strategy.aggregate_train(1, iter([replies[place] for place in order]))
        assert [update.client for update in strategy.updates] == sorted(MEMBERS)
        assert list(strategy.report.clients) == strategy.report.answered == sorted(MEMBERS)

    def test_updates_hold_writable_blocks_only(self) -> None:
        strategy = Recording(CONTRACT, payload_mode="full")
        one_round(strategy, grid_of())
        held = {update.client: set(update.blocks) for update in strategy.updates}
        assert held == {c: {block.name for block in CONTRACT.writable(m)} for c, m in MEMBERS.items()}

    def test_late_and_unknown_answers_are_ignored_and_missing_ones_reported(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        late = list(grid.send_and_receive(configured(strategy, grid, 1)))
        stranger = Message(RecordDict(), reply_to=sent_message(RecordDict(), node=99))
        now = list(grid.send_and_receive(configured(strategy, grid, 2)))
        strategy.aggregate_train(2, [*late, stranger, *now[1:]])
        assert strategy.report.missing == ["digits-1"]
        assert strategy.report.answered == sorted(MEMBERS)[1:]
        assert strategy.report.refused == {}
        assert {update.round for update in strategy.updates} == {2}
        assert "digits-1" not in strategy.versions

    def test_a_refused_answer_keeps_the_clients_version(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            moved, metrics = drift(member, broadcast)
            bad = member.client == "news-1" and broadcast.round == 2
            return moved, {"loss.q": float("inf")} if bad else metrics

        strategy, grid = Recording(CONTRACT), grid_of(work)
        one_round(strategy, grid, 1)
        one_round(strategy, grid, 2)
        assert strategy.report.refused == {"news-1": "metric 'loss.q' is inf"}
        assert strategy.versions == {**dict.fromkeys(MEMBERS, 2), "news-1": 1}

    def test_of_two_answers_to_one_message_the_first_counts(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        replies = list(grid.send_and_receive(configured(strategy, grid)))
        once = [dict(update.blocks) for update in strategy.read_phase(1, replies)]
        doubled = [*replies, *replies[::-1]]
        assert all(same_bits(a, b) for a, b in zip(once, [u.blocks for u in strategy.read_phase(1, doubled)], strict=True))
        assert strategy.report.refused == {}

    def test_a_client_that_was_not_reached_is_missing_and_not_refused(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        messages = configured(strategy, grid)
        replies = list(grid.send_and_receive(messages))
        lost = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=messages[0])
        strategy.aggregate_train(1, [lost, *replies[1:]])
        assert strategy.report.missing == ["digits-1"]
        assert strategy.report.refused == {}

    def test_who_is_not_there_to_be_asked_is_absent(self) -> None:
        grid = grid_of(nodes=[{"client": "news-1"}])
        strategy = Recording(CONTRACT, expected_clients=["news-1", "pairs-1"], minimum_clients=1, registration_seconds=0.01)
        one_round(strategy, grid)
        assert (strategy.report.absent, strategy.report.answered) == (["pairs-1"], ["news-1"])

    def test_a_long_update_is_shortened_to_the_bound_and_named(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            step = np.float32(100.0 if member.client == "news-1" else 0.001)
            return {name: np.asarray(block + step, block.dtype) for name, block in broadcast.blocks.items()}, {}

        strategy = Recording(CONTRACT, norm_bound=1.0)
        one_round(strategy, grid_of(work))
        assert strategy.report.clipped == {"news-1": pytest.approx(100.0 * np.sqrt(11), rel=1e-3)}
        (news,) = (update for update in strategy.updates if update.client == "news-1")
        moved = sum(float(np.square(block.astype(float) - START[name]).sum()) for name, block in news.blocks.items())
        assert np.sqrt(moved) == pytest.approx(1.0, rel=1e-3)

    def test_what_the_round_is_configured_with_reaches_the_client(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        messages = strategy.configure_train(1, arrays(), ConfigRecord({"clipping_norm": 0.5}), grid)
        assert {message.content.config_records["config"]["clipping_norm"] for message in messages} == {0.5}
        with pytest.raises(ContractError, match="may not set round"):
            strategy.configure_train(1, arrays(), ConfigRecord({"round": 9}), grid)

    def test_nobody_answers(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        configured(strategy, grid)
        merged, metrics = strategy.aggregate_train(1, [])
        assert merged is not None
        assert same_bits(payload.read_array_record(merged), START)
        assert metrics == MetricRecord({"answered": 0, "refused": 0, "seen": 0.0})
        assert strategy.report.missing == sorted(MEMBERS)


class TestBytes:
    """Per client: digits 13 numbers, news 11, pairs 10, all blocks 24; 4 bytes each, and 8 a count of examples and classes."""

    COUNTS = 8 * (2 * 4 + 3 + 2 * 1)

    def test_owned(self) -> None:
        strategy = Recording(CONTRACT)
        one_round(strategy, grid_of())
        numbers = 2 * 13 + 11 + 2 * 10
        assert strategy.report.bytes == {
            "down": 4 * numbers,
            "up": 4 * numbers + self.COUNTS,
            "down_full": 5 * 96,
            "up_full": 5 * 96 + self.COUNTS,
        }

    def test_full(self) -> None:
        strategy = Recording(CONTRACT, payload_mode="full")
        one_round(strategy, grid_of())
        assert strategy.report.bytes == {
            "down": 5 * 96,
            "up": 5 * 96 + self.COUNTS,
            "down_full": 5 * 96,
            "up_full": 5 * 96 + self.COUNTS,
        }

    def test_who_did_not_answer_sent_nothing(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            if member.task != "news":
                raise RuntimeError("no")
            return drift(member, broadcast)

        strategy = Recording(CONTRACT)
        one_round(strategy, grid_of(work))
        assert strategy.report.bytes["up"] == 4 * 11 + 8 * 3
        assert strategy.report.bytes["down"] == 4 * 57

    def test_closing_sends_down_blocks_and_up_counts(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        strategy.register(grid)
        strategy.read_phase(1, list(grid.send_and_receive(strategy.configure_phase("close", 1, arrays(), ["news-1"]))))
        assert strategy.report.bytes == {"down": 44, "up": 24, "down_full": 96, "up_full": 24}
        strategy.read_phase(1, list(grid.send_and_receive(strategy.configure_phase("test", 1, arrays(), ["news-1"]))))
        assert strategy.report.bytes == {"down": 0, "up": 24, "down_full": 0, "up_full": 24}


class TestRegistration:
    def test_the_first_round_waits_for_the_expected_clients(self) -> None:
        strategy = Recording(CONTRACT, expected_clients=[*MEMBERS, "news-9"], registration_seconds=0.01)
        with pytest.raises(RegistrationError, match="no node registered as news-9"):
            configured(strategy, grid_of())

    def test_later_rounds_do_not(self) -> None:
        strategy, grid = Recording(CONTRACT, expected_clients=list(MEMBERS)), grid_of()
        configured(strategy, grid)
        fewer = grid_of(nodes=[{"client": client} for client in sorted(MEMBERS)[:2]])
        assert len(configured(strategy, fewer, 2)) == 2

    def test_nobody_is_asked_to_evaluate(self) -> None:
        strategy, grid = Recording(CONTRACT), grid_of()
        assert strategy.configure_evaluate(1, arrays(), ConfigRecord(), grid) == []
        assert strategy.aggregate_evaluate(1, []) is None
