"""Jobs whose sections lie in an object store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from servers.seaweedfs import SeaweedFS

from headrace import Again, App, Fail, Job, NewJob, Patch, Retry
from headrace.errors import ConfigError, JobFailed, ObjectMissing, ObjectsUnavailable
from headrace.payloads.reference import FOLDER, read_reference
from headrace.payloads.segments import ToStow
from headrace.seam.references import Swap, is_reference
from headrace.types import JobState, Sections
from tests.facades.harness import WITH_STREAMS, Store
from tests.objects import server
from tests.worker.test_doubt import ONCE
from tests.worker.test_last_chance import Found, vanish

BODY = os.urandom(4_500)
ALWAYS = {name: {"over": 0, "least": 0} for name in ("parameters", "vm_state", "metadata", "blob")}


def app_of(objects: str, url: str = "memory://", **more: Any) -> App:
    return App(url, objects={"url": objects} | ALWAYS, worker={"poll": "100ms", "concurrency": 50}, **more)


def app_on(kind: str, objects: str | None, tmp_path: Path) -> App:
    """On a blank store of this kind."""
    where: dict[str, Any] = {} if objects is None else {"objects": {"url": objects} | ALWAYS}
    return Store(kind, tmp_path).app(worker={"poll": "100ms", "concurrency": 50}, **where)


@pytest.fixture
def own_server() -> Iterator[SeaweedFS]:
    """A server that a test may kill."""
    seaweed = SeaweedFS()
    try:
        seaweed.start()
        yield seaweed
    finally:
        seaweed.close()


async def cells_of(app: App, job_id: UUID) -> dict[str, bytes]:
    """The cells of a job as the store has them."""
    backend = await app.client.backend()
    [record] = await backend.fetch([job_id.bytes], frozenset(ALWAYS))
    assert record is not None
    return record.cells


def new(**more: Any) -> NewJob:
    return NewJob(task="echo", args={"text": "x" * 500}, sections=Sections(vm_state=BODY, blob=BODY * 4), **more)


@pytest.mark.parametrize("kind", WITH_STREAMS)
async def test_a_job_runs_with_sections_from_the_object_store(kind: str, tmp_path: Path) -> None:
    app = app_on(kind, server().url(f"runs/{tmp_path.name}"), tmp_path)
    seen: list[tuple[str, dict[str, bytes]]] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> str:
        seen.append((text, dict(job.sections)))
        return text.upper()

    async with app:
        before = server().requests()
        answers = await app.client.insert([new() for _ in range(1_000)])
        assert all(map(is_reference, (await cells_of(app, UUID(bytes=answers[0].id))).values()))
        await app.drain()
        assert seen == [("x" * 500, {"vm_state": BODY, "blob": BODY * 4})] * 1_000
        assert server().requests() - before <= 200  # of 3,000 sections; on a busy machine claims are small
        assert (await app.get(answers[0].id)).result == "X" * 500


async def test_a_helper_runs_a_job_on_its_last_chance_with_its_sections(tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    seen: list[tuple[str, bytes | None]] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> str:
        seen.append((text, job.sections["blob"]))
        return text.upper()

    async with app:
        [answer], backend = await app.client.insert([new(queue="aside")]), await app.client.backend()
        await vanish(backend, [answer.id], await backend.now())
        app.client.guest, app.client.helped = True, Found()
        await app.drain()
        assert seen == [("x" * 500, BODY * 4)]
        assert (await app.get(answer.id)).result == "X" * 500


async def test_a_run_sets_sections_and_the_next_one_has_them(tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    states: list[bytes | None] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> Any:
        states.append(job.sections.get("vm_state"))
        if len(states) == 1:
            return Again(0, patch=Patch(sections=Sections(vm_state=b"1" * 1_000)))
        if len(states) == 2:
            return Retry(0, patch=Patch(sections=Sections(vm_state=None)))
        return Fail("no", patch=Patch(sections=Sections(vm_state=b"last" * 100)))

    async with app:
        [answer] = await app.client.insert([new()])
        await app.drain()
        assert states == [BODY, b"1" * 1_000, None]
        cells = await cells_of(app, UUID(bytes=answer.id))
        assert cells.keys() == {"parameters", "vm_state", "blob"}
        assert all(map(is_reference, cells.values()))


async def test_a_dead_letter_leaves_the_store(tmp_path: Path) -> None:
    rules = {name: {"over": None, "delay": None} for name in ALWAYS}
    app = App("memory://", objects={"url": f"file://{tmp_path}/o"} | rules)

    @app.task(name="echo", queue="default")
    async def echo(text: str) -> None:
        raise LookupError("no")

    async with app:
        handle = await echo.options(max_attempts=1).enqueue(os.urandom(300).hex())
        assert not any(map(is_reference, (await cells_of(app, handle.id)).values()))
        await app.drain()
        assert all(map(is_reference, (await cells_of(app, handle.id)).values()))
        with pytest.raises(JobFailed) as caught:
            await handle.result()
        assert len(caught.value.payload["text"]) == 600


async def test_who_reads_a_section_whose_object_is_gone_is_told(tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    async with app:
        [answer] = await app.client.insert([new()])
        reference = read_reference((await cells_of(app, UUID(bytes=answer.id)))["parameters"], "parameters")
        (tmp_path / "o" / reference.key).unlink()
        record = await app.client.fetch(answer.id)
        assert record is not None
        with pytest.raises(ObjectMissing, match="it is not there"):
            app.client.packer.envelope.unwrap(record.cells["parameters"], "parameters")
        assert "it is not there" in (await app.get(answer.id)).args


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_a_job_whose_object_is_gone_or_damaged_fails_and_says_so(damage: str, tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    ran: list[str] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> None:
        ran.append(text)

    async with app:
        [bad] = await app.client.insert([new()])
        await app.client.insert([new()])
        reference = read_reference((await cells_of(app, UUID(bytes=bad.id)))["blob"], "blob")
        file = tmp_path / "o" / reference.key
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(bytes(reference.offset + reference.length))
        await app.drain()
        info = await app.get(bad.id)
        assert info.state is JobState.FAILED
        assert info.reason == "payload cannot be used"
        assert info.failures[-1].type.endswith("ObjectMissing" if damage == "missing" else "ObjectCorrupt")
        assert len(ran) == 1


async def test_a_job_whose_object_was_copied_after_its_claim_runs(tmp_path: Path) -> None:
    """The claim brings the old reference: it is looked at once more."""
    app = app_of(f"file://{tmp_path}/o")
    ran: list[str] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> None:
        ran.append(text)

    async with app:
        [answer] = await app.client.insert([new()])
        stowage, backend = app.client.stowage, await app.client.backend()
        assert stowage is not None
        assert backend.references is not None
        load, copied = stowage.load, False

        async def late(jobs: Any) -> Any:
            nonlocal copied
            if not copied:
                copied = True
                [cells] = jobs
                [loaded] = await load(jobs)
                old = [read_reference(cell, name).key for name, cell in cells.items()]
                new_refs = await stowage.segments.stow([ToStow(cell) for cell in loaded.values()])  # type: ignore[arg-type]
                swap = Swap(answer.id, cells, dict(zip(cells, [one.cell for one in new_refs], strict=True)))
                assert await backend.references.swap([swap]) == [True]  # type: ignore[union-attr]
                await stowage.objects.delete(old)
            return await load(jobs)

        stowage.load = late  # type: ignore[method-assign]
        await app.drain()
        assert len(ran) == 1


@pytest.mark.parametrize("kind", WITH_STREAMS)
@pytest.mark.parametrize("objects", [True, False], ids=["in objects", "in the store"])
async def test_a_section_is_loaded_when_the_handler_asks_for_it(kind: str, objects: bool, tmp_path: Path) -> None:
    app = app_on(kind, f"file://{tmp_path}/o" if objects else None, tmp_path)
    seen: list[Any] = []

    @app.task(name="echo", queue="default", sections=["blob"])
    async def echo(job: Job[None], text: str) -> None:
        seen.append((sorted(job.sections), await job.load("vm_state"), await job.load("metadata")))
        with pytest.raises(ValueError, match="expected one of vm_state"):
            await job.load("parameters")

    read: list[str] = []
    async with app:
        await app.client.insert([new()])
        if app.client.stowage is not None:
            objects_read = app.client.stowage.objects.read
            app.client.stowage.objects.read = lambda key, ranges: (read.append(key), objects_read(key, ranges))[1]  # type: ignore[method-assign, func-returns-value]
        await app.drain()
        assert seen == [(["blob"], BODY, None)]
        assert len([key for key in read if key.startswith(FOLDER)]) == (2 if objects else 0)


def test_sections_that_there_are_not() -> None:
    app = App("memory://")
    for wrong in ("vm_state", ["parameters"], ["state"]):
        with pytest.raises(ConfigError, match="expected some of vm_state, metadata, blob"):
            app.task(name="t", sections=wrong)(lambda: None)


async def test_an_outage_while_a_handler_loads_costs_no_attempt(tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    attempts: list[int] = []

    @app.task(name="echo", queue="default", sections=[])
    async def echo(job: Job[None], text: str) -> None:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise ObjectsUnavailable
        assert await job.load("vm_state") == BODY

    async with app:
        [answer] = await app.client.insert([new()])
        await app.drain()
        assert (await app.get(answer.id)).state is JobState.AVAILABLE
        await app.reschedule(answer.id)
        await app.drain()
        assert attempts == [0, 0]
        assert (await app.get(answer.id)).state is JobState.COMPLETED


async def test_while_the_object_store_is_away_jobs_wait_and_no_attempt_is_lost(own_server: SeaweedFS) -> None:
    app = app_of(own_server.url(timeout="2s"))
    ran: list[int] = []
    events: list[str] = []
    app.observe(lambda event: events.append(event.kind.value))

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> None:
        ran.append(job.attempt)

    async with app:
        answers = await app.client.insert([new() for _ in range(20)])
        own_server.kill()
        running = asyncio.create_task(app.work(["default"]))
        try:
            async with asyncio.timeout(60):
                while events.count("released") < 20:
                    await asyncio.sleep(0.05)
                assert ran == []
                await asyncio.to_thread(own_server.start)
                while len(ran) < 20:
                    await asyncio.sleep(0.05)
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert ran == [0] * 20
        assert (await app.get(answers[0].id)).attempt == 0


async def test_a_pull_brings_sections_from_the_object_store_and_takes_them_there(tmp_path: Path) -> None:
    """Jobs with sections here and there come together."""
    app = app_of(f"file://{tmp_path}/o")
    plain = NewJob(task="echo", id=UUID(int=1))
    async with app:
        await app.client.insert([new(id=UUID(int=i + 2)) for i in range(20)])
        backend = await app.client.backend()
        await backend.insert([app.client.packer.pack(plain)])
        async with app.pull("default") as pull:
            jobs = await pull.take(wait="60s")
            assert len(jobs) == 21
            assert [job.section("vm_state") for job in jobs].count(BODY) == 20
            for job in jobs:
                job.set_vm_state(BODY[::-1])
                job.set_state("paused")
                job.release()
        cells = await cells_of(app, UUID(int=2))
        assert all(map(is_reference, cells.values()))
        await app.resume_job(UUID(int=2))
        async with app.pull("default", want={"blob"}) as pull:
            [job] = await pull.take(wait="60s")
            assert job.section("blob") == BODY * 4
            assert await job.load("vm_state") == BODY[::-1]


async def test_an_object_says_how_long_it_is_kept(tmp_path: Path) -> None:
    """000-120: in days, after the day that it lies in."""
    async with app_of(server().url(f"tagged/{tmp_path.name}")) as app:
        [answer] = await app.client.insert([new()])
        reference = read_reference((await cells_of(app, UUID(bytes=answer.id)))["blob"], "blob")
        assert app.client.stowage is not None
        found = await app.client.stowage.objects.location.connect().get_async(reference.key)
        assert found.attributes["headrace_keep_days"] == "2"


async def test_an_unexpected_error_while_sections_are_loaded_strands_no_job(tmp_path: Path) -> None:
    """They go back to the store, and no attempt counts."""
    app = app_of(f"file://{tmp_path}/o")
    ran: list[int] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> None:
        ran.append(job.attempt)

    async with app:
        answers = await app.client.insert([new() for _ in range(5)])
        stowage = app.client.stowage
        assert stowage is not None
        load, broken = stowage.load, True

        async def breaking(jobs: Any) -> Any:
            if broken:
                raise RuntimeError("a bug")
            return await load(jobs)

        stowage.load = breaking  # type: ignore[method-assign]
        await app.drain()
        broken = False
        assert [(await app.get(one.id)).state for one in answers] == [JobState.AVAILABLE] * 5
        for one in answers:
            await app.reschedule(one.id)
        await app.drain()
        assert ran == [0] * 5


async def test_an_unexpected_error_while_sections_are_stowed_ends_no_worker(tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    ran: list[bytes | None] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> Any:
        ran.append(job.sections.get("vm_state"))
        if len(ran) == 1:
            return Again(0, patch=Patch(sections=Sections(vm_state=b"1" * 1_000)))
        return None

    async with app:
        await app.client.insert([new()])
        stowage = app.client.stowage
        assert stowage is not None

        async def breaking(*_: Any) -> Any:
            raise RuntimeError("a bug")

        stowage.stow_settlements = breaking  # type: ignore[method-assign]
        await app.drain()
        assert ran == [BODY, b"1" * 1_000]


async def test_a_claim_of_references_is_bounded_by_what_they_weigh_once_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are too many come later, with no attempt lost and in their order; claims ask for fewer meanwhile."""
    monkeypatch.setattr("headrace.worker.loader._MOST", 100_000)
    app = app_of(f"file://{tmp_path}/o")
    ids = [UUID(int=i + 1) for i in range(60)]
    async with app:
        await app.client.insert([new(id=one) for one in ids])
        found: list[UUID] = []
        async with app.pull("default", batch=60) as pull:
            while len(found) < 60:
                jobs = await pull.take(wait="60s")
                assert 5 < len(jobs) <= 11  # of about 9,100 bytes each
                found += [job.id for job in jobs]
                for job in jobs:
                    assert job.attempt == 0
                    job.set_state("completed")
                    job.release()
        assert found == ids


