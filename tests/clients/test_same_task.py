from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.clients import same_task
from fedsocket_flwr.clients.checkpoints import Checkpoints, Kept
from fedsocket_flwr.clients.same_task import TEACHER, SameTaskClient
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.errors import ContractError, DataError
from fedsocket_flwr.exchange.contract import Array, Blocks, Update
from fedsocket_flwr.learning.crossfit import cross_fit, group_folds
from tests.clients.driving import Federation, first_blocks, labels_of, message, open_client, stored_q, with_splits, without_clock
from tests.toy_runs import assert_same_arrays, same_bits, same_task_config

DONOR, RECIPIENT = "donor-1", "mlp-1"
# Everything that only Private knows: how fast it learns, and for how long before the first round.
OTHER_PRIVATE = {
    "training.private.video.learning_rate": 2e-2,
    "training.private.audio+video.learning_rate": 2e-2,
}
LABEL_Q = {"training.teaching.distil_q": 0.0, "training.teaching.cross_fit": 0.0}
TWO_GROUPS = {"tasks.scene.partition.donor_groups": 2}


def opened(name: str, settings: Mapping[str, Any] | None = None) -> SameTaskClient:
    client = open_client(name, config=same_task_config(settings))
    assert isinstance(client, SameTaskClient)
    return client


def one_round(client: Any, blocks: Blocks | None = None) -> Update:
    update, failure = client.train(message(1, 0, first_blocks(client) if blocks is None else blocks))
    assert failure == ""
    return update  # type: ignore[no-any-return]


def q_of(name: str, settings: Mapping[str, Any] | None = None) -> Blocks:
    return one_round(opened(name, settings)).blocks


def private_of(client: Any, version: int = 1) -> Blocks:
    return {name: array for name, array in client.store.load(version).arrays.items() if name.startswith("private/")}


def teacher_of(client: Any) -> Array:
    """Return the out-of-fold logits that a donor makes in its first round."""
    one_round(client)
    logits: Array = client.store.load_blocks(TEACHER)["logits"]
    return logits


def differ(first: Blocks, second: Blocks) -> bool:
    assert list(first) == list(second)
    return any(not same_bits(first[name], second[name]) for name in first)


def with_inputs(split: Split, modality: str, values: Array) -> Split:
    """Return a split in which private models, and Q where it reads the modality, see other values."""
    features = {**split.features, modality: values} if modality in split.features else split.features
    return replace(split, inputs={**split.inputs, modality: values}, features=features)


# --- who learns from whom ---


@pytest.mark.parametrize("name", [DONOR, RECIPIENT])
def test_label_q_learns_nothing_from_private(name: str) -> None:
    taught = q_of(name)
    label_q = q_of(name, LABEL_Q)
    assert differ(taught, label_q)
    assert_same_arrays(q_of(name, LABEL_Q | OTHER_PRIVATE), label_q)
    assert differ(q_of(name, OTHER_PRIVATE), taught)


@pytest.mark.parametrize(("name", "switch"), [(DONOR, "training.teaching.distil_q"), (RECIPIENT, "training.teaching.cross_fit")])
def test_each_role_has_a_switch_of_its_own(name: str, switch: str) -> None:
    assert_same_arrays(q_of(name, {switch: 0.0}), q_of(name))


def test_a_recipient_s_q_learns_from_its_own_private_or_from_the_global_q() -> None:
    frozen = {"training.teaching.recipient_teacher": "global_q"}
    from_global = q_of(RECIPIENT, frozen)
    assert differ(from_global, q_of(RECIPIENT))
    assert differ(from_global, q_of(RECIPIENT, LABEL_Q))
    # Private plays no part in it, and a donor's Q is none of its business.
    assert_same_arrays(q_of(RECIPIENT, frozen | OTHER_PRIVATE), from_global)
    assert_same_arrays(q_of(DONOR, frozen), q_of(DONOR))


@pytest.mark.parametrize("name", [DONOR, RECIPIENT])
def test_private_does_not_depend_on_how_q_is_taught(name: str) -> None:
    private = []
    for settings in ({}, LABEL_Q, {"training.teaching.cross_fit": 3.0, "training.teaching.distil_q": 2.0}):
        # Nothing comes back by Q, so that several rounds can be compared.
        federation = Federation.of(opened(name, {"training.teaching.distil_private": 0.0} | settings))
        federation.train(2)
        private.append(private_of(federation.client, 2))
    assert_same_arrays(private[1], private[0])
    assert_same_arrays(private[2], private[0])


