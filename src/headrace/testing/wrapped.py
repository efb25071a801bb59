"""One store around another: every operation passes one place.

There it can be counted, timed, delayed, refused or sent through a bad network. The name of an operation is its path
from the backend, such as ``claim`` or ``ticks.due``.

>>> import asyncio
>>> from headrace.backends.memory import MemoryBackend
>>> class Timed(Wrapped):
...     async def _call(self, name, args, at, carry):
...         began = asyncio.get_running_loop().time()
...         try:
...             return await carry(at)
...         finally:
...             took[name] = asyncio.get_running_loop().time() - began
>>> took = {}
>>> async def main():
...     store = Timed(MemoryBackend())
...     await store.stats()
...     await store.policies.find()
>>> asyncio.run(main())
>>> list(took)
['stats', 'policies.find']
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headrace.seam import records as r
from headrace.seam.archive import WEIGHT, ArchiveStore, EndedPage, Mark, Removal
from headrace.seam.documents import Document, DocumentStore
from headrace.seam.events import Events
from headrace.seam.journal import Journal
from headrace.seam.parts import Part, PartStore
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import Backend, FinishAndClaim, Hints, PolicyStore, TickStore, Tidy, Transactions
from headrace.seam.references import ReferenceStore, Referrer, Swap
from headrace.seam.tables import TableStore
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome
from headrace.seam.tracks import Check, Erase, Sheets, Tally, TrackStore, Write
from headrace.seam.transfers import TransferStore
from headrace.seam.usage import KeepReserve, MeasureUsage
from headrace.seam.windows import WindowStore
from headrace.types import JobState

T = TypeVar("T")
Carry = Callable[[r.Stamp], Awaitable[T]]
"""Carries the operation out at an instant."""


class Wrapped:
    """Any backend. A subclass overrides ``_call``, and the capabilities that it wants to show in another way."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def _call(self, name: str, args: tuple[Any, ...], at: r.Stamp, carry: Carry[T]) -> T:
        """One operation, with its arguments but for ``at``. ``carry(at)`` is the operation of the inner store."""
        return await carry(at)

    @property
    def limits(self) -> r.Limits:
        return self.inner.limits

    @property
    def tx(self) -> Transactions | None:
        return self.inner.tx

    @property
    def ticks(self) -> TickStore | None:
        return None if self.inner.ticks is None else _WrappedTicks(self.inner.ticks, self._call)

    @property
    def policies(self) -> PolicyStore | None:
        return None if self.inner.policies is None else _WrappedPolicies(self.inner.policies, self._call)

    @property
    def references(self) -> ReferenceStore | None:
        return None if self.inner.references is None else _WrappedReferences(self.inner.references, self._call)

    @property
    def documents(self) -> DocumentStore | None:
        return None if self.inner.documents is None else _WrappedDocuments(self.inner.documents, self._call)

    @property
    def archive(self) -> ArchiveStore | None:
        return None if self.inner.archive is None else _WrappedArchive(self.inner.archive, self._call)

    @property
    def tracks(self) -> TrackStore | None:
        return None if self.inner.tracks is None else _WrappedTracks(self.inner.tracks, self._call)

    @property
    def windows(self) -> WindowStore | None:
        return self.inner.windows

    @property
    def transfers(self) -> TransferStore | None:
        return self.inner.transfers

    @property
    def tables(self) -> TableStore | None:
        return self.inner.tables

    @property
    def parts(self) -> PartStore | None:
        return None if self.inner.parts is None else _WrappedParts(self.inner.parts, self._call)

    @property
    def journal(self) -> Journal | None:
        return self.inner.journal

    @property
    def events(self) -> Events | None:
        return self.inner.events

    @property
    def hints(self) -> Hints | None:
        return self.inner.hints

    @property
    def finish_and_claim(self) -> FinishAndClaim | None:
        return None if self.inner.finish_and_claim is None else self._finish_and_claim

    @property
    def tidy(self) -> Tidy | None:
        return None if self.inner.tidy is None else self._tidy

    @property
    def usage(self) -> MeasureUsage | None:
        return self.inner.usage

    @property
    def reserve(self) -> KeepReserve | None:
        return self.inner.reserve

    @property
    def blocking(self) -> None:
        """Calls of another backend would pass by the wrapping."""

    def sibling(self) -> Backend:
        """A sibling of the inner store, not wrapped: a subclass knows what it takes to wrap it."""
        return self.inner.sibling()

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def now(self, at: r.Stamp = None) -> int:
        return await self._call("now", (), at, self.inner.now)

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        rows = tuple(rows)
        return await self._call("insert", (rows,), at, lambda now: self.inner.insert(rows, now))

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        return await self._call("claim", (req,), at, lambda now: self.inner.claim(req, now))

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        batch = tuple(batch)
        return await self._call("finish", (batch,), at, lambda now: self.inner.finish(batch, now))

    async def _finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        batch, both = tuple(batch), self.inner.finish_and_claim
        assert both is not None
        return await self._call("finish_and_claim", (batch, req), at, lambda now: both(batch, req, now))

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        return await self._call("renew", (beat,), at, lambda now: self.inner.renew(beat, now))

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        return await self._call("reap", (req,), at, lambda now: self.inner.reap(req, now))

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await self._call("alter", (sel, change), at, lambda now: self.inner.alter(sel, change, now))

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        names = tuple(names)
        return await self._call("fetch", (names, want), at, lambda now: self.inner.fetch(names, want, now))

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        return await self._call("scan", (sel, after, limit), at, lambda now: self.inner.scan(sel, after, limit, now))

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        args = () if queues is None else (queues,)
        return await self._call("stats", args, at, lambda now: self.inner.stats(now, queues=queues))

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        return await self._call("sweep", (clause,), at, lambda now: self.inner.sweep(clause, now))

    async def _tidy(self, clauses: Sequence[r.SweepClause], at: r.Stamp = None) -> Mapping[r.SweepTarget, int]:
        clauses, tidy = tuple(clauses), self.inner.tidy
        assert tidy is not None
        return await self._call("tidy", (clauses,), at, lambda now: tidy(clauses, now))


