"""Private models of images and texts: shapes, gradients, learning, reproducible parameters, and what each must not depend on."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsocket_flwr.models.registry import PRIVATE_MODELS, ModelFacts, build_private_model
from tests.models.test_pie import MODELS as PAPER_MODELS
from tests.models.test_same_task_architectures import DONORS, RECIPIENTS

CLASSES = 3
ROWS = 12
# Name, arguments, modality of a classifier.
CLASSIFIERS: list[tuple[str, dict[str, Any], str]] = [
    ("image_cnn", {}, "image"),
    ("image_cnn", {"width": 4, "hidden": 8}, "image"),
    ("image_mlp", {}, "image"),
    ("image_mlp", {"hidden": 16}, "image"),
    ("image_resnet", {}, "image"),
    ("image_resnet", {"width": 4}, "image"),
    ("text_bag", {}, "text"),
    ("text_bag", {"width": 8, "layers": 2}, "text"),
    ("text_bigru", {}, "text"),
    ("text_bigru", {"width": 8}, "text"),
]
NAMES = {name for name, _, _ in CLASSIFIERS} | {"image_text_towers"}
TOWERS: list[dict[str, Any]] = [
    {},
    {"width": 8, "embedding": 16},
    {"width": 8, "embedding": 16, "image": "mlp"},
    {"text": "bigru"},
]


def facts(kind: str, image: tuple[int, ...] = (1, 8, 8), length: int = 12) -> ModelFacts:
    if kind == "retrieval":
        return ModelFacts("retrieval", 0, {"image": image, "text": (length,)}, text_buckets=64)
    shapes = {"image": image} if kind == "image" else {"text": (length,)}
    return ModelFacts("classification", CLASSES, shapes, text_buckets=64 if kind == "text" else 0)


def build(name: str, arguments: Mapping[str, Any], model_facts: ModelFacts, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_private_model(name, arguments, model_facts)


def separable(modality: str, items: Tensor) -> Tensor:
    """One pattern an item: a bright patch, or words of its own, padded at the end."""
    generator = torch.Generator().manual_seed(1)
    if modality == "image":
        patterns = (torch.rand(int(items.max()) + 1, 1, 8, 8, generator=generator) > 0.5).float()
        return (patterns[items] + 0.05 * torch.rand(len(items), 1, 8, 8, generator=generator)).clamp(0, 1)
    tokens = torch.zeros(len(items), 12, dtype=torch.int64)
    lengths = torch.randint(2, 9, (len(items),), generator=generator)
    for row, (item, length) in enumerate(zip(items.tolist(), lengths.tolist(), strict=True)):
        tokens[row, :length] = 1 + 5 * item + torch.randint(0, 5, (length,), generator=generator)
    return tokens


def test_every_registered_model_is_tried_here() -> None:
    assert NAMES | set(PAPER_MODELS) | set(RECIPIENTS) | set(DONORS) == set(PRIVATE_MODELS)


@pytest.mark.parametrize(("name", "arguments", "modality"), CLASSIFIERS)
def test_a_classifier_has_logits_learns_with_every_parameter_and_reduces_its_loss(
    name: str, arguments: dict[str, Any], modality: str
) -> None:
    model = build(name, arguments, facts(modality))
    labels = torch.arange(ROWS) % CLASSES
    inputs = {modality: separable(modality, labels)}
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        logits = model(inputs)
        assert logits.shape == (ROWS, CLASSES)
        loss = functional.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("arguments", TOWERS)
def test_towers_have_unit_embeddings_learn_with_every_parameter_and_reduce_their_loss(arguments: dict[str, Any]) -> None:
    model = build("image_text_towers", arguments, facts("retrieval"))
    items = torch.arange(8)
    images, tokens = separable("image", items), separable("text", items)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(4):
        embeddings = model.image_embeddings(images), model.text_embeddings(tokens)
        for rows in embeddings:
            assert rows.shape == (8, arguments.get("embedding", 64))
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(8))
        loss = functional.cross_entropy(15 * embeddings[0] @ embeddings[1].T, items)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_seed_alone_decides_the_parameters(name: str) -> None:
    kind = "retrieval" if name == "image_text_towers" else name.split("_")[0]
    first, again, other = (build(name, {}, facts(kind), seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["image_cnn", "image_mlp", "image_resnet"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 9, 5)])
def test_images_of_other_sizes(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, {}, facts("image", image=shape))
    assert model({"image": torch.rand(2, *shape)}).shape == (2, CLASSES)


@pytest.mark.parametrize("name", ["text_bag", "text_bigru"])
def test_padding_neither_counts_nor_learns(name: str) -> None:
    model = build(name, {}, facts("text"))
    short = torch.tensor([[5, 9, 7], [5, 0, 0]])
    padded = functional.pad(short, (0, 9))
    torch.testing.assert_close(model({"text": padded}), model({"text": short}))
    model({"text": padded}).sum().backward()
    weight = model.encoder.embeddings.weight
    assert bool((weight[0] == 0).all())
    assert bool((weight.grad[0] == 0).all())
    # A row does not depend on how long its neighbours are.
    torch.testing.assert_close(model({"text": padded[1:]}), model({"text": padded})[1:])


@pytest.mark.parametrize("name", ["text_bag", "text_bigru"])
def test_a_row_of_padding_and_the_last_token_id_are_read(name: str) -> None:
    model = build(name, {}, facts("text"))
    logits = model({"text": torch.tensor([[0] * 12, [63] + [0] * 11])})
    logits.sum().backward()
    assert bool(logits.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_word_order_matters_to_the_gru_only() -> None:
    forward, backward = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 3, 2, 1]])
    bag, gru = build("text_bag", {}, facts("text")), build("text_bigru", {}, facts("text"))
    torch.testing.assert_close(bag({"text": forward}), bag({"text": backward}))
    assert not torch.allclose(gru({"text": forward}), gru({"text": backward}))


def test_the_architectures_of_one_task_differ() -> None:
    sizes = [
        sum(p.numel() for p in build(name, {}, facts("image", image=(1, 28, 28))).parameters())
        for name in ("image_cnn", "image_mlp", "image_resnet")
    ]
    assert len(set(sizes)) == 3
    assert any(isinstance(part, nn.BatchNorm2d) for part in build("image_resnet", {}, facts("image")).modules())
