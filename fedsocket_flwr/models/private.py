"""What a private model is: the facts from which it is built, and what training and measuring call.

A private model never leaves its client, so clients of one task may have different ones. It is a plain ``nn.Module`` whose
constructor takes :class:`ModelFacts` first and its own arguments by keyword.

Legend: ``B`` batch, ``C`` classes, ``E`` embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from fedsocket_flwr.errors import ConfigurationError


@dataclass(frozen=True)
class ModelFacts:
    """What a client's task and data say about its private model.

    Attributes
    ----------
    kind
        ``classification`` or ``retrieval``.
    classes
        Number of classes C; 0 for retrieval.
    input_shapes
        Modality -> shape of one input, without the batch: (channels, height, width) of an image in [0, 1], (length,) of a text's
        token ids, the shape of a vector or of a sequence of vectors.
    text_buckets
        Number of token ids of texts, 0 to ``text_buckets - 1``; 0 pads at the end. 0 buckets: texts come as vectors.
    """

    kind: Literal["classification", "retrieval"]
    classes: int
    input_shapes: Mapping[str, tuple[int, ...]]
    text_buckets: int = 0

    def input_shape(self, modality: str) -> tuple[int, ...]:
        """Return the shape of one input of a modality, or raise :class:`ConfigurationError` where the task lacks it."""
        if modality not in self.input_shapes:
            raise ConfigurationError(f"the model reads the modality {modality!r}, the task has {', '.join(self.input_shapes)}")
        return self.input_shapes[modality]

    def require_classes(self) -> int:
        """Return the number of classes, or raise :class:`ConfigurationError` where the task is no classification."""
        if self.kind != "classification":
            raise ConfigurationError(f"the model is a classifier, the task is {self.kind}")
        return self.classes


class ClassificationModel(Protocol):
    """A private model of a classification task."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C) for a mapping from modality to a batch of inputs."""
        ...


@runtime_checkable
class RetrievalModel(Protocol):
    """A private model of a retrieval task; scores are 15 times the cosine of its embeddings, so rows must have length 1."""

    def image_embeddings(self, images: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of images (B, channels, height, width)."""
        ...

    def text_embeddings(self, tokens: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of texts (B, length)."""
        ...


def require_size(name: str, value: int, smallest: int = 1) -> int:
    """Return a constructor's size argument, or raise :class:`ConfigurationError` unless it is a whole number in range."""
    if type(value) is not int or value < smallest:
        raise ConfigurationError(f"{name} must be a whole number of at least {smallest}, found {value!r}")
    return value
