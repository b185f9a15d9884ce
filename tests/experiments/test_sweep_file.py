import json
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.experiments.sweep_file import Member, SweepPlan, read_sweep


def written(folder: Path, text: str = "", **sections: Any) -> Path:
    """Write a sweep's file from raw YAML and sections; JSON is YAML."""
    path = folder / "sweep.yaml"
    content = {"name": "trial", "base": "toy", "seeds": [1, 2], **sections}
    lines = [f"{key}: {json.dumps(value)}" for key, value in content.items() if f"{key}:" not in text]
    path.write_text("\n".join([*lines, text]), "utf-8")
    return path


def planned(folder: Path, text: str = "", **sections: Any) -> tuple[SweepPlan, tuple[Member, ...]]:
    return read_sweep(written(folder, text, **sections))


def labels(folder: Path, text: str = "", **sections: Any) -> list[str]:
    return [cell.label for cell in planned(folder, text, **sections)[0].cells]


def refusal(folder: Path, text: str = "", **sections: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        planned(folder, text, **sections)
    return str(caught.value).replace(f"{folder}/", "")


def test_the_grid_is_crossed_with_the_arms(tmp_path: Path) -> None:
    plan, members = planned(
        tmp_path,
        arms={"full": {}, "mean": {"merging.residual": "mean"}},
        grid={"training.q.learning_rate": [0.01, 0.02], "predictor.width": [8]},
    )
    assert [cell.label for cell in plan.cells] == [
        "full, learning_rate=0.01, width=8",
        "full, learning_rate=0.02, width=8",
        "mean, learning_rate=0.01, width=8",
        "mean, learning_rate=0.02, width=8",
    ]
    assert [(member.cell.label[:4], member.seed) for member in members[:3]] == [("full", 1), ("full", 2), ("full", 1)]
    assert len(members) == 8
    last = members[-1].configuration
    assert (last.run.seed, last.merging.residual, last.training.q.learning_rate, last.predictor.width) == (2, "mean", 0.02, 8)
    assert last.digest() == plan.cells[-1].digests["2"]


@pytest.mark.parametrize("values", ["[1e-3, 0.001]", "[0.001, 1.0e-3, 1e-3]", '["1e-3", 1e-3]'])
def test_two_spellings_of_one_number_are_one_cell(tmp_path: Path, values: str) -> None:
    for grid in (f"training.q.learning_rate: {values}", f"tasks.shapes.clients[0].arguments.rate: {values.replace(chr(34), '')}"):
        plan, members = planned(tmp_path, f"grid:\n  {grid}")
        assert [cell.label.split("=")[1] for cell in plan.cells] == ["0.001"]
        assert len(members) == 2


def test_the_spelling_does_not_change_the_folder(tmp_path: Path) -> None:
    folders = {
        planned(tmp_path, f"grid: {{training.q.learning_rate: [{s}]}}")[0].cells[0].folder for s in ("1e-3", "0.001", "1E-03")
    }
    assert len(folders) == 1


def test_text_and_a_number_in_a_free_mapping_are_two_cells(tmp_path: Path) -> None:
    assert labels(tmp_path, "grid: {tasks.shapes.options.scale: [1e-3, '1e-3', 0x10]}") == [
        "scale=0.001",
        "scale='1e-3'",
        "scale=16",
    ]


def test_values_may_be_paths_nothing_and_lists(tmp_path: Path) -> None:
    plan, members = planned(
        tmp_path,
        seeds=[1],
        grid={
            "tasks.shapes.path": ["data/a b", "/data/c", None],
            "interfaces.image.norm": [None, 4],
            "exchange.isolated": [[], ["shapes", "words"]],
        },
    )
    assert plan.cells[0].label == "path=data/a b, norm=null, isolated=[]"
    assert plan.cells[1].label == "path=data/a b, norm=null, isolated=[shapes, words]"
    assert [member.configuration.tasks["shapes"].path for member in members[::4]] == [str(tmp_path / "data/a b"), "/data/c", None]
    folders = [cell.folder for cell in plan.cells]
    assert len({folder.lower() for folder in folders}) == 12
    assert all(len(folder) <= 60 and set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for folder in folders)


@pytest.mark.parametrize(
    "arms", [["Full", "full", "FULL"], ["con", "a b", "a-b"], ["x" * 60 + "1", "x" * 60 + "2"], ["中", "文", "ä"]]
)
def test_folders_of_any_names_differ_and_are_safe(tmp_path: Path, arms: list[str]) -> None:
    plan, _ = planned(tmp_path, arms={arm: {"predictor.width": 8 + place} for place, arm in enumerate(arms)})
    folders = {cell.folder.lower() for cell in plan.cells}
    assert len(folders) == len(arms)
    assert all(folder.isascii() and len(folder) <= 60 and folder not in ("con", "") for folder in folders)


def test_the_grid_alone_and_nothing_at_all(tmp_path: Path) -> None:
    assert labels(tmp_path) == ["base"]
    assert labels(tmp_path, grid={"predictor.width": [8, 4]}) == ["width=8", "width=4"]
    twins = {"training.q.learning_rate": [0.1], "training.private.image.learning_rate": [0.2]}
    assert labels(tmp_path, grid=twins) == ["training.q.learning_rate=0.1, training.private.image.learning_rate=0.2"]


def test_the_base_is_relative_to_the_sweeps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "sub/base.yaml"
    base.parent.mkdir()
    shipped = Path(__file__).parents[2] / "fedsocket_flwr/configs/toy.yaml"
    base.write_text(shipped.read_text("utf-8").replace("dataset: toy_images", "path: d\n    dataset: toy_images"), "utf-8")
    monkeypatch.chdir("/")
    _, members = planned(tmp_path, base="sub/base.yaml", arms={"a": {}, "b": {"tasks.words.path": "e"}})
    assert members[0].configuration.tasks["shapes"].path == str(tmp_path / "sub/d")
    assert members[-1].configuration.tasks["words"].path == str(tmp_path / "e")


def contrast(first: str, second: str) -> list[dict[str, Any]]:
    return [{"name": "c", "minuend": {"arm": first, "endpoint": "joint"}, "subtrahend": {"arm": second, "endpoint": "q"}}]


def pairs(folder: Path, first: str, second: str) -> list[tuple[str, str, str]]:
    plan, _ = planned(
        folder,
        arms={"full": {}, "mean": {"merging.residual": "mean"}},
        grid={"predictor.width": [8, 4]},
        contrasts=contrast(first, second),
    )
    return [(made.name, made.minuend.arm, made.subtrahend.arm) for made in plan.contrasts]


def test_a_contrast_of_arms_is_one_at_every_point_of_the_grid(tmp_path: Path) -> None:
    assert pairs(tmp_path, "full", "mean") == [
        ("c (width=8)", "full, width=8", "mean, width=8"),
        ("c (width=4)", "full, width=4", "mean, width=4"),
    ]


def test_a_contrast_may_name_one_cell(tmp_path: Path) -> None:
    assert pairs(tmp_path, "full, width=8", "full, width=4") == [("c", "full, width=8", "full, width=4")]
    assert pairs(tmp_path, "full, width=8", "mean") == [
        ("c (width=8)", "full, width=8", "mean, width=8"),
        ("c (width=8 / width=4)", "full, width=8", "mean, width=4"),
    ]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"seeds": []}, "sweep.yaml: seeds: found [], expected at least 1 entry"),
        ({"seeds": [1, 1]}, "sweep.yaml: seeds must differ, found twice: 1"),
        ({"seeds": [1, -1]}, "sweep.yaml: seeds[1]: found -1, expected at least 0"),
        ({"arms": {"a/b": {}}}, "sweep.yaml: arms.a/b: found 'a/b', expected a name without /"),
        ({"arms": {"a": None}}, "sweep.yaml: arms.a: found nothing, expected a mapping"),
        ({"arms": {"a": {"run.seed": 3}}}, "sweep.yaml: run.seed belongs in `seeds`, not in arms or grid"),
        ({"arms": {"a": {"run..seed": 3}}}, "sweep.yaml: 'run..seed' is not a key path"),
        ({"arms": {"a": {}, "b": {}}}, "sweep.yaml: the arms 'a' and 'b' are the same configuration"),
        (
            {"arms": {"a": {"predictor.wdth": 3}}},
            "sweep.yaml: arm a: toy: predictor.wdth: unknown key 'wdth', did you mean 'width'?",
        ),
        ({"arms": {"figures": {}}}, "sweep.yaml: an arm cannot be called 'figures': the sweep keeps a folder of that name"),
        ({"arms": {"superseded": {}}}, "sweep.yaml: an arm cannot be called 'superseded'"),
        ({"grid": {"predictor.width": []}}, "sweep.yaml: grid.predictor.width: found [], expected at least 1 entry"),
        ({"grid": {"predictor.width": 8}}, "sweep.yaml: grid.predictor.width: found 8, expected a list"),
        ({"grid": {"predictor.width": [8, "wide"]}}, "sweep.yaml: toy: predictor.width: found 'wide', expected a whole number"),
        (
            {"arms": {"a": {"predictor.width": 3}}, "grid": {"predictor.width": [8]}},
            "sweep.yaml: the key predictor.width stands in the grid and in an arm",
        ),
        ({"base": "nowhere.yaml"}, "nowhere.yaml: no such file"),
        ({"sead": 3}, "sweep.yaml: sead: unknown key 'sead', did you mean 'seeds'?"),
        (
            {"contrasts": contrast("base", "bass")},
            "sweep.yaml: the contrast 'c' names an arm 'bass' that is not there, did you mean 'base'?",
        ),
        ({"contrasts": 2 * contrast("base", "base")}, "sweep.yaml: names of contrasts must differ, found twice: c"),
        (
            {"contrasts": [{"name": "c", "minuend": {"arm": "base", "endpoint": "best"}, "subtrahend": {"arm": "base"}}]},
            "sweep.yaml: contrasts[0].minuend.endpoint: found 'best', expected 'private', 'q', 'joint' or 'better_branch'",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(tmp_path: Path, sections: dict[str, Any], said: str) -> None:
    found = refusal(tmp_path, **sections)
    assert said in found
    assert all(line.startswith("sweep.yaml: ") for line in found.splitlines())


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "arms:\n  a: {}\n  a: {}\n") == "sweep.yaml: the key 'a' stands twice, in lines 5 and 6"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: no such file"):
        read_sweep(tmp_path / "none.yaml")


