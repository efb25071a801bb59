"""The vault as people use it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

from headrace.core.names import check_name
from headrace.core.store_access import Owner, StoreAccess
from headrace.core.upkeep import VAULT
from headrace.core.view import View
from headrace.errors import ConfigError, InvalidJob
from headrace.keeping.archive_marks import ArchiveMarks
from headrace.keeping.bounds import ENDED
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.payloads.stowage import Stowage
from headrace.seam.archive import Mark
from headrace.seam.instants import from_datetime
from headrace.seam.records import InsertStatus, Record, Requeue, Row, Selector
from headrace.types import SECTIONS, JobState
from headrace.vault.archiver import Archiver
from headrace.vault.catalog import Catalog, Compacted, Verified
from headrace.vault.layout import JOBS, folder_of
from headrace.vault.query import Answer, query, query_confined
from headrace.vault.tables import arrow, encode, jobs_table

_HOT = 200_000
"""Jobs that are not archived yet, at most, that a query reads from the store."""
_CARRIED = ("queue", "task", "tenant", "priority", "group", "headers", "max_attempts", "timeout", "result_ttl")


class VaultFile(View, frozen=True, kw_only=True):
    """A file of a vault.

    >>> VaultFile(key="jobs/date=2026-11-18/hour=05/failed-0-1.parquet", state="failed", bytes=1_024).bytes
    1024
    """

    key: str
    state: str
    bytes: int


class Replayed(Struct, frozen=True):
    """What became of jobs that were to run again.

    >>> Replayed([], [], []).refused
    []
    """

    enqueued: list[UUID]
    requeued: list[UUID]
    refused: list[UUID]
    """They wait or run already, or another job holds their key."""


class Vault:
    """Ended jobs, and rows of your own, as Parquet files in a directory or bucket, for good.

    Workers write ended jobs to it before retention may remove them, if ``vault.url`` is set. SQL sees both: what is
    archived, and what is not yet.

    >>> import asyncio, tempfile
    >>> from headrace import App
    >>> async def main(folder: str) -> list[dict[str, object]]:
    ...     app = App("memory://", vault={"url": f"file://{folder}"})
    ...     @app.task(name="add", queue="sums")
    ...     async def add(a: int, b: int) -> int:
    ...         return a + b
    ...     async with app:
    ...         await add.enqueue(2, 3)
    ...         await app.drain()
    ...         return await app.vault.query("SELECT task, state, count(*) AS jobs FROM jobs GROUP BY ALL")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    [{'task': 'add', 'state': 'completed', 'jobs': 1}]
    """

    def __init__(self, owner: Owner[VaultAccess]) -> None:
        self._owner = owner
        self._objects: Objects | None = None

    def _open(self) -> Objects:
        if self._objects is None:
            url = self._owner.client.settings.vault.url
            if url is None:
                raise ConfigError("there is no vault: set vault.url (HEADRACE_VAULT__URL), such as file:///var/vault")
            self._objects = Objects(parse(url), timed=partial(self._owner.client.observers.requested, VAULT))
        return self._objects

    async def archive(self) -> int:
        """Archive what has ended and is final, as workers do; returns how many jobs."""
        client = self._owner.client
        backend = await client.backend()
        archiver = Archiver(
            backend, self._open(), client.clock, Random(), client.observers, client.settings.vault,
            stowage=client.stowage,
        )  # fmt: skip
        return await archiver.archive()

    async def files(self, since: datetime | None = None, until: datetime | None = None) -> list[VaultFile]:
        """The files with ended jobs, of the hours between two instants, oldest first."""
        found = await Catalog(self._open()).files(_instant(since), _instant(until))
        return [VaultFile(key=one.key, state=one.state, bytes=one.size) for one in found]

    async def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """The rows of a DuckDB statement over the views ``jobs`` and ``attempts``. ``since`` and ``until`` bound when
        jobs ended, to the hour: other files are not read."""
        objects = self._open()
        files = await Catalog(objects).files(_instant(since), _instant(until))
        hot = await self._hot(_instant(since), _instant(until))
        return await query(objects, sql, parameters, files, jobs_table(hot))

    async def confined(self, sql: str, *, most: int = 200) -> Answer:
        """The first rows of one ``SELECT`` over the same views. It can read and change nothing else: for a box in a
        dashboard."""
        objects = self._open()
        files = await Catalog(objects).files()
        return await query_confined(objects, sql, files, jobs_table(await self._hot(None, None)), most)

    async def _hot(self, since: int | None, until: int | None) -> list[Record]:
        """Ended jobs that are not archived yet, without their cells."""
        client = self._owner.client
        backend = await client.backend()
        if backend.documents is None or backend.archive is None:
            return []
        marks = await ArchiveMarks(backend.documents).read()
        found: list[Record] = []
        for state in ENDED:
            after: Mark | None = marks.of(state).mark
            while len(found) < _HOT:
                page = await backend.archive.ended(state, after, 1_000, at=client.clock.stamp())
                found += page.records
                if page.last is None:
                    break
                after = page.last
        return [one for one in found if (since or 0) <= (one.finished_at or 0) <= (until or 1 << 62)]

    async def append(
        self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime | None = None, name: str | None = None
    ) -> str | None:
        """Write rows of your own under ``table/date=/hour=``; returns the key of the file. Read them with any tool, or
        with ``query_table``. ``at``: their hour, if it is not this one. ``name``: of the file; one that is there
        already stays as it is. So a vault is a ``RowSink``, for trackers and hot tables."""
        if "/" in check_name(table, "table") or table in (JOBS, ".", ".."):
            raise InvalidJob(f"table: expected a name without slashes that is not {JOBS!r}, got {table!r}")
        if not rows:
            return None
        if name is not None and "/" in check_name(name, "name"):
            raise InvalidJob(f"name: expected a name without slashes, got {name!r}")
        hour = self._owner.client.clock.now() if at is None else from_datetime(at)
        key = f"{folder_of(table, hour)}/{name or secrets.token_hex(16)}.parquet"
        body = await asyncio.to_thread(lambda: encode(arrow().Table.from_pylist([dict(row) for row in rows])))
        await self._open().create(key, body)
        return key

    async def compact(self, before: datetime | None = None) -> Compacted:
        """Put the small files of hours that are over together: how many were made, and how many removed."""
        until = self._owner.client.clock.now() - 7_200_000_000 if before is None else from_datetime(before)
        return await Catalog(self._open()).compact(until)

    async def verify(self) -> Verified:
        """Read everything: how many files and jobs there are, and what is wrong with them."""
        return await Catalog(self._open()).verify()

    async def replay(self, where: str, parameters: Sequence[Any] = (), *, limit: int = 1_000) -> Replayed:
        """Run jobs again, straight from the vault: those that fit a condition in SQL, such as ``id = ?`` or
        ``task = 'charge' AND state = 'failed'``, oldest end first. A job that is still in the store is requeued there;
        one that is not is enqueued again under its id, without its key."""
        objects = self._open()
        files = await Catalog(objects).files()
        sql = (
            f"SELECT * FROM jobs WHERE ({where}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY epoch DESC) = 1 "
            f"ORDER BY ended_at, id LIMIT {int(limit)}"
        )
        hot = await self._hot(None, None)
        found = await query(objects, sql, parameters, files, jobs_table(hot))
        client = self._owner.client
        backend = await client.backend()
        known = {one.id for one in hot}
        stored = [job_id for one in found if (job_id := UUID(one["id"]).bytes) in known]
        rows = [_row(one) for one in found if UUID(one["id"]).bytes not in known]
        answers = await backend.insert(rows, client.clock.stamp())
        stored += [one.id for one in answers if one.status is InsertStatus.SAME]
        ended = frozenset((JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED))
        altered = await client.alter(Selector(ids=stored, states=ended), Requeue()) if stored else []
        again = {one.id for one in altered if one.changed}
        new = [UUID(bytes=one.id) for one in answers if one.status is InsertStatus.NEW]
        return Replayed(new, [UUID(bytes=i) for i in again], [UUID(bytes=i) for i in stored if i not in again])

    async def leave(self) -> None:
        """Do without a vault from now on: what is not archived may go. What is archived stays."""
        backend = await self._owner.client.backend()
        if backend.documents is not None:
            await ArchiveMarks(backend.documents).remove()


class VaultAccess(StoreAccess, Protocol):
    """A way to a store whose sections may be in objects."""

    @property
    def stowage(self) -> Stowage | None:
        """What brings these sections back."""


def _instant(at: datetime | None) -> int | None:
    return None if at is None else from_datetime(at)


def _row(found: Mapping[str, Any]) -> Row:
    """An archived job as a new one, due now."""
    cells = {name: found[name] for name in SECTIONS if found[name] is not None}
    options = {name: found[name] for name in _CARRIED if found[name] is not None}
    return Row(id=UUID(found["id"]).bytes, cells=cells, **options)
