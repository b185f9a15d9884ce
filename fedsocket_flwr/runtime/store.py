"""Where a client's private model lives between rounds: files on the client's own disk, keyed by (run, client).

Flower's ``Context`` is lost with a SuperNode and travels with every message; a private model must survive the one and do without
the other. Arrays that are loaded are read-only; copy them before training. Nothing here imports torch.

Layout under the state directory: ``runs/<run>/<client>/version-00000003.safetensors``, ``blocks-<name>.safetensors``,
``note-<name>.json``, ``lock``, and ``spare``: a version that is not needed any more, which the next one is written over.
"""

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsocket_flwr.errors import StoreError
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.runtime.block_files import PART, read_blocks, strict_json, sync, write_atomically, write_blocks
from fedsocket_flwr.runtime.file_locks import lock, try_lock, unlock
from fedsocket_flwr.state_folder import HOME_VARIABLE, STATE_DIRECTORY_KEY, state_folder

ABANDONED_SECONDS = 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A client's private state at one version: arrays (weights, optimiser, generators) and notes, which are strict JSON."""

    arrays: Blocks
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class StoredRun:
    """One line of ``store list``: ``changed`` is in seconds since the epoch."""

    run: str
    clients: int
    bytes: int
    changed: float


class ClientStore:
    """The state of one client in one run.

    Parameters
    ----------
    root
        The state directory, see :func:`state_directory`.
    run
        The run's unique name.
    client
        The client's name.

    Notes
    -----
    Every write appears whole or not at all, and no end of a process loses it. A loss of power can take the newest version, never
    the one before it (see :meth:`save`). What reads, trains and saves holds :meth:`locked` meanwhile, so that two processes never
    train the same client at once; loading alone needs no lock, though a version that is removed meanwhile may then look damaged.
    The lock is not re-entrant.
    """

    def __init__(self, root: Path, run: str, client: str) -> None:
        self._run, self._client = run, client
        self._run_folder = Path(root).absolute() / "runs" / file_slug(run)
        self._folder = self._run_folder / file_slug(client)
        self._spare = self._folder / "spare"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the client against all other processes and threads; a process that dies lets go."""
        self._prepare()
        with open(self._folder / "lock", "a+b") as file:
            if not try_lock(file):
                logger.info("waiting for the lock of client %s in run %s", self._client, self._run)
                lock(file)
            try:
                yield
            finally:
                unlock(file)

    def load(self, version: int) -> Snapshot:
        """Return the state at a version; :class:`StoreError` when it is absent or damaged."""
        path = self._version_path(version)
        try:
            content = read_blocks(path)
        except FileNotFoundError as error:
            existing = ", ".join(str(found) for found in self.versions()) or "none"
            raise StoreError(
                f"client {self._client!r} of run {self._run!r} has no version {version} (versions: {existing}); expected {path}"
            ) from error
        return Snapshot(dict(content.arrays), json.loads(content.notes))

    def load_intact(self, version: int) -> tuple[int, Snapshot]:
        """Return the newest state up to a version that is whole, and which version that is.

        A damaged file costs the round that it was written in, and no more; the log names it.

        Raises
        ------
        StoreError
            There is none; the message is that of the version asked for.
        """
        try:
            return version, self.load(version)
        except StoreError as error:
            for older in reversed([found for found in self.versions() if found < version]):
                with contextlib.suppress(StoreError):
                    snapshot = self.load(older)
                    logger.warning("client %s goes on from version %d of its private model: %s", self._client, older, error)
                    return older, snapshot
            raise

    def save(self, version: int, snapshot: Snapshot, keep: Collection[int]) -> None:
        """Write a version, then remove those that are neither ``version`` nor in ``keep``.

        The versions in ``keep`` are on the disk before anything else happens. The new one is in the file system at the return
        and on the disk a moment later, at the latest at the next call: a loss of power until then costs this version, and
        :meth:`load_intact` goes back to the one before. When the write fails, for instance since the disk is full, every older
        version is still there.
        """
        path = self._version_path(version)
        notes = strict_json(snapshot.notes, path)
        self._prepare()
        others = {self._version_path(found): found in keep for found in self.versions() if found != version}
        sync([other for other, kept in others.items() if kept], self._folder)
        write_blocks(path, snapshot.arrays, notes, durable=False, reused=self._spare)
        for other, kept in others.items():
            if not kept:
                os.replace(other, self._spare)
        self._remove_abandoned()

    def settle(self) -> None:
        """Have every version on the disk, and give back the space of the spare file: no round follows soon."""
        self._prepare()
        self._spare.unlink(missing_ok=True)
        sync([self._version_path(found) for found in self.versions()], self._folder)

    def versions(self) -> tuple[int, ...]:
        """Return the versions that exist, in ascending order."""
        names = (path.stem.removeprefix("version-") for path in self._folder.glob("version-*.safetensors"))
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def save_blocks(self, name: str, blocks: Blocks) -> None:
        """Write named blocks, for instance a checkpoint of Q; they are on the disk at the return."""
        self._prepare()
        write_blocks(self._blocks_path(name), blocks)

    def load_blocks(self, name: str) -> Blocks:
        """Return named blocks; :class:`StoreError` when they are absent or damaged."""
        path = self._blocks_path(name)
        try:
            return dict(read_blocks(path).arrays)
        except FileNotFoundError as error:
            raise StoreError(f"client {self._client!r} of run {self._run!r} has no blocks {name!r}; expected {path}") from error

    def remove_blocks(self, keep: Collection[str]) -> None:
        """Remove all named blocks but those in ``keep``."""
        kept = {self._blocks_path(name) for name in keep}
        for path in set(self._folder.glob("blocks-*.safetensors")) - kept:
            path.unlink()

    def write_note(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small JSON object, for instance what registration brought."""
        path = self._note_path(name)
        self._prepare()
        write_atomically(path, [strict_json(content, path).encode()])

    def read_note(self, name: str) -> dict[str, Any] | None:
        """Return what :meth:`write_note` wrote, or None when there is no such note."""
        path = self._note_path(name)
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} is damaged: expected a JSON object ({error})") from error
        if not isinstance(content, dict):
            raise StoreError(f"{path} is damaged: expected a JSON object, found {type(content).__name__}")
        return content

    def _prepare(self) -> None:
        """Make the client's folder, and note the run's name for ``store list``."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be made ({error}); {_remedy()}") from error
        if not (self._run_folder / "name.json").exists():
            write_atomically(self._run_folder / "name.json", [json.dumps({"run": self._run}).encode()])

    def _version_path(self, version: int) -> Path:
        if version < 1:
            raise StoreError(f"versions of client {self._client!r} start at 1, found {version}")
        return self._folder / f"version-{version:08d}.safetensors"

    def _blocks_path(self, name: str) -> Path:
        return self._folder / f"blocks-{file_slug(name)}.safetensors"

    def _note_path(self, name: str) -> Path:
        return self._folder / f"note-{file_slug(name)}.json"

    def _remove_abandoned(self) -> None:
        """Remove temporary files of processes that were killed while they wrote."""
        for path in self._folder.glob(f".*{PART}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()


def state_directory(node_config: Mapping[str, Any]) -> Path:
    """Return the folder of all private state, made if need be.

    It is the node configuration's ``state-dir``, else the environment's ``FEDSOCKET_HOME``, else ``~/.fedsocket``.

    Raises
    ------
    StoreError
        If the folder cannot be made or written to, or there is no home.
    """
    folder: Path | str = "the home folder"
    try:
        folder = state_folder(node_config)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"private state cannot be kept under {folder} ({error}); {_remedy()}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"private state cannot be kept under {folder}, which is not writable; {_remedy()}")
    return folder


def list_runs(root: Path) -> list[StoredRun]:
    """Return the runs that have state under a state directory, the last changed first."""
    rows = [_describe(folder) for folder in _run_folders(root)]
    return sorted(rows, key=lambda row: (-row.changed, row.run))


def prune(root: Path, runs: Sequence[str] = (), older_than_days: float | None = None) -> tuple[str, ...]:
    """Remove the state of named runs, and of all runs that did not change for some days; return their names.

    Raises
    ------
    StoreError
        If a named run has no state, or a run is in use: some process holds the lock of one of its clients.
    """
    existing = {_describe(folder).run: folder for folder in _run_folders(root)}
    unknown = [run for run in runs if run not in existing]
    if unknown:
        raise StoreError(f"no state of the runs {', '.join(unknown)} under {root}; there is {', '.join(existing) or 'none'}")
    oldest = float("-inf") if older_than_days is None else time.time() - older_than_days * 86400
    chosen = {run: folder for run, folder in existing.items() if run in runs or _describe(folder).changed < oldest}
    for run, folder in chosen.items():
        _require_unused(run, folder)
    for folder in chosen.values():
        shutil.rmtree(folder)
    return tuple(chosen)


def _run_folders(root: Path) -> list[Path]:
    return sorted(path for path in (Path(root).absolute() / "runs").glob("*") if path.is_dir())


def _describe(folder: Path) -> StoredRun:
    try:
        name = str(json.loads((folder / "name.json").read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        name = folder.name
    status = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return StoredRun(
        run=name,
        clients=sum(path.is_dir() for path in folder.iterdir()),
        bytes=sum(entry.st_size for entry in status),
        changed=max((entry.st_mtime for entry in status), default=folder.stat().st_mtime),
    )


def _require_unused(run: str, folder: Path) -> None:
    for path in folder.glob("*/lock"):
        with open(path, "a+b") as file:
            if not try_lock(file):
                raise StoreError(f"run {run!r} is in use: another process holds {path}")
            unlock(file)


def _remedy() -> str:
    return f"set {HOME_VARIABLE}, or {STATE_DIRECTORY_KEY!r} in the node's configuration, to a folder that can be written"
