"""Valkey's clock is behind PostgreSQL's: by milliseconds, as it was set over a network, or by more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import redis

from headrace.backends.streams import StreamsBackend
from headrace.seam.records import Claim, Leased, Settlement
from headrace.testing.conformance.base import LEASE, SECOND, job_id, row
from headrace.types import JobState
from tests import valkey
from tests.streams import stores


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """A store whose Valkey is ten seconds behind, with an open window."""
    backend = stores.connect(tmp_path)
    await backend.open()
    try:
        await backend.insert([row(0)])
        assert len(await take(backend)) == 1
        with redis.Redis.from_url(valkey.server().url()) as client:
            [general] = client.keys("*:G")
            client.hincrby(general, "skew", -10 * SECOND)
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend) -> list[Leased]:
    return (await store.claim(Claim("w1", ("q",), 10, LEASE))).jobs


async def test_a_new_job_is_given_out_at_once(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2, delay=SECOND)])
    assert [job.id for job in await take(store)] == [job_id(1)]


async def test_so_is_one_that_runs_again(store: StreamsBackend) -> None:
    await store.insert([row(1)])
    [job] = await take(store)
    await store.finish([Settlement(job.id, job.epoch, "w1", JobState.AVAILABLE)])
    await store._notes.flush()
    [again] = await take(store)
    assert again.id == job.id
    assert again.epoch > job.epoch
