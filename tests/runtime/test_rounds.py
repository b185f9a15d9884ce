import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from fedsocket_flwr.evaluation.run_schema import RowForm, check_form
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Array, Blocks, Broadcast, Membership
from fedsocket_flwr.plain_files import dump_json
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.rounds import Row, run_phase, run_rounds
from fedsocket_flwr.strategies import RegisteredStrategy, TaskOwnedStrategy
from tests.small_federation import CONTRACT, MEMBERS, NODES, drawn, drift, grid_of, numpy_app, same_bits

CLIENTS = sorted(MEMBERS)


def arrays(blocks: Blocks | None = None) -> ArrayRecord:
    return payload.array_record(payload.serialise(drawn("start") if blocks is None else blocks))


def run(
    first: int, last: int, strategy: RegisteredStrategy, before: ArrayRecord, grid: InProcessGrid | None = None
) -> tuple[ArrayRecord, list[Row], list[Blocks]]:
    """Return the arrays after the last round, the history, and the blocks after each round."""
    rows: list[Row] = []
    blocks: list[Blocks] = []

    def on_round(row: Row, after: ArrayRecord) -> None:
        rows.append(row)
        blocks.append(payload.read_array_record(after))

    after = run_rounds(grid or grid_of(), strategy, before, first=first, last=last, seconds=9.0, on_round=on_round)
    return after, rows, blocks


class TestRounds:
    def test_each_round_starts_where_the_former_ended(self) -> None:
        after, rows, blocks = run(1, 3, TaskOwnedStrategy(CONTRACT), arrays())
        assert [row["round"] for row in rows] == [1, 2, 3]
        assert same_bits(payload.read_array_record(after), blocks[-1])
        assert not same_bits(blocks[0], blocks[1])

    def test_it_is_flowers_own_loop(self) -> None:
        after, _, _ = run(1, 3, TaskOwnedStrategy(CONTRACT), arrays())
        flowers = TaskOwnedStrategy(CONTRACT).start(grid_of(), arrays(), num_rounds=3)
        assert same_bits(payload.read_array_record(after), payload.read_array_record(flowers.arrays))

    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_from_any_round_it_goes_on_to_the_same_bits(self, cut: int) -> None:
        _, uncut_rows, uncut = run(1, 4, TaskOwnedStrategy(CONTRACT), arrays())
        strategy = TaskOwnedStrategy(CONTRACT)
        before, rows, blocks = run(1, cut, strategy, arrays())
        resumed = TaskOwnedStrategy(CONTRACT)
        resumed.load_state(json.loads(json.dumps(strategy.state())))
        _, more_rows, more = run(cut + 1, 4, resumed, before)
        assert all(same_bits(one, other) for one, other in zip([*blocks, *more], uncut, strict=True))
        assert [{**row, "seconds": 0} for row in [*rows, *more_rows]] == [{**row, "seconds": 0} for row in uncut_rows]

    def test_no_rounds_left(self) -> None:
        before = arrays()
        after, rows, _ = run(5, 4, TaskOwnedStrategy(CONTRACT), before)
        assert after is before
        assert rows == []

    def test_the_bound_on_waiting_reaches_the_grid(self) -> None:
        waits: list[float | None] = []

        waits: list[float | None] = []

        class Watched(InProcessGrid):
            def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
                waits.append(timeout)
                return super().send_and_receive(messages, timeout=timeout)

        grid, strategy = Watched(numpy_app(), NODES), TaskOwnedStrategy(CONTRACT)
        strategy.register(grid)
        waits.clear()
        run(1, 2, strategy, arrays(), grid)
        run_phase(grid, strategy, "close", 2, arrays(), CLIENTS, 4.0)
        assert waits == [9.0, 9.0, 4.0]

    def test_a_client_that_raises_does_not_end_the_run(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            if member.client == "news-1" and broadcast.round == 2:
                raise OSError("no space left")
            return drift(member, broadcast)

        strategy = TaskOwnedStrategy(CONTRACT)
        _, rows, blocks = run(1, 3, strategy, arrays(), grid_of(work))
        assert [row["refused"] for row in rows] == [{}, {"news-1": "no answer: OSError: no space left (code 2)"}, {}]
        assert blocks[1]["news.body"].tobytes() == blocks[0]["news.body"].tobytes()
        assert blocks[2]["news.body"].tobytes() != blocks[1]["news.body"].tobytes()
        assert strategy.versions == dict.fromkeys(MEMBERS, 3)


class TestHistory:
    """The shape of a row is that of docs/run_folder.md, which the report reads."""

    def test_rows_of_training(self) -> None:
        _, (first, second), _ = run(1, 2, TaskOwnedStrategy(CONTRACT), arrays())
        assert set(first) == {
            "phase",
            "round",
            "seconds",
            "asked",
            "answered",
            "refused",
            "missing",
            "absent",
            "clipped",
            "bytes",
            "clients",
            "strategy",
        }, "nobody measures DEV in round 1"
        assert (first["phase"], first["round"], first["refused"], first["missing"]) == ("train", 1, {}, [])
        assert first["asked"] == first["answered"] == CLIENTS
        assert set(first["bytes"]) == {"up", "down", "up_full", "down_full"}
        assert first["clients"] == {client: {"loss.q": 1.0} for client in CLIENTS}
        assert set(first["strategy"]) == {f"conflict.residual.{pair}" for pair in ("digits.news", "digits.pairs", "news.pairs")}
        # What a client measured in round 2 belongs to the model of round 1.
        assert second["dev"] == {"round": 1, "clients": {client: {"q.accuracy": 0.5} for client in CLIENTS}}
        assert second["clients"] == {client: {"loss.q": 0.5} for client in CLIENTS}

    def test_the_row_of_the_closing(self) -> None:
        strategy, grid = TaskOwnedStrategy(CONTRACT), grid_of()
        after, _, _ = run(1, 2, strategy, arrays(), grid)
        row, updates = run_phase(grid, strategy, "close", 2, after, CLIENTS, 9.0)
        assert (row["phase"], row["round"], row["asked"], row["strategy"]) == ("close", 2, CLIENTS, {})
        assert row["dev"] == {"round": 2, "clients": {client: {"q.accuracy": 0.75} for client in CLIENTS}}
        assert [update.client for update in updates] == CLIENTS

    def test_only_those_who_measured_are_in_dev(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            return drift(member, broadcast)[0], {"dev.q.accuracy": 1.0} if member.task == "news" else {}

        _, (row,), _ = run(1, 1, TaskOwnedStrategy(CONTRACT), arrays(), grid_of(work))
        assert row["dev"] == {"round": 0, "clients": {"news-1": {"q.accuracy": 1.0}}}

    def test_the_report_can_read_every_row(self) -> None:
        strategy, grid = TaskOwnedStrategy(CONTRACT), grid_of()
        after, rows, _ = run(1, 2, strategy, arrays(), grid)
        closing, _ = run_phase(grid, strategy, "close", 2, after, CLIENTS, 9.0)
        for row in [*rows, closing]:
            written: dict[str, Any] = json.loads(dump_json(row))
            assert written == row
            check_form(RowForm, written, "history")
