"""An array on disk that is written batch by batch and goes on from the last whole batch after a cut.

The batches go to a file aside, and a journal beside it says after each one how far it reaches and the checksum of what is new.
What a cut process left is believed only as far as journal and file agree. The whole file gets its name, and a record of its
length and checksum, only at the end: nobody ever reads a part of it.
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError

try:
    import fcntl
except ImportError:  # Windows has no flock: two processes may compute the same file, and the later rename wins
    fcntl = None  # type: ignore[assignment]

LOG = logging.getLogger(__name__)
PART, JOURNAL, RECORD = ".part", ".part-journal", ".json"


@contextlib.contextmanager
def written_by_one(path: Path, what: str) -> Iterator[None]:
    """Hold the lock beside a file, whose folder is made; while another process holds it, say which one does ``what``, and wait.

    The kernel frees the lock of a process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a+", encoding="utf-8") as lock:
        if fcntl is not None:
            _acquire(lock, what)
        yield


def write_array(path: Path, rows: int, dtype: str, batches_from: Callable[[int], Iterator[Array]]) -> None:
    """Write an array of ``rows`` rows to ``path``, keeping what a cut process wrote of it.

    Written by ``write``, not through a map: a full disk then is an error and not a fault of the process. What was written stays
    for the next process unless the disk or the data themselves failed.

    Parameters
    ----------
    path
        The ``.npy`` file; held by :func:`written_by_one`.
    rows
        Length of the array.
    dtype
        Type in which it is stored.
    batches_from
        Gives the rows from a number on, in batches; called with the number of rows that are there already.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    # Without locks two processes may write the same file: each has a part of its own then.
    mark = "" if fcntl else str(os.getpid())
    part, journal, record = (path.with_suffix(suffix) for suffix in (PART + mark, JOURNAL + mark, RECORD))
    try:
        with part.open("a+b") as file, journal.open("a+b") as log:
            digest = hashlib.sha256()
            kept = _keep_whole_pieces(file, log, digest.update)
            for batch in batches_from(kept):
                data = np.ascontiguousarray(batch, dtype=dtype)
                if file.tell() == 0:
                    header = {"descr": data.dtype.str, "fortran_order": False, "shape": (rows, *data.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, header)
                    file.seek(0)
                    _note(log, 0, file.read(), file.tell())
                content = data.tobytes()
                file.write(content)
                file.flush()
                digest.update(content)
                kept += len(batch)
                _note(log, kept, content, file.tell())
            os.fsync(file.fileno())
            length = file.tell()
        os.replace(part, path)
        part.write_text(json.dumps({"bytes": length, "sha256": digest.hexdigest()}), encoding="utf-8")
        os.replace(part, record)
        journal.unlink()
    except (OSError, DataError):
        for leftover in (part, journal):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
        raise


def open_array(path: Path) -> Array | None:
    """Map a whole file, or return None where there is none or it is not what its record says."""
    try:
        record = json.loads(path.with_suffix(RECORD).read_text(encoding="utf-8"))
        if path.stat().st_size != record["bytes"]:
            return None
        mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mapped if hashlib.sha256(mapped.data).hexdigest() == record["sha256"] else None


def _acquire(lock: IO[str], what: str) -> None:
    """Take the lock and sign it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        LOG.warning("waiting for the %s, which %s computes", what, lock.read().strip() or "another process")
        fcntl.flock(lock, fcntl.LOCK_EX)
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    lock.flush()


def _note(log: IO[bytes], rows: int, content: bytes, end: int) -> None:
    """Write into the journal that the file reaches to ``end`` with its last ``content``."""
    note = {"rows": rows, "end": end, "sha256": hashlib.sha256(content).hexdigest()}
    log.write(json.dumps(note).encode() + b"\n")
    log.flush()


def _keep_whole_pieces(file: IO[bytes], log: IO[bytes], known: Callable[[bytes], None]) -> int:
    """Cut file and journal back to what they agree on, tell ``known`` the values that stay, and return their rows."""
    file.seek(0)
    log.seek(0)
    size, rows, end, noted = os.fstat(file.fileno()).st_size, 0, 0, 0
    for line in log:
        try:
            note = json.loads(line)
            content = file.read(note["end"] - end) if note["end"] <= size else b""
            if hashlib.sha256(content).hexdigest() != note["sha256"]:
                break
        except (ValueError, KeyError, TypeError):
            break
        if note["rows"] > 0:
            known(content)
        rows, end, noted = note["rows"], note["end"], noted + len(line)
    for stream, length in ((file, end), (log, noted)):
        stream.seek(length)
        stream.truncate()
    return rows
