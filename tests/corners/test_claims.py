"""Corner cases of taking jobs: who has one, for how long, in which order, and who wakes up for it."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace import Duplicate, Job, JobState, Queue, immediate
from headrace.core.clock import ManualClock
from headrace.seam.records import Beat, Claim, JobKey, Reap
from tests.facades.harness import Calls, Gate, Store, serving, within

LEASE = 1_000_000


async def test_a_claim_is_a_state_and_a_claim_that_nobody_lives_up_to_is_taken_back(store: Store) -> None:
    """P1: there is nothing between "taken" and "processing" in which a job could be lost for ever, its id refused."""
    clock = ManualClock()
    queue = store.queue(clock=clock)
    await queue.enqueue("a", 1)
    backend = await queue.client.backend()
    await backend.claim(Claim("dies at once", ("jobs",), 1, LEASE), clock.stamp())
    assert await queue.enqueue("a", 2) == Duplicate("processing", 0)
    clock.advance("1m")
    [reaped] = await backend.reap(Reap(), clock.stamp())
    assert (reaped.key, reaped.state, reaped.lost) == ("a", JobState.AVAILABLE, 1)

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    async with serving(queue):
        assert await within(queue.enqueue_and_wait("a", 3)) == 1


async def test_a_worker_is_listed_for_as_long_as_it_beats_and_its_orphans_are_found_all_the_same(store: Store) -> None:
    """P2: each has a time of its own, and a worker need not be listed for its lease to be seen."""
    clock = ManualClock()
    queue = store.queue(clock=clock)
    await queue.enqueue("a", 1)
    backend = await queue.client.backend()
    await backend.claim(Claim("gone", ("jobs",), 1, LEASE), clock.stamp())
    for holder in ("gone", "here"):
        await backend.renew(Beat(holder, f"worker {holder}", ("jobs",), LEASE), clock.stamp())
    clock.advance("50s")
    await backend.renew(Beat("here", "worker here", ("jobs",), LEASE), clock.stamp())
    clock.advance("50s")
    assert [worker.worker for worker in (await queue.client.stats()).workers] == ["worker here"]
    assert [job.key for job in await backend.reap(Reap(), clock.stamp())] == ["a"]


async def test_a_job_longer_than_its_lease_runs_once(store: Store) -> None:
    """P5: a healthy worker keeps what it has, while others look for what was left."""
    queues = [store.queue(lease="2s") for _ in range(2)]
    gate, runs = Gate(), Calls()
    for queue in queues:

        @queue.execute
        async def long(job: Job[int]) -> int:
            runs(job.lost)
            await gate.pass_through()
            return job.payload

    async with serving(*queues):
        await queues[0].enqueue("a", 1)
        await gate.reached()
        backend = await queues[0].client.backend()
        leases: set[int | None] = set()
        async with asyncio.timeout(60):
            while len(leases) < 4:
                [record] = await backend.fetch([JobKey("jobs", "a")])
                assert record is not None
                leases.add(record.lease_until)
                await backend.reap(Reap())
                await asyncio.sleep(0.01)
        gate.open()
        assert await within(queues[1].enqueue_and_wait("a", 2)) == 1
    assert runs.seen == [(0,)]


async def test_a_job_that_takes_its_workers_along_is_set_aside(store: Store) -> None:
    """P6: losses are counted, so that it does not go round for ever; and its id is free again."""
    clock = ManualClock()
    queue = store.queue(clock=clock)
    await queue.enqueue("a", 1)
    backend = await queue.client.backend()
    for _ in range(3):
        [job] = (await backend.claim(Claim("killed", ("jobs",), 1, LEASE), clock.stamp())).jobs
        clock.advance("1m")
        [reaped] = await backend.reap(Reap(max_lost=2), clock.stamp())
    assert (job.attempt, job.lost, reaped.state, reaped.reason) == (0, 2, JobState.FAILED, "lost")
    status = await queue.status("a")
    assert status is not None
    assert status.state == "failed"
    assert (await queue.enqueue("a", 1)).status == "queued"


async def test_whoever_has_a_job_finds_it_processing(store: Store) -> None:
    """P7: going back and being taken again are one step each; no late "failing" covers a new run."""
    queues = [store.queue(retry=immediate(12)) for _ in range(3)]
    seen: list[tuple[str, int]] = []
    for queue in queues:

        @queue.execute
        async def fail_often(job: Job[int], queue: Queue[int, int] = queue) -> int:
            for _ in range(2):
                status = await queue.status("a")
                assert status is not None
                seen.append((status.state, status.attempts))
            if job.attempt < 10:
                raise ValueError("again")
            return job.attempt

    async with serving(*queues):
        assert await within(queues[0].enqueue_and_wait("a", 1)) == 10
    assert seen == [("processing", attempt) for attempt in range(11) for _ in range(2)]


async def test_a_retry_goes_behind_those_that_are_due(store: Store) -> None:
    """P18: the same on every store."""
    queue = store.queue(retry=immediate(2))
    order: list[str | None] = []

    @queue.execute
    async def fail_once(job: Job[int]) -> None:
        order.append(job.key)
        if job.key == "a" and not job.attempt:
            raise ValueError("not yet")

    for name in "abc":
        await queue.enqueue(name, 1)
    await within(queue.work(burst=True))
    assert order == ["a", "b", "c", "a"]


async def test_a_worker_that_was_woken_in_vain_goes_on_listening(store: Store) -> None:
    """P21: one job wakes several, one gets it, and the others stay ready: nothing polls."""
    client = [store.client(worker={"poll": "1h"}) for _ in range(3)]
    queues = [Queue[int, int]("jobs", each) for each in client]
    ran: Counter[int] = Counter()
    for queue in queues:

        @queue.execute
        async def echo(job: Job[int]) -> int:
            ran[job.payload] += 1
            return job.payload

    async with serving(*queues):
        for number in range(30):
            assert await within(queues[number % 3].enqueue_and_wait(f"job-{number}", number)) == number
    assert ran == Counter(range(30))


async def test_queues_that_share_a_client_do_not_wait_behind_each_other(store: Store) -> None:
    """P25: each idle one is woken by its own jobs, however many wait on the same connection."""
    client = store.client(worker={"poll": "1h"})
    queues = [Queue[int, int](f"queue-{number}", client) for number in range(6)]
    for queue in queues:

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

    async with serving(*queues):
        for number in range(3):
            for queue in reversed(queues):
                assert await within(queue.enqueue_and_wait(f"{number}", number)) == number


async def test_nobody_leads_and_a_lost_job_comes_back_once(store: Store) -> None:
    """P31: any worker may take back what was left, all at once, and none has to be in office for that."""
    clock = ManualClock()
    queues = [store.queue(clock=clock) for _ in range(4)]
    await queues[0].enqueue("a", 1)
    backends = [await queue.client.backend() for queue in queues]
    await backends[0].claim(Claim("gone", ("jobs",), 1, LEASE), clock.stamp())
    clock.advance("1m")
    told = await asyncio.gather(*(backend.reap(Reap(), clock.stamp()) for backend in backends * 5))
    assert [(job.key, job.lost) for reaped in told for job in reaped] == [("a", 1)]
