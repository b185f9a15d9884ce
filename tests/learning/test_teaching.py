import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from fedsocket_flwr.errors import DivergenceError
from fedsocket_flwr.learning.teaching import Schedule, Stage, Teacher, train_private, train_q
from tests.learning.tiny import Linear, Towers, classification, q_for, retrieval, seeded
from tests.toy_runs import same_bits

LABELS = [0, 1, 1, 0, 1]
CAPTIONS = [0, 1, 0, 2, 2, 1]


def schedule(stage: Stage = "Private", epochs: int = 2, size: int = 2, seed: int = 0) -> Schedule:
    return Schedule(stage, epochs, size, torch.Generator().manual_seed(seed))


def sgd(*modules: Any, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for m in modules for p in ([m] if isinstance(m, nn.Parameter) else m.parameters())], lr=rate)


def weights(module: nn.Module) -> list[Any]:
    return [value.detach().clone().numpy() for value in module.state_dict().values()]


def same(first: list[Any], second: list[Any]) -> bool:
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def kinds() -> list[Any]:
    return [
        pytest.param(classification(LABELS, 0.1, 2.0), Linear, "classification", id="classification"),
        pytest.param(retrieval(CAPTIONS), Towers, "retrieval", id="retrieval"),
    ]


# --- hand-computed steps ---


def test_one_step_of_stage_one_is_a_step_along_the_gradient_of_the_labels() -> None:
    objective, model = classification([0, 1], smoothing=0.1), seeded(Linear)
    expected = copy.deepcopy(model)
    rows = torch.tensor([0, 1])
    loss = objective.label_loss(objective.private_outputs(expected, rows), objective.targets(rows))
    loss.backward()
    found = train_private(objective, model, sgd(model), schedule(epochs=1, size=2))
    assert found == pytest.approx(loss.item(), rel=1e-6)
    for after, before in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(after, before - 0.1 * before.grad)


def test_stage_two_adds_weighted_distillation_and_fusion() -> None:
    objective, model, q = classification([0, 1], 0.1, 2.0), seeded(Linear), q_for("classification")
    teacher = Teacher(objective.q_table(q), distillation=0.5, fusion=0.25)
    gate = nn.Parameter(torch.zeros(()))
    rows = torch.tensor([0, 1])
    targets, p, t = objective.targets(rows), objective.private_outputs(model, rows), objective.from_table(teacher.table, rows)
    expected = (
        objective.label_loss(p, targets)
        + 0.5 * objective.distillation(p, t, targets)
        + 0.25 * objective.label_loss(0.5 * p + 0.5 * t, targets)
    )
    found = train_private(objective, model, sgd(model, gate), schedule(epochs=1), teacher, gate)
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert gate.item() != 0.0


def test_stage_three_adds_distillation_from_private() -> None:
    objective, model, q = retrieval([0, 1]), seeded(Towers), q_for("retrieval")
    teacher = Teacher(objective.private_table(model), 0.2)
    rows = torch.tensor([0, 1])
    outputs, targets = objective.q_outputs(q, rows), objective.targets(rows)
    expected = objective.label_loss(outputs, targets) + 0.2 * objective.distillation(
        outputs, objective.from_table(teacher.table, rows), targets
    )
    found = train_q(objective, q, sgd(q), schedule("Q", epochs=1), teacher)
    assert found == pytest.approx(expected.item(), rel=1e-5)


# --- who learns and who does not ---


@pytest.mark.parametrize(("objective", "make", "kind"), kinds())
def test_stage_two_leaves_q_alone_and_stage_three_leaves_private_alone(objective: Any, make: Any, kind: str) -> None:
    private, q, gate = seeded(make), q_for(kind), nn.Parameter(torch.zeros(()))
    q_before = weights(q)
    train_private(objective, private, sgd(private, gate), schedule(), Teacher(objective.q_table(q), 0.5, 0.25), gate)
    assert same(weights(q), q_before)
    assert all(parameter.grad is None for parameter in q.parameters())
    for parameter in private.parameters():
        parameter.grad = None
    private_before = weights(private)
    train_q(objective, q, sgd(q), schedule("Q"), Teacher(objective.private_table(private), 0.2))
    assert same(weights(private), private_before)
    assert all(parameter.grad is None for parameter in private.parameters())
    assert not same(weights(q), q_before)


@pytest.mark.parametrize(("objective", "make", "kind"), kinds())
def test_a_teacher_of_weight_zero_leaves_the_bits_of_no_teacher(objective: Any, make: Any, kind: str) -> None:
    q = q_for(kind)
    alone, taught = seeded(make), seeded(make)
    train_private(objective, alone, sgd(alone), schedule())
    gate = nn.Parameter(torch.zeros(()))
    train_private(objective, taught, sgd(taught, gate), schedule(), Teacher(objective.q_table(q), 0.0, 0.0), gate)
    assert same(weights(taught), weights(alone))
    assert gate.item() == 0.0
    alone_q, taught_q = q_for(kind), q_for(kind)
    train_q(objective, alone_q, sgd(alone_q), schedule("Q"), None)
    train_q(objective, taught_q, sgd(taught_q), schedule("Q"), Teacher(objective.private_table(seeded(make)), 0.0))
    assert same(weights(taught_q), weights(alone_q))


