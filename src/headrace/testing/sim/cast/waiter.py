"""Waiters: enqueue a job and wait for its end, by hint and by looking, until a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from msgspec.structs import replace

from headrace.errors import Unavailable
from headrace.seam.records import Cancel, Hint, InsertStatus, JobId, Row, Selector, Watch
from headrace.testing.sim.cast.producer import Load, draw_row
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.history import Wait
from headrace.testing.sim.script import SECOND
from headrace.testing.sim.world import World, make_id
from headrace.types import JobState

Ended = tuple[JobState, bytes | None]
_RESULT = frozenset({"result"})


class Waiter:
    """One client process that calls and waits for the answer."""

    def __init__(self, world: World, name: str, load: Load, calls: int) -> None:
        self._world = world
        self._load = load
        self._calls = calls
        self._node = world.node(name)
        self._rng = world.rng(name)
        self._clock = SimClock(world.loop, node=self._node)
        self._backend = world.backend(self._node)
        self._inbox = f"inbox of {name}"
        self._arrivals: AsyncIterator[Hint] | None = None
        self.task = self._node.start(self._call_and_wait(), name)

    async def _call_and_wait(self) -> None:
        async with AsyncExitStack() as stack:
            await self.prepare(stack)
            for _ in range(self._calls):
                await asyncio.sleep(self._rng.uniform(0.1, 2.5))
                row = draw_row(self._rng, self._load, make_id(self._clock, self._rng))
                self._world.known.append(row.id)
                job_id = await self.ask(row)
                if job_id is not None:
                    await self._wait(job_id, self._rng.randint(SECOND, 8 * SECOND))

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Get ready to wait; ``stack`` is closed when all waiting is over."""
        if self._backend.hints is not None:
            self._arrivals = await stack.enter_async_context(self._backend.hints.listen([f"inbox:{self._inbox}"]))

    async def ask(self, row: Row) -> JobId | None:
        """The id of the job to wait for: a new one, or the one that holds its key already."""
        for _ in range(8):
            try:
                [answer] = await self._backend.insert([replace(row, reply_to=self._inbox)])
                if answer.status is InsertStatus.DUPLICATE and self._rng.random() < 0.5:
                    await self._backend.alter(Selector(ids=[answer.id]), Watch(self._inbox))
                return answer.id
            except Unavailable:
                await asyncio.sleep(self._rng.uniform(0.05, 0.6))
        return None

    async def await_end(self, job_id: JobId, timeout: int) -> Ended | None:
        """The job's end, or None when it did not come in time. Raises when the job has left no trace."""
        try:
            async with asyncio.timeout(timeout / 1e6):
                while (answer := await self._look(job_id)) is None:
                    await self._hear(job_id)
                return answer
        except TimeoutError:
            return None

    async def _wait(self, job_id: JobId, timeout: int) -> None:
        call = self._world.history.invoke(self._node.name, "wait", Wait(job_id, timeout))
        try:
            answer = await self.await_end(job_id, timeout)
        except LookupError as error:
            self._world.history.fail(call, error)
            return
        self._world.history.ok(call, answer)
        if answer is None and self._rng.random() < 0.3:
            await self._give_up(job_id)

    async def _hear(self, job_id: JobId) -> None:
        try:
            async with asyncio.timeout(1.5):
                if self._arrivals is None:
                    await asyncio.sleep(1.5)
                else:
                    while (await anext(self._arrivals)).id != job_id:
                        pass
        except TimeoutError:
            pass

    async def _look(self, job_id: JobId) -> Ended | None:
        try:
            [record] = await self._backend.fetch([job_id], _RESULT)
        except Unavailable:
            return None
        if record is None:
            raise LookupError("the job has left no record")
        return (record.state, record.result) if record.state.terminal else None

    async def _give_up(self, job_id: JobId) -> None:
        try:
            await self._backend.alter(Selector(ids=[job_id]), Cancel("nobody waits any more"))
        except Unavailable:
            pass
