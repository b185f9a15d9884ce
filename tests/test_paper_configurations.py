"""The paper's same-task protocols, as shipped: their models' sizes, and two rounds on made features in the documented layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.datasets.feature_files import write_features
from fedsocket_flwr.models.predictor import SharedPredictor, TaskShape, configured_shape
from fedsocket_flwr.models.private import ModelFacts
from fedsocket_flwr.models.registry import build_private_model
from tests.toy_runs import run_quickly

TOKENS = {"meld": {"transcript": 0, "audio": 0}, "cremad": {"video": 8, "audio": 0}, "ucf51": {"video": 8, "audio": 0}}
CLASSES = {"meld": 4, "cremad": 6, "ucf51": 51}
ROWS = {"meld": 480, "cremad": 900, "ucf51": 1020}
# The protocols' clients, models, widths and server as they are; less work for each client.
QUICK = ["run.rounds=2", "training.warm_up_epochs=1"]


def shape_of(config: Configuration, name: str, modality: str) -> tuple[int, ...]:
    width, tokens = config.interfaces[modality].width, TOKENS[name][modality]
    return (tokens, width) if tokens else (width,)


def private_sizes(name: str) -> dict[str, int]:
    """Return the parameters of every private model of a shipped configuration, by the client's model."""
    config = read_configuration(f"paper/{name}")
    sizes = {}
    for _, client in config.clients():
        shapes = {modality: shape_of(config, name, modality) for modality in config.client_modalities(client.name)}
        with torch.random.fork_rng():
            model = build_private_model(client.model, client.arguments, ModelFacts("classification", CLASSES[name], shapes))
        sizes[client.model] = sum(parameter.numel() for parameter in model.parameters())
    return sizes


def q_size(name: str) -> int:
    config = read_configuration(f"paper/{name}")
    shared = config.tasks[name].q_modalities
    tokens = frozenset(modality for modality in shared if TOKENS[name][modality])
    shape = configured_shape(config, [TaskShape(name, "classification", shared, CLASSES[name])], tokens)
    with torch.random.fork_rng():
        return sum(parameter.numel() for parameter in SharedPredictor(shape).parameters())


def test_ucf51_has_the_paper_s_sizes() -> None:
    """FedSocket v1, Table 22: 0.43 M parameters in Private, and 0.17 M in Q."""
    assert private_sizes("ucf51") == {
        model: pytest.approx(430_000, rel=0.1)
        for model in ("attention_pair", "sequence_mlp", "sequence_cnn", "sequence_transformer")
    }
    assert q_size("ucf51") == pytest.approx(170_000, rel=0.1)


def test_the_others_are_near_them_or_smaller() -> None:
    assert all(size == pytest.approx(430_000, rel=0.1) for size in private_sizes("cremad").values())
    assert q_size("cremad") == pytest.approx(170_000, rel=0.1)
    assert q_size("meld") < 80_000


def made(folder: Path, name: str) -> Configuration:
    """Write features that tell their class a little, and return the protocol on them."""
    config = read_configuration(f"paper/{name}")
    generator, rows, classes = np.random.default_rng(0), ROWS[name], CLASSES[name]
    labels = np.arange(rows) % classes
    arrays: dict[str, Any] = {}
    for modality in TOKENS[name]:
        shape = shape_of(config, name, modality)
        means = generator.normal(size=(classes, *shape)).astype(np.float32)
        arrays[modality] = 0.3 * means[labels] + generator.normal(size=(rows, *shape)).astype(np.float32)
    groups = {"group": [f"group{row // classes % 25}" for row in range(rows)]}
    parts = ["test" if row // classes % 5 == 4 else "train" for row in range(rows)]
    write_features(folder, name, [f"class{k}" for k in range(classes)], arrays, labels, groups, parts)
    epochs = [f"training.private.{key}.epochs=1" for key in config.training.private]
    return read_configuration(f"paper/{name}", [*QUICK, *epochs, f"tasks.{name}.path={folder}"])


@pytest.mark.parametrize("name", list(CLASSES))
def test_two_rounds_of_the_protocol(name: str, tmp_path: Path) -> None:
    config = made(tmp_path / "features", name)
    found = run_quickly(config, tmp_path / "run")
    assert all(row["refused"] == {} and row["missing"] == [] for row in found.history)
    assert len(found.test) == len(list(config.clients()))
    betas = set()
    for client, entry in found.test.items():
        assert set(entry["best"]) == set(entry["last"]) == {"private", "q", "joint"}
        if config.role(client) == "recipient":
            betas.add(entry["choices"]["joint.beta"])
        else:
            assert entry["best"]["joint"] == entry["best"]["private"]
    assert len(betas) == 1
    tested = {client: sum(entry["confusion"]["best.joint"]) for client, entry in found.test.items()}
    assert sum(tested.values()) == ROWS[name] // 5
    right = sum(entry["best"]["joint"]["accuracy"] * tested[client] for client, entry in found.test.items() if tested[client])
    assert right / sum(tested.values()) > 1.5 / CLASSES[name]
