from pathlib import Path

import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.experiments.sweep import compare
from tests.experiments.fake_runner import CONTRASTS, FakeRunner, rows, sweep, sweep_and_compare, write_summary


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing here: figures take most of the time and have tests of their own."""
    monkeypatch.setattr("fedsocket_flwr.experiments.sweep.write_figures", lambda comparison, folder: None)


def test_the_comparison_by_hand(tmp_path: Path) -> None:
    # Seeds 7, 8 and 13 give 0, 0.01 and 0.06: Private 0.50, 0.52, 0.62; Q 0.60, 0.61, 0.66; Joint 0.80, 0.81, 0.86.
    sweep(tmp_path, FakeRunner(), seeds=[7, 8, 13], contrasts=CONTRASTS)
    arms = {(row["arm"], row["endpoint"]): row for row in rows(tmp_path / "out/comparison.csv")}
    assert float(arms["full", "joint"]["mean"]) == pytest.approx(2.47 / 3)
    assert float(arms["full", "private"]["sd"]) == pytest.approx(2 * float(arms["full", "q"]["sd"]))
    assert arms["full", "q"]["seeds"] == "7 8 13"
    contrasts = {row["contrast"]: row for row in rows(tmp_path / "out/contrasts.csv")}
    gain, teaching = contrasts["gain"], contrasts["teaching"]
    assert float(gain["mean"]) == pytest.approx(0.2)
    assert (float(gain["p"]), gain["wins"], gain["n"]) == (0.25, "3", "3")
    assert float(teaching["mean"]) == pytest.approx(0.1)
    assert [float(value) for value in teaching["differences"].split()] == pytest.approx([0.1] * 3)
    markdown = (tmp_path / "out/comparison.md").read_text("utf-8")
    assert "| full | shapes | Accuracy | 54.7 | 6.4 | 62.3 | 3.2 | **82.3** | 3.2 | 7 8 13 |" in markdown
    assert "| teaching | shapes | Accuracy | +10.0 | 0.0 | +10.0 | +10.0 | 0.25 | 3 of 3 | 7 8 13 |  |" in markdown
    assert r"\textbf{82.3}" in (tmp_path / "out/comparison.tex").read_text("utf-8")


def test_the_better_branch_is_chosen_seed_by_seed(tmp_path: Path) -> None:
    values = {7: (0.7, 0.6, 0.75), 8: (0.5, 0.9, 0.85)}

    def runner(config: Configuration, folder: Path) -> None:
        FakeRunner()(config, folder)
        private, q, joint = values[config.run.seed]
        write_summary(folder, {"shapes": {"private": {"accuracy": private}, "q": {"accuracy": q}, "joint": {"accuracy": joint}}})

    comparison = sweep_and_compare(tmp_path, runner, seeds=[7, 8], contrasts=CONTRASTS[:1])
    (gain,) = comparison.contrasts
    assert gain.values == pytest.approx((0.05, -0.05))
    assert gain.difference is not None
    assert gain.difference.wins == 1


def test_only_seeds_of_both_arms_are_paired_and_the_others_named(tmp_path: Path) -> None:
    runner = FakeRunner(lambda config: config.run.seed == 202 and config.training.teaching.distil_q == 0)
    comparison = sweep_and_compare(tmp_path, runner, contrasts=CONTRASTS)
    gain, teaching = comparison.contrasts
    assert (gain.seeds, gain.left_out) == ((101, 202, 303), ())
    assert (teaching.seeds, teaching.left_out) == ((101, 303), (202,))
    markdown = (tmp_path / "out/comparison.md").read_text("utf-8")
    assert "2 of 2 | 101 303 | 202 |" in markdown
    assert rows(tmp_path / "out/contrasts.csv")[1]["left_out"] == "202"


def test_a_contrast_without_a_common_seed_has_no_numbers(tmp_path: Path) -> None:
    runner = FakeRunner(lambda config: config.training.teaching.distil_q == 0)
    comparison = sweep_and_compare(tmp_path, runner, contrasts=CONTRASTS[1:])
    (teaching,) = comparison.contrasts
    assert (teaching.seeds, teaching.difference) == ((), None)
    assert "| teaching | shapes | Accuracy | – | – | – | – | – | – |  | 101 202 303 |" in (
        tmp_path / "out/comparison.md"
    ).read_text("utf-8")


def test_one_seed_has_no_deviation_and_nothing_finished_no_table(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(lambda config: True), seeds=[7], contrasts=CONTRASTS)
    assert "No member is finished yet." in (tmp_path / "out/comparison.md").read_text("utf-8")
    assert rows(tmp_path / "out/comparison.csv") == []
    sweep(tmp_path, FakeRunner(), seeds=[7], contrasts=CONTRASTS)
    row = rows(tmp_path / "out/comparison.csv")[0]
    assert (row["n"], row["sd"], row["low"]) == ("1", "", "")
    assert "nan" not in (tmp_path / "out/contrasts.csv").read_text("utf-8")


def test_metrics_may_be_chosen(tmp_path: Path) -> None:
    def runner(config: Configuration, folder: Path) -> None:
        FakeRunner()(config, folder)
        write_summary(
            folder, {"shapes": {"q": {"accuracy": 0.5, "macro_f1": 0.4}}, "pairs": {"q": {"i2t_r1": 0.2, "t2i_r1": 0.1}}}
        )

    assert len(sweep_and_compare(tmp_path, runner, seeds=[1]).arms) == 8
    comparison = sweep_and_compare(tmp_path, runner, seeds=[1], metrics=["macro_f1", "uar"])
    assert [(result.cell, result.metric) for result in comparison.arms] == [("full", "macro_f1"), ("label_q", "macro_f1")]
    assert r"No finished member has the metric uar." in (tmp_path / "out/comparison.md").read_text("utf-8")


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no sweep"):
        compare(tmp_path)
    (tmp_path / "sweep.json").write_text('{"name": 3}', "utf-8")
    with pytest.raises(RunError, match=r"sweep\.json: damaged \(name"):
        compare(tmp_path)


def test_a_summary_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    sweep(tmp_path, FakeRunner(), seeds=[1])
    write_summary(tmp_path / "out/full/1", {"shapes": {"q": {"accuracy": "high"}}})
    with pytest.raises(RunError, match=r"full/1/summary\.json: `endpoints`"):
        compare(tmp_path / "out")


def test_names_in_tables_and_figures_are_escaped(tmp_path: Path) -> None:
    arms = {"a|b": {}, "50%_$x^2$": {"training.teaching.distil_q": 0}, "中&文": {"merging.residual": "mean"}}
    contrast = {"name": "x_1|2", "minuend": {"arm": "a|b", "endpoint": "q"}, "subtrahend": {"arm": "中&文", "endpoint": "q"}}
    sweep(tmp_path, FakeRunner(), seeds=[7, 8], arms=arms, contrasts=[contrast])
    markdown = (tmp_path / "out/comparison.md").read_text("utf-8")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in table[:5]} == {11}
    latex = (tmp_path / "out/comparison.tex").read_text("utf-8")
    assert r"50\%\_\$x\textasciicircum{}2\$" in latex
    assert r"a\textbar{}b" in latex
    assert {row["arm"] for row in rows(tmp_path / "out/comparison.csv")} == set(arms)
