"""Values by hand, gradients against float64 and naive formulas, and the places where a finite loss hides a NaN gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsocket_flwr.learning.losses import (
    fused_logits,
    multi_positive_nce,
    positives,
    reliability_weights,
    reliable_distillation,
    smoothed_cross_entropy,
    symmetric_divergence,
)

LN2 = math.log(2)


def leaf(values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def random_scores(rows: int, columns: int, scale: float, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


# ---- Cross-entropy and fusion


def test_smoothed_cross_entropy_by_hand() -> None:
    logits = leaf([[0.0, math.log(3.0)]])  # probabilities 1/4 and 3/4
    loss = smoothed_cross_entropy(logits, torch.tensor([1]), 0.1)
    assert loss.item() == pytest.approx(-0.95 * math.log(0.75) - 0.05 * math.log(0.25))
    loss.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.25 - 0.05, 0.75 - 0.95]], dtype=torch.float64))


def test_fusion_mixes_by_the_sigmoid_of_the_gate_and_the_gate_learns() -> None:
    private, q, gate = leaf([[1.0, 3.0]]), leaf([[5.0, 1.0]]), leaf(0.0)
    fused = fused_logits(private, q, gate)
    torch.testing.assert_close(fused.detach(), torch.tensor([[3.0, 2.0]], dtype=torch.float64))
    fused.sum().backward()
    # d fused / d a = g (1 - g) (q - p), summed over both classes: 0.25 * (4 - 2).
    assert gate.grad is not None
    assert gate.grad.item() == pytest.approx(0.5)
    assert private.grad is not None
    assert private.grad.tolist() == [[0.5, 0.5]]


def test_fusion_takes_branches_of_different_precision() -> None:
    fused = fused_logits(torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3), torch.tensor(0.0))
    assert fused.dtype == torch.float32
    assert fused.unique().tolist() == [0.5]


# ---- Reliability-weighted distillation


def test_reliability_weights_by_hand() -> None:
    quarters = [0.0, math.log(3.0)]
    teacher = torch.tensor([quarters, quarters, [0.0, 0.0], [0.0, 100.0]], dtype=torch.float64)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    confidence = 1 - entropy / LN2
    weights = reliability_weights(teacher, torch.tensor([1, 0, 0, 1]))
    assert weights.tolist() == pytest.approx([confidence, 0.25 * confidence, 0.0, 1.0])


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10, 100, 1000])
@pytest.mark.parametrize("level", [0.0, 0.3, -7.7, 1e4])
def test_a_uniform_teacher_weighs_exactly_nothing(classes: int, level: float) -> None:
    weights = reliability_weights(torch.full((4, classes), level), torch.zeros(4, dtype=torch.int64))
    assert weights.tolist() == [0.0] * 4


def test_a_single_class_weighs_nothing_and_distils_nothing() -> None:
    student, labels = leaf([[2.0], [3.0]]), torch.zeros(2, dtype=torch.int64)
    assert reliability_weights(student, labels).tolist() == [0.0, 0.0]
    loss = reliable_distillation(student, torch.ones(2, 1), labels, 2.0)
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert student.grad.tolist() == [[0.0], [0.0]]


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(2, 12), scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]), seed=st.integers(0, 2**31))
def test_weights_stay_within_zero_and_one(classes: int, scale: float, seed: int) -> None:
    teacher = random_scores(8, classes, scale, seed, torch.float32)
    weights = reliability_weights(teacher, torch.zeros(8, dtype=torch.int64))
    assert not weights.requires_grad
    assert bool(((weights >= 0) & (weights <= 1)).all())


def naive_distillation(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Eq. 12-14 written row by row in probabilities."""
    total, weight_sum = torch.zeros((), dtype=torch.float64), 0.0
    for s, t, y in zip(student, teacher, labels.tolist(), strict=True):
        p = t.softmax(0)
        confidence = 1 + float((p * p.log()).sum()) / math.log(len(t))
        weight = confidence * (0.25 + 0.75 * (int(t.argmax()) == y))
        pt, ps = (t / temperature).softmax(0), (s / temperature).softmax(0)
        total = total + weight * temperature**2 * (pt * (pt.log() - ps.log())).sum()
        weight_sum += weight
    return total / (weight_sum + 1e-8)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_distillation_and_its_gradient_equal_the_equation(temperature: float, classes: int) -> None:
    student, teacher = random_scores(6, classes, 1.0, 1), random_scores(6, classes, 2.0, 2).detach()
    labels = torch.arange(6) % classes
    expected = naive_distillation(student, teacher, labels, temperature)
    (expected_gradient,) = torch.autograd.grad(expected, student)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        s = student.detach().to(dtype).requires_grad_()
        loss = reliable_distillation(s, teacher.to(dtype), labels, temperature)
        (gradient,) = torch.autograd.grad(loss, s)
        assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


