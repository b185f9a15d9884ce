from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.clients import fedsocket
from fedsocket_flwr.clients.fedsocket import FedSocketClient
from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.learning import teaching
from tests.clients.driving import Federation, first_blocks, message, open_client
from tests.toy_runs import Outcome, assert_same_arrays, same_bits

DROPPING = {"tasks.words.clients[0].model": "tests.clients.own_models:DroppingBag", "tasks.words.clients[0].arguments": {}}


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note every stage and its epochs."""
    seen: list[tuple[str, int]] = []

    def noting(train: Callable[..., float]) -> Callable[..., float]:
        def noted(*arguments: Any, **named: Any) -> float:
            schedule = arguments[3]
            seen.append((schedule.stage, schedule.epochs))
            return train(*arguments, **named)

        return noted

    monkeypatch.setattr(fedsocket, "train_private", noting(teaching.train_private))
    monkeypatch.setattr(fedsocket, "train_q", noting(teaching.train_q))
    return seen


def test_a_client_warms_up_once_then_teaches_both_ways(stages: list[tuple[str, int]]) -> None:
    Federation.of(open_client("words-bag", {"training.private.text.epochs": 3})).train(2)
    assert stages == [("warm-up", 2), ("Private", 3), ("Q", 3), ("Private", 3), ("Q", 3)]


def test_a_client_that_starts_late_warms_up_then(stages: list[tuple[str, int]]) -> None:
    client = open_client("words-bag")
    client.train(message(5, 0, first_blocks(client)))
    assert [stage for stage, _ in stages] == ["warm-up", "Private", "Q"]


def test_private_learns_from_the_q_that_arrived() -> None:
    client = open_client("words-bag")
    blocks = first_blocks(client)
    client.train(message(1, 0, blocks))
    first = client.store.load(1).arrays
    bias = "branches.task/words.head.bias"
    client.train(message(1, 0, {**blocks, bias: blocks[bias] + np.array([3, 0, 0, 0], dtype=np.float32)}))
    second = client.store.load(1).arrays
    assert any(not same_bits(first[name], second[name]) for name in first if name.startswith("private/"))


def test_fedsocket_without_a_q_is_refused() -> None:
    client = open_client("words-bag")
    without = FedSocketClient(client.config, client.data, client.store, None, client.device)
    with pytest.raises(ContractError, match="needs a shared predictor"):
        without.train(message(1, 0, {}))


def test_rounds_draw_different_batches_and_different_dropout() -> None:
    client = open_client("words-bag")
    orders = {client.schedule("Private", round_, 1).generator.initial_seed() for round_ in range(1, 6)}
    orders |= {client.schedule("Q", round_, 1).generator.initial_seed() for round_ in range(1, 6)}
    orders |= {open_client("words-bigru").schedule("Q", round_, 1).generator.initial_seed() for round_ in range(1, 6)}
    assert len(orders) == 15


def test_dropout_draws_the_same_with_and_without_q(outcome: Callable[..., Outcome]) -> None:
    no_return = {"training.teaching.distil_private": 0.0, "training.teaching.fusion": 0.0, "run.rounds": 2}
    taught, alone = outcome(DROPPING | no_return), outcome(DROPPING | {"run.method": "local", "run.rounds": 2})
    assert_same_arrays(taught.private("words-bag"), alone.private("words-bag"))
    plain = outcome({"run.method": "local", "run.rounds": 2})
    assert plain.private("words-bag").keys() != alone.private("words-bag").keys()
    assert_same_arrays(plain.private("words-bigru"), alone.private("words-bigru"))
