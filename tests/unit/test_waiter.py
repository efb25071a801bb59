"""Waiting for jobs to end."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from headrace.api.waiter import Waiter
from headrace.backends.memory import MemoryBackend
from headrace.core.patience import Patience
from headrace.core.tasks import Tasks
from headrace.errors import Corrupt, JobNotFound, Unavailable, WaitTimeout
from headrace.seam.records import Cancel, Claim, Row, Selector, Settlement
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.loop import run
from headrace.types import JobState
from tests.facades.harness import Tapped

ID = b"\1" * 16


class World:
    def __init__(self, wrap: Any = lambda backend: backend) -> None:
        loop: Any = asyncio.get_running_loop()
        self.clock = SimClock(loop)
        self.memory = MemoryBackend(now=self.clock.now)
        self.tasks = Tasks()
        self.waiter = Waiter(wrap(self.memory), self.clock, Random(1), self.tasks, Patience(Random(1), 30))

    async def insert(self, job_id: bytes = ID, reply: bool = True) -> None:
        await self.waiter.prepare()
        await self.memory.insert([Row(job_id, "q", "t", {}, reply_to=self.waiter.inbox if reply else None)])

    async def finish(self, job_id: bytes = ID, state: JobState = JobState.COMPLETED) -> None:
        for job in (await self.memory.claim(Claim("h", ("q",), 100, 10**9))).jobs:
            if job.id == job_id:
                await self.memory.finish([Settlement(job_id, job.epoch, "h", state, result=b"r", result_ttl=10**12)])

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def simulate(main: Any, wrap: Any = lambda backend: backend) -> Any:
    async def begin() -> Any:
        world = World(wrap)
        try:
            async with asyncio.timeout(10_000):
                return await main(world)
        finally:
            await world.tasks.close()

    return run(begin())


def test_is_told_at_once() -> None:
    async def main(world: World) -> Any:
        await world.insert()
        waiting = asyncio.ensure_future(world.waiter.wait(ID, 60, watch=False))
        await asyncio.sleep(5)
        await world.finish()
        record = await waiting
        return record.state, record.result, world.now()

    state, result, when = simulate(main)
    assert (state, result) == (JobState.COMPLETED, b"r")
    assert when == pytest.approx(5, abs=0.001)


def test_watching_a_job_that_somebody_else_enqueued() -> None:
    async def main(world: World) -> float:
        await world.insert(reply=False)
        waiting = asyncio.ensure_future(world.waiter.wait(ID, 60, watch=True))
        await asyncio.sleep(5)
        await world.memory.alter(Selector(ids=[ID]), Cancel())
        assert (await waiting).state is JobState.CANCELLED
        return world.now()

    assert simulate(main) == pytest.approx(5, abs=0.001)


def test_a_job_that_has_ended_already() -> None:
    async def main(world: World) -> float:
        await world.insert(reply=False)
        await world.finish()
        assert (await world.waiter.wait(ID, 60, watch=True)).state is JobState.COMPLETED
        return world.now()

    assert simulate(main) < 0.001


def test_an_end_that_was_heard_of_before_anybody_waited() -> None:
    async def main(world: World) -> float:
        await world.insert()
        await world.finish()
        await asyncio.sleep(0.5)
        assert (await world.waiter.wait(ID, 60, watch=False)).state is JobState.COMPLETED
        return world.now()

    assert simulate(main) < 0.6


def test_a_job_that_is_not_there() -> None:
    async def main(world: World) -> float:
        with pytest.raises(JobNotFound):
            await world.waiter.wait(ID, 60, watch=True)
        return world.now()

    assert simulate(main) < 0.001


def test_a_timeout() -> None:
    async def main(world: World) -> float:
        await world.insert()
        with pytest.raises(WaitTimeout, match="no answer in 7 s"):
            await world.waiter.wait(ID, 7, watch=False)
        return world.now()

    assert simulate(main) == pytest.approx(7, abs=0.001)


def test_many_waits_on_one_job() -> None:
    """P13: whoever leaves first takes nothing with him."""

    async def main(world: World) -> list[Any]:
        await world.insert()
        waits = [asyncio.ensure_future(world.waiter.wait(ID, n, watch=False)) for n in (1, 100, 100)]
        cancelled = asyncio.ensure_future(world.waiter.wait(ID, 100, watch=False))
        await asyncio.sleep(5)
        cancelled.cancel()
        await asyncio.sleep(5)
        await world.finish()
        return await asyncio.gather(*waits, cancelled, return_exceptions=True)

    answers = simulate(main)
    assert isinstance(answers[0], WaitTimeout)
    assert [answer.state for answer in answers[1:3]] == [JobState.COMPLETED] * 2
    assert isinstance(answers[3], asyncio.CancelledError)


def test_nothing_is_left_of_a_wait() -> None:
    async def main(world: World) -> int:
        await world.insert()
        with pytest.raises(WaitTimeout):
            await world.waiter.wait(ID, 1, watch=False)
        return len(world.waiter._waits)

    assert simulate(main) == 0


class Mute(Tapped):
    """A store whose hints are all lost."""

    @property
    def hints(self) -> Any:
        return self

    def listen(self, topics: Any) -> Any:
        return self.inner.listen(["nothing"])


class Blind(Tapped):
    """A store that has no hints."""

    hints = None


@pytest.mark.parametrize(("wrap", "at_most"), [(Mute, 3.0), (Blind, 0.2)])
def test_a_lost_hint_costs_time_and_nothing_else(wrap: Any, at_most: float) -> None:
    """5.3-15."""

    async def main(world: World) -> float:
        await world.insert()
        waiting = asyncio.ensure_future(world.waiter.wait(ID, 60, watch=False))
        await asyncio.sleep(5)
        await world.finish()
        await waiting
        return world.now() - 5

    assert simulate(main, wrap) < at_most


def test_an_outage_in_the_middle() -> None:
    """5.3-8: of the store's answers and of its hints."""

    class Away(Tapped):
        async def fetch(self, names: Any, want: Any = frozenset(), at: Any = None) -> Any:
            if 3 < asyncio.get_running_loop().time() < 30:
                raise Unavailable("away")
            return await self.inner.fetch(names, want, at)

    async def main(world: World) -> Any:
        await world.insert()
        waiting = asyncio.ensure_future(world.waiter.wait(ID, 600, watch=False))
        await asyncio.sleep(10)
        await world.finish()
        record = await waiting
        return record.state, world.now()

    state, when = simulate(main, Away)
    assert state is JobState.COMPLETED
    assert 30 <= when <= 40