def test_distillation_gradient_by_hand() -> None:
    # One row, teacher 3/4 and 1/4, student uniform, T = 1: the weight cancels but for epsilon, and the gradient is s - t.
    student = leaf([[0.0, 0.0]])
    loss = reliable_distillation(student, torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64), torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert student.grad is not None
    assert student.grad[0].tolist() == pytest.approx([-0.25, 0.25], rel=1e-6)


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher = random_scores(4, 3, 1.0, 1), random_scores(4, 3, 1.0, 2)
    reliable_distillation(student, teacher, torch.zeros(4, dtype=torch.int64), 2.0).backward()
    symmetric_divergence(student, teacher).backward()
    assert teacher.grad is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_batch_without_reliable_rows_has_zero_loss_and_zero_gradient(dtype: torch.dtype) -> None:
    student = random_scores(4, 5, 30.0, 3, dtype)
    loss = reliable_distillation(student, torch.full((4, 5), 0.7, dtype=dtype), torch.arange(4), 2.0)
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert student.grad.abs().max().item() == 0.0


def test_an_unreliable_row_does_not_move_the_student() -> None:
    student = random_scores(2, 2, 1.0, 3)
    reliable_distillation(student, torch.tensor([[0.0, 0.0], [0.0, 4.0]]).double(), torch.tensor([0, 1]), 2.0).backward()
    assert student.grad is not None
    assert student.grad[0].tolist() == [0.0, 0.0]
    assert student.grad[1].abs().min().item() > 0


def test_distillation_survives_probabilities_that_underflow() -> None:
    # softmax([0, -100] / 0.05) is [1, 0] in any precision; T^2 KL(uniform || student) = T^2 (2000 / 2 - ln 2).
    student = leaf([[0.0, -100.0]], torch.float32)
    teacher = torch.tensor([[0.0, 1e-2]])  # all but uniform, so that its weight is not 0
    loss = reliable_distillation(student, teacher, torch.tensor([1]), 0.05)
    (gradient,) = torch.autograd.grad(loss, student)
    right = 1 / (1 + math.exp(-0.2))
    entropy = -right * math.log(right) - (1 - right) * math.log(1 - right)
    weight = 1 - (-sum(p * math.log(p) for p in (1 / (1 + math.exp(-1e-2)), 1 / (1 + math.exp(1e-2))))) / LN2
    assert loss.item() == pytest.approx(0.0025 * (2000 * right - entropy) * weight / (weight + 1e-8), rel=2e-2)
    assert gradient[0].tolist() == pytest.approx([0.05 * right, -0.05 * right], rel=2e-2)


# ---- Retrieval


def test_positives_are_pairs_of_the_same_item() -> None:
    mask = positives(torch.tensor([4, 7, 4]), torch.tensor([7, 4]))
    assert mask.tolist() == [[False, True], [True, False], [False, True]]


def test_multi_positive_nce_by_hand() -> None:
    # Rows: scores [0, ln 2, ln 3] give 1/6, 2/6, 3/6; the positives 0 and 2 of row 0 sum to 4/6.
    scores = leaf([[0.0, math.log(2.0), math.log(3.0)], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, False, True], [False, True, False]])
    rows = (-math.log(4 / 6) - math.log(1 / 3)) / 2
    columns = (-math.log(1 / 2) - math.log(1 / 3) - math.log(3 / 4)) / 3
    loss = multi_positive_nce(scores, mask)
    assert loss.item() == pytest.approx((rows + columns) / 2)
    loss.backward()
    assert scores.grad is not None
    # Row 0, column 1: softmax 2/6 over 2 rows; it is no positive there; in its column 2/3 over 3 columns.
    assert scores.grad[0, 1].item() == pytest.approx((2 / 6 / 2 + 2 / 3 / 3) / 2)


def test_nce_of_several_positives_is_not_the_mean_of_single_ones() -> None:
    scores = torch.tensor([[0.0, 50.0]])
    mask = torch.tensor([[True, True]])
    # Either positive found is enough: the row's loss is 0, and the columns' too.
    assert multi_positive_nce(scores, mask).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nce_gradient_equals_float64(scale: float, dtype: torch.dtype) -> None:
    scores = random_scores(6, 6, scale, 5, dtype)
    items = torch.tensor([0, 1, 2, 0, 1, 5])
    loss = multi_positive_nce(scores, positives(items, items))
    (gradient,) = torch.autograd.grad(loss, scores)
    exact = scores.detach().double().requires_grad_()
    expected = multi_positive_nce(exact, positives(items, items))
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-2 if dtype != torch.float32 else 1e-4, atol=1e-5)


def test_nce_of_a_positive_that_underflows() -> None:
    scores = leaf([[0.0, 1000.0], [-1000.0, 0.0]], torch.float32)
    loss = multi_positive_nce(scores, torch.eye(2, dtype=torch.bool))
    loss.backward()
    # Row 0 loses 1000, row 1 nothing; column 0 nothing, column 1 loses 1000.
    assert loss.item() == pytest.approx(500.0)
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-0.25, 0.5], [0.0, -0.25]]


