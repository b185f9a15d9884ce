import contextlib
import json
import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import StoreError
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.runtime import block_files
from fedsocket_flwr.runtime.store import ClientStore, Snapshot, list_runs, prune, state_directory


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return ClientStore(tmp_path, "demo-1", "digits-cnn")


def snapshot(value: float = 1.0, **notes: object) -> Snapshot:
    return Snapshot({"weight": np.full((3, 2), value, np.float32), "steps": np.array(7)}, notes)


def files(root: Path, pattern: str) -> list[Path]:
    return sorted(root.rglob(pattern))


ARRAYS: Blocks = {
    "z": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "half": np.array([1.5, -0.0], np.float16),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 4)),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "big-endian": np.array([1, 256], ">i4"),
    "generator": np.arange(5, dtype=np.uint8),
}


class TestSaveAndLoad:
    def test_round_trip(self, store: ClientStore) -> None:
        notes = {"rho": 0.5, "best": {"joint": [1, None, True, "ä\ud800"]}, "state": 2**127}
        store.save(1, Snapshot(ARRAYS, notes), keep=())
        loaded = store.load(1)
        assert loaded.notes == notes
        assert list(loaded.arrays) == list(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(loaded.arrays[name], array.astype(array.dtype.newbyteorder("=")), strict=True)
            assert loaded.arrays[name].flags.aligned

    def test_file_is_plain_safetensors(self, store: ClientStore, tmp_path: Path) -> None:
        store.save(1, Snapshot(ARRAYS, {"a": 1}), keep=())
        (path,) = files(tmp_path, "version-*.safetensors")
        found = safetensors.numpy.load_file(path)
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)

    def test_old_versions_go_and_kept_ones_stay(self, store: ClientStore) -> None:
        for version in (1, 2, 3):
            store.save(version, snapshot(version), keep=(1, 2))
        store.save(4, snapshot(4), keep=(3, 1, 99))
        assert store.versions() == (1, 3, 4)
        assert store.load(3).arrays["weight"][0, 0] == 3

    def test_a_version_can_be_written_again(self, store: ClientStore) -> None:
        store.save(1, snapshot(1), keep=())
        store.save(1, snapshot(2), keep=())
        assert store.load(1).arrays["weight"][0, 0] == 2

    def test_absent_version_names_file_and_versions(self, store: ClientStore) -> None:
        with pytest.raises(StoreError, match=r"no version 3 \(versions: none\).*version-00000003\.safetensors"):
            store.load(3)
        store.save(1, snapshot(), keep=())
        store.save(2, snapshot(), keep=(1,))
        with pytest.raises(StoreError, match=r"versions: 1, 2"):
            store.load(3)

    def test_reading_makes_no_folder(self, store: ClientStore, tmp_path: Path) -> None:
        assert store.versions() == ()
        assert store.read_note("registration") is None
        assert list(tmp_path.iterdir()) == []

    def test_version_zero_means_none(self, store: ClientStore) -> None:
        with pytest.raises(StoreError, match="start at 1"):
            store.load(0)

    @pytest.mark.parametrize("notes", [{"loss": float("nan")}, {"a": {1: 2}}, {"a": np.float32(1)}, {"a": {1, 2}}])
    def test_notes_must_be_strict_json(self, store: ClientStore, notes: dict) -> None:
        with pytest.raises(StoreError, match="strict JSON"):
            store.save(1, Snapshot({}, notes), keep=())
        assert store.versions() == ()

    @pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(2, complex), np.zeros(2, np.longdouble)])
    def test_refuses_types_without_a_plain_form(self, store: ClientStore, array: np.ndarray) -> None:
        with pytest.raises(StoreError, match="'odd'"):
            store.save(1, Snapshot({"odd": array}, {}), keep=())


