"""The reliable queue: what can be asked of a job in each of its states, and cancelling it there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import EventKind, Fail, Job, Queue, Queued, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import JobCancelled, RetriesExhausted
from headrace.types import Cancelled
from tests.facades.harness import Events, Gate, Store, World, fail_once, serving, simulate, within


async def state_of(queue: Queue[Any, Any], id: str) -> str:
    status = await queue.status(id)
    assert status is not None
    return status.state


class TestStates:
    """002-15, 002-42: every state has its name, and each is told as what it is."""

    async def test_unknown(self, store: Store) -> None:
        queue = store.queue()
        assert await queue.status("never") is None
        assert await queue.result("never") is None

    async def test_queued(self, store: Store) -> None:
        queue = store.queue()
        await queue.enqueue("a", 1)
        assert await state_of(queue, "a") == "queued"
        assert await queue.result("a", default="not yet") == "not yet"

    async def test_delayed_is_queued(self, store: Store) -> None:
        """002-61: a job for later is a queued job."""
        queue = store.queue()
        await queue.enqueue("a", 1, delay="1h")
        assert await state_of(queue, "a") == "queued"

    async def test_processing(self, store: Store) -> None:
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
            assert await state_of(queue, "a") == "processing"
            gate.open()

    async def test_failing(self, store: Store) -> None:
        """002-50: an attempt failed and another is to come."""
        queue = store.queue(clock=ManualClock())
        await fail_once(queue)
        status = await queue.status("a")
        assert status is not None
        assert (status.state, status.attempts, status.error) == ("failing", 1, None)

    async def test_completed(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", {"x": 1})
        status = await queue.status("a")
        assert status is not None
        assert (status.state, status.result, status.error) == ("completed", {"x": 1}, None)
        assert await queue.result("a") == {"x": 1}

    async def test_failed(self, store: Store) -> None:
        """002-50: past the last attempt, with the error kept and the attempts counted."""
        queue = store.queue(retry=immediate(3))

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError(f"attempt {job.attempt}")

        async with serving(queue):
            with pytest.raises(RetriesExhausted):
                await queue.enqueue_and_wait("a", 1)
        status = await queue.status("a")
        assert status is not None
        assert (status.state, status.attempts, status.result) == ("failed", 3, None)
        assert isinstance(status.error, RetriesExhausted)
        assert status.error.error["message"] == "attempt 2"

    async def test_cancelled(self, store: Store) -> None:
        queue = store.queue()
        await queue.enqueue("a", 1)
        await queue.cancel("a")
        assert await state_of(queue, "a") == "cancelled"

    async def test_created_at_is_when_it_was_enqueued(self, store: Store) -> None:
        """002-42, P19: not the time of its last transition; and attempts are not always 0."""
        clock = ManualClock()
        enqueued = datetime.fromtimestamp(clock.now() / 1e6, UTC)
        queue = store.queue(clock=clock, retry=never())

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError("no")

        await queue.enqueue("a", 1)
        clock.advance("10m")
        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await within(gone.wait())
        status = await queue.status("a")
        assert status is not None
        assert (status.created_at, status.attempts) == (enqueued, 1)

    def test_a_running_job_names_its_worker(self) -> None:
        """002-16: state, time, and who has it."""

        async def main(world: World) -> str:
            queue = world.queue(worker="worker-one")

            @queue.execute
            async def slow(job: Job[int]) -> None:
                await asyncio.sleep(20)

            async with queue:
                await queue.enqueue("a", 1)
                await asyncio.sleep(10)
                status = await queue.status("a")
                assert status is not None
                assert status.state == "processing"
                return status.worker

        assert simulate(main) == "worker-one"


class TestTheJobItself:
    async def test_carries_what_was_enqueued(self, store: Store) -> None:
        """002-14, 002-43: id, payload, creation time, attempts, limit, and a token that tells when to stop."""
        clock = ManualClock()
        queue = store.queue("mail", clock=clock)
        jobs: list[Job[Any]] = []

        @queue.execute
        async def keep(job: Job[Any]) -> None:
            jobs.append(job)

        async with serving(queue):
            headers = {"correlation-id": "order-42"}
            await queue.enqueue_and_wait("msg-1", {"x": 1}, max_attempts=7, tenant="acme", priority=-3, headers=headers)
        [job] = jobs
        assert (job.key, job.queue, job.payload) == ("msg-1", "mail", {"x": 1})
        assert (job.attempt, job.lost, job.max_attempts) == (0, 0, 7)
        assert (job.tenant, job.priority) == ("acme", -3)
        assert job.enqueued_at == job.run_at == datetime.fromtimestamp(clock.now() / 1e6, UTC)
        assert (job.cancel.requested, job.headers, job.lease.epoch) == (False, headers, clock.now())

    async def test_counts_its_attempts(self, store: Store) -> None:
        """002-14: 0 on the first run, and one more after each failure."""
        queue = store.queue(retry=immediate(4))
        attempts: list[int] = []

        @queue.execute
        async def fourth_time_lucky(job: Job[int]) -> int:
            attempts.append(job.attempt)
            if job.attempt < 3:
                raise ValueError("no")
            return job.attempt

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 3
        assert attempts == [0, 1, 2, 3]

    async def test_does_not_show_its_secret(self, memory: Store) -> None:
        """X18: the holder that fences the lease is in no repr."""
        queue = memory.queue()
        shown: list[str] = []

        @queue.execute
        async def look(job: Job[int]) -> None:
            shown.extend((job.lease.holder, repr(job), repr(job.lease)))

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        holder, job, lease = shown
        assert holder
        assert holder not in job + lease


class TestCancel:
    """002-39: cancelled, processing, completed, failed or not_found; and what each leaves behind."""

    async def test_unknown(self, store: Store) -> None:
        assert await store.queue().cancel("never") == "not_found"

    async def test_queued(self, store: Store) -> None:
        """002-40: it is not run, and nobody had to search for it."""
        queue = store.queue()
        runs: list[str | None] = []

        @queue.execute
        async def note(job: Job[int]) -> None:
            runs.append(job.key)

        await queue.enqueue("a", 1)
        await queue.enqueue("b", 1)
        assert await queue.cancel("a") == "cancelled"
        async with serving(queue):
            await queue.enqueue_and_wait("c", 1)
        assert runs == ["b", "c"]

    async def test_delayed(self, store: Store) -> None:
        queue = store.queue()
        await queue.enqueue("a", 1, delay="1d")
        assert await queue.cancel("a") == "cancelled"

    async def test_failing(self, store: Store) -> None:
        """A job between two attempts can be cancelled like one that was never tried."""
        queue = store.queue(clock=ManualClock())
        await fail_once(queue)
        assert await queue.cancel("a") == "cancelled"
        assert await state_of(queue, "a") == "cancelled"

    async def test_processing(self, store: Store) -> None:
        """The handler is asked to stop, and the job ends as cancelled."""
        queue, gate = store.queue(), Gate()
        reasons: list[str] = []

        @queue.execute
        async def gated(job: Job[int]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                reasons.append(job.cancel.reason)
                raise

        async with serving(queue), asyncio.TaskGroup() as group:
            waiting = group.create_task(_raised(queue.enqueue_and_wait("a", 1)))
            await gate.reached()
            assert await queue.cancel("a") == "processing"
            assert isinstance(await within(waiting), JobCancelled)
            assert await state_of(queue, "a") == "cancelled"
        assert reasons == ["cancelled"]

    async def test_processing_and_too_late(self, store: Store) -> None:
        """A handler that finishes all the same has finished: cancelling loses against done."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def stubborn(job: Job[int]) -> str:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                pass
            return "done"

        async with serving(queue), asyncio.TaskGroup() as group:
            waiting = group.create_task(queue.enqueue_and_wait("a", 1))
            await gate.reached()
            assert await queue.cancel("a") == "processing"
            assert await within(waiting) == "done"
            gate.open()
            assert await within(queue.enqueue_and_wait("b", 1)) == "done"

    async def test_completed(self, store: Store) -> None:
        """Its result stays."""
        queue = store.queue()

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        assert await queue.cancel("a") == "completed"
        assert await queue.result("a") == 1

    async def test_failed(self, store: Store) -> None:
        """P8: a failed job is not reported as cancelled."""
        queue = store.queue()

        @queue.execute
        async def refuse(job: Job[int]) -> Fail:
            return Fail("no")

        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await queue.enqueue("a", 1)
            await within(gone.wait())
        assert await queue.cancel("a") == "failed"
        assert await state_of(queue, "a") == "failed"

    async def test_cancelled(self, store: Store) -> None:
        """A second cancel finds nothing to cancel."""
        queue = store.queue()
        await queue.enqueue("a", 1)
        assert await queue.cancel("a") == "cancelled"
        assert await queue.cancel("a") == "not_found"

    async def test_a_cancelled_id_can_be_enqueued_again(self, store: Store) -> None:
        """002-41, P9: and only the new payload is run."""
        queue = store.queue()
        payloads: list[int] = []

        @queue.execute
        async def note(job: Job[int]) -> int:
            payloads.append(job.payload)
            return job.payload

        await queue.enqueue("a", 1)
        await queue.cancel("a")
        assert await queue.enqueue("a", 2) == Queued()
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 3)) == 2
        assert payloads == [2]

    async def test_a_waiter_is_told_at_once(self, store: Store) -> None:
        """Decision 20, P10: cancelling ends the wait, long before its timeout."""
        queue, elsewhere, here, there = store.queue(), store.queue(), Events(), Events()
        queue.client.observers.add(here)
        elsewhere.client.observers.add(there)
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(_raised(queue.enqueue_and_wait("a", 1)))]
            await here.until(EventKind.QUEUED)
            waits += [group.create_task(_raised(q.enqueue_and_wait("a", 1))) for q in (queue, elsewhere)]
            await here.until(EventKind.DEDUPLICATED)
            await there.until(EventKind.DEDUPLICATED)
            assert await queue.cancel("a") == "cancelled"
            errors = await within(asyncio.gather(*waits))
        assert all(isinstance(error, JobCancelled) for error in errors)

    def test_a_waiter_is_told_in_the_same_instant(self) -> None:
        """Decision 20: at once, measured."""

        async def main(world: World) -> float:
            queue, other = world.queue(), world.queue()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_raised(queue.enqueue_and_wait("a", 1)))
                await asyncio.sleep(7)
                await other.cancel("a")
                assert isinstance(await waiting, JobCancelled)
            return world.now()

        assert simulate(main) == pytest.approx(7, abs=0.01)

    async def test_a_handler_may_cancel_its_own_job(self, store: Store) -> None:
        """Returning ``Cancelled`` ends the job as such, with its reason."""
        queue = store.queue()

        @queue.execute
        async def decline(job: Job[int]) -> Cancelled:
            return Cancelled("not wanted any more")

        async with serving(queue):
            with pytest.raises(JobCancelled, match="not wanted any more"):
                await queue.enqueue_and_wait("a", 1)


async def _raised(work: Any) -> BaseException | None:
    try:
        await work
    except Exception as error:
        return error
    return None
