from typing import Any

import pytest

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.client_data import token_modalities
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.methods import shared_shape
from fedsocket_flwr.runs import open_run

TOWER = {"optimiser": "adam", "learning_rate": 0.01}


def task(modalities: list[str], prefix: str, **settings: Any) -> dict[str, Any]:
    clients = [{"name": f"{prefix}{number}", "model": "tests.datasets.vector_model:VectorModel"} for number in (1, 2)]
    return {"dataset": "toy_vectors", "kind": "classification", "modalities": modalities, "clients": clients, **settings}


def configuration(**tasks: Any) -> Configuration:
    interface = {"kind": "precomputed", "width": 8, "norm": None}
    return Configuration.model_validate(
        {
            "run": {"rounds": 3},
            "interfaces": {"audio": interface, "video": interface},
            "tasks": tasks,
            "predictor": {"width": 16, "residual_rank": 4},
            "training": {"private": {"audio+video": TOWER, "audio": TOWER}, "q": {"learning_rate": 0.02}},
        }
    )


def test_tokens_are_pooled_by_attention_on_both_sides(tmp_path: Any) -> None:
    config = configuration(scene=task(["audio", "video"], "scene", options={"rows": 240, "noise": 0.5}))
    shape = shared_shape(config)
    assert shape is not None
    assert shape.token_modalities == {"audio", "video"}
    run = open_run(engines.start(config, tmp_path / "run", "inprocess"))
    # Three classes: Q learns from the tokens, so its adapters are those that the server made.
    assert run.summary["endpoints"]["scene"]["q"]["accuracy"] > 0.6


def test_one_modality_cannot_be_tokens_here_and_vectors_there(tmp_path: Any) -> None:
    import numpy as np

    path = tmp_path / "vectors.npz"
    np.savez(path, audio=np.zeros((40, 8), dtype=np.float32), label=np.arange(40) % 2)
    flat = task(["audio"], "flat") | {"dataset": "table", "path": str(path)}
    assert token_modalities(configuration(flat=flat)) == frozenset()
    with pytest.raises(ConfigurationError, match=r"interfaces\.audio gives tokens for tasks\.deep and vectors for tasks\.flat"):
        token_modalities(configuration(deep=task(["audio"], "deep"), flat=flat))
