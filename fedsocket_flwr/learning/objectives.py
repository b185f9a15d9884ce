"""What a kind of task means by an output, a target and a loss.

Classification: outputs are logits (B, C), targets are classes. Retrieval: a batch is B image-caption pairs, outputs are score
matrices (B, B), targets say which pairs show the same image. Stages II and III are written once over both.

Legend: ``B`` batch, ``C`` classes, ``N`` rows, ``I`` images, ``T`` texts, ``E`` width of an embedding.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn

from fedsocket_flwr.datasets.corpus import Array, Inputs, Split
from fedsocket_flwr.datasets.pictures import UnitPictures
from fedsocket_flwr.learning import losses
from fedsocket_flwr.learning.crossfit import cross_fitted_distillation
from fedsocket_flwr.learning_settings import TeachingSettings
from fedsocket_flwr.models.predictor import SharedPredictor

SCORE_SCALE = 15.0
"""Scores are 15 x cosine, Private's like Q's (FedSocket v1, A.5)."""
FROZEN_BATCH = 1024
"""Rows at a time where no gradient is needed, at most."""
FROZEN_NUMBERS = 2**24
"""Numbers of Private's input at a time there: 1024 rows of most inputs, 111 pictures of 224 x 224."""

Table = tuple[Tensor, ...]
"""Outputs of a frozen model for all rows: logits, or image and text embeddings."""


