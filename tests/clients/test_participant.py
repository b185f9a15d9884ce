from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsocket_flwr.clients.checkpoints import Checkpoints
from fedsocket_flwr.errors import ContractError, StoreError
from fedsocket_flwr.exchange.contract import Membership
from fedsocket_flwr.models.registry import PRIVATE_MODELS
from tests.clients.driving import (
    Federation,
    empty_like,
    first_blocks,
    labels_of,
    message,
    open_client,
    rows_of,
    stored_q,
    with_splits,
    without_clock,
)
from tests.toy_runs import assert_same_arrays, same_bits

CLIENTS = ("shapes-cnn", "words-bigru", "pairs-a")
KEEP = {"training.q_optimiser": "keep"}
BREAKING = {"tasks.words.clients[0].model": "tests.clients.own_models:BreakingBag", "tasks.words.clients[0].arguments": {}}


def test_a_client_declares_what_it_holds() -> None:
    client = open_client("shapes-mlp")
    counts = np.bincount(labels_of(client.data.train), minlength=3)
    assert client.membership() == Membership("shapes-mlp", "shapes", ("image",), int(counts.sum()), tuple(counts.tolist()))
    pairs = open_client("pairs-a").membership()
    assert (pairs.modalities, pairs.examples, pairs.class_counts) == (("image", "text"), 30, ())


# --- a round ---


@pytest.mark.parametrize("name", CLIENTS)
def test_a_round_answers_with_the_very_blocks_that_it_was_sent(name: str) -> None:
    client = open_client(name)
    sent = first_blocks(client)
    update, failure = client.train(message(1, 0, sent))
    assert failure == ""
    assert (update.client, update.round, update.version) == (name, 1, 1)
    assert (update.examples, update.class_counts) == (client.data.train.examples, client.data.class_counts())
    assert list(update.blocks) == list(sent)
    for block, array in sent.items():
        assert (update.blocks[block].shape, update.blocks[block].dtype) == (array.shape, array.dtype)
        assert not same_bits(update.blocks[block], array), block


def test_blocks_that_the_client_cannot_execute_come_back_as_they_went() -> None:
    client = open_client("shapes-cnn")
    foreign = {"branches.task/elsewhere.gate": np.float32(3.0).reshape(())}
    update, _ = client.train(message(1, 0, foreign | first_blocks(client)))
    assert next(iter(update.blocks)) == "branches.task/elsewhere.gate"
    assert same_bits(update.blocks["branches.task/elsewhere.gate"], foreign["branches.task/elsewhere.gate"])


def test_the_row_of_a_class_that_the_client_lacks_comes_back_as_it_came() -> None:
    client = open_client("shapes-cnn")
    train = client.data.train
    labels = labels_of(train).copy()
    labels[labels == 1] = 2
    client = with_splits(client, train=replace(train, labels=labels))
    sent = first_blocks(client)
    update, _ = client.train(message(1, 0, sent))
    for name in ("branches.task/shapes.head.weight", "branches.task/shapes.head.bias"):
        assert same_bits(update.blocks[name][1], sent[name][1])
        assert not same_bits(update.blocks[name][0], sent[name][0])
        assert not same_bits(update.blocks[name][2], sent[name][2])


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("settings", [{}, KEEP], ids=["reset", "keep"])
def test_a_repeated_round_gives_the_same_bits(name: str, settings: dict[str, str]) -> None:
    federation = Federation.of(open_client(name, settings))
    federation.train(2)
    third = message(3, 2, federation.blocks)
    first, _ = federation.client.train(third)
    state = federation.client.store.load(3)
    # The store has been written already, and another process opens the client anew.
    again, _ = open_client(name, settings).train(third)
    repeated = federation.client.store.load(3)
    assert_same_arrays(again.blocks, first.blocks)
    assert without_clock(again.metrics) == without_clock(first.metrics)
    assert_same_arrays(repeated.arrays, state.arrays)
    assert repeated.notes == state.notes


