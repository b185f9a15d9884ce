"""Named arrays in one file each: written atomically, checked by a checksum.

A file is a safetensors file whose metadata hold ``content`` (JSON: the names in order, and the notes) and ``crc32`` over the rest
of the header and all arrays. Arrays go from memory to the file and back without a copy in between, in pieces that the processor's
cache holds while they are summed up; arrays that are read cannot be changed.
No content is kept in memory: the operating system keeps recent files, and what it gives is checked again at every reading.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterable, Mapping
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
PART = ".part"
PIECE = 2**18
KEPT_BYTES = 2**28


@dataclass(frozen=True)
class Content:
    """What one file holds: read-only arrays, and the notes as JSON text."""

    arrays: Blocks
    notes: str


class ReusedMemory:
    """The memory of the last reading, which the next one fills if nobody holds any of it: new memory costs more than reading."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._lock = threading.Lock()

    def take(self, size: int) -> Array:
        """Return ``size`` bytes that can be written to."""
        if size > KEPT_BYTES:
            return np.empty(size, np.uint8)
        with self._lock:
            # Every array that was read holds a reference; two are the attribute and the argument here.
            if self._memory.nbytes < size or sys.getrefcount(self._memory) > 2:
                self._memory = np.empty(size, np.uint8)
            self._memory.flags.writeable = True
            return self._memory[:size]


MEMORY = ReusedMemory()


def strict_json(content: Mapping[str, Any], where: object) -> str:
    """Return strict JSON text: finite numbers, keys that are text; anything else raises :class:`StoreError`."""
    try:
        _require_text_keys(content)
        return json.dumps(dict(content), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{where}: the notes are not strict JSON ({error})") from error


def write_blocks(path: Path, blocks: Blocks, notes: str = "{}", durable: bool = True, reused: Path | None = None) -> None:
    """Write arrays and notes as one file that appears whole or not at all; see :func:`write_atomically`."""
    write_atomically(path, _encode(path, blocks, notes), durable, reused)


def read_blocks(path: Path) -> Content:
    """Read a file that :func:`write_blocks` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    StoreError
        If the file cannot be read or its checksum is wrong.
    """
    try:
        with open(path, "rb") as file:
            memory = MEMORY.take(os.fstat(file.fileno()).st_size)
            data = memory.data
            start = file.readinto(data[:8])
            start += file.readinto(data[start : start + int.from_bytes(data[:start], "little")])
            checksum = 0
            for begin in range(start, len(data), PIECE):
                piece = data[begin : begin + PIECE]
                checksum = zlib.crc32(piece[: file.readinto(piece)], checksum)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    for array in (memory, memory.base):
        if array is not None:
            array.flags.writeable = False
    return _decode(path, memory.data, start, checksum)


def write_atomically(path: Path, parts: Iterable[bytes | memoryview], durable: bool = True, reused: Path | None = None) -> None:
    """Replace a file by way of a temporary one in the same folder; until then the old one stays, also when the disk is full.

    Parameters
    ----------
    path, parts
        The file, and its bytes in pieces.
    durable
        After the return the file survives a loss of power. Otherwise it survives the end of every process at once, and a loss of
        power as soon as the system has written it, which is begun in the background; :func:`sync` waits for that.
    reused
        A file that nobody needs, whose place the new one takes. Its pages and disk blocks are there already, which makes writing
        several times faster; it is gone afterwards.
    """
    temporary: Path | None = None
    durable = durable or os.name != "posix"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=PART)
        os.close(descriptor)
        temporary = Path(name)
        if reused is not None and reused.exists():
            os.replace(reused, temporary)
        with open(temporary, "r+b") as file:
            for part in parts:
                file.write(part)
            file.truncate()
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
        else:
            threading.Thread(target=_begin_sync, args=(path,), daemon=True).start()
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}); what was there before is unchanged") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def sync(paths: Iterable[Path], folder: Path) -> None:
    """Wait until files, and what was renamed or removed in their folder, survive a loss of power."""
    try:
        for path in paths:
            _sync_file(path)
        _sync_folder(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written to its disk ({error})") from error


def _begin_sync(path: Path) -> None:
    """Have the system write a file now; one that is gone by now, or a disk that fails, is met again by who waits for it."""
    with contextlib.suppress(OSError):
        _sync_file(path)


def _sync_file(path: Path) -> None:
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can (Windows cannot open a folder)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _require_text_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _require_text_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _require_text_keys(inner)


def _encode(path: Path, blocks: Blocks, notes: str) -> list[bytes | memoryview]:
    """Return the bytes of a safetensors file in pieces, made here so that no array is copied."""
    arrays = {name: _storable(path, name, array) for name, array in blocks.items()}
    # Wide elements first: every array then starts at a multiple of its element's size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    entries: dict[str, Any] = {}
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [begin, end]}
    octets = [array.reshape(-1).view(np.uint8).data for _, array in ordered]
    checksum = 0
    for piece in octets:
        checksum = zlib.crc32(piece, checksum)
    content = json.dumps({"names": list(arrays), "notes": notes})
    metadata = {"content": content, "crc32": _with_header(checksum, content, entries)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *octets]


def _storable(path: Path, name: str, array: Array) -> Array:
    """Return the array in row-major order and little-endian, or refuse its type."""
    if name == "__metadata__" or array.dtype.newbyteorder("<") not in NAMES:
        raise StoreError(f"{path}: an array called {name!r} of type {array.dtype} cannot be stored")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _with_header(checksum: int, content: str, entries: Mapping[str, Any]) -> str:
    """Return the checksum of the arrays carried on over the header, as text."""
    return f"{zlib.crc32(json.dumps([content, entries]).encode(), checksum):08x}"


def _decode(path: Path, data: memoryview, start: int, checksum: int) -> Content:
    """Return what a file holds whose arrays begin at ``start`` and have that checksum."""
    try:
        header = json.loads(bytes(data[8:start]))
        metadata = header.pop("__metadata__")
        if metadata["crc32"] != _with_header(checksum, metadata["content"], header):
            raise StoreError(f"{path} is damaged: its checksum does not fit its content")
        content = json.loads(metadata["content"])
        arrays = {name: _view(data, start, header[name]) for name in content["names"]}
        return Content(arrays, content["notes"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"{path} is damaged: {len(data)} bytes that do not form a saved state ({error})") from error


def _view(data: memoryview, start: int, entry: Mapping[str, Any]) -> Array:
    return np.ndarray(entry["shape"], TYPES[entry["dtype"]], buffer=data, offset=start + entry["data_offsets"][0])
