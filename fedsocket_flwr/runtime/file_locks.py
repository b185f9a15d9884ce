"""Locks that a process holds on a file, and lets go when it dies."""

import sys
import time
from typing import IO

__all__ = ["lock", "try_lock", "unlock"]

if sys.platform == "win32":
    import msvcrt

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock of a file if nobody has it, and say whether it was free."""
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def lock(file: IO[bytes]) -> None:
        """Take the lock of a file, however long it takes."""
        while not try_lock(file):
            time.sleep(0.1)

    def unlock(file: IO[bytes]) -> None:
        """Let go of the lock of a file."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock of a file if nobody has it, and say whether it was free."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(file: IO[bytes]) -> None:
        """Take the lock of a file, however long it takes."""
        fcntl.flock(file, fcntl.LOCK_EX)

    def unlock(file: IO[bytes]) -> None:
        """Let go of the lock of a file."""
        fcntl.flock(file, fcntl.LOCK_UN)