def test_a_round_whose_answer_was_lost_is_as_if_it_had_not_been() -> None:
    """The server never saw version 2: it asks for round 3 from version 1, with the blocks of another round."""
    lost, kept = Federation.of(open_client("shapes-mlp")), Federation.of(open_client("shapes-mlp"))
    kept.train()
    third = message(3, 1, kept.blocks)
    expected, _ = kept.client.train(third)
    state = kept.client.store.load(3)

    lost.train(2)
    found, _ = lost.client.train(third)
    assert_same_arrays(found.blocks, expected.blocks)
    assert_same_arrays(lost.client.store.load(3).arrays, state.arrays)
    assert 2 not in lost.client.store.versions()


def test_training_leaves_torchs_own_generator_alone() -> None:
    client = open_client("words-bigru")
    state = torch.random.get_rng_state()
    client.train(message(1, 0, first_blocks(client)))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dev_is_that_of_the_model_that_arrived() -> None:
    federation = Federation.of(open_client("shapes-mlp"))
    first = federation.train()
    assert not any(name.startswith("dev.") for name in first.metrics)
    second = federation.train()
    assert {"dev.private.accuracy", "dev.q.accuracy", "dev.joint.accuracy", "dev.joint.rho"} <= set(second.metrics)
    # Measured before learning: the same model measured by the closing of a run that ended after round 1.
    other = Federation.of(open_client("shapes-mlp"))
    other.train()
    closing = other.close()
    measured = {name: value for name, value in second.metrics.items() if name.startswith("dev.")}
    assert dict(closing.metrics) == measured
    assert closing.blocks == {}


# --- divergence ---


def test_a_client_whose_loss_is_nan_says_so_and_keeps_its_former_state() -> None:
    sound = Federation.of(open_client("words-bag"))
    sound.train()
    before = sound.client.store.load(1)
    broken = open_client("words-bag", BREAKING)
    # The same client, with a model that breaks: nothing of its round may remain.
    sent = first_blocks(broken)
    update, failure = broken.train(message(2, 0, sent))
    assert failure == "the loss of warm-up became nan in epoch 1 of 2"
    assert update.version == 0
    assert_same_arrays(update.blocks, sent)
    assert update.metrics == {}
    assert broken.store.versions() == (1,)
    assert_same_arrays(broken.store.load(1).arrays, before.arrays)


def test_a_client_that_always_diverged_has_a_q_endpoint_only() -> None:
    client = open_client("words-bag", BREAKING)
    sent = first_blocks(client)
    for round_ in (1, 2):
        assert client.train(message(round_, 0, sent))[1]
    client.close(message(2, 0, sent, "close"))
    metrics = client.test(message(2, 0, {}, "test")).metrics
    assert {name.split(".")[1] for name in metrics if name.startswith(("best", "last"))} == {"q"}


# --- what is kept ---


@pytest.mark.parametrize("name", CLIENTS)
def test_what_was_chosen_is_there_when_test_is_measured_and_the_rest_is_gone(name: str) -> None:
    federation = Federation.of(open_client(name))
    values: dict[str, list[float]] = {"private": [], "q": [], "joint": []}
    for _ in range(7):
        metrics = federation.train().metrics
        for endpoint, found in values.items():
            if f"dev.{endpoint}.mean_r" in metrics:
                found.append((metrics[f"dev.{endpoint}.i2t_r1"] + metrics[f"dev.{endpoint}.t2i_r1"]) / 2)
            elif f"dev.{endpoint}.accuracy" in metrics:
                found.append(metrics[f"dev.{endpoint}.accuracy"])
    closing = federation.close().metrics
    for endpoint, found in values.items():
        headline = [closing[f"dev.{endpoint}.{m}"] for m in ("accuracy", "i2t_r1", "t2i_r1") if f"dev.{endpoint}.{m}" in closing]
        found.append(sum(headline) / len(headline))
    metrics = federation.test().metrics
    # The first of the best rounds by DEV; values[k] belongs to the model of round k + 1.
    chosen = {endpoint: 1 + found.index(max(found)) for endpoint, found in values.items()}
    assert {endpoint: metrics[f"choices.best.{endpoint}.round"] for endpoint in chosen} == chosen
    assert all(metrics[f"choices.last.{endpoint}.round"] == 7 for endpoint in chosen)
    kept = {chosen["private"], chosen["joint"]}
    assert kept <= set(federation.client.store.versions()) <= kept | {6, 7} | former(values)
    q_rounds = {chosen["q"], chosen["joint"], 7}
    assert {f"q-{round_:05d}" for round_ in q_rounds} <= stored_q(federation.client)
    assert stored_q(federation.client) <= {f"q-{round_:05d}" for round_ in q_rounds | former(values) | {6}}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_round_may_be_repeated_from_the_version_before_whatever_it_had_chosen(name: str) -> None:
    """An answer may be lost: then the client goes on from the former version, and needs all that this one had kept."""
    federation = Federation.of(open_client(name))
    store = federation.client.store
    moved = 0
    for round_ in range(1, 9):
        federation.train()
        chosen = [Checkpoints.from_notes(store.load(v).notes["checkpoints"]) for v in (round_ - 1, round_) if v]
        moved += len({tuple(sorted(kept.versions())) for kept in chosen}) - 1
        for kept in chosen:
            assert kept.versions() <= set(store.versions())
            assert {f"q-{model_round:05d}" for model_round in kept.q_rounds()} <= stored_q(federation.client)
    assert moved >= 1


