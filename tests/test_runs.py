"""Runs from Python, as README shows them."""

from pathlib import Path

import pytest

import fedsocket_flwr
from fedsocket_flwr.errors import RunError
from tests.toy_runs import assert_same_outcome, read_outcome, toy_config

SMALL = {"run.rounds": 2, "training.warm_up_epochs": 0}


def test_a_run_works_twice_in_one_process_and_gives_the_same(tmp_path: Path) -> None:
    first = fedsocket_flwr.run(toy_config(SMALL), out=tmp_path / "first")
    second = fedsocket_flwr.run(toy_config(SMALL), out=tmp_path / "second")
    assert_same_outcome(read_outcome(first.folder), read_outcome(second.folder))


def test_a_finished_run_has_its_numbers_as_data_frames_and_its_predictors(tmp_path: Path) -> None:
    done = fedsocket_flwr.run(toy_config(SMALL), out=str(tmp_path / "run"))
    run = fedsocket_flwr.open_run(str(done.folder))
    assert run.config == toy_config(SMALL)
    assert run.summary["rounds"] == 2
    assert set(run.summary["endpoints"]) == {"shapes", "words", "pairs"}
    assert list(run.rounds["round"]) == [1, 2]
    words = run.history.query("task == 'words' and endpoint == 'q' and metric == 'accuracy' and client.isna()")
    assert list(words["round"]) == [1, 2]
    probabilities = run.predictor("words-bag", "joint").probabilities({"text": ["some words", ""]})
    assert probabilities.shape == (2, 4)
    assert probabilities.sum(axis=1) == pytest.approx([1, 1])


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        fedsocket_flwr.open_run(tmp_path)


def test_an_unknown_name_of_the_package_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fedsocket_flwr.runn