async def add_jobs_that_may_start_once(app: App) -> list[bytes]:
    await app.client.backend()
    rows = [replace(app.client.packer.pack(new()), headers=ONCE) for _ in range(6)]
    await app.client._insert_rows(rows)
    return [row.id for row in rows]


@asynccontextmanager
async def hanging(app: App) -> AsyncIterator[asyncio.Event]:
    """The object store of this app does not answer. The event is set when it was asked."""
    stowage, asked = app.client.stowage, asyncio.Event()
    assert stowage is not None
    load = stowage.load

    async def hang(jobs: Any) -> Any:
        asked.set()
        await asyncio.get_running_loop().create_future()

    stowage.load = hang  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        stowage.load = load  # type: ignore[method-assign]


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("kind", WITH_STREAMS)
async def test_a_worker_that_is_stopped_while_sections_are_loaded_gives_their_jobs_back(
    kind: str, cancelled: bool, tmp_path: Path
) -> None:
    """At once, without a loss, and as they were: those that may start only once still may."""
    app = app_on(kind, f"file://{tmp_path}/o", tmp_path)
    ran: list[bytes] = []

    @app.task(name="echo", queue="default")
    async def echo(job: Job[None], text: str) -> None:
        ran.append(job.id.bytes)

    async with app:
        jobs = await add_jobs_that_may_start_once(app)
        async with hanging(app) as asked, asyncio.timeout(60):
            working = asyncio.ensure_future(app.work())
            await asked.wait()
            working.cancel() if cancelled else app.stop()
            await asyncio.wait([working])
        infos = [await app.get(one) for one in jobs]
        assert {(info.state, info.lost) for info in infos} == {(JobState.AVAILABLE, 0)}
        await app.drain()
        assert sorted(ran) == sorted(jobs)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_so_does_a_pull(cancelled: bool, tmp_path: Path) -> None:
    app = app_of(f"file://{tmp_path}/o")
    async with app, asyncio.timeout(60):
        jobs = await add_jobs_that_may_start_once(app)
        pull = app.pull("default")
        async with hanging(app) as asked:
            taking = asyncio.ensure_future(pull.take())
            await asked.wait()
            if cancelled:
                assert pull._run is not None
                pull._run.cancel()
            await pull.close()
            await asyncio.wait([taking])
        infos = [await app.get(one) for one in jobs]
        assert {(info.state, info.lost) for info in infos} == {(JobState.AVAILABLE, 0)}
        async with app.pull("default") as another:
            assert sorted(job.id.bytes for job in await another.take()) == sorted(jobs)
