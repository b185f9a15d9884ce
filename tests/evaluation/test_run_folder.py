import json
from pathlib import Path

import pytest

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.evaluation.history import load_history
from fedsocket_flwr.evaluation.run_folder import read_run
from tests.evaluation.fake_run import LONG, closing_row, history_rows, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_a_finished_run(folder: Path) -> None:
    run = read_run(folder)
    assert run.complete
    assert run.notes == ()
    assert run.tasks == ("digits", "news", "glyphs")
    assert len(run.clients) == 10
    assert run.clients["glyphs-sans"].train == 469
    assert sum(run.clients["digits-cnn"].class_counts) == run.clients["digits-cnn"].train
    assert [round_ for round_, _ in run.dev()] == list(range(1, 9))
    assert run.q_parameters == 48 * 256 + 1


def test_each_round_is_there_once_and_in_order(folder: Path) -> None:
    rows = history_rows()
    again = {**rows[2], "seconds": 99.0}
    text = "".join(json.dumps(row) + "\n" for row in [closing_row(), *rows[4:], *rows[:4], rows[1], again])
    (folder / "history.jsonl").write_text(text, encoding="utf-8")
    run = read_run(folder)
    assert [row["round"] for row in run.rounds] == list(range(1, 9))
    assert run.rounds[2]["seconds"] == 99.0
    assert [row["phase"] for row in run.rows] == ["train"] * 8 + ["close"]


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_a_file_that_every_run_has_is_missed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(RunError, match=rf"{name}: no such file"):
        read_run(folder)


@pytest.mark.parametrize("name", ["environment.json", "splits.json", "history.jsonl"])
def test_a_file_that_an_early_cut_leaves_out_is_noted(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert any(note.startswith(name) for note in read_run(folder).notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "run: [1"),
        ("config.yaml", "- run"),
        ("config.yaml", "run: {rounds: many}\ntasks: {}"),
        ("config.yaml", "run: {rounds: 8}\ntasks: {digits: {clients: 3}}"),
        ("config.yaml", "run: {rounds: 8}\ntasks: {digits: {clients: [a]}}"),
        ("run.json", "[]"),
        ("run.json", '{"run": NaN}'),
        ("environment.json", "{"),
        ("splits.json", '{"tasks": {"digits": {"clients": {"digits-cnn": {"class_counts": {"train": ["x"]}}}}}}'),
        ("splits.json", '{"tasks": {"digits": {"clients": {"digits-cnn": {"train": 7}}}}}'),
        ("splits.json", '{"tasks": [1]}'),
        ("test.json", '{"clients": {"digits-cnn": {}}}'),
        ("test.json", '{"clients": [1]}'),
        ("test.json", '{"clients": {"digits-cnn": {"task": "digits", "best": {"q": {"accuracy": "high"}}}}}'),
        ("history.jsonl", '{"phase": "nap"}\n'),
        ("history.jsonl", '{"phase": "train", "round": "one"}\n'),
        ("history.jsonl", '{"phase": "train", "round": 1, "dev": {}}\n{"phase": "train", "round": 2, "dev": {"tasks": {}}}\n'),
        ("history.jsonl", '{"phase": "train", "round": 1, "bytes": 7}\n'),
        ("history.jsonl", 'nonsense\n{"phase": "close"}\n'),
    ],
)
def test_a_malformed_file_is_named(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        read_run(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere: no such folder"):
        read_run(tmp_path / "nowhere")


def test_history_as_frames(folder: Path) -> None:
    history, rounds, clients = load_history(folder)
    assert list(history.columns) == ["round", "task", "client", "endpoint", "metric", "value"]
    expected = {int(row["dev"]["round"]): row["dev"] for row in [*history_rows()[1:], closing_row()]}
    means = history[history.client.isna() & (history.task == "news") & (history.endpoint == "q") & (history.metric == "accuracy")]
    assert dict(zip(means["round"], means["value"], strict=True)) == {
        number: dev["tasks"]["news"]["q"]["accuracy"] for number, dev in expected.items()
    }
    own = history[(history.client == "glyphs-mono") & (history["round"] == 8)]
    assert set(own.task) == {"glyphs"}
    assert own.set_index(["endpoint", "metric"]).value["joint", "t2i"] == expected[8]["clients"]["glyphs-mono"]["joint.t2i"]
    assert "digits-mlp" not in set(history.client.dropna())
    assert rounds["round"].tolist() == list(range(1, 9))
    assert rounds.refused.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert rounds.missing.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert rounds.up.sum() == 8 * 9 * 1_296_000
    assert rounds["gate.digits"].iloc[2] == pytest.approx(0.47)
    assert len(clients) == (8 * 10 - 1) * 3


def test_history_of_a_run_without_dev_is_empty_but_has_its_columns(tmp_path: Path) -> None:
    history, rounds, _ = load_history(make_run(tmp_path, rounds=1, finished=False))
    assert len(history) == 0
    assert "value" in history.columns
    assert len(rounds) == 1


def test_history_that_is_missing_is_named(folder: Path) -> None:
    (folder / "history.jsonl").unlink()
    with pytest.raises(RunError, match=r"history\.jsonl: no such file"):
        load_history(folder)


def test_a_task_name_of_any_length_is_read(tmp_path: Path) -> None:
    run = read_run(
        make_run(tmp_path, {LONG: ("classification", {"a": "m", "b": "m"}), "c": ("retrieval", dict.fromkeys("defg", "m"))})
    )
    assert run.tasks == (LONG, "c")
