"""Who is woken on Valkey: one who can work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.seam.protocol import Hints
from headrace.seam.records import Claim, Hint
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from tests.valkey import server, stores

SIGNALS = "headrace{jobs}:g:q"


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[RedisBackend, RedisBackend]]:
    """Two processes' backends on one store."""
    one = stores.connect(tmp_path)
    other = one.sibling()
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


def hints_of(store: RedisBackend) -> Hints:
    assert store.hints is not None
    return store.hints


def claim(holder: str, limit: int = 1) -> Claim:
    return Claim(holder, ("q",), limit, LEASE)


async def blocked(count: int) -> None:
    """So many wait for signals."""
    async with asyncio.timeout(60):
        while int(server().info("clients")["blocked_clients"]) != count:
            await asyncio.sleep(0.002)


async def test_a_signal_is_for_those_who_have_room(pair: tuple[RedisBackend, RedisBackend]) -> None:
    busy, idle = pair
    await busy.insert([row(1)], T0)
    assert (await busy.claim(claim("busy"), T0)).jobs
    async with hints_of(busy).listen(["queue:q"]) as at_work, hints_of(idle).listen(["queue:q"]) as waiting:
        listening = asyncio.ensure_future(anext(at_work))
        await asyncio.sleep(0)
        heard = asyncio.ensure_future(anext(waiting))
        await blocked(1)
        for number in range(2, 6):
            await busy.insert([row(number)], T0)
            assert await asyncio.wait_for(heard, 60) == Hint("queue:q")
            [job] = (await idle.claim(claim("idle", 2), T0)).jobs
            assert job.id == job_id(number)
            heard = asyncio.ensure_future(anext(waiting))
        assert not listening.done()
        for task in (listening, heard):
            task.cancel()
        await asyncio.gather(listening, heard, return_exceptions=True)


async def test_a_signal_that_comes_to_one_who_has_enough_is_passed_on(pair: tuple[RedisBackend, RedisBackend]) -> None:
    busy, idle = pair
    async with hints_of(busy).listen(["queue:q"]) as at_work:
        listening = asyncio.ensure_future(anext(at_work))
        await blocked(1)
        await idle.insert([row(1), row(2)], T0)
        assert await listening == Hint("queue:q")
        listening = asyncio.ensure_future(anext(at_work))
        await busy.insert([row(3)], T0)
        assert len((await busy.claim(claim("busy"), T0)).jobs) == 1
        async with asyncio.timeout(60):
            while server().call("LLEN", SIGNALS) == 0:
                await asyncio.sleep(0.002)
        assert 0 < server().call("TTL", SIGNALS) <= 60
        async with hints_of(idle).listen(["queue:q"]) as waiting:
            assert await asyncio.wait_for(anext(waiting), 60) == Hint("queue:q")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_who_settles_without_claiming_has_room_again(pair: tuple[RedisBackend, RedisBackend]) -> None:
    one, other = pair
    await one.insert([row(1)], T0)
    [job] = (await one.claim(claim("w1"), T0)).jobs
    async with hints_of(one).listen(["queue:q"]) as hints:
        heard = asyncio.ensure_future(anext(hints))
        await one.finish([settle(job)], T0)
        await other.insert([row(2)], T0)
        assert await asyncio.wait_for(heard, 60) == Hint("queue:q")


async def test_several_are_told_of_a_job_that_is_due_later(pair: tuple[RedisBackend, RedisBackend]) -> None:
    one, other = pair
    async with hints_of(one).listen(["queue:q"]) as first, hints_of(other).listen(["queue:q"]) as second:
        heard = [asyncio.ensure_future(anext(first)), asyncio.ensure_future(anext(second))]
        await blocked(2)
        await one.insert([row(1, delay=SECOND)], T0)
        assert await asyncio.wait_for(asyncio.gather(*heard), 60) == [Hint("queue:q")] * 2


async def test_a_claim_that_is_cut_by_bytes_wakes_another(pair: tuple[RedisBackend, RedisBackend]) -> None:
    one, other = pair
    await one.insert([row(n, cells={"parameters": b"x" * 1_000}) for n in range(4)], T0)
    server().call("DEL", SIGNALS)
    assert len((await one.claim(Claim("w1", ("q",), 4, LEASE, max_bytes=1), T0)).jobs) == 1
    async with hints_of(other).listen(["queue:q"]) as hints:
        assert await asyncio.wait_for(anext(hints), 60) == Hint("queue:q")


async def test_a_waiter_that_is_cancelled_leaves_the_signal_to_others(
    pair: tuple[RedisBackend, RedisBackend],
) -> None:
    one, other = pair

    async def wait() -> None:
        async with hints_of(one).listen(["queue:q"]) as hints:
            await anext(hints)
            await asyncio.Event().wait()

    for number in range(20):
        waiting = asyncio.ensure_future(wait())
        await blocked(1)
        inserting = asyncio.ensure_future(other.insert([row(number)], T0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, inserting, return_exceptions=True)
        await blocked(0)
        assert server().call("LLEN", SIGNALS) == 1, number
        server().call("DEL", SIGNALS)
