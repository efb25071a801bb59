"""What of a Valkey server's file is on the disk, seen from outside.

The server syncs in a thread of its own, which sleeps in between. Whatever the file held before that thread was last
woken is on the disk once the server has no sync under way. The server's own word for it, ``WAITAOF``, cannot be used:
with ``appendfsync everysec`` it is given too early (redis/redis#13793).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from servers.valkey import Valkey

_PAUSE = 0.002
_THREAD = "bio_aof"


class Sync(Struct, frozen=True):
    """One that is over, by the machine's monotonic clock, in nanoseconds."""

    bytes: int
    """So much of the file is on the disk; of more it is not known."""
    began: int
    """No earlier than this."""
    over: int


class Syncs:
    """Those of one server, while it is watched."""

    def __init__(self, server: Valkey) -> None:
        self._server = server
        self.seen: list[Sync] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look on in a thread, until the server goes or nobody cares any more."""
        enough = threading.Event()
        eye = _Eye(self._server)
        thread = threading.Thread(target=self._watch, args=(eye, enough), daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()

    def _watch(self, eye: _Eye, enough: threading.Event) -> None:
        try:
            at, size, runs = eye.look()
            while not enough.wait(_PAUSE):
                began, there, before = at, size, runs
                at, size, runs = eye.look()
                if runs != before:
                    while eye.syncing():
                        time.sleep(_PAUSE)
                    self.seen.append(Sync(there, began, time.monotonic_ns()))
                    at, size, runs = eye.look()
        except OSError:
            return


class _Eye:
    """Looks at the server's file and at the thread that syncs it."""

    def __init__(self, server: Valkey) -> None:
        self._server = server
        self._journal = journal(server)
        tasks = Path("/proc", server.info("server")["process_id"], "task")
        [task] = [path for path in tasks.iterdir() if (path / "comm").read_text().strip() == _THREAD]
        self._runs = task / "schedstat"

    def look(self) -> tuple[int, int, int]:
        """The instant, then the size of the file, then how often the thread has been woken: in this order, so that what
        wakes it later finds a file that is no smaller."""
        return time.monotonic_ns(), os.stat(self._journal).st_size, self.runs()

    def runs(self) -> int:
        return int(self._runs.read_text().split()[2])

    def syncing(self) -> bool:
        return self._server.info("persistence")["aof_pending_bio_fsync"] != "0"


def journal(server: Valkey) -> Path:
    """The file to which it appends."""
    [path] = Path(server.directory, "appendonlydir").glob("*.incr.aof")
    return path
