"""Segments of old days go, and what is still referred to is copied before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest

from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.core.clock import ManualClock
from headrace.core.config import Settings
from headrace.errors import ConfigError
from headrace.keeping.object_keeper import Kept, ObjectKeeper
from headrace.payloads.object_owner import ObjectOwner
from headrace.payloads.objects import Objects
from headrace.payloads.reference import FOLDER, read_reference
from headrace.routing.mover import Mover
from headrace.routing.moving import Moving
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Delete, Reap, Selector, Settlement
from headrace.testing.wrapped import Carry, Wrapped
from headrace.types import JobState, NewJob, Patch, Sections
from tests.objects import server

ALWAYS = {name: {"over": 0, "least": 0} for name in ("parameters", "vm_state", "metadata", "blob")}


HOUR = 3_600_000_000
T = TypeVar("T")


class Broken(Exception):
    """The process dies here."""


class Breaking(Wrapped):
    """A store, and an object store, whose client dies at a given call, before or after it took effect."""

    steps = -1

    async def _call(self, name: str, args: tuple[Any, ...], at: int | None, carry: Carry[Any]) -> Any:
        return await self.broken(lambda: carry(at))

    async def broken(self, call: Callable[[], Awaitable[T]]) -> T:
        self._step()
        answer = await call()
        self._step()
        return answer

    def _step(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Broken

    def breaks(self, objects: Objects) -> None:
        """Die at calls of this object store too."""
        create, delete = objects.create, objects.delete
        objects.create = lambda key, body: self.broken(lambda: create(key, body))  # type: ignore[method-assign]
        objects.delete = lambda keys: self.broken(lambda: delete(keys))  # type: ignore[method-assign]


async def open_client(url: str, backend: Backend, clock: ManualClock) -> Client:
    objects = {"url": url} | ALWAYS
    client = Client(backend, Settings.load({"objects": objects}, env={}, toml={}), clock=clock, rng=Random(1))
    await client.open()
    return client


def keeper_of(client: Client, backend: Backend) -> ObjectKeeper:
    assert client.stowage is not None
    return ObjectKeeper(backend, client.stowage, client.clock, Random(1), client.observers, client.settings.objects)


def new(body: bytes) -> NewJob:
    return NewJob(task="t", sections=Sections(vm_state=body))


async def stored(client: Client) -> dict[str, int]:
    """The objects that there are, and their sizes."""
    assert client.stowage is not None
    return {one.key: one.size async for page in client.stowage.objects.pages(FOLDER) for one in page}


async def body_of(client: Client, job_id: bytes) -> bytes:
    record = await client.fetch(job_id, frozenset({"vm_state"}))
    assert record is not None
    return client.packer.envelope.unwrap(record.cells["vm_state"], "vm_state")[1]


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return open_backend("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db")


async def test_survivors_are_copied_and_their_day_goes_after_the_grace(
    backend: Backend, tmp_path: Path, clock: ManualClock
) -> None:
    client = await open_client(f"file://{tmp_path}/o", backend, clock)
    bodies = [Random(n).randbytes(1_000) for n in range(10)]
    answers = await client.insert([new(body) for body in bodies])
    old = await stored(client)
    keeper = keeper_of(client, backend)
    assert await keeper.keep() == Kept(0, 0, 0)
    await client.alter(Selector(ids=[one.id for one in answers[3:]]), Delete())
    clock.advance("3d")
    assert await keeper.keep() == Kept(3, 0, 0)
    assert await keeper.keep() == Kept(0, 0, 0)
    clock.advance("1h")
    assert await keeper.keep() == Kept(0, 0, len(old))
    left = await stored(client)
    assert not left.keys() & old.keys()
    assert [await body_of(client, one.id) for one in answers[:3]] == bodies[:3]
    assert sum(left.values()) < 4_000
    await client.close()


async def test_a_reference_to_an_object_that_is_gone_holds_up_nothing(
    backend: Backend, tmp_path: Path, clock: ManualClock
) -> None:
    client = await open_client(f"file://{tmp_path}/o", backend, clock)
    [gone] = await client.insert([new(b"1" * 500)])
    [kept] = await client.insert([new(b"2" * 500)])
    [record] = await backend.fetch([gone.id], frozenset({"vm_state"}), clock.stamp())
    assert record is not None
    assert client.stowage is not None
    await client.stowage.objects.delete([read_reference(record.cells["vm_state"], "").key])
    keeper = keeper_of(client, backend)
    clock.advance("3d")
    assert await keeper.keep() == Kept(1, 1, 0)
    assert await keeper.keep() == Kept(0, 1, 0)
    clock.advance("1h")
    assert await keeper.keep() == Kept(0, 1, 1)
    assert await body_of(client, kept.id) == b"2" * 500
    await client.close()


async def test_orphans_are_swept_after_the_grace(backend: Backend, tmp_path: Path, clock: ManualClock) -> None:
    client = await open_client(f"file://{tmp_path}/o", backend, clock)
    [kept, dropped] = [(await client.insert([new(b"%d" % n * 500)]))[0] for n in (1, 2)]
    await client.alter(Selector(ids=[dropped.id]), Delete())
    keeper = keeper_of(client, backend)
    assert await keeper.sweep() == []
    clock.advance("2h")
    [orphan] = await keeper.sweep(dry_run=True)
    assert len(await stored(client)) == 2
    assert await keeper.sweep() == [orphan]
    assert await keeper.sweep() == []
    assert await body_of(client, kept.id) == b"1" * 500
    await client.close()


async def test_since_when_an_hour_is_unused_is_known_to_all_processes(
    backend: Backend, tmp_path: Path, clock: ManualClock
) -> None:
    """No worker lives as long as the grace."""
    client = await open_client(f"file://{tmp_path}/o", backend, clock)
    [gone] = await client.insert([new(b"1" * 500)])
    await client.alter(Selector(ids=[gone.id]), Delete())
    clock.advance("3d")
    for _ in range(3):
        assert await keeper_of(client, backend).keep() == Kept(0, 0, 0)
        clock.advance("20m")
    assert await keeper_of(client, backend).keep() == Kept(0, 0, 1)
    await client.close()


async def test_a_worker_that_starts_keeps_order_if_a_round_is_due(
    backend: Backend, tmp_path: Path, clock: ManualClock
) -> None:
    """Workers that live shorter than a round's interval make rounds too, and not each one."""
    client = await open_client(f"file://{tmp_path}/o", backend, clock)
    [gone] = await client.insert([new(b"1" * 500)])
    await client.alter(Selector(ids=[gone.id]), Delete())
    clock.advance("3d")
    looks = 0

    async def live() -> None:
        """A worker that ends once it sleeps until its next round."""
        nonlocal looks
        keeper = keeper_of(client, backend)
        keep, ended = keeper.keep, asyncio.Event()

        async def counted() -> Kept:
            nonlocal looks
            looks += 1
            return await keep()

        keeper.keep = counted  # type: ignore[method-assign]
        keeper._rng = Random(1)
        random = keeper._rng.random

        def sleeps() -> float:
            ended.set()
            return random()

        keeper._rng.random = sleeps  # type: ignore[method-assign]
        running = asyncio.create_task(keeper.run())
        await ended.wait()
        running.cancel()
        await asyncio.wait([running])

    for _ in range(3):
        await live()
    assert looks == 1
    clock.advance("1h")
    await live()
    assert looks == 2
    assert await stored(client) == {}
    await client.close()


