import shutil
from pathlib import Path

import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.experiments.comparison_figures import contrast_figure, task_figure
from fedsocket_flwr.experiments.sweep import compare
from tests.experiments.fake_runner import CONTRASTS, FakeRunner, sweep, sweep_and_compare, write_summary


def test_a_task_has_its_seeds_as_points_and_one_panel_a_metric(tmp_path: Path) -> None:
    comparison = sweep_and_compare(tmp_path, FakeRunner(), seeds=[7, 8, 13], contrasts=CONTRASTS)
    assert sorted(path.name for path in (tmp_path / "out/figures").iterdir()) == ["contrasts.png", "task-shapes.png"]
    (panel,) = task_figure(comparison, "shapes").axes
    points = [tuple(map(tuple, drawn.get_offsets().tolist())) for drawn in panel.collections if len(drawn.get_offsets()) == 3]
    # Two arms with three endpoints; Joint of the first arm stands at 80, 81 and 86 %.
    assert len(points) == 6
    assert [y for _, y in points[2]] == pytest.approx([80, 81, 86])
    assert panel.get_ylabel() == "Accuracy (%)"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["full", "label_q"]


def test_contrasts_are_drawn_in_points_with_their_names(tmp_path: Path) -> None:
    comparison = sweep_and_compare(tmp_path, FakeRunner(), seeds=[7, 8, 13], contrasts=CONTRASTS)
    (panel,) = contrast_figure(comparison.contrasts).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["gain\nshapes, Accuracy", "teaching\nshapes, Accuracy"]
    assert [x for x, _ in panel.collections[0].get_offsets().tolist()] == pytest.approx([20, 20, 20])


def test_a_wide_interval_does_not_leave_the_scale_of_a_percentage(tmp_path: Path) -> None:
    def runner(config: Configuration, folder: Path) -> None:
        FakeRunner()(config, folder)
        write_summary(folder, {"pairs": {"q": {"i2t_r1": 0.9 if config.run.seed == 7 else 0.1, "t2i_r1": 0.5, "mean_r": 0.5}}})

    comparison = sweep_and_compare(tmp_path, runner, seeds=[7, 8])
    panels = task_figure(comparison, "pairs").axes
    assert [panel.get_ylabel() for panel in panels] == ["I2T R@1 (%)", "T2I R@1 (%)"]
    assert panels[0].get_ylim() == (-2, 102)


def test_nothing_to_show_draws_nothing(tmp_path: Path) -> None:
    comparison = sweep_and_compare(tmp_path, FakeRunner(lambda config: True), seeds=[7], contrasts=CONTRASTS)
    assert comparison.unfinished
    assert not (tmp_path / "out/figures").exists()


def test_names_with_dollars_and_foreign_letters_are_drawn(tmp_path: Path) -> None:
    arms = {"50%_$x^2": {}, "_中&文": {"merging.residual": "mean"}}
    sweep(tmp_path, FakeRunner(), seeds=[7], arms=arms)
    assert (tmp_path / "out/figures/task-shapes.png").read_bytes().startswith(b"\x89PNG")


def test_compare_reads_again_without_running_and_gives_the_same_bytes(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), contrasts=CONTRASTS)
    out = tmp_path / "out"
    names = [
        "comparison.md",
        "comparison.csv",
        "comparison.tex",
        "contrasts.csv",
        "figures/contrasts.png",
        "figures/task-shapes.png",
    ]
    before = {name: (out / name).read_bytes() for name in names}
    for name in names:
        (out / name).unlink()
    (tmp_path / "sweep.yaml").unlink()
    shutil.move(out, tmp_path / "moved")
    compare(tmp_path / "moved")
    assert {name: (tmp_path / "moved" / name).read_bytes() for name in names} == before
