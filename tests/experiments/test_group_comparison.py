from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.experiments.comparison import Comparison, ContrastResult
from fedsocket_flwr.experiments.sweep import compare
from tests.experiments.fake_runner import FakeRunner, rows, sweep, sweep_and_compare, write_summary

ARMS: dict[str, Any] = {"full": {}, "local": {"run.method": "local"}}
CONTRASTS = [
    {"name": name, "minuend": {"arm": "full", "endpoint": first}, "subtrahend": {"arm": arm, "endpoint": "private"}}
    for name, first, arm in (
        ("Joint less Local", "joint", "local"),
        ("Private less Local", "private", "local"),
        ("Joint less Private", "joint", "full"),
    )
]
SEEDS = [1, 7, 11]
RECIPIENTS = "scene: recipients"


def write_member(config: Configuration, folder: Path) -> None:
    """Leave a task and two of its groups; the recipients gain more than the task, and by seed."""
    FakeRunner()(config, folder)
    wobble = (config.run.seed % 5) / 30
    branches = {"private": {"accuracy": 0.61 + wobble, "uar": 0.5}, "joint": {"accuracy": 0.67 + wobble / 3, "uar": 0.55}}
    gaining = {"private": {"accuracy": 0.71 + wobble, "uar": 0.6}, "joint": {"accuracy": 0.83 - wobble / 7, "uar": 0.65}}
    if config.run.method == "local":
        branches, gaining = ({"private": {"accuracy": value - wobble**2, "uar": 0.4}} for value in (0.6, 0.7))
    groups = {
        "scene": {
            "recipients": {"clients": 3, "rows": 42, "endpoints": gaining},
            "donors": {"clients": 2, "rows": 48, "endpoints": branches},
        }
    }
    write_summary(folder, {"scene": branches, "words": {"private": {"accuracy": 0.5}}}, groups=groups)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    sweep(folder, write_member, seeds=SEEDS, arms=ARMS, contrasts=CONTRASTS)
    return folder / "out"


@pytest.fixture(scope="module")
def comparison(out: Path) -> Comparison:
    return compare(out)


def contrast(comparison: Comparison, name: str, task: str, metric: str = "accuracy") -> ContrastResult:
    (found,) = [r for r in comparison.contrasts if (r.name, r.task, r.metric) == (name, task, metric)]
    return found


def test_groups_stand_beside_their_task(comparison: Comparison) -> None:
    assert comparison.tasks == ("scene", RECIPIENTS, "scene: donors", "words")
    assert comparison.groups == {RECIPIENTS, "scene: donors"}
    (private,) = [r for r in comparison.arms if (r.cell, r.task, r.metric, r.endpoint) == ("local", RECIPIENTS, "uar", "private")]
    assert private.values == (0.4,) * 3


def test_contrasts_are_worked_out_on_the_groups_too(comparison: Comparison) -> None:
    # Seed 1: Joint 0.83 - 1/210, Local 0.7 - 1/900.
    gain = contrast(comparison, "Joint less Local", RECIPIENTS)
    assert gain.seeds == tuple(SEEDS)
    assert gain.values[0] == pytest.approx(0.83 - 1 / 210 - 0.7 + 1 / 900)
    assert contrast(comparison, "Joint less Local", "scene").values[0] == pytest.approx(0.67 + 1 / 90 - 0.6 + 1 / 900)


@pytest.mark.parametrize("task", ["scene", RECIPIENTS, "scene: donors"])
@pytest.mark.parametrize("metric", ["accuracy", "uar"])
def test_joint_less_local_is_the_sum_of_what_training_and_combining_add(comparison: Comparison, task: str, metric: str) -> None:
    """FedSocket v1, Eq. 29: J - L = (P - L) + (J - P), seed by seed."""
    whole, training, combining = (contrast(comparison, str(c["name"]), task, metric) for c in CONTRASTS)
    assert whole.seeds == training.seeds == combining.seeds == tuple(SEEDS)
    sums = [a + b for a, b in zip(training.values, combining.values, strict=True)]
    # Exact but for the rounding of the three subtractions and the sum.
    assert list(whole.values) == pytest.approx(sums, rel=0, abs=4e-16)


def test_tables_and_pictures_show_the_groups(out: Path) -> None:
    markdown = (out / "comparison.md").read_text("utf-8")
    assert "is a group of a task's clients, measured over the pooled TEST rows" in markdown
    assert f"| full | {RECIPIENTS} | Accuracy | 75.4 |" in markdown
    assert {row["task"] for row in rows(out / "contrasts.csv")} == {"scene", RECIPIENTS, "scene: donors", "words"}
    pictures = sorted(path.name.rpartition("-")[0] or path.name for path in (out / "figures").iterdir())
    names = ["contrasts-scene-donors", "contrasts-scene-recipients", "contrasts.png"]
    assert pictures == [*names, "task", "task", "task-scene-donors", "task-scene-recipients"]


def test_only_the_sweep_s_metrics_are_compared_on_groups(tmp_path: Path) -> None:
    comparison = sweep_and_compare(tmp_path, write_member, seeds=[1], arms=ARMS, contrasts=CONTRASTS, metrics=["uar"])
    assert {result.metric for result in comparison.arms} == {result.metric for result in comparison.contrasts} == {"uar"}
    assert comparison.tasks == ("scene", RECIPIENTS, "scene: donors")


def test_a_sweep_without_groups_does_not_mention_them(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    assert "group" not in (tmp_path / "out/comparison.md").read_text("utf-8")


def test_groups_of_another_form_are_refused_by_name(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    write_summary(tmp_path / "out/full/1", {"shapes": {}}, groups={"shapes": {"all": {"rows": 3}}})
    with pytest.raises(RunError, match=r"full/1/summary\.json: `groups`"):
        compare(tmp_path / "out")
