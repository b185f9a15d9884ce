import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.features import features
from fedsocket_flwr.errors import DataError

ROWS = 600


class Counting:
    """An interface that counts its calls and doubles its rows."""

    def __init__(self, digest="d" * 64, storage="float32"):
        self.width, self.digest, self.storage, self.calls = 2, digest, storage, 0

    def __call__(self, raw):
        self.calls += 1
        return np.repeat(raw.reshape(len(raw), -1)[:, :1], 2, axis=1).astype(np.float32) * 2


@pytest.fixture
def corpus():
    return made_corpus()


def made_corpus():
    rows = np.arange(ROWS, dtype=np.float32).reshape(ROWS, 1)
    return Corpus("made", "classification", {"audio": rows}, np.zeros(ROWS, np.int64), ("a",))


EXPECTED = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], 2, axis=1) * 2


def test_computed_once_and_mapped(corpus, tmp_path):
    interface, told = Counting(), []
    first = features(interface, corpus, "audio", tmp_path / "new" / "cache", lambda *what: told.append(what))
    assert interface.calls == 3
    assert told == [("made.audio", 256, 600), ("made.audio", 512, 600), ("made.audio", 600, 600)]
    second = features(interface, corpus, "audio", tmp_path / "new" / "cache")
    assert interface.calls == 3
    assert isinstance(second, np.memmap)
    assert not second.flags.writeable
    np.testing.assert_array_equal(first, EXPECTED)
    np.testing.assert_array_equal(second, EXPECTED)
    assert sorted(p.suffix for p in (tmp_path / "new" / "cache").iterdir()) == [".json", ".lock", ".npy"]


def test_another_interface_or_other_rows_have_another_file(corpus, tmp_path):
    features(Counting(), corpus, "audio", tmp_path)
    features(Counting("e" * 64), corpus, "audio", tmp_path)
    other = Corpus("made", "classification", {"audio": corpus.raw["audio"] + 1}, corpus.labels, ("a",))
    np.testing.assert_array_equal(features(Counting(), other, "audio", tmp_path), EXPECTED + 2)
    assert len(list(tmp_path.glob("*.npy"))) == 3


def test_tokens_keep_their_axis(tmp_path):
    class Tokens(Counting):
        def __call__(self, raw):
            return np.repeat(raw[:, :, None], 3, axis=2)

    rows = np.ones((5, 4), np.float32)
    found = features(Tokens(), Corpus("c", "classification", {"audio": rows}), "audio", tmp_path)
    assert found.shape == (5, 4, 3)


def test_half_precision(corpus, tmp_path):
    found = features(Counting(storage="float16"), corpus, "audio", tmp_path)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, EXPECTED)
    (tmp_path / "in the way").write_text("", encoding="utf-8")
    in_memory = features(Counting(storage="float16"), corpus, "audio", tmp_path / "in the way")
    assert in_memory.dtype == np.float16
    np.testing.assert_array_equal(in_memory, EXPECTED)


def test_a_number_that_half_precision_cannot_hold(corpus, tmp_path):
    large = Corpus("made", "classification", {"audio": corpus.raw["audio"] + 40_000}, corpus.labels, ("a",))
    with pytest.raises(DataError, match="audio are too large for storage 'float16'"):
        features(Counting(storage="float16"), large, "audio", tmp_path)


class CutAt:
    """Ends the process's work, in the middle of a batch, as a signal would."""

    def __init__(self, calls):
        self.inner, self.left = Counting(), calls
        self.width, self.digest, self.storage = self.inner.width, self.inner.digest, self.inner.storage

    def __call__(self, raw):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.inner(raw)


def cut(corpus, folder, batches):
    with pytest.raises(KeyboardInterrupt):
        features(CutAt(batches), corpus, "audio", folder)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_goes_on_after_a_cut(batches, corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    cut(corpus, tmp_path, batches)
    assert not list(tmp_path.glob("*.npy"))
    interface, told = Counting(), []
    found = features(interface, corpus, "audio", tmp_path, lambda *what: told.append(what))
    assert interface.calls == 3 - batches
    assert told[-1] == ("made.audio", 600, 600)
    assert len(told) == 3 - batches
    assert (f"{256 * batches} of 600 rows are there" in caplog.text) == (batches > 0)
    np.testing.assert_array_equal(found, EXPECTED)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".lock", ".npy"]


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (lambda part, journal: flip(part, -1), 2),
        (lambda part, journal: flip(part, 200), 3),
        (lambda part, journal: flip(part, 10), 3),
        (lambda part, journal: part.write_bytes(part.read_bytes()[:-1]), 2),
        (lambda part, journal: part.write_bytes(part.read_bytes() + b"half a batch"), 1),
        (lambda part, journal: part.unlink(), 3),
        (lambda part, journal: journal.unlink(), 3),
        (lambda part, journal: journal.write_bytes(journal.read_bytes()[:-9]), 2),
        (lambda part, journal: journal.write_bytes(b"{}\n[]\n"), 3),
        (lambda part, journal: journal.write_bytes(journal.read_bytes() + b'{"rows": 600, "end": 9e18, "sha256": ""}'), 1),
    ],
)
def test_what_a_cut_left_is_believed_only_as_far_as_its_checksums(damage, again, corpus, tmp_path):
    cut(corpus, tmp_path, 2)
    (part,), (journal,) = tmp_path.glob("*.part"), tmp_path.glob("*.part-journal")
    damage(part, journal)
    interface = Counting()
    np.testing.assert_array_equal(features(interface, corpus, "audio", tmp_path), EXPECTED)
    assert interface.calls == again
    second = Counting()
    np.testing.assert_array_equal(features(second, corpus, "audio", tmp_path), EXPECTED)
    assert second.calls == 0


