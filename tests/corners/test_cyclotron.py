"""Corner cases of Cyclotron that no other test shows; and that the page about them names tests that exist."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

import headrace
from headrace import App, Client, JobState, NewJob, Settings
from headrace.backends.memory import MemoryBackend
from headrace.cyclotron import JobInit, Manager, Worker
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Reap
from tests.worker.conftest import store as a_store
from tests.worker.stores import Plain

__all__ = ["a_store"]

ROOT = Path(__file__).parents[2]
CONFORMANCE = Path(headrace.__file__).parent / "testing" / "conformance"
PAGE = ROOT / "docs" / "explain" / "cyclotron.md"


def client_of(backend: Backend) -> Client:
    return Client(backend, Settings.load({"worker": {"name": "random", "poll": "200ms"}}, env={}, toml={}))


@pytest.fixture
async def client(a_store: Backend) -> AsyncIterator[Client]:
    async with client_of(a_store.sibling()) as made:
        yield made


async def test_a_job_that_may_not_run_is_not_touched(client: Client) -> None:
    """Its team is over its rate: no claim changes anything about it."""
    manager = Manager(client)
    await App(client).policies.set("hog", tenant_rate="1/h")
    await manager.bulk_create_jobs([JobInit(team_id=1, queue_name="hog", id=UUID(int=n)) for n in (1, 2)])
    async with Worker(client, "hog") as worker:
        [first] = await worker.dequeue_jobs()
        assert first.id == UUID(int=1)
        before = await manager.get_job(UUID(int=2))
        for _ in range(10):
            assert await worker.dequeue_jobs() == []
        assert await manager.get_job(UUID(int=2)) == before
        assert before.transition_count == 0


async def test_releases_share_trips_and_go_at_once(a_store: Backend) -> None:
    """However often: nothing adds up, and nothing waits for company."""
    counted = Plain(a_store)
    async with client_of(counted) as client, Worker(client, "hog", batch=500) as worker:
        for number in range(5):
            await Manager(client).bulk_create_jobs([JobInit(team_id=1, queue_name="hog") for _ in range(500)])
            jobs = []
            while len(jobs) < 500:
                jobs += await worker.dequeue_with_vm_state()
            counted.calls.clear()
            for job in jobs:
                job.set_state("completed")
            flushes = [job.release() for job in jobs]
            assert {await flush for flush in flushes} == {JobState.COMPLETED}
            assert counted.calls.count("finish") <= 2, number


async def test_a_job_moves_to_another_store_without_being_lost_or_doubled(client: Client) -> None:
    """Stored there under the same id, then completed here. If the first step fails, it stays; a second try meets it."""
    there = Plain(MemoryBackend())
    patient = Settings.load({"patience": 0}, env={}, toml={})
    async with Client(there, patient) as other, Worker(client, "hog") as worker:
        here, elsewhere = Manager(client), Manager(other)
        job_id = await here.create_job(JobInit(team_id=1, queue_name="hog", vm_state=b"v", source="here"))

        async def move() -> None:
            [job] = await worker.dequeue_with_vm_state()
            moved = JobInit(team_id=1, queue_name="hog", id=job.id, vm_state=job.vm_state, source=job.source)
            try:
                await elsewhere.create_job(moved)
            except Unavailable:
                job.set_state("available")
                await job.release()
                raise
            job.set_state("completed")
            await job.release()

        await elsewhere.open()
        there.away = True
        with pytest.raises(Unavailable):
            await move()
        assert (await here.get_job(job_id)).state == "available"
        there.away = False
        elsewhere = Manager(other)
        await elsewhere.create_job(JobInit(team_id=1, queue_name="hog", id=job_id, vm_state=b"v", source="here"))
        await move()
        assert (await here.get_job(job_id)).state == "completed"
        [found] = await elsewhere.list_jobs()
        assert (found.id, found.state, found.source) == (job_id, "available", "here")


async def test_a_replayed_job_can_be_poison_again(client: Client) -> None:
    manager = Manager(client)
    job_id = await manager.create_job(JobInit(team_id=1, queue_name="hog"))
    backend = await client.backend()
    at = await backend.now()
    for _ in range(3):
        for _ in range(2):
            at += 10_000_000
            assert (await backend.claim(Claim("dead", ("hog",), 1, 1_000_000), at)).jobs
            at += 10_000_000
            [reaped] = await backend.reap(Reap(max_lost=1), at)
        assert (reaped.state, reaped.reason) == (JobState.FAILED, "lost")
        await manager.replay_job(job_id)


async def test_a_source_stays_with_its_job(client: Client) -> None:
    app = App(client)
    await client.insert([NewJob(task="x", queue="hog", id=UUID(int=1), source="kafka", headers={"trace": "1"})])
    async with Worker(client, "hog") as worker:
        for _ in range(2):
            [job] = await worker.dequeue_jobs()
            assert job.source == "kafka"
            job.set_state("available")
            await job.release()
    info = await app.get(UUID(int=1))
    assert (info.source, info.headers["trace"]) == ("kafka", "1")


def test_the_page_names_every_case_and_tests_that_exist() -> None:
    text = PAGE.read_text()
    assert re.findall(r"^\| (C\d+) \|", text, re.M) == [f"C{number}" for number in range(1, 45)]
    for line in text.splitlines():
        file = ""
        for given, name in re.findall(r"`([\w/.]*)::(\w+)`", line):
            file = given or file
            path = CONFORMANCE / file.removeprefix("conformance/") if "conformance/" in file else ROOT / "tests" / file
            assert f"def {name}(" in path.read_text(), f"{file}::{name}"
