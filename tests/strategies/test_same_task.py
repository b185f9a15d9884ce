from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Array, Block, Blocks, Contract, Membership, Owner, Update
from fedsocket_flwr.exchange.registration import answer_registration
from fedsocket_flwr.learning.calibration import choose_beta
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.rounds import run_phase
from fedsocket_flwr.strategies.registered import CLOSE, TEST, TRAIN
from fedsocket_flwr.strategies.same_task import SameTaskStrategy
from tests.small_federation import drawn, same_bits, zeros

CONTRACT = Contract(
    (
        Block("body", (2,), "float32", Owner("task", "scene")),
        Block("head", (2, 1), "float32", Owner("class_rows", "scene")),
        Block("residual", (1,), "float32", Owner("everyone")),
    )
)
BETAS = (0.0, 0.5, 1.0)
MEMBERS = {
    member.client: member
    for member in (
        Membership("donor", "scene", ("video", "audio"), 30, (0, 30)),
        Membership("first", "scene", ("video",), 10, (10, 0)),
        Membership("second", "scene", ("video",), 5, (3, 2)),
    )
}
PREVIOUS = {"body": [1, 1], "head": [[4], [8]], "residual": [2]}
NO_ROWS = dict.fromkeys(("0.0", "0.5", "1.0"), (0, 0, 0, 0))


def strategy(**settings: Any) -> SameTaskStrategy:
    return SameTaskStrategy(CONTRACT, betas=BETAS, choose_beta=choose_beta, **settings)


def sent(client: str, examples: int | None = None, class_counts: Sequence[int] | None = None, **blocks: Any) -> Update:
    member = MEMBERS[client]
    arrays = {name: np.asarray(values, np.float32) for name, values in blocks.items()}
    counts = member.class_counts if class_counts is None else tuple(class_counts)
    return Update(client, 1, 1, arrays, member.examples if examples is None else examples, counts)


def counted(client: str, **matrices: Mapping[str, Sequence[int]]) -> Update:
    """Return a closing answer with the counts of each moment, by name of a beta."""
    found = {f"{moment}.joint@{beta}": tuple(m) for moment, by_beta in matrices.items() for beta, m in by_beta.items()}
    return Update(client, 1, 1, {}, 10, (5, 5), counts=found)


class TestMerge:
    def merged(self, *updates: Update, **settings: Any) -> Mapping[str, list[Any]]:
        previous = {name: np.asarray(values, np.float32) for name, values in PREVIOUS.items()}
        found, numbers = strategy(**settings).merge(previous, updates)
        assert numbers == {}
        assert [(name, a.dtype, a.shape) for name, a in found.items()] == [(n, a.dtype, a.shape) for n, a in previous.items()]
        return {name: array.tolist() for name, array in found.items()}

    def test_half_of_the_way_to_the_sample_weighted_mean(self) -> None:
        # Weights 30 and 10: means [3, 1], [[4], [5]], [5]; half of the way from [1, 1], [[4], [8]], [2].
        found = self.merged(
            sent("donor", body=[4, 0], head=[[4], [4]], residual=[6]), sent("first", body=[0, 4], head=[[4], [8]], residual=[2])
        )
        assert found == {"body": [2, 1], "head": [[4], [6.5]], "residual": [3.5]}

    def test_the_whole_way(self) -> None:
        update = sent("donor", body=[4, 0], head=[[4], [4]], residual=[6])
        assert self.merged(update, stabiliser=1.0) == {"body": [4, 0], "head": [[4], [4]], "residual": [6]}
        assert self.merged(update, stabiliser=0.25)["residual"] == [3]

    def test_who_has_no_examples_has_no_weight(self) -> None:
        empty = sent("first", examples=0, class_counts=(0, 0), body=[100, 100], head=[[100], [100]], residual=[100])
        full = sent("donor", body=[3, 3], head=[[0], [0]], residual=[4])
        assert self.merged(full, empty) == self.merged(full) == {"body": [2, 2], "head": [[2], [4]], "residual": [3]}
        assert self.merged(empty) == self.merged() == PREVIOUS

    def test_a_block_that_nobody_sent_stays(self) -> None:
        assert self.merged(sent("donor", body=[3, 3])) == {**PREVIOUS, "body": [2, 2]}

    def test_class_rows_of_everybody_unless_they_are_gated(self) -> None:
        # The donor has the class 1 only, the first recipient the class 0 only. 30 and 10 examples.
        donor, first = sent("donor", head=[[100], [0]]), sent("first", head=[[0], [100]])
        assert self.merged(donor, first)["head"] == [[4 + (75 - 4) / 2], [8 + (25 - 8) / 2]]
        assert self.merged(donor, first, gate_class_rows=True)["head"] == [[2], [4]]
        # Nobody has the class 0: gated, its row stays.
        assert self.merged(donor, gate_class_rows=True)["head"] == [[4], [4]]
        assert self.merged(donor)["head"] == [[52], [4]]

    def test_only_what_travels_both_ways_is_averaged(self) -> None:
        one_way = Block("logits", (2,), "float32", Owner("participant"), access="written")
        with pytest.raises(ContractError, match="cannot be averaged: logits"):
            SameTaskStrategy(Contract((*CONTRACT.blocks, one_way)), betas=BETAS, choose_beta=choose_beta)


