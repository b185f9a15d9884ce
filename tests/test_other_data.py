"""A finished run's predictors on other data: TEST's own numbers on TEST, other ones on a shifted TEST."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.cli import main
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.entries import DatasetEntry
from fedsocket_flwr.datasets.toy import read_images
from fedsocket_flwr.errors import ConfigurationError, DataError, MeasurementError, RunError
from fedsocket_flwr.other_data import ALL_ROWS, OWN_ROWS, PUBLISHED_ROWS, evaluate_run
from fedsocket_flwr.plain_files import read_json
from tests import own_data
from tests.toy_runs import run_quickly, same_task_config

CHANGE: dict[str, Any] = {}


def changed_images(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """The toy pictures of the run, with whatever a test changes of them."""
    corpus = read_images(None, {"rows": 150, "classes": 3, "size": 8})
    pixels = np.asarray(corpus.raw["image"])
    shifted = np.roll(pixels, CHANGE.get("shift", 0), axis=2)
    order = CHANGE.get("classes", corpus.classes)
    assert corpus.labels is not None
    labels = np.array([order.index(corpus.classes[label]) if corpus.classes[label] in order else 0 for label in corpus.labels])
    rows = slice(0, CHANGE.get("rows", 150))
    part = CHANGE.get("part")
    return Corpus("changed", "classification", {"image": shifted[rows]}, labels[rows], tuple(order), part=part)


CHANGED = DatasetEntry(
    name="changed",
    reader="tests.test_other_data:changed_images",
    kind="classification",
    modalities=("image",),
    size="150 pictures",
    classes=None,
    licence="none",
    source="none",
    how_to_get="it is computed",
)
NAME = "tests.test_other_data:CHANGED"


@pytest.fixture
def run(toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished toy run in a folder that a test may write to, with data that a test may change."""
    monkeypatch.setattr("fedsocket_flwr.datasets.catalogue._CORPORA", {})
    CHANGE.clear()
    return Path(shutil.copytree(toy_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("data", "task", "clients"),
    [
        ("toy_images", "shapes", ["shapes-cnn", "shapes-mlp"]),
        ("toy_texts", "words", ["words-bag", "words-bigru"]),
        ("toy_pairs", "pairs", ["pairs-a", "pairs-b"]),
    ],
)
def test_the_runs_own_test_gives_exactly_its_numbers(run: Path, data: str, task: str, clients: list[str]) -> None:
    found = evaluate_run(run, data)
    assert found.facts["rows"] == OWN_ROWS
    assert found.facts["task"] == task
    assert list(found.clients) == clients
    expected = read_json(run / "test.json")["clients"]
    for client in clients:
        assert {moment: found.clients[client][moment] for moment in ("best", "last")} == {
            moment: expected[client][moment] for moment in ("best", "last")
        }
    written = read_json(run / "evaluations" / f"{data}.json")
    assert written["clients"] == found.clients
    assert (run / "evaluations" / f"{data}.md").read_text(encoding="utf-8") == found.markdown()


def test_a_shifted_test_gives_lower_numbers_on_the_same_rows(run: Path) -> None:
    CHANGE["shift"] = 3
    found = evaluate_run(run, NAME, task="shapes", name="shifted")
    assert found.facts["rows"] == OWN_ROWS
    tested = read_json(run / "test.json")["clients"]
    for client, row in found.clients.items():
        assert row["examples"] == 30
        for endpoint, metrics in row["best"].items():
            assert metrics["accuracy"] < tested[client]["best"][endpoint]["accuracy"] - 0.1
    less = [row[-1] for row in found.table().rows[:-3]]
    assert all(isinstance(points, float) and points < 0 for points in less)
    assert (run / "evaluations" / "shifted.json").exists()


def test_other_rows_are_those_of_the_published_test_or_all(run: Path) -> None:
    CHANGE["rows"] = 40
    found = evaluate_run(run, NAME, client="shapes-cnn")
    assert (found.facts["rows"], found.clients["shapes-cnn"]["examples"]) == (ALL_ROWS, 40)
    assert list(found.clients) == ["shapes-cnn"]


def test_of_a_published_split_only_test_is_measured(run: Path) -> None:
    CHANGE.update(rows=40, part=["train"] * 30 + ["test"] * 10)
    found = evaluate_run(run, NAME, client="shapes-cnn")
    assert (found.facts["rows"], found.clients["shapes-cnn"]["examples"]) == (PUBLISHED_ROWS, 10)


def test_classes_are_matched_by_name_whatever_their_order(run: Path) -> None:
    CHANGE["classes"] = ("class2", "class0", "class1")
    found = evaluate_run(run, NAME, client="shapes-mlp").clients["shapes-mlp"]
    assert found["best"] == read_json(run / "test.json")["clients"]["shapes-mlp"]["best"]


def test_a_class_that_the_run_does_not_know_is_one_clear_error(run: Path) -> None:
    CHANGE["classes"] = ("class0", "class1", "zebra")
    with pytest.raises(
        DataError, match=r"classes that the run does not know: 'zebra'; the run's are 'class0', 'class1', 'class2'"
    ):
        evaluate_run(run, NAME, task="shapes")
    assert not (run / "evaluations").exists()


def test_options_of_the_data_set_can_be_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["evaluate", str(run), "--data", "toy_images", "--option", "seed=5", "--option", "rows=60", "--name", "other seed"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "all rows" in printed
    assert "| shapes-cnn | 60 | joint |" in printed
    assert "mean of the clients" in printed
    (path,) = (run / "evaluations").glob("*.json")
    assert read_json(path)["data"]["options"] == {"rows": 60, "classes": 3, "size": 8, "seed": 5}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": NAME}, ConfigurationError, "say with --task, or --client"),
        (
            {"data": "toy_images", "task": "shape"},
            ConfigurationError,
            "no task is called 'shape'; the run has shapes, words, pairs",
        ),
        ({"data": "toy_images", "client": "nobody"}, ConfigurationError, "no client is called 'nobody'"),
        ({"data": "toy_images", "client": "pairs-a", "task": "words"}, ConfigurationError, "is of task 'pairs', not 'words'"),
        ({"data": "not/there", "task": "words"}, DataError, "neither a path nor a data set"),
        ({"data": "toy_pairs", "task": "words"}, ConfigurationError, "is for retrieval"),
        ({"data": "toy_images", "task": "words"}, ConfigurationError, "no modality text"),
        (
            {"data": "toy_images", "options": {"size": 6}},
            MeasurementError,
            r"shape \(1, 6, 6\), the model was trained on \(1, 8, 8\)",
        ),
    ],
)
def test_what_does_not_fit_is_said(run: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate_run(run, **arguments)


def test_a_run_that_is_not_finished(run: Path) -> None:
    (run / "test.json").unlink()
    with pytest.raises(RunError, match="is not finished"):
        evaluate_run(run, "toy_images")


def test_donors_and_recipients(tmp_path: Path) -> None:
    """With one beta for the run and UAR beside accuracy."""
    folder = run_quickly(same_task_config({"run.rounds": 2}), tmp_path / "run").folder
    found = evaluate_run(folder, "toy_vectors")
    expected = read_json(folder / "test.json")["clients"]
    assert {client: row["best"] for client, row in found.clients.items()} == {c: row["best"] for c, row in expected.items()}
    assert "uar" in next(iter(found.clients.values()))["best"]["joint"]


def test_a_clients_own_data_in_another_folder(tmp_path: Path) -> None:
    folder = own_data.write_federation(tmp_path / "data")
    run = run_quickly(own_data.own_config(folder), tmp_path / "run").folder
    expected = read_json(run / "test.json")["clients"]
    own = evaluate_run(run, str(folder / "words-a"), client="words-a").clients["words-a"]
    assert (own["best"], own["last"]) == (expected["words-a"]["best"], expected["words-a"]["last"])
    others = evaluate_run(run, str(folder / "words-b"), client="words-a").clients["words-a"]
    assert others["examples"] == 12
    assert others["best"] != own["best"]