@pytest.mark.parametrize("name", [DONOR, RECIPIENT])
def test_private_learns_from_the_q_that_arrived_and_without_a_fusion_term(name: str) -> None:
    client = opened(name)
    blocks = first_blocks(client)
    one_round(client, blocks)
    before = private_of(client)
    bias = "branches.task/scene.head.bias"
    one_round(client, {**blocks, bias: blocks[bias] + np.array([3, 0, 0], np.float32)})
    assert differ(private_of(client), before)
    without = opened(name, {"training.teaching.fusion": 0.0})
    one_round(without)
    assert_same_arrays(private_of(without), before)
    alone = opened(name, {"training.teaching.distil_private": 0.0})
    one_round(alone, {**first_blocks(alone), bias: blocks[bias] + 3})
    local = open_client(name, config=same_task_config({"run.method": "local"}))
    one_round(local, {})
    assert_same_arrays(private_of(local), private_of(alone))


def test_without_a_q_there_is_no_protocol() -> None:
    client = opened(RECIPIENT)
    without = SameTaskClient(client.config, client.data, client.store, None, client.device)
    with pytest.raises(ContractError, match="needs a shared predictor"):
        without.train(message(1, 0, {}))


def test_class_rows_of_absent_classes_travel_unless_they_are_gated() -> None:
    def update(settings: Mapping[str, Any]) -> tuple[Blocks, Blocks]:
        client = opened(RECIPIENT, settings)
        train, held = client.data.train, np.flatnonzero(labels_of(client.data.train) != 2)
        poorer = with_splits(client, train=same_task.rows_of(train, held))
        return first_blocks(poorer), one_round(poorer).blocks

    head = "branches.task/scene.head.weight"
    sent, found = update({"merging.gate_class_rows": True})
    assert same_bits(found[head][2], sent[head][2])
    assert not same_bits(found[head][:2], sent[head][:2])
    sent, found = update({})
    assert not same_bits(found[head][2], sent[head][2])


# --- what a donor's teacher sees ---


@pytest.mark.parametrize(("sees", "moves"), [("full", True), ("single_modal", False)])
def test_the_second_modality_moves_the_full_teacher_only(sees: str, moves: bool) -> None:
    client = opened(DONOR, {"training.teaching.donor_teacher": sees})
    other = with_splits(client, train=with_inputs(client.data.train, "audio", client.data.train.inputs["audio"][::-1].copy()))
    first, second = one_round(client), client.store.load_blocks(TEACHER)["logits"]
    private = private_of(client)
    changed, logits = one_round(other), other.store.load_blocks(TEACHER)["logits"]
    assert same_bits(logits, second) is not moves
    assert differ(changed.blocks, first.blocks) is moves
    assert differ(private_of(other), private), "Private stays multimodal"


def test_the_shared_modality_moves_the_single_modal_teacher() -> None:
    client = opened(DONOR, {"training.teaching.donor_teacher": "single_modal"})
    other = with_splits(client, train=with_inputs(client.data.train, "video", client.data.train.inputs["video"][::-1].copy()))
    assert not same_bits(teacher_of(client), teacher_of(other))


def test_the_teacher_depends_on_no_q_that_arrives_and_on_no_private() -> None:
    client = opened(DONOR)
    expected = teacher_of(client)
    one_round(client, {name: array + np.float32(0.5) for name, array in first_blocks(client).items()})
    assert same_bits(client.store.load_blocks(TEACHER)["logits"], expected)
    assert same_bits(teacher_of(opened(DONOR, {"training.teaching.distil_private": 0.0})), expected)
    assert expected.shape == (client.data.train.examples, 3)
    assert not same_bits(teacher_of(opened(DONOR, {"run.seed": 2})), expected)


def folds_of(client: Any) -> Array:
    return group_folds(client.data.train.groups, client.data.train.labels)


@pytest.mark.parametrize("name", ["donor-1", "donor-2"])
def test_labels_planted_in_a_group_reach_the_other_fold_only(name: str) -> None:
    """Each label of the group becomes its neighbour's, so that the groups are dealt alike."""
    client = opened(name)
    train, groups = client.data.train, client.data.train.groups
    before, folds = teacher_of(client), folds_of(client)
    for group in np.unique(np.asarray(groups)):
        rows = np.flatnonzero(groups == group)
        labels = labels_of(train).copy()
        labels[rows] = np.roll(labels[rows], 1)
        assert (labels != labels_of(train)).any()
        planted = with_splits(client, train=replace(train, labels=labels))
        assert folds_of(planted).tolist() == folds.tolist()
        after, own = teacher_of(planted), folds == folds[rows[0]]
        assert same_bits(after[own], before[own])
        assert (after[~own] != before[~own]).any(axis=1).all()