class _Call(Protocol):
    async def __call__(self, name: str, args: tuple[Any, ...], at: r.Stamp, carry: Carry[T], /) -> T: ...


class _WrappedTicks:
    def __init__(self, inner: TickStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, batch: Sequence[Save | Drop], at: r.Stamp = None) -> list[bool]:
        batch = tuple(batch)
        return await self._call("ticks.save", (batch,), at, lambda now: self._inner.save(batch, now))

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        args = (sel, after, limit)
        return await self._call("ticks.find", args, None, lambda now: self._inner.find(*args))

    async def due(self, req: Look, at: r.Stamp = None) -> Looked:
        return await self._call("ticks.due", (req,), at, lambda now: self._inner.due(req, now))

    async def plan(self, batch: Sequence[Plan], at: r.Stamp = None) -> list[list[TickOutcome | None] | None]:
        batch = tuple(batch)
        return await self._call("ticks.plan", (batch,), at, lambda now: self._inner.plan(batch, now))

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        args = (uid, before, limit)
        return await self._call("ticks.history", args, None, lambda now: self._inner.history(*args))

    async def note(self, batch: Sequence[TickNote], at: r.Stamp = None) -> None:
        batch = tuple(batch)
        await self._call("ticks.note", (batch,), at, lambda now: self._inner.note(batch, now))


