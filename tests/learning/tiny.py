"""A classification and a retrieval client of a few rows, with small models, for the tests of learning."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.learning.objectives import ClassificationObjective, RetrievalObjective
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, TaskShape, initial_predictor

CPU = torch.device("cpu")
WIDTH = 3


class Linear(nn.Module):
    """Logits of vectors; with normalisation where asked."""

    def __init__(self, classes: int = 2, normalised: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if normalised else nn.Identity()
        self.linear = nn.Linear(WIDTH, classes)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.linear(self.norm(inputs["image"]))
        return logits


class Towers(nn.Module):
    """One linear map for each modality."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)

    def image_embeddings(self, images: Tensor) -> Tensor:
        return functional.normalize(self.image(images), dim=1)

    def text_embeddings(self, texts: Tensor) -> Tensor:
        return functional.normalize(self.text(texts), dim=1)


def seeded(make: Any, seed: int = 0, **arguments: Any) -> Any:
    torch.manual_seed(seed)
    return make(**arguments)


def vectors(rows: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def classification_split(labels: list[int]) -> Split:
    images = vectors(len(labels), 1)
    return Split({"image": images}, {"image": vectors(len(labels), 2)}, labels=np.array(labels, dtype=np.int64))


def retrieval_split(images_of_captions: list[int]) -> Split:
    images, texts = max(images_of_captions) + 1, len(images_of_captions)
    pairs = np.array([(image, text) for text, image in enumerate(images_of_captions)], dtype=np.int64)
    return Split(
        {"image": vectors(images, 3), "text": vectors(texts, 4)},
        {"image": vectors(images, 5), "text": vectors(texts, 6)},
        pairs=pairs,
    )


def classification(labels: list[int], smoothing: float = 0.0, temperature: float = 1.0) -> ClassificationObjective:
    return ClassificationObjective("task", classification_split(labels), CPU, smoothing, temperature)


def retrieval(images_of_captions: list[int], fusion_gate: float = 0.5) -> RetrievalObjective:
    return RetrievalObjective("task", retrieval_split(images_of_captions), CPU, fusion_gate)


def q_for(kind: str, classes: int = 2, seed: int = 0) -> SharedPredictor:
    modalities = ("image",) if kind == "classification" else ("image", "text")
    task = TaskShape("task", kind, modalities, classes if kind == "classification" else 0)  # type: ignore[arg-type]
    return initial_predictor(PredictorShape(4, 2, (task,), dict.fromkeys(modalities, WIDTH)), seed)