def test_a_class_that_only_one_group_has_tells_its_own_teacher_nothing() -> None:
    """Of two groups each is a fold whatever its labels: one may carry a class that nobody else has."""
    client = opened(DONOR, TWO_GROUPS)
    train, groups = client.data.train, np.asarray(client.data.train.groups)
    mine = groups == groups[0]

    def teacher(label_of_mine: int) -> Array:
        labels = np.where(mine, label_of_mine, labels_of(train) % 2)
        return teacher_of(with_splits(client, train=replace(train, labels=labels)))

    told, plain = teacher(2), teacher(0)
    assert same_bits(told[mine], plain[mine])
    assert (told[mine].argmax(axis=1) != 2).all(), "the class that it has never seen"
    assert (told[~mine].argmax(axis=1) == 2).mean() > 0.9, "the only class that it has seen"


@pytest.mark.parametrize("modality", ["video", "audio"])
def test_a_feature_planted_in_a_group_moves_its_own_row_and_the_other_fold(modality: str) -> None:
    client = opened(DONOR)
    train, folds, before = client.data.train, folds_of(client), teacher_of(client)
    for group in np.unique(np.asarray(train.groups)):
        row = int(np.flatnonzero(train.groups == group)[0])
        values = train.inputs[modality].copy()
        values[row, :, 0] += 30.0
        after = teacher_of(with_splits(client, train=with_inputs(train, modality, values)))
        mates = (folds == folds[row]) & (np.arange(len(folds)) != row)
        assert same_bits(after[mates], before[mates]), "what was fitted for the fold is the same, the centre included"
        assert (after[row] != before[row]).any()
        assert (after[folds != folds[row]] != before[folds != folds[row]]).any()