@pytest.mark.parametrize(("objective", "make", "kind"), kinds())
def test_a_teacher_changes_its_student_and_another_teacher_changes_it_otherwise(objective: Any, make: Any, kind: str) -> None:
    students = []
    for seed in (None, 1, 2):
        student = seeded(make)
        teacher = None if seed is None else Teacher(objective.q_table(q_for(kind, seed=seed)), 0.5)
        train_private(objective, student, sgd(student), schedule(), teacher)
        students.append(weights(student))
    assert not any(same(students[i], students[j]) for i in range(3) for j in range(i))


# --- batches, epochs, modes ---


def test_training_is_a_function_of_the_generator_and_not_of_torchs_own() -> None:
    objective = classification(LABELS)
    found = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        model = seeded(Linear)
        torch.manual_seed(noise)
        train_private(objective, model, sgd(model), schedule(seed=seed))
        found.append(weights(model))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_no_epochs_change_nothing() -> None:
    model = seeded(Linear)
    before = weights(model)
    assert train_private(classification(LABELS), model, sgd(model), schedule("warm-up", epochs=0)) == 0.0
    assert same(weights(model), before)


def test_the_loss_is_the_mean_over_rows_whatever_the_size_of_the_batches() -> None:
    objective = classification([0, 1, 1, 0, 1])
    model = seeded(Linear)
    whole = train_private(objective, model, sgd(model, rate=1e-30), schedule(epochs=1, size=5))
    parts = train_private(objective, model, sgd(model, rate=1e-30), schedule(epochs=1, size=3))
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(("labels", "size"), [([1], 4), ([0, 1, 1], 1)], ids=["one row", "batches of one"])
def test_a_single_row_under_batch_normalisation_uses_the_running_statistics(labels: list[int], size: int) -> None:
    model = seeded(Linear, normalised=True)
    before = weights(model)
    loss = train_private(classification(labels), model, sgd(model), schedule(size=size))
    assert math.isfinite(loss)
    assert not same(weights(model), before)
    assert model.training
    assert not model.norm.training
    assert torch.equal(model.norm.running_mean, torch.zeros(3))


def test_a_remainder_of_one_row_under_batch_normalisation_trains_with_the_batch_before_it() -> None:
    model = seeded(Linear, normalised=True)
    assert math.isfinite(train_private(classification([0, 1, 1, 0, 1]), model, sgd(model), schedule(size=2)))
    assert model.norm.training
    assert not torch.equal(model.norm.running_mean, torch.zeros(3))


def test_normalisation_comes_back_to_training_after_a_table_was_made() -> None:
    objective, model = classification(LABELS), seeded(Linear, normalised=True)
    objective.private_table(model)
    train_private(objective, model, sgd(model), schedule())
    assert model.norm.training


# --- divergence ---


class Broken(Linear):
    def forward(self, inputs):  # type: ignore[no-untyped-def]
        return super().forward(inputs) * float("nan")


@pytest.mark.parametrize("stage", ["warm-up", "Private"])
def test_a_loss_that_is_nan_names_the_stage_and_the_epoch(stage: Stage) -> None:
    model = seeded(Broken)
    with pytest.raises(DivergenceError, match=f"the loss of {stage} became nan in epoch 1 of 2"):
        train_private(classification(LABELS), model, sgd(model), schedule(stage))


def test_inputs_that_are_nan_stop_q_in_its_stage() -> None:
    objective = classification(LABELS)
    objective._features["image"][0, 0] = float("nan")
    q = q_for("classification")
    with pytest.raises(DivergenceError, match="the loss of Q became nan"):
        train_q(objective, q, sgd(q), schedule("Q"), None)


def test_a_teacher_that_is_nan_is_noticed_and_one_of_weight_zero_is_not_read() -> None:
    objective, q = classification(LABELS), q_for("classification")
    broken = (torch.full((5, 2), float("nan")),)
    with pytest.raises(DivergenceError, match="the loss of Q"):
        train_q(objective, q, sgd(q), schedule("Q"), Teacher(broken, 0.2))
    q = q_for("classification")
    assert math.isfinite(train_q(objective, q, sgd(q), schedule("Q"), Teacher(broken, 0.0)))


def test_weights_that_the_last_step_breaks_are_noticed_before_anyone_keeps_them() -> None:
    """One batch, one epoch: the only loss was finite, and no later one would tell."""
    objective, model = classification([0, 1]), seeded(Linear)
    optimiser = sgd(model, rate=math.inf)
    with pytest.raises(DivergenceError, match=r"Private ended with weights that are not finite, the first is 'linear\.weight'"):
        train_private(objective, model, optimiser, schedule(epochs=1, size=2))
