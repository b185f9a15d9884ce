import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.errors import DataError
from fedsocket_flwr.learning.crossfit import cross_fit, group_folds, out_of_fold_logits
from fedsocket_flwr.learning.objectives import CrossFittedObjective


def cross_fitted_loss(student: Tensor, teacher: Tensor, labels: Tensor, alpha: float, temperature: float) -> Tensor:
    """Return Eq. 19 as a donor's local Q is trained: labels, and alpha times the teacher's term."""
    split = Split({}, {}, labels=labels.numpy())
    objective = CrossFittedObjective("task", split, torch.device("cpu"), smoothing=0.0, temperature=temperature)
    return objective.label_loss(student, labels) + alpha * objective.distillation(student, teacher, labels)


def folds_by_group(groups: list[str], labels: list[int], folds: int = 2) -> dict[str, int]:
    dealt = group_folds(groups, labels, folds)
    return dict(zip(groups, dealt.tolist(), strict=True))


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


class TestGroupFolds:
    def test_by_hand(self) -> None:
        # Rows: d 4, b 3, a 2, c 2, of one class, so that each fold's share of rows decides.
        # d to fold 0; b to fold 1; a: 4 > 3, to fold 1 (5); c: 4 < 5, to fold 0 (6).
        groups = ["a"] * 2 + ["b"] * 3 + ["c"] * 2 + ["d"] * 4
        assert folds_by_group(groups, [0] * 11) == {"d": 0, "b": 1, "a": 1, "c": 0}

    def test_classes_are_spread_where_rows_alone_would_not(self) -> None:
        # Equal groups are dealt in the order of their names; by rows alone they would go to 0 1 0 1 whatever their classes.
        assert folds_by_group(["a", "b", "c", "d"], [0, 0, 1, 1]) == {"a": 0, "b": 1, "c": 0, "d": 1}
        assert folds_by_group(["a", "b", "c", "d"], [0, 1, 0, 1]) == {"a": 0, "b": 1, "c": 1, "d": 0}

    def test_a_class_of_one_group_is_absent_from_a_fold(self) -> None:
        assert folds_by_group(["a", "b"], [0, 1]) == {"a": 0, "b": 1}

    def test_three_folds(self) -> None:
        groups = [name for name in "abcdef" for _ in range(2)]
        dealt = folds_by_group(groups, [0, 1] * 6, folds=3)
        assert sorted(dealt.values()) == [0, 0, 1, 1, 2, 2]

    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), min_size=1, max_size=60),
        folds=st.integers(2, 3),
        seed=st.integers(0, 99),
    )
    def test_properties(self, rows: list[tuple[str, int]], folds: int, seed: int) -> None:
        groups, labels = [row[0] for row in rows], [row[1] for row in rows]
        if len(set(groups)) < folds:
            with pytest.raises(DataError):
                group_folds(groups, labels, folds)
            return
        dealt = group_folds(groups, labels, folds)
        assert dealt.dtype == np.int64
        assert set(dealt.tolist()) == set(range(folds)), "every fold has a group"
        assert all(len(set(dealt[np.array(groups) == group].tolist())) == 1 for group in groups), "no group is cut"
        order = np.random.default_rng(seed).permutation(len(rows))
        shuffled = group_folds(np.array(groups)[order], np.array(labels)[order], folds)
        assert shuffled.tolist() == dealt[order].tolist(), "the order of the rows plays no part"

    def test_many_groups_come_out_even(self) -> None:
        generator = np.random.default_rng(0)
        groups = np.repeat(np.arange(40), generator.integers(3, 12, 40))
        # Each group has a bias of its own towards some classes.
        weights = generator.dirichlet([0.5] * 6, 40)
        labels = np.array([generator.choice(6, p=weights[group]) for group in groups])
        dealt = group_folds(groups, labels)
        counts = np.array([np.bincount(labels[dealt == fold], minlength=6) for fold in (0, 1)])
        assert bool((np.abs(counts[0] - counts[1]) <= 0.15 * counts.sum(axis=0)).all())
        assert abs(int(counts[0].sum() - counts[1].sum())) <= 0.05 * len(labels)

    @pytest.mark.parametrize(
        ("groups", "folds", "message"),
        [
            (["dialogue-7"] * 3, 2, r"at least 2 groups of training rows, found 1: 'dialogue-7'"),
            (["a", "b", "a"], 3, r"at least 3 groups.*found 2: 'a', 'b'"),
            ([], 2, r"at least 2 groups.*found 0: none"),
        ],
    )
    def test_too_few_groups_are_named(self, groups: list[str], folds: int, message: str) -> None:
        with pytest.raises(DataError, match=message):
            group_folds(groups, [0] * len(groups), folds)


