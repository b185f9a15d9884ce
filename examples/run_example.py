"""Run an example app through Flower, on simulated nodes, and check what came out: ``python run_example.py numpy_only``.

The SuperLink, its home and its port are the run's own, nothing is installed on the way, and the exit code tells what happened.
What the app wrote is compared with a replay that sends no message: the same work by every client, merged by ``merge_by_owner``.
"""

import json
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.exchange.contract import SERVER, Blocks, Broadcast, Update
from fedsocket_flwr.runtime.superlink import local_superlink
from fedsocket_flwr.strategies import merge_by_owner

CLIENTS = 4
ROUNDS = 3
RISE = 0.2


def run_through_flower(app: Path, out: Path) -> dict[str, Any]:
    """Do what ``flwr run .`` does in the app's folder, and return the result that the app wrote."""
    with local_superlink() as flower:
        flower.run(app, f"num-supernodes={CLIENTS} client-resources-num-cpus=1", f'num-server-rounds={ROUNDS} out="{out}"')
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def package_of(app: Path) -> str:
    """Return the name of the app's package."""
    settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["tool"]["flwr"]["app"]["components"]["serverapp"]).split(".")[0]


def replay(package: str, rounds: int) -> list[Blocks]:
    """Return all blocks before the first round and after each, as they come of the clients' work and the merge alone."""
    model, members = import_module(f"{package}.model"), import_module(f"{package}.data").MEMBERS
    states: list[Blocks] = [{name: array.numpy() for name, array in model.initial_arrays().items()}]
    for server_round in range(1, rounds + 1):
        updates = []
        for name in sorted(members):
            member = members[name]
            sent = {block.name: states[-1][block.name] for block in model.CONTRACT.readable(member)}
            learned = model.learn(member, Broadcast("replay", server_round, "train", 0, {SERVER: sent}))
            updates.append(Update(name, server_round, server_round, learned, member.examples, member.class_counts))
        states.append(merge_by_owner(model.CONTRACT, states[-1], updates, members)[0])
    return states


def faults_of(result: dict[str, Any], package: str) -> list[str]:
    """Return what is wrong with a result: rounds or answers are missing, a task did not learn, or a merge went another way."""
    members, states = import_module(f"{package}.data").MEMBERS, replay(package, ROUNDS)
    faults = []
    expected = {str(number): len(members) for number in range(1, ROUNDS + 1)}
    if result["answered"] != expected:
        faults.append(f"answers per round are {result['answered']}, expected {expected}")
    accuracy = result["accuracy"]
    for task, before in accuracy["0"].items():
        after = accuracy.get(str(ROUNDS), {}).get(task, 0.0)
        if after < before + RISE:
            faults.append(f"task {task} went from accuracy {before:.3f} to {after:.3f}, expected a rise of {RISE}")
    faults += [
        f"block {name} is not what merge_by_owner gives"
        for name, array in states[-1].items()
        if not np.array_equal(np.array(result["blocks"][name], array.dtype), array)
    ]
    return faults


def main(app: Path) -> int:
    """Run the app in this folder; return 0 when its result is sound."""
    with tempfile.TemporaryDirectory() as folder:
        result = run_through_flower(app, Path(folder) / "result.json")
    # Only now: Flower's processes search the folders of this one, and must run what the app bundles.
    sys.path.insert(0, str(app))
    faults = faults_of(result, package_of(app))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    for task, accuracy in result["accuracy"].get(str(ROUNDS), {}).items():
        print(f"{app.name}: {task}: accuracy {result['accuracy']['0'][task]:.3f} before, {accuracy:.3f} after {ROUNDS} rounds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main((Path(__file__).parent / sys.argv[1]).resolve()))
