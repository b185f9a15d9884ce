import shutil
from pathlib import Path

import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.experiments.sweep import run_sweep
from tests.experiments.fake_runner import ARMS, FakeRunner, members, rows, sweep, write_sweep


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing here: figures take most of the time and have tests of their own."""
    monkeypatch.setattr("fedsocket_flwr.experiments.sweep.write_figures", lambda comparison, folder: None)


def test_every_member_is_run_once_with_its_settings(tmp_path: Path) -> None:
    found: dict[str, Configuration] = {}

    def runner(config: Configuration, folder: Path) -> None:
        found[f"{folder.parent.name}/{folder.name}"] = config
        FakeRunner()(config, folder)

    result = sweep(tmp_path, runner)
    assert list(found) == members("full", "label_q") == list(result.ran)
    assert {name: config.run.seed for name, config in found.items()} == {name: int(name[-3:]) for name in found}
    assert {config.training.teaching.distil_q for name, config in found.items() if name.startswith("label_q")} == {0.0}
    assert {config.training.teaching.distil_q for name, config in found.items() if name.startswith("full")} == {0.2}
    assert result.exit_code == 0

    again = FakeRunner()
    result = sweep(tmp_path, again)
    assert (again.ran, list(result.kept), result.ran) == ([], members("full", "label_q"), ())


def test_a_failed_member_does_not_end_the_sweep_and_is_run_again_when_mended(tmp_path: Path) -> None:
    broken = {**ARMS, "broken": {"tasks.shapes.clients[0].model": "image_cmm"}}
    first = FakeRunner(lambda config: config.tasks["shapes"].clients[0].model == "image_cmm" and config.run.seed == 202)
    result = sweep(tmp_path, first, arms=broken)
    assert first.ran == members("full", "label_q", "broken")
    assert result.failed == {"broken/202": "tasks.shapes.clients[0].model: found 'image_cmm', expected image_cnn"}
    assert result.exit_code == 1
    assert "broken, seed 202" in (tmp_path / "out/comparison.md").read_text("utf-8").replace("\\_", "_")

    shutil.rmtree(tmp_path / "out/full/303")
    second = FakeRunner()
    result = sweep(tmp_path, second, arms=broken)
    assert second.ran == ["full/303", "broken/202"]
    assert second.resumed == []
    assert (result.exit_code, result.failed) == (0, {})
    assert "Not finished" not in (tmp_path / "out/comparison.md").read_text("utf-8")


def test_an_unexpected_error_of_one_member_is_a_failure_too(tmp_path: Path) -> None:
    def runner(config: Configuration, folder: Path) -> None:
        if config.run.seed == 101:
            raise ZeroDivisionError("division\nby zero")
        FakeRunner()(config, folder)

    result = sweep(tmp_path, runner)
    assert result.failed == dict.fromkeys(("full/101", "label_q/101"), "ZeroDivisionError: division by zero")
    assert len(result.ran) == 4


def test_an_interruption_ends_the_sweep(tmp_path: Path) -> None:
    def runner(config: Configuration, folder: Path) -> None:
        if config.run.seed == 202:
            raise KeyboardInterrupt
        FakeRunner()(config, folder)

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, runner)
    rest = FakeRunner()
    sweep(tmp_path, rest)
    assert rest.ran == members("full", "label_q")[1:]


def test_fail_fast_starts_no_further_member(tmp_path: Path) -> None:
    runner = FakeRunner(lambda config: config.run.seed == 202)
    result = sweep(tmp_path, runner, fail_fast=True)
    assert runner.ran == ["full/101", "full/202"]
    assert result.not_started == ("full/303", *members("label_q"))
    assert result.exit_code == 1
    assert [row["n"] for row in rows(tmp_path / "out/comparison.csv")] == ["1", "1", "1"]


def test_a_runner_that_leaves_no_summary_has_failed(tmp_path: Path) -> None:
    result = sweep(tmp_path, lambda config, folder: folder.mkdir(), seeds=[1])
    assert set(result.failed) == {"full/1", "label_q/1"}
    assert "summary.json" in result.failed["full/1"]


@pytest.mark.parametrize(
    "content", ["", "{", '{"endpoints": {"a": NaN}}', "[]", '{"endpoints": {}, "status": "unfinished"}', '{"endpoints": {}}\x00']
)
def test_a_member_whose_summary_is_not_whole_is_resumed_from_its_checkpoint(tmp_path: Path, content: str) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    folder = tmp_path / "out/full/1"
    (folder / "summary.json").write_text(content, "utf-8")
    (folder / "q.safetensors").write_text("{}", "utf-8")
    runner = FakeRunner()
    result = sweep(tmp_path, runner, seeds=[1])
    assert (runner.ran, runner.resumed, result.kept) == (["full/1"], ["full/1"], ("label_q/1",))


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_member_of_another_configuration_is_set_aside_and_run_anew(tmp_path: Path, checkpoint: bool) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    if checkpoint:
        (tmp_path / "out/label_q/1/q.safetensors").write_text("{}", "utf-8")
    old = (tmp_path / "out/label_q/1/summary.json").read_bytes()
    changed = {**ARMS, "label_q": {"training.teaching.distil_q": 0.1}}
    runner = FakeRunner(lambda config: config.training.teaching.distil_q == 0.1)
    result = sweep(tmp_path, runner, seeds=[1], arms=changed)
    assert (runner.ran, runner.resumed) == (["label_q/1"], [])
    assert result.exit_code == 1, "the old summary must not pass for one of the new configuration"
    assert (tmp_path / "out/superseded/label_q-1-1/summary.json").read_bytes() == old
    sweep(tmp_path, FakeRunner(), seeds=[1], arms=changed)
    assert (tmp_path / "out/superseded/label_q-1-2").is_dir()
    assert {row["arm"] for row in rows(tmp_path / "out/comparison.csv")} == {"full", "label_q"}


def test_an_added_arm_or_seed_runs_only_what_is_new(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    runner = FakeRunner()
    sweep(tmp_path, runner, seeds=[1, 2], arms={**ARMS, "mean": {"merging.residual": "mean"}})
    assert runner.ran == ["full/2", "label_q/2", "mean/1", "mean/2"]


def test_the_folder_of_another_sweep_or_run_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    with pytest.raises(RunError, match="holds the sweep 'trial', expected 'other'"):
        sweep(tmp_path, FakeRunner(), seeds=[1], name="other")
    with pytest.raises(RunError, match="holds a single run"):
        run_sweep(write_sweep(tmp_path), tmp_path / "out/full/1", FakeRunner())


def test_without_a_folder_the_sweep_lies_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_sweep(write_sweep(tmp_path, seeds=[1]), None, FakeRunner())
    assert result.out == Path("runs/trial")
    assert Path("runs/trial/full/1/summary.json").exists()