class TestOutOfFoldLogits:
    def test_by_hand(self) -> None:
        teacher = out_of_fold_logits(double([[1.0, -2.0]]), double([[4.0, 0.5]]), torch.tensor([1.0, 2.0], dtype=torch.float64))
        expected = [1 + 1.5 * math.tanh(1.0), -2 + 1.5 * math.tanh(-0.5)]
        assert teacher.tolist() == [pytest.approx(expected)]

    def test_the_correction_is_bounded_and_nothing_at_the_mean(self) -> None:
        prior, far = double([[0.25, 0.5]]), double([[1e9, -1e9]])
        centre = torch.zeros(2, dtype=torch.float64)
        assert out_of_fold_logits(prior, far, centre).tolist() == [[1.75, -1.0]]
        assert torch.equal(out_of_fold_logits(prior, centre.expand(1, 2), centre), prior)


class TestCrossFittedLoss:
    """Two rows, two classes, T = 2: row 0's teacher is right, row 1's is wrong."""

    STUDENT = ((0.0, 0.0), (1.0, -1.0))
    TEACHER = ((2 * math.log(3.0), 0.0), (0.0, 5.0))
    LABELS = torch.tensor([0, 0])

    def loss(self, student: Tensor, alpha: float, teacher: Tensor | None = None) -> Tensor:
        return cross_fitted_loss(
            student, double(list(map(list, self.TEACHER))) if teacher is None else teacher, self.LABELS, alpha, 2.0
        )

    def test_value_by_hand(self) -> None:
        # Row 0: the teacher at T = 2 is (3/4, 1/4), the student (1/2, 1/2). Row 1 counts as 0 in a mean over two rows.
        divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
        labels = (math.log(2) + math.log(1 + math.exp(-2))) / 2
        value = self.loss(double([list(row) for row in self.STUDENT]), alpha=0.7)
        assert value.item() == pytest.approx(labels + 0.7 * 4 * divergence / 2, rel=1e-12)

    def test_gradient_by_hand(self) -> None:
        # d/ds of CE: (softmax - onehot) / B. Of T^2 KL / B: T (student_T - teacher_T) / B.
        student = double([list(row) for row in self.STUDENT]).requires_grad_()
        teacher = double([list(row) for row in self.TEACHER]).requires_grad_()
        self.loss(student, 0.7, teacher).backward()  # type: ignore[no-untyped-call]
        wrong = 1 / (1 + math.exp(2))
        taught = 0.7 * 2 * (0.5 - 0.75) / 2
        expected = [[-0.25 + taught, 0.25 - taught], [-wrong / 2, wrong / 2]]
        assert student.grad is not None
        torch.testing.assert_close(student.grad, double(expected), rtol=1e-12, atol=1e-15)
        assert teacher.grad is None

    def test_gradient_against_differences(self) -> None:
        generator = torch.Generator().manual_seed(0)
        student, teacher = (torch.randn(6, 4, dtype=torch.float64, generator=generator) for _ in range(2))
        labels = torch.tensor([0, 1, 2, 3, 0, 1])
        assert 0 < int((teacher.argmax(dim=1) == labels).sum()) < 6
        assert torch.autograd.gradcheck(lambda s: cross_fitted_loss(s, teacher, labels, 1.3, 3.0), student.requires_grad_())

    def test_without_weight_or_without_a_right_row_it_is_cross_entropy(self) -> None:
        student = double([list(row) for row in self.STUDENT])
        expected = functional.cross_entropy(student, self.LABELS)
        assert torch.equal(self.loss(student, 0.0), expected)
        assert torch.equal(self.loss(student, 1.0, double([[0.0, 1.0], [0.0, 1.0]])), expected)

    def test_half_precision_is_computed_in_float32(self) -> None:
        student, teacher = torch.tensor([[0.0, 40.0]]).half(), torch.tensor([[30.0, 0.0]]).half()
        loss = cross_fitted_loss(student, teacher, torch.tensor([0]), 1.0, 2.0)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(40 + 4 * 20, rel=1e-4)


