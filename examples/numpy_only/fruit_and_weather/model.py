"""The model as named arrays, who owns which, and how a client learns.

Scores are ``x @ reading @ weights.T + bias``. Both tasks share the reading; weights and bias are a task's own, and the row of a
class belongs to those clients of the task that hold the class.

Shape legend: ``B`` examples, ``D`` features, ``H`` width of the reading, ``C`` classes.
"""

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedsocket_flwr.exchange.contract import Array, Blocks, Broadcast, Contract, Membership, Owner
from fruit_and_weather.data import FEATURES, TASKS, held_out_examples, training_examples

WIDTH = 4
STEPS = 10
RATE = 0.1


def initial_arrays() -> ArrayRecord:
    """Return what every run starts from."""
    reading_DH = 0.2 * np.random.default_rng(1).standard_normal((FEATURES, WIDTH)).astype(np.float32)
    blocks = {"reading": reading_DH}
    for task, classes in TASKS.items():
        blocks[f"{task}.weights"] = np.zeros((len(classes), WIDTH), np.float32)
        blocks[f"{task}.bias"] = np.zeros(len(classes), np.float32)
    return ArrayRecord({name: FlowerArray(array) for name, array in blocks.items()})


def owner_of(name: str) -> Owner:
    """Return who may update a block."""
    return Owner("everyone") if name == "reading" else Owner("class_rows", name.split(".")[0])


CONTRACT = Contract.of(initial_arrays(), owner_of)


def learn(member: Membership, broadcast: Broadcast) -> dict[str, Array]:
    """Return the blocks after some steps down the gradient of a client's cross-entropy; what arrived stays as it is."""
    features_BD, labels_B = training_examples(member.client)
    reading_DH, weights_CH, bias_C = (array.copy() for array in broadcast.blocks.values())
    truth_BC = np.eye(len(bias_C), dtype=np.float32)[labels_B]
    for _ in range(STEPS):
        read_BH = features_BD @ reading_DH
        wrong_BC = (_softmax(read_BH @ weights_CH.T + bias_C) - truth_BC) / np.float32(len(labels_B))
        reading_DH -= RATE * features_BD.T @ (wrong_BC @ weights_CH)
        weights_CH -= RATE * wrong_BC.T @ read_BH
        bias_C -= RATE * wrong_BC.sum(axis=0)
    return dict(zip(broadcast.blocks, (reading_DH, weights_CH, bias_C), strict=True))


def accuracy(task: str, blocks: Blocks) -> float:
    """Return the share of a task's test examples that are told right."""
    features_BD, labels_B = held_out_examples(task)
    scores_BC = features_BD @ blocks["reading"] @ blocks[f"{task}.weights"].T + blocks[f"{task}.bias"]
    return float((scores_BC.argmax(axis=1) == labels_B).mean())


def _softmax(scores_BC: NDArray[np.float32]) -> NDArray[np.float32]:
    powers_BC: NDArray[np.float32] = np.exp(scores_BC - scores_BC.max(axis=1, keepdims=True))
    powers_BC /= powers_BC.sum(axis=1, keepdims=True)
    return powers_BC