def test_a_plan_is_stored_and_read_back(tmp_path: Path) -> None:
    plan, _ = planned(tmp_path, arms={"full": {}}, grid={"predictor.width": [8, 4]}, contrasts=contrast("full", "full"))
    assert SweepPlan.model_validate_json(plan.model_dump_json()) == plan


def test_settings_for_every_member(tmp_path: Path) -> None:
    path = written(tmp_path, arms={"wide": {"predictor.width": 12}, "plain": {}})
    _, members = read_sweep(path, ["resources.threads=2", "training.q.learning_rate=1e-3"])
    assert {member.configuration.resources.threads for member in members} == {2}
    assert {member.configuration.training.q.learning_rate for member in members} == {0.001}
    assert {member.configuration.predictor.width for member in members if member.cell.arm == "wide"} == {12}


@pytest.mark.parametrize("override", ["run.seed=3", "predictor.width=4", "predictor.residual_rank = 2"])
def test_what_the_sweep_varies_cannot_be_set(override: str, tmp_path: Path) -> None:
    arms, grid = {"noisy": {"predictor.width": 12}, "plain": {}}, {"predictor.residual_rank": [2, 4]}
    path = written(tmp_path, arms=arms, grid=grid)
    key = override.partition("=")[0].strip()
    with pytest.raises(ConfigurationError, match=f"--set {key}: the sweep itself says what {key} is"):
        read_sweep(path, [override])


def test_paths_in_settings_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = written(tmp_path, arms={})
    monkeypatch.chdir(tmp_path / "elsewhere")
    task = next(iter(read_sweep(path)[1][0].configuration.tasks))
    _, members = read_sweep(path, [f"tasks.{task}.path=here"])
    assert members[0].configuration.tasks[task].path == str(tmp_path / "elsewhere" / "here")
