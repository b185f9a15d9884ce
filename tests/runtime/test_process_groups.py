import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsocket_flwr.runtime import process_groups
from fedsocket_flwr.runtime.process_groups import descendant_groups, process_table, processes_with, stop_with_descendants

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")

# A leader whose child goes into a session of its own and has a child there, as Flower's helpers and Ray do.
GRANDCHILD = "import {signal_line} time; open({path!r}, 'w').write(str(__import__('os').getpid())); time.sleep(600)"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
LEADER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]], start_new_session=True)"


def started(folder: Path, deaf: bool = False) -> tuple["subprocess.Popen[bytes]", int]:
    path = folder / "pid"
    line = "signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import" if deaf else ""
    grandchild = GRANDCHILD.format(signal_line=line, path=str(path))
    process = subprocess.Popen([sys.executable, "-c", LEADER, CHILD, grandchild], start_new_session=True)
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, int(path.read_text())


def lives(pid: int) -> bool:
    return any(entry.pid == pid and not entry.zombie for entry in process_table())


@pytest.mark.parametrize("deaf", [False, True], ids=["listens", "ignores SIGTERM"])
def test_what_went_into_another_session_ends_too(tmp_path: Path, deaf: bool) -> None:
    process, grandchild = started(tmp_path, deaf)
    assert lives(grandchild)
    assert os.getpgid(grandchild) != process.pid
    stop_with_descendants(process, patience=1.0)
    assert process.returncode is not None
    assert not lives(grandchild)


def test_ending_what_has_ended_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    stop_with_descendants(process, patience=1.0)
    assert process.returncode == 0


def test_a_child_in_the_callers_own_group_does_not_end_the_caller() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert os.getpgrp() not in descendant_groups(os.getpid())
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_the_table_is_the_same_from_ps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = next(entry for entry in process_table() if entry.pid == os.getpid())
    assert (here.parent, here.group, here.zombie) == (os.getppid(), os.getpgrp(), False)
    monkeypatch.setattr(process_groups, "PROC", tmp_path)
    assert here in process_table()


@pytest.mark.skipif(not process_groups.PROC.exists(), reason="the environment of processes is Linux's")
def test_processes_are_found_by_what_stands_in_their_environment() -> None:
    setting = f"MARK_OF_A_TEST={os.getpid()}"
    with subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], "MARK_OF_A_TEST": str(os.getpid())}) as process:
        try:
            assert processes_with(setting) == [process.pid]
        finally:
            process.kill()
    assert processes_with(setting) == []
