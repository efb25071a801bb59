"""The PostgreSQL side: the plain store, and what it does for windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, NamedTuple, cast
from uuid import UUID

from psycopg.errors import UniqueViolation

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.arrays import bigints, integers, texts, uuids
from headrace.backends.postgres.hints import Notifier
from headrace.backends.streams.deliveries import Delivery, Known
from headrace.errors import BackendError
from headrace.seam import records as r
from headrace.types import JobState

_ID = attrgetter("id")
MOST_LOST = 1
"""Losses of a job that a window may hold. What has lost more workers may be what kills them, and is PostgreSQL's."""
STORED_AT: ContextVar[StoredAt | None] = ContextVar("stored_at", default=None)
"""Of the last insert of this task; None if it was more than one."""


class StoredAt(NamedTuple):
    """When an insert took place, by PostgreSQL's clock, and the floor at that moment."""

    now: int
    floor: int


class Charge(NamedTuple):
    """The floor that a Valkey in charge has, when it was last raised, and PostgreSQL's clock."""

    floor: int
    raised_at: int | None
    now: int


class Candidate(NamedTuple):
    """A job of a queue that a window may hold, unless it is odd."""

    id: r.JobId
    priority: int
    run_at: int
    odd: bool


class Candidates(NamedTuple):
    """What PostgreSQL has for a window."""

    line: list[Candidate]
    later: list[Candidate]
    odd: bool
    """Only PostgreSQL can give out the jobs of this queue."""
    next_at: int | None
    now: int


class QueueNotes(Notifier):
    """Hints about queues go through Valkey. PostgreSQL sends the others, and these too while Valkey is away."""

    def __init__(self, inner: Notifier, tell: Callable[[str], Awaitable[None]]) -> None:
        self._inner = inner
        self._tell = tell
        self._queues: dict[str, None] = {}
        self._telling: asyncio.Task[None] | None = None

    def send(self, topics: Iterable[tuple[str, r.JobId | None]]) -> None:
        others = []
        for topic, job_id in topics:
            if topic.startswith("queue:"):
                self.count(topic, 1)
            else:
                others.append((topic, job_id))
        if others:
            self._inner.send(others)

    def count(self, topic: str, jobs: int) -> None:
        self._queues[topic.removeprefix("queue:")] = None
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_all(), name="headrace-tell")

    def hush(self, found: Mapping[str, Iterable[str]], next_in: int | None) -> None:
        pass

    def take_back(self, queue: str) -> None:
        """The window was told already."""
        self._queues.pop(queue, None)

    async def flush(self) -> None:
        if self._telling is not None and self._telling.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._telling])
        await self._inner.flush()

    async def _tell_all(self) -> None:
        while self._queues:
            queue = next(iter(self._queues))
            del self._queues[queue]
            try:
                await self._tell(queue)
            except BackendError:
                self._inner.send([(f"queue:{queue}", None)])


