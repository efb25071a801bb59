"""A lock holds up PostgreSQL, and callers give up and call again: they do not use up the server's connections."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from chaos.fleet import Fleet
from chaos.jobs import until_done
from chaos.outcome import Outcome
from chaos.stores import postgres
from chaos.worker import make_app
from headrace import App
from headrace.errors import Unavailable

PLACES = 4
"""Connections that a client keeps at most."""
MOST = PLACES + 2
"""Of a process that only enqueues."""
MOST_OF_WORKER = PLACES + 3
"""A worker has one more for hints, and its heartbeat has some of its own."""
_LOCK = "LOCK TABLE headrace.jobs, headrace.ready, headrace.leased, headrace.workers IN ACCESS EXCLUSIVE MODE"
_COUNT = """
    SELECT count(*) FILTER (WHERE application_name = 'callers'), count(*) FILTER (WHERE application_name = 'headrace')
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
    """For so many ``seconds`` nothing goes on in the store, while ``callers`` of one process enqueue and give up after
    ``patience``, and ``processes`` idle workers beat and claim."""
    ledger = folder / "ledger"
    ledger.mkdir()
    with postgres(folder) as store:
        owner = make_app(store.url, lease=lease)
        app = make_app(f"{store.url}?application_name=callers", lease=lease)
        async with owner, app:
            fleet = Fleet(store.url, ledger, size=processes, seconds=0.0, rng=random.Random(seed), lease=lease)
            try:
                await app.client.insert([_job(app) for _ in range(processes)])
                drained = await until_done(owner, time.monotonic() + budget)
                most, given_up = await _besiege(store.url, app, seconds, callers, patience)
                began = time.monotonic()
                drained = drained and await until_done(owner, began + budget)
                crashed = fleet.crashed()
            finally:
                fleet.stop()
    of_callers, of_workers = most
    said = (
        (of_callers > MOST, f"one process had {of_callers} connections, expected at most {MOST}"),
        (
            of_workers > processes * MOST_OF_WORKER + MOST,
            f"{processes} workers had {of_workers} connections, expected at most {MOST_OF_WORKER} each",
        ),
        (not given_up, "nobody gave up: the store was not held up"),
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
            "most connections of all workers": of_workers,
            "calls given up": given_up,
            "drained": drained,
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _besiege(
    url: str, app: App, seconds: float, callers: int, patience: float
) -> tuple[tuple[int, int], int]:  # fmt: skip
    """The most connections of the callers and of all others that there were at a time, and how many calls were given
    up."""
    given_up = of_callers = of_workers = 0
    loop = asyncio.get_running_loop()

    async def call(until: float) -> None:
        nonlocal given_up
        while loop.time() < until:
            with suppress(Unavailable):
                try:
                    async with asyncio.timeout(patience):
                        await app.client.insert([_job(app)])
                except TimeoutError:
                    given_up += 1

    calm = "-c statement_timeout=0"
    async with (
        await psycopg.AsyncConnection.connect(url, application_name="besieger", options=calm) as besieger,
        await psycopg.AsyncConnection.connect(url, application_name="looking", autocommit=True) as looking,
    ):
        await besieger.execute(_LOCK)
        until = loop.time() + seconds
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(until)) for _ in range(callers)]
            while not all(one.done() for one in calls):
                found: Any = await (await looking.execute(_COUNT)).fetchone()
                of_callers, of_workers = max(of_callers, found[0]), max(of_workers, found[1])
                await asyncio.sleep(0.02)
    return (of_callers, of_workers), given_up


def _job(app: App) -> Any:
    work: Any = app.tasks["work"]
    return work.job(os.getpid())