class TestChoices:
    def test_the_most_right_answers_over_all_recipients(self) -> None:
        # Right of six rows: beta 0 has 3 + 1, 0.5 has 2 + 2, 1 has 1 + 4.
        best = counted("first", best={"0.0": (2, 0, 0, 1), "0.5": (1, 1, 0, 1), "1.0": (0, 2, 0, 1)})
        other = counted("second", best={"0.0": (0, 2, 1, 1), "0.5": (1, 1, 1, 1), "1.0": (2, 0, 0, 2)})
        assert strategy().choices([best, other]) == {"best.beta": 1.0}
        assert strategy().choices([best]) == {"best.beta": 0.0}

    def test_best_and_last_are_chosen_apart(self) -> None:
        update = counted(
            "first",
            best={"0.0": (0, 1, 0, 1), "0.5": (1, 0, 0, 1), "1.0": (0, 1, 0, 1)},
            last={"0.0": (0, 1, 0, 1), "0.5": (0, 1, 0, 1), "1.0": (1, 0, 0, 1)},
        )
        assert strategy().choices([update]) == {"best.beta": 0.5, "last.beta": 1.0}

    def test_ties_go_to_macro_f1_and_then_to_the_smaller_beta(self) -> None:
        # Four rows of class 0, two of class 1, four right. All to class 0: F1 (0.8, 0), mean 0.4; (3 + 1 right): (0.75, 0.5).
        lazy, fair = (4, 0, 2, 0), (3, 1, 1, 1)
        assert strategy().choices([counted("first", last={"0.0": lazy, "0.5": fair, "1.0": fair})]) == {"last.beta": 0.5}
        assert strategy().choices([counted("first", last={"0.0": fair, "0.5": lazy, "1.0": fair})]) == {"last.beta": 0.0}

    def test_the_f1_is_that_of_the_pool(self) -> None:
        # Alone each would prefer 0: accuracy ties (2 of 4), macro F1 1/2 beside 1/3. Together beta 0 has F1 (1/2, 1/2), and beta
        # 0.5 the same again, since what the one never predicts is all that the other does: the smaller beta wins the tie.
        first = counted("first", last={"0.0": (1, 1, 1, 1), "0.5": (2, 0, 2, 0), "1.0": (2, 0, 2, 0)})
        second = counted("second", last={"0.0": (1, 1, 1, 1), "0.5": (0, 2, 0, 2), "1.0": (2, 0, 2, 0)})
        assert strategy().choices([first, second]) == {"last.beta": 0.0}
        # One more right answer at 0.5 of the second decides.
        better = counted("second", last={"0.0": (1, 1, 1, 1), "0.5": (1, 1, 0, 2), "1.0": (2, 0, 2, 0)})
        assert strategy().choices([first, better]) == {"last.beta": 0.5}

    def test_what_is_no_candidate_plays_no_part(self) -> None:
        donor = Update("donor", 1, 1, {}, 30, (0, 30), counts={"best.private": (9, 0, 0, 9), "best.joint": (9, 0, 0, 9)})
        first = counted("first", best={"0.0": (0, 1, 0, 1), "0.5": (1, 0, 0, 1), "1.0": (0, 1, 0, 1)})
        assert strategy().choices([donor, first]) == strategy().choices([first]) == {"best.beta": 0.5}

    @pytest.mark.parametrize("updates", [[], [counted("first")], [counted("first", best=NO_ROWS)]])
    def test_without_dev_nothing_is_chosen(self, updates: list[Update]) -> None:
        assert strategy().choices(updates) == {}


SOUND = {str(beta): (1, 0, 0, 1) for beta in BETAS}


