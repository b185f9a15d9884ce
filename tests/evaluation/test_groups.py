import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import Rectangle

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.drawing import style, to_png
from fedsocket_flwr.evaluation.groups import group_members, group_results, is_donor
from fedsocket_flwr.evaluation.plots import group_bars
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.evaluation.run_folder import RunRecord, read_run
from tests.evaluation.fake_run import make_run

SCENE: dict[str, Any] = {
    "modalities": ["video", "audio"],
    "shared": ["video"],
    "clients": [
        {"name": "donor-1", "model": "attention_pair", "modalities": None},
        {"name": "mlp-1", "model": "sequence_mlp", "modalities": ["video"]},
        {"name": "mlp-2", "model": "sequence_mlp", "modalities": ["video"]},
        {"name": "cnn-1", "model": "sequence_cnn", "modalities": ["video"]},
    ],
}
MODELS = {client["name"]: client["model"] for client in SCENE["clients"]}
# Two classes: label 0 as 0, label 0 as 1, label 1 as 0, label 1 as 1.
PRIVATE = {"donor-1": [6, 0, 1, 3], "mlp-1": [1, 1, 0, 2], "mlp-2": [0, 2, 0, 0], "cnn-1": [3, 0, 1, 0]}
JOINT = {"donor-1": [6, 0, 1, 3], "mlp-1": [2, 0, 0, 2], "mlp-2": [1, 1, 0, 0]}


def confusions() -> dict[str, dict[str, list[int]]]:
    """One client has no Joint; at the last round only Private was measured."""
    found: dict[str, dict[str, list[int]]] = {name: {} for name in PRIVATE}
    for name, counts in PRIVATE.items():
        found[name] = {"best.private": counts, "last.private": counts[::-1]}
    for name, counts in JOINT.items():
        found[name]["best.joint"] = counts
    return found


def scene_run(folder: Path, confusion: dict[str, Any], scene: dict[str, Any] = SCENE) -> Path:
    """Write a made-up run with one task, ``scene``, whose clients have these confusion matrices."""
    make_run(folder, {"scene": ("classification", MODELS)})
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["tasks"]["scene"] |= scene
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    for name, matrices in confusion.items():
        tested["clients"][name]["confusion"] = matrices
    (folder / "test.json").write_text(json.dumps(tested), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(scene_run(tmp_path_factory.mktemp("run"), confusions()))


def test_who_is_in_which_group() -> None:
    assert group_members(SCENE) == {
        "all": ["donor-1", "mlp-1", "mlp-2", "cnn-1"],
        "recipients": ["mlp-1", "mlp-2", "cnn-1"],
        "donors": ["donor-1"],
        "recipients: sequence_mlp": ["mlp-1", "mlp-2"],
        "recipients: sequence_cnn": ["cnn-1"],
    }


@pytest.mark.parametrize(
    ("task", "client", "donor"),
    [
        ({"modalities": ["a", "b"], "shared": ["a"]}, {}, True),
        ({"modalities": ["a", "b"], "shared": ["a"]}, {"modalities": ["a", "b"]}, True),
        ({"modalities": ["a", "b"], "shared": ["a"]}, {"modalities": ["a"]}, False),
        ({"modalities": ["a", "b"], "shared": ["a", "b"]}, {}, False),
        # Q reads of each client what it holds: nobody observes more.
        ({"modalities": ["a", "b"], "shared": None}, {}, False),
        ({}, {}, False),
    ],
)
def test_a_donor_holds_what_q_does_not_read(task: dict[str, Any], client: dict[str, Any], donor: bool) -> None:
    assert is_donor(task, client) == donor


def test_groups_by_hand(run: RunRecord) -> None:
    groups = group_results(run, "best")["scene"]
    assert list(groups) == ["all", "recipients", "donors", "recipients: sequence_mlp", "recipients: sequence_cnn"]
    assert {group: (found["clients"], found["rows"]) for group, found in groups.items()} == {
        "all": (4, 20),
        "recipients": (3, 10),
        "donors": (1, 10),
        "recipients: sequence_mlp": (2, 6),
        "recipients: sequence_cnn": (1, 4),
    }
    # All: [[10, 3], [2, 5]]: 15 of 20 right; F1 20/25 and 10/15; recalls 10/13 and 5/7.
    assert groups["all"]["endpoints"]["private"] == pytest.approx(
        {"accuracy": 0.75, "macro_f1": (0.8 + 2 / 3) / 2, "uar": (10 / 13 + 5 / 7) / 2}
    )
    # Both MLPs: Private [[1, 3], [0, 2]], Joint [[3, 1], [0, 2]]; the mean over the two clients would be 0.375 and 0.75.
    mlp = groups["recipients: sequence_mlp"]["endpoints"]
    assert mlp["private"] == pytest.approx({"accuracy": 0.5, "macro_f1": (2 / 5 + 4 / 7) / 2, "uar": (1 / 4 + 1) / 2})
    assert mlp["joint"] == pytest.approx({"accuracy": 5 / 6, "macro_f1": (6 / 7 + 4 / 5) / 2, "uar": (3 / 4 + 1) / 2})


def test_an_endpoint_that_a_client_lacks_is_pooled_over_the_others(run: RunRecord) -> None:
    groups = group_results(run, "best")["scene"]
    # Without the CNN's four rows: [[3, 1], [0, 2]].
    assert groups["recipients"]["endpoints"]["joint"]["accuracy"] == 5 / 6
    assert list(groups["recipients: sequence_cnn"]["endpoints"]) == ["private"]
    assert all("q" not in found["endpoints"] for found in groups.values())


def test_the_last_round_has_its_own_matrices(run: RunRecord) -> None:
    groups = group_results(run, "last")["scene"]
    assert list(groups["all"]["endpoints"]) == ["private"]
    # Reversed: [[5, 2], [3, 10]].
    assert groups["all"]["endpoints"]["private"]["uar"] == pytest.approx((5 / 7 + 10 / 13) / 2)


def test_groups_without_rows_and_tasks_without_matrices_are_absent(tmp_path: Path) -> None:
    donors_only = scene_run(tmp_path / "a", {"donor-1": {"best.private": [1, 0, 0, 1]}, "mlp-1": {"best.private": [0, 0, 0, 0]}})
    groups = group_results(read_run(donors_only), "best")["scene"]
    assert list(groups) == ["all", "donors"]
    assert (groups["all"]["clients"], groups["all"]["rows"]) == (1, 2)
    assert group_results(read_run(donors_only), "last") == {}
    assert group_results(read_run(make_run(tmp_path / "b")), "best") == {}
    assert group_results(read_run(make_run(tmp_path / "c", finished=False)), "best") == {}


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 9), min_size=9, max_size=9), min_size=1, max_size=4))
def test_accuracy_is_the_row_weighted_mean_of_the_clients(run: RunRecord, matrices: list[list[int]]) -> None:
    clients = dict(zip(MODELS, matrices, strict=False))
    tested = {name: {"task": "scene", "confusion": {"best.q": counts}} for name, counts in clients.items()}
    groups = group_results(RunRecord(**(vars(run) | {"test": tested})), "best")
    rows = sum(map(sum, matrices))
    if rows == 0:
        assert groups == {}
        return
    right = sum(counts[k] for counts in matrices for k in (0, 4, 8))
    assert groups["scene"]["all"]["endpoints"]["q"]["accuracy"] == pytest.approx(right / rows)
    assert groups["scene"]["all"]["rows"] == rows


