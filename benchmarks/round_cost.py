"""What a round costs: a bare PyTorch loop against the engines, on the same clients, models, batches, losses and measuring.

The loop (``bare_loop.py``) is the reference at one thread, where it does exactly the engines' work (the second table compares Q),
and is timed at torch's default threads too. Rounds of the loop and of the engine in process take turns in one process, so that
both meet the same load of the machine; Ray follows with one worker and with two. The first round (warm-up epochs, caches) is left
out; the numbers are medians over rounds.

Run ``python benchmarks/round_cost.py [--config demo] [--rounds 6] [--repeats 1]``; it prints Markdown tables.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_loop import bare_rounds

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.datasets.client_data import open_client_data, warm_features
from fedsocket_flwr.datasets.corpus import ClientData
from fedsocket_flwr.plain_files import read_json_lines
from fedsocket_flwr.runtime.callbacks import Row, RunFacts
from fedsocket_flwr.runtime.run_files import load_checkpoint

REFERENCE = "bare loop, 1 thread"


@dataclass
class Timed:
    """Seconds of every round, and Q after the last one."""

    seconds: list[float] = field(default_factory=list)
    q: Mapping[str, Any] = field(default_factory=dict)


class Loop:
    """The bare loop with its clock."""

    def __init__(self, config: Configuration, data: Sequence[ClientData], threads: int) -> None:
        self._rounds = bare_rounds(config, data)
        self._threads = threads
        self.timed = Timed()

    def step(self) -> None:
        """Do one round."""
        torch.set_num_threads(self._threads)
        began = time.perf_counter()
        q = next(self._rounds)
        self.timed.seconds.append(time.perf_counter() - began)
        self.timed.q = {name: tensor.numpy() for name, tensor in q.items()}


class Turns:
    """A callback of the engine in process: after each of its rounds the loop does one, too."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._began = 0.0
        self.timed = Timed()

    def on_start(self, run: RunFacts) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_phase(self, row: Row) -> None:
        """Stop the clock and let the loop do its round."""
        if row["phase"] == "train":
            self.timed.seconds.append(time.perf_counter() - self._began)
            self._loop.step()
        self._began = time.perf_counter()

    def on_end(self, status: str) -> None:
        """Do nothing."""


def run_engine(config: Configuration, out: Path, engine: engines.Engine, turns: Turns | None = None) -> Timed:
    folder = engines.start(config, out, engine, [] if turns is None else [turns])
    rows = [row for row in read_json_lines(folder / "history.jsonl")[0] if row["phase"] == "train"]
    checkpoint = load_checkpoint(folder)
    assert checkpoint is not None
    return Timed([row["seconds"] for row in rows], checkpoint.blocks)


def compare(config: Configuration, rounds: int, repeats: int, home: Path) -> dict[str, Timed]:
    config = config.model_copy(update={"run": config.run.model_copy(update={"rounds": rounds})})
    default = torch.get_num_threads()
    names = [client.name for _, client in config.clients()]
    warm_features(config, home / "features")
    data = [open_client_data(config, name, home / "features") for name in names]
    found: dict[str, Timed] = {}

    def add(name: str, timed: Timed) -> None:
        found.setdefault(name, Timed()).seconds.extend(timed.seconds[1:])
        found[name].q = timed.q

    for repeat in range(repeats):
        loop = Loop(config, data, threads=1)
        turns = Turns(loop)
        engine = run_engine(config, home / f"inprocess-{repeat}", "inprocess", turns)
        add(REFERENCE, loop.timed)
        add("in process", engine)
        add("in process, with history and checkpoint", turns.timed)
        for workers in (1, 2):
            resources = config.resources.model_copy(update={"workers": workers})
            ray = run_engine(config.model_copy(update={"resources": resources}), home / f"ray-{workers}-{repeat}", "ray")
            add(f"Ray, {workers} worker{'s' if workers > 1 else ''}", ray)
        loop = Loop(config, data, default)
        for _ in range(rounds):
            loop.step()
        add(f"bare loop, default threads ({default})", loop.timed)
    return found


def print_tables(found: Mapping[str, Timed]) -> None:
    reference = found[REFERENCE]
    print("\n| | seconds a round (median) | fastest | slowest | ratio to the loop at 1 thread |\n|---|---:|---:|---:|---:|")
    for name, timed in found.items():
        median = statistics.median(timed.seconds)
        ratio = median / statistics.median(reference.seconds)
        print(f"| {name} | {median:.2f} | {min(timed.seconds):.2f} | {max(timed.seconds):.2f} | {ratio:.2f} |")
    print("\n| Q after the last round, against the loop at 1 thread | |\n|---|---|")
    for name, timed in found.items():
        if timed is not reference and timed.q:
            largest = max(float(np.abs(np.subtract(timed.q[block], reference.q[block])).max()) for block in reference.q)
            print(f"| {name} | {'the same bits' if largest == 0 else f'largest difference {largest:.1e}'} |")


def require_comparable(config: Configuration) -> None:
    """Refuse settings that the loop does not have."""
    teaching, training = config.training.teaching, config.training
    plain = (
        config.run.method == "fedsocket"
        and config.exchange.sharing == "shared"
        and config.participation.share == 1
        and not config.participation.tasks
        and (config.merging.residual, config.merging.modality) == ("projected", "mean")
        and (training.private_optimiser, training.q_optimiser) == ("keep", "reset")
        and min(teaching.distil_private, teaching.fusion, teaching.distil_q) > 0
        and config.resources.threads == 1
    )
    if not plain:
        raise SystemExit("the bare loop is FedSocket with the default settings, everyone asked and one thread a client")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="demo", help="a configuration: a path, or the name of a shipped one")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of every run; the first is left out")
    parser.add_argument("--repeats", type=int, default=1, help="how often the whole comparison is made")
    options = parser.parse_args()
    if options.rounds < 2:
        raise SystemExit("--rounds must be at least 2: the first round is left out")
    config = read_configuration(options.config)
    require_comparable(config)
    with tempfile.TemporaryDirectory(prefix="fedsocket-round-cost-") as folder:
        os.environ["FEDSOCKET_HOME"] = folder
        print_tables(compare(config, options.rounds, options.repeats, Path(folder)))


if __name__ == "__main__":
    main()
