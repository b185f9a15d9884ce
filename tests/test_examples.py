"""The apps of other projects under ``examples``, in this process, and what docs/reuse.md shows of them."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fedsocket_flwr.exchange.contract import Blocks, Broadcast
from fedsocket_flwr.exchange.payload import read_broadcast
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from tests.small_federation import same_bits

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
APPS = {"fruit_and_weather": "numpy_only", "waves_and_pictures": "reuse_strategy"}
PAGE = (ROOT / "docs" / "reuse.md").read_text(encoding="utf-8")
EXCERPT = re.compile(r"<!-- (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)

each_app = pytest.mark.parametrize("package", APPS)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (EXAMPLES, *(EXAMPLES / app for app in APPS.values())):
        monkeypatch.syspath_prepend(folder)


@pytest.fixture
def run_example() -> ModuleType:
    """Return the script that runs an example through Flower."""
    return importlib.import_module("run_example")


def part(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name}")


def blocks_of(result: dict[str, Any], package: str) -> dict[str, Any]:
    return {block.name: np.array(result["blocks"][block.name], block.dtype) for block in part(package, "model").CONTRACT.blocks}


def start(package: str) -> Blocks:
    return {name: array.numpy() for name, array in part(package, "model").initial_arrays().items()}


def run_here(package: str, out: Path, client_app: Any = None, rounds: int = 3) -> dict[str, Any]:
    """Run ServerApp and ClientApp of an example in this process, and return what the ServerApp wrote."""
    members = part(package, "data").MEMBERS
    nodes = [{"partition-id": number, "num-partitions": len(members)} for number in range(len(members))]
    run_config = {"num-server-rounds": rounds, "out": str(out)}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    part(package, "server_app").app(InProcessGrid(client_app or part(package, "client_app").app, nodes), context)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


@each_app
def test_both_tasks_learn_and_blocks_are_what_the_merge_gives(package: str, run_example: ModuleType, tmp_path: Path) -> None:
    result = run_here(package, tmp_path / "result.json")
    assert run_example.faults_of(result, package) == []
    # The client's name in the node configuration, as a SuperNode has it, leads to the same bits.
    members = part(package, "data").MEMBERS
    by_name = InProcessGrid(part(package, "client_app").app, [{"client": name} for name in reversed(members)])
    run_config = {"num-server-rounds": 3, "out": str(tmp_path / "by name.json")}
    part(package, "server_app").app(by_name, Context(1, 1, {}, RecordDict(), run_config))
    assert json.loads((tmp_path / "by name.json").read_text(encoding="utf-8")) == result


@each_app
@pytest.mark.parametrize("silent", [0, 1])
def test_a_tasks_blocks_change_only_by_its_clients(package: str, silent: int, tmp_path: Path) -> None:
    task = list(part(package, "data").TASKS)[silent]
    sent: dict[str, list[str]] = {}

    def client_app(message: Message, context: Context) -> Message:
        module = part(package, "client_app")
        member = module.member_of(context)
        if message.metadata.message_type == "train":
            sent[member.client] = list(read_broadcast(message).blocks)
            if member.task == task:
                raise RuntimeError("this client is out of order")
        answer: Message = module.app(message, context)
        return answer

    result = run_here(package, tmp_path / "result.json", client_app, rounds=1)
    assert result["answered"] == {"1": 2}
    before, after, contract = start(package), blocks_of(result, package), part(package, "model").CONTRACT
    kept = {name for name in before if np.array_equal(before[name], after[name])}
    assert kept == {block.name for block in contract.blocks if block.owner.key == task}
    owners = {client: {contract[name].owner.key for name in names} for client, names in sent.items()}
    assert owners == {client: {"", member.task} for client, member in part(package, "data").MEMBERS.items()}


@each_app
def test_the_row_of_a_class_comes_from_who_holds_it(package: str, run_example: ModuleType) -> None:
    model, members = part(package, "model"), part(package, "data").MEMBERS
    lacking = next(member for member in members.values() if 0 in member.class_counts)
    holding = next(member for member in members.values() if member.task == lacking.task and member != lacking)
    before, after = run_example.replay(package, 1)
    sent = {block.name: before[block.name] for block in model.CONTRACT.readable(holding)}
    learned = model.learn(holding, Broadcast("replay", 1, "train", 0, {"server": sent}))
    row = lacking.class_counts.index(0)
    heads = [
        block.name for block in model.CONTRACT.blocks if block.owner.key == lacking.task and block.owner.kind == "class_rows"
    ]
    assert len(heads) == 2
    for name in heads:
        assert np.array_equal(after[name][row], learned[name][row])
        assert not np.array_equal(after[name][0], learned[name][0])


@each_app
def test_learning_leaves_what_arrived_alone_and_repeats_to_the_bit(package: str) -> None:
    model, member = part(package, "model"), next(iter(part(package, "data").MEMBERS.values()))
    sent = {block.name: start(package)[block.name] for block in model.CONTRACT.readable(member)}
    broadcast = Broadcast("run", 1, "train", 0, {"server": sent})
    before = {name: array.copy() for name, array in sent.items()}
    first, second = model.learn(member, broadcast), model.learn(member, broadcast)
    assert same_bits(sent, before)
    assert same_bits(first, second)
    assert list(first) == list(sent)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda found: found["answered"].update({"2": 3}), "answers per round are"),
        (lambda found: found["answered"].pop("3"), "answers per round are"),
        (lambda found: found["accuracy"]["3"].update(weather=0.55), "task weather went from accuracy 0.500 to 0.550"),
        (lambda found: found["blocks"]["reading"][0].__setitem__(0, 1e-3), "block reading is not what merge_by_owner gives"),
    ],
)
def test_the_script_tells_a_bad_result(
    spoil: Any, fault: str, run_example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    result = run_here("fruit_and_weather", tmp_path / "result.json")
    monkeypatch.setattr(run_example, "run_through_flower", lambda app, out: result)
    assert run_example.main(EXAMPLES / "numpy_only") == 0
    spoil(result)
    assert run_example.main(EXAMPLES / "numpy_only") == 1
    assert f"error: {fault}" in capsys.readouterr().err


def test_the_example_in_numpy_needs_no_torch() -> None:
    program = "import sys, fruit_and_weather.server_app, fruit_and_weather.client_app; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=EXAMPLES / "numpy_only",
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.strip() == "False"


@each_app
def test_an_example_uses_nothing_of_the_package_but_strategies_and_exchange(package: str) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (EXAMPLES / APPS[package] / package).glob("*.py"))
    used = set(re.findall(r"(?:from|import) (fedsocket_flwr\.\w+)", sources))
    assert used == {"fedsocket_flwr.exchange", "fedsocket_flwr.strategies"}


def test_the_page_shows_the_examples_as_they_are() -> None:
    excerpts = EXCERPT.findall(PAGE)
    assert PAGE.count("```python") == len(excerpts)
    for path, code in excerpts:
        assert code in (ROOT / path).read_text(encoding="utf-8"), path
