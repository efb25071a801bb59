"""Many producers on one PostgreSQL: commits of transactions that store a job, with and without somebody who listens,
and batches of jobs of groups, from one producer and from many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psycopg

from benchmarks.fleet import Servers
from benchmarks.machine import Load
from benchmarks.studies.flat_crowds import BUSY, Crowd
from benchmarks.studies.stores import Fresh, fresh
from headrace import App
from headrace.seam.records import Row

CALLERS = 32
LISTENERS = 8
PRODUCERS = (1, 4, 16)
RATIO = 0.7
"""What commits with listeners must at least reach of those without; and many producers, of what one does."""
_QUEUE = "crowd"
_BATCH = 100


def compared(servers: Servers, seconds: float, place: Path | None = None) -> list[Crowd]:
    """Both, each for so many seconds."""
    with fresh("postgres", servers, place, "counting") as at:
        load = Load.now(at.cpu())
        alone, heard = asyncio.run(_bound(at, seconds))
        groups = asyncio.run(_groups(at, seconds))
        foreign = Load.now(at.cpu()).foreign_since(load)
    crowds = [_crowd(f"{CALLERS} transactions, {LISTENERS} listen", "commits/s", alone, heard, foreign)]
    one = groups[0]
    for number, rate in zip(PRODUCERS[1:], groups[1:], strict=True):
        crowds.append(_crowd(f"{number} producers of groups", "jobs/s", one, rate, foreign))
    return crowds


def _crowd(name: str, unit: str, before: float, after: float, foreign: float) -> Crowd:
    flat = after >= RATIO * before
    note = "NOT FLAT, or noise: others were busy" if foreign > BUSY and not flat else ""
    return Crowd(name, unit, before, after, flat, note)


async def _bound(at: Fresh, seconds: float) -> tuple[float, float]:
    """Commits a second: while nobody listens, and while some do."""
    async with AsyncExitStack() as stack:
        app = App(at.url)

        @app.task(name="nothing", queue=_QUEUE)
        async def nothing() -> None: ...

        async with app:  # makes the schema, and listens no longer than that
            await app.enqueue_named("nothing", {})
        callers = [await psycopg.AsyncConnection.connect(at.url) for _ in range(CALLERS)]
        for caller in callers:
            stack.push_async_callback(caller.close)

        async def commit(caller: psycopg.AsyncConnection, until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                await app.bind(caller).enqueue(nothing)
                await caller.commit()
                done += 1
            return done

        async def rate() -> float:
            began = time.perf_counter()
            done = await asyncio.gather(*(commit(caller, began + seconds) for caller in callers))
            return sum(done) / (time.perf_counter() - began)

        alone = await rate()
        async with _listening(at.url):
            heard = await rate()
        return alone, heard


@asynccontextmanager
async def _listening(url: str) -> AsyncIterator[None]:
    """Some listen to the queue."""

    async def listen(app: App, ready: asyncio.Event) -> None:
        store = await app.client.backend()
        assert store.hints is not None
        async with store.hints.listen([f"queue:{_QUEUE}"]) as hints:
            ready.set()
            async for _ in hints:
                pass

    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(App(url)) for _ in range(LISTENERS)]
        signs = [asyncio.Event() for _ in apps]
        tasks = [asyncio.ensure_future(listen(app, sign)) for app, sign in zip(apps, signs, strict=True)]
        try:
            await asyncio.wait_for(asyncio.gather(*(sign.wait() for sign in signs)), 60)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _groups(at: Fresh, seconds: float) -> Sequence[float]:
    """Jobs a second in batches whose groups all producers share: of one producer, and of many at once."""
    rates = []
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(App(at.url)) for _ in range(max(PRODUCERS))]
        stores = [await app.client.backend() for app in apps]
        new_id = apps[0].client.packer.new_id

        async def produce(number: int, until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                names = [f"g{(done + n) % 1_000}" for n in range(_BATCH)]
                await stores[number].insert([Row(new_id(), "groups", "nothing", {}, group=name) for name in names])
                done += _BATCH
            return done

        for producers in PRODUCERS:
            began = time.perf_counter()
            done = await asyncio.gather(*(produce(number, began + seconds) for number in range(producers)))
            rates.append(sum(done) / (time.perf_counter() - began))
    return rates
