"""The ten operations on a SQLite file: each is handed to the thread that serves it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import apsw
from msgspec.structs import replace

from headrace.backends.archive import Archive, End
from headrace.backends.claims import ClaimParts
from headrace.backends.portions import Costs, Portions, of_selection, step_by_step
from headrace.backends.sqlite import (
    claiming,
    files,
    hints,
    insertion,
    leases,
    lock_guard,
    selection,
    shrinking,
    sweeping,
)
from headrace.backends.sqlite.altering import CHANGED_AT_ONCE, alter_many, alter_named
from headrace.backends.sqlite.archive import ends
from headrace.backends.sqlite.connection_thread import Command, Done, T
from headrace.backends.sqlite.documents import SqliteDocuments
from headrace.backends.sqlite.entry import fetch
from headrace.backends.sqlite.events import SqliteEvents
from headrace.backends.sqlite.finishing import finish
from headrace.backends.sqlite.hints import SqliteHints
from headrace.backends.sqlite.journal import SqliteJournal
from headrace.backends.sqlite.parts import SqliteParts
from headrace.backends.sqlite.policies import SqlitePolicies
from headrace.backends.sqlite.reader import Reader
from headrace.backends.sqlite.references import SqliteReferences
from headrace.backends.sqlite.removals import SqliteRemovals
from headrace.backends.sqlite.schema import wal_is_safe
from headrace.backends.sqlite.stats import Count, usage_of
from headrace.backends.sqlite.tables import SqliteTables
from headrace.backends.sqlite.ticks import SqliteTicks
from headrace.backends.sqlite.tracks import SqliteTracks
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.backends.sqlite.transfers import SqliteTransfers
from headrace.backends.sqlite.writer import Writer
from headrace.errors import ConfigError, Unavailable
from headrace.seam import records as r
from headrace.seam.archive import Mark
from headrace.seam.protocol import Left
from headrace.seam.usage import Usage
from headrace.types import JobState

Durability = Literal["full", "normal"]


_SURVIVES = {
    "full": "what was acknowledged survives the process, the operating system and a power failure",
    "normal": "what was acknowledged survives the process; a power failure may take the last commits, never more",
}

_COSTS = Costs(row=15, key=16, inbox=8, group=30, tenant=30, queue=30, completed=12, settled=150, early=300)
_NAMED = 1_000
"""Queues that one transaction claims from."""


def _wall_clock() -> int:
    return time.time_ns() // 1_000


class SqliteBackend(lock_guard.Watched):
    """Jobs in one SQLite file, shared by any number of processes on one machine.

    Writes go through one thread, which commits everything that waits at once; reads go through another and never
    wait for writes. Beside the file lie ``-wal`` and ``-shm`` (SQLite's), ``-latch`` (the lock of the
    process that writes) and ``-wake`` (the sockets of listeners).

    ``durability="normal"`` leaves out the sync of each commit. When the volume is nearly full, new jobs are refused
    with ``StoreFull`` while the others go on; see :class:`~headrace.backends.sqlite.disk_space.DiskSpace`.
    """

    tx = None
    tidy = None
    reserve = None
    windows = None

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "full", now: Callable[[], int] = _wall_clock
    ) -> None:
        if durability not in _SURVIVES:
            raise ConfigError(f"durability must be one of {sorted(_SURVIVES)}, not {durability!r}")
        self._given = os.path.abspath(path)
        self.path = os.path.realpath(path)
        self._durability = durability
        self._now = now
        self._wal = wal_is_safe(apsw.sqlite_lib_version())
        self.limits = r.Limits(max_batch=2_000, durable=_SURVIVES[durability if self._wal else "full"])
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._hints: SqliteHints | None = SqliteHints(self.path) if hints.available else None
        self.events = SqliteEvents(self.path) if hints.available else None
        self._switching = asyncio.Lock()
        self.ticks = SqliteTicks(self._read, self._write)
        self.policies = SqlitePolicies(self._read, self._write, self.limits.count_cap)
        self.references = SqliteReferences(self._read, self._write)
        self.documents = SqliteDocuments(self._read, self._write)
        self.archive = Archive(self._ends, self.fetch, SqliteRemovals(self._read, self._write))
        self.tracks = SqliteTracks(self._read, self._write)
        self.transfers = SqliteTransfers(self._read, self._write)
        self.tables = SqliteTables(self._read, self._write)
        self.journal = SqliteJournal(self._read, self._write)
        self.parts = SqliteParts(self._read, self._write)
        self._portions = Portions(_COSTS)
        self._claim_parts = ClaimParts(_NAMED)
        self._forked = False

    @property
    def hints(self) -> SqliteHints | None:
        return self._hints

    def sibling(self) -> SqliteBackend:
        return type(self)(self.path, durability=self._durability, now=self._now)

    @property
    def blocking(self) -> Callable[[Left], SqliteBackend]:
        from headrace.backends.sqlite.blocking import BlockingSqlite

        def make(left: Left) -> SqliteBackend:
            other = BlockingSqlite(self.path, durability=self._durability, now=self._now)
            other.left = left
            return other

        return make

    # -- opening and closing

    async def open(self) -> None:
        async with self._switching:
            if self._writer is not None and not self._forked:
                return
            files.refuse_planted_link(self._given)
            writer = Writer(self.path, self._now, self._hints, wal=self._wal, durability=self._durability)
            await writer.start()
            reader = Reader(self.path, self._now)
            try:
                await reader.start()
            except BaseException:
                await writer.stop()
                raise
            self._writer, self._reader, self._forked = writer, reader, False
            lock_guard.watch(self)

    async def now(self, at: r.Stamp = None) -> int:
        return self._now() if at is None else at

    async def close(self) -> None:
        async with self._switching:
            writer, reader, self._writer, self._reader = self._writer, self._reader, None, None
            if writer is None or reader is None or self._forked:
                return
            await reader.stop()
            await writer.stop()
            self._fall_silent()

    def _fall_silent(self) -> None:
        """Hear and tell nothing more."""
        if self.events is not None:
            self.events.close()
        if self._hints is not None:
            self._hints.close()

    def abandon(self) -> None:
        """This is a forked child: nothing of this instance may be used here."""
        self._forked = True
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.abandon()
        if self._hints is not None:
            self._hints.abandon()

    def _not_open(self) -> Exception:
        if self._forked:
            return ConfigError(
                f"{self.path} was opened before this process was forked, and SQLite's locks do not survive that. Open "
                f"the store after the fork, or start processes with the spawn method."
            )
        return Unavailable(f"{self.path} is not open: await open() first, and close() last")

    def _write(
        self, work: Callable[[Transaction, int], T], at: r.Stamp, *,
        peek: Callable[[Session, int], T | None] | None = None, weight: int = 1, grows: bool = False,
        here: bool = False,
    ) -> Awaitable[T]:  # fmt: skip
        """``here``: on the caller's thread, if it is a matter of a moment."""
        if self._writer is None or self._forked:
            raise self._not_open()
        command: Command[Transaction] = Command(work, at, peek=peek, weight=weight, grows=grows)
        return Done(command) if here and self._writer.serve_here(command) else self._writer.submit(command)

    def _read(self, work: Callable[[Session, int], T], at: r.Stamp) -> Awaitable[T]:
        if self._reader is None or self._forked:
            raise self._not_open()
        return self._reader.submit(Command(work, at))

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        if not rows:
            return []
        if len(portions := self._portions.of_rows(rows)) > 1:
            return [answer for some in portions for answer in await self.insert(some, at)]
        return await self._write(
            lambda tx, now: insertion.insert(tx, rows, now, gate=True), at, weight=len(rows), grows=True,
            here=len(rows) == 1,
        )  # fmt: skip

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        return await self._claim_parts.claim(req, lambda some: self._claim(some, at))

    async def _claim(self, req: r.Claim, at: r.Stamp) -> r.Claimed:
        return await self._write(
            lambda tx, now: claiming.claim(tx, req, now),
            at,
            peek=lambda session, now: claiming.nothing_due(session, req, now),
            weight=req.limit,
        )

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        if not batch:
            return []
        if len(portions := self._portions.of_settlements(batch)) > 1:
            return [state for some in portions for state in await self.finish(some, at)]
        return await self._write(lambda tx, now: finish(tx, batch, now), at, weight=len(batch))

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        if not batch:
            return [], await self.claim(req, at)
        *first, last = self._portions.of_settlements(batch)
        if first:
            states = [state for some in first for state in await self.finish(some, at)]
            rest, claimed = await self.finish_and_claim(last, req, at)
            return states + rest, claimed
        part, *others = self._claim_parts.of(req)
        states, claimed = await self._write(
            lambda tx, now: (finish(tx, batch, now), claiming.claim(tx, part, now)),
            at,
            weight=len(batch) + req.limit,
        )
        return states, await self._claim_parts.go_on(claimed, others, lambda some: self._claim(some, at))

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        return await self._write(lambda tx, now: leases.renew(tx, beat, now), at, weight=1 + len(beat.leases))

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        async def reap(limit: int, _: list[r.Reaped]) -> list[r.Reaped]:
            some = replace(req, limit=limit)
            return await self._write(
                lambda tx, now: leases.reap(tx, some, now), at, peek=leases.nothing_over, weight=limit
            )

        return await step_by_step(req.limit, CHANGED_AT_ONCE, reap)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        if clause.dry_run:
            return await self._read(lambda session, now: sweeping.preview(session, clause, now), at)
        return await self._write(
            lambda tx, now: sweeping.sweep(tx, clause, now),
            at,
            peek=lambda session, now: sweeping.nothing_condemned(session, clause, now),
            weight=clause.limit,
        )

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        if sel.ids is None and sel.keys is None:
            return await alter_many(sel, change, self._now() if at is None else at, self._read, self._write)
        return [one for some in of_selection(sel, CHANGED_AT_ONCE) for one in await self._alter_named(some, change, at)]

    async def _alter_named(self, sel: r.Selector, change: r.Change, at: r.Stamp) -> list[r.Altered]:
        weight = len(sel.ids or ()) + len(sel.keys or ())
        return await self._write(lambda tx, now: alter_named(tx, sel, change, now), at, weight=weight)

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        if not names:
            return []
        return await self._read(lambda session, now: fetch(session, names, want, now), at)

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        return await self._read(lambda session, now: selection.scan(session, sel, after, limit, now), at)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        count = Count(queues, self.limits.count_cap)
        while await self._read(count.step, at):
            pass
        return count.stats()

    async def _ends(self, state: JobState, after: Mark | None, limit: int, at: r.Stamp) -> tuple[list[End], int]:
        return await self._read(lambda session, now: ends(session, state, after, limit, now), at)

    async def shrink(self) -> tuple[int, int]:
        """Give back to the volume what the file does not use: its size before and after. Others wait meanwhile."""
        return await asyncio.to_thread(shrinking.shrink, self.path)

    async def usage(self) -> Usage:
        return await self._read(lambda session, _: usage_of(session, self.path), None)