class TestFault:
    @pytest.mark.parametrize(
        ("matrices", "message"),
        [
            ({**SOUND, "0.5": (1, 0, 1)}, r"3 counts in 'best\.joint@0\.5', expected a confusion matrix of 2 classes"),
            ({**SOUND, "0.5": (1,) * 9}, "9 counts"),
            ({"0.0": (1, 0, 0, 1), "0.5": (1, 0, 0, 1)}, r"'best' has counts at the betas 0\.0, 0\.5, expected 0\.0, 0\.5, 1\.0"),
            ({**SOUND, "0.75": (1, 0, 0, 1)}, "expected"),
            ({**SOUND, "many": (1, 0, 0, 1)}, "betas .*many"),
            ({**SOUND, "0.5": (2, 0, 0, 0)}, r"other DEV rows at one beta than at another: \[\(1, 1\), \(2, 0\)\]"),
        ],
    )
    def test_counts_that_cannot_be_pooled(self, matrices: dict[str, Sequence[int]], message: str) -> None:
        with pytest.raises(AssertionError, match=message):
            assert strategy().fault(CLOSE, counted("first", best=matrices)) is None

    def test_sound_ones(self) -> None:
        assert strategy().fault(CLOSE, counted("first", best=SOUND, last=SOUND)) is None
        assert strategy().fault(CLOSE, sent("donor")) is None
        # TEST has the confusion matrices of what was chosen.
        tested = Update("first", 1, 1, {}, 10, (5, 5), counts={"best.joint": (1, 0, 0, 1)})
        assert strategy().fault(TEST, tested) is None
        assert strategy().fault(TRAIN, sent("first", body=[1, 1])) is None


def grid_of(counts: Mapping[str, Mapping[str, Sequence[int]]]) -> InProcessGrid:
    """Return clients that add one to every block, and answer the closing with these counts."""
    app = ClientApp()

    def member_of(context: Context) -> Membership:
        return MEMBERS[str(context.node_config["client"])]

    def answer(message: Message, context: Context) -> Message:
        member, broadcast = member_of(context), payload.read_broadcast(message)
        blocks = {name: np.asarray(array + 1, array.dtype) for name, array in broadcast.blocks.items()}
        found = {name: tuple(values) for name, values in counts.get(member.client, {}).items()}
        update = Update(
            member.client, broadcast.round, 1, {} if found else blocks, member.examples, member.class_counts, counts=found
        )
        return Message(payload.write_update(update), reply_to=message)

    @app.query("register")
    def register(message: Message, context: Context) -> Message:
        return Message(answer_registration(member_of(context), {}), reply_to=message)

    app.train()(answer)
    app.query("close")(answer)
    return InProcessGrid(app, [{"client": client} for client in MEMBERS])


def test_a_client_whose_counts_cannot_be_pooled_is_refused_by_name() -> None:
    good: Mapping[str, tuple[int, ...]] = {f"best.joint@{beta}": (0, 5, 5, 0) for beta in BETAS} | {
        "best.joint@0.5": (5, 0, 0, 5)
    }
    counts: dict[str, Mapping[str, tuple[int, ...]]] = {
        "donor": {"best.joint": (1, 2, 3)},
        "first": {**good, "best.joint@1.0": (9, -4, 5, 0)},
        "second": good,
    }
    grid, asked = grid_of(counts), strategy()
    asked.register(grid)
    arrays = payload.array_record(payload.serialise(zeros(CONTRACT)))
    row, answers = run_phase(grid, asked, "close", 1, arrays, sorted(MEMBERS), 10.0)
    assert row["refused"] == {
        "donor": "3 counts in 'best.joint', expected a confusion matrix of 2 classes",
        "first": "negative counts in 'best.joint@1.0'",
    }
    assert [update.client for update in answers] == ["second"]
    assert asked.choices(answers) == {"best.beta": 0.5}


def test_flower_s_own_loop_drives_it() -> None:
    start = drawn("start", contract=CONTRACT)
    result = strategy().start(
        grid_of({}), payload.array_record(payload.serialise(start)), num_rounds=2, evaluate_config=None, train_config=None
    )
    expected: dict[str, Array] = dict(start)
    for _ in range(2):
        step = {name: np.asarray(array + 1, np.float32) for name, array in expected.items()}
        updates = [Update(client, 1, 1, step, m.examples, m.class_counts) for client, m in sorted(MEMBERS.items())]
        merged: Blocks = strategy().merge(expected, updates)[0]
        expected = dict(merged)
    assert same_bits(payload.read_array_record(result.arrays), expected)
    np.testing.assert_allclose(expected["body"], start["body"] + 1, rtol=1e-6)
