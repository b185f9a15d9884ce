"""Where published data lie: files that an installed distribution brought, found without importing it, and checked by content."""

import gzip
import hashlib
import importlib.metadata
import zlib
from pathlib import Path

from fedsocket_flwr.errors import DataError


def distribution_files(distribution: str, suffix: str, how_to_get: str, fetched: Path | None = None) -> list[Path]:
    """Return the installed files of a distribution whose path ends with ``suffix``, sorted.

    Parameters
    ----------
    distribution, suffix
        Whose files, and how their paths end.
    how_to_get
        What a user does to have them, for the message.
    fetched
        A folder that may hold the distribution where it is not installed.

    Raises
    ------
    DataError
        The distribution is not installed, or has no such file.
    """
    try:
        listed = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError as error:
        aside = importlib.metadata.distributions(name=distribution, path=[str(fetched)]) if fetched else ()
        listed = [file for found in aside for file in found.files or []]
        if not listed:
            raise DataError(f"the data come with {distribution!r}, which is not installed; {how_to_get}") from error
    found = sorted(Path(str(file.locate())) for file in listed if str(file).endswith(suffix))
    if not found:
        raise DataError(f"the installed {distribution!r} has no file that ends with {suffix!r}; {how_to_get}")
    return found


def read_bytes(path: Path, how_to_get: str) -> bytes:
    """Return a file's bytes, unpacked when it is gzip; a missing, truncated or wrong file raises :class:`DataError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {how_to_get}") from error
    refuse_stand_in(path, data[:256], len(data))
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged ({len(data)} bytes: {error}); {how_to_get}") from error


def refuse_stand_in(path: Path, start: bytes, size: int) -> None:
    """Refuse what stands in a file's place after a failed download: a Git LFS pointer, a web page, nothing at all.

    Parameters
    ----------
    path
        The file, for the message.
    start
        Its first bytes.
    size
        Its length in bytes.
    """
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        raise DataError(f"{path} is a Git LFS pointer of {size} bytes, not the file itself; fetch it with `git lfs pull`")
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise DataError(f"{path} is an HTML page of {size} bytes, not data; download the file itself")
    if size == 0:
        raise DataError(f"{path} is empty (0 bytes)")


def require_real_file(path: Path) -> None:
    """Raise :class:`DataError` where the file cannot be read or something else stands in its place."""
    try:
        with path.open("rb") as file:
            refuse_stand_in(path, file.read(256), path.stat().st_size)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def require_checksum(path: Path, content: bytes, expected: str, how_to_get: str) -> None:
    """Raise :class:`DataError` unless the content has the published SHA-256."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{path} is not the published file: SHA-256 of its content is {found} ({len(content)} bytes), expected {expected}; "
            f"{how_to_get}"
        )
