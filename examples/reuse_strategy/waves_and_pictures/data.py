"""Who takes part, and the examples that each makes itself from a seed.

Shape legend: ``B`` examples, ``N`` samples of a wave, ``S`` side of a picture.
"""

import math
import zlib

import torch
from torch import Tensor

from fedsocket_flwr.exchange.contract import Membership

SAMPLES = 32
SIDE = 6
TASKS = {"waves": ("low", "middle", "high"), "pictures": ("row", "column", "diagonal", "blank")}
TEST = "test"
TRAINING = {
    "buoy": ("waves", (40, 40, 0)),
    "radio": ("waves", (20, 30, 50)),
    "camera": ("pictures", (40, 40, 10, 10)),
    "scanner": ("pictures", (15, 25, 40, 40)),
}
"""Client -> its task, and how many examples of each class it holds. The buoy hears no high waves."""
MEMBERS = {client: Membership(client, task, (), sum(counts), counts) for client, (task, counts) in TRAINING.items()}


def training_examples(client: str) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels (B,) of a client."""
    task, counts = TRAINING[client]
    return _draw(task, counts, generator_of("training", client))


def held_out_examples(task: str) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels (B,) that the server measures a task with."""
    return _draw(task, (100,) * len(TASKS[task]), generator_of("test", task))


def generator_of(*words: str | int) -> torch.Generator:
    """Return a source of random numbers of its own for a purpose: the global one belongs to whoever started the process."""
    return torch.Generator().manual_seed(zlib.crc32("/".join(map(str, words)).encode()))


def _draw(task: str, counts: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels_B = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    draw = {"waves": _waves, "pictures": _pictures}[task]
    return draw(labels_B, generator), labels_B


def _waves(labels_B: Tensor, generator: torch.Generator) -> Tensor:
    """Return waves (B, N) of one, two or three periods at any phase, with noise."""
    phases_B = 2 * math.pi * torch.rand(len(labels_B), generator=generator)
    angles_BN = 2 * math.pi * (labels_B + 1)[:, None] * torch.arange(SAMPLES) / SAMPLES + phases_B[:, None]
    return torch.sin(angles_BN) + 0.3 * torch.randn(len(labels_B), SAMPLES, generator=generator)


def _pictures(labels_B: Tensor, generator: torch.Generator) -> Tensor:
    """Return pictures (B, S, S) with one bright row, column or diagonal somewhere, or none, with noise."""
    pictures_BSS = 0.3 * torch.randn(len(labels_B), SIDE, SIDE, generator=generator)
    places_B = torch.randint(SIDE, (len(labels_B),), generator=generator)
    steps = torch.arange(SIDE)
    for picture_SS, label, place in zip(pictures_BSS, labels_B.tolist(), places_B.tolist(), strict=True):
        match TASKS["pictures"][label]:
            case "row":
                picture_SS[place] += 1
            case "column":
                picture_SS[:, place] += 1
            case "diagonal":
                picture_SS[steps, (steps + place) % SIDE] += 1
    return pictures_BSS
