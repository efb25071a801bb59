"""A part of all jobs, for processes that share them out."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from headrace.seam.records import JobId


class Share(NamedTuple):
    """Those whose ids have this remainder.

    >>> [Share(number, 2).has(b"any id") for number in range(2)]
    [False, True]
    """

    number: int = 0
    of: int = 1

    def has(self, job_id: JobId) -> bool:
        return crc32(job_id) % self.of == self.number


ALL = Share()