def former(values: dict[str, list[float]]) -> set[int]:
    """What versions 6 and 7 had chosen when they were written: round 7 may be repeated from version 6."""
    return {1 + found[:count].index(max(found[:count])) for found in values.values() for count in (5, 6)}


def test_without_dev_the_last_round_is_kept_and_joint_has_its_default_weight() -> None:
    client = open_client("shapes-mlp")
    federation = Federation.of(with_splits(client, dev=empty_like(client.data.dev)))
    assert not any(name.startswith("dev.") for name in federation.train(3).metrics)
    assert federation.close().metrics == {}
    metrics = federation.test().metrics
    assert all(metrics[f"choices.best.{endpoint}.round"] == 3 for endpoint in ("private", "q", "joint"))
    assert metrics["choices.best.joint.rho"] == 1.0
    assert metrics["best.joint.accuracy"] == metrics["last.joint.accuracy"]


def test_without_test_there_are_choices_and_no_metrics() -> None:
    client = open_client("shapes-mlp")
    federation = Federation.of(with_splits(client, test=empty_like(client.data.test)))
    federation.train(2)
    federation.close()
    assert all(name.startswith("choices.") for name in federation.test().metrics)


def test_without_training_rows_there_is_a_q_endpoint_and_nothing_weighs() -> None:
    client = open_client("shapes-mlp")
    federation = Federation.of(with_splits(client, train=empty_like(client.data.train)))
    sent = dict(federation.blocks)
    update = federation.train()
    assert (update.examples, update.class_counts) == (0, (0, 0, 0))
    assert not any(name.startswith("loss") for name in update.metrics)
    assert_same_arrays(update.blocks, sent)
    update = federation.train()
    assert "dev.q.accuracy" in update.metrics
    assert not any(name.startswith(("dev.private", "dev.joint")) for name in update.metrics)
    federation.close()
    assert {name.split(".")[1] for name in federation.test().metrics if name.startswith("best")} == {"q"}


def test_one_training_row_is_enough_to_take_part() -> None:
    client = open_client("shapes-mlp")
    federation = Federation.of(with_splits(client, train=rows_of(client.data.train, [0])))
    update = federation.train(2)
    assert np.isfinite(update.metrics["loss.private"])
    assert np.isfinite(update.metrics["loss.q"])


def test_test_before_closing_is_refused() -> None:
    client = open_client("shapes-mlp")
    with pytest.raises(StoreError, match="'shapes-mlp' has frozen no choices: TEST comes after the closing phase"):
        client.test(message(1, 0, {}, "test"))


def test_test_is_measured_with_what_was_frozen_whatever_is_trained_afterwards() -> None:
    federation = Federation.of(open_client("shapes-mlp"))
    federation.train(2)
    federation.close()
    before = federation.test().metrics
    # The answer of a third round arrives after the closing; what was frozen stays.
    federation.client.train(message(3, 2, federation.blocks))
    assert federation.test().metrics == before


