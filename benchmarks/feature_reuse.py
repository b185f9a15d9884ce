"""How long a run takes to its first round: once with an empty feature cache, then again with what the first one left.

Each start is a process of its own, from its beginning (Python, imports) over the check of data and models, preparation, features,
and registration of every client, to the moment at which the first round would be sent; there it stops. Flower's own start (Ray,
SuperLink) is no part of it, since the clients are called in process. Needs the packages of the data and interfaces that it names.

Run ``python benchmarks/feature_reuse.py [--config demo] [--set KEY=VALUE ...]``; it prints a Markdown table. Without ``--set``
the demo's pictures are read by EfficientNet-Lite0 at 64 x 64, and its texts by GloVe 6B 50d.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

AIM = 10.0
CHILD = "--until-the-first-round"
INTERFACES = (
    "interfaces.image={kind: efficientnet_lite0, width: 256, norm: 16, options: {size: 64}}",
    "interfaces.text={kind: glove, width: 256, norm: 16, options: {vectors: glove-6b-50d}}",
)


def until_the_first_round(config: str, overrides: Sequence[str], out: Path) -> None:
    """Start a run in this process, print when each step was done, and end the process where the first round begins."""
    from fedsocket_flwr import engines, server_app
    from fedsocket_flwr.configuration_file import read_configuration
    from fedsocket_flwr.run_preparation import prepare_run

    def first_round(*arguments: Any, **keywords: Any) -> None:
        tell("registration")
        os._exit(0)

    patch.object(server_app, "run_rounds", first_round).start()
    tell("imports")
    folder = prepare_run(read_configuration(config, list(overrides)), out, "inprocess")
    tell("check and preparation")
    engines.compute_features(folder)
    tell("features")
    engines.carry_out(folder, "inprocess")


def tell(step: str) -> None:
    print(f"{step}\t{time.time()}", flush=True)


def measured(config: str, overrides: Sequence[str], folder: Path, name: str) -> dict[str, float]:
    """Return the seconds of each step of one start."""
    command = [sys.executable, __file__, CHILD, "--config", config, *(f"--set={override}" for override in overrides)]
    began = time.time()
    done = subprocess.run(
        [*command, "--out", str(folder / name)],
        env=os.environ | {"FEDSOCKET_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    times = [
        (step, float(moment)) for step, _, moment in (line.partition("\t") for line in done.stdout.splitlines() if "\t" in line)
    ]
    before = [began, *(moment for _, moment in times)]
    return {step: moment - start for (step, moment), start in zip(times, before, strict=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="demo")
    parser.add_argument("--set", dest="overrides", action="append", metavar="KEY=VALUE")
    parser.add_argument(CHILD, dest="child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    overrides = INTERFACES if options.overrides is None and options.config == "demo" else options.overrides or ()
    if options.child:
        until_the_first_round(options.config, overrides, options.out)
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (measured(options.config, overrides, Path(folder), name) for name in ("cold", "warm"))
    print("| step | first run, seconds | second run, seconds |\n|---|---:|---:|")
    for step in cold:
        print(f"| {step} | {cold[step]:.1f} | {warm[step]:.1f} |")
    print(f"| **to the first round** | {sum(cold.values()):.1f} | {sum(warm.values()):.1f} |")
    print(f"\nThe aim of less than {AIM:.0f} s for the second run is {'met' if sum(warm.values()) < AIM else 'missed'}.")


if __name__ == "__main__":
    main()
