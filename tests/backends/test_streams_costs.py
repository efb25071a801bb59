"""What one call may cost the servers of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from headrace.backends.streams import StreamsBackend
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, SECOND, T0, number, row
from tests import postgres
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


def spent() -> int:
    """The CPU that PostgreSQL's connections have used, in nanoseconds."""
    with psycopg.connect(postgres.server().url()) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    used = 0
    for [pid] in found:
        with suppress(OSError):  # a session of a test before has just ended
            used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return used


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs to know the CPU of other processes")
async def test_statistics_cost_what_was_given_out_and_not_its_square(store: StreamsBackend) -> None:
    """A queue's jobs were compared with what all queues had given out."""
    few, many, each = 10, 100, 200
    costs: list[int] = []
    for first, last in ((0, few), (few, many)):
        for n in range(first, last):
            name = f"queue-{n}"
            await store.insert([row(n * 1_000 + i, queue=name) for i in range(each + 1)], T0)
            assert len((await store.claim(Claim("w1", (name,), each, LEASE), T0)).jobs) == each
        rounds = []
        for _ in range(3):
            before = spent()
            stats = await store.stats(T0 + SECOND)
            rounds.append(spent() - before)
        assert {(one.available, one.running, one.oldest_due_age) for one in stats.queues} == {(1, each, SECOND)}
        costs.append(min(rounds))
    assert costs[1] < 2.5 * many / few * costs[0], costs
