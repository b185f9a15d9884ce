import json

import numpy as np
import pytest
import torch

from fedsocket_flwr.clients.branches import (
    BranchFacts,
    load_module_arrays,
    module_arrays,
    named,
    new_private,
    new_q,
    q_name,
    under,
)
from fedsocket_flwr.errors import ContractError
from tests.clients.driving import first_blocks, open_client
from tests.toy_runs import assert_same_arrays, toy_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["shapes-cnn", "words-bag", "pairs-b"])
def test_facts_survive_json(name: str) -> None:
    facts = open_client(name).facts
    assert BranchFacts.from_notes(json.loads(json.dumps(facts.to_notes()))) == facts


def test_a_private_model_is_drawn_from_the_seed_and_the_name_alone() -> None:
    facts = open_client("shapes-mlp").facts
    first = module_arrays(new_private(toy_config(), facts, CPU))
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert_same_arrays(module_arrays(new_private(toy_config({"run.rounds": 9}), facts, CPU)), first)
    assert torch.equal(torch.random.get_rng_state(), state)
    other_seed = module_arrays(new_private(toy_config({"run.seed": 2}), facts, CPU))
    renamed = toy_config({"tasks.shapes.clients[1].name": "renamed"})
    other_name = module_arrays(new_private(renamed, BranchFacts(**{**vars(facts), "client": "renamed"}), CPU))
    for other in (other_seed, other_name):
        assert any(not np.array_equal(other[name], first[name]) for name in first)


@pytest.mark.parametrize("name", ["shapes-cnn", "words-bag", "pairs-b"])
@pytest.mark.parametrize("isolated", [[], ["words"], "all"])
def test_a_clients_q_has_the_blocks_that_the_contract_sends_it(name: str, isolated: object) -> None:
    client = open_client(name, {"exchange.isolated": isolated})
    q = new_q(client.config, client.facts, CPU)
    sent = first_blocks(client)
    assert {key: value.shape for key, value in module_arrays(q).items()} == {key: value.shape for key, value in sent.items()}


def test_a_fixed_gate_asks_for_no_gradient() -> None:
    client = open_client("shapes-cnn", {"predictor.gate": "fixed"})
    frozen = [name for name, value in new_q(client.config, client.facts, CPU).named_parameters() if not value.requires_grad]
    assert frozen == ["branches.task/shapes.gate"]


def test_arrays_are_copies_and_load_back() -> None:
    model = torch.nn.BatchNorm1d(3)
    arrays = module_arrays(model)
    model(torch.randn(8, 3))
    assert arrays["running_mean"].tolist() == [0.0, 0.0, 0.0]
    assert arrays["num_batches_tracked"] == 0
    load_module_arrays(model, arrays | {"of somebody else": np.ones(3)})
    assert_same_arrays(module_arrays(model), arrays)


def test_arrays_that_can_only_be_read_are_loaded() -> None:
    model = torch.nn.Linear(2, 1)
    arrays = {
        name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in module_arrays(model).items()
    }
    load_module_arrays(model, arrays)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert arrays["weight"].tobytes() != model.weight.detach().numpy().tobytes()


def test_weights_of_another_architecture_are_refused() -> None:
    with pytest.raises(ContractError, match=r"'weight' has shape \(1, 3\), expected shape \(1, 2\)"):
        load_module_arrays(torch.nn.Linear(2, 1), module_arrays(torch.nn.Linear(3, 1)))
    with pytest.raises(ContractError, match="'bias' has nothing"):
        load_module_arrays(torch.nn.Linear(2, 1), module_arrays(torch.nn.Linear(2, 1, bias=False)))


def test_prefixes_separate_parts_of_a_state() -> None:
    state = named("q", {"a": np.zeros(1)}) | named("q_optimiser", {"0/step": np.ones(1)})
    assert list(state) == ["q/a", "q_optimiser/0/step"]
    assert list(under("q", state)) == ["a"]
    assert list(under("q_optimiser", state)) == ["0/step"]


def test_rounds_sort_by_name() -> None:
    assert sorted([q_name(10), q_name(9)]) == [q_name(9), q_name(10)]
