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
from headrace.keeping.archive_marks import leave_vault
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.payloads.stowage import Stowage
from headrace.seam.instants import from_datetime
from headrace.seam.records import InsertStatus, Requeue, Row, Selector
from headrace.types import SECTIONS, JobState
from headrace.vault.archiver import Archiver
from headrace.vault.catalog import Catalog, Compacted, Verified
from headrace.vault.layout import JOBS, folder_of
from headrace.vault.query import Answer, Ends, query, query_confined
from headrace.vault.row_catalog import COMPACTED, RowCatalog
from headrace.vault.tables import arrow, encode
from headrace.vault.unarchived import read_unarchived

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
    archived, and what is not yet. The latter has its sections, ``result`` and ``error`` in the store alone.

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

    async def files(
        self, since: datetime | None = None, until: datetime | None = None, *, table: str = JOBS
    ) -> list[VaultFile]:
        """The files with ended jobs, or with rows of another table, of the hours between two instants, oldest first."""
        if table != JOBS:
            rows = await RowCatalog(self._open()).files(table, _instant(since), _instant(until))
            return [VaultFile(key=one.key, state="", bytes=one.size) for one in rows]
        found = await Catalog(self._open()).files(_instant(since), _instant(until))
        return [VaultFile(key=one.key, state=one.state, bytes=one.size) for one in found]

    async def tables(self) -> list[str]:
        """The names of the tables with rows of your own."""
        return await RowCatalog(self._open()).tables()

    async def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """The rows of a DuckDB statement over the views ``jobs`` and ``attempts``, and one for each table with rows of
        your own. ``since`` and ``until`` bound when jobs ended, and the hours of rows: other files are not read."""
        return await query(self._open(), sql, parameters, await self._ends(sql, _instant(since), _instant(until)))

    async def confined(self, sql: str, *, most: int = 200) -> Answer:
        """The first rows of one ``SELECT`` over the same views. It can read and change nothing else: for a box in a
        dashboard."""
        return await query_confined(self._open(), sql, await self._ends(sql), most)

    async def _ends(self, sql: str, since: int | None = None, until: int | None = None) -> Ends:
        """What is archived and what is not yet. The store is read first: what is archived meanwhile is in both, and
        counts once."""
        objects, client = self._open(), self._owner.client
        backend = await client.backend()
        if backend.documents is None or backend.archive is None:
            raise ConfigError("vault.url: this store does not list what has ended; unset it")
        hot = await read_unarchived(
            backend.documents, backend.archive, client.clock, objects.location.where, since, until
        )  # fmt: skip
        catalog, asked = RowCatalog(objects), sql.casefold()
        named = [table for table in await catalog.tables() if table.casefold() in asked]
        rows = {table: await catalog.files(table, since, until) for table in named}
        return Ends(await Catalog(objects).files(since, until), hot, rows)

    async def append(
        self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime | None = None, name: str | None = None
    ) -> str | None:
        """Write rows of your own under ``table/date=/hour=``; returns the key of the file. ``query`` has them as a view
        of that name, and any tool that knows Parquet can read them. ``at``: their hour, if it is not this one.
        ``name``: of the file; one that is there already stays as it is. So a vault is a ``RowSink``, for trackers and
        hot tables."""
        if "/" in check_name(table, "table") or table in (JOBS, "attempts", ".", ".."):
            raise InvalidJob(f"table: expected a name without slashes that is not jobs or attempts, got {table!r}")
        if not rows:
            return None
        if name is not None and ("/" in check_name(name, "name") or name.startswith(COMPACTED)):
            raise InvalidJob(f"name: expected a name without slashes that does not begin {COMPACTED!r}, got {name!r}")
        hour = self._owner.client.clock.now() if at is None else from_datetime(at)
        key = f"{folder_of(table, hour)}/{name or secrets.token_hex(16)}.parquet"
        body = await asyncio.to_thread(lambda: encode(arrow().Table.from_pylist([dict(row) for row in rows])))
        await self._open().create(key, body)
        return key

    async def compact(self, before: datetime | None = None) -> Compacted:
        """Put the small files of hours that are over together: how many were made, and how many removed."""
        until = self._owner.client.clock.now() - 7_200_000_000 if before is None else from_datetime(before)
        jobs = await Catalog(self._open()).compact(until)
        made, removed = await RowCatalog(self._open()).compact(until)
        return Compacted(jobs.made + made, jobs.removed + removed)

    async def verify(self) -> Verified:
        """Read everything: how many files and jobs there are, and what is wrong with them."""
        jobs, (files, problems) = await Catalog(self._open()).verify(), await RowCatalog(self._open()).verify()
        return Verified(jobs.files + files, jobs.jobs, jobs.problems + problems)

    async def replay(self, where: str, parameters: Sequence[Any] = (), *, limit: int = 1_000) -> Replayed:
        """Run jobs again, straight from the vault: those that fit a condition in SQL, such as ``id = ?`` or
        ``task = 'charge' AND state = 'failed'``, oldest end first. A job that is still in the store is requeued there;
        one that is not is enqueued again under its id, without its key."""
        sql = (
            f"SELECT * FROM jobs WHERE ({where}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY epoch DESC) = 1 "
            f"ORDER BY ended_at, id LIMIT {int(limit)}"
        )
        ends = await self._ends(sql)
        found = await query(self._open(), sql, parameters, ends)
        client = self._owner.client
        backend = await client.backend()
        known = set(ends.hot.table.column("id").to_pylist())
        stored = [UUID(one["id"]).bytes for one in found if one["id"] in known]
        rows = [_row(one) for one in found if one["id"] not in known]
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
            await leave_vault(backend.documents)


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