# --- faults ---


def test_weights_of_another_architecture_are_named() -> None:
    Federation.of(open_client("shapes-mlp")).train()
    other = open_client("shapes-mlp", {"tasks.shapes.clients[1].arguments": {"hidden": 8}})
    with pytest.raises(
        ContractError, match=r"weights of another architecture: 'trunk\.1\.weight' has shape \(16, 64\), expected"
    ):
        other.train(message(2, 1, first_blocks(other)))


def test_a_q_of_another_shape_is_named() -> None:
    client = open_client("shapes-mlp")
    blocks = first_blocks(open_client("shapes-mlp", {"predictor.width": 12}))
    with pytest.raises(ContractError, match="weights of another architecture"):
        client.train(message(1, 0, blocks))
    incomplete = first_blocks(client)
    del incomplete["branches.task/shapes.gate"]
    with pytest.raises(ContractError, match="has nothing"):
        client.train(message(1, 0, incomplete))


def test_a_version_that_is_not_there_is_named() -> None:
    client = open_client("shapes-mlp")
    with pytest.raises(StoreError, match="has no version 5"):
        client.train(message(6, 5, first_blocks(client)))


# --- every private model ---

FOR_VECTORS = {name: ("video",) for name in PRIVATE_MODELS if name.startswith("sequence_")} | {
    name: ("audio", "video") for name in PRIVATE_MODELS if name.endswith("_pair")
}
MODELS = [
    *[("shapes", name, {}) for name in PRIVATE_MODELS if name.startswith("image_") and not name.endswith("towers")],
    *[("words", name, {}) for name in PRIVATE_MODELS if name.startswith("text_")],
    *[("pairs", "image_text_towers", {"image": image, "text": text}) for image in ("cnn", "mlp") for text in ("bag", "bigru")],
    ("shapes", "resnet18_pie", {"width": 4, "embedding": 8}),
    ("words", "bigru_pie", {"word_width": 6, "embedding": 8}),
    ("pairs", "flickr_towers", {"width": 4, "word_width": 6, "embedding": 8, "small_pictures": True}),
]


def test_no_registered_model_is_left_out() -> None:
    assert {model for _, model, _ in MODELS} | set(FOR_VECTORS) == set(PRIVATE_MODELS)


@pytest.mark.parametrize(("task", "model", "arguments"), MODELS)
@pytest.mark.parametrize("method", ["fedsocket", "local"])
def test_every_private_model_trains(task: str, model: str, arguments: dict[str, str], method: str) -> None:
    settings = {f"tasks.{task}.clients[0].model": model, f"tasks.{task}.clients[0].arguments": arguments, "run.method": method}
    client = open_client({"shapes": "shapes-cnn", "words": "words-bag", "pairs": "pairs-a"}[task], settings)
    federation = Federation.of(client)
    update = federation.train()
    assert update.metrics["loss.private"] > 0
    federation.close()
    assert federation.test().metrics


@pytest.mark.parametrize("model", FOR_VECTORS)
def test_every_private_model_of_vectors_trains(model: str) -> None:
    modalities = FOR_VECTORS[model]
    task = {
        "dataset": "toy_vectors",
        "kind": "classification",
        "modalities": list(modalities),
        "partition": {"kind": "iid", "train": 40, "dev": 20, "test": 20},
        "clients": [{"name": "alone", "model": model}],
    }
    sgd = {"optimiser": "sgd", "learning_rate": 0.01, "batch_size": 16}
    settings = {
        "run.method": "local",
        "tasks": {"clips": task},
        "interfaces": {modality: {"kind": "precomputed", "width": 8, "norm": None} for modality in modalities},
        "training.private": {"+".join(modalities): sgd},
    }
    federation = Federation.of(open_client("alone", settings))
    assert federation.train().metrics["loss.private"] > 0
    federation.close()
    assert set(federation.test().metrics) >= {"best.private.accuracy", "last.private.accuracy"}
