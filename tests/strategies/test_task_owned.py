import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Array, Block, Blocks, Broadcast, Contract, Membership, Owner, Update
from fedsocket_flwr.strategies import TaskOwnedStrategy
from fedsocket_flwr.strategies.task_owned import merge_by_owner
from tests.small_federation import CONTRACT, MEMBERS, drawn, drift, grid_of, same_bits, update_of, zeros

ONES = {name: array + np.float32(1) for name, array in zeros().items()}
FEW = settings(max_examples=20, deadline=None)


def answer(client: str, blocks: Mapping[str, Any] | None = None, **more: Any) -> Update:
    """Return an update that leaves the blocks as they were (ones), but for those given."""
    return update_of(MEMBERS[client], {**ONES, **(blocks or {})}, **more)


def merge(*updates: Update, previous: Blocks = ONES, **how: Any) -> tuple[Blocks, dict[str, float]]:
    merged, conflicts = merge_by_owner(CONTRACT, previous, updates, MEMBERS, **how)
    assert [(name, a.shape, a.dtype) for name, a in merged.items()] == [(name, a.shape, a.dtype) for name, a in previous.items()]
    return merged, conflicts


def residual_moved(client: str, by: Sequence[float], **more: Any) -> Update:
    """Return an update whose residual, the vector of ``residual.a`` and ``residual.b``, moved away from one by this much."""
    moved = np.float32(1) + np.asarray(by, np.float32)
    return answer(client, {"residual.a": moved[:2].reshape(2, 1), "residual.b": moved[2]}, **more)


def residual_of(blocks: Blocks) -> list[float]:
    return [*np.ravel(blocks["residual.a"]).tolist(), float(blocks["residual.b"])]


class TestTaskBlocks:
    def test_sample_weighted_mean_within_the_task(self) -> None:
        merged, _ = merge(answer("digits-1", {"digits.body": [4, 0]}), answer("digits-2", {"digits.body": [0, 8]}))
        assert merged["digits.body"].tolist() == [1, 6]  # 10 and 30 examples

    def test_other_tasks_do_not_count(self) -> None:
        merged, _ = merge(
            answer("digits-1", {"digits.body": [4, 0]}),
            answer("news-1", {"news.body": [5, 6]}),
            answer("pairs-1", {"pairs.body": 3, "pairs.image": [[1, 2]]}),
        )
        assert merged["digits.body"].tolist() == [4, 0]
        assert merged["news.body"].tolist() == [5, 6]
        assert float(merged["pairs.body"]) == 3
        assert merged["pairs.image"].tolist() == [[1, 2]]

    def test_a_task_with_nobody_this_round_keeps_its_blocks(self) -> None:
        previous = drawn("previous")
        merged, _ = merge(update_of(MEMBERS["news-1"], drawn("news")), previous=previous)
        for name in ("digits.body", "digits.head", "pairs.body", "pairs.image", "embedding.image"):
            assert merged[name].tobytes() == previous[name].tobytes()
        assert merged["news.body"].tobytes() == drawn("news")["news.body"].tobytes()

    def test_nobody_at_all(self) -> None:
        previous = drawn("previous")
        merged, conflicts = merge(previous=previous)
        assert same_bits(merged, previous)
        assert conflicts == {}

    def test_a_single_client_is_what_it_sent(self) -> None:
        sent = drawn("sent")
        merged, _ = merge(update_of(MEMBERS["digits-1"], sent), previous=drawn("previous"))
        assert merged["digits.body"].tobytes() == sent["digits.body"].tobytes()
        assert merged["embedding.image"].tobytes() == sent["embedding.image"].tobytes()
        np.testing.assert_allclose(residual_of(merged), residual_of(sent), rtol=1e-6)

    def test_an_update_without_examples_has_no_weight(self) -> None:
        empty = answer("digits-2", {"digits.body": [100, 100]}, examples=0, class_counts=(0, 0, 0))
        alone, _ = merge(answer("digits-1", {"digits.body": [4, 0]}))
        both, _ = merge(answer("digits-1", {"digits.body": [4, 0]}), empty)
        assert same_bits(both, alone)
        previous = drawn("previous")
        assert same_bits(merge(empty, previous=previous)[0], previous)

    def test_it_does_not_write_into_its_arguments(self) -> None:
        previous, sent = drawn("previous"), drawn("sent")
        for array in (*previous.values(), *sent.values()):
            array.setflags(write=False)
        merge(*(update_of(member, sent) for member in MEMBERS.values()), previous=previous)


