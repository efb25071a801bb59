"""What one call may cost the Valkey of streams, which serves nobody else meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from headrace.backends.streams import StreamsBackend
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, SECOND, T0, number, row
from tests.backends.test_redis_costs import commands
from tests.streams import stores

QUEUES, EACH = 10, 300


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


async def test_a_claim_promotes_a_bounded_number_of_jobs_of_all_its_queues(store: StreamsBackend) -> None:
    """The rest is left to the claims that follow, which come at once."""
    names = [f"queue-{n}" for n in range(QUEUES)]
    for n, name in enumerate(names):
        await store.insert([row(n * EACH + i, queue=name, delay=SECOND) for i in range(EACH)], T0)
        await store.claim(Claim("w1", (name,), 1, LEASE), T0)
    found: list[int] = []
    with commands() as asked:
        for turn in range(4 * QUEUES):
            rotated = (*names[turn % QUEUES :], *names[: turn % QUEUES])
            claimed = await store.claim(Claim("w1", rotated, 400, LEASE), T0 + SECOND)
            found += map(number, claimed.jobs)
            if len(found) == QUEUES * EACH:
                break
            assert claimed.jobs or claimed.next_in == 0
    assert sorted(found) == [*range(QUEUES * EACH)]
    assert max(script.count() for script in asked.calls()) < 9_000
