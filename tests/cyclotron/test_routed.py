"""A manager's shards and a router of the same stores are the same jobs; and a router can be a manager's shard."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from headrace.api.connection import open_backend
from headrace.cyclotron import JobInit, Manager, Worker
from headrace.errors import QueueFull
from headrace.routing.sharded import Router
from headrace.seam.policy import STORE, Policy

SHARDS = ("a", "b", "c")


def jobs(count: int) -> list[JobInit]:
    return [JobInit(team_id=7, queue_name="hog", id=UUID(int=number + 1)) for number in range(count)]


def stores(place: Path) -> list[str]:
    return [f"sqlite:///{place}/{name}.db" for name in SHARDS]


def routed(place: Path, routes: str) -> str:
    named = " | ".join(f"{name} = {url}" for name, url in zip(SHARDS, stores(place), strict=True))
    return f"{named} | {routes}"


async def depths(url: str) -> dict[str, int]:
    """What ``headrace shard list`` shows."""
    router = open_backend(url)
    assert isinstance(router, Router)
    await router.open()
    try:
        return {state.name: state.waiting for state in await router.states()}
    finally:
        await router.close()


async def done(url: str, count: int) -> Counter[UUID]:
    """Every job of the queue, as one worker gets it from all shards."""
    found: Counter[UUID] = Counter()
    async with Worker(url, "hog", batch=50) as worker:
        while found.total() < count and (batch := await worker.dequeue_jobs(50)):
            found.update(job.id for job in batch)
            for job in batch:
                job.set_state("completed")
                await job.release()
    return found


@pytest.mark.parametrize("when_full", ["raise", "block", "reroute"])
async def test_a_router_finds_lists_and_gives_out_what_a_manager_made(tmp_path: Path, when_full: str) -> None:
    url = routed(tmp_path, "*=a")
    async with Manager(stores(tmp_path), chunk_size=10, depth_limit=100, when_full=when_full) as manager:  # type: ignore[arg-type]
        made = await manager.bulk_create_jobs(jobs(120))
        counted = await manager.depths()
        assert await depths(url) == dict(zip(SHARDS, counted.values(), strict=True)) == dict.fromkeys(SHARDS, 40)
        async with Manager(url) as other:
            assert {job.id for job in await other.list_jobs(limit=200)} == set(made)
            await other.pause_job(made[3])
            assert (await manager.get_job(made[3])).state == "paused"
            await manager.resume_job(made[3])
            assert (await other.get_job(made[3])).state == "available"
        assert await done(url, 120) == Counter(made)
        assert {(await manager.get_job(job_id)).state.value for job_id in made} == {"completed"}


async def test_shares_spread_the_jobs_of_a_manager_over_a_router(tmp_path: Path) -> None:
    url = routed(tmp_path, "hog:0.5=b, *=a")
    async with Manager(url, chunk_size=10) as manager:
        made = await manager.bulk_create_jobs(jobs(200))
        assert await manager.bulk_create_jobs(jobs(200)) == made, "the same again stores nothing twice"
        found = await depths(url)
        assert sum(found.values()) == 200
        assert min(found["a"], found["b"]) > 50
        assert await manager.depths() == {0: 200}
        assert await done(url, 200) == Counter(made)


async def test_what_does_not_fit_goes_elsewhere_as_with_reroute(tmp_path: Path) -> None:
    """With ``full=`` a limit of the store itself does what ``depth_limit`` and ``reroute`` do, for all producers."""
    url = routed(tmp_path, "full=b, *=a")
    for store in stores(tmp_path)[:2]:
        backend = open_backend(store)
        await backend.open()
        assert backend.policies is not None
        await backend.policies.save(Policy(queue=STORE, depth=30))
        await backend.close()
    async with Manager(url, chunk_size=10) as manager:
        await manager.bulk_create_jobs(jobs(50))
        assert await depths(url) == {"a": 30, "b": 20, "c": 0}
        with pytest.raises(QueueFull) as caught:
            await manager.bulk_create_jobs([JobInit(team_id=7, queue_name="hog") for _ in range(20)])
        assert (len(caught.value.admitted), len(caught.value.refused)) == (10, 10)
        assert await done(url, 60) == Counter(job.id for job in await manager.list_jobs(limit=100))