class TestClassRows:
    def test_a_row_is_the_mean_over_those_who_hold_the_class(self) -> None:
        # digits-1: 10 examples of the classes 0 and 1; digits-2: 30 of class 1; nobody has class 2.
        merged, _ = merge(
            answer("digits-1", {"digits.head": [[1, 2], [4, 8], [9, 9]]}),
            answer("digits-2", {"digits.head": [[7, 7], [0, 4], [5, 5]]}),
            previous={**ONES, "digits.head": np.array([[0, 0], [0, 0], [-3, -4]], np.float32)},
        )
        assert merged["digits.head"].tolist() == [[1, 2], [1, 5], [-3, -4]]

    def test_the_counts_of_this_round_decide(self) -> None:
        merged, _ = merge(answer("digits-1", {"digits.head": [[1, 2], [4, 8], [9, 9]]}, class_counts=(0, 0, 10)))
        assert merged["digits.head"].tolist() == [[1, 1], [1, 1], [9, 9]]


class TestModalities:
    FIRST = ("digits-1", {"embedding.image": [2, 1]})
    SECOND = ("pairs-2", {"embedding.image": [0, 2]})

    def test_mean_over_all_clients_of_the_modality(self) -> None:
        merged, conflicts = merge(answer(*self.FIRST), answer("news-1", {"embedding.text": [5, 5]}), answer(*self.SECOND))
        np.testing.assert_allclose(merged["embedding.image"], [(10 * 2 + 15 * 0) / 25, (10 * 1 + 15 * 2) / 25], rtol=1e-6)
        # Text: news-1 with 20 examples, pairs-2 with 15 whose embedding did not move.
        np.testing.assert_allclose(merged["embedding.text"], [(20 * 5 + 15) / 35] * 2, rtol=1e-6)
        assert {name.split(".")[1] for name in conflicts} == {"residual"}

    def test_projected_over_the_tasks_that_use_it(self) -> None:
        # Updates [1, 0] of digits and [-1, 1] of pairs conflict: they become [1/2, 1/2] and [0, 1].
        merged, conflicts = merge(answer(*self.FIRST), answer(*self.SECOND), modality="projected")
        np.testing.assert_allclose(merged["embedding.image"], [1 + 0.25, 1 + 0.75], rtol=1e-6)
        assert conflicts["conflict.image.digits.pairs"] == pytest.approx(-(0.5**0.5))
        assert "conflict.text.digits.pairs" not in conflicts

    def test_projected_counts_tasks_and_not_clients(self) -> None:
        merged, _ = merge(
            answer("digits-1", {"embedding.image": [2, 1]}),
            answer("digits-2", {"embedding.image": [2, 1]}),
            answer("pairs-1", {"embedding.image": [3, 1]}),
            modality="projected",
        )
        assert merged["embedding.image"].tolist() == [2.5, 1]