def naive_symmetric(student: Tensor, teacher: Tensor) -> Tensor:
    """Row by row in probabilities, as in the docstring."""
    directions = []
    for s_matrix, t_matrix in ((student, teacher), (student.T, teacher.T)):
        rows = []
        for s_row, t_row in zip(s_matrix, t_matrix, strict=True):
            s, t = s_row.softmax(0), t_row.softmax(0)
            rows.append(((t * (t / s).log()).sum() + (s * (s / t).log()).sum()) / 2)
        directions.append(torch.stack(rows).mean())
    return (directions[0] + directions[1]) / 2


@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_symmetric_divergence_and_its_gradient_equal_the_equation(shape: tuple[int, int]) -> None:
    student, teacher = random_scores(*shape, 2.0, 7), random_scores(*shape, 2.0, 8).detach()
    expected = naive_symmetric(student, teacher)
    (expected_gradient,) = torch.autograd.grad(expected, student)
    loss = symmetric_divergence(student, teacher)
    (gradient,) = torch.autograd.grad(loss, student)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_symmetric_divergence_of_saturated_scores_by_hand() -> None:
    # KL(student || teacher) = ln 2 with gradient 0; KL(teacher || student) = 1000 - ln 2 with gradient s - t = [1/2, -1/2] at
    # scores divided by T = 0.05. One row; every column has one entry and diverges by nothing.
    temperature = 0.05
    student = leaf([[0.0, -100.0]], torch.float32)
    loss = symmetric_divergence(student / temperature, torch.zeros(1, 2))
    loss.backward()
    assert loss.item() == pytest.approx((LN2 + 1000 - LN2) / 4)
    assert student.grad is not None
    assert student.grad[0].tolist() == pytest.approx([0.5 / 4 / temperature, -0.5 / 4 / temperature])


def test_student_as_target_alone_is_ln_two_with_no_gradient() -> None:
    # The difference of the symmetric form and KL(teacher || student) is KL(student || teacher).
    student = leaf([[0.0, -2000.0]])
    teacher = torch.zeros(1, 2, dtype=torch.float64)
    forward = torch.nn.functional.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    reverse = 4 * symmetric_divergence(student, teacher) - forward
    reverse.backward()
    assert reverse.item() == pytest.approx(LN2)
    assert student.grad is not None
    assert student.grad.abs().max().item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("gap", [30.0, 300.0])
def test_symmetric_divergence_with_gaps(gap: float) -> None:
    generator = torch.Generator().manual_seed(9)
    student = (gap * torch.randint(-1, 2, (6, 6), generator=generator)).float().requires_grad_()
    teacher = (gap * torch.randint(-1, 2, (6, 6), generator=generator)).float()
    (gradient,) = torch.autograd.grad(loss := symmetric_divergence(student, teacher), student)
    exact = student.detach().double().requires_grad_()
    (expected_gradient,) = torch.autograd.grad(expected := symmetric_divergence(exact, teacher.double()), exact)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-5)


def test_equal_branches_do_not_diverge() -> None:
    student = random_scores(4, 4, 15.0, 1)
    loss = symmetric_divergence(student, student)
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert student.grad.abs().max().item() == 0.0


# ---- Half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_values_and_gradients_those_of_the_same_scores_in_float64(dtype: torch.dtype) -> None:
    labels, items = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3])
    inputs = random_scores(4, 4, 1.0, 11, torch.float32).detach()
    weights = torch.diag(torch.tensor([30.0, 15.0, 0.0, -30.0])).requires_grad_()
    teacher = 30 * torch.eye(4)

    def losses(scores: Tensor, fixed: Tensor) -> dict[str, Tensor]:
        return {
            "cross_entropy": smoothed_cross_entropy(scores, labels, 0.1),
            "distillation": reliable_distillation(scores, fixed, labels, 2.0),
            "nce": multi_positive_nce(scores, positives(items, items)),
            "symmetric": symmetric_divergence(scores, fixed),
        }

    with torch.autocast("cpu", dtype=dtype):
        scores = inputs @ weights
        assert scores.dtype == dtype
        found = losses(scores, teacher.to(dtype))
    exact = scores.detach().double().requires_grad_()
    for name, expected in losses(exact, teacher.double()).items():
        assert found[name].dtype == torch.float32
        (gradient,) = torch.autograd.grad(found[name], scores, retain_graph=True)
        (expected_gradient,) = torch.autograd.grad(expected, exact, retain_graph=True)
        assert found[name].item() == pytest.approx(expected.item(), rel=1e-5), name
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-2, atol=1e-6, msg=name)
        (parameter_gradient,) = torch.autograd.grad(found[name], weights, retain_graph=True)
        assert bool(parameter_gradient.isfinite().all()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_all_zero_weighting_under_autocast(dtype: torch.dtype) -> None:
    weights = torch.eye(3).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        student = torch.full((2, 3), 30.0) @ weights
        loss = reliable_distillation(student, torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 1]), 0.05)
    loss.backward()
    assert loss.item() == 0.0
    assert weights.grad is not None
    assert weights.grad.abs().max().item() == 0.0
