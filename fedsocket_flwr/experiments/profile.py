"""``fedsocket-flwr profile``: what the endpoints of a configuration's clients cost, as FedSocket v1 says in Tables 22 and 23.

One forward pass over a batch of the data set's first rows, untrained: parameters, FLOPs, latency and peak memory do not depend on
what was learned. Operators that torch's counter does not know count as none, as in the paper. Mixing the two branches of Joint is
left out.
"""

import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fedsocket_flwr.clients.branches import BranchFacts, new_private, new_q
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import shared_interface, take
from fedsocket_flwr.datasets.corpus import Corpus, Inputs, Raw, Split
from fedsocket_flwr.datasets.inputs import private_inputs
from fedsocket_flwr.datasets.own_data import own_corpus
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.evaluation.tables import Cell, Column, Table, to_csv, to_markdown
from fedsocket_flwr.learning.objectives import build_objective
from fedsocket_flwr.methods import find_method
from fedsocket_flwr.plain_files import dump_json, write_whole
from fedsocket_flwr.run_preparation import q_parameters
from fedsocket_flwr.runtime.device import choose_device, limited_threads

Work = Callable[[], object]
BATCH = 64
REPEATS = 10


@dataclass(frozen=True)
class Cost:
    """What one endpoint of some equal clients costs.

    Attributes
    ----------
    clients, task, model, endpoint
        Clients of one task with the same private model and modalities.
    parameters
        All of them, as the paper counts: Private, the whole Q with what belongs to other tasks, and ``frozen``.
    frozen
        Those of the fixed interface: a network, or a table of word vectors; a projection is not counted.
    executed
        All but the parts of Q that the client never executes.
    gflops, milliseconds
        Of one sample: a row, or in retrieval a picture and a text.
    peak_mib
        The most that the tensors of the pass take at a time for the whole batch, without parameters and inputs.
    """

    clients: tuple[str, ...]
    task: str
    model: str
    endpoint: str
    parameters: int
    frozen: int
    executed: int
    gflops: float
    milliseconds: float
    peak_mib: float