# --- the teacher's life ---


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many rows are cross-fitted, once for each time."""
    seen: list[int] = []

    def noting(groups: Any, labels: Any, fit: Any) -> Any:
        seen.append(len(labels))
        return cross_fit(groups, labels, fit)

    monkeypatch.setattr(same_task, "cross_fit", noting)
    return seen


def test_the_teacher_is_made_once_and_kept(fitted: list[int]) -> None:
    federation = Federation.of(opened(DONOR))
    federation.train()
    made = federation.client.store.load_blocks(TEACHER)["logits"]
    federation.train(2)
    # Another process: the client is opened anew.
    federation.client = opened(DONOR)
    federation.train(3)
    assert fitted == [federation.client.data.train.examples]
    assert TEACHER in stored_q(federation.client), "it outlives the versions that are removed"
    assert same_bits(federation.client.store.load_blocks(TEACHER)["logits"], made)
    federation.close()
    federation.test()
    assert TEACHER in stored_q(federation.client)


def test_the_first_round_repeated_makes_the_same_teacher(fitted: list[int]) -> None:
    client = opened(DONOR)
    first, made = one_round(client), client.store.load_blocks(TEACHER)["logits"]
    arrays = client.store.load(1).arrays
    again = one_round(opened(DONOR))
    assert len(fitted) == 2
    assert same_bits(client.store.load_blocks(TEACHER)["logits"], made)
    assert_same_arrays(again.blocks, first.blocks)
    assert_same_arrays(client.store.load(1).arrays, arrays)
    assert without_clock(again.metrics) == without_clock(first.metrics)


def test_later_rounds_learn_from_the_kept_teacher() -> None:
    client = opened(DONOR)
    blocks = one_round(client).blocks
    made = client.store.load_blocks(TEACHER)["logits"]
    expected = client.train(message(2, 1, blocks))[0].blocks
    assert_same_arrays(client.train(message(2, 1, blocks))[0].blocks, expected)
    client.store.save_blocks(TEACHER, {"logits": np.roll(made, 1, axis=0)})
    assert differ(client.train(message(2, 1, blocks))[0].blocks, expected)


def test_without_weight_there_is_no_teacher(fitted: list[int]) -> None:
    federation = Federation.of(opened(DONOR, {"training.teaching.cross_fit": 0.0}))
    federation.train(2)
    assert fitted == []
    assert TEACHER not in stored_q(federation.client)


def test_a_recipient_has_no_teacher(fitted: list[int]) -> None:
    federation = Federation.of(opened(RECIPIENT))
    federation.train(2)
    assert fitted == []
    assert TEACHER not in stored_q(federation.client)


def test_nothing_of_the_teacher_leaves_the_client() -> None:
    federation = Federation.of(opened(DONOR))
    blocks = first_blocks(federation.client)
    train = federation.train()
    assert {name: array.shape for name, array in train.blocks.items()} == {name: array.shape for name, array in blocks.items()}
    assert set(train.metrics) == {"loss.private", "loss.q", "seconds"}
    assert train.counts == {}
    closed, tested = federation.close(), federation.test()
    assert closed.blocks == tested.blocks == {}
    # What else travels are metrics and confusion matrices, one number a pair of classes.
    assert {len(counts) for counts in [*closed.counts.values(), *tested.counts.values()]} == {9}


@pytest.mark.parametrize("groups", [1, None])
def test_a_donor_of_one_group_or_none_is_named(groups: int | None) -> None:
    client = opened(DONOR)
    train = client.data.train
    found = None if groups is None else np.full(train.examples, 4)
    message_ = "'donor-1': cross-fitting needs at least 2 groups.*found 1: '4'" if groups else "'donor-1'.*`partition.group`"
    with pytest.raises(DataError, match=message_):
        one_round(with_splits(client, train=replace(train, groups=found)))


# --- Joint, with one beta for the run ---


def test_a_recipient_counts_dev_at_every_beta_and_a_donor_at_none() -> None:
    federation = Federation.of(opened(RECIPIENT))
    federation.train(2)
    closed = federation.close()
    betas = {f"joint@{beta}" for beta in (0.0, 0.2, 0.35, 0.5, 0.75, 1.0)}
    endpoints = {"private", "q", "joint", *betas}
    assert set(closed.counts) == {f"{moment}.{endpoint}" for moment in ("best", "last") for endpoint in endpoints}
    # Nothing of Q is Private, nothing of Private is Q.
    assert closed.counts["last.joint@0.0"] == closed.counts["last.private"]
    assert closed.counts["last.joint@1.0"] == closed.counts["last.q"]
    of_class = np.bincount(labels_of(federation.client.data.dev), minlength=3).tolist()
    assert all(np.reshape(counts, (3, 3)).sum(axis=1).tolist() == of_class for counts in closed.counts.values())
    donor = Federation.of(opened(DONOR))
    donor.train(2)
    assert set(donor.close().counts) == {
        f"{moment}.{endpoint}" for moment in ("best", "last") for endpoint in ("private", "q", "joint")
    }


def test_the_run_s_beta_settles_joint_with_the_round_that_was_best_for_it() -> None:
    kept = {
        "private": Kept(1, 1, 0.9),
        "q": Kept(2, 2, 0.8),
        "joint": Kept(4, 4, 0.95, {"beta": 0.2}, (1, 0, 0, 1)),
        "joint@0.2": Kept(4, 4, 0.95, {"beta": 0.2}, (1, 0, 0, 1)),
        "joint@0.75": Kept(3, 3, 0.7, {"beta": 0.75}, (0, 1, 0, 1)),
    }
    client = opened(RECIPIENT)
    settled = client.settle(Checkpoints(kept), "best", {"best.beta": 0.75, "last.beta": 0.2})
    assert settled.kept == {"private": kept["private"], "q": kept["q"], "joint": kept["joint@0.75"]}
    assert client.settle(Checkpoints(kept), "last", {"best.beta": 0.75, "last.beta": 0.2}).kept["joint"] == kept["joint@0.2"]
    # A run that chose none leaves the client's own.
    assert client.settle(Checkpoints(kept), "best", {}).kept["joint"] == kept["joint"]


def test_test_is_measured_with_the_run_s_beta() -> None:
    federation = Federation.of(opened(RECIPIENT))
    federation.train(2)
    federation.close()
    for beta, like in ((0.0, "private"), (1.0, "q")):
        settings = {"best.beta": beta, "last.beta": beta}
        tested = federation.client.test(replace(message(2, 2, {}, "test"), settings=settings))
        assert tested.metrics["choices.last.joint.beta"] == beta
        assert tested.counts["last.joint"] == tested.counts[f"last.{like}"]


@pytest.mark.parametrize("own", [False, True])
def test_a_donor_s_joint_is_its_private(own: bool) -> None:
    federation = Federation.of(opened(DONOR, {"exchange.sharing": "own"} if own else {}))
    federation.train(3)
    federation.close()
    tested = federation.client.test(replace(message(3, 3, {}, "test"), settings={"best.beta": 0.75, "last.beta": 1.0}))
    for moment in ("best", "last"):
        for metric in ("accuracy", "macro_f1", "uar"):
            assert tested.metrics[f"{moment}.joint.{metric}"] == tested.metrics[f"{moment}.private.{metric}"]
        assert tested.counts[f"{moment}.joint"] == tested.counts[f"{moment}.private"]
        assert tested.metrics[f"choices.{moment}.joint.round"] == tested.metrics[f"choices.{moment}.private.round"]
        assert tested.metrics[f"choices.{moment}.joint.beta"] == 0.0


@pytest.mark.parametrize("name", [DONOR, RECIPIENT])
def test_own_q_learns_and_never_travels(name: str) -> None:
    federation = Federation.of(opened(name, {"exchange.sharing": "own"}))
    assert federation.blocks == {}
    assert federation.train(2).blocks == {}
    first, second = (federation.client.store.load(version).arrays for version in (1, 2))
    mine = [array for array in first if array.startswith("q/")]
    assert mine
    assert differ({n: first[n] for n in mine}, {n: second[n] for n in mine})
    closed, tested = federation.close(), federation.test()
    assert closed.blocks == tested.blocks == {}
    assert {"best.private.accuracy", "best.q.accuracy", "best.joint.accuracy"} <= set(tested.metrics)