class Memory:
    """The opposite of generalisation: for each class, what was seen of it; a row that was seen is known by heart.

    The prior scores classes by their counts among the rows it was given; the residual adds the row's own label where it knows the
    row, and the distance to the features that it saw elsewhere.
    """

    def __init__(self, rows: Tensor, features: Tensor, labels: Tensor, classes: int) -> None:
        self.known = {int(row): int(labels[row]) for row in rows}
        self.counts = torch.bincount(labels[rows], minlength=classes).double()
        sums = torch.zeros(classes, features.shape[1], dtype=torch.float64).index_add_(0, labels[rows], features[rows])
        self.means = sums / self.counts.clamp(min=1).unsqueeze(1)
        self.features = features

    def prior_logits(self, rows: Tensor) -> Tensor:
        return (1 + self.counts).log().expand(len(rows), -1)

    def residual_logits(self, rows: Tensor) -> Tensor:
        logits = -torch.cdist(self.features[rows], self.means)
        for position, row in enumerate(rows.tolist()):
            if row in self.known:
                logits[position, self.known[row]] += 100
        return logits


class TestCrossFit:
    GROUPS = ("ann", "ann", "ann", "bob", "bob", "cid", "cid", "cid", "dot", "dot")
    LABELS = (0, 1, 0, 1, 1, 0, 1, 1, 0, 0)

    def features(self) -> Tensor:
        return torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def teacher(self, features: Tensor, labels: Tensor, leak: bool = False) -> Tensor:
        def fit(fold: int, rows: Tensor) -> Memory:
            return Memory(torch.arange(10) if leak else rows, features, labels, 3)

        return cross_fit(self.GROUPS, labels.numpy(), fit)

    def rows_of(self, group: str) -> list[int]:
        return [row for row, name in enumerate(self.GROUPS) if name == group]

    def test_by_hand(self) -> None:
        """Residuals are the row's number; the centre is their mean over the fitted rows; the prior tells the fold."""
        asked: list[tuple[int, list[int]]] = []

        class Numbers:
            def __init__(self, fold: int) -> None:
                self.fold = fold

            def prior_logits(self, rows: Tensor) -> Tensor:
                return torch.full((len(rows), 2), 10.0 * self.fold)

            def residual_logits(self, rows: Tensor) -> Tensor:
                return torch.stack([rows.double(), -rows.double()], dim=1).requires_grad_()

        def fit(fold: int, rows: Tensor) -> Numbers:
            asked.append((fold, rows.tolist()))
            return Numbers(fold)

        # Equal groups: a to fold 0, b to fold 1.
        teacher = cross_fit(["b", "a", "b", "a"], [0, 0, 0, 0], fit)
        assert asked == [(0, [0, 2]), (1, [1, 3])]
        assert not teacher.requires_grad
        # Fold 0 (rows 1, 3) is centred by rows 0 and 2: mean 1. Fold 1 (rows 0, 2) by rows 1 and 3: mean 2.
        gap = {row: 1.5 * math.tanh((row - centre) / 3) for row, centre in {0: 2, 1: 1, 2: 2, 3: 1}.items()}
        expected = [[10 + gap[0], 10 - gap[0]], [gap[1], -gap[1]], [10 + gap[2], 10 - gap[2]], [gap[3], -gap[3]]]
        torch.testing.assert_close(teacher, double(expected))

    @pytest.mark.parametrize("group", ["ann", "bob", "cid", "dot"])
    def test_nothing_planted_in_a_group_reaches_its_own_teacher(self, group: str) -> None:
        features, labels, rows = self.features(), torch.tensor(self.LABELS), self.rows_of(group)
        before = self.teacher(features, labels)
        # The same histogram, so that groups are dealt alike; the label of every row, where it can, another one.
        planted = labels.clone()
        planted[rows] = labels[rows].roll(1)
        assert torch.equal(self.teacher(features, planted)[rows], before[rows])

    def test_a_tell_tale_label_reaches_the_others_teacher_only(self) -> None:
        """Two groups are dealt alike whatever their labels, so one of them may carry a class that nobody else has."""
        groups, features, plain = ["ann"] * 3 + ["bob"] * 2, self.features(), torch.tensor([0, 1, 0, 1, 0])
        planted = torch.tensor([2, 2, 2, 1, 0])

        def teacher(labels: Tensor) -> Tensor:
            return cross_fit(groups, labels.tolist(), lambda _, rows: Memory(rows, features, labels, 3))

        before, after = teacher(plain), teacher(planted)
        assert torch.equal(after[:3], before[:3])
        assert bool((after[3:] != before[3:]).any(dim=1).all())

    @pytest.mark.parametrize("group", ["ann", "bob", "cid", "dot"])
    def test_features_of_a_group_change_its_own_predictions_only_through_themselves(self, group: str) -> None:
        features, labels, rows = self.features(), torch.tensor(self.LABELS), self.rows_of(group)
        before = self.teacher(features, labels)
        moved = features.clone()
        moved[rows[0]] += 5.0
        after = self.teacher(moved, labels)
        fold_mates = np.array(group_folds(self.GROUPS, self.LABELS)) == group_folds(self.GROUPS, self.LABELS)[rows[0]]
        still = [row for row in np.flatnonzero(fold_mates).tolist() if row != rows[0]]
        # What was fitted for the held-out fold, centre included, is the same: its other rows have the same teacher, bit for bit.
        assert torch.equal(after[still], before[still])
        assert not torch.equal(after[rows[0]], before[rows[0]])

    def test_a_fit_that_looks_at_the_held_out_group_is_found_out(self) -> None:
        features, labels, rows = self.features(), torch.tensor(self.LABELS), self.rows_of("ann")
        planted = labels.clone()
        planted[rows] = labels[rows].roll(1)
        assert not torch.equal(self.teacher(features, planted, leak=True)[rows], self.teacher(features, labels, leak=True)[rows])

    def test_a_class_that_a_fold_lacks(self) -> None:
        features, labels = torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
        teacher = cross_fit(["a", "a", "b", "b"], labels.numpy(), lambda _, rows: Memory(rows, features, labels, 2))
        assert teacher.shape == (4, 2)
        assert bool(teacher.isfinite().all())

    def test_folds_are_fitted_in_order_and_see_every_row_but_their_own(self) -> None:
        seen: dict[int, list[int]] = {}
        features, labels = self.features(), torch.tensor(self.LABELS)

        def fit(fold: int, rows: Tensor) -> Memory:
            seen[fold] = rows.tolist()
            return Memory(rows, features, labels, 2)

        cross_fit(self.GROUPS, self.LABELS, fit, folds=3)
        dealt: Mapping[int, list[int]] = {
            fold: np.flatnonzero(group_folds(self.GROUPS, self.LABELS, 3) != fold).tolist() for fold in range(3)
        }
        assert seen == dealt
        assert list(seen) == [0, 1, 2]

    def test_a_single_group_is_refused_before_anything_is_fitted(self) -> None:
        def fit(fold: int, rows: Tensor) -> Memory:
            raise AssertionError("nothing may be fitted")

        with pytest.raises(DataError, match="found 1: 'ann'"):
            cross_fit(["ann", "ann"], [0, 1], fit)
