"""The model, who owns which of its parameters, and how a client learns.

Each task reads its inputs in its own way; what follows is a trunk that all clients train and a head of the task.

Shape legend: ``B`` examples, ``H`` width of the trunk, ``C`` classes.
"""

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedsocket_flwr.exchange.contract import Array, Blocks, Broadcast, Contract, Membership, Owner
from waves_and_pictures.data import SAMPLES, SIDE, TASKS, generator_of, held_out_examples, training_examples

WIDTH = 32
EPOCHS = 10
BATCH = 20
RATE = 5e-3
INPUTS = {"waves": SAMPLES, "pictures": SIDE * SIDE}


class Model(nn.Module):
    """One reader and one head a task, around a trunk for both."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = nn.ModuleDict({task: nn.Linear(width, WIDTH) for task, width in INPUTS.items()})
        self.trunk = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(WIDTH, len(classes)) for task, classes in TASKS.items()})

    def forward(self, task: str, inputs: Tensor) -> Tensor:
        """Return the scores (B, C) of a task's inputs."""
        read_BH: Tensor = self.readers[task](inputs.flatten(1))
        scores_BC: Tensor = self.heads[task](self.trunk(read_BH))
        return scores_BC


def owner_of(name: str) -> Owner:
    """Return who may update a parameter: clients of the task, row by row those that hold the class, or everyone."""
    part, task, *_ = name.split(".")
    match part:
        case "readers":
            return Owner("task", task)
        case "heads":
            return Owner("class_rows", task)
        case _:
            return Owner("everyone")


def initial_arrays() -> ArrayRecord:
    """Return what every run starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return ArrayRecord(Model().state_dict())


CONTRACT = Contract.of(initial_arrays(), owner_of)


def model_of(blocks: Blocks) -> Model:
    """Return a model with these parameters; those that did not come along, since another task owns them, are never executed."""
    model = Model()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in blocks.items()}, strict=False)
    return model


def learn(member: Membership, broadcast: Broadcast) -> dict[str, Array]:
    """Return the blocks after some epochs over a client's examples; what arrived stays as it is."""
    inputs, labels_B = training_examples(member.client)
    model = model_of(broadcast.blocks)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = generator_of("order", member.client, broadcast.round)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels_B), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(model(member.task, inputs[rows]), labels_B[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    after = model.state_dict()
    return {name: after[name].numpy() for name in broadcast.blocks}


@torch.no_grad()
def accuracy(task: str, blocks: Blocks) -> float:
    """Return the share of a task's test examples that are told right."""
    inputs, labels_B = held_out_examples(task)
    return float((model_of(blocks)(task, inputs).argmax(dim=1) == labels_B).float().mean())