class TestResidual:
    def test_projected_by_hand(self) -> None:
        # digits: 10 and 30 examples, D = [1, 0, 0]; news: D = [-1, 1, 0]; projected [1/2, 1/2, 0] and [0, 1, 0].
        updates = (
            residual_moved("digits-1", [4, 0, 0]),
            residual_moved("digits-2", [0, 0, 0]),
            residual_moved("news-1", [-1, 1, 0]),
        )
        merged, conflicts = merge(*updates)
        np.testing.assert_allclose(residual_of(merged), [1.25, 1.75, 1], rtol=1e-6)
        assert conflicts == {"conflict.residual.digits.news": pytest.approx(-(0.5**0.5))}

    def test_mean_by_hand(self) -> None:
        updates = (
            residual_moved("digits-1", [4, 0, 0]),
            residual_moved("digits-2", [0, 0, 0]),
            residual_moved("news-1", [-1, 1, 0]),
        )
        merged, conflicts = merge(*updates, residual="mean")
        assert residual_of(merged) == [1, 1.5, 1]
        assert conflicts == {"conflict.residual.digits.news": pytest.approx(-(0.5**0.5))}

    def test_three_tasks_in_sorted_order(self) -> None:
        # D: digits [1, 0, 0], news [-1, 1, 0], pairs [0, -1, 1]. Each is projected off the others as they were, in this order:
        # digits [1/2, 1/4, 1/4], news [0, 1/2, 1/2], pairs [-1/2, -1/2, 1].
        updates = (
            residual_moved("digits-1", [1, 0, 0]),
            residual_moved("news-1", [-1, 1, 0]),
            residual_moved("pairs-1", [0, -1, 1]),
        )
        merged, conflicts = merge(*updates)
        np.testing.assert_allclose(residual_of(merged), [1, 1 + 0.25 / 3, 1 + 1.75 / 3], rtol=1e-6)
        assert conflicts == {
            "conflict.residual.digits.news": pytest.approx(-(0.5**0.5)),
            "conflict.residual.digits.pairs": pytest.approx(0),
            "conflict.residual.news.pairs": pytest.approx(-0.5),
        }

    def test_the_mean_goes_over_the_tasks_that_take_part(self) -> None:
        merged, conflicts = merge(residual_moved("news-1", [3, 0, 3]))
        assert residual_of(merged) == [4, 1, 4]
        assert conflicts == {}

    def test_the_blocks_of_the_residual_are_one_vector(self) -> None:
        """Taken apart, ``residual.a`` would conflict; over both blocks nothing does."""
        updates = residual_moved("digits-1", [1, 0, 2]), residual_moved("news-1", [-1, 0, 2])
        assert residual_of(merge(*updates)[0]) == [1, 1, 3]

    @FEW
    @given(st.lists(st.tuples(*[st.floats(0, 10, width=32)] * 3), min_size=3, max_size=3))
    def test_where_nothing_conflicts_projection_changes_nothing(self, moves: list[tuple[float, ...]]) -> None:
        updates = [residual_moved(client, move) for client, move in zip(("digits-1", "news-1", "pairs-1"), moves, strict=True)]
        assert same_bits(merge(*updates)[0], merge(*updates, residual="mean")[0])

    def test_blocks_that_need_other_modalities_are_vectors_of_their_own(self) -> None:
        """No client here holds both blocks that everyone owns; each is merged among those that hold it."""
        contract = Contract(
            (
                Block("seen", (1,), "float32", Owner("everyone"), ("image",)),
                Block("read", (1,), "float32", Owner("everyone"), ("text",)),
            )
        )
        members = {
            name: Membership(name, name, (modality,), 1) for name, modality in (("a", "image"), ("b", "text"), ("c", "text"))
        }
        moved = {"a": {"seen": 3}, "b": {"read": 5}, "c": {"read": 7}}
        updates = [Update(c, 1, 1, {n: np.array([v], np.float32) for n, v in found.items()}, 1) for c, found in moved.items()]
        merged, conflicts = merge_by_owner(contract, zeros(contract), updates, members)
        assert {name: array.tolist() for name, array in merged.items()} == {"seen": [3], "read": [6]}
        assert conflicts == {"conflict.residual+text.b.c": pytest.approx(1)}


