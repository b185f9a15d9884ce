import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.plain_files import parse_json
from tests.evaluation.fake_run import DEMO, HOSTILE, LONG, make_run

FILES = {
    "clients",
    "client_results",
    "communication",
    "dev",
    "endpoints",
    "endpoints_all",
    "endpoints_last",
    "groups",
    "interfaces",
    "incidents",
    "settings",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    write_report(folder)
    return folder


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_summary_is_what_is_written(folder: Path) -> None:
    assert parse_json((folder / "summary.json").read_text(encoding="utf-8")) == write_report(folder)


def test_the_summary_holds_the_numbers_of_the_run(folder: Path) -> None:
    summary = write_report(folder)
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))["clients"]
    assert {key: summary[key] for key in ("run", "name", "method", "seed", "rounds", "engine", "status")} == {
        "run": "demo-1a2b",
        "name": "demo",
        "method": "fedsocket",
        "seed": 101,
        "rounds": 8,
        "engine": "inprocess",
        "status": "complete",
    }
    assert summary["q_parameters"] == 48 * 256 + 1
    assert summary["bytes"] == {
        "up": 8 * 9 * 1_296_000,
        "down": 8 * 10 * 1_296_000,
        "up_full": 79 * 913_003 * 4,
        "down_full": 80 * 913_003 * 4,
    }
    assert summary["seconds"] == pytest.approx(sum(7 + n / 10 for n in range(1, 9)))
    assert summary["endpoints"]["digits"]["joint"]["accuracy"] == pytest.approx(
        fmean(tested[client]["best"]["joint"]["accuracy"] for client in DEMO["digits"][1])
    )
    assert summary["endpoints_last"]["glyphs"]["q"]["t2i_r10"] == pytest.approx(
        fmean(tested[client]["last"]["q"]["t2i_r10"] for client in DEMO["glyphs"][1])
    )
    assert summary["clients"] == tested
    assert summary["participation"] == {**dict.fromkeys(tested, 8), "news-bigru": 7, "news-deep-bag": 7}
    assert summary["refused"] == [{"round": 3, "client": "news-deep-bag", "reason": "NaN in block 'adapter|text'\nof its update"}]
    assert summary["dev"]["round"] == 8


