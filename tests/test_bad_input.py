"""Data, names and clients that are not as they should be: refused before the run with what to change, or survived by it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import engines
from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.partitions import manifest
from fedsocket_flwr.errors import ConfigurationError, FedSocketError, PartitionError, ResourceError, RunError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.methods import shared_shape
from fedsocket_flwr.models.predictor import initial_predictor
from fedsocket_flwr.plain_files import read_json
from fedsocket_flwr.run_preparation import prepare_run
from fedsocket_flwr.runtime import device
from tests.toy_runs import Outcome, run_quickly, same_bits, toy_config

Run = Callable[..., Outcome]
Edit = Callable[[dict[str, Any]], None]
TASKS = ("shapes", "words", "pairs")
BREAKING = {"tasks.words.clients[0].model": "tests.clients.own_models:BreakingBag", "tasks.words.clients[0].arguments": {}}


def divided_by_hand(folder: Path, edit: Edit) -> dict[str, Any]:
    """Return the settings of the toy run with rows dealt by hand: ``edit`` changes task -> client -> split -> rows."""
    found = manifest(toy_config())
    rows = {name: task["clients"] for name, task in found["tasks"].items()}
    edit(rows)
    for task in found["tasks"].values():
        del task["checksum"]
    path = folder / "splits.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return {f"tasks.{name}.partition.manifest": str(path) for name in TASKS}


def endpoints(entry: Mapping[str, Any]) -> set[str]:
    return {endpoint for endpoint, metrics in entry["best"].items() if metrics}


# --- clients that lack something ---


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory, shared_home: Path) -> Outcome:
    """One run in which almost every client lacks something."""

    def edit(rows: dict[str, Any]) -> None:
        rows["words"]["words-bag"]["train"] = []
        rows["shapes"]["shapes-cnn"]["train"] = rows["shapes"]["shapes-cnn"]["train"][:1]
        rows["shapes"]["shapes-mlp"]["train"] = rows["shapes"]["shapes-mlp"]["train"][:17]
        rows["shapes"]["shapes-mlp"]["dev"] = []
        rows["pairs"]["pairs-a"]["dev"] = []
        rows["pairs"]["pairs-b"]["test"] = []

    folder = tmp_path_factory.mktemp("poor")
    models = {
        # Batch normalisation: over one row, and over a last batch of one (17 rows, batches of 16).
        "tasks.shapes.clients[0].model": "tests.clients.own_models:NormalisedVectors",
        "tasks.shapes.clients[0].arguments": {},
        "tasks.shapes.clients[1].model": "image_resnet",
        "tasks.shapes.clients[1].arguments": {"width": 4},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(shared_home))
        return run_quickly(toy_config(divided_by_hand(folder, edit) | models | {"run.rounds": 2}), folder / "run")


def test_a_client_without_training_rows_uses_q_and_weighs_nothing(poor: Outcome) -> None:
    assert all("words-bag" in row["answered"] for row in poor.rounds())
    assert endpoints(poor.test["words-bag"]) == {"q"}
    dev = poor.rounds()[1]["dev"]
    assert {name for name in dev["clients"]["words-bag"] if name.startswith("private")} == set()
    # The mean of Private is that of the one client that has it, and neither 0 nor NaN pulls it.
    assert dev["tasks"]["words"]["private"]["accuracy"] == dev["clients"]["words-bigru"]["private.accuracy"]
    assert dev["tasks"]["words"]["clients"] == 2


def test_a_client_with_one_training_row_and_one_with_a_remainder_of_one_train(poor: Outcome) -> None:
    for client in ("shapes-cnn", "shapes-mlp"):
        assert all(np.isfinite(row["clients"][client]["loss.private"]) for row in poor.rounds())
        assert endpoints(poor.test[client]) == {"private", "q", "joint"}


def test_a_client_without_dev_is_not_measured_and_keeps_its_last_round(poor: Outcome) -> None:
    for client in ("shapes-mlp", "pairs-a"):
        assert all(client not in row.get("dev", {"clients": {}})["clients"] for row in poor.history)
        choices = poor.test[client]["choices"]
        assert {choices[f"{endpoint}.round"] for endpoint in ("private", "q", "joint")} == {2}
        assert endpoints(poor.test[client]) == {"private", "q", "joint"}
    assert poor.history[-1]["dev"]["tasks"]["shapes"]["clients"] == 1


def test_a_client_without_test_rows_has_no_metrics_and_is_left_out_of_the_mean(poor: Outcome) -> None:
    assert endpoints(poor.test["pairs-b"]) == set()
    write_report(poor.folder)
    summary = read_json(poor.folder / "summary.json")
    assert summary["endpoints"]["pairs"]["joint"] == pytest.approx(poor.test["pairs-a"]["best"]["joint"])
    assert summary["endpoints"]["words"]["private"] == pytest.approx(poor.test["words-bigru"]["best"]["private"])
    assert summary["status"] == "complete"
    assert "NaN" not in (poor.folder / "report.md").read_text(encoding="utf-8")


def test_a_class_that_nobody_holds_keeps_its_rows(outcome: Run, tmp_path: Path) -> None:
    labels = read_corpus(toy_config().tasks["words"]).labels
    assert labels is not None

    def edit(rows: dict[str, Any]) -> None:
        for client in rows["words"].values():
            client["train"] = [row for row in client["train"] if labels[row] != 3]

    found = run_quickly(toy_config(divided_by_hand(tmp_path, edit) | {"run.rounds": 2}), tmp_path / "run")
    shape = shared_shape(toy_config())
    assert shape is not None
    initial = initial_predictor(shape, toy_config().run.seed).state_dict()
    for name in ("branches.task/words.head.weight", "branches.task/words.head.bias"):
        assert same_bits(found.q[name][3], initial[name][3].numpy())
        assert not same_bits(found.q[name][2], initial[name][2].numpy())


def test_a_task_may_have_a_single_client_and_a_run_a_single_task(outcome: Run) -> None:
    settings = toy_config().model_dump(mode="json")["tasks"]
    words = settings["words"] | {"clients": settings["words"]["clients"][:1]}
    alone = outcome({"run.rounds": 2, "tasks": {"words": words}})
    assert endpoints(alone.test["words-bag"]) == {"private", "q", "joint"}
    assert not any(name.startswith("conflict") for row in alone.rounds() for name in row["strategy"])
    together = outcome({"run.rounds": 2, "tasks": settings | {"words": words}})
    assert set(together.test) == {"words-bag", "shapes-cnn", "shapes-mlp", "pairs-a", "pairs-b"}


# --- clients that break ---


def test_a_client_whose_loss_is_nan_is_refused_by_name_and_the_run_goes_on(outcome: Run) -> None:
    broken, sound = outcome({"run.rounds": 2} | BREAKING), outcome({"run.rounds": 2})
    for row in broken.rounds():
        assert row["refused"] == {"words-bag": "the loss of warm-up became nan in epoch 1 of 2"}
        assert "words-bag" not in row["answered"]
        assert len(row["answered"]) == 5
    assert endpoints(broken.test["words-bag"]) == {"q"}
    assert endpoints(broken.test["words-bigru"]) == {"private", "q", "joint"}
    assert all(np.isfinite(array).all() for array in broken.q.values())
    # What it would have sent does not count: the task's blocks are those of its other client alone.
    assert any(not same_bits(broken.q[name], sound.q[name]) for name in broken.q if "task/words" in name)
    assert broken.states["words-bag"] == {}


def test_a_learning_rate_that_breaks_every_client_of_a_modality_ends_no_run(outcome: Run) -> None:
    broken = outcome({"run.rounds": 2, "training.private.text.learning_rate": 1e30})
    for row in broken.rounds():
        assert set(row["refused"]) == {"words-bag", "words-bigru"}
        assert all("not finite" in reason or "became" in reason for reason in row["refused"].values())
    # Nobody updated the task: its blocks are what they were.
    unchanged = outcome({"run.rounds": 1, "training.private.text.learning_rate": 1e30})
    for name in broken.q:
        if "task/words" in name:
            assert same_bits(broken.q[name], unchanged.q[name])


def test_a_client_that_raises_is_refused_by_name_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Participant.train

    def failing(self: Participant, broadcast: Any) -> Any:
        if self.data.client == "pairs-b" and broadcast.round == 1:
            raise OSError("the disk is full")
        return real(self, broadcast)

    monkeypatch.setattr(Participant, "train", failing)
    found = run_quickly(toy_config({"run.rounds": 2}), tmp_path / "run")
    first, second = found.rounds()
    assert "the disk is full" in first["refused"]["pairs-b"]
    assert second["refused"] == {}
    assert "pairs-b" in second["answered"]
    assert endpoints(found.test["pairs-b"]) == {"private", "q", "joint"}


# --- refused before anything starts ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"tasks.shapes.clients[0].model": "image_cn"},
            r"tasks\.shapes, client 'shapes-cnn': no private model is called 'image_cn'; did you mean 'image_cnn'",
            id="private model",
        ),
        pytest.param({"tasks.shapes.clients[1].arguments": {"hiden": 3}}, "client 'shapes-mlp'.*hiden", id="argument"),
        pytest.param(
            {"tasks.shapes.clients[1].model": "text_bag", "tasks.shapes.clients[1].arguments": {}},
            "client 'shapes-mlp'.*modality 'text'",
            id="modality of a model",
        ),
        pytest.param(
            {"tasks.words.clients[0].model": "tests.clients.no_such:Thing"}, "client 'words-bag'.*no_such", id="import path"
        ),
        pytest.param({"tasks.words.dataset": "toy_text"}, "toy_text.*toy_texts", id="data set"),
        pytest.param({"tasks.words.options": {"row": 3}}, "row", id="option of a data set"),
        pytest.param({"interfaces.image.kind": "pixel"}, "pixel.*pixels", id="interface"),
        pytest.param({"interfaces.image.options": {"sizes": 8}}, "sizes", id="option of an interface"),
        pytest.param(
            {"interfaces.image.kind": "hashed_words", "interfaces.image.options": {}}, "takes texts", id="wrong interface"
        ),
        pytest.param({"run.method": "fedsock"}, "no method is called 'fedsock'; did you mean 'fedsocket'", id="method"),
        pytest.param({"tasks.shapes.partition.train": 5000}, "5000", id="more rows than there are"),
        pytest.param({"tasks.shapes.partition.alpha": 1e-6, "tasks.shapes.partition.minimum_size": 40}, "alpha", id="alpha"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_folder(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedSocketError, match=message) as refusal:
        prepare_run(toy_config(settings), tmp_path / "run", "inprocess")
    assert isinstance(refusal.value, ConfigurationError | PartitionError)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_a_gpu_where_there_is_none_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_visible_gpus", lambda: 0)
    with pytest.raises(ResourceError, match=r"asks for 0\.5 GPU a client; torch sees none"):
        engines.start(toy_config({"resources.gpus": 0.5}), tmp_path / "run", "inprocess")
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(RunError, match="exists and is not empty; give another folder, or continue that run with --resume"):
        engines.start(toy_config(), tmp_path / "run", "inprocess")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_run_in_an_empty_folder_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert run_quickly(toy_config({"run.rounds": 1}), tmp_path / "run").test