async def test_two_stores_do_not_share_objects(backend: Backend, tmp_path: Path, clock: ManualClock) -> None:
    """Each would delete what only the other one refers to."""
    url = f"file://{tmp_path}/o"
    other = await open_client(url, open_backend("memory://"), clock)
    [kept] = await other.insert([new(b"1" * 500)])
    with pytest.raises(ConfigError, match="expected a prefix of this store's own"):
        await open_client(url, backend, clock)
    assert await body_of(other, kept.id) == b"1" * 500
    await other.close()


async def test_a_store_whose_objects_were_adopted_by_another_deletes_nothing(
    backend: Backend, tmp_path: Path, clock: ManualClock
) -> None:
    url = f"file://{tmp_path}/o"
    other = await open_client(url, open_backend("memory://"), clock)
    [gone] = await other.insert([new(b"1" * 500)])
    await other.alter(Selector(ids=[gone.id]), Delete())
    assert other.stowage is not None
    await backend.open()
    assert backend.documents is not None
    await ObjectOwner(other.stowage.objects, backend.documents).adopt()
    await backend.close()
    client = await open_client(url, backend.sibling(), clock)
    clock.advance("3d")
    keeper = keeper_of(other, await other.backend())
    for _ in range(2):
        assert await keeper.keep() == Kept(0, 0, 0)
        clock.advance("2h")
    with pytest.raises(ConfigError, match="another store's"):
        await keeper.sweep()
    with pytest.raises(ConfigError, match="expected a prefix of this store's own"):
        await open_client(url, (await other.backend()).sibling(), clock)
    assert len(await stored(client)) == 1
    await other.close()
    await client.close()


async def test_objects_pass_with_the_jobs_that_refer_to_them_to_another_store(
    tmp_path: Path, clock: ManualClock
) -> None:
    """From the first job that moves to the end of the transfer nobody deletes: not the store that is left or the one
    that is moved to, used alone by mistake. Then the new one does, and the old one never again."""
    url = f"file://{tmp_path}/o"
    old, new_store = open_backend("memory://"), open_backend("memory://")
    moving = Moving(old, new_store)
    client = await open_client(url, moving, clock)
    answers = await client.insert([new(b"%d" % n * 500) for n in range(5)])

    async def rounds(store: Backend) -> int:
        keeper = keeper_of(client, store)
        deleted = 0
        for _ in range(2):
            deleted += (await keeper.keep()).deleted
            clock.advance("2h")
        return deleted

    mover = Mover(moving, seen=0)
    await mover.start()
    await mover.cutover()
    clock.advance("3d")
    assert [await rounds(store) for store in (old, new_store, moving)] == [0, 0, 0]
    with pytest.raises(ConfigError, match="a transfer to or from this one has not ended"):
        await keeper_of(client, old).sweep()
    await mover.rollback()
    assert [await rounds(store) for store in (new_store, old)] == [0, 1]
    await mover.start()
    await mover.cutover()
    await mover.finish()
    clock.advance("3d")
    assert [await rounds(store) for store in (old, new_store)] == [0, 1]
    assert [await body_of(client, one.id) for one in answers] == [b"%d" % n * 500 for n in range(5)]
    alone = await open_client(url, new_store.sibling(), clock)
    assert await body_of(alone, answers[0].id) == b"0" * 500
    await alone.close()
    await client.close()