class Objective(Protocol):
    """One split of one client, for training or measuring either branch."""

    examples: int

    def targets(self, rows: Tensor) -> Tensor:
        """Return what the outputs of these rows are compared with."""

    def private_outputs(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return Private's outputs for a batch."""

    def q_outputs(self, q: SharedPredictor, rows: Tensor) -> Tensor:
        """Return Q's outputs for a batch."""

    def private_table(self, model: nn.Module) -> Table:
        """Return Private's outputs for all rows, without gradient."""

    def q_table(self, q: SharedPredictor) -> Table:
        """Return Q's outputs for all rows, without gradient."""

    def from_table(self, table: Table, rows: Tensor) -> Tensor:
        """Return a batch of a table's outputs."""

    def label_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the supervised loss."""

    def distillation(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a student against a frozen teacher."""

    def fuse(self, private: Tensor, q: Tensor, gate_logit: Tensor) -> Tensor:
        """Return the fused branch."""


class ClassificationObjective:
    """Label-smoothed cross-entropy and reliability-weighted distillation (FedSocket v1, Eq. 12-15, 17)."""

    def __init__(self, task: str, split: Split, device: torch.device, smoothing: float, temperature: float) -> None:
        self.examples = split.examples
        self._task = task
        self._inputs = _inputs(split.inputs, device)
        self._features = {modality: _tensor(values, device) for modality, values in split.features.items()}
        self._labels = torch.as_tensor(split.labels, device=device)
        self._smoothing = smoothing
        self._temperature = temperature

    def targets(self, rows: Tensor) -> Tensor:
        """Return the classes of a batch."""
        return self._labels[rows]

    def private_outputs(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return Private's logits (B, C)."""
        return cast(Tensor, model({modality: values[rows] for modality, values in self._inputs.items()}))

    def q_outputs(self, q: SharedPredictor, rows: Tensor) -> Tensor:
        """Return Q's logits (B, C)."""
        return q.logits(self._task, {modality: values[rows] for modality, values in self._features.items()})

    def private_table(self, model: nn.Module) -> Table:
        """Return Private's logits (N, C)."""
        at_once = _rows_at_once(self._inputs)
        return (_frozen(model, lambda rows: self.private_outputs(model, rows), self.examples, at_once),)

    def q_table(self, q: SharedPredictor) -> Table:
        """Return Q's logits (N, C)."""
        return (_frozen(q, lambda rows: self.q_outputs(q, rows), self.examples),)

    def from_table(self, table: Table, rows: Tensor) -> Tensor:
        """Return a batch of logits."""
        return table[0][rows]

    def label_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return CE_ls."""
        return losses.smoothed_cross_entropy(outputs, targets, self._smoothing)

    def distillation(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Return RKD (Eq. 14)."""
        return losses.reliable_distillation(student, teacher, targets, self._temperature)

    def fuse(self, private: Tensor, q: Tensor, gate_logit: Tensor) -> Tensor:
        """Return (1 - g) p + g q with the client's learned gate (Eq. 15)."""
        return losses.fused_logits(private, q, gate_logit)


class CrossFittedObjective(ClassificationObjective):
    """What a donor's local Q learns in the same-task protocol: labels, and an out-of-fold teacher (FedSocket v1, Eq. 19)."""

    def distillation(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Return the teacher's term of Eq. 19."""
        return cross_fitted_distillation(student, teacher, targets, self._temperature)


class RetrievalObjective:
    """Multi-positive InfoNCE and symmetric KL of score matrices (FedSocket v1, Eq. 16, 18)."""

    def __init__(self, task: str, split: Split, device: torch.device, fusion_gate: float) -> None:
        self.examples = split.examples
        self._task = task
        self._inputs = _inputs(split.inputs, device)
        self._features = {modality: _tensor(values, device) for modality, values in split.features.items()}
        pairs = torch.as_tensor(split.pairs, device=device)
        self._images, self._texts = pairs[:, 0], pairs[:, 1]
        self._fusion_gate = fusion_gate

    def targets(self, rows: Tensor) -> Tensor:
        """Return the mask (B, B) of pairs that show the same image."""
        images = self._images[rows]
        return losses.positives(images, images)

    def private_outputs(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return Private's scores (B, B)."""
        images_BE: Tensor = model.image_embeddings(self._inputs["image"][self._images[rows]])  # type: ignore[operator]
        texts_BE: Tensor = model.text_embeddings(self._inputs["text"][self._texts[rows]])  # type: ignore[operator]
        return SCORE_SCALE * images_BE @ texts_BE.T

    def q_outputs(self, q: SharedPredictor, rows: Tensor) -> Tensor:
        """Return Q's scores (B, B)."""
        images_BE = q.embeddings(self._task, "image", self._features["image"][self._images[rows]])
        texts_BE = q.embeddings(self._task, "text", self._features["text"][self._texts[rows]])
        return SCORE_SCALE * images_BE @ texts_BE.T

    def private_table(self, model: nn.Module) -> Table:
        """Return Private's embeddings of all images (I, E) and texts (T, E)."""
        images, texts = self._inputs["image"], self._inputs["text"]
        return (
            _frozen(model, lambda rows: model.image_embeddings(images[rows]), len(images), _rows_at_once({"image": images})),  # type: ignore[operator]
            _frozen(model, lambda rows: model.text_embeddings(texts[rows]), len(texts)),  # type: ignore[operator]
        )

    def q_table(self, q: SharedPredictor) -> Table:
        """Return Q's embeddings of all images (I, W) and texts (T, W)."""
        images, texts = self._features["image"], self._features["text"]
        return (
            _frozen(q, lambda rows: q.embeddings(self._task, "image", images[rows]), len(images)),
            _frozen(q, lambda rows: q.embeddings(self._task, "text", texts[rows]), len(texts)),
        )

    def from_table(self, table: Table, rows: Tensor) -> Tensor:
        """Return a batch of scores (B, B)."""
        return SCORE_SCALE * table[0][self._images[rows]] @ table[1][self._texts[rows]].T

    def label_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return MPNCE."""
        return losses.multi_positive_nce(outputs, targets)

    def distillation(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Return symKL."""
        return losses.symmetric_divergence(student, teacher)

    def fuse(self, private: Tensor, q: Tensor, gate_logit: Tensor) -> Tensor:
        """Return (1 - g) S^p + g S^q with the gate of the settings (Eq. 16): only classification learns its gate."""
        return (1 - self._fusion_gate) * private + self._fusion_gate * q


def build_objective(
    kind: Literal["classification", "retrieval"], task: str, split: Split, device: torch.device, settings: TeachingSettings
) -> Objective:
    """Return what a kind of task means over one split, on a device."""
    if kind == "retrieval":
        return RetrievalObjective(task, split, device, settings.retrieval_fusion_gate)
    return ClassificationObjective(task, split, device, settings.label_smoothing, settings.temperature)


class _DecodedRows:
    """Pictures that lie in files: a batch is decoded when it is asked for."""

    def __init__(self, pictures: UnitPictures, device: torch.device) -> None:
        self._pictures, self._device = pictures, device
        self.shape = pictures.shape

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self._pictures[rows.cpu().numpy()]).to(self._device)


def _inputs(arrays: Mapping[str, Inputs], device: torch.device) -> dict[str, Tensor | _DecodedRows]:
    return {
        modality: _DecodedRows(values, device) if isinstance(values, UnitPictures) else _tensor(values, device)
        for modality, values in arrays.items()
    }


def _tensor(values: Array, device: torch.device) -> Tensor:
    # The clients of a process share the memory of a common DEV or TEST; what is mapped read-only is copied.
    return torch.as_tensor(values if values.flags.writeable else values.copy(), device=device)


def _rows_at_once(inputs: Mapping[str, Tensor | _DecodedRows]) -> int:
    """Return how many rows of Private's inputs are taken at a time: what a network keeps of large pictures is large, too."""
    return min(FROZEN_BATCH, max(1, FROZEN_NUMBERS // sum(prod(values.shape[1:]) for values in inputs.values())))


def _frozen(model: nn.Module, outputs: Callable[[Tensor], Tensor], rows: int, at_once: int = FROZEN_BATCH) -> Tensor:
    """Return a frozen model's outputs for all rows, in batches."""
    model.eval()
    with torch.no_grad():
        device = next(model.parameters()).device
        return torch.cat([outputs(batch) for batch in torch.split(torch.arange(rows, device=device), at_once)])


def batches(rows: int, size: int, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Yield one epoch of shuffled row numbers.

    A last batch of one row joins the batch before it: batch normalisation cannot normalise a single row.
    """
    order = torch.randperm(rows, generator=generator).to(device)
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts
