"""Recipients over one modality and donors over two: shapes, gradients, learning, sizes, and what logits must not depend on."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.predictor import PredictorShape, TaskShape, initial_predictor
from fedsocket_flwr.models.registry import ModelFacts, build_private_model

CLASSES = 3
ROWS = 12
RECIPIENTS: dict[str, dict[str, Any]] = {
    "sequence_mlp": {"width": 16},
    "sequence_cnn": {"width": 16},
    "sequence_transformer": {"width": 16, "layers": 1, "heads": 2},
}
DONORS: dict[str, dict[str, Any]] = {"bottleneck_pair": {"bottleneck": 8, "hidden": 16}, "attention_pair": {"width": 16}}
SHAPES: list[dict[str, tuple[int, ...]]] = [{"motion": (5, 6), "turning": (4, 7)}, {"motion": (6,), "turning": (7,)}]
SHAPES += [{"motion": (5, 6), "turning": (7,)}]
MODELS = [(name, arguments, 1) for name in RECIPIENTS for arguments in ({}, RECIPIENTS[name])]
MODELS += [(name, arguments, 2) for name in DONORS for arguments in ({}, DONORS[name])]


def facts(modalities: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES[0], classes: int = CLASSES) -> ModelFacts:
    return ModelFacts("classification", classes, dict(list(shapes.items())[:modalities]))


def build(name: str, arguments: Mapping[str, Any], model_facts: ModelFacts, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_private_model(name, arguments, model_facts)


def separable(model_facts: ModelFacts, labels: Tensor) -> dict[str, Tensor]:
    """One pattern a class in every modality, and noise."""
    generator = torch.Generator().manual_seed(1)
    inputs = {}
    for modality, shape in model_facts.input_shapes.items():
        patterns = torch.randn(model_facts.classes, *shape, generator=generator)
        inputs[modality] = patterns[labels] + 0.1 * torch.randn(len(labels), *shape, generator=generator)
    return inputs


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(("name", "arguments", "modalities"), MODELS)
def test_a_model_has_logits_learns_with_every_parameter_and_reduces_its_loss(
    name: str, arguments: dict[str, Any], modalities: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    model_facts = facts(modalities, shapes)
    model = build(name, arguments, model_facts)
    labels = torch.arange(ROWS) % CLASSES
    inputs = separable(model_facts, labels)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-2)
    losses = []
    for _ in range(15):
        logits = model(inputs)
        assert logits.shape == (ROWS, CLASSES)
        loss = functional.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        unmoved = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()]
        assert unmoved == []
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert bool((model(inputs).argmax(dim=1) == labels).all())


@pytest.mark.parametrize(("name", "arguments", "modalities"), MODELS)
def test_the_seed_alone_decides_parameters_and_logits(name: str, arguments: dict[str, Any], modalities: int) -> None:
    inputs = separable(facts(modalities), torch.arange(4) % CLASSES)
    first, again, other = (build(name, arguments, facts(modalities), seed) for seed in (3, 3, 4))
    assert all(torch.equal(first.state_dict()[key], value) for key, value in again.state_dict().items())
    assert torch.equal(first(inputs), again(inputs))
    assert torch.equal(first(inputs), first(inputs)), "training mode must draw nothing"
    assert not torch.equal(first(inputs), other(inputs))


@pytest.mark.parametrize(("name", "arguments", "modalities"), MODELS)
def test_a_row_depends_on_no_other_row(name: str, arguments: dict[str, Any], modalities: int) -> None:
    inputs = separable(facts(modalities), torch.arange(4) % CLASSES)
    for training in (True, False):
        model = build(name, arguments, facts(modalities)).train(training)
        with torch.no_grad():
            alone = model({modality: values[2:3] for modality, values in inputs.items()})
            torch.testing.assert_close(alone, model(inputs)[2:3])


@pytest.mark.parametrize("name", sorted(RECIPIENTS))
def test_there_is_no_padding(name: str) -> None:
    """A token of zeros counts like any other: leaving it out changes the logits."""
    model = build(name, {}, facts(1))
    tokens = separable(facts(1), torch.tensor([0, 1]))["motion"]
    blanked = tokens.clone()
    blanked[:, -1] = 0
    assert not torch.allclose(model({"motion": blanked}), model({"motion": tokens}), atol=1e-3)
    shorter = build(name, {}, facts(1, {"motion": (4, 6)}))
    shorter.load_state_dict({key: value[:4] if key == "positions" else value for key, value in model.state_dict().items()})
    assert not torch.allclose(model({"motion": blanked}), shorter({"motion": blanked[:, :4]}), atol=1e-3)


def test_the_order_of_tokens_matters_to_the_cnn_and_the_transformer_only() -> None:
    tokens = separable(facts(1), torch.tensor([0, 1]))["motion"]
    gap = {}
    for name in RECIPIENTS:
        model = build(name, {}, facts(1)).eval()
        with torch.no_grad():
            gap[name] = float((model({"motion": tokens}) - model({"motion": tokens.flip(1)})).abs().max())
    assert gap["sequence_mlp"] < 1e-5
    # Positions start small, so an untrained Transformer hardly tells the order.
    assert min(gap["sequence_cnn"], gap["sequence_transformer"]) > 1e-4


def test_a_vector_is_a_sequence_of_one_token() -> None:
    for name in RECIPIENTS:
        vector, token = build(name, {}, facts(1, {"x": (6,)})), build(name, {}, facts(1, {"x": (1, 6)}))
        rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        assert torch.equal(vector({"x": rows}), token({"x": rows.unsqueeze(1)}))


@pytest.mark.parametrize("name", sorted(DONORS))
def test_a_donor_reads_both_modalities_in_the_tasks_order(name: str) -> None:
    model = build(name, {}, facts(2))
    assert model.modalities == ("motion", "turning")
    inputs = separable(facts(2), torch.arange(4) % CLASSES)
    assert torch.equal(model(inputs), model(dict(reversed(inputs.items())))), "the inputs' own order says nothing"
    for modality in inputs:
        changed = {**inputs, modality: inputs[modality].roll(1, 0)}
        assert not torch.allclose(model(inputs), model(changed), atol=1e-3)
    assert build(name, {}, facts(2, dict(reversed(SHAPES[0].items())))).modalities == ("turning", "motion")


def test_the_attention_pairs_four_heads_by_hand() -> None:
    model = build("attention_pair", {"width": 8}, facts(2))
    inputs = separable(facts(2), torch.arange(4) % CLASSES)
    codes = []
    for encoder, values in zip(model.encoders, inputs.values(), strict=True):
        normed = functional.layer_norm(values, values.shape[-1:])
        weights = torch.softmax(normed @ encoder.attention.weight[0], dim=1)
        pooled = torch.stack([w @ tokens for w, tokens in zip(weights, normed, strict=True)])
        codes.append(functional.gelu(pooled @ encoder.layer[0].weight.T + encoder.layer[0].bias))
    both = torch.cat(codes, dim=1)
    gate = torch.sigmoid(model.gate(both))
    heads = [model.first_head(codes[0]), model.second_head(codes[1])]
    heads += [model.gated_head(gate * codes[0] + (1 - gate) * codes[1]), model.joint_head(both)]
    torch.testing.assert_close(model(inputs), torch.stack(heads).mean(dim=0))


class TestThePapersSizes:
    """FedSocket v1, Table 22: on UCF-51 a private model has 0.43 M parameters and Q, 0.60 M less that, 0.17 M."""

    UCF51 = ModelFacts("classification", 51, {"visual": (8, 1280), "audio": (852,)})

    @pytest.mark.parametrize("name", [*RECIPIENTS, "attention_pair"])
    def test_private(self, name: str) -> None:
        modalities = 1 if name in RECIPIENTS else 2
        size = parameters(build(name, {}, facts(modalities, self.UCF51.input_shapes, classes=51)))
        assert size == pytest.approx(430_000, rel=0.1)

    def test_q(self) -> None:
        assert parameters(self.same_task_q("visual", 1280, 51, tokens=True)) == pytest.approx(170_000, rel=0.1)
        assert parameters(self.same_task_q("text", 300, 4, tokens=False)) < 80_000

    @staticmethod
    def same_task_q(modality: str, features: int, classes: int, tokens: bool) -> Any:
        """The width and rank of the paper's configurations; at 128 the adapter alone would have 167,808 parameters on UCF-51."""
        task = TaskShape("same", "classification", (modality,), classes)
        pooled = frozenset({modality}) if tokens else frozenset[str]()
        return initial_predictor(PredictorShape(100, 8, (task,), {modality: features}, pooled), seed=1)


@pytest.mark.parametrize(
    ("name", "arguments", "model_facts", "message"),
    [
        ("sequence_mlp", {}, facts(2), "reads one modality, the client has motion, turning"),
        ("sequence_cnn", {"width": 0}, facts(1), "width must be.*at least 1, found 0"),
        ("sequence_cnn", {}, facts(1, {"image": (1, 8, 8)}), r"vectors \(D,\) or tokens \(N, D\) of 'image', found the shape"),
        ("sequence_transformer", {"width": 10}, facts(1), "width must be a multiple of heads, found width 10 and 4 heads"),
        ("sequence_transformer", {"layers": 0}, facts(1), "layers must be.*at least 1"),
        ("sequence_mlp", {}, ModelFacts("classification", 3, {"text": (9,)}, 64), "feature vectors, found token ids"),
        ("attention_pair", {}, facts(1), "reads two modalities, the client has motion"),
        ("bottleneck_pair", {"bottleneck": -1}, facts(2), "bottleneck must be"),
        ("bottleneck_pair", {"hidden": 0}, facts(2), "hidden must be"),
        ("attention_pair", {}, ModelFacts("retrieval", 0, SHAPES[0]), "the model is a classifier, the task is retrieval"),
    ],
)
def test_what_cannot_be_used_is_refused_and_says_why(
    name: str, arguments: dict[str, Any], model_facts: ModelFacts, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_private_model(name, arguments, model_facts)
