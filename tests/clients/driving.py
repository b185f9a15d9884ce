"""A client without a server: what it is sent, round by round, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.exchange.contract import SERVER, Blocks, Broadcast, Update
from fedsocket_flwr.methods import build_client, shared_shape
from fedsocket_flwr.models.predictor import initial_predictor
from fedsocket_flwr.runtime.store import state_directory
from tests.toy_runs import toy_config

RUN = "run"


def open_client(name: str, settings: Mapping[str, Any] | None = None, config: Configuration | None = None) -> Participant:
    return build_client(config or toy_config(settings), name, RUN, state_directory({}))


def rows_of(split: Split, rows: list[int]) -> Split:
    """Return some rows of a classification split."""
    assert split.labels is not None
    inputs = {modality: values[rows] for modality, values in split.inputs.items()}
    features = {modality: values[rows] for modality, values in split.features.items()}
    return Split(inputs, features, labels=split.labels[rows])


def with_splits(client: Participant, **splits: Split) -> Participant:
    """Return the client with other data: what it knows of itself follows from them."""
    return type(client)(client.config, replace(client.data, **splits), client.store, client.shape, client.device)


def first_blocks(client: Participant) -> dict[str, Any]:
    """Return the blocks of the initial Q that the client is sent."""
    shape = shared_shape(client.config)
    if shape is None or client.config.exchange.sharing == "own":
        return {}
    q = initial_predictor(shape, client.config.run.seed)
    arrays = {name: tensor.numpy() for name, tensor in q.state_dict().items()}
    return {block.name: arrays[block.name] for block in q.contract().readable(client.membership())}


def message(round_: int, base: int, blocks: Blocks, phase: str = "train") -> Broadcast:
    return Broadcast(RUN, round_, phase, base, {SERVER: blocks})


@dataclass
class Federation:
    """A server that knows one client: what comes back is what is sent next."""

    client: Participant
    blocks: Blocks
    version: int = 0
    round: int = 0

    @classmethod
    def of(cls, client: Participant) -> "Federation":
        return cls(client, first_blocks(client))

    def train(self, rounds: int = 1) -> Update:
        for _ in range(rounds):
            self.round += 1
            update, failure = self.client.train(message(self.round, self.version, self.blocks))
            assert failure == ""
            self.blocks, self.version = update.blocks, update.version
        return update

    def close(self) -> Update:
        return self.client.close(message(self.round, self.version, self.blocks, "close"))

    def test(self) -> Update:
        return self.client.test(message(self.round, self.version, {}, "test"))


def stored_q(client: Participant) -> set[str]:
    """Return the names of the Q checkpoints in a client's store."""
    folder: Path = client.store._folder
    return {path.stem.removeprefix("blocks-") for path in folder.glob("blocks-*.safetensors")}


def without_clock(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "seconds"}


def empty_like(split: Split) -> Split:
    return rows_of(split, [])


def labels_of(split: Split) -> np.ndarray[Any, Any]:
    assert split.labels is not None
    return split.labels
