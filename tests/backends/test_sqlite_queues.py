"""Claims that name very many queues find the same jobs as any other, at a cost that their names alone make up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Reap
from headrace.testing.conformance.base import LEASE, SECOND, T0, number, row

QUEUES = tuple(f"q{n}" for n in range(150))


@pytest.mark.parametrize("seed", range(8))
async def test_a_claim_from_many_queues_answers_as_the_memory_store_does(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stores: list[Backend] = [MemoryBackend(), SqliteBackend(tmp_path / "jobs.db", durability="normal")]
    for store in stores:
        await store.open()
    try:
        rows = [
            row(n, queue=rng.choice(QUEUES[: rng.choice((3, 150))]), priority=rng.randrange(-2, 3),
                delay=rng.choice((0, 0, 0, SECOND, 3 * SECOND)), expires=rng.choice((None, None, SECOND)))
            for n in range(400)
        ]  # fmt: skip
        paused = rng.sample(QUEUES, 5)
        for store in stores:
            await store.insert(rows, T0)
            for name in paused:
                await store.policies.pause(QueuePause(name, lasts=4 * SECOND), T0)
            await store.claim(Claim("gone", QUEUES, 20, 1), T0)
            await store.reap(Reap(max_lost=9, spread=0), T0 + 1)
        for step in range(30):
            now = T0 + 1 + step * SECOND // 5
            named = tuple(rng.sample(QUEUES, rng.choice((90, 120, 150))))
            bound = rng.choice((None, 1, 1))
            req = Claim(
                "w", named, rng.choice((1, 5, 40)), LEASE, lost_below=bound, max_bytes=rng.choice((500, 1 << 20))
            )
            first, second = [await store.claim(req, now) for store in stores]
            assert [job.id for job in second.jobs] == [job.id for job in first.jobs]
            assert (second.next_in, second.passed_over) == (first.next_in, first.passed_over)
            assert {one.id for one in second.expired} == {one.id for one in first.expired}
    finally:
        for store in stores:
            await store.close()


async def test_the_cost_of_a_name_is_small(tmp_path: Path) -> None:
    store = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    await store.open()
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    try:
        names = tuple(f"q{n}" for n in range(2_000))
        await store.insert([row(n, queue=name) for n, name in enumerate(names)], T0)
        assert store._writer is not None
        assert store._reader is not None
        for side in (store._writer._connection, store._reader._connection):
            assert side is not None
            side.set_progress_handler(step, 1)
        assert len((await store.claim(Claim("w", names, 10, LEASE, lost_below=2), T0)).jobs) == 10
        assert steps <= 100 * len(names)
    finally:
        await store.close()


@pytest.mark.parametrize("make", [MemoryBackend, None], ids=["memory", "sqlite"])
async def test_a_clock_that_is_set_back_hides_nothing(make: type[MemoryBackend] | None, tmp_path: Path) -> None:
    """What was promoted too early does not stand before what is due."""
    store: Backend = SqliteBackend(tmp_path / "jobs.db", durability="normal") if make is None else make()
    await store.open()
    try:
        await store.insert([row(n, priority=n % 2 - 1, delay=10 * SECOND) for n in range(6)], T0)
        assert len((await store.claim(Claim("w", ("q",), 1, LEASE), T0 + 10 * SECOND)).jobs) == 1
        early = T0 + 9 * SECOND
        await store.insert([row(9, priority=5)], early)
        claimed = await store.claim(Claim("w", ("q", "other"), 2, LEASE), early)
        assert ([number(job) for job in claimed.jobs], claimed.next_in) == ([9], SECOND)
        late = await store.claim(Claim("w", ("q",), 10, LEASE), T0 + 10 * SECOND)
        assert ([number(job) for job in late.jobs], late.next_in) == ([2, 4, 1, 3, 5], None)
    finally:
        await store.close()
