"""Two branches of finished members, mixed as Joint mixes its own: what they are made of, how large they are, what they give."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import engines, run_preparation
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration, shipped_sweep
from fedsocket_flwr.endpoints import load_predictor
from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.evaluation.run_folder import read_run
from fedsocket_flwr.evaluation.summary import summarise
from fedsocket_flwr.experiments.ensembles import write_ensemble
from fedsocket_flwr.experiments.profile import profile
from fedsocket_flwr.experiments.sweep import SweepResult, compare, run_sweep
from fedsocket_flwr.experiments.sweep_file import Branch, read_sweep
from fedsocket_flwr.plain_files import read_json
from tests.experiments.fake_runner import write_sweep
from tests.toy_runs import run_quickly, same_task_config, toy_config

ARMS = {
    "full": {},
    "own_q": {"exchange.sharing": "own"},
    "local": {"run.method": "local"},
    "small": {"run.method": "local", "tasks.shapes.clients[1].arguments": {"hidden": 8}},
}
ENSEMBLES = {
    "twice": {"first": {"arm": "local"}, "second": {"arm": "local", "seed": "next"}},
    "matched": {"first": {"arm": "local"}, "second": {"arm": "small", "seed": "next"}},
    "dual": {"first": {"arm": "local"}, "second": {"arm": "local", "moment": "last"}},
    "exact": {"first": {"arm": "full"}, "second": {"arm": "own_q", "endpoint": "q"}},
    "itself": {"first": {"arm": "full"}, "second": {"arm": "full", "endpoint": "q"}},
}
SIDES = {"minuend": {"arm": "full", "endpoint": "joint"}, "subtrahend": {"arm": "twice", "endpoint": "joint"}}
CLIENTS = [client.name for _, client in toy_config().clients()]


def run(config: Configuration, folder: Path) -> None:
    engines.start(config, folder, "inprocess")


def numbers_only(folder: Path) -> None:
    """Write what a comparison reads of a report; its figures take longer than the run."""
    (folder / "summary.json").write_text(json.dumps(summarise(read_run(folder))), encoding="utf-8")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Path]:
    """A sweep of every kind of ensemble over two seeds, and its file; tests must not change it."""
    folder = tmp_path_factory.mktemp("capacity")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(folder / "home"))
        path = write_sweep(
            folder, seeds=[1, 2], arms=ARMS, ensembles=ENSEMBLES, contrasts=[{"name": "gain over two Privates", **SIDES}]
        )
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr(run_preparation, "write_report", numbers_only)
        return run_sweep(path, folder / "out", run, overrides=["run.rounds=2"]), path


@pytest.fixture(autouse=True)
def _home_of_the_sweep(swept: tuple[SweepResult, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOCKET_HOME", str(swept[1].parent / "home"))


def summary(swept: tuple[SweepResult, Path], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_json(swept[0].out / name / "summary.json")
    return found


def test_they_run_after_the_members_and_are_kept(swept: tuple[SweepResult, Path]) -> None:
    result, path = swept
    assert result.failed == {}
    assert result.ran[-2 * len(ENSEMBLES) :] == tuple(f"{name}/{seed}" for name in ENSEMBLES for seed in (1, 2))
    again = run_sweep(path, result.out, run, overrides=["run.rounds=2"])
    assert (again.ran, again.failed, again.not_started) == ((), {}, ())
    assert set(again.kept) == set(result.ran)


def test_they_are_compared_like_arms(swept: tuple[SweepResult, Path]) -> None:
    comparison = compare(swept[0].out)
    assert comparison.unfinished == ()
    joint = {arm.cell: arm for arm in comparison.arms if (arm.task, arm.metric, arm.endpoint) == ("shapes", "accuracy", "joint")}
    assert set(joint) == {"full", "own_q", *ENSEMBLES}
    assert joint["twice"].seeds == (1, 2)
    gains = [row for row in comparison.contrasts if (row.task, row.metric) == ("shapes", "accuracy")]
    assert gains[0].values == pytest.approx([a - b for a, b in zip(joint["full"].values, joint["twice"].values, strict=True)])
    assert "gain over two Privates" in (swept[0].out / "comparison.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", [1, 2])
def test_the_branches_are_those_of_the_members(swept: tuple[SweepResult, Path], seed: int) -> None:
    """Private of this seed and of the next one, or Q that was never exchanged: their own TEST numbers."""
    following = 3 - seed
    sources = {
        "twice": (f"local/{seed}", "best", "private", f"local/{following}", "best", "private"),
        "matched": (f"local/{seed}", "best", "private", f"small/{following}", "best", "private"),
        "dual": (f"local/{seed}", "best", "private", f"local/{seed}", "last", "private"),
        "exact": (f"full/{seed}", "best", "private", f"own_q/{seed}", "best", "q"),
    }
    for name, (first, when, which, second, then, other) in sources.items():
        found = summary(swept, f"{name}/{seed}")["clients"]
        one, two = (read_json(swept[0].out / member / "test.json")["clients"] for member in (first, second))
        for client in CLIENTS:
            assert found[client]["best"]["private"] == one[client][when][which]
            assert found[client]["best"]["q"] == two[client][then][other]


def test_private_and_q_of_one_run_are_mixed_as_its_joint_is(swept: tuple[SweepResult, Path]) -> None:
    """Where Private, Q and Joint were best in the same round it is the very Joint."""
    same = 0
    for seed in (1, 2):
        found = summary(swept, f"itself/{seed}")["clients"]
        tested = read_json(swept[0].out / "full" / str(seed) / "test.json")["clients"]
        for client, entry in tested.items():
            choices = entry["choices"]
            if choices["private.round"] == choices["q.round"] == choices["joint.round"]:
                same += 1
                assert found[client]["best"]["joint"] == entry["best"]["joint"]
                assert found[client]["choices"].items() <= choices.items()
    assert same > 0


def test_they_are_as_large_as_they_claim(swept: tuple[SweepResult, Path]) -> None:
    config = toy_config()
    costs = {(client, cost.endpoint): cost.executed for cost in profile(config, batch=2) for client in cost.clients}
    for client in CLIENTS:
        sizes = {name: summary(swept, f"{name}/1")["clients"][client]["parameters"] for name in ENSEMBLES}
        private, q = costs[client, "private"], costs[client, "q"]
        assert sizes["twice"] == sizes["dual"] == {"first": private, "second": private}
        assert sizes["exact"] == {"first": private, "second": q}
    assert summary(swept, "matched/1")["clients"]["shapes-mlp"]["parameters"]["second"] < costs["shapes-mlp", "private"]


def test_private_of_exact_private_is_that_of_full_to_the_bit(swept: tuple[SweepResult, Path]) -> None:
    made_of = summary(swept, "exact/1")["ensemble"]
    assert made_of["first"]["run"] == read_json(swept[0].out / "full" / "1" / "run.json")["run"]
    assert made_of["second"]["run"] == read_json(swept[0].out / "own_q" / "1" / "run.json")["run"]
    full, own = (load_predictor(swept[0].out / arm / "1", "shapes-mlp", "q") for arm in ("full", "own_q"))
    assert full.parameters == own.parameters


def test_one_that_cannot_be_made_waits_or_fails_by_name(tmp_path: Path, swept: tuple[SweepResult, Path]) -> None:
    def fails(config: Configuration, folder: Path) -> None:
        raise RunError("no")

    arms, ensembles = {"local": ARMS["local"], "full": {}}, {"twice": ENSEMBLES["twice"]}
    result = run_sweep(write_sweep(tmp_path, seeds=[1, 2], arms=arms, ensembles=ensembles, contrasts=[]), tmp_path / "out", fails)
    assert result.not_started == ("twice/1", "twice/2")
    assert result.exit_code == 1


def test_members_must_divide_their_data_alike(tmp_path: Path, swept: tuple[SweepResult, Path]) -> None:
    other = run_quickly(toy_config({"run.rounds": 1, "tasks.words.partition.seed": 8}), tmp_path / "run").folder
    first = (swept[0].out / "full" / "1", Branch(arm="full"))
    with pytest.raises(RunError, match="divide their data otherwise"):
        write_ensemble(tmp_path / "mixed", first, (other, Branch(arm="other")), "digest")


def test_recipients_share_one_beta_and_donors_keep_their_own_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOCKET_HOME", str(tmp_path / "home"))
    runs = [
        run_quickly(same_task_config({"run.rounds": 1, "run.method": "local", "run.seed": seed}), tmp_path / str(seed)).folder
        for seed in (1, 2)
    ]
    write_ensemble(tmp_path / "mixed", (runs[0], Branch(arm="a")), (runs[1], Branch(arm="b")), "digest")
    found = read_json(tmp_path / "mixed" / "summary.json")
    config = same_task_config()
    betas = {
        found["clients"][client.name]["choices"]["joint.beta"]
        for _, client in config.clients()
        if config.role(client.name) == "recipient"
    }
    assert len(betas) == 1
    for _, client in config.clients():
        if config.role(client.name) == "donor":
            assert found["clients"][client.name]["best"]["joint"] == found["clients"][client.name]["best"]["private"]
    (task,) = config.tasks
    assert {"accuracy", "uar"} <= set(found["groups"][task]["recipients"]["endpoints"]["joint"])


@pytest.mark.parametrize(
    ("ensemble", "seeds", "message"),
    [
        ({"first": {"arm": "locl"}, "second": {"arm": "full"}}, [1, 2], "names an arm 'locl' that is not there"),
        ({"first": {"arm": "local"}, "second": {"arm": "local"}}, [1, 2], "is one branch twice"),
        ({"first": {"arm": "local"}, "second": {"arm": "local", "seed": "next"}}, [1], "there is one seed only"),
        ({"first": {"arm": "local", "endpoint": "joint"}, "second": {"arm": "full"}}, [1, 2], "endpoint"),
    ],
)
def test_what_the_file_cannot_ask_for(tmp_path: Path, ensemble: Mapping[str, Any], seeds: list[int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_sweep(write_sweep(tmp_path, seeds=seeds, arms=ARMS, ensembles={"x": ensemble}, contrasts=[]))


def test_a_changed_member_makes_an_ensemble_again(tmp_path: Path) -> None:
    digests = []
    for hidden in (8, 9):
        arms = {"local": {"run.method": "local", "tasks.shapes.clients[1].arguments": {"hidden": hidden}}}
        plan, _ = read_sweep(write_sweep(tmp_path, seeds=[1, 2], arms=arms, ensembles={"x": ENSEMBLES["twice"]}, contrasts=[]))
        digests.append(json.dumps(plan.ensembles[0].digests))
    assert digests[0] != digests[1]


def test_the_demo_s_second_privates_are_as_large_as_q() -> None:
    """Within five percent of the part of Q that the client executes."""
    _, members = read_sweep(shipped_sweep(Path("demo_capacity")))
    sized = next(member.configuration for member in members if member.cell.arm == "q_sized")
    wanted = {c: cost.executed for cost in profile(read_configuration("demo"), 2) for c in cost.clients if cost.endpoint == "q"}
    found = {c: cost.executed for cost in profile(sized, 2) for c in cost.clients}
    assert set(found) == set(wanted)
    ratios = np.array([found[client] / wanted[client] for client in wanted])
    assert np.abs(ratios - 1).max() < 0.05