def test_a_client_without_a_metric_is_left_out_of_the_mean(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    tested["clients"]["digits-cnn"]["best"] = {"q": {"accuracy": 0.5}}
    tested["clients"]["news-bag"] |= {"best": {}, "last": {}}
    (folder / "test.json").write_text(json.dumps(tested), encoding="utf-8")
    endpoints = write_report(folder)["endpoints"]
    others = [tested["clients"][client]["best"] for client in ("digits-mlp", "digits-resnet")]
    assert endpoints["digits"]["private"]["accuracy"] == pytest.approx(fmean(o["private"]["accuracy"] for o in others))
    assert endpoints["digits"]["q"]["accuracy"] == pytest.approx(fmean([0.5, *(o["q"]["accuracy"] for o in others)]))
    assert [row["Clients"] for row in table(folder, "endpoints")] == ["3 of 3", "2 of 3", "4 of 4", "4 of 4"]
    assert {row["Client"]: row["Private"] for row in table(folder, "client_results")}["digits-cnn"] == ""


def test_a_whole_task_without_test_rows_is_absent(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    for client in DEMO["news"][1]:
        tested["clients"][client] |= {"best": {}, "last": {}}
    (folder / "test.json").write_text(json.dumps(tested), encoding="utf-8")
    assert list(write_report(folder)["endpoints"]) == ["digits", "glyphs"]


def test_the_report_says_everything_and_links_its_figures(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    for part in (
        "8 of 8 rounds",
        "at each endpoint's best round by the client's own DEV",
        "The same at the last round",
        "rho 0.5 (last round: rho 1)",
        "7 / 8 / 8",
        "as recorded by the run",
        "kind: pixels, width: 256",
        "teaching (distil_private: 0.5, fusion: 0.25)",
        "78 updates were merged; 8 of 10 clients took part in every round",
        "| news-deep-bag | was refused: NaN in block 'adapter\\|text' of its update | 3 |",
        "| as sent | 93.3 MB | 104 MB | 197 MB | 33.9 |",
    ):
        assert part in text
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(links) == 5
    assert all((folder / link).is_file() for link in links)
    assert "Mind" not in text


def test_tables_agree_with_the_summary(folder: Path) -> None:
    summary = write_report(folder)
    first = table(folder, "endpoints")[0]
    endpoints = summary["endpoints"]["digits"]
    assert float(first["Joint"]) == endpoints["joint"]["accuracy"]
    better = max(endpoints["private"]["accuracy"], endpoints["q"]["accuracy"])
    assert float(first["Joint − better branch"]) == endpoints["joint"]["accuracy"] - better
    assert len(table(folder, "endpoints_all")) == 2 + 2 + 7
    for name in FILES:
        assert (folder / "tables" / f"{name}.tex").is_file()
    assert len(table(folder, "rounds")) == 8


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_report_is_a_pure_function_of_the_folder(folder: Path, tmp_path: Path) -> None:
    write_report(folder)
    before = contents(folder)
    moved = tmp_path / "moved run"
    shutil.copytree(folder, moved)
    for derived in ("summary.json", "report.md"):
        (moved / derived).unlink()
    write_report(moved)
    assert contents(moved) == before


@pytest.mark.parametrize("rounds", [0, 1, 2, 5, 8])
def test_a_run_that_was_cut_off_has_a_report_that_says_so(tmp_path: Path, rounds: int) -> None:
    folder = make_run(tmp_path, rounds=rounds, finished=False)
    with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"phase": "train", "rou')
    summary = write_report(folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert summary["status"] == "unfinished"
    assert summary["rounds_done"] == rounds
    assert summary["endpoints"] == {}
    assert "TEST has not been read" in text
    assert "last line of history.jsonl was cut off" in text
    assert (f"the run is unfinished: {rounds} of 8 rounds" in text) == (rounds < 8)
    assert (f"of the model of round {rounds - 1}" in text) == (rounds > 1)
    assert ("Nothing has been measured yet" in text) == (rounds < 2)


def test_a_folder_with_only_what_the_start_wrote_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=0, finished=False)
    for name in ("history.jsonl", "splits.json", "environment.json"):
        (folder / name).unlink()
    summary = write_report(folder)
    assert summary["q_parameters"] == 12289
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "history.jsonl is missing: no round was finished" in text
    assert "as configured" in text


def test_a_malformed_file_leaves_the_old_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    write_report(folder)
    old = (folder / "report.md").read_bytes()
    (folder / "test.json").write_text('{"clients": NaN}', encoding="utf-8")
    with pytest.raises(RunError, match=r"test\.json"):
        write_report(folder)
    assert (folder / "report.md").read_bytes() == old


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with hostile names, one client without DEV, and one that diverged: its numbers are absent, its updates refused."""
    parent = tmp_path_factory.mktemp("hostile")
    folder = make_run(parent / "run", HOSTILE)
    path = folder / "history.jsonl"
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for row in rows[4:]:
        row.get("clients", {}).pop("x|y", None)
        row["refused"] = {"x|y": "loss.private is nan | 1e999 $\\infty$"}
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    tested["clients"]["x|y"]["best"]["private"] = {}
    tested["clients"]["新闻 客户"]["choices"] = {"private.round": None}
    (folder / "test.json").write_text(json.dumps(tested, ensure_ascii=False), encoding="utf-8")
    write_report(folder)
    return folder


def test_hostile_names_leave_every_json_strict(hostile: Path) -> None:
    summary = parse_json((hostile / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["endpoints"]) == set(HOSTILE)
    assert "accuracy" not in summary["clients"]["x|y"]["best"]["private"]
    assert summary["participation"]["x|y"] == 4
    if shutil.which("jq"):
        checked = subprocess.run(["jq", "-e", ".", str(hostile / "summary.json")], capture_output=True, check=False)
        assert checked.returncode == 0


def test_hostile_names_keep_tables_in_shape(hostile: Path) -> None:
    lines = (hostile / "report.md").read_text(encoding="utf-8").splitlines()
    width = None
    for line in lines:
        columns = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert width is None or columns is None or columns == width
        width = columns
    assert [row["Client"] for row in table(hostile, "clients")] == [name for _, members in HOSTILE.values() for name in members]
    for path in (hostile / "tables").glob("*.tex"):
        lines = path.read_text(encoding="utf-8").splitlines()
        separators = set()
        for line in lines[5:-2]:
            assert line.endswith(r"\\")
            bare = re.sub(r"\\(?:[a-zA-Z]+|[{}$&#%_\\])", "", line.removesuffix(r"\\"))
            assert not set(bare) & set("\\$#%_^~|<>")
            assert bare.count("{") == bare.count("}")
            separators.add(bare.count("&"))
        assert separators <= {lines[3].count("&")}


def test_nothing_of_numpy_or_of_missing_numbers_is_shown(hostile: Path) -> None:
    for path in (*(hostile / "tables").iterdir(), hostile / "report.md", hostile / "summary.json"):
        text = path.read_text(encoding="utf-8").replace("loss.private is nan", "").replace("NaN in block", "")
        assert not re.search(r"\bnp\.|\bnan\b|\bNaN\b|\binf\b|\bNone\b", text), path.name


def test_hostile_names_leave_no_file_outside_and_none_that_meet(hostile: Path) -> None:
    assert [path.name for path in hostile.parent.iterdir()] == ["run"]
    names = [str(path.relative_to(hostile)).lower() for path in hostile.rglob("*")]
    assert len(set(names)) == len(names)
    assert len(list((hostile / "figures").glob("*.png"))) == 5
    assert LONG in (hostile / "report.md").read_text(encoding="utf-8")


def test_files_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", HOSTILE)
    code = (
        "import sys, pathlib; from fedsocket_flwr.evaluation.report import write_report; write_report(pathlib.Path(sys.argv[1]))"
    )
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=True, cwd=Path(__file__).parents[2])
    assert "新闻 客户" in (folder / "report.md").read_text(encoding="utf-8")
    assert "新闻 客户" in (folder / "summary.json").read_text(encoding="utf-8")
    here = make_run(tmp_path / "here", HOSTILE)
    write_report(here)
    assert (folder / "report.md").read_bytes() == (here / "report.md").read_bytes()
