"""What happens to jobs that a queue has no room for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from uuid import UUID

from msgspec.structs import replace

from headrace.core.backoff import Backoff
from headrace.errors import QueueFull
from headrace.limits.fullness import Fullness
from headrace.seam.records import Inserted, InsertStatus, Room, Row
from headrace.types import NewJob

Send = Callable[[list[Row]], Awaitable[Sequence[Inserted]]]


class Admission:
    """Jobs on their way through the gate. A refused job may overflow to another queue, wait, or be given up."""

    def __init__(self, jobs: Sequence[NewJob], rows: Sequence[Row], answers: Sequence[Inserted]) -> None:
        self._jobs = jobs
        self._home = rows
        self.rows = list(rows)
        """As they were last sent."""
        self.answers = list(answers)
        self.under_way = False
        """Whether some have been sent again and not been answered yet."""
        self._rooms: dict[str, Room | None] = {}
        """By queue: what the store last said about it."""
        self._learn(self.rows, answers)

    @property
    def refused(self) -> list[int]:
        """The positions of jobs that are not stored."""
        return [i for i, answer in enumerate(self.answers) if answer.status is InsertStatus.FULL]

    @property
    def full(self) -> list[str]:
        """The queues that have no room for them: their own, and those they overflow to."""
        jobs = [self._jobs[i] for i in self.refused]
        names = [name for job in jobs for name in (job.queue, job.overflow) if name is not None]
        return list(dict.fromkeys(names))

    def waiting(self) -> list[int]:
        """The positions of refused jobs that wait for room; their rows go to their own queues again."""
        found = [i for i in self.refused if self._jobs[i].when_full == "block"]
        for i in found:
            self.rows[i] = self._home[i]
        return found

    def detour(self) -> list[int]:
        """The positions of refused jobs that another queue may take; their rows go there now."""
        found = [i for i in self.refused if self._jobs[i].overflow is not None]
        for i in found:
            self.rows[i] = replace(self.rows[i], queue=self._jobs[i].overflow or "")
        return found

    def take(self, places: Sequence[int], answers: Sequence[Inserted]) -> bool:
        """Take the answers to rows that were sent again; returns whether any was stored."""
        for i, answer in zip(places, answers, strict=True):
            self.answers[i] = answer
        self._learn([self.rows[i] for i in places], answers)
        return any(answer.status is not InsertStatus.FULL for answer in answers)

    def _learn(self, rows: Sequence[Row], answers: Sequence[Inserted]) -> None:
        for row, answer in zip(rows, answers, strict=True):
            if answer.status is InsertStatus.FULL:
                self._rooms[row.queue] = answer.room

    def error(self, before: Sequence[Row] = (), after: Sequence[Row] = (), why: str = "") -> QueueFull:
        """The error that lists which jobs are stored: some of these, all ``before`` them, and none ``after`` them.
        ``why``: the reason why nobody waits for room any more, if there is another one."""
        places = self.refused
        fullness = Fullness({room.queue: room for name in self.full if (room := self._rooms.get(name))})
        first = self._jobs[places[0]]
        refused = [*(self._home[i] for i in places), *after]
        admitted = [*before, *(row for i, row in enumerate(self._home) if i not in places)]
        total = len(admitted) + len(refused)
        which = f"{len(refused)} of {total} jobs were" if total > 1 else "the job was"
        pairs = list(dict.fromkeys((self._jobs[i].queue, self._jobs[i].overflow) for i in places))
        return QueueFull(
            f"{which} not stored: {fullness.describe(pairs)}. " + (why or _advice(first, fullness)),
            queue=first.queue,
            full=fullness.full(self.full),
            admitted=[UUID(bytes=row.id) for row in admitted],
            refused=[UUID(bytes=row.id) for row in refused],
        )


def _advice(job: NewJob, fullness: Fullness) -> str:
    """What the user could do, except for what the job asks for already."""
    wishes = [] if job.when_full == "block" else ["when_full='block'"]
    wishes += [] if job.overflow is not None or fullness.store_full else ["overflow=…"]
    said = f", enqueue with {' or '.join(wishes)}" if wishes else ""
    return f"Try again later{said}, start workers, or raise {'the budget' if fullness.by_bytes else 'the depth'}"


class Gate:
    """Sends refused jobs again, as each of them asks."""

    def __init__(self, send: Send, rng: Random, patience: float, closed: asyncio.Event) -> None:
        self._send = send
        self._rng = rng
        self._patience = patience
        self._closed = closed

    async def pass_through(self, admission: Admission) -> str:
        """Overflow first; then wait, as long as room is made at least every ``patience`` seconds and the client stays
        open. Returns why nobody waits for the rest any more; empty: for lack of room."""
        await self._send_again(admission, admission.detour())
        loop = asyncio.get_running_loop()
        backoff, deadline = Backoff(self._rng), loop.time() + self._patience
        while (places := admission.waiting()) and loop.time() < deadline:
            if await self._closing(min(backoff.pause(), max(0.0, deadline - loop.time()))):
                return "The client was closed while the enqueue waited for room"
            stored = await self._send_again(admission, places)
            if await self._send_again(admission, admission.detour()) or stored:
                backoff, deadline = Backoff(self._rng), loop.time() + self._patience
        return ""

    async def _closing(self, seconds: float) -> bool:
        """Whether the client is closed within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    async def _send_again(self, admission: Admission, places: list[int]) -> bool:
        if not places:
            return False
        admission.under_way = True
        answers = await self._send([admission.rows[i] for i in places])
        admission.under_way = False
        return admission.take(places, answers)
