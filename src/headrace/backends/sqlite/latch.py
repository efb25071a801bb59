"""The right to write, held by one process at a time on the whole machine."""

from __future__ import annotations

import os
import sys

from headrace.backends.sqlite import files

if sys.platform != "win32":
    import fcntl


class Latch:
    """A lock on a file beside the database, held during each write transaction.

    SQLite's own lock is not fair: a process that finds it taken sleeps and tries again, so that among eight busy
    processes some wait for seconds while others write again and again. The kernel queues the processes that wait for
    this lock, and releases it when the process that has it dies. SQLite's lock is still taken beneath it and decides:
    where there is no latch (no ``flock``, no right to the file), or where another program ignores it, only fairness is
    lost.
    """

    def __init__(self, database: str) -> None:
        self._fd = files.open_latch(database)
        self._held = False

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock, and wait for it however long it takes; without ``wait``, only if it is free. Returns whether
        the caller may write."""
        if sys.platform != "win32" and self._fd >= 0:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._held = True
        return True

    def release(self) -> None:
        """Let the next one write. Releasing twice is harmless."""
        if sys.platform != "win32" and self._held:
            self._held = False
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, and so release the lock, unless a forked process shares this handle."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
