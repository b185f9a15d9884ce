"""Every command of ``fedsocket-flwr`` on toy data: what it prints, writes and returns, and how it fails."""

import csv
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.cli import main
from fedsocket_flwr.configuration_file import read_configuration, shipped_configurations
from fedsocket_flwr.datasets.toy import read_images, read_pairs, read_texts
from fedsocket_flwr.plain_files import read_json, read_json_lines
from fedsocket_flwr.run_preparation import prepare_run
from fedsocket_flwr.runtime.run_files import load_checkpoint, read_identity
from fedsocket_flwr.runtime.store import list_runs, state_directory
from tests.toy_runs import assert_same_arrays, read_outcome, timeless

COMMAND = [sys.executable, "-m", "fedsocket_flwr.cli"]
WHOLE_RUN = {
    *("config.yaml", "run.json", "environment.json", "splits.json", "q.safetensors", "history.jsonl", "test.json"),
    *("summary.json", "report.md", "tables", "figures"),
}
ONE_TASK = """\
run: {name: words, seed: 1, rounds: 1}
interfaces:
  text: {kind: hashed_words, width: 8, norm: 4, options: {buckets: 64}}
tasks:
  words:
    dataset: toy_texts
    kind: classification
    modalities: [text]
    text_buckets: 64
    text_length: 12
    options: {rows: 60, classes: 3}
    clients:
      - {name: a, model: text_bag, arguments: {width: 4}}
      - {name: b, model: text_bag, arguments: {width: 4}}
predictor: {width: 8, residual_rank: 2}
training:
  warm_up_epochs: 1
  private:
    text: {optimiser: adam, learning_rate: 5e-3, epochs: 1, batch_size: 16}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing figures takes longer than a toy run."""
    monkeypatch.setattr("fedsocket_flwr.run_preparation.write_report", lambda folder: None)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A configuration of one small task."""
    path = tmp_path / "words.yaml"
    path.write_text(ONE_TASK, encoding="utf-8")
    return path


class Speaker:
    """Calls the command and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def says(self, *arguments: Any) -> str:
        """Return what a call that succeeds prints."""
        status = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert status == 0, err
        return out

    def refuses(self, *arguments: Any, status: int = 1) -> str:
        """Return what a call that fails prints: one line, no traceback."""
        assert main([str(argument) for argument in arguments]) == status
        _, err = self._capsys.readouterr()
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err

    def table(self, *arguments: Any) -> list[dict[str, str]]:
        """Return the CSV that a call prints."""
        return list(csv.DictReader(io.StringIO(self.says(*arguments))))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Speaker:
    return Speaker(capsys)


def picture(path: Path, rows: Any) -> Path:
    from PIL import Image

    Image.fromarray(rows).save(path)
    return path