class Truth(PostgresBackend):
    """The plain store. Its calls for windows are functions of the migration ``0024_streams``."""

    def sibling(self) -> Truth:
        return cast(Truth, super().sibling())

    def tell_by(self, tell: Callable[[str], Awaitable[None]]) -> QueueNotes:
        """Send hints about queues in this way."""
        self._notifier = notes = QueueNotes(self._notifier, tell)
        return notes

    async def _insert_one(self, row: r.Row, at: r.Stamp) -> bool:
        """Not by the shorter way, which does not tell when the row was stored."""
        return False

    async def _insert(self, at: r.Stamp, params: tuple[Any, ...]) -> list[Any]:
        try:
            found = await self._call("insert_now", at, *params)
        except BackendError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
            STORED_AT.set(None)
            return await self._call("insert", at, *params)
        STORED_AT.set(StoredAt(int(found[0][0]), found[0][1]))
        return [row[2:] for row in found if row[2] is not None]

    async def name_streams(self) -> str:
        """What the keys of this store in Valkey are named by."""
        [[name]] = await self._call("name_streams")
        return str(name)

    async def take_charge(self, server: str, floor: int, at: r.Stamp) -> Charge | None:
        """What a Valkey that has this floor, or 0, goes on with. If it has lost its memory, or has not been in charge,
        it takes over. None: another one is in charge."""
        [[verdict, seen, raised_at, now]] = await self._call("in_charge", at, server, floor)
        if verdict == "ours":
            return Charge(seen, raised_at, now)
        if verdict == "theirs":
            return None
        [[taker, floor, raised_at, now]] = await self._call("raise_floor", at, server, seen)
        return Charge(floor, raised_at, now) if taker == server else None

    async def watch(self, floor: int, at: r.Stamp) -> bool:
        """A Valkey with this floor is at work. False: it is not in charge."""
        [[good]] = await self._call("watch_streams", at, floor)
        return bool(good)

    async def workers_of(self, holders: Collection[str], at: r.Stamp) -> tuple[int, dict[str, str]]:
        """The clock, and the names of the workers that are listed, by holder."""
        found = await self._call("workers_of", at, texts(list(holders)))
        return int(found[0][2]), {holder: worker for holder, worker, _ in found}

    async def oldest_waiting(self, given: Mapping[str, Sequence[r.JobId]], at: r.Stamp) -> dict[str, int | None]:
        """For how long the oldest due job of each queue has been due, without these, which were given out. Queues of
        which none was given out are left out."""
        pairs = [(number, job_id) for number, ids in enumerate(given.values(), start=1) for job_id in ids]
        if not pairs:
            return {}
        numbers, ids = zip(*pairs, strict=True)
        found = await self._call("oldest_waiting", at, texts(list(given)), integers(list(numbers)), uuids(list(ids)))
        return dict(map(tuple, found))

    async def delayed(
        self, queues: Collection[str], horizon: int, cap: int, at: r.Stamp
    ) -> dict[str, tuple[int, int | None, int]]:
        """How many jobs of each queue are delayed, when the first is due, and how many are within the horizon."""
        found = await self._call("delayed", at, texts(list(queues)), horizon, cap)
        return {queue: tuple(numbers) for queue, *numbers in found}

    async def take_over(self, found: Sequence[Delivery], at: r.Stamp) -> set[r.JobId]:
        """Deliveries become leases of PostgreSQL, as far as they are good."""
        if not found:
            return set()
        return {row[0] for row in await self._go_on("take_over", at, max(one.floor for one in found), *_arrays(found))}

    async def shut_queue(self, floor: int, queue: str, found: Sequence[Delivery], at: r.Stamp) -> bool:
        """Claims take the jobs of this queue; deliveries become leases. False: another Valkey is in charge."""
        [[done]] = await self._go_on("shut_queue", at, floor, queue, *_arrays(found))
        return bool(done)

    async def open_queue(self, floor: int, queue: str, at: r.Stamp) -> bool:
        """A window gives out the jobs of this queue. False: it must not."""
        [[done]] = await self._call("open_queue", at, floor, queue)
        return bool(done)

    async def candidates(
        self,
        floor: int,
        queue: str,
        limit: int,
        mark: Candidate | None,
        horizon: int,
        most_bytes: int,
        at: r.Stamp,
    ) -> Candidates | None:
        """The next jobs of a queue, after a mark. None: another Valkey is in charge."""
        spot = (None, None, None) if mark is None else (mark.priority, mark.run_at, UUID(bytes=mark.id))
        found = await self._call("candidates", at, floor, queue, limit, *spot, horizon, most_bytes)
        if not found:
            return None
        last = found.pop()
        now = int(last[4])
        jobs = [Candidate(*row[:4]) for row in found]
        cut = next((i for i in range(1, len(jobs)) if _before(jobs[i], jobs[i - 1])), len(jobs))
        return Candidates(jobs[:cut], jobs[cut:], bool(last[3]), last[2], now)

    async def feed(self, ids: Sequence[r.JobId]) -> list[Any]:
        """These jobs, as far as they wait."""
        return await self._call("feed", uuids(list(ids))) if ids else []

    async def finish_given(self, batch: Sequence[r.Settlement], given: Known, at: r.Stamp) -> list[JobState | None]:
        """``finish``, where these are deliveries."""
        if not given.leases:
            return await self.finish(batch, at)
        if shapes.are_plain(batch):
            ordered = sorted(batch, key=_ID)
            named = given.floor, uuids([job_id for job_id, _, _ in given.leases])
            notices = shapes.notices(await self._call("complete_given", at, *shapes.complete_params(ordered), *named))
            self._tell(notices)
            return shapes.completed(batch, ordered, notices)
        if len(portions := self._portions.of_settlements(batch)) > 1:
            return [state for some in portions for state in await self.finish_given(some, given, at)]
        ids, epochs, holders = zip(*given.leases, strict=True)
        taken = given.floor, uuids(list(ids)), bigints(list(epochs)), texts(list(holders))
        notices = shapes.notices(await self._call("finish_given", at, *shapes.finish_params(batch), *taken))
        self._tell(notices, batch)
        return shapes.settled(batch, notices)


def _before(one: Candidate, other: Candidate) -> bool:
    return (one.priority, one.run_at, one.id) < (other.priority, other.run_at, other.id)


def _arrays(found: Sequence[Delivery]) -> tuple[Any, ...]:
    return (
        uuids([one.id for one in found]),
        bigints([one.epoch for one in found]),
        texts([one.holder for one in found]),
        bigints([one.left for one in found]),
    )