def test_cut_twice(corpus, tmp_path):
    cut(corpus, tmp_path, 1)
    cut(corpus, tmp_path, 1)
    interface = Counting()
    np.testing.assert_array_equal(features(interface, corpus, "audio", tmp_path), EXPECTED)
    assert interface.calls == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda npy, record: npy.write_bytes(npy.read_bytes()[:-8]),
        lambda npy, record: npy.write_bytes(npy.read_bytes()[:-8] + bytes(8)),
        lambda npy, record: npy.write_bytes(b""),
        lambda npy, record: record.unlink(),
        lambda npy, record: record.write_text("{", encoding="utf-8"),
        lambda npy, record: record.write_text("[]", encoding="utf-8"),
    ],
)
def test_a_damaged_file_is_computed_again(damage, corpus, tmp_path):
    features(Counting(), corpus, "audio", tmp_path)
    (npy,), (record,) = tmp_path.glob("*.npy"), tmp_path.glob("*.json")
    damage(npy, record)
    interface = Counting()
    np.testing.assert_array_equal(features(interface, corpus, "audio", tmp_path), EXPECTED)
    assert interface.calls == 3


def test_a_reader_keeps_its_map_while_another_writes(corpus, tmp_path):
    mapped = features(Counting(), corpus, "audio", tmp_path)
    next(tmp_path.glob("*.json")).unlink()
    features(Counting(), corpus, "audio", tmp_path)
    np.testing.assert_array_equal(mapped, EXPECTED)


def test_an_interface_that_fails_leaves_nothing(corpus, tmp_path):
    class Failing(Counting):
        def __call__(self, raw):
            if self.calls == 1:
                raise DataError("no")
            return super().__call__(raw)

    with pytest.raises(DataError):
        features(Failing(), corpus, "audio", tmp_path)
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]
    np.testing.assert_array_equal(features(Counting(), corpus, "audio", tmp_path), EXPECTED)


def test_a_folder_that_cannot_be_written(corpus, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    np.testing.assert_array_equal(features(Counting(), corpus, "audio", tmp_path / "file" / "cache"), EXPECTED)
    assert len(caplog.records) == 1
    assert "features of made.audio are not kept: cannot write" in caplog.text


def test_a_full_disk(corpus, tmp_path, caplog):
    """A limit on the size of a file gives the same error in the middle of writing as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        found = features(Counting(), corpus, "audio", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    np.testing.assert_array_equal(found, EXPECTED)
    assert len(caplog.records) == 1
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]


def test_a_read_only_folder_with_a_whole_file_is_read(corpus, tmp_path):
    features(Counting(), corpus, "audio", tmp_path)
    next(tmp_path.glob("*.lock")).unlink()
    tmp_path.chmod(0o555)
    try:
        interface = Counting()
        np.testing.assert_array_equal(features(interface, corpus, "audio", tmp_path), EXPECTED)
        assert interface.calls == 0
    finally:
        tmp_path.chmod(0o755)


WORKER = """
import logging, sys, time
from pathlib import Path
import numpy as np
from fedsocket_flwr.datasets.features import features
from tests.datasets.test_features import Counting, EXPECTED, made_corpus

class Slow(Counting):
    def __call__(self, raw):
        print("computes", flush=True)
        # The first batch takes no time, so that a killed process leaves something.
        time.sleep(float(sys.argv[2]) if self.calls else 0)
        return super().__call__(raw)

logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
found = features(Slow(), made_corpus(), "audio", Path(sys.argv[1]))
np.testing.assert_array_equal(found, EXPECTED)
print("done", flush=True)
"""


def start(folder, seconds):
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True)


def test_one_of_several_processes_computes_and_a_killed_one_is_followed(tmp_path):
    first = start(tmp_path, 60)
    assert [first.stdout.readline() for _ in range(2)] == ["computes\n"] * 2
    others = [start(tmp_path, 0.05) for _ in range(3)]
    # Every other one says on whom it waits.
    lines = [worker.stdout.readline() for worker in others]
    assert all("waiting for the features of made.audio, which process" in line for line in lines), lines
    assert all(f"process {first.pid} on " in line for line in lines)
    assert list(tmp_path.glob("*.part*"))
    began = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    outputs = [worker.communicate(timeout=60)[0] for worker in others]
    assert time.monotonic() - began < 20
    assert all(worker.returncode == 0 for worker in others)
    # One of them takes over, and computes only what the killed one had not.
    assert sorted(output.count("computes") for output in outputs) == [0, 0, 2]
    assert all(output.endswith("done\n") for output in outputs)
    assert not list(tmp_path.glob("*.part*"))
    record = json.loads(next(tmp_path.glob("*.json")).read_text(encoding="utf-8"))
    assert record["bytes"] == next(tmp_path.glob("*.npy")).stat().st_size
