from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fedsocket_flwr
from fedsocket_flwr.config import Configuration, TaskSettings
from fedsocket_flwr.datasets.corpus import Corpus

CONFIGS = Path(fedsocket_flwr.__file__).parent / "configs"


def shipped(name: str, **sections: Any) -> Configuration:
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    return Configuration.model_validate(settings | sections)


@pytest.fixture(scope="session")
def toy() -> Configuration:
    return shipped("toy")


@pytest.fixture(scope="session")
def demo() -> Configuration:
    return shipped("demo")


@pytest.fixture
def make_task() -> Callable[..., TaskSettings]:
    def make(clients: int | list[dict[str, Any]] = 2, kind: str = "classification", **settings: Any) -> TaskSettings:
        if isinstance(clients, int):
            clients = [{"name": f"c{k}", "model": "m"} for k in range(clients)]
        modalities = ["image", "text"] if kind == "retrieval" else ["image"]
        return TaskSettings.model_validate(
            {"dataset": "toy_images", "kind": kind, "modalities": modalities, "clients": clients} | settings
        )

    return make


@pytest.fixture
def labelled() -> Callable[..., Corpus]:
    def make(counts: list[int], **more: Any) -> Corpus:
        labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        images = np.zeros((len(labels), 2, 2), dtype=np.uint8)
        return Corpus("made", "classification", {"image": images}, labels, tuple("abcdefghij"[: len(counts)]), **more)

    return make
