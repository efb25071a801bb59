"""Large batches go by ``COPY``: arrays would be copied once more at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege, UniqueViolation

from headrace.backends.postgres.arrays import bigints, integers, texts
from headrace.backends.postgres.composites import BIGINT, COPY_END, COPY_HEADER, JOB, Column, copied
from headrace.backends.postgres.connections import Connections, give_time
from headrace.backends.postgres.rows import checked, weight
from headrace.seam.records import Row, Stamp
from headrace.seam.references import is_reference

THRESHOLD = 1024 * 1024
"""Bytes in cells from which it pays, as ``python -m benchmarks.studies.copying`` shows. Many small rows never have as
many, and would gain nothing: their cost is in the indexes."""
MANY = 1_000
"""Rows with references from which it pays: it costs the server no more, and the log has a record for each page, not for
each row."""

_READY = Struct("!hiqi16siqiiiiiiiiihib").pack
_COLUMNS = 11
_ELSEWHERE = frozenset((
    "queue", "key", "priority", "delay", "run_at", "expires", "reply_to", "hold_failed", "key_until", "replaces",
    "group_name",
))  # fmt: skip
_JOBS = (
    *(column for column in JOB if column.name not in _ELSEWHERE),
    Column("enqueued_at", BIGINT, "delay"),
    Column("expires_at", BIGINT, "expires"),
)
"""The columns of ``jobs`` that these rows have."""
COLUMNS = ", ".join(column.name for column in _JOBS)


class Bulk:
    """Stores rows that have neither key nor group nor reply address, and whose ids nobody else has, if their queues
    have room for all of them and are not governed."""

    def __init__(self, connections: Connections, sql: Mapping[str, str], *, allowed: bool = True) -> None:
        self._connections = connections
        self._sql = sql
        self._allowed = allowed
        self._proven = False

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether these rows can go this way."""
        return (
            self._allowed
            and _pays(rows)
            and all(row.key is None and row.group is None and row.reply_to is None for row in rows)
            and len({row.id for row in rows}) == len(rows)
        )

    async def insert(self, rows: Sequence[Row], at: Stamp) -> bool:
        """Store all of them. False: none, because some are stored already, or do not fit, or because rules or
        this role forbid it."""
        checked(rows)
        sent = sum(map(weight, rows))
        async with self._connections.session(sent) as session:
            try:
                async with session.transaction():
                    await give_time(session, sent)
                    done = await self._copy(session, rows, at)
            except UniqueViolation:
                return False
            except InsufficientPrivilege:
                self._allowed = self._proven
                return False
        self._proven = True
        return done

    async def _copy(self, connection: AsyncConnection[Any], rows: Sequence[Row], at: Stamp) -> bool:
        counts = Counter(row.queue for row in rows)
        cursor = connection.cursor(binary=True)
        jobs = bigints(list(counts.values()))
        await cursor.execute(self._sql["bulk_begin"], (at, texts(list(counts)), jobs))
        [[now, qids, fits]] = await cursor.fetchall()
        if not fits:
            return False
        numbers = dict(zip(counts, qids, strict=True))
        async with cursor.copy(self._sql["bulk_jobs"]) as copy:
            for part in _jobs(rows, now):
                await copy.write(part)
        async with cursor.copy(self._sql["bulk_ready"]) as copy:
            await copy.write(b"".join([COPY_HEADER, *[_ready(row, now, numbers[row.queue]) for row in rows], COPY_END]))
        await cursor.execute(self._sql["bulk_end"], (integers(qids), jobs))
        return True


def _pays(rows: Sequence[Row]) -> bool:
    """Whether these rows are large, or many with cells in an object store: then the log has mostly the rows."""
    cells = [cell for row in rows for cell in row.cells.values()]
    return sum(map(len, cells)) >= THRESHOLD or (len(rows) >= MANY and any(map(is_reference, cells)))


def _jobs(rows: Sequence[Row], now: int) -> Iterator[bytes]:
    return copied(
        _JOBS,
        rows,
        {"enqueued_at": lambda _: now, "expires_at": lambda expires: None if expires is None else now + expires},
    )


def _ready(row: Row, now: int, qid: int) -> bytes:
    run_at = now + row.delay if row.run_at is None else row.run_at
    fixed = _READY(
        _COLUMNS, 8, run_at, 16, row.id, 8, 0, 4, qid, 4, 0, 4, 0, 4, weight(row), 2, row.priority, 1, 0
    )  # fmt: skip
    lane = BIGINT.bare(None if run_at <= now else 0)
    return fixed + lane + BIGINT.bare(None if row.expires is None else max(now + row.expires, run_at))
