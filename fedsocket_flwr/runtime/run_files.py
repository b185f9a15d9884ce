"""The server's files of a run: the claimed folder, its identity, and the checkpoint that a cut run continues from."""

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.plain_files import dump_json, read_json, write_whole
from fedsocket_flwr.runtime.block_files import read_blocks, write_blocks
from fedsocket_flwr.runtime.file_locks import try_lock, unlock

IDENTITY = "run.json"
LOCK = "run.lock"
RELEASE_SECONDS = 120.0
POLL_SECONDS = 0.2
CHECKPOINT = "q.safetensors"
DEFAULT_PARENT = Path("runs")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """All that the server needs to go on after a round."""

    round: int
    blocks: Blocks
    strategy: Mapping[str, Any]


def claim_folder(out: Path | None, config: Configuration) -> Path:
    """Make a new run folder, which nobody else has, and return it.

    Without ``out`` it is ``runs/<name>-<seed>`` with the first free number behind it. Either way one atomic step decides, so runs
    that start together never share a folder.

    Raises
    ------
    RunError
        ``out`` exists and is not empty.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            free = not any(out.iterdir()) and _first_in(out)
        except OSError as error:
            raise RunError(f"{out} cannot be the run folder: {error}") from error
        if not free:
            raise RunError(f"{out} exists and is not empty; give another folder, or continue that run with --resume {out}")
        return out.absolute()
    stem = file_slug(f"{config.run.name}-{config.run.seed}")
    DEFAULT_PARENT.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = DEFAULT_PARENT / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            continue
        return folder.absolute()


def _first_in(folder: Path) -> bool:
    """Make the identity's file, still empty; only one of several processes can."""
    try:
        (folder / IDENTITY).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def write_identity(folder: Path, config: Configuration, engine: str, q_parameters: int) -> str:
    """Name the run, once and for all, and return the name: the key of its private models in the store."""
    run = f"{config.run.name}-{config.run.seed}-{secrets.token_hex(6)}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    identity: dict[str, Any] = {"run": run, "engine": engine, "created": created, "q_parameters": q_parameters}
    identity["configuration"] = config.model_dump(mode="json")
    write_whole(folder / IDENTITY, dump_json(identity, indent=2) + "\n")
    return run


def read_identity(folder: Path) -> dict[str, Any]:
    """Return what :func:`write_identity` wrote, or raise :class:`RunError`."""
    if not (folder / IDENTITY).exists():
        raise RunError(f"{folder} is no run folder: it has no {IDENTITY}")
    if (folder / IDENTITY).stat().st_size == 0:
        raise RunError(f"{folder} was claimed by a run that was cut before it began; remove the folder")
    identity: dict[str, Any] = read_json(folder / IDENTITY)
    return identity


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run folder against every other process that would carry on the same run.

    A ServerApp outlives a killed SuperLink for a while, and lets go when it notices; that is waited for.

    Raises
    ------
    RunError
        Another process still holds the folder after that time.
    """
    with open(folder / LOCK, "a+b") as file:
        deadline = time.monotonic() + RELEASE_SECONDS
        if not try_lock(file):
            logger.warning("%s is in use by another process; waiting up to %g s for it to end", folder, RELEASE_SECONDS)
            while not try_lock(file):
                if time.monotonic() >= deadline:
                    raise RunError(f"{folder} is in use: another process is carrying on this run")
                time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            unlock(file)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write Q with everything else that a resumed run needs, as one file that appears whole or not at all."""
    notes = dump_json({"round": checkpoint.round, "strategy": checkpoint.strategy})
    write_blocks(folder / CHECKPOINT, checkpoint.blocks, notes)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint, or None before the first round is merged.

    Raises
    ------
    StoreError, RunError
        The file is damaged, or holds something else.
    """
    try:
        content = read_blocks(folder / CHECKPOINT)
    except FileNotFoundError:
        return None
    try:
        notes = json.loads(content.notes)
        return Checkpoint(int(notes["round"]), dict(content.arrays), dict(notes["strategy"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / CHECKPOINT} is no checkpoint of a run: its notes are {content.notes[:200]!r}") from error
