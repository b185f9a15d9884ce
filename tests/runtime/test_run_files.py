import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import FedSocketError, RunError
from fedsocket_flwr.runtime.block_files import write_blocks
from fedsocket_flwr.runtime.run_files import (
    Checkpoint,
    claim_folder,
    load_checkpoint,
    read_identity,
    save_checkpoint,
    write_identity,
)
from tests.small_federation import drawn, same_bits

Configure = Callable[..., Configuration]

# Eight processes wait for one file, so that they claim at the same moment; the clock stands still in all of them.
CLAIM = """
import datetime, sys, time
from pathlib import Path
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.runtime import run_files
class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, tzinfo=tz)
run_files.datetime = Frozen
pause, time.time = time.sleep, lambda: 0.0
out, config = (Path(sys.argv[1]) if sys.argv[1] else None), read_configuration("toy")
print("ready", flush=True)
while not Path("start").exists():
    pause(0.001)
try:
    folder = run_files.claim_folder(out, config)
    print(folder, run_files.write_identity(folder, config, "inprocess", 0), sep="|")
except RunError as error:
    print("refused|", error)
"""


def claim_together(folder: Path, out: str, number: int = 8) -> list[list[str]]:
    """Return what the processes printed after they were let go."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, out], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        for _ in range(number)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        (folder / "start").touch()
        return [process.communicate(timeout=60)[0].strip().split("|") for process in processes]
    finally:
        for process in processes:
            process.kill()


class TestClaiming:
    def test_processes_that_start_together_get_folders_of_their_own(self, tmp_path: Path) -> None:
        claimed = claim_together(tmp_path, "")
        names = {Path(folder).name for folder, _ in claimed}
        assert names == {"toy-1", *(f"toy-1-{number}" for number in range(2, 9))}
        assert len({run for _, run in claimed}) == 8, "the names of the runs differ too"

    def test_of_those_that_name_one_folder_one_gets_it(self, tmp_path: Path) -> None:
        claimed = claim_together(tmp_path, "mine")
        winners = [folder for folder, _ in claimed if folder != "refused"]
        assert winners == [str(tmp_path / "mine")]
        assert all("not empty" in reason for folder, reason in claimed if folder == "refused")

    def test_what_one_saw_before_another_claimed_it_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_config: Configure
    ) -> None:
        """The moment between looking and claiming, made as long as the test: every look finds nothing."""
        monkeypatch.chdir(tmp_path)
        config = toy_config()
        with monkeypatch.context() as stale:
            stale.setattr(Path, "exists", lambda self: False)
            stale.setattr(Path, "iterdir", lambda self: iter(()))
            assert claim_folder(None, config) != claim_folder(None, config)
            claim_folder(tmp_path / "mine", config)
            with pytest.raises(RunError, match="not empty"):
                claim_folder(tmp_path / "mine", config)

    def test_folders_are_numbered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_config: Configure) -> None:
        monkeypatch.chdir(tmp_path)
        config = toy_config({"run.name": "Años 1", "run.seed": 9})
        folders = [claim_folder(None, config) for _ in range(3)]
        assert [folder.parent for folder in folders] == [tmp_path / "runs"] * 3
        stem = folders[0].name
        assert [folder.name for folder in folders] == [stem, f"{stem}-2", f"{stem}-3"]
        assert stem.isascii()

    def test_a_named_folder_is_made_with_its_parents(self, tmp_path: Path, toy_config: Configure) -> None:
        assert claim_folder(tmp_path / "a" / "b", toy_config()) == tmp_path / "a" / "b"
        (tmp_path / "empty").mkdir()
        assert claim_folder(tmp_path / "empty", toy_config()) == tmp_path / "empty"

    def test_a_folder_with_something_in_it_is_refused_and_left_alone(self, tmp_path: Path, toy_config: Configure) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(RunError, match=r"not empty; give another folder, or continue that run with --resume"):
            claim_folder(tmp_path, toy_config())
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path, toy_config: Configure) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(RunError, match="cannot be the run folder"):
            claim_folder(tmp_path / "file", toy_config())


class TestIdentity:
    def test_it_is_read_as_it_was_written(self, tmp_path: Path, toy_config: Configure) -> None:
        run = write_identity(tmp_path, toy_config({"run.name": "数字"}), "inprocess", 1234)
        found = read_identity(tmp_path)
        assert {key: found[key] for key in ("run", "engine", "q_parameters")} == {
            "run": run,
            "engine": "inprocess",
            "q_parameters": 1234,
        }
        assert run.startswith("数字-1-")

    def test_a_run_is_never_called_like_another(self, tmp_path: Path, toy_config: Configure) -> None:
        assert len({write_identity(tmp_path, toy_config(), "inprocess", 0) for _ in range(20)}) == 20

    def test_another_folder_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"is no run folder: it has no run\.json"):
            read_identity(tmp_path)

    def test_a_run_that_was_cut_before_it_had_a_name(self, tmp_path: Path, toy_config: Configure) -> None:
        claim_folder(tmp_path / "run", toy_config())
        with pytest.raises(RunError, match="cut before it began; remove the folder"):
            read_identity(tmp_path / "run")


class TestCheckpoint:
    BLOCKS = drawn("checkpoint")

    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        save_checkpoint(tmp_path, Checkpoint(7, self.BLOCKS, {"versions": {"数字-1": 7}}))
        found = load_checkpoint(tmp_path)
        assert found is not None
        assert (found.round, found.strategy) == (7, {"versions": {"数字-1": 7}})
        assert same_bits(found.blocks, self.BLOCKS)

    def test_the_last_one_counts(self, tmp_path: Path) -> None:
        for number in (1, 2):
            save_checkpoint(tmp_path, Checkpoint(number, drawn(number), {}))
        found = load_checkpoint(tmp_path)
        assert found is not None
        assert found.round == 2
        assert same_bits(found.blocks, drawn(2))
        assert [path.name for path in tmp_path.iterdir()] == ["q.safetensors"]

    def test_a_method_that_exchanges_nothing_has_one_too(self, tmp_path: Path) -> None:
        save_checkpoint(tmp_path, Checkpoint(1, {}, {"versions": {}}))
        assert load_checkpoint(tmp_path) == Checkpoint(1, {}, {"versions": {}})

    def test_before_the_first_round_there_is_none(self, tmp_path: Path) -> None:
        assert load_checkpoint(tmp_path) is None

    @pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "no safetensors"])
    def test_a_damaged_one_is_named(self, tmp_path: Path, damage: str) -> None:
        save_checkpoint(tmp_path, Checkpoint(1, self.BLOCKS, {}))
        path = tmp_path / "q.safetensors"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        damaged = {"cut": data[:-20], "flipped": data, "emptied": b"", "no safetensors": b"\xff" * 64}
        path.write_bytes(damaged[damage])
        with pytest.raises(FedSocketError, match=r"q\.safetensors is damaged"):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("notes", ["{}", "[]", '{"round": "last", "strategy": {}}', '{"round": 1, "strategy": 3}', "no json"])
    def test_arrays_that_are_no_checkpoint_are_named(self, tmp_path: Path, notes: str) -> None:
        write_blocks(tmp_path / "q.safetensors", {"a": np.zeros(1)}, notes)
        with pytest.raises(RunError, match=r"q\.safetensors is no checkpoint of a run"):
            load_checkpoint(tmp_path)

    def test_other_tools_can_read_it(self, tmp_path: Path) -> None:
        from safetensors.numpy import load_file

        save_checkpoint(tmp_path, Checkpoint(1, self.BLOCKS, {}))
        found = load_file(tmp_path / "q.safetensors")
        assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in self.BLOCKS.items()}

    def test_its_notes_are_strict_json(self, tmp_path: Path) -> None:
        from safetensors import safe_open

        save_checkpoint(tmp_path, Checkpoint(3, self.BLOCKS, {"versions": {"a": 3}}))
        with safe_open(tmp_path / "q.safetensors", "np") as file:
            content = json.loads(file.metadata()["content"])
        assert json.loads(content["notes"]) == {"round": 3, "strategy": {"versions": {"a": 3}}}
