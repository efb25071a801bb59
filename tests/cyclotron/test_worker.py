"""Workers dequeue, change, requeue and release jobs, and say truly whether they are well."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace import Client, JobState, Settings
from headrace.cyclotron import Job, JobInit, Manager, Worker
from headrace.errors import InvalidJob, LeaseLost
from headrace.seam.protocol import Backend
from headrace.seam.records import Reap, Reschedule, Selector
from tests.cyclotron.conftest import MakeClient
from tests.worker.conftest import FAST
from tests.worker.stores import Plain
from tests.worker.test_flood import Counted


async def create(client: Client, count: int = 1, **fields: Any) -> list[UUID]:
    given = {"team_id": 7, "queue_name": "hog", "vm_state": b"v", "parameters": b"p"} | fields
    return await Manager(client).bulk_create_jobs([JobInit(**given) for _ in range(count)])


async def reap(client: Client) -> None:
    """Take every lease back, as if it had run out."""
    backend = await client.backend()
    assert await backend.reap(Reap(max_lost=100), await backend.now() + 3_600_000_000)
    await backend.alter(Selector(queue="hog"), Reschedule())


class TestDequeue:
    async def test_with_and_without_vm_state(self, client: Client) -> None:
        await create(client, 2)
        async with Worker(client, "hog") as worker:
            [light] = await worker.dequeue_jobs(1)
            [whole] = await worker.dequeue_with_vm_state(1)
            assert (light.vm_state, light.parameters) == (None, b"p")
            assert (whole.vm_state, whole.parameters, whole.blob) == (b"v", b"p", None)
            assert await light.fetch_vm_state() == await worker.get_vm_state(light.id) == b"v"
            light.set_state("paused")
            await light.release()
            assert (await Manager(client).get_job(light.id)).vm_state == b"v"

    async def test_fields_of_a_job_that_is_held(self, client: Client) -> None:
        function = UUID(int=9)
        await create(client, function_id=function, source="kafka", priority=4)
        before = datetime.now(UTC)
        async with Worker(client, "hog") as worker:
            [job] = await worker.dequeue_with_vm_state()
            assert (job.team_id, job.function_id, job.source, job.priority) == (7, function, "kafka", 4)
            assert (job.state, job.transition_count, job.janitor_touch_count) == ("running", 1, 0)
            assert abs(job.last_transition - before) < timedelta(minutes=5)
            assert job.last_heartbeat is not None
            assert abs(job.last_heartbeat - before) < timedelta(minutes=5)
            stored = await Manager(client).get_job(job.id)
            assert (stored.state, stored.transition_count) == ("running", 1)
            assert stored.lease_until is not None
            first = job.lock_id
            job.set_state("available")
            await job.release()
            assert job.last_heartbeat is None
            [again] = await worker.dequeue_with_vm_state()
            assert again.lock_id != first
            assert again.source == "kafka"

    async def test_nothing_is_an_empty_list(self, client: Client) -> None:
        async with Worker(client, "hog") as worker:
            assert await worker.dequeue_jobs() == await worker.dequeue_with_vm_state() == []

    async def test_a_batch_is_in_order_and_its_locks_differ(self, client: Client) -> None:
        manager, start = Manager(client), datetime.now(UTC) - timedelta(hours=1)
        await manager.bulk_create_jobs(
            JobInit(team_id=1, queue_name="hog", priority=n % 3, scheduled=start + timedelta(seconds=-n))
            for n in range(60)
        )
        async with Worker(client, "hog") as worker:
            jobs = await worker.dequeue_jobs()
            assert [(job.priority, job.scheduled) for job in jobs] == sorted(
                (job.priority, job.scheduled) for job in jobs
            )
            assert len({job.lock_id for job in jobs}) == 60


class TestRelease:
    async def test_by_id(self, client: Client) -> None:
        [job_id] = await create(client, blob=b"b")
        async with Worker(client, "hog") as worker:
            await worker.dequeue_jobs()
            later = datetime.now(UTC) + timedelta(hours=1)
            worker.set_vm_state(job_id, b"v2")
            worker.set_parameters(job_id, None)
            worker.set_metadata(job_id, b"m")
            worker.set_blob(job_id, b"")
            worker.set_queue(job_id, "elsewhere")
            worker.set_priority(job_id, 0)
            worker.set_scheduled(job_id, later)
            worker.set_state(job_id, "available")
            await worker.heartbeat(job_id)
            assert await worker.release_job(job_id) is JobState.AVAILABLE
            stored = await Manager(client).get_job(job_id)
            assert (stored.vm_state, stored.parameters, stored.metadata, stored.blob) == (b"v2", None, b"m", b"")
            assert (stored.queue_name, stored.priority) == ("elsewhere", 0)
            assert abs(stored.scheduled - later) < timedelta(milliseconds=1)

    async def test_a_job_that_is_not_held_is_refused_and_never_created(self, client: Client) -> None:
        [job_id] = await create(client)
        async with Worker(client, "hog") as worker, Worker(client, "hog") as other:
            await worker.dequeue_jobs()
            for stranger in (job_id, UUID(int=5)):
                with pytest.raises(LeaseLost, match="not held"):
                    other.set_state(stranger, "completed")
                with pytest.raises(LeaseLost, match="not held"):
                    other.release_job(stranger)
                with pytest.raises(LeaseLost, match="not held"):
                    await other.heartbeat(stranger)
            worker.set_state(job_id, "completed")
            await worker.release_job(job_id)
            await worker.dequeue_jobs()
            with pytest.raises(LeaseLost):
                worker.release_job(job_id)
            assert worker._jobs == {}
            assert len(await Manager(client).list_jobs()) == 1

    async def test_states_are_the_five(self, client: Client) -> None:
        await create(client)
        async with Worker(client, "hog") as worker:
            [job] = await worker.dequeue_jobs()
            for state in ("cancelled", "done", "", None):
                with pytest.raises(InvalidJob, match="state: expected"):
                    job.set_state(state)  # type: ignore[arg-type]
            job.set_state("running")
            with pytest.raises(InvalidJob, match="state: expected"):
                job.release()

    async def test_a_stale_lock_changes_nothing(self, client: Client) -> None:
        [job_id] = await create(client)
        async with Worker(client, "hog") as worker, Worker(client, "hog") as other:
            [stale] = await worker.dequeue_with_vm_state()
            await reap(client)
            [current] = await other.dequeue_with_vm_state()
            assert current.janitor_touch_count == 1
            assert current.transition_count == 3
            stale.set_vm_state(b"stale")
            stale.set_state("completed")
            with pytest.raises(LeaseLost):
                await stale.release()
            with pytest.raises(LeaseLost):
                await worker.heartbeat(job_id)
            current.set_state("completed")
            assert await current.release() is JobState.COMPLETED
            assert (await Manager(client).get_job(job_id)).vm_state == b"v"


class TestLoop:
    async def test_batches_until_it_is_stopped(self, client: Client) -> None:
        await create(client, 25)
        async with Worker(client, "hog", batch=10) as worker:
            sizes: list[int] = []

            async def process(jobs: list[Job]) -> None:
                sizes.append(len(jobs))
                for job in jobs:
                    job.set_state("completed")
                    job.release()
                if sum(sizes) == 25:
                    worker.stop()

            async with asyncio.timeout(60):
                await worker.run(process)
            assert max(sizes) <= 10

    async def test_empty_batches_if_asked_for(self, client: Client) -> None:
        async with asyncio.timeout(60), Worker(client, "hog", include_empty_batches=True, poll_delay="5ms") as worker:
            seen = 0
            async for jobs in worker:
                assert jobs == []
                seen += 1
                if seen == 3:
                    break

    async def test_none_otherwise_and_a_stop_wakes_it_up(self, client: Client) -> None:
        async with asyncio.timeout(60), Worker(client, "hog") as worker:
            running = asyncio.ensure_future(worker.run(lambda jobs: asyncio.sleep(0)))
            while not worker._pulls[True]._takers.demand:
                await asyncio.sleep(0)
            worker.stop()
            await running

    async def test_goes_on_after_a_batch_that_failed_and_while_the_store_is_away(
        self, store: Backend, make_client: MakeClient
    ) -> None:
        flaky = Plain(store)
        async with make_client(flaky) as client, Worker(client, "hog", include_empty_batches=True) as worker:
            await create(client, 3)
            calls: list[list[Job]] = []
            done = asyncio.Event()

            async def process(jobs: list[Job]) -> None:
                if not jobs:
                    return
                calls.append(jobs)
                if len(calls) == 1:
                    jobs[0].set_state("completed")
                    jobs[0].release()
                    jobs[1].set_vm_state(b"half done")
                    raise RuntimeError("a bug")
                for job in jobs:
                    job.set_state("completed")
                    job.release()
                if sum(map(len, calls[1:])) >= 2:
                    done.set()

            running = asyncio.ensure_future(worker.run(process))
            async with asyncio.timeout(60):
                while not calls:
                    await asyncio.sleep(0.01)
                assert not worker.is_healthy()
                flaky.away = True
                await asyncio.sleep(0.1)
                flaky.away = False
                await done.wait()
                while not worker.is_healthy():
                    await asyncio.sleep(0.01)
            worker.stop()
            await running
            again = [job for jobs in calls[1:] for job in jobs]
            assert {job.vm_state for job in again} == {b"v"}
            assert {(await client.get(job.id)).failures[0].message for job in again} == {"RuntimeError('a bug')"}


class TestHealth:
    async def test_is_the_truth(self, client: Client) -> None:
        worker = Worker(client, "hog")
        assert not worker.is_healthy()
        async with worker:
            await create(client, 1)
            [job] = await worker.dequeue_with_vm_state()
            assert worker.is_healthy()
            takers = worker._pulls[True]._takers
            takers.active -= 3_600
            assert worker.is_healthy(), "a long batch is no fault"
            job.set_state("completed")
            await job.release()
            takers.active -= 3_600
            assert not worker.is_healthy()
            assert "nobody has asked for jobs" in worker.health().detail
            assert worker.health().beating
            await worker.dequeue_jobs()
            assert worker.is_healthy()
        assert not worker.is_healthy()


async def test_a_flood_of_failures_keeps_to_the_bound_of_dead_letters(store: Backend) -> None:
    """Between two rounds of the janitor, too: whoever releases them makes room first."""
    seen: list[tuple[int, int]] = []
    given = {"worker": FAST | {"name": "random"}, "retention": {"failed": {"count": 300}}}
    async with Client(Counted(store.sibling(), seen), Settings.load(given, env={}, toml={})) as client:
        await create(client, 1_500)
        async with Worker(client, "hog", batch=200) as worker:
            while jobs := await worker.dequeue_jobs():
                for job in jobs:
                    job.set_state("failed")
                await asyncio.gather(*(job.release() for job in jobs))
    assert max(count for count, _ in seen) <= 330
    assert seen[-1][0] >= 240


async def test_names_that_cyclotron_has_for_it(client: Client) -> None:
    [job_id, other] = await create(client, 2)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with Worker(client, "hog") as worker:
        await worker.dequeue_with_vm_state()
        worker.set_scheduled_at(job_id, later)
        worker.update_job(job_id, "available", {"queue_name": "next", "vm_state": None, "priority": 3})
        await worker.flush_job(job_id)
        stored = await Manager(client).get_job(job_id)
        assert (stored.queue_name, stored.vm_state, stored.parameters, stored.priority) == ("next", None, b"p", 3)
        assert abs(stored.scheduled - later) < timedelta(milliseconds=1)
        with pytest.raises(InvalidJob, match=r"update_job: expected some of .*, got 'vmState'"):
            worker.update_job(other, "completed", {"vmState": b"x"})
        worker.set_state(other, "completed")
        worker.release_job(other)
        await worker.force_flush()
        assert (await Manager(client).get_job(other)).state == "completed"
        with pytest.raises(LeaseLost):
            worker.update_job(UUID(int=1), "completed")


async def test_a_flush_of_all_tells_of_locks_that_were_lost(client: Client) -> None:
    await create(client)
    async with Worker(client, "hog") as worker:
        [job] = await worker.dequeue_jobs()
        await reap(client)
        job.set_state("completed")
        worker.release_job(job.id)
        with pytest.raises(LeaseLost):
            await worker.force_flush()
        await worker.force_flush()
