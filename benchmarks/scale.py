"""What a thousand clients cost: memory and seconds of a run of six rounds with fifty clients each, in process and through Ray.

Every run has a process of its own. This process watches it and all that it starts, and adds up their proportional set sizes (PSS
in ``/proc/PID/smaps_rollup``: a page that several processes share counts once), so it needs Linux. The pages of programs and
libraries are shared with every other Python on the machine, and their share changes as those come and go; the growth is therefore
that of what the run itself allocated (anonymous and shared memory), from the last sample of one round to that of another.

Run ``python benchmarks/scale.py [--clients 1000] [--rounds 6] [--engine inprocess ray]``; it prints Markdown tables.
"""

import argparse
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration

SHARE = 0.05
ROWS = 20_000
SAMPLE_SECONDS = 0.25
CHILD = "--run"
PR_SET_CHILD_SUBREAPER = 36
GIBIBYTE = 2**30


def configuration(clients: int, rounds: int) -> Configuration:
    """Return a task of small pictures, dealt to many clients with private models of two kinds."""
    models = ({"model": "image_mlp", "arguments": {"hidden": 16}}, {"model": "image_cnn", "arguments": {"width": 4}})
    content: dict[str, Any] = {
        "run": {"name": "scale", "seed": 1, "rounds": rounds},
        "interfaces": {"image": {"kind": "pixels", "width": 64, "norm": 8, "options": {"size": 8}}},
        "tasks": {
            "shapes": {
                "dataset": "toy_images",
                "kind": "classification",
                "modalities": ["image"],
                "options": {"rows": ROWS, "classes": 10, "size": 8},
                "partition": {"kind": "iid", "dev": 1000, "test": 2000},
                "clients": [{"name": f"client-{k:04d}", **models[k % len(models)]} for k in range(clients)],
            }
        },
        "predictor": {"width": 64, "residual_rank": 16},
        "training": {
            "warm_up_epochs": 1,
            "private": {"image": {"optimiser": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epochs": 1, "batch_size": 16}},
        },
        "participation": {"share": SHARE},
    }
    return Configuration.model_validate(content)


class Sizes(NamedTuple):
    """Bytes of all processes of a run: everything, and without the pages of files."""

    everything: int
    allocated: int


@dataclass
class Watched:
    """What was seen of one run: memory by round, and when things happened."""

    peak: int = 0
    peak_processes: int = 0
    by_round: dict[int, list[Sizes]] = field(default_factory=dict)
    prepared: float = 0.0
    first_round: float = 0.0
    trained: float = 0.0
    total: float = 0.0
    rows: Sequence[Mapping[str, Any]] = ()
    files: dict[str, int] = field(default_factory=dict)


def watch(process: "subprocess.Popen[bytes]", folder: Path, rounds: int) -> Watched:
    seen, began, history = Watched(), time.perf_counter(), folder / "history.jsonl"
    while process.poll() is None:
        processes = proportional_sizes()
        found = Sizes(sum(size.everything for size in processes), sum(size.allocated for size in processes))
        elapsed, done = time.perf_counter() - began, history.read_bytes().count(b"\n") if history.exists() else -1
        if found.everything > seen.peak:
            seen.peak, seen.peak_processes = found.everything, len(processes)
        if done >= 0:
            seen.prepared = seen.prepared or elapsed
            seen.by_round.setdefault(done + 1, []).append(found)
        if done >= 1:
            seen.first_round = seen.first_round or elapsed
        if done >= rounds:
            seen.trained = seen.trained or elapsed
        time.sleep(SAMPLE_SECONDS)
    seen.total = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"the run failed with exit status {process.returncode}")
    seen.rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    seen.files = {name: (folder / name).stat().st_size for name in ("config.yaml", "splits.json", "history.jsonl")}
    return seen


def proportional_sizes() -> list[Sizes]:
    """Return the PSS of every process below this one."""
    below, parents = {os.getpid()}, _parents()
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return [size for pid in below - {os.getpid()} if (size := _proportional_size(pid)) is not None]


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name stands in parentheses and may hold anything.
            found[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def _proportional_size(pid: int) -> Sizes | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    kibibytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    if not kibibytes:
        return None
    return Sizes(1024 * kibibytes["Pss"], 1024 * (kibibytes["Pss_Anon"] + kibibytes["Pss_Shmem"]))


def run_watched(engine: str, clients: int, rounds: int) -> Watched:
    with tempfile.TemporaryDirectory(prefix="fedsocket-scale-") as home:
        folder = Path(home) / "run"
        command = [sys.executable, __file__, CHILD, engine, str(folder), str(clients), str(rounds)]
        environment = {**os.environ, "FEDSOCKET_HOME": home}
        log_path = Path(home) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                return watch(process, folder, rounds)
            except SystemExit:
                print(log_path.read_text(encoding="utf-8", errors="replace")[-3000:], file=sys.stderr)
                raise
            finally:
                process.terminate()
                process.wait()


def print_tables(found: Mapping[str, Watched], rounds: int) -> None:
    engines_found = list(found)
    print(f"| | {' | '.join(engines_found)} |\n|---|{'---:|' * len(found)}")

    def line(name: str, values: Sequence[str]) -> None:
        print(f"| {name} | {' | '.join(values)} |")

    def allocated(seen: Watched, server_round: int) -> int:
        return seen.by_round[server_round][-1].allocated

    def everything(seen: Watched, server_round: int) -> int:
        return max(size.everything for size in seen.by_round[server_round])

    for number in range(1, rounds + 1):
        sizes = [f"{allocated(s, number) / GIBIBYTE:.3f} ({everything(s, number) / GIBIBYTE:.2f})" for s in found.values()]
        line(f"after round {number}: GiB allocated (most during it, with files)", sizes)
    line(
        "growth from round 2 of what is allocated, %",
        [f"{100 * (allocated(s, rounds) / allocated(s, 2) - 1):+.1f}" for s in found.values()],
    )
    line("peak of the whole run, GiB (processes)", [f"{s.peak / GIBIBYTE:.2f} ({s.peak_processes})" for s in found.values()])
    line("until registration begins, s", [f"{s.prepared:.1f}" for s in found.values()])
    line("registration, s", [f"{s.first_round - s.prepared - s.rows[0]['seconds']:.1f}" for s in found.values()])
    seconds = {name: [row["seconds"] for row in s.rows if row["phase"] == "train"] for name, s in found.items()}
    line("seconds a round (median after the first)", [f"{statistics.median(s[1:]):.2f}" for s in seconds.values()])
    line("closing, TEST and report, s", [f"{s.total - s.trained:.1f}" for s in found.values()])
    line("whole run, s", [f"{s.total:.1f}" for s in found.values()])
    for name in ("config.yaml", "splits.json", "history.jsonl"):
        line(f"{name}, MB", [f"{s.files[name] / 1e6:.2f}" for s in found.values()])


def main() -> None:
    # As after Ctrl-C: what was started is taken down.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if sys.argv[1:2] == [CHILD]:
        engine, folder, clients, rounds = sys.argv[2:]
        engines.start(configuration(int(clients), int(rounds)), Path(folder), cast(engines.Engine, engine))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--engine", nargs="+", choices=("inprocess", "ray"), default=["inprocess", "ray"])
    options = parser.parse_args()
    # Processes whose parent has ended become children of this one, so that none escapes the count.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print_tables({engine: run_watched(engine, options.clients, options.rounds) for engine in options.engine}, options.rounds)


if __name__ == "__main__":
    main()
