"""A lock holds up PostgreSQL, and callers give up and call again, on a loop and in threads: they do not use up the
server's connections."""

from __future__ import annotations

import asyncio
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psycopg

from chaos.fleet import Fleet
from chaos.jobs import until_done
from chaos.outcome import Outcome
from chaos.stores import postgres
from chaos.table_locks import lock
from chaos.worker import make_app
from headrace import App, SyncApp, Task
from headrace.errors import Unavailable

PLACES = 4
"""Connections that a client keeps at most."""
MOST = PLACES + 2
"""Of a client whose callers are on a loop."""
MOST_OF_THREADS = 2 * PLACES + 1
"""Of one whose threads enqueue, counted apart. As docs/howto/postgres.md says: four go straight to the store, a loop
with four serves the others, and hints have one."""
MOST_OF_WORKER = PLACES + 3
"""A worker has one more for hints, and its heartbeat has some of its own."""
_TABLES = ("jobs", "ready", "leased", "workers")
_COUNT = """
    SELECT count(*) FILTER (WHERE application_name = 'callers'), count(*) FILTER (WHERE application_name = 'threads'),
        count(*) FILTER (WHERE application_name = 'headrace')
    FROM pg_stat_activity
"""


async def run(
    folder: Path,
    *,
    processes: int,
    seed: int,
    seconds: float = 30.0,
    callers: int = 16,
    patience: float = 0.2,
    lease: float = 3.0,
    budget: float = 120.0,
) -> Outcome:
    """For so many ``seconds`` nothing goes on in the store, while ``callers`` of one client and as many threads of
    another enqueue in one process and give up after ``patience``, and ``processes`` idle workers beat and claim."""
    ledger = folder / "ledger"
    ledger.mkdir()
    with postgres(folder) as store:
        owner = make_app(store.url, lease=lease)
        app = make_app(f"{store.url}?application_name=callers", lease=lease)
        threads = make_app(f"{store.url}?application_name=threads", lease=lease, patience=patience)
        async with owner, app:
            fleet = Fleet(store.url, ledger, size=processes, seconds=0.0, rng=random.Random(seed), lease=lease)
            try:
                await app.client.insert([_job(app) for _ in range(processes)])
                drained = await until_done(owner, time.monotonic() + budget)
                most, given_up = await _besiege(store.url, app, threads, seconds, callers, patience)
                began = time.monotonic()
                drained = drained and await until_done(owner, began + budget)
                crashed = fleet.crashed()
            finally:
                fleet.stop()
                SyncApp(threads).close()
    of_callers, of_threads, of_workers = most
    said = (
        (of_callers > MOST, f"one client had {of_callers} connections, expected at most {MOST}"),
        (of_threads > MOST_OF_THREADS, f"threads had {of_threads} connections, expected at most {MOST_OF_THREADS}"),
        (
            of_workers > processes * MOST_OF_WORKER + MOST,
            f"{processes} workers had {of_workers} connections, expected at most {MOST_OF_WORKER} each",
        ),
        (not all(given_up), "nobody gave up: the store was not held up"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
    )
    problems = [text for bad, text in said if bad]
    return Outcome(
        scenario="impatient_callers",
        backend=store.name,
        asked={"seconds": seconds, "callers": callers, "patience s": patience, "workers": processes},
        reached={
            "most connections of the callers' process": of_callers,
            "most connections of the threads": of_threads,
            "most connections of all workers": of_workers,
            "calls given up": given_up[0],
            "calls of threads given up": given_up[1],
            "drained": drained,
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _besiege(
    url: str, app: App, threads: App, seconds: float, callers: int, patience: float
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The most connections of the callers, the threads and all others that there were at a time, and how many calls
    were given up on the loop and in threads."""
    most = (0, 0, 0)
    loop = asyncio.get_running_loop()

    async def call(until: float) -> int:
        given_up = 0
        while loop.time() < until:
            with suppress(Unavailable):
                try:
                    async with asyncio.timeout(patience):
                        await app.client.insert([_job(app)])
                except TimeoutError:
                    given_up += 1
        return given_up

    work = cast("Task[[int], Any]", threads.tasks["work"])

    def block(until: float) -> int:
        given_up = 0
        while time.monotonic() < until:
            try:
                work.enqueue_sync(os.getpid())
            except Unavailable:
                given_up += 1
        return given_up

    calm = "-c statement_timeout=0"
    async with (
        await psycopg.AsyncConnection.connect(url, application_name="besieger", options=calm) as besieger,
        await psycopg.AsyncConnection.connect(url, application_name="looking", autocommit=True) as looking,
    ):
        with ThreadPoolExecutor(callers) as pool:
            await asyncio.gather(
                *(loop.run_in_executor(pool, work.enqueue_sync, os.getpid()) for _ in range(4 * callers))
            )
            await lock(besieger, *_TABLES)
            calls = [asyncio.ensure_future(call(loop.time() + seconds)) for _ in range(callers)]
            until = time.monotonic() + seconds
            blocked = [loop.run_in_executor(pool, block, until) for _ in range(callers)]
            while not all(one.done() for one in (*calls, *blocked)):
                found: Any = await (await looking.execute(_COUNT)).fetchone()
                most = tuple(map(max, most, found))
                await asyncio.sleep(0.02)
    return most, (sum(await asyncio.gather(*calls)), sum(await asyncio.gather(*blocked)))


def _job(app: App) -> Any:
    work: Any = app.tasks["work"]
    return work.job(os.getpid())