class TestIsolation:
    """``digits`` keeps a residual of its own; ``news`` and ``pairs`` share theirs."""

    CONTRACT = Contract(
        (
            Block("digits.residual", (2,), "float32", Owner("task", "digits")),
            Block("residual", (2,), "float32", Owner("everyone"), tasks=("news", "pairs")),
        )
    )

    def merged(self, **moves: Sequence[float]) -> Blocks:
        updates = []
        for client, move in sorted(moves.items()):
            member = MEMBERS[client.replace("_", "-")]
            held = {block.name: np.asarray(move, np.float32) for block in self.CONTRACT.writable(member)}
            updates.append(Update(member.client, 1, 1, held, member.examples, member.class_counts))
        return merge_by_owner(self.CONTRACT, zeros(self.CONTRACT), updates, MEMBERS)[0]

    def test_others_do_not_move_it(self) -> None:
        assert self.merged(digits_1=[1, 2], news_1=[-5, 1])["digits.residual"].tolist() == [1, 2]
        assert self.merged(news_1=[-5, 1], pairs_1=[2, 2])["digits.residual"].tolist() == [0, 0]

    def test_it_neither_moves_nor_dilutes_what_the_others_share(self) -> None:
        with_it = self.merged(digits_1=[-9, 9], news_1=[4, 0], pairs_1=[0, 2])
        assert with_it["residual"].tolist() == self.merged(news_1=[4, 0], pairs_1=[0, 2])["residual"].tolist() == [2, 1]


class TestSuitability:
    @pytest.mark.parametrize(
        "block",
        [
            Block("odd", (2,), "float32", Owner("participant")),
            Block("odd", (2,), "float32", Owner("everyone"), access="read"),
            Block("odd", (2,), "float32", Owner("everyone"), access="written"),
        ],
    )
    def test_what_cannot_be_merged_is_refused(self, block: Block) -> None:
        with pytest.raises(ContractError, match="cannot be merged: odd"):
            TaskOwnedStrategy(Contract((*CONTRACT.blocks, block)))

    def test_modality_sets_merge_among_those_who_have_the_set(self) -> None:
        contract = Contract((Block("both", (1,), "float32", Owner("modality_set", "image+text")),))
        strategy = TaskOwnedStrategy(contract)
        strategy.roster.memberships = dict(MEMBERS)
        updates = [
            Update(c, 1, 1, {"both": np.array([v], np.float32)}, MEMBERS[c].examples) for c, v in (("pairs-1", 4), ("pairs-2", 8))
        ]
        merged, _ = strategy.merge(zeros(contract), updates)
        assert merged["both"].tolist() == [7]  # 5 and 15 examples


def one_round(strategy: TaskOwnedStrategy, order: Sequence[int] | None = None) -> Blocks:
    """Run a round over all clients, with the replies in this order."""
    grid = grid_of()
    messages = strategy.configure_train(1, payload.array_record(payload.serialise(drawn("start"))), None, grid)  # type: ignore[arg-type]
    replies = list(grid.send_and_receive(messages))
    merged, _ = strategy.aggregate_train(1, [replies[place] for place in order or range(len(replies))])
    assert merged is not None
    return payload.read_array_record(merged)