def parameters(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops(work: Work) -> int:
    """Return the floating-point operations of some work that torch's counter knows: matrix products and convolutions."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        work()
    return int(counter.get_total_flops())


def peak_bytes(work: Work) -> int:
    """Return the most bytes that tensors made by some work take at a time; what was there before does not count."""
    with _LiveBytes() as live, torch.no_grad():
        work()
    return int(live.peak)


def median_seconds(work: Work, device: torch.device, repeats: int = REPEATS) -> float:
    """Return the median time of some work, which is done once before to warm up."""
    seconds = []
    with torch.no_grad():
        for repeat in range(repeats + 1):
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repeat:
                seconds.append(time.perf_counter() - began)
    return float(statistics.median(seconds))


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operators make and that are still alive; a view makes none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in before:
                storage = leaf.untyped_storage()
                self._now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self._now)
        return found

    def _free(self, size: int) -> None:
        self._now -= size


def profile(config: Configuration, batch: int = BATCH) -> list[Cost]:
    """Return the cost of every endpoint of every kind of client, in the order of the file.

    Raises
    ------
    ConfigurationError, DataError
        A model cannot be built, or the data, of which the first ``batch`` rows are read, are not there.
    """
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for task, client in config.clients():
        held = config.tasks[task].held_by(client)
        kinds.setdefault((task, client.model, repr(dict(client.arguments)), held), []).append(client.name)
    costs: list[Cost] = []
    with limited_threads(config.resources.threads):
        for clients in kinds.values():
            costs += _costs(config, tuple(clients), batch)
    return costs


def cost_table(costs: Sequence[Cost]) -> Table:
    """Return the costs as a table."""
    columns = (
        *(Column(name) for name in ("clients", "task", "model", "endpoint")),
        *(Column(name, "integer") for name in ("parameters", "frozen", "executed")),
        *(Column(name, "number") for name in ("GFLOPs/sample", "ms/sample", "peak MiB")),
    )
    rows: list[tuple[Cell, ...]] = []
    for cost in costs:
        names = cost.clients[0] if len(cost.clients) == 1 else f"{cost.clients[0]} and {len(cost.clients) - 1} more"
        sizes = (cost.parameters, cost.frozen, cost.executed)
        rows.append((names, cost.task, cost.model, cost.endpoint, *sizes, cost.gflops, cost.milliseconds, cost.peak_mib))
    return Table(columns, tuple(rows))


def write_profile(costs: Sequence[Cost], batch: int, out: Path) -> None:
    """Write ``profile.json``, ``profile.csv`` and ``profile.md`` into a folder."""
    table = cost_table(costs)
    content = {"batch": batch, "torch": torch.__version__, "endpoints": [asdict(cost) for cost in costs]}
    write_whole(out / "profile.json", dump_json(content, indent=2) + "\n")
    write_whole(out / "profile.csv", to_csv(table))
    write_whole(out / "profile.md", to_markdown(table))


def _costs(config: Configuration, clients: tuple[str, ...], batch: int) -> list[Cost]:
    """Return the costs of the endpoints of some equal clients."""
    client = clients[0]
    name, settings = config.client(client)
    task, device = config.tasks[name], choose_device(config.resources.gpus)
    corpus = own_corpus(config, client, None) if task.has_own_data else read_corpus(task)
    raw, samples = _first_rows(corpus, task.held_by(settings), batch)
    interfaces = {
        modality: shared_interface(config.interfaces[modality]) for modality in raw if modality in task.interface_modalities
    }
    split = _split(config, name, corpus, raw, samples, {m: interfaces[m](raw[m]) for m in interfaces})
    shapes = {modality: tuple(values.shape[1:]) for modality, values in split.inputs.items()}
    tokens = tuple(modality for modality, values in split.features.items() if values.ndim == 3)
    counts = (1,) * len(corpus.classes)
    facts = BranchFacts(client, name, task.kind, tuple(raw), corpus.classes, counts, shapes, tokens)
    objective = build_objective(task.kind, name, split, device, config.training.teaching)
    private = new_private(config, facts, device)
    branches: dict[str, _Branch] = {
        "private": _Branch(
            frozenset(interfaces if task.private_inputs == "features" else ()),
            parameters(private),
            parameters(private),
            lambda: objective.private_table(private),
        )
    }
    if find_method(config.run.method).shares_q:
        q = new_q(config, facts, device)
        branches["q"] = _Branch(frozenset(split.features), q_parameters(config), parameters(q), lambda: objective.q_table(q))
        branches["joint"] = branches["private"].together_with(branches["q"])
    costs = []
    for endpoint, branch in branches.items():
        frozen = sum(interfaces[modality].parameters for modality in branch.interfaces)

        def work(branch: _Branch = branch) -> None:
            for modality in sorted(branch.interfaces):
                interfaces[modality](raw[modality])
            branch.run()

        costs.append(
            Cost(
                clients,
                name,
                settings.model,
                endpoint,
                branch.parameters + frozen,
                frozen,
                branch.executed + frozen,
                flops(work) / samples / 1e9,
                1e3 * median_seconds(work, device) / samples,
                peak_bytes(work) / 2**20,
            )
        )
    return costs


@dataclass(frozen=True)
class _Branch:
    """An endpoint's pass: the modalities whose interface it reads, its own parameters, and those of them that it executes."""

    interfaces: frozenset[str]
    parameters: int
    executed: int
    run: Work

    def together_with(self, other: "_Branch") -> "_Branch":
        def both() -> object:
            return self.run(), other.run()

        return _Branch(
            self.interfaces | other.interfaces, self.parameters + other.parameters, self.executed + other.executed, both
        )


def _first_rows(corpus: Corpus, held: Sequence[str], batch: int) -> tuple[dict[str, Raw], int]:
    """Return the first rows of every modality, decoded, and how many samples they are."""
    rows = dict.fromkeys(held, np.arange(min(batch, len(corpus.labels) if corpus.labels is not None else 0)))
    if corpus.pairs is not None:
        rows = {"image": corpus.pairs[:batch, 0], "text": corpus.pairs[:batch, 1]}
    taken = {modality: take(corpus.raw[modality], rows[modality]) for modality in held}
    return {m: raw[:] if isinstance(raw, Pictures) else raw for m, raw in taken.items()}, len(rows[held[0]])


def _split(
    config: Configuration, name: str, corpus: Corpus, raw: Mapping[str, Raw], samples: int, features: Mapping[str, Any]
) -> Split:
    task = config.tasks[name]
    inputs: Mapping[str, Inputs] = features
    if task.private_inputs == "raw":
        inputs = {modality: private_inputs(modality, rows, task) for modality, rows in raw.items()}
    read = {modality: values for modality, values in features.items() if modality in task.q_modalities}
    if corpus.pairs is not None:
        return Split(inputs, read, pairs=np.stack([np.arange(samples)] * 2, axis=1))
    return Split(inputs, read, labels=np.zeros(samples, dtype=np.int64))