class TestDamage:
    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_any_changed_byte_is_noticed(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        root = tmp_path_factory.mktemp("damage")
        store = ClientStore(root, "run", "client")
        store.save(1, snapshot(note="kept"), keep=())
        (path,) = files(root, "version-*")
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
        # Only the padding of the header can change without harm.
        with contextlib.suppress(StoreError):
            loaded = store.load(1)
            assert loaded.notes == {"note": "kept"}
            np.testing.assert_array_equal(loaded.arrays["weight"], snapshot().arrays["weight"], strict=True)

    @pytest.mark.parametrize("length", [0, 4, 100, -1])
    def test_truncated(self, store: ClientStore, tmp_path: Path, length: int) -> None:
        store.save(1, snapshot(), keep=())
        (path,) = files(tmp_path, "version-*")
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(StoreError, match=r"version-00000001\.safetensors is damaged"):
            store.load(1)

    def test_changed_weight_breaks_the_checksum(self, store: ClientStore, tmp_path: Path) -> None:
        store.save(1, snapshot(), keep=())
        (path,) = files(tmp_path, "version-*")
        path.write_bytes(path.read_bytes()[:-1] + b"\x77")
        with pytest.raises(StoreError, match="checksum"):
            store.load(1)

    def test_a_full_disk_leaves_the_old_version(self, store: ClientStore, tmp_path: Path) -> None:
        store.save(1, snapshot(1), keep=())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StoreError, match="cannot be written"):
                store.save(2, Snapshot({"weight": np.zeros(100_000)}, {}), keep=())
            with pytest.raises(StoreError, match="cannot be written"):
                store.save(1, Snapshot({"weight": np.zeros(100_000)}, {}), keep=())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.versions() == (1,)
        assert store.load(1).arrays["weight"][0, 0] == 1
        assert files(tmp_path, ".*.part") == []

    def test_left_overs_of_a_killed_process_go_in_time(self, store: ClientStore, tmp_path: Path) -> None:
        store.save(1, snapshot(), keep=())
        (path,) = files(tmp_path, "version-*")
        old, young = path.with_name(".version.old.part"), path.with_name(".version.young.part")
        for left in (old, young):
            left.write_bytes(b"half")
        os.utime(old, (time.time() - 7200,) * 2)
        store.save(2, snapshot(), keep=())
        assert not old.exists()
        assert young.exists()


