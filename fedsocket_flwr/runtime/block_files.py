"""Named arrays in one file each: written atomically, checked by a checksum, kept for a while in memory.

A file is a safetensors file whose metadata hold ``content`` (JSON: the names in order, and the notes) and ``sha256`` over content
and arrays. Arrays that are read are views of immutable bytes: nothing is copied, and no caller can change what the next one gets.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.errors import StoreError
from fedsocket_flwr.exchange.contract import Array, Blocks

TYPES = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
NAMES = {np.dtype(dtype): name for name, dtype in TYPES.items()}
CACHE_BYTES = 256 * 2**20
PART = ".part"

Signature = tuple[int, int, int]


@dataclass(frozen=True)
class Content:
    """What one file holds: read-only arrays, the notes as JSON text, and the size of the file."""

    arrays: Blocks
    notes: str
    nbytes: int


class ContentCache:
    """The most recently used files of this process, up to a number of bytes.

    An entry counts only for the very file that it was made from (inode, size and time of change), so a file that another process
    replaced is read again.
    """

    def __init__(self, capacity: int = CACHE_BYTES) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Path, tuple[Signature, Content]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, path: Path, signature: Signature) -> Content | None:
        """Return the content of a file if it is at hand and current."""
        with self._lock:
            found = self._entries.get(path)
            if found is None or found[0] != signature:
                return None
            self._entries.move_to_end(path)
            return found[1]

    def put(self, path: Path, signature: Signature, content: Content) -> None:
        """Keep the content of a file; the files that were not asked for longest make room."""
        with self._lock:
            self._remove(path)
            if content.nbytes > self.capacity:
                return
            self._entries[path] = (signature, content)
            self._bytes += content.nbytes
            while self._bytes > self.capacity:
                self._remove(next(iter(self._entries)))

    def discard(self, path: Path) -> None:
        """Forget a file."""
        with self._lock:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        entry = self._entries.pop(path, None)
        self._bytes -= entry[1].nbytes if entry else 0


CACHE = ContentCache()


def strict_json(content: Mapping[str, Any], where: object) -> str:
    """Return strict JSON text: finite numbers, keys that are text; anything else raises :class:`StoreError`."""
    try:
        _require_text_keys(content)
        return json.dumps(dict(content), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{where}: the notes are not strict JSON ({error})") from error


def write_blocks(path: Path, blocks: Blocks, notes: str = "{}", keep: bool = True) -> None:
    """Write arrays and notes as one file that appears whole or not at all; ``keep`` in memory what is soon read again."""
    data = _encode(path, blocks, notes)
    signature = write_atomically(path, data)
    if keep:
        CACHE.put(path, signature, _decode(path, data, verify=False))


def read_blocks(path: Path, keep: bool = True) -> Content:
    """Read a file that :func:`write_blocks` wrote, from memory if it has not changed since.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    StoreError
        If the file cannot be read or its checksum is wrong.
    """
    try:
        found = CACHE.get(path, _signature(os.stat(path)))
        if found is not None:
            return found
        with open(path, "rb") as file:
            signature, data = _signature(os.fstat(file.fileno())), file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    content = _decode(path, data, verify=True)
    if keep:
        CACHE.put(path, signature, content)
    return content


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, from disk and memory."""
    CACHE.discard(path)
    path.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> Signature:
    """Replace a file by way of a temporary one in the same folder; return what tells the new file from others.

    After the return the file survives a loss of power; until then the old one stays, also when the disk is full.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=PART)
        temporary = Path(name)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            signature = _signature(os.fstat(file.fileno()))
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}); what was there before is unchanged") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return signature


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can (Windows cannot open a folder)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _require_text_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _require_text_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _require_text_keys(inner)


def _encode(path: Path, blocks: Blocks, notes: str) -> bytes:
    """Return the bytes of a safetensors file, written out here to copy the arrays once and no more."""
    arrays = {name: _storable(path, name, array) for name, array in blocks.items()}
    content = json.dumps({"names": list(arrays), "notes": notes})
    header: dict[str, Any] = {"__metadata__": {"content": content, "sha256": _checksum(content, arrays)}}
    # Wide elements first: every array then starts at a multiple of its element's size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(_octets(array) for _, array in ordered)])


def _storable(path: Path, name: str, array: Array) -> Array:
    """Return the array in row-major order and little-endian, or refuse its type."""
    if name == "__metadata__" or array.dtype.newbyteorder("<") not in NAMES:
        raise StoreError(f"{path}: an array called {name!r} of type {array.dtype} cannot be stored")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _checksum(content: str, arrays: Blocks) -> str:
    digest = hashlib.sha256(content.encode())
    for name, array in arrays.items():
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(_octets(array))
    return digest.hexdigest()


def _octets(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _decode(path: Path, data: bytes, verify: bool) -> Content:
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        metadata = header.pop("__metadata__")
        content = json.loads(metadata["content"])
        arrays = {name: _view(data, start, header.pop(name)) for name in content["names"]}
        intact = not header and (not verify or _checksum(metadata["content"], arrays) == metadata["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"{path} is damaged: {len(data)} bytes that do not form a saved state ({error})") from error
    if not intact:
        raise StoreError(f"{path} is damaged: its checksum does not fit its content")
    return Content(arrays, content["notes"], len(data))


def _view(data: bytes, start: int, entry: Mapping[str, Any]) -> Array:
    return np.ndarray(entry["shape"], TYPES[entry["dtype"]], buffer=data, offset=start + entry["data_offsets"][0])