@pytest.mark.parametrize("counts", [[1, 2, 3], [], [1, 0, 0, 0, 1, 0, 0, 0, 1]])
def test_a_matrix_that_does_not_fit_is_named(tmp_path: Path, counts: list[int]) -> None:
    folder = scene_run(tmp_path, {"donor-1": {"best.q": [1, 0, 0, 1]}, "mlp-2": {"best.q": counts}})
    with pytest.raises(
        RunError, match=rf"test\.json: clients\.mlp-2\.confusion\.best\.q has {len(counts)} counts, expected 2 x 2"
    ):
        write_report(folder)


@pytest.mark.parametrize("counts", [[1, -1, 0, 0], [1.5, 0, 0, 0], "many"])
def test_counts_that_are_none_are_refused(tmp_path: Path, counts: Any) -> None:
    with pytest.raises(RunError, match=r"test\.json: clients\.mlp-1\.confusion\.best\.q"):
        read_run(scene_run(tmp_path, {"mlp-1": {"best.q": counts}}))


def test_the_report_shows_the_groups(tmp_path: Path) -> None:
    folder = scene_run(tmp_path, confusions())
    summary = write_report(folder)
    run = read_run(folder)
    assert summary["groups"] == group_results(run, "best")
    assert summary["groups_last"] == group_results(run, "last")
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "All those of all clients: each row weighs alike" in report
    assert "| All | 4 | 20 | Accuracy | 75.0 | – | **87.5** | 75.0 | – | – |" in report
    assert "| Recipients: sequence_mlp | 2 | 6 | UAR | 62.5 | – | **87.5** |" in report
    assert "figures/groups.png" in report
    with (folder / "tables/groups.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 3
    first = {"Task": "scene", "Group": "All", "Clients": "4", "TEST rows": "20", "Metric": "Accuracy", "Private": "0.75", "Q": ""}
    assert rows[0].items() >= first.items()
    assert r"Recipients: sequence\_cnn" in (folder / "tables/groups.tex").read_text(encoding="utf-8")


def test_a_run_without_groups_shows_none(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert write_report(folder)["groups"] == {}
    assert "Groups" not in (folder / "report.md").read_text(encoding="utf-8")
    assert not (folder / "figures/groups.png").exists()


def test_the_figure_has_three_bars_a_group(run: RunRecord) -> None:
    groups = group_results(run, "best")
    with style():
        figure = group_bars(groups)
        assert figure is not None
        to_png(figure)
    (axes,) = figure.axes
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["All", "Recipients", "Donors", "Recipients:\nsequence_mlp", "Recipients:\nsequence_cnn"]
    # Private and Joint of four groups, Private alone of the CNN.
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert len(heights) == 9
    assert heights[:2] == pytest.approx([75, 87.5])
    assert group_bars({}) is None


def test_the_figure_names_the_task_where_there_are_several(run: RunRecord) -> None:
    (scene,) = group_results(run, "best").values()
    with style():
        figure = group_bars({"one": {"all": scene["all"]}, "two": {"all": scene["all"]}})
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["one\nAll", "two\nAll"]
