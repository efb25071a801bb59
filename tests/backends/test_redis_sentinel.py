"""Valkey behind sentinels: the primary is found, and found again when it is another."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from servers.process import free_ports
from servers.sentinel import Sentinel

from headrace import App, EventKind, JobState
from headrace.errors import ConfigError, Unavailable
from headrace.testing.conformance.base import T0, row
from tests.valkey import every_operation, opened
from tests.worker.conftest import FAST, Told, working

FOLLOWED = 60.0
"""Seconds within which a worker uses the new primary, the time that the sentinels take included."""


@pytest.fixture(scope="module")
def steady() -> Iterator[Sentinel]:
    """Servers that stay what they are."""
    servers = Sentinel(down_after=30_000)
    yield servers
    servers.close()


@pytest.fixture
def watched() -> Iterator[Sentinel]:
    servers = Sentinel(down_after=1_500)
    yield servers
    servers.close()


async def until(seconds: float, done: Callable[[], Any]) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.02)


async def test_every_operation(steady: Sentinel) -> None:
    async with opened(steady.url()) as store:
        await every_operation(store)
        assert steady.primary.call("DBSIZE") > 0


async def test_a_name_that_the_sentinels_do_not_know(steady: Sentinel) -> None:
    with pytest.raises(ConfigError, match=r"the sentinels know no primary 'others': check master in the URL"):
        async with opened(steady.url().replace("master=jobs", "master=others")):
            pass


async def test_sentinels_that_are_away_are_passed_over(steady: Sentinel) -> None:
    [nobody] = free_ports(1)
    async with opened(steady.url().replace("://", f"://127.0.0.1:{nobody},")) as store:
        await store.stats(T0)


async def test_all_sentinels_away() -> None:
    ports = free_ports(2)
    with pytest.raises(Unavailable, match=str(ports[0])):
        async with opened(f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/0?master=jobs"):
            pass


async def test_a_server_that_is_no_sentinel_is_told(steady: Sentinel) -> None:
    """A mistake that is soon made: the servers' own addresses in the place of the sentinels'."""
    where = f"redis+sentinel://127.0.0.1:{steady.primary.port}/0?master=jobs"
    with pytest.raises(
        ConfigError, match=rf"127.0.0.1:{steady.primary.port} is not a sentinel: its URL begins with redis://"
    ):
        async with opened(where):
            pass


@pytest.mark.parametrize("database", ["", "/3"])
async def test_a_sentinel_in_the_place_of_a_server_is_told(steady: Sentinel, database: str) -> None:
    """The other way round; nothing of what was asked of it is shown."""
    with pytest.raises(
        ConfigError, match=r"sentinel.*its URL begins with redis\+sentinel:// and has \?master=NAME"
    ) as told:
        async with opened(f"redis://127.0.0.1:{steady.sentinels[0].port}{database}"):
            pass
    assert "args" not in str(told.value)
    assert "local " not in str(told.value)


async def test_passwords_of_the_servers_and_of_the_sentinels() -> None:
    servers = Sentinel(None, {}, down_after=30_000)
    try:
        servers.primary.call("ACL", "SETUSER", "ada", "on", ">one:hunter2", "~*", "&*", "+@all")
        servers.sentinels[0].call("ACL", "SETUSER", "eve", "on", ">two:hunter2", "+@all", "&*")
        servers.sentinels[0].call("ACL", "SETUSER", "default", "resetpass", ">three:hunter2")
        where = servers.url().replace("://", "://ada:one%3Ahunter2@")
        async with opened(where + "&sentinel_user=eve&sentinel_password=two%3Ahunter2") as store:
            await store.stats(T0)
        async with opened(where + "&sentinel_password=three%3Ahunter2") as store:
            await store.stats(T0)
        sentinel = f"the sentinel 127.0.0.1:{servers.sentinels[0].port} refuses this user"
        for wrong, said in (("", "NOAUTH"), ("&sentinel_password=wrong", "WRONGPASS")):
            with pytest.raises(ConfigError, match=rf"{sentinel}: {said} .*Give sentinel_password in the URL") as told:
                async with opened(where + wrong):
                    pass
            assert "hunter2" not in "".join(traceback.format_exception(told.value))
            assert ".." not in str(told.value)
        with pytest.raises(ConfigError, match=r"0 refuses this user: WRONGPASS .*Check the user and password"):
            async with opened(servers.url().replace("://", "://ada:wrong@") + "&sentinel_password=three%3Ahunter2"):
                pass
    finally:
        servers.close()


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "asked to"])
async def test_a_failover_is_followed(watched: Sentinel, *, kill: bool) -> None:
    """By the same backend; where the old primary lives on as a replica, that is noticed by its first refusal."""
    async with opened(watched.url()) as store:
        await store.insert([row(1)], T0)
        await asyncio.to_thread(watched.catch_up)
        await asyncio.to_thread(watched.failover, kill=kill)

        async def answers() -> bool:
            with suppress(Unavailable):
                return bool(await store.insert([row(2)], T0))
            return False

        async with asyncio.timeout(FOLLOWED):
            while not await answers():
                await asyncio.sleep(0.02)
        assert [record is not None for record in await store.fetch([row(1).id, row(2).id], at=T0)] == [True, True]


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "asked to"])
async def test_workers_and_producers_follow_a_failover(watched: Sentinel, *, kill: bool) -> None:
    """What was acknowledged while the replica was in step is done; no attempt and no loss is counted."""
    app = App(watched.url(), worker=FAST | {"name": "random", "lease": "3s", "max_lost": 5}, patience="300ms")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work(number: int) -> int:
        return number

    acknowledged: list[bytes] = []
    kept = 0

    async def produce() -> None:
        while True:
            with suppress(Unavailable):
                acknowledged.extend(answer.id for answer in await app.client.insert(work.job(n) for n in range(3)))
            await asyncio.sleep(0.002)

    def completed() -> int:
        return told.kinds().count(EventKind.COMPLETED)

    async with working(app):
        producer = asyncio.ensure_future(produce())
        await until(60, lambda: completed() > 30)
        producer.cancel()
        await asyncio.wait([producer])
        await until(60, lambda: completed() >= len(acknowledged))
        kept = len(acknowledged)
        await asyncio.to_thread(watched.catch_up)
        producer = asyncio.ensure_future(produce())
        await asyncio.to_thread(watched.failover, kill=kill)
        before = completed()
        await until(FOLLOWED, lambda: completed() > before + 30)
        producer.cancel()
        await asyncio.wait([producer])
        backend = await app.client.backend()

        async def drained() -> bool:
            [queue] = (await backend.stats()).queues
            return queue.available + queue.running == 0

        async with asyncio.timeout(60):
            while not await drained():
                await asyncio.sleep(0.05)
        records = await backend.fetch(acknowledged[:kept][-1_000:])
        later = [record for record in await backend.fetch(acknowledged[kept:][-1_000:]) if record]
    assert [record.state for record in records if record] == [JobState.COMPLETED] * len(records)
    assert {record.state for record in later} <= {JobState.COMPLETED}
    assert {record.attempt for record in (*later, *records) if record} == {0}
