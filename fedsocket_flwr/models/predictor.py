"""The shared predictor Q (FedSocket v1, Eq. 9-10).

Per task and modality an adapter maps the fixed interface features into Q's width; the task's expert and a residual shared by all
tasks read the sum; the task's trunk and head turn it into logits or into an embedding for retrieval. Q also says who owns each of
its parameters, so that a strategy can merge it without knowing what it is.

Legend: ``B`` batch, ``N`` tokens, ``D`` interface width, ``W`` width of Q, ``C`` classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.exchange.contract import Block, Blocks, Contract, Owner
from fedsocket_flwr.seeds import derive_seed

EMBEDDING_SCALE = 0.02


@dataclass(frozen=True)
class TaskShape:
    """What Q must know of a task; ``classes`` is 0 for retrieval."""

    name: str
    kind: Literal["classification", "retrieval"]
    modalities: tuple[str, ...]
    classes: int = 0


@dataclass(frozen=True)
class PredictorShape:
    """Everything that decides Q's parameters.

    Attributes
    ----------
    width, residual_rank
        Q's hidden width and the rank of the shared residual.
    tasks
        The tasks, each with its own branch.
    interface_widths
        Modality -> width D of the interface features.
    token_modalities
        Modalities whose features are tokens (B, N, D), pooled by attention inside the adapter.
    isolated
        Tasks that keep a residual and modality embeddings of their own.
    """

    width: int
    residual_rank: int
    tasks: tuple[TaskShape, ...]
    interface_widths: Mapping[str, int]
    token_modalities: frozenset[str] = frozenset()
    isolated: frozenset[str] = frozenset()


def configured_shape(config: Configuration, tasks: Sequence[TaskShape], token_modalities: frozenset[str]) -> PredictorShape:
    """Return the shape of Q over these tasks as a configuration has it: over all of them, or over what one client executes."""
    read = {modality for task in tasks for modality in task.modalities}
    return PredictorShape(
        width=config.predictor.width,
        residual_rank=config.predictor.residual_rank,
        tasks=tuple(tasks),
        interface_widths={modality: config.interfaces[modality].width for modality in sorted(read)},
        token_modalities=token_modalities,
        isolated=config.isolated_tasks,
    )


def _module_key(kind: str, *names: str) -> str:
    """Return a key that no attribute of a module dictionary collides with.

    Dots separate parameter names and slashes the parts of a key, so both are escaped.
    """
    return "/".join((kind, *(name.replace("%", "%25").replace(".", "%2E").replace("/", "%2F") for name in names)))


class Adapter(nn.Module):
    """A[t, m]: interface features (B, D) or tokens (B, N, D) to Q's width (B, W)."""

    def __init__(self, interface_width: int, width: int, tokens: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(interface_width)
        self.attention = nn.Linear(interface_width, 1, bias=False) if tokens else None
        self.linear = nn.Linear(interface_width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Return A[t, m](u)."""
        normed = self.norm(features)
        if self.attention is not None:
            weights_BN1 = self.attention(normed).softmax(dim=1)
            normed = (weights_BN1 * normed).sum(dim=1)
        projected: Tensor = self.linear(normed)
        return projected


class TaskBranch(nn.Module):
    """All that one task owns: adapters, expert E[t], embedding e[t], gate g[t], trunk and head."""

    def __init__(self, shape: PredictorShape, task: TaskShape) -> None:
        super().__init__()
        width = shape.width
        self.adapters = nn.ModuleDict(
            {
                _module_key("modality", m): Adapter(shape.interface_widths[m], width, m in shape.token_modalities)
                for m in task.modalities
            }
        )
        self.expert = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.embedding = nn.Parameter(EMBEDDING_SCALE * torch.randn(width))
        # One number, but with an axis: Flower's clipping and noise work in place and pass by an array that has none.
        self.gate = nn.Parameter(torch.zeros(1))
        self.trunk = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.head = nn.Linear(width, task.classes) if task.kind == "classification" else None


class SharedPredictor(nn.Module):
    """Q over any set of tasks and modalities.

    Parameters
    ----------
    shape
        The tasks, widths and sharing. Parameters are drawn from torch's generator, in the order of ``shape.tasks``.
    """

    def __init__(self, shape: PredictorShape) -> None:
        super().__init__()
        self.shape = shape
        self.branches = nn.ModuleDict({_module_key("task", task.name): TaskBranch(shape, task) for task in shape.tasks})
        self.modality_embeddings = nn.ParameterDict()
        self.residuals = nn.ModuleDict()
        for task in shape.tasks:
            for modality in task.modalities:
                key = self._embedding_key(task.name, modality)
                if key not in self.modality_embeddings:
                    self.modality_embeddings[key] = nn.Parameter(EMBEDDING_SCALE * torch.randn(shape.width))
            key = self._residual_key(task.name)
            if key not in self.residuals:
                self.residuals[key] = nn.Sequential(
                    nn.Linear(shape.width, shape.residual_rank, bias=False),
                    nn.GELU(),
                    nn.Linear(shape.residual_rank, shape.width, bias=False),
                )

    def _embedding_key(self, task: str, modality: str) -> str:
        return _module_key("modality", modality, *((task,) if task in self.shape.isolated else ()))

    def _residual_key(self, task: str) -> str:
        return _module_key("task", task) if task in self.shape.isolated else "shared"

    def _branch(self, task: str) -> TaskBranch:
        return cast(TaskBranch, self.branches[_module_key("task", task)])

    def _trunk(self, task: str, modality: str, features: Tensor) -> Tensor:
        """Return trunk(E[t](b) + sigmoid(g[t]) R(b)) with b = A[t,m](u) + e[t] + e[m], of shape (B, W)."""
        branch = self._branch(task)
        adapted_BW: Tensor = branch.adapters[_module_key("modality", modality)](features)
        b_BW = adapted_BW + branch.embedding + cast(Tensor, self.modality_embeddings[self._embedding_key(task, modality)])
        residual_BW: Tensor = self.residuals[self._residual_key(task)](b_BW)
        v_BW = branch.expert(b_BW) + torch.sigmoid(branch.gate.squeeze()) * residual_BW
        trunk_BW: Tensor = branch.trunk(v_BW)
        return trunk_BW

    def logits(self, task: str, features: Mapping[str, Tensor]) -> Tensor:
        """Return class logits (B, C): the mean over the given modalities of q[t, m](u)."""
        head = cast(nn.Linear, self._branch(task).head)
        logits_BC = [head(functional.gelu(self._trunk(task, m, u))) for m, u in features.items()]
        return logits_BC[0] if len(logits_BC) == 1 else torch.stack(logits_BC).mean(dim=0)

    def embeddings(self, task: str, modality: str, features: Tensor) -> Tensor:
        """Return L2-normalised embeddings (B, W) of a retrieval task; one head serves both modalities."""
        return functional.normalize(self._trunk(task, modality, features), dim=-1)

    def contract(self) -> Contract:
        """Return every parameter as a block with its owner, in the order of ``named_parameters``."""
        owners: dict[str, tuple[Owner, tuple[str, ...]]] = {}
        sharing = tuple(task.name for task in self.shape.tasks if task.name not in self.shape.isolated)
        for task in self.shape.tasks:
            prefix = f"branches.{_module_key('task', task.name)}."
            own = Owner("task", task.name)
            for name, _ in self._branch(task.name).named_parameters():
                owners[prefix + name] = (Owner("class_rows", task.name) if name.startswith("head.") else own, ())
            for modality in task.modalities:
                adapter = f"{prefix}adapters.{_module_key('modality', modality)}."
                owners.update({name: (own, (modality,)) for name in owners if name.startswith(adapter)})
                shared = own if task.name in self.shape.isolated else Owner("modality", modality)
                owners[f"modality_embeddings.{self._embedding_key(task.name, modality)}"] = (shared, (modality,))
            isolated = task.name in self.shape.isolated
            for name, _ in self.residuals[self._residual_key(task.name)].named_parameters():
                owner = own if isolated else Owner("everyone")
                owners[f"residuals.{self._residual_key(task.name)}.{name}"] = (owner, ())
        blocks = []
        for name, parameter in self.named_parameters():
            owner, modalities = owners[name]
            # An isolated task executes copies of its own, and must neither receive nor dilute what the others share.
            tasks = sharing if self.shape.isolated and owner.kind in ("modality", "everyone") else ()
            dtype = str(parameter.dtype).removeprefix("torch.")
            blocks.append(Block(name, tuple(parameter.shape), dtype, owner, modalities, tasks=tasks))
        return Contract(tuple(blocks))

    def fix_gates(self) -> None:
        """Keep every g[t] where it is (the fixed gate of the gate x PCGrad study)."""
        for task in self.shape.tasks:
            self._branch(task.name).gate.requires_grad_(False)


def initial_predictor(shape: PredictorShape, seed: int) -> SharedPredictor:
    """Return the Q that a run of this seed starts from, without touching torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "shared predictor"))
        return SharedPredictor(shape)


def gates_of(shape: PredictorShape, blocks: Blocks) -> dict[str, float]:
    """Return sigmoid(g[t]) of every task from Q's blocks."""
    logits = {task.name: blocks[f"branches.{_module_key('task', task.name)}.gate"].item() for task in shape.tasks}
    return {task: 1.0 / (1.0 + math.exp(-logit)) for task, logit in logits.items()}
