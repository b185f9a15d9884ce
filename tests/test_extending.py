"""What docs/extending.md says, done: the code on the page is that of ``examples/extending``, and here it runs."""

import csv
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import checking, engines
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.datasets import catalogue
from fedsocket_flwr.datasets.interfaces import EXTRACTORS, build_interface
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.methods import METHODS, find_method
from fedsocket_flwr.models.registry import PRIVATE_MODELS
from fedsocket_flwr.plain_files import read_json, read_json_lines
from tests.toy_runs import read_outcome, run_quickly

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "extending"
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"<!-- (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder is on the path, as PYTHONPATH would have it, and registries end as they were."""
    monkeypatch.syspath_prepend(EXAMPLES)
    registries: list[dict[str, Any]] = [catalogue.CATALOGUE, EXTRACTORS, PRIVATE_MODELS, METHODS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, rows in zip(registries, before, strict=True):
        registry.clear()
        registry.update(rows)


def wearable(*overrides: str) -> Configuration:
    return read_configuration(EXAMPLES / "wearable.yaml", overrides)


def test_the_page_shows_every_example_as_it_is() -> None:
    shown = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    files = [path for path in sorted(EXAMPLES.rglob("*")) if path.suffix in (".py", ".yaml") and path.name != "__init__.py"]
    assert shown == {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def test_a_task_is_configuration_only(tmp_path: Path) -> None:
    config = read_configuration(EXAMPLES / "two_tasks.yaml")
    owners = {(block.owner.kind, block.owner.key) for block in checking.check_configuration(config).contract.blocks}
    assert owners == {
        ("task", "topics"),
        ("task", "authors"),
        ("class_rows", "topics"),
        ("class_rows", "authors"),
        ("modality", "text"),
        ("everyone", ""),
    }
    outcome = run_quickly(config, tmp_path / "run")
    assert {entry["task"] for entry in outcome.test.values()} == {"topics", "authors"}


def test_modality_data_interface_models_method_and_callback_run_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("run_wearable").main(tmp_path / "run")
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["method"] == "wearable.rows:MEDIAN"
    # Chance is a third; the spectrum tells the activities apart.
    assert summary["endpoints"]["activity"]["q"]["accuracy"] > 0.8
    history = read_json_lines(tmp_path / "run" / "history.jsonl")[0]
    assert all(row["strategy"]["median_of"] == 3 for row in history if row["phase"] == "train")
    assert "walk" in capsys.readouterr().out

    with (tmp_path / "run-dev.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    told = {(line[0], line[2]): float(line[4]) for line in lines[1:-1] if line[3] == "accuracy"}
    assert lines[-1] == ["end", "", "", "", "finished"]
    assert told == {
        (str(row["dev"]["round"]), endpoint): row["dev"]["tasks"]["activity"][endpoint]["accuracy"]
        for row in history
        if "dev" in row
        for endpoint in ("private", "q", "joint")
    }


def test_names_registered_in_this_process_mean_the_same_bits(tmp_path: Path) -> None:
    importlib.import_module("register_names").register()
    named = (
        "run.method=median",
        "tasks.activity.dataset=recordings",
        "tasks.activity.clients[0].model=signal_cnn",
        "tasks.activity.clients[1].model=signal_cnn",
    )
    by_path, by_name = run_quickly(wearable(), tmp_path / "path"), run_quickly(wearable(*named), tmp_path / "name")
    assert by_name.test == by_path.test
    assert {name: array.tobytes() for name, array in by_name.q.items()} == {n: a.tobytes() for n, a in by_path.q.items()}
    assert build_interface(wearable("interfaces.accelerometer.kind=spectrum").interfaces["accelerometer"]).width == 16


def test_the_median_leaves_the_rows_of_absent_classes_alone(tmp_path: Path) -> None:
    outcome = run_quickly(
        wearable("tasks.activity.clients=[{name: anna, natural_id: wearer 1, model: wearable.models:SignalGRU}]"),
        tmp_path / "one",
    )
    assert np.isfinite(outcome.q["branches.task/activity.head.weight"]).all()
    from fedsocket_flwr.exchange.contract import Block, Owner, Update

    median = importlib.import_module("wearable.median")
    block = Block("head", (3, 1), "float32", Owner("class_rows", "activity"))
    answers = [
        Update("a", 1, 1, {"head": np.array([[1], [1], [9]], dtype=np.float32)}, 4, (2, 2, 0)),
        Update("b", 1, 1, {"head": np.array([[3], [5], [9]], dtype=np.float32)}, 4, (1, 0, 0)),
    ]
    merged = median._median(block, np.array([[7], [7], [7]], dtype=np.float32), answers)
    assert merged.tolist() == [[2], [1], [7]]


def test_an_own_method_continues_a_cut_run_to_the_same_bits(tmp_path: Path) -> None:
    whole = run_quickly(wearable(), tmp_path / "whole")
    engines.start(wearable("run.rounds=1"), tmp_path / "cut", "inprocess")
    engines.resume(tmp_path / "cut", "inprocess", rounds=3)
    cut = read_outcome(tmp_path / "cut")
    assert cut.test == whole.test
    assert {name: array.tobytes() for name, array in cut.q.items()} == {n: a.tobytes() for n, a in whole.q.items()}


def test_a_strategy_of_ones_own_needs_no_torch() -> None:
    program = "import sys, wearable.median, wearable.rows; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() == "False"


def test_data_prepare_takes_an_import_path() -> None:
    found = catalogue.prepare("wearable.rows:RECORDINGS")
    assert found["rows of accelerometer"] == "120"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.method=wearable.rows:MEDAIN", "run.method.*the module wearable.rows has no 'MEDAIN'; did you mean 'MEDIAN'"),
        ("run.method=wearable.rows:RECORDINGS", "is a DatasetEntry, expected a Method"),
        ("tasks.activity.dataset=wearable.rows:MEDIAN", "is a Method, expected a DatasetEntry"),
        ("tasks.activity.dataset=wearables.rows:RECORDINGS", "cannot import 'wearables.rows'.*put its folder on PYTHONPATH"),
        ("interfaces.accelerometer.kind=wearable.spectrum:Spectre", "has no 'Spectre'; did you mean 'Spectrum'"),
        ("interfaces.accelerometer.options={octaves: 2}", "unknown option of interface 'spectrum' 'octaves'"),
        ("tasks.activity.clients[0].model=wearable.models:SignalRNN", "client 'anna'.*has no 'SignalRNN'"),
    ],
)
def test_a_wrong_import_path_is_refused_before_anything_runs(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engines.start(wearable(override), tmp_path / "run", "inprocess")
    assert not (tmp_path / "run").exists()


def test_a_method_by_name_is_still_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'fedsocket'"):
        find_method("fedsockets")


@pytest.mark.slow
def test_rays_workers_find_what_the_starting_process_finds(tmp_path: Path) -> None:
    here = run_quickly(wearable(), tmp_path / "here")
    there = read_outcome(engines.start(wearable(), tmp_path / "there", "ray"))
    assert there.test == here.test