class TestRun:
    def test_a_run_says_a_line_a_round_and_leaves_a_whole_folder(self, command: Speaker, tmp_path: Path) -> None:
        said = command.says("run", "toy", "--engine", "inprocess", "--set", "run.rounds=2")
        folder = tmp_path / "runs" / "toy-1"
        first, *rounds, closing, end, report = said.splitlines()
        assert (
            first == "toy: fedsocket, seed 1, 2 rounds, tasks shapes (classification), words (classification), pairs (retrieval)"
        )
        assert [line.split("  ")[0] for line in (*rounds, closing)] == ["round 1/2", "round 2/2", "closing"]
        assert (end, report) == ("run finished", f"report: {folder / 'report.md'}")
        assert {path.name for path in folder.iterdir()} >= WHOLE_RUN

    @pytest.mark.usefixtures("without_report")
    def test_two_runs_without_a_folder_get_two(self, command: Speaker, words: Path, tmp_path: Path) -> None:
        for _ in range(2):
            command.says("run", words, "--engine", "inprocess")
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["words-1", "words-1-2"]

    @pytest.mark.usefixtures("without_report")
    def test_a_finished_run_is_left_alone_and_continued_on_request(self, command: Speaker, words: Path) -> None:
        command.says("run", words, "--engine", "inprocess", "--out", "one")
        before = {path: path.stat().st_mtime_ns for path in Path("one").iterdir()}
        assert "nothing to do" in command.says("run", "--resume", "one")
        assert {path: path.stat().st_mtime_ns for path in Path("one").iterdir()} == before

        Path("one").rename("moved run")
        said = command.says("run", "--resume", "moved run", "--set", "run.rounds=3")
        assert "round 1/3" not in said
        assert "round 2/3" in said
        assert "round 3/3" in said
        history = read_json_lines(Path("moved run/history.jsonl"))[0]
        assert [(row["phase"], row["round"]) for row in history] == [("train", 1), ("train", 2), ("train", 3), ("close", 3)]
        command.says("run", words, "--engine", "inprocess", "--out", "whole", "--set", "run.rounds=3")
        resumed, whole = read_outcome(Path("moved run")), read_outcome(Path("whole"))
        assert_same_arrays(resumed.q, whole.q)
        assert resumed.test == whole.test

        assert "finished 3 rounds; it cannot go back to 2" in command.refuses(
            "run", "--resume", "moved run", "--set", "run.rounds=2"
        )
        refused = command.refuses("run", "--resume", "moved run", "--set", "training.q.learning_rate=1e-3")
        assert "training.q.learning_rate: 0.0003 when the run began, 0.001 now" in refused
        assert "nothing to do" in command.says("run", words, "--resume", "moved run")
        words.write_text(words.read_text(encoding="utf-8").replace("seed: 1", "seed: 2"), encoding="utf-8")
        assert "run.seed: 1 when the run began, 2 now" in command.refuses("run", words, "--resume", "moved run")
        assert "give no --out" in command.refuses("run", "--resume", "moved run", "--out", "other")

    def test_on_a_superlink_everything_is_on_its_host(
        self, command: Speaker, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
        assert "absolute folders of that host" in command.refuses("run", words, "--superlink", "lab", "--out", "here")
        assert "give no --engine" in command.refuses("run", words, "--superlink", "lab", "--engine", "ray")
        assert "with --resume nothing else" in command.refuses("run", words, "--superlink", "lab", "--resume", "/runs/1")
        assert "flwr run failed" in command.refuses("run", words, "--superlink", "nowhere")

    def test_a_run_of_a_superlink_is_not_taken_for_one_of_this_machine(
        self, command: Speaker, words: Path, tmp_path: Path
    ) -> None:
        folder = prepare_run(read_configuration(words), tmp_path / "deployed", "deployment")
        assert "continue it with --superlink NAME" in command.refuses("run", "--resume", str(folder))

    def test_what_cannot_start_leaves_nothing(self, command: Speaker, words: Path, tmp_path: Path) -> None:
        assert ", ".join(shipped_configurations()) in command.refuses("run")
        assert "no such file" in command.refuses("run", "absent.yaml")
        assert "expected key=value" in command.refuses("run", words, "--set", "run.seed")
        assert "did you mean 'method'" in command.refuses("run", words, "--set", "run.methd=local")
        assert "did you mean 'fedsocket'" in command.refuses("run", words, "--set", "run.method=fedsocked")
        assert "run.seed: found 'one', expected a whole number" in command.refuses("run", words, "--set", "run.seed=one")
        assert "client 'a': no private model is called 'text_bog'" in command.refuses(
            "run", words, "--set", "tasks.words.clients[0].model=text_bog"
        )
        assert "no run folder" in command.refuses("run", "--resume", "absent")
        assert {path.name for path in tmp_path.iterdir()} <= {"words.yaml", "fedsocket-home"}

    def test_a_folder_that_is_taken_is_refused(self, command: Speaker, words: Path, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine.txt").write_text("mine", encoding="utf-8")
        assert "is not empty" in command.refuses("run", words, "--engine", "inprocess", "--out", "full")
        assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]

    def test_wrong_usage_has_the_status_of_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in ([], ["rnu"], ["run", "toy", "--engine", "spark"]):
            with pytest.raises(SystemExit) as caught:
                main(arguments)
            assert caught.value.code == 2
        assert "usage: fedsocket-flwr" in capsys.readouterr().err


class TestCheck:
    def test_it_says_what_a_run_would_do(self, command: Speaker, tmp_path: Path) -> None:
        said = command.says("check", "toy", "--plot", "labels.png")
        assert "| shapes-cnn | shapes | image_cnn |" in said
        assert "payload owned (configured): 35,792 B down and 35,952 B up a round" in said
        assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")
        assert [path.name for path in tmp_path.iterdir() if path.name != "fedsocket-home"] == ["labels.png"]

    @pytest.mark.usefixtures("without_report")
    def test_its_numbers_are_those_of_the_run(self, command: Speaker, words: Path) -> None:
        said = command.says("check", words)
        command.says("run", words, "--engine", "inprocess", "--out", "run")
        row = read_json_lines(Path("run/history.jsonl"))[0][0]
        assert f"{row['bytes']['down']:,} B down and {row['bytes']['up']:,} B up a round" in said

    def test_what_it_refuses(self, command: Speaker, words: Path) -> None:
        assert "the nearest is 'toy_texts'" in command.refuses("check", words, "--set", "tasks.words.dataset=toy_txts")
        assert "name a configuration" in command.refuses("check")


class TestSweep:
    SWEEP = """\
name: trial
base: words.yaml
seeds: [1, 2]
arms:
  full: {}
  local: {run.method: local}
contrasts:
  - {name: gain, minuend: {arm: full, endpoint: joint}, subtrahend: {arm: local, endpoint: private}}
"""

    def test_a_sweep_runs_keeps_and_compares(self, command: Speaker, words: Path, tmp_path: Path) -> None:
        (tmp_path / "trial.yaml").write_text(self.SWEEP, encoding="utf-8")
        assert "4 run, 0 kept, 0 failed, 0 not started" in command.says("sweep", "trial.yaml")
        comparison = (tmp_path / "runs" / "trial" / "comparison.md").read_text(encoding="utf-8")
        assert "gain" in comparison

        shutil.rmtree(tmp_path / "runs" / "trial" / "local" / "2")
        (tmp_path / "runs" / "trial" / "comparison.md").unlink()
        said = command.says("sweep", "runs/trial", "--compare")
        assert said == f"comparison: {Path('runs/trial/comparison.md')}\n"
        assert (tmp_path / "runs" / "trial" / "comparison.md").exists()
        assert not (tmp_path / "runs" / "trial" / "local" / "2").exists()
        assert "1 run, 3 kept, 0 failed, 0 not started" in command.says("sweep", "trial.yaml")
        assert (tmp_path / "runs" / "trial" / "comparison.md").read_text(encoding="utf-8") == comparison

    def test_a_member_that_fails_is_named(self, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arms = "arms:\n  broken: {'tasks.words.clients[0].model': text_bog}\n  fine: {}\n"
        (tmp_path / "broken.yaml").write_text(f"name: broken\nbase: words.yaml\nseeds: [1]\n{arms}", encoding="utf-8")
        assert main(["sweep", "broken.yaml"]) == 1
        out, err = capsys.readouterr()
        assert "failed: broken/1: tasks.words, client 'a': no private model is called 'text_bog'" in err
        assert "1 run, 0 kept, 1 failed, 0 not started" in out
        assert main(["sweep", "broken.yaml", "--fail-fast", "--out", "second"]) == 1
        assert "0 run, 0 kept, 1 failed, 1 not started" in capsys.readouterr().out

    def test_what_it_refuses(self, command: Speaker, words: Path, tmp_path: Path) -> None:
        assert "no such file" in command.refuses("sweep", "absent.yaml")
        assert "absent" in command.refuses("sweep", "absent", "--compare")


class TestReport:
    def test_a_report_is_made_again_to_the_byte(self, command: Speaker, finished_run: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(finished_run, copy)
        derived = ["summary.json", "report.md"]
        before = {name: (copy / name).read_bytes() for name in derived}
        for name in derived:
            (copy / name).unlink()
        assert command.says("report", copy) == f"report: {copy / 'report.md'}\n"
        assert {name: (copy / name).read_bytes() for name in derived} == before

    def test_a_folder_without_a_run_is_refused(self, command: Speaker, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        command.refuses("report", "empty")
        command.refuses("report", "absent")


class TestPredict:
    def test_texts(self, command: Speaker, toy_run: Path, tmp_path: Path) -> None:
        corpus = read_texts(None, {"rows": 120, "classes": 4})
        (tmp_path / "texts.txt").write_text("\n".join(corpus.raw["text"][:9]) + "\n", encoding="utf-8")
        rows = command.table("predict", toy_run, "texts.txt", "--client", "words-bag")
        assert list(rows[0]) == ["row", "class", "class0", "class1", "class2", "class3"]
        assert [row["row"] for row in rows] == [str(number) for number in range(9)]
        for row in rows:
            chances = {name: float(row[name]) for name in corpus.classes}
            assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
            assert chances[row["class"]] == max(chances.values())

    def test_arrays_and_pictures_of_the_same_rows_agree(self, command: Speaker, toy_run: Path, tmp_path: Path) -> None:
        corpus = read_images(None, {"rows": 150, "classes": 3, "size": 8})
        images = corpus.raw["image"][:6]
        assert isinstance(images, np.ndarray)
        np.save(tmp_path / "images.npy", images)
        files = [picture(tmp_path / f"{number}.png", image) for number, image in enumerate(images)]
        said = [
            command.table("predict", toy_run, *given, "--client", "shapes-mlp", "--endpoint", endpoint)
            for given in ([tmp_path / "images.npy"], files)
            for endpoint in ("private", "q", "joint")
        ]
        assert said[:3] == said[3:]
        assert said[0] != said[1]
        assert corpus.labels is not None
        right = [int(row["class"].removeprefix("class")) == label for row, label in zip(said[2], corpus.labels, strict=False)]
        assert sum(right) >= 4

    def test_retrieval_ranks_texts_for_images_and_back(self, command: Speaker, toy_run: Path, tmp_path: Path) -> None:
        corpus = read_pairs(None, {"items": 60, "size": 8, "captions": 2})
        images = corpus.raw["image"][:3]
        files = [picture(tmp_path / f"{number}.png", image) for number, image in enumerate(images)]
        (tmp_path / "captions.txt").write_text("\n".join(corpus.raw["text"][:4]), encoding="utf-8")
        rows = command.table("predict", toy_run, *files, "captions.txt", "--client", "pairs-a", "--top", "3")
        assert list(rows[0]) == ["query", "row", "rank 1", "rank 2", "rank 3"]
        assert [(row["query"], row["row"]) for row in rows] == [
            *(("image", str(number)) for number in range(3)),
            *(("text", str(number)) for number in range(4)),
        ]
        ranks = [{row[f"rank {place}"] for place in (1, 2, 3)} for row in rows]
        assert all(len(found) == 3 for found in ranks)
        assert set().union(*ranks[:3]) <= set("0123")
        assert set().union(*ranks[3:]) == set("012")

    def test_what_it_refuses(self, command: Speaker, toy_run: Path, words: Path, tmp_path: Path) -> None:
        (tmp_path / "texts.txt").write_text("topic1word2", encoding="utf-8")
        (tmp_path / "no.png").write_text("no picture", encoding="utf-8")
        np.save(tmp_path / "small.npy", np.zeros((2, 4, 4), dtype=np.uint8))
        assert "no client is called 'bag'" in command.refuses("predict", toy_run, "texts.txt", "--client", "bag")
        assert "no such file" in command.refuses("predict", toy_run, "absent.txt", "--client", "words-bag")
        assert "is not a picture that can be read" in command.refuses("predict", toy_run, "no.png", "--client", "shapes-cnn")
        assert "no file gives its image" in command.refuses("predict", toy_run, "texts.txt", "--client", "shapes-cnn")
        assert "trained on (1, 8, 8)" in command.refuses("predict", toy_run, "small.npy", "--client", "shapes-cnn")
        assert "no run folder" in command.refuses("predict", "absent", "texts.txt", "--client", "words-bag")
        assert "reads text, no pictures" in command.refuses("predict", toy_run, "no.png", "--client", "words-bag")
        assert "given already" in command.refuses("predict", toy_run, "texts.txt", "texts.txt", "--client", "words-bag")
        assert "expected .npy, .txt or a picture" in command.refuses("predict", toy_run, words, "--client", "words-bag")


class TestData:
    def test_list(self, command: Speaker) -> None:
        lines = command.says("data", "list").splitlines()
        assert lines[0].startswith("| name | kind | modalities |")
        assert any(line.startswith("| toy_texts | classification | text |") and "present" in line for line in lines)

    def test_prepare(self, command: Speaker, tmp_path: Path) -> None:
        assert "class class2: 50" in command.says("data", "prepare", "toy_images").splitlines()
        (tmp_path / "own.csv").write_text("label,text\nham,see you\nspam,buy now\n", encoding="utf-8")
        assert "class ham: 1" in command.says("data", "prepare", "table", "--path", "own.csv").splitlines()

    def test_what_it_refuses(self, command: Speaker, tmp_path: Path) -> None:
        assert "the nearest is 'toy_texts'" in command.refuses("data", "prepare", "toy_text")
        assert "needs `path`" in command.refuses("data", "prepare", "table")
        (tmp_path / "own.csv").write_text("label,text\nham\n", encoding="utf-8")
        assert "record 1: 1 fields, expected 2" in command.refuses("data", "prepare", "table", "--path", "own.csv")


class TestStore:
    @pytest.mark.usefixtures("without_report")
    def test_list_and_prune(self, command: Speaker, words: Path) -> None:
        assert command.says("store", "list") == ""
        names = []
        for out in ("one", "two"):
            command.says("run", words, "--engine", "inprocess", "--out", out)
            names.append(str(read_identity(Path(out))["run"]))
        listed = command.says("store", "list").splitlines()
        assert sorted(line.split("  ")[0] for line in listed) == sorted(names)
        assert all(line.split("  ")[1] == "2 clients" for line in listed)

        assert "--older-than DAYS" in command.refuses("store", "prune")
        assert "no state of the runs three" in command.refuses("store", "prune", "three")
        assert command.says("store", "prune", "--older-than", "1") == ""
        assert command.says("store", "prune", names[0]) == f"removed {names[0]}\n"
        assert [row.run for row in list_runs(state_directory({}))] == [names[1]]
        assert "frozen no choices on this machine" in command.refuses("predict", "one", "words.txt", "--client", "a")

    def test_days_must_be_a_number_from_zero(self, capsys: pytest.CaptureFixture[str]) -> None:
        for days in ("-1", "soon", "nan"):
            with pytest.raises(SystemExit):
                main(["store", "prune", "--older-than", days])
            assert f"at least 0, found {days}" in capsys.readouterr().err


# --- as processes of their own --------------------------------------------------------------------------------------------------


def environment(**variables: str) -> dict[str, str]:
    """What a process needs here, and nothing of the locale."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "FEDSOCKET_HOME", "PYTHONPATH") if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


def test_marks_line_ends_and_an_ascii_terminal_change_nothing(tmp_path: Path, command: Speaker) -> None:
    hard = "# a dash \u2013 and umlauts \u00e4\u00f6\u00fc\n" + ONE_TASK.replace("name: words,", "name: w\u00f6rter,")
    hard = hard.replace("rounds: 1", "rounds: 2")
    (tmp_path / "hard.yaml").write_bytes(b"\xef\xbb\xbf" + hard.replace("\n", "\r\n").encode())
    (tmp_path / "plain.yaml").write_text(hard, encoding="utf-8")
    poor = environment(
        LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONIOENCODING="ascii", COLUMNS="0", NO_COLOR="1", TERM="dumb"
    )
    done = subprocess.run(
        [*COMMAND, "run", "hard.yaml", "--engine", "inprocess", "--out", "hard"],
        env=poor,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    log = done.stdout
    assert done.returncode == 0, log
    command.says("run", "plain.yaml", "--engine", "inprocess", "--out", "plain")
    assert log.isascii()
    assert b"\r" not in log
    assert b"\x1b" not in log
    heads = [line.split(b"  ")[0] for line in log.splitlines()]
    assert [head for head in heads if head.startswith((b"round", b"closing"))] == [b"round 1/2", b"round 2/2", b"closing"]
    assert log.endswith(b"\n")
    for name in ("config.yaml", "splits.json", "q.safetensors", "test.json"):
        assert (tmp_path / "hard" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    found, expected = (timeless(read_json_lines(tmp_path / name / "history.jsonl")[0]) for name in ("hard", "plain"))
    assert found == expected
    assert "w\u00f6rter" in (tmp_path / "hard" / "report.md").read_text(encoding="utf-8")


def test_a_terminated_run_keeps_its_rounds_and_goes_on(tmp_path: Path, words: Path) -> None:
    running = subprocess.Popen(
        [*COMMAND, "run", str(words), "--engine", "inprocess", "--out", "cut", "--set", "run.rounds=5000"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert running.stdout is not None
    try:
        for line in running.stdout:
            if line.startswith("round 3/"):
                break
        running.send_signal(signal.SIGTERM)
        rest, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, errors
    assert "run interrupted" in rest
    assert errors.splitlines()[-1] == "interrupted; everything up to the last finished round is on disk"
    assert "Traceback" not in errors
    checkpoint = load_checkpoint(tmp_path / "cut")
    assert checkpoint is not None
    done = checkpoint.round
    assert done >= 3
    assert read_json(tmp_path / "cut" / "summary.json")["status"] == "unfinished"

    assert main(["run", "--resume", "cut", "--set", f"run.rounds={done + 1}"]) == 0
    assert main(["run", str(words), "--engine", "inprocess", "--out", "whole", "--set", f"run.rounds={done + 1}"]) == 0
    resumed, whole = read_outcome(tmp_path / "cut"), read_outcome(tmp_path / "whole")
    assert_same_arrays(resumed.q, whole.q)
    assert resumed.test == whole.test
    assert timeless(resumed.history) == timeless(whole.history)


def test_a_reader_that_has_enough_ends_the_command_quietly(words: Path) -> None:
    process = subprocess.Popen([*COMMAND, "data", "list"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")


@pytest.mark.slow
def test_four_runs_that_start_together_have_four_folders(tmp_path: Path, words: Path) -> None:
    together = [
        subprocess.Popen([*COMMAND, "run", str(words), "--engine", "inprocess"], env=environment(), stdout=subprocess.DEVNULL)
        for _ in range(4)
    ]
    assert [process.wait(timeout=300) for process in together] == [0] * 4
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == ["words-1", "words-1-2", "words-1-3", "words-1-4"]
    assert all({path.name for path in folder.iterdir()} >= WHOLE_RUN for folder in folders)
    assert len({read_identity(folder)["run"] for folder in folders}) == 4
    outcomes = [read_outcome(folder) for folder in folders]
    for outcome in outcomes[1:]:
        assert_same_arrays(outcome.q, outcomes[0].q)
        assert outcome.test == outcomes[0].test


@pytest.mark.slow
def test_a_terminal_without_columns(tmp_path: Path, words: Path) -> None:
    pty, fcntl, struct, termios = (__import__(name) for name in ("pty", "fcntl", "struct", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, "run", str(words), "--engine", "inprocess"], env=environment(TERM="xterm"), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            chunk = os.read(ours, 4096)
        except OSError:
            break
        if not chunk:
            break
        said += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert b"\x1b[1mround 1/1\x1b[0m" in said
    assert b"run finished" in said
