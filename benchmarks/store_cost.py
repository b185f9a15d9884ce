"""What keeping private models costs: ten clients' models of 45 MB (ResNet-18, 11.2 M float32), loaded and saved every round.

Each client takes its lock, loads its last version into the model, computes for a while, and saves a new version: the version
before is waited for until it is on the disk, the new one is written over the file that nobody needs any more, with a checksum,
and renamed; the system writes it to the disk meanwhile. The same state is also put into a Flower ``Context`` and carried to a
worker and back by pickling, as the simulation does at every message. Numbers are over clients and rounds, times clients: the
median, and the fastest, which other programs disturb least.

Run ``python benchmarks/store_cost.py [--clients 10] [--rounds 4] [--seconds 1] [--moments] [--folder DIR]``; it prints a Markdown
table. ``--moments`` keeps Adam's two moments too, three times the bytes.
"""

import argparse
import contextlib
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from fedsocket_flwr.clients.branches import load_module_arrays, module_arrays, module_views
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.exchange.payload import array_record, read_array_record, serialise
from fedsocket_flwr.models.resnet import ResNet18Trunk
from fedsocket_flwr.runtime.store import ClientStore, Snapshot

AIM = 0.05


@dataclass
class Seconds:
    """Seconds that each client's parts of a round took."""

    load: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    save: list[float] = field(default_factory=list)
    context: list[float] = field(default_factory=list)


@contextlib.contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Note how long the block took."""
    began = time.perf_counter()
    yield
    into.append(time.perf_counter() - began)


def compute(seconds: float) -> None:
    """Keep the processor busy."""
    matrix, end = torch.rand(256, 256), time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix = (matrix @ matrix).softmax(dim=1)


def state_of(model: torch.nn.Module, moments: bool) -> Blocks:
    """Return a model's arrays by name, and as many again for each moment."""
    found = module_arrays(model)
    if moments:
        found |= {f"{moment}/{name}": array * 0.5 for moment in ("first", "second") for name, array in found.items()}
    return found


def through_context(arrays: Blocks) -> None:
    """Put the state into a context and carry it to a worker and back, as Flower's simulation does at every message."""
    state = RecordDict({"private": array_record(serialise(arrays))})
    context = Context(run_id=1, node_id=1, node_config={}, state=state, run_config={})
    for _ in range(2):
        context = pickle.loads(pickle.dumps(context))
    read_array_record(context.state.array_records["private"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="what a client computes in a round")
    parser.add_argument("--moments", action="store_true", help="keep Adam's moments too")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: the temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, seconds = ResNet18Trunk(3), Seconds()
    state = state_of(model, options.moments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        stores = [ClientStore(Path(folder), "store-cost", f"client-{k}") for k in range(options.clients)]
        for store in stores:
            store.save(1, Snapshot(state, {}), keep=())
        for number in range(2, options.rounds + 2):
            for store in stores:
                with store.locked():
                    with timed(seconds.load):
                        arrays = store.load(number - 1).arrays
                        load_module_arrays(model, arrays)
                    with timed(seconds.compute):
                        compute(options.seconds)
                    with timed(seconds.save):
                        store.save(number, Snapshot({**arrays, **module_views(model)}, {"round": number}), keep=())
        for _ in range(3):
            with timed(seconds.context):
                through_context(state)
    report(seconds, options.clients, sum(array.nbytes for array in state.values()))


def report(seconds: Seconds, clients: int, size: int) -> None:
    """Print what a round costs."""
    parts = (seconds.load, seconds.compute, seconds.save, seconds.context)
    rows = [[clients * summary(part) for summary in (statistics.median, min)] for part in parts]
    load, computed, save, context = rows
    store = [one + other for one, other in zip(load, save, strict=True)]
    print(f"| a round of {clients} clients, {size / 1e6:.1f} MB each | seconds | share of computing | fastest, seconds | share |")
    print("|---|---:|---:|---:|---:|")
    named = {"computing": computed, "loading": load, "saving": save, "the store: both": store}
    for name, found in (named | {"for comparison: through Flower's Context": context}).items():
        cells = (f"{value:.2f} | {value / base:.1%}" for value, base in zip(found, computed, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")
    verdicts = ["met" if one / base <= AIM else "missed" for one, base in zip(store, computed, strict=True)]
    print(f"\nThe aim of at most {AIM:.0%} is {verdicts[0]} by the median, {verdicts[1]} by the fastest.")


if __name__ == "__main__":
    main()
