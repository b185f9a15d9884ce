"""Who takes part, and the examples that each makes itself from a seed.

Both tasks have few hidden causes, which one matrix spreads over the features: what one task learns of it serves the other.

Shape legend: ``B`` examples, ``D`` features, ``L`` hidden causes, ``C`` classes.
"""

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.exchange.contract import Membership

Examples = tuple[NDArray[np.float32], NDArray[np.int64]]

FEATURES = 12
CAUSES = 3
TASKS = {"fruit": ("apple", "pear", "plum"), "weather": ("rain", "sun")}
TEST = "test"
TRAINING = {
    "farm": ("fruit", (30, 30, 0)),
    "market": ("fruit", (10, 20, 30)),
    "coast": ("weather", (40, 20)),
    "hills": ("weather", (15, 25)),
}
"""Client -> its task, and how many examples of each class it holds. The farm has no plums."""
MEMBERS = {client: Membership(client, task, (), sum(counts), counts) for client, (task, counts) in TRAINING.items()}


def training_examples(client: str) -> Examples:
    """Return the features (B, D) and labels (B,) of a client."""
    task, counts = TRAINING[client]
    return _draw(task, client, counts)


def held_out_examples(task: str) -> Examples:
    """Return the features (B, D) and labels (B,) that the server measures a task with."""
    return _draw(task, TEST, (100,) * len(TASKS[task]))


def _draw(task: str, who: str, counts: tuple[int, ...]) -> Examples:
    spread_LD = _generator("features").standard_normal((CAUSES, FEATURES))
    centres_CL = 1.5 * _generator(task).standard_normal((len(counts), CAUSES))
    labels_B = np.repeat(np.arange(len(counts)), counts)
    generator = _generator(task, who)
    causes_BL = centres_CL[labels_B] + 0.6 * generator.standard_normal((len(labels_B), CAUSES))
    features_BD = causes_BL @ spread_LD + 0.5 * generator.standard_normal((len(labels_B), FEATURES))
    return features_BD.astype(np.float32), labels_B


def _generator(*words: str) -> np.random.Generator:
    return np.random.default_rng(list("/".join(words).encode()))
