"""Much at once: large rows go by ``COPY``, where arrays would be copied once more at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege, UniqueViolation

from headrace.backends.postgres.arrays import bigints, integers, texts
from headrace.backends.postgres.connections import Connections, give_time
from headrace.backends.postgres.rows import checked, weight
from headrace.seam.records import Row, Stamp

THRESHOLD = 1024 * 1024
"""Bytes from which on it pays, as ``python -m benchmarks.studies.copying`` shows: many small rows never weigh as much,
and gain nothing by it, since what they cost is their entries in indexes."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_LENGTH = Struct("!i").pack
_BIGINT = Struct("!iq").pack
_INTEGER = Struct("!ii").pack
_JOB = Struct("!hi16siq").pack
_READY = Struct("!hiqi16siqiiiiiiiiihib").pack
_COLUMNS = 11


class Bulk:
    """Stores rows that have neither key nor group nor reply address, whose ids nobody else has, and whose queues have
    no policy."""

    def __init__(self, connections: Connections, sql: Mapping[str, str]) -> None:
        self._connections = connections
        self._sql = sql
        self._allowed = True
        self._proven = False

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether these rows are for it."""
        return (
            self._allowed
            and sum(map(weight, rows)) >= THRESHOLD
            and all(row.key is None and row.group is None and row.reply_to is None for row in rows)
            and len({row.id for row in rows}) == len(rows)
        )

    async def insert(self, rows: Sequence[Row], at: Stamp) -> bool:
        """Store all of them; or none, where some are there already, or rules or this role forbid to do it this way."""
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
        await cursor.execute(self._sql["bulk_begin"], (at, texts(list(counts))))
        [[now, qids, ruled]] = await cursor.fetchall()
        if ruled:
            return False
        numbers = dict(zip(counts, qids, strict=True))
        async with cursor.copy(self._sql["bulk_jobs"]) as copy:
            await copy.write(b"".join([_HEADER, *[_job(row, now) for row in rows], _TRAILER]))
        async with cursor.copy(self._sql["bulk_ready"]) as copy:
            await copy.write(b"".join([_HEADER, *[_ready(row, now, numbers[row.queue]) for row in rows], _TRAILER]))
        await cursor.execute(self._sql["bulk_end"], (integers(qids), bigints(list(counts.values()))))
        return True


def _job(row: Row, now: int) -> bytes:
    cells = row.cells
    return b"".join(
        [
            _JOB(13, 16, row.id, 8, now),
            _bigint(None if row.expires is None else now + row.expires),
            _bigint(row.timeout),
            _bigint(row.result_ttl),
            _NULL if row.max_attempts is None else _INTEGER(4, row.max_attempts),
            _bytes(row.task.encode()),
            _bytes(row.tenant.encode()),
            _bytes(row.headers),
            _bytes(cells.get("parameters")),
            _bytes(cells.get("vm_state")),
            _bytes(cells.get("metadata")),
            _bytes(cells.get("blob")),
        ]
    )


def _ready(row: Row, now: int, qid: int) -> bytes:
    run_at = now + row.delay if row.run_at is None else row.run_at
    fixed = _READY(
        _COLUMNS, 8, run_at, 16, row.id, 8, 0, 4, qid, 4, 0, 4, 0, 4, weight(row), 2, row.priority, 1, 0
    )  # fmt: skip
    lane = _bigint(None if run_at <= now else 0)
    return fixed + lane + _bigint(None if row.expires is None else max(now + row.expires, run_at))


def _bigint(value: int | None) -> bytes:
    return _NULL if value is None else _BIGINT(8, value)


def _bytes(value: bytes | None) -> bytes:
    return _NULL if value is None else _LENGTH(len(value)) + value
