"""What keeping private models costs: ten clients' models of 45 MB (ResNet-18, 11.2 M float32), loaded and saved every round.

Each client takes its lock, loads its last version into the model, computes for a while, and saves a new version: the version
before is waited for until it is on the disk, the new one is written over the file that nobody needs any more, with a checksum,
and renamed; the system writes it to the disk meanwhile. The same state is also put into a Flower ``Context`` and carried to a
worker and back by pickling, as the simulation does at every message. Numbers are over clients and rounds, times clients: the
median, the fastest, and the median of the processor's time, which leaves out waiting while other programs run. Two rounds go
before those that count: the third is the first that finds a file to write over.

Run ``python benchmarks/store_cost.py [--clients 10] [--rounds 4] [--seconds 1] [--moments] [--folder DIR]``; it prints a Markdown
table. ``--moments`` keeps Adam's two moments too, three times the bytes.
"""

import argparse
import contextlib
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from fedsocket_flwr.clients.branches import load_module_arrays, module_views, named, under
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.exchange.payload import array_record, read_array_record, serialise
from fedsocket_flwr.models.resnet import ResNet18Trunk
from fedsocket_flwr.runtime.store import ClientStore, Snapshot

AIM = 0.05
SUMMARIES = ("median", "fastest", "processor")


@dataclass(frozen=True)
class Took:
    """Seconds that one part of a client's round took, by the clock and of the processor."""

    clock: float
    processor: float


@dataclass
class Parts:
    """What each client's parts of a round took."""

    load: list[Took] = field(default_factory=list)
    compute: list[Took] = field(default_factory=list)
    save: list[Took] = field(default_factory=list)
    context: list[Took] = field(default_factory=list)


@contextlib.contextmanager
def timed(into: list[Took]) -> Iterator[None]:
    """Note how long the block took."""
    began, worked = time.perf_counter(), time.thread_time()
    yield
    into.append(Took(time.perf_counter() - began, time.thread_time() - worked))


def compute(seconds: float) -> None:
    """Keep the processor busy."""
    matrix, end = torch.rand(256, 256), time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix = (matrix @ matrix).softmax(dim=1)


def models(moments: bool) -> dict[str, torch.nn.Module]:
    """Return the private model, and something of its size for each moment of Adam."""
    names = ("private", "first", "second") if moments else ("private",)
    return {name: ResNet18Trunk(3) for name in names}


def state_of(parts: Mapping[str, torch.nn.Module]) -> Blocks:
    """Return all arrays, which change with the models."""
    return {name: array for part, model in parts.items() for name, array in named(part, module_views(model)).items()}


def load_into(parts: Mapping[str, torch.nn.Module], arrays: Blocks) -> None:
    """Load all models."""
    for part, model in parts.items():
        load_module_arrays(model, under(part, arrays))


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
    parts, took = models(options.moments), Parts()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        stores = [ClientStore(Path(folder), "store-cost", f"client-{k}") for k in range(options.clients)]
        for store in stores:
            store.save(1, Snapshot(state_of(parts), {}), keep=())
        for number in range(2, options.rounds + 4):
            took = Parts() if number == 4 else took
            for store in stores:
                with store.locked():
                    with timed(took.load):
                        load_into(parts, store.load(number - 1).arrays)
                    with timed(took.compute):
                        compute(options.seconds)
                    with timed(took.save):
                        store.save(number, Snapshot(state_of(parts), {"round": number}), keep=(number - 1,))
        for _ in range(3):
            with timed(took.context):
                through_context(state_of(parts))
    report(took, options.clients, sum(array.nbytes for array in state_of(parts).values()))


def report(parts: Parts, clients: int, size: int) -> None:
    """Print what a round costs."""
    base = clients * statistics.median(took.clock for took in parts.compute)
    rows = {name: summaries(getattr(parts, name), clients) for name in ("load", "save", "context")}
    both = [load + save for load, save in zip(rows["load"], rows["save"], strict=True)]
    named_rows = {"loading": rows["load"], "saving": rows["save"], "the store: both": both}
    print(f"{clients} clients compute {base:.2f} s")
    print(f"\n| {size / 1e6:.1f} MB a client | median, s | share of computing | fastest, s | share | processor, s | share |")
    print("|---|" + 6 * "---:|")
    for name, found in (named_rows | {"for comparison: through Flower's Context": rows["context"]}).items():
        print(f"| {name} | {' | '.join(f'{value:.2f} | {value / base:.1%}' for value in found)} |")
    verdicts = [f"{'met' if one / base <= AIM else 'missed'} by the {how}" for one, how in zip(both, SUMMARIES, strict=True)]
    print(f"\nThe aim of at most {AIM:.0%} is {', '.join(verdicts)}.")


def summaries(took: list[Took], clients: int) -> list[float]:
    """Return the median, the fastest and the processor's median of a part, times clients."""
    clocks = [one.clock for one in took]
    return [clients * one for one in (statistics.median(clocks), min(clocks), statistics.median(one.processor for one in took))]


if __name__ == "__main__":
    main()
