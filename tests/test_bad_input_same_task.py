"""Donors and recipients that lack something: refused before the run with what to change, or survived by it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.checking import check_configuration
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.partitions import manifest
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.run_preparation import prepare_run
from tests.clients.driving import first_blocks, message, open_client, with_splits
from tests.toy_runs import Outcome, run_quickly, same_task_config, toy_config

DONORS, RECIPIENTS = ("donor-1", "donor-2"), ("mlp-1", "mlp-2", "cnn-1")
Rows = dict[str, dict[str, list[int]]]
NO_TEACHER = {"training.teaching.cross_fit": 0.0}


def labels() -> Any:
    return read_corpus(same_task_config().tasks["scene"]).labels


def group_of(row: int) -> str:
    return str(read_corpus(same_task_config().tasks["scene"]).columns["group"][row])


def divided_by_hand(folder: Path, edit: Callable[[Rows], None], settings: Mapping[str, Any] | None = None) -> Configuration:
    """Return the toy configuration with rows dealt by hand: ``edit`` changes client -> split -> rows."""
    found = manifest(same_task_config())
    edit(found["tasks"]["scene"]["clients"])
    del found["tasks"]["scene"]["checksum"]
    path = folder / "splits.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return same_task_config({"tasks.scene.partition.manifest": str(path), "run.rounds": 2} | dict(settings or {}))


def of_groups(rows: list[int], number: int) -> list[int]:
    """Return the rows of the first groups that occur."""
    kept = sorted({group_of(row) for row in rows})[:number]
    return [row for row in rows if group_of(row) in kept]


def endpoints(entry: Mapping[str, Any], moment: str = "best") -> set[str]:
    return {endpoint for endpoint, metrics in entry[moment].items() if metrics}


# --- refused before anything starts ---


def refused(config: Configuration, tmp_path: Path, error: type[Exception], expected: str) -> None:
    for start in (check_configuration, lambda found: prepare_run(found, tmp_path / "run", "inprocess")):
        with pytest.raises(error, match=expected) as refusal:
            start(config)
        assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_a_donor_of_a_single_group(tmp_path: Path) -> None:
    def edit(rows: Rows) -> None:
        rows["donor-2"]["train"] = of_groups(rows["donor-2"]["train"], 1)

    config = divided_by_hand(tmp_path, edit)
    (name,) = {group_of(row) for row in manifest(config)["tasks"]["scene"]["clients"]["donor-2"]["train"]}
    expected = rf"client 'donor-2' are all of group '{name}', and cross-fitting needs at least 2 groups; .*cross_fit to 0"
    refused(config, tmp_path, DataError, expected)
    # Without a teacher there is nothing to cross-fit.
    found = run_quickly(divided_by_hand(tmp_path, edit, NO_TEACHER), tmp_path / "run")
    assert endpoints(found.test["donor-2"]) == {"private", "q", "joint"}


def test_a_protocol_that_gives_each_donor_one_group(tmp_path: Path) -> None:
    config = same_task_config({"tasks.scene.partition.donor_groups": 1, "tasks.scene.partition.minimum_size": 2})
    refused(config, tmp_path, DataError, "client 'donor-1' are all of group")


def test_donors_without_groups(tmp_path: Path) -> None:
    settings = {"tasks.scene.partition": {"kind": "iid"}}
    refused(same_task_config(settings), tmp_path, ConfigurationError, r"client 'donor-1' .*partition\.group")
    check_configuration(same_task_config(settings | NO_TEACHER))
    # Other methods and recipients alone need none.
    check_configuration(same_task_config(settings | {"run.method": "local"}))
    config = same_task_config(settings).model_dump(mode="json")
    config["tasks"]["scene"]["clients"] = config["tasks"]["scene"]["clients"][2:]
    check_configuration(Configuration.model_validate(config))


def test_tasks_that_are_not_one_classification(tmp_path: Path) -> None:
    refused(
        toy_config({"run.method": "same_task"}), tmp_path, ConfigurationError, "needs one task, of kind classification, found"
    )


# --- survived ---


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory, shared_home: Path) -> Outcome:
    """One run in which every client lacks something."""

    def edit(rows: Rows) -> None:
        # A fold without the class 2: of the donor's groups, only one has it.
        donor = rows["donor-1"]["train"]
        with_it = sorted({group_of(row) for row in donor})[0]
        rows["donor-1"]["train"] = [row for row in donor if labels()[row] != 2 or group_of(row) == with_it]
        # Two rows of two groups: each fold is fitted on one row.
        donor = rows["donor-2"]["train"]
        rows["donor-2"]["train"] = [of_groups(donor, 2)[0], of_groups(donor, 2)[-1]]
        rows["mlp-1"]["train"] = rows["mlp-1"]["train"][:5]
        rows["mlp-1"]["dev"] = [row for row in rows["mlp-1"]["dev"] if labels()[row] != 1]
        rows["mlp-2"]["train"] = rows["mlp-2"]["train"][:1]
        rows["mlp-2"]["dev"] = []
        rows["cnn-1"]["train"] = []

    folder = tmp_path_factory.mktemp("poor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(shared_home))
        return run_quickly(divided_by_hand(folder, edit), folder / "run")


def test_nobody_is_refused(poor: Outcome) -> None:
    assert all(set(row["answered"]) == {*DONORS, *RECIPIENTS} for row in poor.rounds())
    assert all(np.isfinite(array).all() for array in poor.q.values())


def test_a_fold_without_a_class_and_a_donor_of_two_rows_train(poor: Outcome) -> None:
    for client in DONORS:
        assert all(np.isfinite(row["clients"][client]["loss.q"]) for row in poor.rounds())
        assert endpoints(poor.test[client]) == {"private", "q", "joint"}
        assert poor.test[client]["best"]["joint"] == poor.test[client]["best"]["private"]


def test_fewer_rows_than_a_batch_and_one_row_train(poor: Outcome) -> None:
    for client in ("mlp-1", "mlp-2"):
        assert all(np.isfinite(row["clients"][client]["loss.private"]) for row in poor.rounds())
        assert endpoints(poor.test[client]) == endpoints(poor.test[client], "last") == {"private", "q", "joint"}


def test_a_recipient_without_training_rows_has_q_alone(poor: Outcome) -> None:
    assert endpoints(poor.test["cnn-1"]) == {"q"}
    assert all("loss.q" not in row["clients"]["cnn-1"] for row in poor.rounds())


def test_a_recipient_without_dev_takes_the_run_s_beta_at_the_last_round(poor: Outcome) -> None:
    with_dev, without = poor.test["mlp-1"]["choices"], poor.test["mlp-2"]["choices"]
    assert without["joint.beta"] == with_dev["joint.beta"]
    assert without["last.beta"] == with_dev["last.beta"]
    assert without["joint.round"] == 2


def test_the_report_of_such_a_run(poor: Outcome) -> None:
    write_report(poor.folder)
    assert "NaN" not in (poor.folder / "report.md").read_text(encoding="utf-8")


def test_a_donor_without_training_rows_needs_no_groups(tmp_path: Path) -> None:
    def edit(rows: Rows) -> None:
        rows["donor-1"]["train"] = []

    found = run_quickly(divided_by_hand(tmp_path, edit), tmp_path / "run")
    assert endpoints(found.test["donor-1"]) == {"q"}
    assert endpoints(found.test["donor-2"]) == {"private", "q", "joint"}


def test_where_no_recipient_has_dev_joint_is_even(tmp_path: Path) -> None:
    def edit(rows: Rows) -> None:
        for client in RECIPIENTS:
            rows[client]["dev"] = []

    found = run_quickly(divided_by_hand(tmp_path, edit), tmp_path / "run")
    assert {found.test[client]["choices"]["joint.beta"] for client in RECIPIENTS} == {0.5}
    assert {found.test[client]["choices"]["joint.beta"] for client in DONORS} == {0.0}


# --- features that are not finite, where nothing has refused them before ---


@pytest.mark.parametrize(("name", "modality"), [("donor-1", "audio"), ("mlp-1", "video")])
def test_a_feature_that_is_nan_refuses_the_client_s_answer_by_name(name: str, modality: str) -> None:
    client = open_client(name, config=same_task_config())
    train = client.data.train
    values = train.inputs[modality].copy()
    values[0, 0, 0] = np.nan
    broken = with_splits(client, train=replace(train, inputs={**train.inputs, modality: values}))
    update, failure = broken.train(message(1, 0, first_blocks(broken)))
    assert failure == "the loss of warm-up became nan in epoch 1 of 2"
    assert update.version == 0
    assert client.store.versions() == ()
