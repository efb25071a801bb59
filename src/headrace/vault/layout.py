"""Where the files of a vault lie, and which of them count.

A page of ended jobs is ``jobs/date=2026-11-18/hour=05/completed-FIRST-LAST.parquet``. ``FIRST`` and ``LAST`` are
instant, id and epoch of its first and last job in hexadecimal digits, so names sort as jobs ended. A file counts unless
another one of its state and hour covers it: that one was made of it, and of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from headrace.seam.records import Record

JOBS = "jobs"
_HOUR = 3_600_000_000
_NAME = re.compile(r"(?:.*/)?(completed|cancelled|failed)-([0-9a-f]{64})-([0-9a-f]{64})\.parquet")


class PageFile(NamedTuple):
    """A file with ended jobs of one state and hour."""

    key: str
    folder: str
    state: str
    first: str
    last: str
    size: int

    def covers(self, other: PageFile) -> bool:
        """Whether it has all jobs of the other."""
        same = (self.folder, self.state) == (other.folder, other.state)
        return same and self.key != other.key and self.first <= other.first and other.last <= self.last


def hour_of(at: int) -> int:
    """The hour since 1970 that an instant is in."""
    return at // _HOUR


def folder_of(table: str, at: int) -> str:
    """The folder of a table for an instant."""
    return f"{table}/{datetime.fromtimestamp(hour_of(at) * 3_600, UTC):date=%Y-%m-%d/hour=%H}"


def page_key(state: str, first: Record, last: Record) -> str:
    """The key of a page."""
    folder = folder_of(JOBS, first.finished_at or 0)
    return f"{folder}/{state}-{_digits(first)}-{_digits(last)}.parquet"


def _digits(record: Record) -> str:
    return f"{record.finished_at or 0:016x}{record.id.hex()}{record.epoch:016x}"


def read_key(key: str, size: int = 0) -> PageFile | None:
    """A page by its key; None: it is none."""
    found = _NAME.fullmatch(key)
    return None if found is None else PageFile(key, key.rpartition("/")[0], found[1], found[2], found[3], size)


def counting(files: Iterable[PageFile]) -> tuple[list[PageFile], list[PageFile]]:
    """The files that count, in order, and those that others cover."""
    kept: list[PageFile] = []
    covered: list[PageFile] = []
    for file in sorted(files, key=lambda one: (one.folder, one.state, one.first, [-ord(c) for c in one.last])):
        (covered if kept and kept[-1].covers(file) else kept).append(file)
    return kept, covered
