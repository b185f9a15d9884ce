"""A client's three endpoints measured on DEV or TEST: Private, Q and their Joint (FedSocket v1, A.8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.evaluation.metrics import classification_metrics, confusion, metrics_from_confusion
from fedsocket_flwr.evaluation.retrieval import retrieval_metrics
from fedsocket_flwr.learning.calibration import (
    choose_beta,
    choose_mixtures,
    choose_rho,
    class_weights,
    joint_probabilities,
    mix_probabilities,
    mix_scores,
)
from fedsocket_flwr.learning.objectives import SCORE_SCALE, Table
from fedsocket_flwr.protocol_settings import EvaluationSettings

Array = NDArray[Any]
Metrics = dict[str, float]
Choice = Mapping[str, float]

ENDPOINTS = ("private", "q", "joint")


@dataclass(frozen=True)
class Measurement:
    """What was measured of one model on one split.

    Attributes
    ----------
    endpoints
        Metrics by endpoint; an endpoint that does not exist is absent. ``joint@NAME`` is Joint with a candidate choice.
    choices
        Endpoint -> the choice that Joint was measured with.
    counts
        Endpoint -> confusion matrix, row by row, where the rule pools counts over clients.
    """

    endpoints: Mapping[str, Metrics]
    choices: Mapping[str, Choice] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def flat(self) -> Metrics:
        """Return ``{"joint.accuracy": ..., "joint.rho": ...}`` for the three endpoints."""
        numbers: Metrics = {}
        for endpoint in ENDPOINTS:
            for found in (self.endpoints.get(endpoint, {}), self.choices.get(endpoint, {})):
                numbers |= {f"{endpoint}.{name}": value for name, value in found.items()}
        return numbers


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

    def candidates(self) -> Mapping[str, Choice]:
        """Return the choices among which the server decides, by name; empty where the client decides alone."""

    def counts(self, scores: Any) -> Sequence[int]:
        """Return the confusion matrix, row by row, where counts are pooled over clients; else nothing."""

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

    def candidates(self) -> Mapping[str, Choice]:
        """Return none: each client decides alone."""
        return {}

    def counts(self, scores: Any) -> Sequence[int]:
        """Return none: clients are averaged, not pooled."""
        return ()

    def metrics(self, scores: Array) -> Metrics:
        """Return accuracy and macro F1."""
        return classification_metrics(scores, self._labels, len(self._counts))

    def headline(self, metrics: Metrics) -> float:
        """Return the accuracy."""
        return metrics["accuracy"]


class CountedMeasure(ClassificationMeasure):
    """Accuracy, macro F1 and UAR, with the confusion matrices from which groups of clients are measured together."""

    def metrics(self, scores: Array) -> Metrics:
        """Return accuracy, macro F1 and UAR."""
        return metrics_from_confusion(self.confusion(scores))

    def counts(self, scores: Array) -> Sequence[int]:
        """Return the confusion matrix, row by row."""
        return tuple(int(count) for count in self.confusion(scores).ravel())

    def confusion(self, scores: Array) -> Array:
        """Return the counts of label and prediction (C, C)."""
        return confusion(scores, self._labels, len(self._counts))


class PooledMeasure(CountedMeasure):
    """The same-task protocol: Joint is ``(1 - beta) p + beta q`` with one beta for the run, chosen by the server.

    A client reports its DEV confusion matrix at every candidate; the beta of its own best DEV stands in its history. A donor's
    Joint is its Private: beta is 0 and there is nothing to choose.
    """

    def __init__(self, split: Split, class_counts: Sequence[int], settings: EvaluationSettings, donor: bool) -> None:
        super().__init__(split, class_counts, settings)
        self._betas = (0.0,) if donor else settings.betas
        self._donor = donor

    def default_choice(self) -> Choice:
        """Return an even mixture, and nothing of Q for a donor."""
        return {"beta": 0.0 if self._donor else 0.5}

    def joint(self, private: Array, q: Array, choice: Choice) -> Array:
        """Return (1 - beta) p + beta q."""
        return mix_probabilities(private, q, choice["beta"])

    def choose(self, private: Array, q: Array) -> Choice:
        """Return the beta of these rows alone."""
        pooled = {beta: self.confusion(mix_probabilities(private, q, beta)) for beta in self._betas}
        return {"beta": choose_beta(pooled)}

    def candidates(self) -> Mapping[str, Choice]:
        """Return every beta, but for a donor none."""
        return {} if self._donor else {str(beta): {"beta": beta} for beta in self._betas}


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

    def candidates(self) -> Mapping[str, Choice]:
        """Return none: each client decides alone."""
        return {}

    def counts(self, scores: Any) -> Sequence[int]:
        """Return none: each client decides alone."""
        return ()

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
    kind: Literal["classification", "retrieval"],
    split: Split,
    class_counts: Sequence[int],
    settings: EvaluationSettings,
    counted: bool = False,
) -> Measure:
    """Return how a kind of task is measured on one split; ``counted`` keeps a classifier's confusion matrices."""
    if kind == "retrieval":
        return RetrievalMeasure(split, settings)
    return (CountedMeasure if counted else ClassificationMeasure)(split, class_counts, settings)


def measure(how: Measure, private: Table | None, q: Table | None, choice: Choice | None = None) -> Measurement:
    """Measure the endpoints that exist.

    Parameters
    ----------
    how
        The kind of task and its split.
    private, q
        Frozen outputs of the branches; None where a branch does not exist.
    choice
        A frozen choice for Joint; None chooses it on these very scores, which is right on DEV only, and measures the candidates
        of a choice that belongs to the federation.
    """
    scores: dict[str, Any] = {name: how.branch(table) for name, table in (("private", private), ("q", q)) if table is not None}
    choices: dict[str, Choice] = {}
    if len(scores) == 2:
        choices["joint"] = how.choose(scores["private"], scores["q"]) if choice is None else choice
        if choice is None:
            choices |= {f"joint@{name}": candidate for name, candidate in how.candidates().items()}
        scores |= {endpoint: how.joint(scores["private"], scores["q"], chosen) for endpoint, chosen in choices.items()}
    counts = {endpoint: how.counts(found) for endpoint, found in scores.items()}
    return Measurement({endpoint: how.metrics(found) for endpoint, found in scores.items()}, choices, counts)
