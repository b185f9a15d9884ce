import io
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.plain_files import parse_json
from fedsocket_flwr.runtime.callbacks import (
    Callbacks,
    HistoryWriter,
    ProgressLog,
    ProgressPrinter,
    RunFacts,
    TensorBoardWriter,
    scalars,
)
from tests.evaluation.fake_run import closing_row, history_rows


def facts(folder: Path) -> RunFacts:
    tasks = {"digits": "classification", "glyphs": "retrieval"}
    return RunFacts("demo-1", "demo", "fedsocket", 101, 8, tasks, folder)


class Recorder:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, run: RunFacts) -> None:
        self.heard.append(run.run)

    def on_phase(self, row: Mapping[str, Any]) -> None:
        self.heard.append(row["round"])

    def on_end(self, status: str) -> None:
        self.heard.append(status)


class Broken(Recorder):
    def on_phase(self, row: Mapping[str, Any]) -> None:
        raise OSError("disk full")


def test_a_callback_that_fails_is_logged_once_and_the_others_hear_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, recorder = Broken(), Recorder()
    callbacks = Callbacks([broken, recorder])
    with caplog.at_level(logging.ERROR):
        callbacks.on_start(facts(tmp_path))
        for number in (1, 2, 3):
            callbacks.on_phase({"phase": "train", "round": number})
        callbacks.on_end("finished")
    assert recorder.heard == ["demo-1", 1, 2, 3, "finished"]
    assert broken.heard == ["demo-1", "finished"]
    assert [record.message for record in caplog.records] == ["callback Broken failed in on_phase; the run goes on without it"]


def written(folder: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_history_has_one_strict_line_a_phase(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    writer.on_start(facts(tmp_path))
    assert written(tmp_path) == []
    rows = [*history_rows(), closing_row()]
    rows[0]["clients"]["digits-cnn"]["loss.q"] = float("nan")
    for row in rows:
        writer.on_phase(row)
        assert written(tmp_path)[-1]["round"] == row["round"]
    assert "loss.q" not in written(tmp_path)[0]["clients"]["digits-cnn"]
    assert written(tmp_path)[1:] == rows[1:]


def test_a_resumed_history_holds_each_round_once(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [*history_rows(), closing_row()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"phase": "tra', encoding="utf-8")
    writer = HistoryWriter(tmp_path, resumed_round=5)
    writer.on_start(facts(tmp_path))
    assert written(tmp_path) == rows[:5]
    for row in rows[5:]:
        writer.on_phase(row)
    assert written(tmp_path) == rows


def test_more_rounds_after_a_finished_run_take_its_closing_row_away(tmp_path: Path) -> None:
    rows = [*history_rows(), closing_row()]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    HistoryWriter(tmp_path, resumed_round=8).on_start(facts(tmp_path))
    assert written(tmp_path) == rows[:8]


def test_a_new_history_forgets_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(json.dumps(history_rows()[0]) + "\n", encoding="utf-8")
    HistoryWriter(tmp_path).on_start(facts(tmp_path))
    assert written(tmp_path) == []


def test_a_line_that_could_not_be_synced_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = HistoryWriter(tmp_path)
    writer.on_start(facts(tmp_path))
    first, second, third = history_rows()[:3]
    writer.on_phase(first)

    def full(handle: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            writer.on_phase(second)
    writer.on_phase(third)
    assert written(tmp_path) == [first, third]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, folder: Path) -> str:
    printer = ProgressPrinter(stream)
    printer.on_start(facts(folder))
    for row in [*history_rows(), closing_row()]:
        printer.on_phase(row)
    printer.on_end("finished")
    return stream.getvalue()


def test_a_pipe_gets_whole_lines_without_escapes(tmp_path: Path) -> None:
    text = printed(io.StringIO(), tmp_path)
    lines = text.splitlines()
    assert lines[0] == "demo: fedsocket, seed 101, 8 rounds, tasks digits (classification), glyphs (retrieval)"
    assert [line.partition("  ")[0] for line in lines[1:9]] == [f"round {n}/8" for n in range(1, 9)]
    assert lines[9].startswith("closing")
    assert lines[10:] == ["run finished"]
    assert "\x1b" not in text
    assert "\r" not in text


def test_only_a_terminal_gets_bold_and_not_with_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "0")
    assert "\x1b[1mround 3/8\x1b[0m  7.3 s" in printed(Terminal(), tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(Terminal(), tmp_path)


def test_an_ascii_stream_gets_escapes_instead_of_an_error(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    printer = ProgressPrinter(stream)
    printer.on_phase({"phase": "train", "round": 1, "refused": {"新闻": "weights – odd"}})
    assert raw.getvalue() == b"round 1/0  refused \\u65b0\\u95fb (weights \\u2013 odd)\n"


def test_the_log_gets_the_lines_of_the_printer_and_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    callbacks = Callbacks([ProgressPrinter(stream), ProgressLog()])
    with caplog.at_level(logging.INFO, "fedsocket_flwr"):
        callbacks.on_start(facts(tmp_path))
        for row in [*history_rows(), closing_row()]:
            callbacks.on_phase(row)
        callbacks.on_end("finished")
    first, *rest = stream.getvalue().splitlines()
    assert [record.getMessage() for record in caplog.records] == [f"{first}; folder {tmp_path}", *rest]


def test_scalars_put_dev_at_the_round_of_its_model() -> None:
    found = {name: (value, step) for name, value, step in scalars(history_rows()[2])}
    assert found["round/seconds"] == (7.3, 3)
    assert found["dev/digits/q/accuracy"][1] == 2
    assert found["dev_client/glyphs-sans/joint/i2t"][1] == 2
    assert found["strategy/gate.digits"] == (0.47, 3)
    assert found["participation/refused"] == (1.0, 3)
    assert "dev/digits/clients" not in found


def test_tensorboard_that_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigurationError, match=r"fedsocket-flwr\[tracking\]"):
        TensorBoardWriter(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    writer.on_start(facts(tmp_path))
    for row in [*history_rows(), closing_row()]:
        writer.on_phase(row)
    writer.on_end("finished")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("dev/digits/joint/accuracy")] == list(range(1, 9))
    assert events.Scalars("round/seconds")[0].value == pytest.approx(7.1)
