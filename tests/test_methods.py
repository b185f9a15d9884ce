import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsocket_flwr.clients.fedsocket import FedSocketClient
from fedsocket_flwr.clients.local import LocalClient
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.exchange.registration import Roster
from fedsocket_flwr.import_paths import load
from fedsocket_flwr.methods import METHODS, Method, build_client, build_server_side, find_method, shared_shape
from fedsocket_flwr.strategies import RegisteredStrategy, TaskOwnedStrategy

Configure = Callable[..., Configuration]
OWN_METHOD = Method(METHODS["fedsocket"].strategy, METHODS["local"].client, False)


class TestFinding:
    def test_every_row_names_things_that_are_there(self) -> None:
        for method in METHODS.values():
            assert issubclass(load(method.strategy, "strategy"), RegisteredStrategy)
            assert load(method.client, "client")

    @pytest.mark.parametrize(("name", "near"), [("fedsockets", "fedsocket"), ("FedSocket", "fedsocket"), ("locale", "local")])
    def test_an_unknown_name_suggests_the_nearest(self, name: str, near: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            find_method(name)
        assert str(caught.value) == f"run.method: no method is called {name!r}; did you mean {near!r}?"

    def test_a_name_like_no_other_lists_them_all(self) -> None:
        with pytest.raises(ConfigurationError, match=f"no method is called 'xyz'; known: {', '.join(METHODS)}$"):
            find_method("xyz")

    def test_another_projects_method_by_import_path(self) -> None:
        assert find_method(f"{__name__}:OWN_METHOD") is OWN_METHOD

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            (f"{__name__}:OWN_METHODS", "did you mean 'OWN_METHOD'"),
            (f"{__name__}:Configure", "expected a Method"),
            ("no_such_package:METHOD", "cannot import 'no_such_package'"),
        ],
    )
    def test_an_import_path_to_something_else(self, path: str, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            find_method(path)


class TestServerSide:
    def test_fedsocket_exchanges_q(self, toy_config: Configure) -> None:
        side = build_server_side(toy_config(), "run-1", Roster())
        assert isinstance(side.strategy, TaskOwnedStrategy)
        assert list(side.initial) == [block.name for block in side.strategy.contract.blocks]
        assert all(block.mismatch(side.initial[block.name]) is None for block in side.strategy.contract.blocks)
        assert side.probe(side.initial) == {"gate.shapes": 0.5, "gate.words": 0.5, "gate.pairs": 0.5}

    @pytest.mark.parametrize("settings", [{"run.method": "local"}, {"exchange.sharing": "own"}])
    def test_where_nothing_is_shared_nothing_travels(self, toy_config: Configure, settings: dict[str, str]) -> None:
        side = build_server_side(toy_config(settings), "run-1", Roster())
        assert (side.strategy.contract.blocks, side.initial, side.probe(side.initial)) == ((), {}, {})

    def test_the_configuration_reaches_the_strategy(self, toy_config: Configure) -> None:
        config = toy_config(
            {
                "run.seed": 5,
                "merging.residual": "mean",
                "merging.modality": "projected",
                "exchange.payload": "full",
                "participation.share": 0.5,
                "participation.tasks": {"words": 0.25},
                "participation.registration_seconds": 7.0,
            }
        )
        roster = Roster()
        strategy = build_server_side(config, "run-1", roster).strategy
        assert isinstance(strategy, TaskOwnedStrategy)
        assert (strategy.residual, strategy.modality, strategy.payload_mode) == ("mean", "projected", "full")
        assert (strategy.run, strategy.seed, strategy.share, strategy.task_shares) == ("run-1", 5, 0.5, {"words": 0.25})
        assert strategy.roster is roster
        assert strategy.registration_seconds == 7.0
        assert list(strategy.expected_clients or ()) == [client.name for _, client in config.clients()]

    def test_isolation_reaches_the_contract(self, toy_config: Configure) -> None:
        contract = build_server_side(toy_config({"exchange.isolated": ["words"]}), "run", Roster()).strategy.contract
        shared = {block.tasks for block in contract.blocks if block.owner.kind in ("everyone", "modality")}
        assert shared == {("shapes", "pairs")}

    def test_q_starts_from_the_runs_seed(self, toy_config: Configure) -> None:
        first, again, other = (build_server_side(toy_config({"run.seed": seed}), "r", Roster()).initial for seed in (1, 1, 2))
        assert all(first[name].tobytes() == again[name].tobytes() for name in first)
        assert any(first[name].tobytes() != other[name].tobytes() for name in first)


class TestClients:
    @pytest.mark.parametrize(("method", "kind"), [("fedsocket", FedSocketClient), ("local", LocalClient)])
    def test_what_a_client_declares(self, toy_config: Configure, tmp_path: Path, method: str, kind: type) -> None:
        config = toy_config({"run.method": method})
        clients = {client.name: build_client(config, client.name, "run", tmp_path) for _, client in config.clients()}
        assert {type(client) for client in clients.values()} == {kind}
        for name, client in clients.items():
            member = client.membership()
            assert (member.client, member.task) == (name, config.client(name)[0])
            assert member.modalities == config.tasks[member.task].modalities
            assert sum(member.class_counts) == (0 if member.task == "pairs" else member.examples)

    def test_every_declared_count_has_its_row_of_the_head(self, toy_config: Configure, tmp_path: Path) -> None:
        config = toy_config()
        contract = build_server_side(config, "run", Roster()).strategy.contract
        for _, client in config.clients():
            member = build_client(config, client.name, "run", tmp_path).membership()
            rows = {block.shape[0] for block in contract.writable(member) if block.owner.kind == "class_rows"}
            assert rows == ({len(member.class_counts)} if member.class_counts else set())

    def test_the_shape_of_q_is_data(self, toy_config: Configure) -> None:
        shape = shared_shape(toy_config())
        assert shape is not None
        assert json.dumps([(task.name, task.kind, task.modalities, task.classes) for task in shape.tasks]) == json.dumps(
            [
                ("shapes", "classification", ("image",), 3),
                ("words", "classification", ("text",), 4),
                ("pairs", "retrieval", ("image", "text"), 0),
            ]
        )
        assert shared_shape(toy_config({"run.method": "local"})) is None
