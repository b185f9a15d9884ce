"""A client's two branches, Private and Q: how they are made, kept and loaded again.

What they must know of the client's data is a few facts, so that a trained client can be deployed where its data are not.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsocket_flwr.clients.checkpoints import Kept
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.corpus import ClientData
from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, TaskShape, configured_shape
from fedsocket_flwr.models.private import ModelFacts
from fedsocket_flwr.models.registry import build_private_model
from fedsocket_flwr.runtime.store import ClientStore
from fedsocket_flwr.seeds import derive_seed

Array = NDArray[Any]


@dataclass(frozen=True)
class BranchFacts:
    """What both branches and their Joint need to know of a client's data."""

    client: str
    task: str
    kind: Literal["classification", "retrieval"]
    modalities: tuple[str, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    input_shapes: Mapping[str, tuple[int, ...]]
    token_modalities: tuple[str, ...]

    @classmethod
    def of(cls, data: ClientData) -> "BranchFacts":
        """Return the facts of a client's data."""
        shapes = {modality: tuple(values.shape[1:]) for modality, values in data.train.inputs.items()}
        tokens = tuple(modality for modality, values in data.train.features.items() if values.ndim == 3)
        return cls(data.client, data.task, data.kind, data.modalities, data.classes, data.class_counts(), shapes, tokens)

    def to_notes(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return asdict(self)

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> "BranchFacts":
        """Read what :meth:`to_notes` returned, after JSON made lists of the tuples."""
        lists = {name: tuple(notes[name]) for name in ("modalities", "classes", "class_counts", "token_modalities")}
        shapes = {modality: tuple(shape) for modality, shape in notes["input_shapes"].items()}
        return cls(**{**notes, **lists, "input_shapes": shapes})


def new_private(config: Configuration, facts: BranchFacts, device: torch.device, seed: int | None = None) -> nn.Module:
    """Return the client's private model as it is before training, drawn from ``seed``, else from run's seed and client's name."""
    _, settings = config.client(facts.client)
    model_facts = ModelFacts(
        kind=facts.kind,
        classes=len(facts.classes),
        input_shapes=facts.input_shapes,
        text_buckets=config.tasks[facts.task].text_buckets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.run.seed, facts.client, "private model") if seed is None else seed)
        return build_private_model(settings.model, settings.arguments, model_facts).to(device)


def new_q(config: Configuration, facts: BranchFacts, device: torch.device, seed: int = 0) -> SharedPredictor:
    """Return the part of Q that the client can execute; its parameters are to be loaded, or are drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        q = SharedPredictor(executed_shape(config, facts))
    if config.predictor.gate == "fixed":
        q.fix_gates()
    return q.to(device)


def executed_shape(config: Configuration, facts: BranchFacts) -> PredictorShape:
    """Return the shape of the part of Q that the client can execute."""
    modalities = tuple(m for m in config.tasks[facts.task].q_modalities if m in facts.modalities)
    task = TaskShape(facts.task, facts.kind, modalities, len(facts.classes))
    return configured_shape(config, [task], frozenset(facts.token_modalities))


def load_branches(
    config: Configuration, facts: BranchFacts, store: ClientStore, endpoint: str, kept: Kept, device: torch.device
) -> tuple[nn.Module | None, SharedPredictor | None]:
    """Return the Private and the Q that a kept endpoint consists of; None for a branch that it does not use."""
    private: nn.Module | None = None
    q: SharedPredictor | None = None
    if endpoint != "q":
        private = new_private(config, facts, device)
        load_module_arrays(private, under("private", store.load(kept.version).arrays))
    if endpoint != "private":
        q = new_q(config, facts, device)
        load_module_arrays(q, store.load_blocks(q_name(kept.round)))
    return private, q


def module_arrays(module: nn.Module) -> dict[str, Array]:
    """Return parameters and buffers as arrays on the CPU, copied, so that later training leaves them alone."""
    return {name: array.copy() for name, array in module_views(module).items()}


def module_views(module: nn.Module) -> dict[str, Array]:
    """Return parameters and buffers as arrays, which change with the module where it is on the CPU: to be written at once."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}


def load_module_arrays(module: nn.Module, arrays: Blocks) -> None:
    """Load parameters and buffers by name; further arrays are another client's and left alone.

    Raises
    ------
    ContractError
        A name is missing or a shape differs: these are the weights of another architecture.
    """
    state = module.state_dict()
    for name, tensor in state.items():
        if name not in arrays or tuple(arrays[name].shape) != tuple(tensor.shape):
            found = f"shape {tuple(arrays[name].shape)}" if name in arrays else "nothing"
            raise ContractError(f"weights of another architecture: {name!r} has {found}, expected shape {tuple(tensor.shape)}")
    for name, tensor in state.items():
        if tensor.device.type == "cpu":
            # Straight into the module's memory: PyTorch takes no read-only array without copying it first.
            np.copyto(tensor.numpy(), arrays[name], casting="same_kind")
        else:
            tensor.copy_(torch.tensor(np.asarray(arrays[name])))


def q_name(model_round: int) -> str:
    """Return the name under which the Q of a round is kept."""
    return f"q-{model_round:05d}"


def named(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays under ``prefix/``."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin with ``prefix/``, without it."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