def test_a_bad_answer_does_not_end_the_looking() -> None:
    """One look that fails in an unexpected way does not leave all others without their net."""

    class Stumbling(Mute):
        stumbled = 0

        async def fetch(self, names: Any, want: Any = frozenset(), at: Any = None) -> Any:
            Stumbling.stumbled += 1
            if Stumbling.stumbled == 1:
                raise Corrupt("one bad page")
            return await self.inner.fetch(names, want, at)

    async def main(world: World) -> float:
        await world.insert()
        waiting = asyncio.ensure_future(world.waiter.wait(ID, 60, watch=False))
        await asyncio.sleep(5)
        await world.finish()
        await waiting
        return world.now()

    assert simulate(main, Stumbling) < 10


def test_a_store_that_cannot_be_listened_to_keeps_nobody_waiting_beyond_his_time() -> None:
    class Deaf(Tapped):
        @property
        def hints(self) -> Any:
            return self

        def listen(self, topics: Any) -> Any:
            raise Unavailable("no listening today")

    async def main(world: World) -> float:
        await world.memory.insert([Row(ID, "q", "t", {})])
        with pytest.raises(WaitTimeout):
            await world.waiter.wait(ID, 5, watch=True)
        return world.now()

    assert simulate(main, Deaf) == pytest.approx(5, abs=0.001)


def test_in_no_time_it_looks_once() -> None:
    async def main(world: World) -> Any:
        await world.insert(reply=False)
        with pytest.raises(WaitTimeout, match="has not ended yet"):
            await world.waiter.wait(ID, 0, watch=True)
        await world.finish()
        record = await world.waiter.wait(ID, 0, watch=True)
        with pytest.raises(JobNotFound):
            await world.waiter.wait(b"\2" * 16, 0, watch=True)
        return record.state, record.result, world.now()

    assert simulate(main) == (JobState.COMPLETED, b"r", 0.0)
