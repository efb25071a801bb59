"""Why a job is not running, in one sentence."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace import Job, WhyCode
from headrace.core.clock import ManualClock, SystemClock
from headrace.errors import JobNotFound
from headrace.seam.records import Beat, Claim, Pause, Reap, Selector
from tests.facades.harness import Store, within

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
LEASE = 30 * SECOND


class Case:
    """A job, and what is around it."""

    def __init__(self, store: Store) -> None:
        self.clock = ManualClock(START)
        self.app = store.app(clock=self.clock)
        self.policies = self.app.policies

        @self.app.task(queue="mail", name="send")
        async def send(job: Job[Any], to: str = "ada") -> None: ...

        self.send = send

    async def job(self, **options: Any) -> UUID:
        return (await self.send.options(**options).enqueue()).id

    async def why(self, job: UUID) -> tuple[WhyCode, str]:
        why = await self.app.why(job)
        return why.code, why.sentence

    async def worker(self, holder: str = "h", *, slots: int = 2, busy: int = 0) -> None:
        backend = await self.app.client.backend()
        beat = Beat(holder, f"worker-{holder}", ("mail",), LEASE, slots=slots, busy=busy)
        await backend.renew(beat, self.clock.now())

    async def claim(self, limit: int = 1, holder: str = "h") -> None:
        backend = await self.app.client.backend()
        await backend.claim(Claim(holder, ("mail",), limit, LEASE), self.clock.now())


@pytest.fixture
async def case(store: Store) -> Case:
    return Case(store)


async def test_nobody_listens_or_all_are_busy_or_it_is_next(case: Case) -> None:
    job = await case.job()
    assert await case.why(job) == (WhyCode.NO_WORKER, "no worker listens to queue 'mail'")
    await case.worker(slots=0)
    assert (await case.why(job))[0] is WhyCode.NO_WORKER
    await case.worker(busy=2)
    busy = "all 2 slots of the worker that listens to queue 'mail' are busy"
    assert await case.why(job) == (WhyCode.WORKERS_BUSY, busy)
    await case.worker(busy=1)
    assert await case.why(job) == (WhyCode.NEXT, "it is due, and a worker should take it now")


async def test_on_its_last_chance_it_waits_to_run_alone(case: Case) -> None:
    job = await case.job()
    backend = await case.app.client.backend()
    for _ in range(2):
        await case.claim()
        case.clock.advance("31s")
        await backend.reap(Reap(max_lost=2), case.clock.now())
        case.clock.advance("10m")
    await case.worker(busy=2)
    code, sentence = await case.why(job)
    assert code is WhyCode.LAST_CHANCE
    assert sentence == (
        "it is on its last chance and runs alone: it waits for a worker's helper process, "
        "or for a worker that holds no other job"
    )


async def test_it_runs_or_has_ended(case: Case) -> None:
    job = await case.job()
    await case.worker()
    await case.claim()
    assert await case.why(job) == (WhyCode.RUNNING, "it is running on worker-h")
    await case.app.cancel(job)
    assert (await case.why(job))[0] is WhyCode.STOPPING
    case.clock.advance("31s")
    assert (await case.why(job))[0] is WhyCode.WORKER_LOST
    await (await case.app.client.backend()).reap(Reap(), case.clock.now())
    assert await case.why(job) == (WhyCode.ENDED, "it has ended: cancelled")


async def test_a_dead_letter_tells_its_error(store: Store) -> None:
    app = store.app()

    @app.task(name="bad")
    async def bad() -> None:
        raise ValueError("no such\nuser")

    handle = await bad.options(max_attempts=1).enqueue()
    await within(app.drain())
    why = await app.why(handle.id)
    assert why.sentence == "it has ended: failed, retries exhausted; its last error: ValueError: no such user"


async def test_time_is_that_of_the_store(store: Store) -> None:
    """A client whose clock is ahead does not take a worker for lost."""

    class Ahead(SystemClock):
        def now(self) -> int:
            return super().now() + 40 * SECOND

    app = store.app(clock=Ahead())

    @app.task(queue="mail", name="send")
    async def send() -> None: ...

    first, second = await send.enqueue(), await send.options(delay="30s").enqueue()
    backend = await app.client.backend()
    await backend.claim(Claim("h", ("mail",), 1, LEASE))
    assert (await app.why(first.id)).code is WhyCode.RUNNING
    assert (await app.why(second.id)).code is WhyCode.SCHEDULED


async def test_lengths_are_told_without_their_small_change(case: Case) -> None:
    job = await case.job(delay=0.08995)
    assert await case.why(job) == (WhyCode.SCHEDULED, "it is scheduled, in 89ms")


async def test_something_is_paused(case: Case) -> None:
    job = await case.job(tenant="acme")
    await case.policies.pause("mail", task="send")
    assert await case.why(job) == (WhyCode.TASK_PAUSED, "task 'send' is paused in queue 'mail'")
    await case.policies.pause("mail", tenant="acme", lasts="1h")
    expected = "tenant 'acme' is paused in queue 'mail' for another 1h"
    assert await case.why(job) == (WhyCode.TENANT_PAUSED, expected)
    await case.policies.pause("mail", lasts="10m")
    assert await case.why(job) == (WhyCode.QUEUE_PAUSED, "queue 'mail' is paused for another 10m")
    await case.app.client.alter(Selector(ids=[job.bytes]), Pause())
    assert await case.why(job) == (WhyCode.JOB_PAUSED, "the job itself is paused")


async def test_its_time_has_not_come(case: Case) -> None:
    job = await case.job(delay="5m")
    assert await case.why(job) == (WhyCode.SCHEDULED, "it is scheduled, in 5m")


async def test_another_job_of_its_group_has_the_turn(case: Case) -> None:
    first, second = await case.job(group="g"), await case.job(group="g")
    assert await case.why(second) == (WhyCode.GROUP, f"in its group 'g' it is the turn of {first}")
    assert (await case.why(first))[0] is WhyCode.NO_WORKER


async def test_a_limit_is_reached(case: Case) -> None:
    await case.policies.set("mail", running=1, tenant_running=1)
    await case.job(tenant="acme")
    job = await case.job(tenant="acme")
    await case.claim()
    assert await case.why(job) == (WhyCode.QUEUE_LIMIT, "queue 'mail' is at its limit of running jobs: 1")
    await case.policies.set("mail", running=None)
    assert await case.why(job) == (WhyCode.TENANT_LIMIT, "tenant 'acme' is at its limit of running jobs: 1")


async def test_a_rate_is_reached(case: Case) -> None:
    await case.policies.set("mail", rate="1/m", task_rates={"send": "1/h"}, tenant_rate="1/2h")
    await case.job()
    job = await case.job()
    await case.claim()
    assert await case.why(job) == (
        WhyCode.QUEUE_RATE,
        "queue 'mail' is at its rate limit; it lets the next job through in 1m",
    )
    case.clock.advance("5m")
    assert await case.why(job) == (
        WhyCode.TASK_RATE,
        "task 'send' is at its rate limit; it lets the next job through in 55m",
    )
    case.clock.advance("1h")
    assert await case.why(job) == (
        WhyCode.TENANT_RATE,
        "tenant '' is at its rate limit; it lets the next job through in 55m",
    )


async def test_somebody_else_has_the_token(case: Case) -> None:
    await case.policies.set("mail", tenant_workers=1)
    await case.job(tenant="acme")
    job = await case.job(tenant="acme")
    await case.worker()
    await case.claim()
    expected = "only worker-h may have jobs of tenant 'acme' now"
    assert await case.why(job) == (WhyCode.TENANT_WORKERS, expected)


async def test_there_is_no_such_job(case: Case) -> None:
    with pytest.raises(JobNotFound):
        await case.app.why(UUID(int=7))
