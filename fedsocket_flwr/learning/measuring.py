"""A client's three endpoints measured on DEV or TEST: Private, Q and their Joint (FedSocket v1, A.8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.config import EvaluationSettings
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.evaluation.metrics import classification_metrics
from fedsocket_flwr.evaluation.retrieval import retrieval_metrics
from fedsocket_flwr.learning.calibration import choose_mixtures, choose_rho, class_weights, joint_probabilities, mix_scores
from fedsocket_flwr.learning.objectives import SCORE_SCALE, Table

Array = NDArray[Any]
Metrics = dict[str, float]
Choice = Mapping[str, float]

ENDPOINTS = ("private", "q", "joint")


@dataclass(frozen=True)
class Measurement:
    """Metrics by endpoint (absent where the endpoint does not exist), and the choice that Joint was measured with."""

    endpoints: Mapping[str, Metrics]
    choice: Choice

    def flat(self) -> Metrics:
        """Return ``{"joint.accuracy": ..., "joint.rho": ...}``."""
        numbers = {f"{endpoint}.{name}": value for endpoint, found in self.endpoints.items() for name, value in found.items()}
        return numbers | ({f"joint.{name}": value for name, value in self.choice.items()} if "joint" in self.endpoints else {})


class Measure(Protocol):
    """How one kind of task is measured on one split."""

    def default_choice(self) -> Choice:
        """Return the choice of a client that has no DEV."""

    def branch(self, table: Table) -> Array:
        """Return the scores of a branch from a frozen model's table."""

    def joint(self, private: Array, q: Array, choice: Choice) -> Any:
        """Return Joint's scores."""

    def choose(self, private: Array, q: Array) -> Choice:
        """Choose on these scores, which are DEV's."""

    def metrics(self, scores: Any) -> Metrics:
        """Return the metrics of scores."""

    def headline(self, metrics: Metrics) -> float:
        """Return the number by which rounds are compared."""


class ClassificationMeasure:
    """Accuracy and macro F1 of probabilities; Joint weighs Q by class (Eq. 21)."""

    def __init__(self, split: Split, class_counts: Sequence[int], settings: EvaluationSettings) -> None:
        self._labels = np.asarray(split.labels)
        self._counts = np.array(class_counts)
        self._rhos = settings.rhos

    def default_choice(self) -> Choice:
        """Return rho = 1: a class of median support is shared evenly."""
        return {"rho": 1.0}

    def branch(self, table: Table) -> Array:
        """Return probabilities (N, C) in float64."""
        probabilities: Array = table[0].double().softmax(dim=1).cpu().numpy()
        return probabilities

    def joint(self, private: Array, q: Array, choice: Choice) -> Array:
        """Return (1 - w) p + w q."""
        return joint_probabilities(private, q, class_weights(self._counts, choice["rho"]))

    def choose(self, private: Array, q: Array) -> Choice:
        """Choose rho."""
        return {"rho": choose_rho(private, q, self._labels, self._counts, self._rhos).rho}

    def metrics(self, scores: Array) -> Metrics:
        """Return accuracy and macro F1."""
        return classification_metrics(scores, self._labels, len(self._counts))

    def headline(self, metrics: Metrics) -> float:
        """Return the accuracy."""
        return metrics["accuracy"]


class RetrievalMeasure:
    """Recall of scaled cosines in both directions; Joint mixes the score matrices with one weight a direction."""

    def __init__(self, split: Split, settings: EvaluationSettings) -> None:
        pairs = np.asarray(split.pairs)
        self._image_ids = np.arange(len(split.inputs["image"]))
        self._text_ids = np.empty(len(split.inputs["text"]), dtype=np.int64)
        self._text_ids[pairs[:, 1]] = pairs[:, 0]
        self._settings = settings

    def default_choice(self) -> Choice:
        """Return even mixtures."""
        return {"i2t": 0.5, "t2i": 0.5}

    def branch(self, table: Table) -> Array:
        """Return scores (I, T) in float64."""
        images_IE, texts_TE = table[0].double(), table[1].double()
        scores: Array = (SCORE_SCALE * images_IE @ texts_TE.T).cpu().numpy()
        return scores

    def joint(self, private: Array, q: Array, choice: Choice) -> Mapping[str, Array]:
        """Return the mixed scores of each direction."""
        return {direction: mix_scores(private, q, weight) for direction, weight in choice.items()}

    def choose(self, private: Array, q: Array) -> Choice:
        """Choose one weight a direction."""
        settings = self._settings
        chosen = choose_mixtures(private, q, self._image_ids, self._text_ids, settings.mixtures, settings.fold_size)
        return {"i2t": chosen.i2t, "t2i": chosen.t2i}

    def metrics(self, scores: Array | Mapping[str, Array]) -> Metrics:
        """Return the recalls; scores that differ by direction are measured in their own direction only."""
        if not isinstance(scores, Mapping):
            return retrieval_metrics(scores, self._image_ids, self._text_ids, self._settings.fold_size)
        recalls: Metrics = {}
        for direction, matrix in scores.items():
            found = retrieval_metrics(matrix, self._image_ids, self._text_ids, self._settings.fold_size)
            recalls |= {name: value for name, value in found.items() if name.startswith(direction)}
        return recalls | ({"mean_r": float(np.mean(list(recalls.values())))} if recalls else {})

    def headline(self, metrics: Metrics) -> float:
        """Return the mean R@1 of both directions."""
        return (metrics["i2t_r1"] + metrics["t2i_r1"]) / 2


def build_measure(
    kind: Literal["classification", "retrieval"], split: Split, class_counts: Sequence[int], settings: EvaluationSettings
) -> Measure:
    """Return how a kind of task is measured on one split."""
    return RetrievalMeasure(split, settings) if kind == "retrieval" else ClassificationMeasure(split, class_counts, settings)


def measure(how: Measure, private: Table | None, q: Table | None, choice: Choice | None = None) -> Measurement:
    """Measure the endpoints that exist.

    Parameters
    ----------
    how
        The kind of task and its split.
    private, q
        Frozen outputs of the branches; None where a branch does not exist.
    choice
        A frozen choice for Joint; None chooses it on these very scores, which is right on DEV only.
    """
    branches = {name: how.branch(table) for name, table in (("private", private), ("q", q)) if table is not None}
    endpoints = {name: how.metrics(scores) for name, scores in branches.items()}
    if len(branches) < 2:
        return Measurement(endpoints, {})
    frozen = how.choose(branches["private"], branches["q"]) if choice is None else choice
    endpoints["joint"] = how.metrics(how.joint(branches["private"], branches["q"], frozen))
    return Measurement(endpoints, frozen)
