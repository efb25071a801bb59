"""Keys that move between queues on PostgreSQL: whoever takes one along waits for nobody in a ring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim, Move, Selector, Settlement
from headrace.testing.conformance.base import LEASE, T0, job_id, row
from headrace.types import JobState
from tests.postgres import SCHEMA, server, stores


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


async def until_waiting(connection: psycopg.Connection[Any], number: int) -> None:
    """So many calls wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(30):
        while connection.execute(query).fetchall() != [(number,)]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["finish", "alter"])
async def test_two_jobs_that_change_places_under_one_key(store: PostgresBackend, way: str) -> None:
    """Each wants the key that the other has. One is held back where the other would have to wait for it."""
    await store.insert([row(1, queue="a", key="k"), row(2, queue="b", key="k")], T0)
    jobs = {}
    if way == "finish":
        jobs = {job.id: job.epoch for job in (await store.claim(Claim("w", ("a", "b"), 2, LEASE), T0)).jobs}

    async def move(number: int, queue: str) -> None:
        one = job_id(number)
        if way == "finish":
            moved = Settlement(one, jobs[one], "w", JobState.AVAILABLE, queue=queue, delay=0)
            assert await store.finish([moved], T0) == [JobState.AVAILABLE]
        else:
            await store.alter(Selector(ids=[one]), Move(queue), T0)

    with (
        psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as held,
        psycopg.connect(server().url(), autocommit=True) as watching,
    ):
        held.execute("SELECT 1 FROM keys WHERE id = %s FOR UPDATE", (UUID(bytes=job_id(1)),))
        moves = [asyncio.create_task(move(2, "a"))]
        await until_waiting(watching, 1)
        moves.append(asyncio.create_task(move(1, "b")))
        await until_waiting(watching, 2)
        held.rollback()
        async with asyncio.timeout(30):
            await asyncio.gather(*moves)
    found = await store.fetch([job_id(1), job_id(2)])
    assert all(record is not None and record.state is JobState.AVAILABLE for record in found)


@pytest.mark.parametrize("way", ["finish", "alter"])
async def test_two_batches_that_take_the_same_keys_to_where_nobody_has_them(store: PostgresBackend, way: str) -> None:
    """Each in its own order: the place of a key that nobody has is locked as well, so that one batch gets all."""
    keys = dict(enumerate("xmyymx", 1))
    await store.insert([row(n, queue="a" if n < 4 else "b", key=key) for n, key in keys.items()], T0)
    jobs = {}
    if way == "finish":
        jobs = {job.id: job.epoch for job in (await store.claim(Claim("w", ("a", "b"), 6, LEASE), T0)).jobs}

    async def move(*numbers: int) -> object:
        ids = [job_id(number) for number in numbers]
        if way == "alter":
            return await store.alter(Selector(ids=ids), Move("c"), T0)
        return await store.finish([Settlement(one, jobs[one], "w", JobState.AVAILABLE, queue="c") for one in ids], T0)

    with (
        psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as held,
        psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}", autocommit=True) as watching,
    ):
        watching.execute("SELECT queue_ids('{c}')")
        held.execute("INSERT INTO keys (qid, key, id) VALUES (qid_of('c'), 'm', gen_random_uuid())")
        moves = [asyncio.create_task(move(1, 2, 3)), asyncio.create_task(move(4, 5, 6))]
        await until_waiting(watching, 2)
        held.rollback()
        async with asyncio.timeout(30):
            await asyncio.gather(*moves)
        query = "SELECT k.id FROM keys AS k WHERE k.qid = qid_of('c') ORDER BY k.id"
        moved = [found.bytes for [found] in watching.execute(query)]
    assert moved in ([job_id(n) for n in (1, 2, 3)], [job_id(n) for n in (4, 5, 6)])