class TestUnderAGrid:
    @FEW
    @given(st.permutations(range(len(MEMBERS))))
    def test_the_order_of_replies_changes_no_bit(self, order: list[int]) -> None:
        assert same_bits(one_round(TaskOwnedStrategy(CONTRACT), order), one_round(TaskOwnedStrategy(CONTRACT)))

    @pytest.mark.parametrize("residual", ["projected", "mean"])
    @pytest.mark.parametrize("modality", ["projected", "mean"])
    def test_the_full_payload_gives_the_same_bits(self, residual: Any, modality: Any) -> None:
        rules = {"residual": residual, "modality": modality}
        owned, full = TaskOwnedStrategy(CONTRACT, **rules), TaskOwnedStrategy(CONTRACT, payload_mode="full", **rules)
        assert same_bits(one_round(owned), one_round(full))
        assert full.report.bytes["down"] == 5 * 96 > owned.report.bytes["down"]

    @pytest.mark.parametrize("residual", ["projected", "mean"])
    def test_the_strategys_rules_are_those_of_the_merge(self, residual: Any) -> None:
        start = drawn("start")
        updates = [
            update_of(MEMBERS[c], drift(MEMBERS[c], Broadcast("run", 1, "train", 0, {"server": start}))[0])
            for c in sorted(MEMBERS)
        ]
        expected, conflicts = merge_by_owner(CONTRACT, start, updates, MEMBERS, residual=residual, modality="projected")
        strategy = TaskOwnedStrategy(CONTRACT, residual=residual, modality="projected")
        assert same_bits(one_round(strategy), expected)
        assert strategy.report.strategy == conflicts

    def test_under_flowers_own_start(self) -> None:
        """Another project calls ``Strategy.start``: registration and three rounds, recomputed here without any message."""
        strategy = TaskOwnedStrategy(CONTRACT, expected_clients=list(MEMBERS), seed=1)
        result = strategy.start(grid_of(), payload.array_record(payload.serialise(drawn("start"))), num_rounds=3)
        expected: Blocks = drawn("start")
        for server_round in (1, 2, 3):
            broadcast = Broadcast("run", server_round, "train", 0, {"server": expected})
            updates = [update_of(MEMBERS[c], drift(MEMBERS[c], broadcast)[0], server_round) for c in sorted(MEMBERS)]
            expected, _ = merge_by_owner(CONTRACT, expected, updates, MEMBERS)
        assert same_bits(payload.read_array_record(result.arrays), expected)
        assert [result.train_metrics_clientapp[number]["answered"] for number in (1, 2, 3)] == [5, 5, 5]
        assert strategy.versions == dict.fromkeys(MEMBERS, 3)

    def test_a_client_that_diverges_is_left_out_and_the_rest_goes_on(self) -> None:
        def work(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
            moved, metrics = drift(member, broadcast)
            if member.client == "digits-2":
                moved = {name: np.full_like(array, np.nan) for name, array in moved.items()}
            if member.client == "pairs-1":
                raise RuntimeError("out of memory")
            return moved, metrics

        strategy = TaskOwnedStrategy(CONTRACT)
        result = strategy.start(grid_of(work), payload.array_record(payload.serialise(drawn("start"))), num_rounds=1)
        broadcast = Broadcast("run", 1, "train", 0, {"server": drawn("start")})
        sound = [update_of(MEMBERS[c], drift(MEMBERS[c], broadcast)[0]) for c in ("digits-1", "news-1", "pairs-2")]
        assert same_bits(payload.read_array_record(result.arrays), merge_by_owner(CONTRACT, drawn("start"), sound, MEMBERS)[0])
        assert strategy.report.refused == {
            "digits-2": "block 'digits.body' has non-finite values",
            "pairs-1": "no answer: RuntimeError: out of memory (code 2)",
        }
        assert strategy.versions == dict.fromkeys(("digits-1", "news-1", "pairs-2"), 1)

    def test_state_is_json_and_comes_back(self) -> None:
        strategy = TaskOwnedStrategy(CONTRACT)
        one_round(strategy)
        again = TaskOwnedStrategy(CONTRACT)
        again.load_state(json.loads(json.dumps(strategy.state())))
        assert again.versions == strategy.versions == dict.fromkeys(MEMBERS, 1)
        assert again.state() == strategy.state()


def test_an_owner_of_another_name_is_as_good() -> None:
    """Nothing in the strategy knows a task's name; only sums over tasks follow the order of the names."""

    def renamed(text: str) -> str:
        return text.replace("digits", "zz|数字").replace("news", "a.b")

    def renamed_block(block: Block) -> Block:
        return replace(block, owner=replace(block.owner, key=renamed(block.owner.key)))

    updates = [update_of(MEMBERS[client], drawn(client)) for client in sorted(MEMBERS)]
    contract = Contract(tuple(renamed_block(block) for block in CONTRACT.blocks))
    members = {client: replace(member, task=renamed(member.task)) for client, member in MEMBERS.items()}
    start = drawn("start")
    expected, _ = merge_by_owner(CONTRACT, start, updates, MEMBERS, residual="mean")
    found, _ = merge_by_owner(contract, start, updates, members, residual="mean")
    np.testing.assert_allclose(residual_of(found), residual_of(expected), rtol=1e-6)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in found if "residual" not in name)
