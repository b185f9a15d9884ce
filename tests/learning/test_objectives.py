import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from fedsocket_flwr.datasets.pictures import Pictures, UnitPictures
from fedsocket_flwr.learning.objectives import (
    FROZEN_BATCH,
    ClassificationObjective,
    RetrievalObjective,
    _rows_at_once,
    batches,
    build_objective,
)
from fedsocket_flwr.learning_settings import TeachingSettings
from tests.learning.tiny import (
    CPU,
    WIDTH,
    Linear,
    Towers,
    classification,
    classification_split,
    q_for,
    retrieval,
    retrieval_split,
    seeded,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- batches ---


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 5))
def test_an_epoch_has_every_row_once_and_no_batch_of_one_unless_it_must(rows: int, size: int, seed: int) -> None:
    parts = list(batches(rows, size, generator(seed), CPU))
    assert sorted(torch.cat(parts).tolist()) == list(range(rows))
    assert all(len(part) <= size + 1 for part in parts)
    if rows > 1 and size > 1:
        assert min(len(part) for part in parts) > 1


def test_a_last_batch_of_one_joins_the_one_before_it() -> None:
    assert [len(part) for part in batches(9, 4, generator(), CPU)] == [4, 5]
    assert [len(part) for part in batches(10, 4, generator(), CPU)] == [4, 4, 2]
    assert [len(part) for part in batches(1, 4, generator(), CPU)] == [1]
    assert [len(part) for part in batches(3, 1, generator(), CPU)] == [1, 2]


def test_batches_are_a_function_of_their_generator_alone() -> None:
    torch.manual_seed(1)
    first = [part.tolist() for part in batches(20, 6, generator(3), CPU)]
    torch.manual_seed(2)
    torch.rand(5)
    state = torch.random.get_rng_state()
    again = [part.tolist() for part in batches(20, 6, generator(3), CPU)]
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [part.tolist() for part in batches(20, 6, generator(4), CPU)] != first
    epochs = generator(3)
    assert [part.tolist() for part in batches(20, 6, epochs, CPU)] == first
    assert [part.tolist() for part in batches(20, 6, epochs, CPU)] != first


# --- classification ---


def test_classification_takes_the_rows_that_it_is_asked_for() -> None:
    objective = classification([0, 1, 1, 0])
    rows = torch.tensor([2, 0])
    model, q = seeded(Linear), q_for("classification")
    assert objective.examples == 4
    assert objective.targets(rows).tolist() == [1, 0]
    inputs = torch.tensor(classification_split([0, 1, 1, 0]).inputs["image"])
    features = torch.tensor(classification_split([0, 1, 1, 0]).features["image"])
    assert torch.equal(objective.private_outputs(model, rows), model({"image": inputs[rows]}))
    assert torch.equal(objective.q_outputs(q, rows), q.logits("task", {"image": features[rows]}))
    # Tables hold the same rows for all; a matrix product of another size may round differently.
    torch.testing.assert_close(objective.from_table(objective.private_table(model), rows), model({"image": inputs[rows]}))
    torch.testing.assert_close(objective.from_table(objective.q_table(q), rows), objective.q_outputs(q, rows))


def test_the_losses_of_classification_are_those_of_the_paper() -> None:
    objective = classification([0, 1], smoothing=0.2, temperature=2.0)
    logits = torch.tensor([[math.log(3.0), 0.0]])
    # softmax = (3/4, 1/4); smoothed target (0.9, 0.1).
    expected = -0.9 * math.log(0.75) - 0.1 * math.log(0.25)
    assert objective.label_loss(logits, torch.tensor([0])).item() == pytest.approx(expected, rel=1e-6)
    # One row: its weight cancels. KL((3/4, 1/4) at T=2 is softmax(log3/2, 0)) to a uniform student, times T^2.
    root = math.sqrt(3.0)
    p, r = root / (root + 1), 1 / (root + 1)
    divergence = 4 * (p * math.log(2 * p) + r * math.log(2 * r))
    found = objective.distillation(torch.zeros(1, 2), logits, torch.tensor([0]))
    assert found.item() == pytest.approx(divergence, rel=1e-5)
    # The client's own gate: sigmoid(log 3) = 3/4 of Q.
    fused = objective.fuse(torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 8.0]]), torch.tensor(math.log(3.0)))
    torch.testing.assert_close(fused, torch.tensor([[1.0, 6.0]]))


# --- retrieval ---


def test_all_captions_of_an_image_are_positives_in_a_batch() -> None:
    """Rows 0 and 2 show image 0: each is a positive of the other, and their images are the same picture."""
    objective = retrieval([0, 1, 0])
    rows = torch.tensor([0, 1, 2])
    assert objective.examples == 3
    assert objective.targets(rows).tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    scores = objective.private_outputs(seeded(Towers), rows)
    assert torch.equal(scores[0], scores[2])
    # A perfect matcher has no loss although two rows share an image; without the second positive it would have log 2.
    perfect = torch.where(objective.targets(rows), 15.0, -15.0)
    assert objective.label_loss(perfect, objective.targets(rows)).item() == pytest.approx(0.0, abs=1e-6)


