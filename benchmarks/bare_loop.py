"""FedSocket as a bare PyTorch loop: what a researcher would write into one file, and the reference of ``round_cost.py``.

No Flower, no store, no participant and no strategy: models and optimisers stay in memory, Q is a dictionary of tensors, merging
is a few lines of arithmetic. Models, losses and the measuring of DEV are the package's own functions, and every draw has the seed
that a run gives it, so that the work is the same.

Legend: ``B`` batch, ``E`` width of an embedding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedsocket_flwr.clients.branches import BranchFacts, new_private, new_q
from fedsocket_flwr.config import Configuration, modality_key
from fedsocket_flwr.datasets.corpus import ClientData, Split
from fedsocket_flwr.exchange.contract import Block, Contract
from fedsocket_flwr.learning import losses
from fedsocket_flwr.learning.measuring import ClassificationMeasure, Measure, RetrievalMeasure, measure
from fedsocket_flwr.learning_settings import OptimiserSettings, PredictorOptimiserSettings
from fedsocket_flwr.methods import shared_shape
from fedsocket_flwr.models.predictor import SharedPredictor, initial_predictor
from fedsocket_flwr.seeds import derive_seed

Tensors = dict[str, Tensor]
SCALE = 15.0
FROZEN_BATCH = 1024
CPU = torch.device("cpu")


@dataclass
class Part:
    """One split as tensors; in retrieval ``pairs`` are rows of images and texts."""

    examples: int
    inputs: Tensors
    features: Tensors
    labels: Tensor | None
    pairs: Tensor | None


@dataclass
class Client:
    """Everything that one client has, alive from round to round."""

    data: ClientData
    train: Part
    dev: Part
    measure: Measure
    private: nn.Module
    gate: nn.Parameter
    optimiser: torch.optim.Optimizer
    q: SharedPredictor
    best: dict[str, tuple[float, list[Tensors]]] = field(default_factory=dict)


def as_tensors(split: Split) -> Part:
    inputs = {m: torch.tensor(values) for m, values in split.inputs.items()}
    features = {m: torch.tensor(values) for m, values in split.features.items()}
    labels, pairs = (None if known is None else torch.tensor(known) for known in (split.labels, split.pairs))
    return Part(split.examples, inputs, features, labels, pairs)


def build_optimiser(
    settings: OptimiserSettings | PredictorOptimiserSettings, parameters: Sequence[nn.Parameter], gate: nn.Parameter | None = None
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p.requires_grad]}]
    groups += [] if gate is None else [{"params": [gate], "weight_decay": 0.0}]
    chosen: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, "fused": True}
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **chosen)
    return (torch.optim.Adam if settings.optimiser == "adam" else torch.optim.AdamW)(groups, **chosen)


def new_client(config: Configuration, data: ClientData) -> Client:
    facts, gate = BranchFacts.of(data), nn.Parameter(torch.zeros(()))
    private = new_private(config, facts, CPU)
    retrieval = data.kind == "retrieval"
    return Client(
        data,
        as_tensors(data.train),
        as_tensors(data.dev),
        RetrievalMeasure(data.dev, config.evaluation)
        if retrieval
        else ClassificationMeasure(data.dev, facts.class_counts, config.evaluation),
        private,
        gate,
        build_optimiser(config.training.private[modality_key(data.modalities)], list(private.parameters()), gate),
        new_q(config, facts, CPU),
    )


def private_outputs(private: nn.Module, part: Part, rows: Tensor) -> Tensor:
    if part.pairs is None:
        return private({m: values[rows] for m, values in part.inputs.items()})  # type: ignore[no-any-return]
    images, texts = part.pairs[rows, 0], part.pairs[rows, 1]
    found = private.image_embeddings(part.inputs["image"][images]), private.text_embeddings(part.inputs["text"][texts])  # type: ignore[operator]
    return SCALE * found[0] @ found[1].T  # type: ignore[no-any-return]


def q_outputs(q: SharedPredictor, task: str, part: Part, rows: Tensor) -> Tensor:
    if part.pairs is None:
        return q.logits(task, {m: values[rows] for m, values in part.features.items()})
    images_BE, texts_BE = (q.embeddings(task, m, part.features[m][part.pairs[rows, k]]) for k, m in enumerate(("image", "text")))
    return SCALE * images_BE @ texts_BE.T


def frozen(model: nn.Module, values: Tensors, outputs: Callable[[Tensors], Tensor]) -> Tensor:
    model.eval()
    with torch.no_grad():
        rows = torch.arange(len(next(iter(values.values()))))
        return torch.cat([outputs({m: v[batch] for m, v in values.items()}) for batch in torch.split(rows, FROZEN_BATCH)])


def private_table(private: Any, part: Part) -> tuple[Tensor, ...]:
    if part.pairs is None:
        return (frozen(private, part.inputs, private),)
    image, text = ({m: part.inputs[m]} for m in ("image", "text"))
    return (
        frozen(private, image, lambda v: private.image_embeddings(v["image"])),
        frozen(private, text, lambda v: private.text_embeddings(v["text"])),
    )


def q_table(q: SharedPredictor, task: str, part: Part) -> tuple[Tensor, ...]:
    if part.pairs is None:
        return (frozen(q, part.features, lambda v: q.logits(task, v)),)
    image, text = ({m: part.features[m]} for m in ("image", "text"))
    return (
        frozen(q, image, lambda v: q.embeddings(task, "image", v["image"])),
        frozen(q, text, lambda v: q.embeddings(task, "text", v["text"])),
    )


def from_table(table: tuple[Tensor, ...], part: Part, rows: Tensor) -> Tensor:
    if part.pairs is None:
        return table[0][rows]
    return SCALE * table[0][part.pairs[rows, 0]] @ table[1][part.pairs[rows, 1]].T


def targets(part: Part, rows: Tensor) -> Tensor:
    if part.pairs is None:
        assert part.labels is not None
        return part.labels[rows]
    return losses.positives(part.pairs[rows, 0], part.pairs[rows, 0])


def train(
    part: Part, optimiser: torch.optim.Optimizer, seed: int, epochs: int, size: int, loss_of: Callable[[Tensor], Tensor]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        total = torch.zeros(())
        batches = list(torch.split(torch.randperm(part.examples, generator=generator), size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        for rows in batches:
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += len(rows) * loss.detach()
        assert torch.isfinite(total)


def learn(config: Configuration, client: Client, server_round: int) -> None:
    """Run Stages I to III."""
    settings, teaching = config.training.private[modality_key(client.data.modalities)], config.training.teaching
    part, task, private, q = client.train, client.data.task, client.private, client.q
    retrieval = part.pairs is not None

    def seed(purpose: str) -> int:
        return derive_seed(config.run.seed, client.data.client, server_round, purpose)

    def label_loss(outputs: Tensor, expected: Tensor) -> Tensor:
        if retrieval:
            return losses.multi_positive_nce(outputs, expected)
        return losses.smoothed_cross_entropy(outputs, expected, teaching.label_smoothing)

    def distillation(student: Tensor, teacher: Tensor, expected: Tensor) -> Tensor:
        if retrieval:
            return losses.symmetric_divergence(student, teacher)
        return losses.reliable_distillation(student, teacher, expected, teaching.temperature)

    def warm_up_loss(rows: Tensor) -> Tensor:
        return label_loss(private_outputs(private, part, rows), targets(part, rows))

    def private_loss(rows: Tensor) -> Tensor:
        expected, p, taught = targets(part, rows), private_outputs(private, part, rows), from_table(global_q, part, rows)
        loss = label_loss(p, expected) + teaching.distil_private * distillation(p, taught, expected)
        g = teaching.retrieval_fusion_gate
        fused = (1 - g) * p + g * taught if retrieval else losses.fused_logits(p, taught, client.gate)
        return loss + teaching.fusion * label_loss(fused, expected)

    def q_loss(rows: Tensor) -> Tensor:
        expected, outputs = targets(part, rows), q_outputs(q, task, part, rows)
        taught = from_table(frozen_private, part, rows)
        return label_loss(outputs, expected) + teaching.distil_q * distillation(outputs, taught, expected)

    torch.manual_seed(seed("private"))
    private.train()
    if server_round == 1:
        warm_up = seed("batches of warm-up")
        train(part, client.optimiser, warm_up, config.training.warm_up_epochs, settings.batch_size, warm_up_loss)
    global_q = q_table(q, task, part)
    train(part, client.optimiser, seed("batches of Private"), settings.epochs, settings.batch_size, private_loss)
    torch.manual_seed(seed("q"))
    frozen_private = private_table(private, part)
    q.train()
    optimiser = build_optimiser(config.training.q, list(q.parameters()))
    train(part, optimiser, seed("batches of Q"), settings.epochs, settings.batch_size, q_loss)


def measure_dev(client: Client) -> None:
    """Measure and calibrate on DEV; keep what is best for each endpoint."""
    measured = measure(client.measure, private_table(client.private, client.dev), q_table(client.q, client.data.task, client.dev))
    for endpoint, metrics in measured.endpoints.items():
        value = client.measure.headline(metrics)
        if endpoint not in client.best or value > client.best[endpoint][0]:
            branches: dict[str, nn.Module] = {"private": client.private, "q": client.q}
            used = list(branches.values()) if endpoint == "joint" else [branches[endpoint]]
            client.best[endpoint] = (value, [{n: t.clone() for n, t in module.state_dict().items()} for module in used])


def merge(contract: Contract, before: Tensors, answers: Mapping[str, Tensors], clients: Mapping[str, Client]) -> Tensors:
    """Average every block among its owners; what everyone owns is averaged over tasks after projection."""
    after, common = dict(before), [block for block in contract.blocks if block.owner.kind == "everyone"]
    for block in contract.blocks:
        writers = [name for name, answer in answers.items() if block.name in answer]
        if not writers or block in common:
            continue
        counts = torch.tensor([clients[name].train.examples for name in writers], dtype=torch.float64)
        held = torch.ones(len(writers), *([1] * len(block.shape)), dtype=torch.float64)
        if block.owner.kind == "class_rows":
            held = torch.tensor([[float(n > 0) for n in clients[name].data.class_counts()] for name in writers])
            held = held.double().reshape(len(writers), -1, *([1] * (len(block.shape) - 1)))
        weights = counts.reshape(-1, *([1] * len(block.shape))) * held
        total = torch.zeros(block.shape, dtype=torch.float64)
        for weight, name in zip(weights, writers, strict=True):
            total += weight * answers[name][block.name].double()
        mass = weights.sum(dim=0)
        after[block.name] = torch.where(mass > 0, (total / mass).float(), before[block.name])
    return after | project(common, before, answers, clients)


def project(common: Sequence[Block], before: Tensors, answers: Mapping[str, Tensors], clients: Mapping[str, Client]) -> Tensors:
    def mean_update(block: Block, names: Sequence[str]) -> Tensor:
        total = torch.zeros(block.shape, dtype=torch.float64)
        for name in names:
            total += clients[name].train.examples * (answers[name][block.name].double() - before[block.name].double())
        return total / sum(clients[name].train.examples for name in names)

    tasks = sorted({client.data.task for client in clients.values()})
    members = {task: [name for name in answers if clients[name].data.task == task] for task in tasks}
    given = {task: torch.cat([mean_update(block, members[task]).flatten() for block in common]) for task in tasks}
    moved = []
    for task in tasks:
        update = given[task].clone()
        for other in tasks:
            inner = float(update @ given[other])
            if other != task and inner < 0:
                update -= inner / (float(given[other] @ given[other]) + 1e-12) * given[other]
        moved.append(update)
    flat = torch.cat([before[block.name].double().flatten() for block in common]) + torch.stack(moved).mean(dim=0)
    parts = torch.split(flat, [block.size for block in common])
    return {block.name: part.reshape(block.shape).float() for block, part in zip(common, parts, strict=True)}


def bare_rounds(config: Configuration, data: Sequence[ClientData]) -> Iterator[Tensors]:
    """Yield Q after every round, without end."""
    shape = shared_shape(config)
    assert shape is not None
    initial = initial_predictor(shape, config.run.seed)
    contract, q = initial.contract(), {name: tensor.clone() for name, tensor in initial.state_dict().items()}
    clients = {one.client: new_client(config, one) for one in sorted(data, key=lambda one: one.client)}
    server_round = 0
    while True:
        server_round += 1
        answers = {}
        for name, client in clients.items():
            client.q.load_state_dict({key: q[key] for key in client.q.state_dict()})
            if server_round > 1:
                measure_dev(client)
            learn(config, client, server_round)
            answers[name] = {key: tensor.clone() for key, tensor in client.q.state_dict().items()}
        q = merge(contract, q, answers, clients)
        yield q
