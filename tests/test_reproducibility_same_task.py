"""Donors and recipients: equal configurations give equal bits, twice in a row, after a cut, and through Ray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr import engines
from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.clients.same_task import SameTaskClient
from fedsocket_flwr.config import Configuration
from tests.test_reproducibility import cut_at_call, new_process
from tests.toy_runs import (
    Cut,
    Outcome,
    assert_same_arrays,
    assert_same_outcome,
    read_outcome,
    resume_quickly,
    run_quickly,
    same_task_config,
)

ROUNDS = {"run.rounds": 3}
# What a run keeps between its rounds, and clients that begin late.
EVERYTHING = ROUNDS | {"training.q_optimiser": "keep", "participation.share": 0.5}


@pytest.fixture(scope="module")
def outcome_of(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    known: dict[str, Outcome] = {}

    def of(config: Configuration) -> Outcome:
        if config.digest() not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FEDSOCKET_HOME", str(shared_home))
                known[config.digest()] = run_quickly(config, tmp_path_factory.mktemp("outcome") / "run")
        return known[config.digest()]

    return of


Of = Callable[[Configuration], Outcome]


@pytest.mark.parametrize("settings", [ROUNDS, EVERYTHING], ids=["plain", "everything"])
def test_a_run_is_the_same_twice_in_a_row(outcome_of: Of, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = same_task_config(settings)
    expected = outcome_of(config)
    new_process()
    assert_same_outcome(run_quickly(config, tmp_path / "again"), expected)


@pytest.mark.parametrize("settings", [ROUNDS, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_run_that_is_cut_after_a_round_ends_as_if_it_were_not(
    outcome_of: Of, tmp_path: Path, settings: dict[str, Any], after: int
) -> None:
    config = same_task_config(settings)
    with pytest.raises(KeyboardInterrupt):
        run_quickly(config, tmp_path / "run", [Cut(after)])
    new_process()
    assert_same_outcome(resume_quickly(tmp_path / "run"), outcome_of(config))


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        pytest.param(SameTaskClient, "_fit", 2, id="between the folds of the first donor"),
        pytest.param(Participant, "_save", 1, id="after a teacher was kept, before the state that needs it"),
        pytest.param(SameTaskClient, "learn", 9, id="in the middle of round 2"),
        pytest.param(Participant, "close", 4, id="in the closing"),
        pytest.param(SameTaskClient, "settle", 3, id="in TEST, after some clients took the beta"),
    ],
)
def test_a_cut_at_any_place_leaves_no_trace(outcome_of: Of, tmp_path: Path, owner: Any, name: str, call: int) -> None:
    config = same_task_config(ROUNDS)
    with pytest.MonkeyPatch.context() as patch:
        cut_at_call(patch, owner, name, call)
        with pytest.raises(KeyboardInterrupt):
            run_quickly(config, tmp_path / "run")
    new_process()
    assert_same_outcome(resume_quickly(tmp_path / "run"), outcome_of(config))


def test_the_order_of_recipients_in_the_file_changes_nothing(outcome_of: Of, tmp_path: Path) -> None:
    """Every client holds the same rows here; other partitions deal their parts in the order of the file."""
    config = same_task_config(
        ROUNDS | {"tasks.scene.partition": {"kind": "all", "group": "group", "train": 60}, "evaluation.test": "shared"}
    )
    settings = config.model_dump(mode="json")
    settings["tasks"]["scene"]["clients"].reverse()
    expected, found = outcome_of(config), run_quickly(Configuration.model_validate(settings), tmp_path / "run")
    assert_same_arrays(found.q, expected.q)
    for client, arrays in expected.states.items():
        assert_same_arrays(found.states[client], arrays)
    assert found.test == expected.test


@pytest.mark.slow
def test_ray_gives_the_bits_of_one_process(
    outcome_of: Of, tmp_path: Path, shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSOCKET_HOME", str(shared_home))
    for workers in (1, 2):
        config = same_task_config(ROUNDS | {"resources.workers": workers})
        assert_same_outcome(
            read_outcome(engines.start(config, tmp_path / f"r {workers}", "ray")), outcome_of(same_task_config(ROUNDS))
        )
