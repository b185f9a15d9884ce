"""Strict JSON and whole files: what a run leaves behind can be read by any tool, and is never half written.

Python's ``json`` writes and reads ``NaN``, which is not JSON. Here a number that could not be measured is absent instead.
"""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.errors import RunError


def measured(value: Any) -> Any:
    """Return ``value`` as plain JSON types, without the numbers that are not finite.

    Such a number disappears from a mapping and becomes None in a sequence, whose places have a meaning; a None written on purpose
    stays. NumPy scalars and arrays become Python's; keys and paths become text.
    """
    if isinstance(value, Mapping):
        pairs = ((str(key), item, measured(item)) for key, item in value.items())
        return {key: plain for key, item, plain in pairs if plain is not None or item is None}
    if isinstance(value, np.ndarray):
        return measured(value.tolist())
    if isinstance(value, (list, tuple)):
        return [measured(item) for item in value]
    if isinstance(value, np.generic):
        return measured(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as strict JSON in UTF-8 letters; numbers that are not finite are left out (see :func:`measured`)."""
    return json.dumps(measured(value), ensure_ascii=False, allow_nan=False, indent=indent)


def parse_json(text: str) -> Any:
    """Parse strict JSON; ``NaN``, ``Infinity`` and numbers beyond a float's range raise ``ValueError``."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        return number if math.isfinite(number) else refuse(digits)

    return json.loads(text, parse_constant=refuse, parse_float=finite)


def read_json(path: Path) -> Any:
    """Read a file of strict JSON, or raise :class:`RunError` that names the file and what is wrong."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise RunError(f"{path}: not strict JSON ({error})") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise RunError(f"{path}: no such file") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error})") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file whatever the locale, or raise :class:`RunError` that names the file."""
    try:
        return _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not UTF-8 text ({error})") from error


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Read a file with one strict JSON object a line.

    Returns
    -------
    rows
        The objects, in the order of the file.
    cut
        True if the last line was cut off while it was written; it is left out.

    Raises
    ------
    RunError
        If the file is missing, or any line but the last is not an object; the message names file and line.
    """
    # Split on the line feed only (JSON text may hold other characters that Python counts as line ends), and before decoding:
    # a cut may fall inside a character.
    lines = _read_bytes(path).split(b"\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:
            if not any(later.strip() for later in lines[number:]):
                return rows, True
            raise RunError(f"{path}, line {number}: not strict JSON ({error})") from error
        if not isinstance(row, dict):
            raise RunError(f"{path}, line {number}: expected a JSON object, found {line[:60]!r}")
        rows.append(row)
    return rows, False


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file at once: a reader sees the old content or the new one, also after a crash. Text is UTF-8 with line feeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; the run folder is as readable as its owner's umask says.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
