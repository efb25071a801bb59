"""Cyclotron's documented flow: create, dequeue, change, requeue, complete, fail, stall, poison, clean up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

TEAM, FUNCTION = 7, UUID("0196c1c1-0000-7000-8000-000000000007")
POISON = b"poison"

MakeJob = Callable[..., Any]
MakeWorker = Callable[[str], Any]


async def create(manager: Any, job: MakeJob) -> None:
    """A thousand invocations, the first ten of them urgent."""
    ids = await manager.bulk_create_jobs(
        job(
            team_id=TEAM,
            function_id=FUNCTION,
            queue_name="hog",
            priority=0 if number < 10 else 1,
            vm_state=b"vm 0",
            parameters=b"GET /%d" % number,
            blob=b"body",
            source="kafka",
        )
        for number in range(1_000)
    )
    print(f"created {len(ids)} jobs for team {(await manager.get_job(ids[0])).team_id}")


async def work(worker: Any, elsewhere: Any) -> None:
    """Look at the jobs without their VM state; move every fourth one elsewhere, with a changed state."""
    done = failed = moved = 0
    first = True
    while jobs := await worker.dequeue_jobs():
        if first:
            print(f"the first ten are urgent: {[job.priority for job in jobs[:11]] == [0] * 10 + [1]}")
            first = False
        for job in jobs:
            number = int(job.parameters.removeprefix(b"GET /"))
            if number % 4 == 0:
                job.set_vm_state(await job.fetch_vm_state() + b" 1")
                job.set_blob(None)
                job.set_queue("hogoverflow")
                job.set_state("available")
                moved += 1
            elif number % 50 == 1:
                job.set_metadata(b"tried once")
                job.set_state("failed")
                failed += 1
            else:
                job.set_state("completed")
                done += 1
            job.release()
    print(f"completed {done}, failed {failed}, moved {moved}")
    while jobs := await elsewhere.dequeue_with_vm_state():
        for job in jobs:
            assert (job.vm_state, job.blob, job.source) == (b"vm 0 1", None, "kafka")
            elsewhere.set_state(job.id, "completed")
        await asyncio.gather(*(elsewhere.release_job(job.id) for job in jobs))
        done += len(jobs)
    print(f"completed {done} in the end")


async def die(worker: Any) -> None:
    """Dequeue, and end at once, with everything in hand. Runs in a process of its own."""
    jobs = await worker.dequeue_with_vm_state(5)
    print(len(jobs), flush=True)
    sys.stdout.close()
    await asyncio.Event().wait()  # until it is killed


async def stall(manager: Any, janitor: Any, job: MakeJob, kill_a_worker: Callable[[], Any], worker: Any) -> None:
    """A worker is killed; the janitor takes its jobs back, and another worker runs them."""
    await manager.bulk_create_jobs(job(team_id=TEAM, queue_name="stalls", vm_state=b"%d" % i) for i in range(5))
    print(f"a worker dies with {await kill_a_worker()} jobs")
    taken = 0
    while taken < 5:
        taken += (await janitor.run_once()).stalled
        await asyncio.sleep(0.1)
    again: list[Any] = []
    while len(again) < 5:
        again += await worker.dequeue_with_vm_state()
        await asyncio.sleep(0.05)
    print(f"taken back {taken}, each touched {sorted({one.janitor_touch_count for one in again})} times")
    for one in again:
        one.set_state("completed")
        await one.release()


async def poison(manager: Any, janitor: Any, job: MakeJob, kill_a_worker: Callable[[], Any], worker: Any) -> None:
    """A job that kills every worker goes to the dead letters, and can be replayed."""
    bad = await manager.create_job(job(team_id=TEAM, queue_name="stalls", vm_state=POISON))
    deaths = poisoned = 0
    while not poisoned:
        deaths += await kill_a_worker()
        taken = 0
        while not (taken or poisoned):
            report = await janitor.run_once()
            taken, poisoned = report.stalled, report.poisoned
            await asyncio.sleep(0.1)
    stored = await manager.get_job(bad)
    print(f"poison after {deaths} deaths: {stored.state}, {stored.reason}, still of queue {stored.queue_name}")
    await manager.replay_job(bad)
    [one] = await worker.dequeue_with_vm_state()
    print(f"replayed, touched {one.janitor_touch_count} times")
    one.set_state("completed")
    await one.release()


async def clean(manager: Any, janitor: Any, jobs: int) -> None:
    """Everything is counted, then deleted. The janitor has been at it all the time."""
    counts = {"completed": 0, "failed": 0}
    while sum(counts.values()) < jobs or await manager.list_jobs(team_id=TEAM):
        await janitor.run_once()
        counts = dict.fromkeys(counts, 0)
        for one in await janitor.aggregates():
            counts[one.state] += one.count
        await asyncio.sleep(0.1)
    print(f"all are deleted: {counts}")
