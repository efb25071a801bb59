"""Space on the disk: the last of it is kept for jobs that are under way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headrace.errors import StoreFull

_SHARE = 0.15
_MOST = 128 * 1024 * 1024
_GOOD_FOR = 0.1
"""Seconds within which even a fast disk does not fill up from plenty of room."""


class DiskSpace:
    """Tells when the volume is so full that new jobs are to be refused.

    The last 15 % of the volume, 128 MiB at most, are kept for finishing, renewing, reaping and sweeping: these need
    a little room of their own in the write-ahead log, and without them nothing would ever be freed. Jobs that fit
    into pages of the file that are free already need no more than the log does: for them a quarter is kept.

    Quotas and file size limits cannot be seen beforehand; there, SQLite's own refusal comes to the insert that meets
    them, and a transaction that only frees or moves rows mostly finds room in pages that are free already.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._good_until = 0.0

    def refusal(self, spare: Callable[[], int]) -> StoreFull | None:
        """Why new jobs are refused now, or None; ``spare`` returns the unused bytes of the file."""
        now = time.monotonic()
        if now < self._good_until:
            return None
        try:
            volume = os.statvfs(self._directory)
        except OSError:
            return None  # the write itself says better what is wrong
        free = volume.f_bavail * volume.f_frsize
        reserve = min(int(volume.f_blocks * volume.f_frsize * _SHARE), _MOST)
        if free >= reserve or (free >= reserve // 4 and spare() >= reserve):
            self._good_until = now + _GOOD_FOR
            return None
        return StoreFull(
            f"{self._directory} has {free:,} bytes left, and the last {reserve:,} are kept for jobs that are under "
            f"way: the new ones were not stored. Free some space: work goes on by itself."
        )
