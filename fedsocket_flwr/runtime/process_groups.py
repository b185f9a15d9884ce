"""Ending a process with everything that it started, also what went into sessions of its own and would outlive it.

Needs no permission beyond signalling one's own processes, and no package: it reads ``/proc``, or asks ``ps`` where there is none.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
POLL_SECONDS = 0.1


class Entry(NamedTuple):
    """One line of the process table; a zombie has ended and only waits for its parent."""

    pid: int
    parent: int
    group: int
    zombie: bool


def stop_with_descendants(process: "subprocess.Popen[bytes]", patience: float) -> None:
    """End a process, which leads a group of its own, and all its descendants.

    They are asked by SIGTERM and have ``patience`` seconds; what is left then is ended by SIGKILL. Descendants are those at the
    time of the call: what has already lost its parent is not among them.
    """
    groups = {process.pid} | descendant_groups(process.pid)
    for sign, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, sign)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not _living(groups):
                # It has ended, maybe this very moment, and is still to be fetched.
                process.wait()
                return
            time.sleep(POLL_SECONDS)


def descendant_groups(pid: int) -> set[int]:
    """Return the process groups of all descendants, but never the group of the calling process."""
    table = process_table()
    found: set[int] = set()
    generation = {pid}
    while generation:
        children = [entry for entry in table if entry.parent in generation]
        found |= {entry.group for entry in children}
        generation = {entry.pid for entry in children}
    return found - {os.getpgrp()}


def processes_with(setting: str) -> list[int]:
    """Return the living processes that were started with an environment in which ``setting`` stands; Linux only, else none."""
    found = []
    for entry in process_table() if (PROC / "self" / "environ").exists() else ():
        with contextlib.suppress(OSError):
            if not entry.zombie and setting.encode() in (PROC / str(entry.pid) / "environ").read_bytes():
                found.append(entry.pid)
    return found


def process_table() -> list[Entry]:
    """Return every process that can be seen."""
    if (PROC / "self" / "stat").exists():
        entries = (_read_stat(folder / "stat") for folder in PROC.iterdir() if folder.name.isdecimal())
        return [entry for entry in entries if entry is not None]
    lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in lines.splitlines())
    return [Entry(int(pid), int(parent), int(group), state.startswith("Z")) for pid, parent, group, state in rows]


def _read_stat(path: Path) -> Entry | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets too.
    head, _, tail = text.rpartition(")")
    state, parent, group = tail.split()[:3]
    return Entry(int(head.split(" ", 1)[0]), int(parent), int(group), state in ("Z", "X"))


def _living(groups: Collection[int]) -> bool:
    return any(entry.group in groups and not entry.zombie for entry in process_table())
