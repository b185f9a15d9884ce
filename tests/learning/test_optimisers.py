import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedsocket_flwr.errors import StoreError
from fedsocket_flwr.learning.optimisers import build_optimiser, load_optimiser_arrays, optimiser_arrays
from fedsocket_flwr.learning_settings import OptimiserSettings, PredictorOptimiserSettings
from tests.learning.tiny import q_for
from tests.toy_runs import same_bits

SETTINGS = {
    "sgd": OptimiserSettings(optimiser="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "sgd without momentum": OptimiserSettings(optimiser="sgd", learning_rate=0.1),
    "adam": OptimiserSettings(optimiser="adam", learning_rate=0.1),
    "adamw": OptimiserSettings(optimiser="adamw", learning_rate=0.1, weight_decay=0.01),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def steps(network: nn.Module, optimiser: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        optimiser.zero_grad()
        network(inputs).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("name", SETTINGS)
def test_an_optimiser_that_was_saved_continues_to_the_same_bits(name: str) -> None:
    uncut = model()
    optimiser = build_optimiser(SETTINGS[name], uncut.parameters())
    steps(uncut, optimiser, range(3))
    resumed = copy.deepcopy(uncut)
    arrays = {key: np.array(value) for key, value in optimiser_arrays(optimiser).items()}
    steps(uncut, optimiser, range(3, 6))
    again = build_optimiser(SETTINGS[name], resumed.parameters())
    load_optimiser_arrays(again, arrays)
    steps(resumed, again, range(3, 6))
    for found, expected in zip(resumed.parameters(), uncut.parameters(), strict=True):
        assert same_bits(found.detach().numpy(), expected.detach().numpy())
    for key, value in optimiser_arrays(optimiser).items():
        assert same_bits(optimiser_arrays(again)[key], value)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_without_the_saved_state_it_would_not(name: str) -> None:
    uncut = model()
    optimiser = build_optimiser(SETTINGS[name], uncut.parameters())
    steps(uncut, optimiser, range(3))
    reset = copy.deepcopy(uncut)
    steps(uncut, optimiser, range(3, 4))
    steps(reset, build_optimiser(SETTINGS[name], reset.parameters()), range(3, 4))
    assert not torch.equal(next(reset.parameters()), next(uncut.parameters()))


def test_decoupled_decay_moves_only_what_the_optimiser_was_given() -> None:
    settings = PredictorOptimiserSettings(optimiser="adamw", learning_rate=0.1, weight_decay=0.5)
    mine, foreign = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = build_optimiser(settings, [mine])
    for parameter in (mine, foreign):
        parameter.grad = torch.zeros(2)
    optimiser.step()
    assert mine.tolist() == pytest.approx([0.95, 0.95])
    assert foreign.tolist() == [1.0, 1.0]


def test_a_fixed_gate_is_not_given_to_the_optimiser() -> None:
    q = q_for("classification")
    q.fix_gates()
    optimiser = build_optimiser(PredictorOptimiserSettings(), q.parameters())
    given = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    assert {name for name, parameter in q.named_parameters() if id(parameter) not in given} == {
        name for name, _ in q.named_parameters() if name.endswith(".gate")
    }


def test_undecayed_parameters_move_by_their_gradient_alone() -> None:
    settings = OptimiserSettings(optimiser="sgd", learning_rate=1.0, weight_decay=0.5)
    decayed, gate = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
    optimiser = build_optimiser(settings, [decayed], [gate])
    decayed.grad, gate.grad = torch.zeros(()), torch.zeros(())
    optimiser.step()
    assert (decayed.item(), gate.item()) == (0.5, 1.0)


def test_state_of_another_model_is_refused() -> None:
    network = model()
    optimiser = build_optimiser(SETTINGS["adam"], network.parameters())
    steps(network, optimiser, range(1))
    arrays = optimiser_arrays(optimiser)
    small = nn.Linear(3, 4)
    with pytest.raises(StoreError, match="has parameter 2, but the model has only 2"):
        load_optimiser_arrays(build_optimiser(SETTINGS["adam"], small.parameters()), arrays)
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    with pytest.raises(StoreError, match=r"shape \(4, 3\), the parameter \(5, 3\)"):
        load_optimiser_arrays(build_optimiser(SETTINGS["adam"], other.parameters()), arrays)