class _WrappedPolicies:
    def __init__(self, inner: PolicyStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, policy: Policy, at: r.Stamp = None) -> bool:
        return await self._call("policies.save", (policy,), at, lambda now: self._inner.save(policy, now))

    async def limit(self, limit: TenantLimit, at: r.Stamp = None) -> None:
        await self._call("policies.limit", (limit,), at, lambda now: self._inner.limit(limit, now))

    async def pause(self, pause: QueuePause, at: r.Stamp = None) -> None:
        await self._call("policies.pause", (pause,), at, lambda now: self._inner.pause(pause, now))

    async def find(self, queues: r.Names = None, at: r.Stamp = None) -> list[PolicyState]:
        names = None if queues is None else tuple(queues)
        return await self._call("policies.find", (names,), at, lambda now: self._inner.find(names, now))

    async def tenants(
        self, queue: str, names: r.Names = None, after: str | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[TenantState]:
        args = (queue, None if names is None else tuple(names), after, limit)
        return await self._call("policies.tenants", args, at, lambda now: self._inner.tenants(*args, now))

    async def group(self, queue: str, group: str) -> GroupState:
        args = (queue, group)
        return await self._call("policies.group", args, None, lambda now: self._inner.group(*args))


class _WrappedReferences:
    def __init__(self, inner: ReferenceStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def find(
        self, before: int, after: tuple[int, r.JobId] | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[Referrer]:
        args = (before, after, limit)
        return await self._call("references.find", args, at, lambda now: self._inner.find(*args, now))

    async def swap(self, batch: Sequence[Swap], at: r.Stamp = None) -> list[bool]:
        batch = tuple(batch)
        return await self._call("references.swap", (batch,), at, lambda now: self._inner.swap(batch, now))


class _WrappedDocuments:
    def __init__(self, inner: DocumentStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        names = tuple(names)
        return await self._call("documents.get", (names,), None, lambda _: self._inner.get(names))

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        args = (name, body, version)
        return await self._call("documents.put", args, None, lambda _: self._inner.put(*args))

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        args = (prefix, after, limit)
        return await self._call("documents.find", args, None, lambda _: self._inner.find(*args))


class _WrappedArchive:
    def __init__(self, inner: ArchiveStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def ended(
        self,
        state: JobState,
        after: Mark | None = None,
        limit: int = 100,
        want: frozenset[str] = frozenset(),
        max_bytes: int = WEIGHT,
        at: r.Stamp = None,
    ) -> EndedPage:
        args = (state, after, limit, want, max_bytes)
        return await self._call("archive.ended", args, at, lambda now: self._inner.ended(*args, now))

    async def removals(self, after: int = -1) -> list[Removal]:
        return await self._call("archive.removals", (after,), None, lambda _: self._inner.removals(after))

    async def forget_removals(self, most: int, limit: int = 1_000) -> int:
        args = (most, limit)
        return await self._call("archive.forget_removals", args, None, lambda _: self._inner.forget_removals(*args))


class _WrappedTracks:
    def __init__(self, inner: TrackStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: r.Stamp = None) -> Sheets:
        args = (tracker, tuple(points))
        return await self._call("tracks.read", args, at, lambda now: self._inner.read(*args, now))

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: r.Stamp = None) -> Sheets:
        args = (tracker, tier, start, limit)
        return await self._call("tracks.walk", args, at, lambda now: self._inner.walk(*args, now))

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: r.Stamp = None) -> bool:
        args = (tracker, tuple(batch))
        return await self._call("tracks.write", args, at, lambda now: self._inner.write(*args, now))

    async def due(self, tracker: str, limit: int, hold: int, at: r.Stamp = None) -> Sheets:
        args = (tracker, limit, hold)
        return await self._call("tracks.due", args, at, lambda now: self._inner.due(*args, now))

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        return await self._call("tracks.tally", (tracker,), None, lambda _: self._inner.tally(tracker))


class _WrappedParts:
    def __init__(self, inner: PartStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def send(self, batch: Sequence[Part], at: r.Stamp = None) -> None:
        batch = tuple(batch)
        await self._call("parts.send", (batch,), at, lambda now: self._inner.send(batch, now))

    async def read(self, job_id: r.JobId, after: tuple[int, int], limit: int = 100, at: r.Stamp = None) -> list[Part]:
        args = (job_id, after, limit)
        return await self._call("parts.read", args, at, lambda now: self._inner.read(*args, now))