def test_retrieval_scores_are_fifteen_times_the_cosine_for_both_branches() -> None:
    objective, towers, q = retrieval([0, 1, 2, 0]), seeded(Towers), q_for("retrieval")
    rows = torch.tensor([3, 1])
    split_images, split_texts = torch.tensor([0, 1]), torch.tensor([3, 1])
    images, texts = objective.private_table(towers)
    assert images.shape == (3, 2)
    assert texts.shape == (4, 2)
    torch.testing.assert_close(
        objective.private_outputs(towers, rows), 15 * images[split_images] @ texts[split_texts].T, rtol=1e-5, atol=1e-5
    )
    table = objective.q_table(q)
    torch.testing.assert_close(objective.q_outputs(q, rows), objective.from_table(table, rows), rtol=1e-5, atol=1e-5)
    assert objective.q_outputs(q, rows).abs().max() <= 15.0 + 1e-4


def test_retrieval_fuses_with_the_gate_of_the_settings() -> None:
    objective = retrieval([0, 1], fusion_gate=0.25)
    private, q = torch.tensor([[4.0]]), torch.tensor([[8.0]])
    assert objective.fuse(private, q, torch.tensor(100.0)).item() == 5.0


def test_retrieval_distils_score_matrices_without_weights_or_temperature() -> None:
    objective = retrieval([0, 1])
    scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert objective.distillation(scores, scores, torch.ones(2, 2, dtype=torch.bool)).item() == 0.0
    # Every row and column: teacher (a, b) with a = sigmoid(2), student even; Jeffreys = (a - b) / 2 * log(a / b) / 2.
    a = 1 / (1 + math.exp(-2.0))
    expected = ((a - 0.5) * (math.log(a) - math.log(0.5)) + (1 - a - 0.5) * (math.log(1 - a) - math.log(0.5))) / 2
    assert objective.distillation(torch.zeros(2, 2), scores, torch.ones(2, 2)).item() == pytest.approx(expected, rel=1e-5)


# --- frozen tables ---


class Counting(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.modes: list[bool] = []

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        self.sizes.append(len(inputs["image"]))
        self.modes.append(self.training)
        return super().forward(inputs)


def test_tables_are_made_in_batches_in_evaluation_mode_without_gradient() -> None:
    model = seeded(Counting)
    (table,) = classification([0, 1] * (FROZEN_BATCH // 2) + [1]).private_table(model)
    assert model.sizes == [FROZEN_BATCH, 1]
    assert model.modes == [False, False]
    assert not table.requires_grad


def test_large_pictures_are_taken_a_few_at_a_time() -> None:
    assert _rows_at_once({"image": torch.empty(5000, 3, 32, 32, device="meta")}) == FROZEN_BATCH
    assert _rows_at_once({"image": torch.empty(5000, 3, 224, 224, device="meta")}) == 111
    assert _rows_at_once({"image": torch.empty(2, 3, 4096, 4096, device="meta")}) == 1
    both = {"video": torch.empty(9, 8, 1280, device="meta"), "audio": torch.empty(9, 852, device="meta")}
    assert _rows_at_once(both) == FROZEN_BATCH


def test_nothing_is_measured_on_no_rows() -> None:
    assert classification([]).private_table(seeded(Linear))[0].shape == (0, 2)


def test_the_kind_of_a_task_chooses_its_objective() -> None:
    settings = TeachingSettings(label_smoothing=0.0, temperature=3.0, retrieval_fusion_gate=0.75)
    split = classification_split([0, 1])
    made = build_objective("classification", "task", split, CPU, settings)
    assert isinstance(made, ClassificationObjective)
    made = build_objective("retrieval", "task", retrieval_split([0, 1]), CPU, settings)
    assert isinstance(made, RetrievalObjective)
    assert made.fuse(torch.tensor(0.0), torch.tensor(4.0), nn.Parameter(torch.zeros(()))).item() == 3.0


def test_inputs_are_copied_so_that_mapped_files_stay_as_they_are() -> None:
    split = classification_split([0, 1])
    split.inputs["image"].flags.writeable = False
    objective = ClassificationObjective("task", split, CPU, 0.0, 1.0)
    before = np.array(split.inputs["image"])
    objective._inputs["image"].zero_()
    np.testing.assert_array_equal(split.inputs["image"], before)


class Flat(Towers):
    """Reads pictures of 1 x 3 in grey."""

    def image_embeddings(self, images: torch.Tensor) -> torch.Tensor:
        return super().image_embeddings(images.flatten(1)[:, :WIDTH])


def test_pictures_in_files_are_as_good_as_arrays(tmp_path: Path) -> None:
    files = tuple(tmp_path / f"{k}.png" for k in range(3))
    for k, file in enumerate(files):
        Image.new("RGB", (4, 4), (80 * k, 255 - 60 * k, 30)).save(file)
    pictures = UnitPictures(Pictures(files, 2))
    split = retrieval_split([0, 1, 2, 2])
    array = RetrievalObjective("task", replace(split, inputs={**split.inputs, "image": pictures[np.arange(3)]}), CPU, 0.5)
    lazy = RetrievalObjective("task", replace(split, inputs={**split.inputs, "image": pictures}), CPU, 0.5)
    model, rows = seeded(Flat), torch.tensor([3, 0, 2])
    torch.testing.assert_close(lazy.private_outputs(model, rows), array.private_outputs(model, rows), rtol=0, atol=0)
    for found, expected in zip(lazy.private_table(model), array.private_table(model), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
