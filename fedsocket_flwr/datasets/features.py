"""Interface features, computed once and kept on disk for every process that needs them.

A file is named by what it was computed from: the interface's digest and the rows' checksum. It is written aside and renamed,
with its length and checksum in a file beside it, so no reader ever sees part of one. One process computes while the others wait
for its lock; the lock dies with its owner.
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

from fedsocket_flwr.datasets.corpus import Array, Corpus, Raw
from fedsocket_flwr.datasets.interfaces import Interface

try:
    import fcntl
except ImportError:  # Windows has no flock: two processes may compute the same file, and the later rename wins
    fcntl = None  # type: ignore[assignment]

LOG = logging.getLogger(__name__)
BATCH = 256
# Told after each batch: what is computed, rows done, rows in all.
Progress = Callable[[str, int, int], None]


def raw_checksum(raw: Raw) -> str:
    """Return the SHA-256 of a modality's rows, their shape and type included."""
    digest = hashlib.sha256()
    if isinstance(raw, np.ndarray):
        digest.update(f"{raw.dtype.str}{raw.shape}".encode())
        digest.update(np.ascontiguousarray(raw).data)
    else:
        for text in raw:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def features(interface: Interface, corpus: Corpus, modality: str, cache_dir: Path, progress: Progress | None = None) -> Array:
    """Return the interface's features of all rows of a modality.

    Parameters
    ----------
    interface, corpus, modality
        What to compute, of what.
    cache_dir
        Folder of the cache; made if absent.
    progress
        Called after each batch, in the process that computes.

    Returns
    -------
    numpy.ndarray
        ``float32`` (N, width) or (N, tokens, width), mapped read-only from the cache. Where the cache cannot be written
        (read-only, full), the log has one warning and the array is in memory.
    """
    raw = corpus.raw[modality]
    what = f"{corpus.name}.{modality}"
    path = cache_dir / f"{interface.digest[:20]}-{raw_checksum(raw)[:20]}.npy"
    found = _open(path)
    if found is not None:
        return found
    try:
        return _computed_once(path, what, interface, raw, progress)
    except OSError as error:
        LOG.warning("features of %s are not kept: cannot write %s (%s); every process computes its own", what, path, error)
        return np.concatenate(list(_batches(what, interface, raw, progress)))


def _batches(what: str, interface: Interface, raw: Raw, progress: Progress | None) -> Iterator[Array]:
    for start in range(0, len(raw), BATCH):
        yield interface(raw[start : start + BATCH])
        if progress is not None:
            progress(what, min(start + BATCH, len(raw)), len(raw))


def _computed_once(path: Path, what: str, interface: Interface, raw: Raw, progress: Progress | None) -> Array:
    """Compute the file under its lock, unless another process did so meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a+", encoding="utf-8") as lock:
        _acquire(lock, what)
        found = _open(path)
        if found is None:
            _write(path, _batches(what, interface, raw, progress), len(raw))
            found = _open(path)
    if found is None:
        raise OSError("the file that was just written does not read back")
    return found


def _acquire(lock: IO[str], what: str) -> None:
    """Take the lock and sign it; while another process holds it, say which one and wait. The kernel frees a dead owner's lock."""
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        LOG.warning("waiting for the features of %s, which %s computes", what, lock.read().strip() or "another process")
        fcntl.flock(lock, fcntl.LOCK_EX)
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    lock.flush()


def _write(path: Path, batches: Iterator[Array], rows: int) -> None:
    """Write the array aside, then its length and checksum, then give both their names; an incomplete file is removed.

    Written by ``write``, not through a map: a full disk then is an error and not a fault of the process.
    """
    aside, record = path.with_suffix(f".part{os.getpid()}"), path.with_suffix(".json")
    for stale in path.parent.glob(f"{path.stem}.part*"):
        stale.unlink(missing_ok=True)
    try:
        with aside.open("wb") as file:
            digest = hashlib.sha256()
            for number, batch in enumerate(batches):
                if number == 0:
                    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, *batch.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, header)
                data = np.ascontiguousarray(batch, dtype="<f4").tobytes()
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
        os.replace(aside, path)
        aside.write_text(json.dumps({"bytes": length, "sha256": digest.hexdigest()}), encoding="utf-8")
        os.replace(aside, record)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _open(path: Path) -> Array | None:
    """Map a whole file, or return None where there is none or it is not what its record says."""
    try:
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if path.stat().st_size != record["bytes"]:
            return None
        mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mapped if hashlib.sha256(mapped.data).hexdigest() == record["sha256"] else None
