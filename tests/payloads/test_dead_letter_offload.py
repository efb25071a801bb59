"""Sections of jobs that died without a worker leave the store."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace import App, Job, JobState, NewJob, Patch, Sections
from headrace.core.clock import ManualClock, SystemClock
from headrace.errors import ObjectsUnavailable
from headrace.keeping.dead_letter_offload import DeadLetterOffload
from headrace.keeping.object_keeper import ObjectKeeper
from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, Claim, JobId, Reap, Requeue, Selector, Settlement
from headrace.seam.references import is_reference
from headrace.types import SECTIONS
from tests.facades.harness import WITH_STREAMS, Store, within
from tests.payloads.test_object_keeper import Breaking, Broken

STATE, BLOB = os.urandom(2_700), os.urandom(100_000)
STAYS = {name: {"over": None, "delay": None} for name in SECTIONS}


@pytest.fixture(params=WITH_STREAMS)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store("memory", tmp_path)
    yield store
    await store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now())


def app_on(store: Store, tmp_path: Path, clock: ManualClock, **rules: Any) -> App:
    return store.app(clock=clock, objects={"url": f"file://{tmp_path}/objects"} | STAYS | rules)


async def offload_of(app: App) -> DeadLetterOffload:
    backend, stowage = await app.client.backend(), app.client.stowage
    assert stowage is not None
    assert backend.archive is not None
    assert backend.documents is not None
    assert backend.references is not None
    return DeadLetterOffload(backend.archive, backend.documents, backend.references, backend, stowage, app.client.clock)


async def keeper_of(app: App, backend: Backend | None = None) -> ObjectKeeper:
    client = app.client
    assert client.stowage is not None
    backend = backend or await client.backend()
    return ObjectKeeper(backend, client.stowage, client.clock, Random(1), client.observers, client.settings.objects)


def job(queue: str, **more: Any) -> NewJob:
    sections = Sections(vm_state=STATE, metadata=b"small", blob=BLOB)
    return NewJob(task="work", queue=queue, args={}, sections=sections, **more)


async def poison(app: App, clock: ManualClock, queue: str) -> None:
    """Let the job that waits in this queue be lost by its worker."""
    backend = await app.client.backend()
    [_] = (await backend.claim(Claim("dead", (queue,), 1, 1_000_000), clock.stamp())).jobs
    clock.advance("1h")
    [reaped] = await backend.reap(Reap(max_lost=0), clock.stamp())
    assert (reaped.state, reaped.reason) == (JobState.FAILED, "lost")


async def away(app: App, *ids: JobId) -> list[list[str]]:
    """The sections of each job that lie in the object store."""
    records = await (await app.client.backend()).fetch(ids, frozenset(SECTIONS), app.client.clock.stamp())
    return [[name for name in SECTIONS if is_reference(one.cells.get(name, b""))] for one in records if one is not None]


async def test_poison_pills_and_what_has_expired(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    app, ran = app_on(store, tmp_path, clock), []

    @app.task(name="work", queue="pills")
    async def work(job: Job[Any]) -> None:
        ran.append(dict(job.sections))

    async with app:
        new = [job("pills"), job("late", expires="30m"), job("ended"), job("waiting", key="k", tenant="t")]
        pill, late, ended, waiting = [one.id for one in await app.client.insert(new)]
        backend = await app.client.backend()
        await backend.alter(Selector(ids=[ended]), Cancel(), clock.stamp())
        await backend.claim(Claim("dead", ("pills",), 1, 1_000_000), clock.stamp())
        clock.advance("1h")
        reaped = await backend.reap(Reap(max_lost=0), clock.stamp())
        assert {one.id: one.reason for one in reaped} == {pill: "lost", late: "expired"}
        offload = await offload_of(app)
        clock.advance("1h")
        assert await offload.look() == 4
        assert await away(app, pill, late, ended, waiting) == [["vm_state", "blob"], ["vm_state", "blob"], [], []]
        assert (await offload.look(), await (await offload_of(app)).look()) == (0, 0)
        await backend.alter(Selector(ids=[pill]), Requeue(), clock.stamp())
        await within(app.drain())
        assert ran == [{"vm_state": STATE, "metadata": b"small", "blob": BLOB}]


async def test_one_that_dies_again(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    """Its sections are in the store once more after a run has set them."""
    app, again = app_on(store, tmp_path, clock), os.urandom(3_000)
    async with app:
        offload, backend = await offload_of(app), await app.client.backend()
        [answer] = await app.client.insert([job("pills", tenant="t", group="g")])
        await poison(app, clock, "pills")
        clock.advance("1h")
        assert await offload.look() == 2
        await backend.alter(Selector(ids=[answer.id]), Requeue(), clock.stamp())
        [one] = (await backend.claim(Claim("w", ("pills",), 1, 1_000_000), clock.stamp())).jobs
        cells = app.client.packer.patch(Patch(sections=Sections(vm_state=again)), one.id, one.tenant)
        released = Settlement(one.id, one.epoch, "w", JobState.AVAILABLE, cells=cells)
        assert await backend.finish([released], clock.stamp()) == [JobState.AVAILABLE]
        assert await away(app, answer.id) == [["blob"]]
        await poison(app, clock, "pills")
        clock.advance("1h")
        assert await offload.look() == 1
        assert await away(app, answer.id) == [["vm_state", "blob"]]


async def test_what_failed_while_the_object_store_was_away(memory: Store, tmp_path: Path, clock: ManualClock) -> None:
    app = app_on(memory, tmp_path, clock)

    @app.task(name="work", queue="default")
    async def work(job: Job[Any]) -> None:
        raise LookupError("no")

    async with app:
        [answer] = await app.client.insert([job("default", max_attempts=1)])
        shutil.move(tmp_path / "objects", tmp_path / "gone")
        (tmp_path / "objects").write_bytes(b"")
        await within(app.drain())
        assert await away(app, answer.id) == [[]]
        clock.advance("1h")
        offload = await offload_of(app)
        for _ in range(2):
            with pytest.raises(ObjectsUnavailable):
                await offload.look()
        (tmp_path / "objects").unlink()
        shutil.move(tmp_path / "gone", tmp_path / "objects")
        assert await offload.look() == 2
        assert await away(app, answer.id) == [["vm_state", "blob"]]


async def test_many_of_them_by_several_processes(memory: Store, tmp_path: Path, clock: ManualClock) -> None:
    """None is left out, and what both have written for one job goes with its hour."""
    app = app_on(memory, tmp_path, clock)
    async with app:
        small = [NewJob(task="work", args={}, sections=Sections(vm_state=os.urandom(300))) for _ in range(1_001)]
        ids = [one.id for one in await app.client.insert(small)]
        backend = await app.client.backend()
        while (await backend.claim(Claim("dead", ("default",), 100, 1_000_000), clock.stamp())).jobs:
            pass
        clock.advance("1h")
        while await backend.reap(Reap(max_lost=0), clock.stamp()):
            pass
        clock.advance("1h")
        left = await asyncio.gather(*[(await offload_of(app)).look() for _ in range(3)])
        assert await away(app, *ids) == [["vm_state"]] * 1_001
        assert sum(left) <= 1_001


async def test_sections_stay_where_dead_letters_do_not_leave(memory: Store, tmp_path: Path, clock: ManualClock) -> None:
    app = app_on(memory, tmp_path, clock, blob={"dead_letters": False, "over": None}, vm_state={"least": 5_000})
    async with app:
        [answer] = await app.client.insert([job("pills")])
        await poison(app, clock, "pills")
        clock.advance("1h")
        assert await (await offload_of(app)).look() == 0
        assert await away(app, answer.id) == [[]]


async def test_a_death_at_any_step(memory: Store, tmp_path: Path, clock: ManualClock) -> None:
    """Nothing is lost, and whoever goes on finishes the work."""
    app = app_on(memory, tmp_path, clock)
    async with app:
        [answer] = await app.client.insert([job("pills")])
        await poison(app, clock, "pills")
        clock.advance("1h")
        breaking = Breaking(await app.client.backend())
        assert app.client.stowage is not None
        breaking.breaks(app.client.stowage.objects)
        deaths = 0
        for step in range(1, 100):
            breaking.steps = step
            keeper = await keeper_of(app, breaking)
            try:
                await keeper.offload()
            except Broken:
                deaths += 1
            else:
                break
        breaking.steps = -1
        assert deaths > 5
        assert await away(app, answer.id) == [["vm_state", "blob"]]
        record = await app.client.fetch(answer.id, frozenset({"vm_state", "blob"}))
        assert record is not None
        unwrapped = {name: app.client.packer.envelope.unwrap(cell, name)[1] for name, cell in record.cells.items()}
        assert unwrapped == {"vm_state": STATE, "blob": BLOB}


async def test_sealed_sections_leave_as_they_are(
    memory: Store, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same rounds in which old objects go."""
    monkeypatch.setenv("DEAD_KEYS", "2026:" + "7f" * 32)
    objects: dict[str, Any] = {"url": f"file://{tmp_path}/objects"} | STAYS
    app, ran = memory.app(clock=clock, objects=objects, payloads={"sealing": {"keys": "env:DEAD_KEYS"}}), []

    @app.task(name="work", queue="pills")
    async def work(job: Job[Any]) -> None:
        ran.append(job.sections["vm_state"])

    async with app:
        [answer] = await app.client.insert([job("pills")])
        await poison(app, clock, "pills")
        clock.advance("1h")
        keeper = await keeper_of(app)
        await keeper.look()
        assert await away(app, answer.id) == [["vm_state", "blob"]]
        await app.client.alter(Selector(ids=[answer.id]), Requeue())
        await within(app.drain())
        assert ran == [STATE]
