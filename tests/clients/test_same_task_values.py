"""The losses and the teacher of the same-task clients against the paper's formulas, written once more in numpy.

One batch holds all rows and a stage is one epoch, so that the loss that a client reports is that of the models it began with.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fedsocket_flwr.clients.branches import load_module_arrays, new_private, new_q, under
from fedsocket_flwr.clients.same_task import TEACHER, FittedTeacher, SameTaskClient
from fedsocket_flwr.exchange.contract import Array
from fedsocket_flwr.learning.crossfit import group_folds
from tests.clients.driving import first_blocks, labels_of, message, open_client
from tests.toy_runs import same_task_config

ONE_BATCH = {
    "training.warm_up_epochs": 0,
    "training.private.video.batch_size": 1000,
    "training.private.audio+video.batch_size": 1000,
    "training.teaching.cross_fit": 0.7,
    "training.teaching.distil_q": 0.3,
    "training.teaching.distil_private": 0.6,
    "training.teaching.temperature": 3.0,
    "training.teaching.label_smoothing": 0.2,
}
T, ALPHA, DISTIL_Q, DISTIL_PRIVATE, SMOOTHING, CLASSES = 3.0, 0.7, 0.3, 0.6, 0.2, 3


def opened(name: str, settings: Mapping[str, Any] | None = None) -> SameTaskClient:
    client = open_client(name, config=same_task_config(ONE_BATCH | dict(settings or {})))
    assert isinstance(client, SameTaskClient)
    return client


def after_one_round(client: SameTaskClient) -> Mapping[str, float]:
    update, failure = client.train(message(1, 0, first_blocks(client)))
    assert failure == ""
    return update.metrics


def logits_of_q(client: SameTaskClient) -> Array:
    """Return the logits of the Q that arrived for all training rows."""
    q = new_q(client.config, client.facts, client.device)
    load_module_arrays(q, first_blocks(client))
    return client.training.q_table(q)[0].double().numpy()


def logits_of_private(client: SameTaskClient, version: int) -> Array:
    """Return the logits of Private before the first round, or after it."""
    private = new_private(client.config, client.facts, client.device)
    if version:
        load_module_arrays(private, under("private", client.store.load(version).arrays))
    return client.training.private_table(private)[0].double().numpy()


def log_softmax(logits_NC: Array) -> Array:
    found: Array = logits_NC - np.log(np.exp(logits_NC).sum(axis=1, keepdims=True))
    return found


def cross_entropy(logits_NC: Array, labels: Array, smoothing: float = 0.0) -> float:
    target_NC = (1 - smoothing) * np.eye(CLASSES)[labels] + smoothing / CLASSES
    return float(-(target_NC * log_softmax(logits_NC)).sum(axis=1).mean())


def divergence(teacher_NC: Array, student_NC: Array) -> Array:
    teacher, student = log_softmax(teacher_NC / T), log_softmax(student_NC / T)
    found: Array = T**2 * (np.exp(teacher) * (teacher - student)).sum(axis=1)
    return found


def reliable_distillation(teacher_NC: Array, student_NC: Array, labels: Array) -> float:
    probabilities_NC = np.exp(log_softmax(teacher_NC))
    entropy_N = -(probabilities_NC * np.log(probabilities_NC)).sum(axis=1)
    right_N = teacher_NC.argmax(axis=1) == labels
    weight_N = (1 - entropy_N / np.log(CLASSES)) * (0.25 + 0.75 * right_N)
    return float((weight_N * divergence(teacher_NC, student_NC)).sum() / weight_N.sum())


@pytest.mark.parametrize("name", ["donor-1", "donor-2"])
def test_a_donor_s_q_has_the_cross_fitted_loss(name: str) -> None:
    """Eq. 19: plain cross-entropy, and T^2 KL where the out-of-fold teacher is right, a mean over all rows."""
    client = opened(name)
    found = after_one_round(client)["loss.q"]
    labels, q_NC = labels_of(client.data.train), logits_of_q(client)
    teacher_NC = client.store.load_blocks(TEACHER)["logits"].astype(np.float64)
    right_N = teacher_NC.argmax(axis=1) == labels
    assert 0 < right_N.sum() < len(labels)
    expected = cross_entropy(q_NC, labels) + ALPHA * float((right_N * divergence(teacher_NC, q_NC)).mean())
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_recipient_s_q_learns_from_labels_and_its_own_private_of_this_round() -> None:
    client = opened("mlp-1")
    found = after_one_round(client)["loss.q"]
    labels, q_NC = labels_of(client.data.train), logits_of_q(client)
    expected = cross_entropy(q_NC, labels) + DISTIL_Q * reliable_distillation(logits_of_private(client, 1), q_NC, labels)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_recipient_s_q_against_the_global_q_has_nothing_to_learn_yet() -> None:
    """Local Q begins as the global one, so that the distillation of the first batch is zero."""
    client = opened("mlp-1", {"training.teaching.recipient_teacher": "global_q"})
    found = after_one_round(client)["loss.q"]
    assert found == pytest.approx(cross_entropy(logits_of_q(client), labels_of(client.data.train)), rel=1e-5)


@pytest.mark.parametrize("name", ["donor-1", "cnn-1"])
def test_private_learns_from_smoothed_labels_and_the_global_q(name: str) -> None:
    client = opened(name)
    found = after_one_round(client)["loss.private"]
    labels, private_NC = labels_of(client.data.train), logits_of_private(client, 0)
    taught = DISTIL_PRIVATE * reliable_distillation(logits_of_q(client), private_NC, labels)
    assert found == pytest.approx(cross_entropy(private_NC, labels, SMOOTHING) + taught, rel=1e-5)


def test_the_teacher_is_the_bounded_correction_of_models_fitted_on_the_other_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 11: ``Q_prior(v) + 1.5 tanh((r(v, a) - mean r) / 3)``, the mean a class over the rows that r was fitted on."""
    fitted: dict[int, tuple[list[int], FittedTeacher]] = {}
    real = SameTaskClient._fit

    def noting(self: SameTaskClient, fold: int, rows: torch.Tensor) -> FittedTeacher:
        fitted[fold] = (rows.tolist(), real(self, fold, rows))
        return fitted[fold][1]

    monkeypatch.setattr(SameTaskClient, "_fit", noting)
    client = opened("donor-1", {"training.warm_up_epochs": 3})
    after_one_round(client)
    train = client.data.train
    assert train.groups is not None
    folds = group_folds(train.groups, labels_of(train))
    assert sorted(fitted) == [0, 1]
    found = client.store.load_blocks(TEACHER)["logits"]
    for fold, (rows, models) in fitted.items():
        assert rows == np.flatnonzero(folds != fold).tolist()
        held = np.flatnonzero(folds == fold)
        prior, residual = models.prior.double().numpy(), models.residual.double().numpy()
        expected = prior[held] + 1.5 * np.tanh((residual[held] - residual[rows].mean(axis=0)) / 3)
        np.testing.assert_allclose(found[held], expected, rtol=1e-5, atol=1e-6)
        assert np.abs(found[held] - prior[held]).max() < 1.5
    # The folds' models are drawn apart.
    assert not np.allclose(fitted[0][1].prior, fitted[1][1].prior)
