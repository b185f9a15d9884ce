"""Interface features, computed once and kept on disk for every process that needs them.

A file is named by what it was computed from: the interface's digest and the rows' checksum. It is written aside and renamed,
with its length and checksum in a file beside it, so no reader ever sees part of one. One process computes while the others wait
for its lock; the lock dies with its owner, and the next one goes on where it was cut.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus, Raw
from fedsocket_flwr.datasets.growing_file import open_array, write_array, written_by_one
from fedsocket_flwr.datasets.interfaces import Interface
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
BATCH = 256
# Told after each batch: what is computed, rows done, rows in all.
Progress = Callable[[str, int, int], None]


def raw_checksum(raw: Raw) -> str:
    """Return the SHA-256 of a modality's rows, their shape and type included; of picture files see ``Pictures.checksum``."""
    if isinstance(raw, Pictures):
        return raw.checksum()
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
        (N, width) or (N, tokens, width) in the interface's ``storage``, mapped read-only from the cache. Where the cache cannot
        be written (read-only, full), the log has one warning and the array is in memory.

    Raises
    ------
    DataError
        The interface cannot read a row, or gives a number that ``storage`` cannot hold.
    """
    raw = corpus.raw[modality]
    what = f"{corpus.name}.{modality}"
    path = cache_dir / f"{interface.digest[:20]}-{raw_checksum(raw)[:20]}.npy"
    found = open_array(path)
    if found is not None:
        return found
    try:
        return _computed_once(path, what, interface, raw, progress)
    except OSError as error:
        LOG.warning("features of %s are not kept: cannot write %s (%s); every process computes its own", what, path, error)
        return np.concatenate(list(_batches(what, interface, raw, progress)))


def _batches(what: str, interface: Interface, raw: Raw, progress: Progress | None, first: int = 0) -> Iterator[Array]:
    """Yield the features of the rows from ``first`` on as they are stored."""
    if first:
        LOG.info("features of %s: %d of %d rows are there, from a computation that was cut", what, first, len(raw))
    for start in range(first, len(raw), BATCH):
        with np.errstate(over="ignore"):
            batch = interface(raw[start : start + BATCH]).astype(interface.storage, copy=False)
        if not np.isfinite(batch).all():
            raise DataError(f"features of {what} are too large for storage {interface.storage!r}; use float32, or set norm")
        yield batch
        if progress is not None:
            progress(what, min(start + BATCH, len(raw)), len(raw))


def _computed_once(path: Path, what: str, interface: Interface, raw: Raw, progress: Progress | None) -> Array:
    """Compute the file under its lock, unless another process did so meanwhile."""
    with written_by_one(path, f"features of {what}"):
        found = open_array(path)
        if found is None:
            write_array(path, len(raw), interface.storage, partial(_batches, what, interface, raw, progress))
            found = open_array(path)
    if found is None:
        raise OSError("the file that was just written does not read back")
    return found