class TestReading:
    def test_callers_cannot_corrupt(self, store: ClientStore) -> None:
        given_array = np.zeros(3)
        store.save(1, Snapshot({"a": given_array}, {"list": [1]}), keep=())
        given_array[:] = 9
        loaded = store.load(1)
        with pytest.raises(ValueError, match="read-only"):
            loaded.arrays["a"][0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            loaded.arrays["a"].flags.writeable = True
        np.testing.assert_array_equal(store.load(1).arrays["a"], np.zeros(3))

    def test_what_was_loaded_stays_when_its_file_is_written_over(self, store: ClientStore) -> None:
        store.save(1, snapshot(1), keep=())
        loaded = store.load(1)
        for version in (2, 3, 4):
            store.save(version, snapshot(version), keep=())
        np.testing.assert_array_equal(loaded.arrays["weight"], snapshot(1).arrays["weight"])

    def test_the_memory_of_arrays_that_nobody_holds_is_used_again(
        self, store: ClientStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(block_files, "MEMORY", block_files.ReusedMemory())
        for version in (1, 2, 3):
            store.save(version, snapshot(version), keep=(1, 2))
        addresses = []
        for version in (1, 2):
            loaded = store.load(version)
            addresses.append(loaded.arrays["weight"].ctypes.data)
            del loaded
        held = store.load(3).arrays["weight"]
        addresses.append(held.ctypes.data)
        assert store.load(1).arrays["weight"][0, 0] == 1
        assert len(set(addresses)) == 1
        assert held[0, 0] == 3

    def test_arrays_larger_than_a_piece(self, store: ClientStore) -> None:
        large = np.arange(3 * block_files.PIECE, dtype=np.uint8)
        store.save(1, Snapshot({"large": large, "one": np.array([1.0])}, {}), keep=())
        np.testing.assert_array_equal(store.load(1).arrays["large"], large)

    def test_another_process_that_writes_is_seen(self, store: ClientStore, tmp_path: Path) -> None:
        store.save(1, snapshot(1), keep=())
        run_elsewhere(
            """
            ClientStore(root, "demo-1", "digits-cnn").save(
                1, Snapshot({"weight": np.full((3, 2), 5, np.float32), "steps": np.array(7)}, {}), keep=()
            )
            """,
            tmp_path,
        )
        assert store.load(1).arrays["weight"][0, 0] == 5


class TestDurability:
    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the files and folders that were written to the disk, in order; the background does nothing."""
        found: list[str] = []
        monkeypatch.setattr(block_files, "_begin_sync", lambda path: None)
        monkeypatch.setattr(os, "fsync", lambda descriptor: found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        return found

    def test_the_version_before_is_on_the_disk_before_anything_is_written_or_removed(
        self, store: ClientStore, synced: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.save(1, snapshot(1), keep=())
        store.save(2, snapshot(2), keep=(1,))
        synced.clear()
        events: list[object] = synced  # type: ignore[assignment]
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda old, new: (events.append((old.name[:9], new.name)), replace(old, new)))
        store.save(3, snapshot(3), keep=(2,))
        assert events == [
            "version-00000002.safetensors",
            "digits-cnn",
            (".version-", "version-00000003.safetensors"),
            ("version-0", "spare"),
        ]

    def test_the_new_version_is_written_in_the_background(self, store: ClientStore, monkeypatch: pytest.MonkeyPatch) -> None:
        begun = threading.Event()
        monkeypatch.setattr(block_files, "_begin_sync", lambda path: begun.set())
        store.save(1, snapshot(), keep=())
        assert begun.wait(10)

    def test_a_file_that_went_meanwhile_is_no_trouble(self, tmp_path: Path) -> None:
        block_files._begin_sync(tmp_path / "gone")

    def test_closing_has_everything_on_the_disk_and_gives_the_spare_file_back(
        self, store: ClientStore, synced: list[str], tmp_path: Path
    ) -> None:
        for version in (1, 2, 3):
            store.save(version, snapshot(version), keep=(version - 1,))
        assert len(files(tmp_path, "spare")) == 1
        synced.clear()
        store.settle()
        assert synced == ["version-00000002.safetensors", "version-00000003.safetensors", "digits-cnn"]
        assert files(tmp_path, "spare") == []
        assert store.load(3).arrays["weight"][0, 0] == 3

    def test_blocks_and_notes_are_on_the_disk_at_once(self, store: ClientStore, synced: list[str]) -> None:
        store.save_blocks("q", {"a": np.zeros(2)})
        store.write_note("closing", {})
        assert [name.split(".")[1] for name in synced if name.endswith(".part")] == ["name", "blocks-q", "note-closing"]

    def test_a_version_that_a_loss_of_power_took_costs_one_round(self, store: ClientStore, tmp_path: Path) -> None:
        """What a file system may leave of a file that was not on the disk: its name and length, and zeros."""
        for version in (1, 2):
            store.save(version, snapshot(version), keep=(1,))
        path = files(tmp_path, "version-00000002*")[0]
        path.write_bytes(bytes(path.stat().st_size))
        version, found = store.load_intact(2)
        assert version == 1
        assert found.arrays["weight"][0, 0] == 1

    def test_a_shorter_version_over_a_longer_spare_file_is_whole(self, store: ClientStore) -> None:
        store.save(1, Snapshot({"long": np.arange(10_000)}, {}), keep=())
        store.save(2, Snapshot({"long": np.arange(10_000)}, {}), keep=())
        store.save(3, snapshot(3), keep=(2,))
        assert store.load(3).arrays["weight"][0, 0] == 3
        assert store.load(2).arrays["long"][-1] == 9_999

    def test_a_killed_process_loses_no_version(self, store: ClientStore, tmp_path: Path) -> None:
        run_elsewhere(
            """
            store = ClientStore(root, "demo-1", "digits-cnn")
            for version in (1, 2, 3):
                store.save(version, Snapshot({"weight": np.full(100_000, version)}, {}), keep=(version - 1,))
            os._exit(0)
            """,
            tmp_path,
        )
        assert store.load(3).arrays["weight"][0] == 3
        assert store.load(2).arrays["weight"][0] == 2


class TestBlocksAndNotes:
    def test_blocks(self, store: ClientStore) -> None:
        for name in ("joint", "private", "Q of round 3"):
            store.save_blocks(name, {"a": np.array([len(name)])})
        store.remove_blocks(keep=("Q of round 3", "absent"))
        np.testing.assert_array_equal(store.load_blocks("Q of round 3")["a"], [12])
        with pytest.raises(StoreError, match="no blocks 'joint'"):
            store.load_blocks("joint")

    def test_notes(self, store: ClientStore) -> None:
        assert store.read_note("registration") is None
        store.write_note("registration", {"client": "ä", "code": "abc"})
        store.write_note("registration", {"client": "ä", "code": "def"})
        assert store.read_note("registration") == {"client": "ä", "code": "def"}

    @pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff"])
    def test_damaged_note(self, store: ClientStore, tmp_path: Path, text: bytes) -> None:
        store.write_note("closing", {})
        files(tmp_path, "note-closing.json")[0].write_bytes(text)
        with pytest.raises(StoreError, match=r"note-closing\.json is damaged"):
            store.read_note("closing")


class TestNames:
    @pytest.mark.parametrize(
        "name", ["../up", "a/b", "a_b%", "x|y", "ba$$in", "con", "网络", "é", "e\u0301", "a" * 300, ".", "A "]
    )
    def test_stays_inside_and_is_plain(self, tmp_path: Path, name: str) -> None:
        store = ClientStore(tmp_path, name, name)
        store.write_note(name, {"is": name})
        assert store.read_note(name) == {"is": name}
        (path,) = files(tmp_path, "note-*")
        assert path.parent.parent.parent == tmp_path / "runs"
        assert all(len(part) <= 80 and part.isascii() for part in path.relative_to(tmp_path).parts)
        assert [row.run for row in list_runs(tmp_path)] == [name]

    def test_case_and_length_tell_names_apart(self, tmp_path: Path) -> None:
        for name in ("News", "news", "a" * 300, "a" * 301):
            ClientStore(tmp_path, name, "client").write_note("is", {"name": name})
        folders = [path.name.lower() for path in (tmp_path / "runs").iterdir()]
        assert len(set(folders)) == 4
        assert {row.run for row in list_runs(tmp_path)} == {"News", "news", "a" * 300, "a" * 301}


class TestLock:
    def test_excludes_other_threads(self, tmp_path: Path) -> None:
        events: list[str] = []

        def work() -> None:
            with ClientStore(tmp_path, "run", "client").locked():
                events.append("second")

        with ClientStore(tmp_path, "run", "client").locked():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(0.2)
            events.append("first")
        thread.join(10)
        assert events == ["first", "second"]

    def test_other_clients_are_free(self, tmp_path: Path) -> None:
        with ClientStore(tmp_path, "run", "a").locked(), ClientStore(tmp_path, "run", "b").locked():
            pass

    def test_a_killed_process_lets_go(self, tmp_path: Path) -> None:
        run_elsewhere('held = ClientStore(root, "run", "client").locked(); held.__enter__(); os._exit(0)', tmp_path)
        with ClientStore(tmp_path, "run", "client").locked():
            pass

    def test_is_released_after_an_error(self, store: ClientStore) -> None:
        with pytest.raises(KeyError), store.locked():
            raise KeyError
        with store.locked():
            pass


class TestRuns:
    def test_list_and_prune_by_name(self, tmp_path: Path) -> None:
        assert list_runs(tmp_path) == []
        for run, client in (("one", "a"), ("one", "b"), ("Two", "a")):
            ClientStore(tmp_path, run, client).save(1, snapshot(), keep=())
        rows = {row.run: row for row in list_runs(tmp_path)}
        assert {run: row.clients for run, row in rows.items()} == {"one": 2, "Two": 1}
        assert rows["one"].bytes == sum(path.stat().st_size for path in (tmp_path / "runs" / "one").rglob("*") if path.is_file())
        assert time.time() - rows["one"].changed < 60
        assert prune(tmp_path, ["Two"]) == ("Two",)
        assert [row.run for row in list_runs(tmp_path)] == ["one"]
        with pytest.raises(StoreError, match="no version 1"):
            ClientStore(tmp_path, "Two", "a").load(1)

    def test_prune_by_age(self, tmp_path: Path) -> None:
        for run in ("old", "young"):
            ClientStore(tmp_path, run, "a").save(1, snapshot(), keep=())
        for path in (tmp_path / "runs" / "old").rglob("*"):
            os.utime(path, (time.time() - 3 * 86400,) * 2)
        assert prune(tmp_path) == ()
        assert prune(tmp_path, older_than_days=4) == ()
        assert prune(tmp_path, older_than_days=2) == ("old",)
        assert [row.run for row in list_runs(tmp_path)] == ["young"]

    def test_prune_refuses_unknown_runs_and_runs_in_use(self, tmp_path: Path) -> None:
        store = ClientStore(tmp_path, "run", "a")
        store.save(1, snapshot(), keep=())
        with pytest.raises(StoreError, match=r"nothing.*there is run"):
            prune(tmp_path, ["nothing"])
        with store.locked(), pytest.raises(StoreError, match="in use"):
            prune(tmp_path, ["run"])
        assert store.versions() == (1,)


class TestStateDirectory:
    def test_order_of_precedence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("FEDSOCKET_HOME", raising=False)
        assert state_directory({}) == tmp_path / "home" / ".fedsocket"
        monkeypatch.setenv("FEDSOCKET_HOME", str(tmp_path / "variable"))
        assert state_directory({"state-dir": ""}) == tmp_path / "variable"
        assert state_directory({"state-dir": str(tmp_path / "node")}) == tmp_path / "node"
        assert (tmp_path / "node").is_dir()

    def test_no_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FEDSOCKET_HOME", raising=False)
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("pwd.getpwuid", lambda number: (_ for _ in ()).throw(KeyError(number)))
        with pytest.raises(StoreError, match="FEDSOCKET_HOME"):
            state_directory({})

    def test_unwritable_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.delenv("FEDSOCKET_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        with pytest.raises(StoreError, match="FEDSOCKET_HOME"):
            state_directory({})
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(StoreError, match="not writable"):
            state_directory({"state-dir": str(tmp_path)})

    def test_a_store_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "runs").write_text("in the way")
        with pytest.raises(StoreError, match="FEDSOCKET_HOME"):
            ClientStore(tmp_path, "run", "client").save(1, snapshot(), keep=())


def test_torch_stays_unloaded(tmp_path: Path) -> None:
    printed = run_elsewhere(
        """
        ClientStore(root, "run", "client").save(1, Snapshot({}, {}), keep=())
        print(json.dumps("torch" in sys.modules))
        """,
        tmp_path,
    )
    assert json.loads(printed) is False


def run_elsewhere(body: str, root: Path) -> str:
    """Run a few lines in another process and return what they print."""
    lines = "import json, os, sys\nimport numpy as np\nfrom pathlib import Path\n"
    lines += "from fedsocket_flwr.runtime.store import ClientStore, Snapshot\nroot = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", lines + textwrap.dedent(body), str(root)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
