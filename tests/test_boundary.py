"""What crosses the boundary of a client, provably: every message of a run is recorded and looked through."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsocket_flwr import client_app, engines, server_app
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.client_data import open_client_data
from fedsocket_flwr.exchange.contract import Contract, Membership
from fedsocket_flwr.exchange.registration import RECORD, Roster
from fedsocket_flwr.methods import build_server_side, feature_directory
from fedsocket_flwr.metric_names import METRIC_LABELS
from fedsocket_flwr.run_preparation import prepare_run
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.run_files import read_identity
from fedsocket_flwr.runtime.store import ClientStore, state_directory
from tests.toy_runs import quick, same_task_config, toy_config

ENDPOINTS = {"private", "q", "joint"}
MOMENTS = {"best", "last"}


@dataclass
class Recorder(InProcessGrid):
    """Keep every message and every answer, as (client, message, answer)."""

    exchanged: list[tuple[str, Message, Message]] = field(default_factory=list)

    def __init__(self, config: Configuration) -> None:
        super().__init__(client_app.app, [{"client": client.name} for _, client in config.clients()])
        self.exchanged = []

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        client = str(self._contexts[message.metadata.dst_node_id].node_config["client"])
        self.exchanged.append((client, message, reply))
        return reply


@dataclass(frozen=True)
class Recorded:
    config: Configuration
    folder: Path
    home: Path
    exchanged: list[tuple[str, Message, Message]]
    contract: Contract
    members: dict[str, Membership]


def record(config: Configuration, folder: Path) -> Recorded:
    with quick():
        prepare_run(config, folder, "inprocess")
        engines.compute_features(folder)
        grid = Recorder(config)
        server_app.serve(grid, folder)
    contract = build_server_side(config, "x", Roster()).strategy.contract
    answers = [(c, r) for c, m, r in grid.exchanged if m.metadata.message_type == "query.register"]
    members = {c: Membership.from_json(str(r.content.config_records[RECORD]["membership"])) for c, r in answers}
    return Recorded(config, folder, state_directory({}), grid.exchanged, contract, members)


CONFIGURATIONS = {
    "owned": lambda: toy_config({"run.rounds": 2}),
    "full": lambda: toy_config({"run.rounds": 2, "exchange.payload": "full"}),
    "kept optimisers": lambda: toy_config({"run.rounds": 2, "training.q_optimiser": "keep"}),
    "same task": lambda: same_task_config({"run.rounds": 2}),
    "local": lambda: toy_config({"run.rounds": 2, "run.method": "local"}),
}


@pytest.fixture(scope="module", params=list(CONFIGURATIONS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterable[Recorded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(tmp_path_factory.mktemp("home")))
        yield record(CONFIGURATIONS[request.param](), tmp_path_factory.mktemp("recorded") / "run")


def up(recorded: Recorded) -> list[tuple[str, str, Message]]:
    """Every answer, as (client, type of message, answer)."""
    return [(client, message.metadata.message_type, reply) for client, message, reply in recorded.exchanged]


def test_every_phase_was_recorded_of_every_client(recorded: Recorded) -> None:
    kinds = {(client, kind) for client, kind, _ in up(recorded)}
    clients = [client.name for _, client in recorded.config.clients()]
    assert kinds == {(c, k) for c in clients for k in ("query.register", "train", "query.close", "query.test")}


def test_the_only_arrays_that_leave_are_blocks_of_q(recorded: Recorded) -> None:
    """In training those that were sent; of those that its owner is not, the very bytes that came; else none at all."""
    left = 0
    for client, message, reply in recorded.exchanged:
        arrays = {name: array for record in reply.content.array_records.values() for name, array in record.items()}
        if message.metadata.message_type != "train":
            assert arrays == {}
            continue
        sent = {name: array for record in message.content.array_records.values() for name, array in record.items()}
        assert list(arrays) == list(sent)
        assert set(arrays) <= {block.name for block in recorded.contract.blocks}
        own = {block.name for block in recorded.contract.writable(recorded.members[client])}
        assert all(np.array_equal(arrays[n].numpy(), sent[n].numpy()) for n in set(arrays) - own)
        left += len(set(arrays) & own)
    assert (left > 0) == bool(recorded.contract.blocks)


def test_the_row_of_a_class_that_a_client_lacks_leaves_as_it_came(tmp_path: Path) -> None:
    settings = {"run.rounds": 2, "tasks.shapes.partition.alpha": 0.01}
    recorded = record(toy_config(settings), tmp_path / "run")
    lacking = 0
    for client, message, reply in recorded.exchanged:
        counts = np.array(recorded.members[client].class_counts)
        for block in recorded.contract.blocks:
            if (
                message.metadata.message_type == "train"
                and block.owner.kind == "class_rows"
                and block.name in reply.content["arrays"]
            ):
                before, after = (found.content["arrays"][block.name].numpy() for found in (message, reply))
                assert np.array_equal(before[counts == 0], after[counts == 0])
                lacking += int((counts == 0).sum())
    assert lacking > 0, "the split should leave a client without some class"


def test_the_only_numbers_that_leave_are_counts_and_metrics(recorded: Recorded) -> None:
    for client, kind, reply in up(recorded):
        if kind == "query.register":
            assert not reply.content.metric_records
            continue
        (metrics,) = reply.content.metric_records.values()
        member = recorded.members[client]
        for name, value in metrics.items():
            if name == "num-examples":
                assert value == member.examples
            elif name == "class-counts":
                assert tuple(value) == member.class_counts
            elif isinstance(value, list):
                assert_is_confusion_matrix(recorded, name, value)
            else:
                assert_is_permitted(name)


def assert_is_permitted(name: str) -> None:
    """A measurement over a whole split, a loss over a whole round, a choice, or seconds."""
    if name == "seconds" or name.startswith("loss."):
        return
    first, *rest = name.split(".")
    if first == "dev" or first in MOMENTS:
        rest = rest[1:] if rest[0] in ENDPOINTS else pytest.fail(name)
    elif first == "choices":
        assert rest[0] in MOMENTS, name
        assert rest[1] in ENDPOINTS, name
        rest = rest[2:]
    else:
        pytest.fail(f"{name} leaves a client")
    assert len(rest) == 1, name
    assert rest[0] in {*METRIC_LABELS, "round", "rho", "beta", "i2t_weight", "t2i_weight", "i2t", "t2i"}, name


def assert_is_confusion_matrix(recorded: Recorded, name: str, counts: list[int]) -> None:
    assert name.startswith("counts/"), name
    classes = {len(member.class_counts) for member in recorded.members.values()}
    assert len(counts) in {number**2 for number in classes}, f"{name}: one number a row would be another length"
    assert all(isinstance(count, int) for count in counts)


def test_the_only_words_that_leave_are_names(recorded: Recorded) -> None:
    for client, kind, reply in up(recorded):
        (config,) = reply.content.config_records.values()
        if kind == "query.register":
            assert set(config) == {"membership", "code", "configuration"}
            assert all(len(str(config[digest])) == 64 for digest in ("code", "configuration"))
        else:
            assert {name: config[name] for name in ("client", "failure")} == {"client": client, "failure": ""}
            assert set(config) == {"client", "failure", "round", "version"}


def test_nothing_of_what_a_client_keeps_is_in_any_answer(recorded: Recorded) -> None:
    """Private weights, optimisers, features and samples, searched for as bytes in everything that left."""
    arrays = [
        array.data for _, _, reply in up(recorded) for answer in reply.content.array_records.values() for array in answer.values()
    ]
    numbers = {
        float(value)
        for _, kind, reply in up(recorded)
        if kind != "query.register"
        for answer in reply.content.metric_records.values()
        for value in answer.values()
        if isinstance(value, float)
    }
    searched = 0
    for secret in kept_by_clients(recorded):
        if secret.dtype.kind != "f" or len(np.unique(secret)) < 8:
            continue
        searched += 1
        flat = np.ascontiguousarray(secret).reshape(-1)
        start = int(np.flatnonzero(flat)[0])
        piece = flat[start : start + 8].tobytes()
        assert not any(piece in data for data in arrays)
        # A share of a few dozen rows, such as 0.625, is a short binary fraction and may be met by chance.
        assert not numbers & {float(value) for value in flat[:2000] if not float(value * 1024).is_integer()}
    assert searched > 20


def kept_by_clients(recorded: Recorded) -> Iterable[Any]:
    """Yield every array that a client keeps: weights, optimisers, samples, features."""
    run = str(read_identity(recorded.folder)["run"])
    for _, client in recorded.config.clients():
        store = ClientStore(recorded.home, run, client.name)
        kept = store.load(store.versions()[-1]).arrays
        # An optimiser that is kept for Q is the client's own too; Q itself was received.
        yield from (array for name, array in kept.items() if not name.startswith("q/"))
        data = open_client_data(recorded.config, client.name, feature_directory(recorded.home))
        for split in (data.train, data.dev, data.test):
            yield from (*split.inputs.values(), *split.features.values())