@pytest.mark.parametrize(("kind", "hours"), [("memory", 3), ("s3", 4)])
async def test_thirty_days_with_some_jobs_that_live_for_weeks(
    kind: str, hours: int, tmp_path: Path, clock: ManualClock
) -> None:
    """Most jobs are gone after a day, as with the default settings. A real server is asked in longer steps."""
    backend = open_backend("memory://")
    url = "memory://" if kind == "memory" else server().url(f"days/{tmp_path.name}/{clock.now()}")
    client = await open_client(url, backend, clock)
    keeper, rng = keeper_of(client, backend), Random(7)
    ends: dict[bytes, int] = {}
    shares: list[float] = []
    assert backend.references is not None
    steps = 24 // hours
    for step in range(steps * 45):
        for one in await client.insert([new(rng.randbytes(500)) for _ in range(200 // steps)]):
            ends[one.id] = clock.now() + HOUR * (rng.randint(14 * 24, 28 * 24) if rng.random() < 0.05 else 24)
        clock.advance(f"{hours}h")
        done = [job_id for job_id, end in ends.items() if end <= clock.now()]
        await client.alter(Selector(ids=done), Delete())
        for job_id in done:
            del ends[job_id]
        await keeper.keep()
        if step >= steps * 15:
            found = await backend.references.find(1 << 30, limit=10_000)
            live = sum(read_reference(cell, "").length for job in found for cell in job.cells.values())
            shares.append(sum((await stored(client)).values()) / live)
    assert len(shares) == steps * 30
    assert max(shares) <= 1.5
    await client.close()


async def run_one(client: Client, backend: Backend, known: dict[bytes, set[bytes]], rng: Random) -> None:
    """Claim a job, and finish it with another state."""
    at = client.clock.stamp()
    await backend.reap(Reap(max_lost=1_000), at)
    assert client.stowage is not None
    for job in (await backend.claim(Claim("w", ("default",), 1, 1), at)).jobs:
        body = rng.randbytes(400)
        known[job.id].add(body)
        cells = client.packer.patch(Patch(sections=Sections(vm_state=body)), job.id, "")
        settled = Settlement(job.id, job.epoch, "w", JobState.AVAILABLE, cells=cells)
        await backend.finish(await client.stowage.stow_settlements([settled], lambda _, job=job: job), at)  # type: ignore[misc]
        known[job.id] = {body}


@pytest.mark.parametrize(("kind", "seed"), [*(("file", n) for n in range(20)), *(("s3", n) for n in range(5))])
async def test_a_death_at_any_step_leaves_no_dangling_reference_and_no_orphan(
    kind: str, seed: int, tmp_path: Path, clock: ManualClock
) -> None:
    rng = Random(seed)
    inner = open_backend("memory://")
    backend = Breaking(inner)
    url = f"file://{tmp_path}/o" if kind == "file" else server().url(f"deaths/{tmp_path.name}/{clock.now()}")
    client = await open_client(url, backend, clock)
    keeper = keeper_of(client, backend)
    known: dict[bytes, set[bytes]] = {}
    assert client.stowage is not None
    backend.breaks(client.stowage.objects)
    for _ in range(10):
        backend.steps = rng.randint(1, 36)
        try:
            body = rng.randbytes(400)
            job_id = UUID(int=rng.getrandbits(128))
            known[job_id.bytes] = {body}
            await client.insert([NewJob(task="t", id=job_id, sections=Sections(vm_state=body))])
            await run_one(client, backend, known, rng)
            clock.advance(f"{rng.randint(0, 40)}h")
            await keeper.keep()
            await keeper.sweep()
        except Broken:
            keeper = keeper_of(client, backend)
        backend.steps = -1
        there = await inner.fetch([*known])
        known = {job_id: bodies for (job_id, bodies), one in zip(known.items(), there, strict=True) if one is not None}
        for stored_id, bodies in known.items():
            assert await body_of(client, stored_id) in bodies
    clock.advance("2h")
    keeper = keeper_of(client, backend)
    await keeper.sweep()
    assert inner.references is not None
    referred = {
        read_reference(cell, "").key
        for job in await inner.references.find(1 << 30, limit=10_000)
        for cell in job.cells.values()
    }
    assert (await stored(client)).keys() == referred
    await client.close()
