"""Give back to the volume what the file of a store does not use."""

from __future__ import annotations

import os

import apsw

from headrace.backends.sqlite.latch import Latch
from headrace.backends.sqlite.schema import connect
from headrace.backends.sqlite.translate import translate
from headrace.errors import StoreFull


def shrink(path: str) -> tuple[int, int]:
    """Rewrite the file without its free pages: its size before and after, in bytes. Others wait meanwhile.

    For a moment the volume has to hold what is used twice.
    """
    latch = Latch(path)
    connection = connect(path)
    try:
        before = os.stat(path).st_size
        pages, free, size = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        volume = os.statvfs(os.path.dirname(path))
        left, needed = volume.f_bavail * volume.f_frsize, 2 * (pages - free) * size
        if left < needed:
            raise StoreFull(
                f"{path}: expected {needed:,} free bytes to write it anew, got {left:,}; free some space first"
            )
        latch.acquire()
        connection.execute("VACUUM")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return before, os.stat(path).st_size
    except apsw.Error as error:
        raise translate(error, path, connection.system_errno) from error
    finally:
        connection.close(True)
        latch.close()
