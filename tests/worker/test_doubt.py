"""A worker that does not know whether a store has heard it: no job pays for that, and handlers can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace import App, Client, EventKind, Job, JobState, NewJob, Settings
from headrace.backends.memory import MemoryBackend
from headrace.errors import Unavailable
from headrace.schedules.plan import DELIVERY, Delivery
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, Claimed, Reap, Reaped, Renewed, Settlement, Stamp
from tests.worker.conftest import FAST, Told, working

ONCE = msgspec.msgpack.encode({DELIVERY: Delivery.AT_MOST_ONCE.value})


class Torn(MemoryBackend):
    """A store on a line that breaks: so many answers to claims are ``lost``, of so many a ``part``, and while ``cut``
    no beat gets through; while it ``keeps`` leases, none of them is renewed. So many times it ``hides`` what a holder
    has, as if that part of it gave no answer."""

    lost = 0
    part = 0
    cut = False
    keeps = False
    hides: int | None = None

    def sibling(self) -> Backend:
        other = super().sibling()
        torn = self

        async def renew(beat: Beat, at: Stamp = None) -> Renewed:
            if torn.cut:
                raise Unavailable("the line is cut")
            if torn.keeps:
                return Renewed(busy=beat.leases)
            renewed = await MemoryBackend.renew(other, beat, at)  # type: ignore[arg-type]
            if renewed.held and torn.hides:
                torn.hides -= 1
                return replace(renewed, held=(), doubtful=True)
            return renewed

        other.renew = renew  # type: ignore[method-assign]
        return other

    @property
    def finish_and_claim(self) -> None:  # type: ignore[override]
        """Two trips: so a claim is lost by itself."""
        return

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return [] if self.hides is not None else await super().reap(req, at)

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        claimed = await super().claim(req, at)
        if claimed.jobs and self.lost:
            self.lost -= 1
            raise Unavailable("the answer was lost")
        if claimed.jobs and self.part:
            self.part -= 1
            return replace(claimed, jobs=claimed.jobs[:1], next_in=0, doubtful=True)
        return claimed


def app_on(store: Torn, **worker: Any) -> App:
    return App(Client(store, Settings.load({"worker": FAST | worker}, env={}, toml={})))


async def test_jobs_of_a_claim_whose_answer_was_lost_are_given_back_without_a_loss() -> None:
    store = Torn()
    app = app_on(store, lease="30s", concurrency=4)
    ran: list[int] = []

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async with app:
        handles = [await count.enqueue(number) for number in range(3)]
        store.lost = 2
        async with working(app):
            async with asyncio.timeout(25):  # before any lease runs out
                for handle in handles:
                    await handle.result()
        assert sorted(ran) == [0, 1, 2]
        infos = [await app.get(handle.id) for handle in handles]
        assert {(info.state, info.lost) for info in infos} == {(JobState.COMPLETED, 0)}


async def test_jobs_of_a_claim_that_was_answered_in_part_are_given_back_without_a_loss() -> None:
    """Though the part of the store that has them does not answer to beats for longer than a lease."""
    store = Torn()
    app = app_on(store, lease="1500ms", concurrency=4)
    ran: list[int] = []

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async with app:
        handles = [await count.enqueue(number) for number in range(3)]
        store.part, store.hides = 1, 12  # six beats are a lease
        async with working(app):
            async with asyncio.timeout(30):
                for handle in handles:
                    await handle.result()
        assert sorted(ran) == [0, 1, 2]
        infos = [await app.get(handle.id) for handle in handles]
        assert {(info.state, info.lost) for info in infos} == {(JobState.COMPLETED, 0)}
        assert store.hides == 0


async def test_a_handler_is_told_when_its_worker_is_cut_off_past_its_lease() -> None:
    store = Torn()
    app = app_on(store, lease="1500ms")
    seen: list[bool] = []

    @app.task
    async def watch(job: Job[Any]) -> None:
        seen.append(job.cancel.doubtful)
        store.cut = True
        while not job.cancel.doubtful:
            await asyncio.sleep(0.01)
        seen.append(job.cancel.requested)
        store.cut = False
        while job.cancel.doubtful:
            await asyncio.sleep(0.01)

    async with working(app):
        handle = await watch.enqueue()
        async with asyncio.timeout(30):
            await handle.result()
    assert seen == [False, False]


async def test_a_handler_is_told_when_beats_get_through_but_do_not_renew_its_lease() -> None:
    """As while a transaction has the job, or the server that gave it out is away."""
    store = Torn()
    app = app_on(store, lease="1500ms")
    seen: list[bool] = []

    @app.task
    async def watch(job: Job[Any]) -> None:
        seen.append(job.cancel.doubtful)
        store.keeps = True
        while not job.cancel.doubtful:
            await asyncio.sleep(0.01)
        seen.append(job.cancel.requested)
        store.keeps = False
        while job.cancel.doubtful:
            await asyncio.sleep(0.01)

    async with working(app):
        handle = await watch.enqueue()
        async with asyncio.timeout(30):
            await handle.result()
    assert seen == [False, False]


async def test_a_job_that_may_be_started_once_and_was_not_is_given_back(
    make_app: Callable[..., App],
) -> None:
    """A worker that stops with such jobs in its buffer leaves them to the next one."""
    held = asyncio.Event()
    runs: list[int] = []

    def made(**worker: Any) -> App:
        app = make_app(concurrency=1, **worker)

        @app.task(name="hold")
        async def hold() -> None:
            held.set()
            await asyncio.sleep(3600)

        @app.task(name="once")
        async def once(number: int) -> None:
            runs.append(number)

        @app.batch(name="many", size=10)  # a worker with such a task takes more jobs than it has slots
        async def many(jobs: list[Job[Any]]) -> None: ...

        return app

    first, second = made(grace="100ms"), made()
    told = Told()
    first.observe(told)
    async with first:
        once: Any = first.tasks["once"]
        rows = [replace(first.client.packer.pack(once.job(number)), headers=ONCE, priority=1) for number in range(2)]
        await first.client.enqueue(NewJob(task="hold", queue="default"))
        await (await first.client.backend()).insert(rows)
        async with working(first):
            await asyncio.wait_for(held.wait(), 30)
            await told.wait_for(EventKind.STARTED)
    released = {event.id for event in told.events if event.kind is EventKind.RELEASED}
    assert released >= {row.id for row in rows}
    async with second:
        await second.client.cancel(next(event.id for event in told.events if event.kind is EventKind.STARTED))
        await second.drain()
        infos = [await second.get(row.id) for row in rows]
    assert sorted(runs) == [0, 1]
    assert {info.state for info in infos} == {JobState.COMPLETED}


async def test_a_claim_whose_answer_was_lost_begins_nothing() -> None:
    """Jobs that may be started once are started by the next claim, unless they had begun before that one."""
    store = Torn()
    app = app_on(store, lease="6s", concurrency=4)
    ran: list[int] = []

    @app.task
    async def once(number: int) -> None:
        ran.append(number)

    async with app:
        rows = [replace(app.client.packer.pack(once.job(number)), headers=ONCE) for number in range(3)]
        await (await app.client.backend()).insert(rows)
        store.lost = 1
        async with working(app), asyncio.timeout(30):
            await asyncio.gather(*(app.client.wait(row.id) for row in rows))
        infos = [await app.get(row.id) for row in rows]
    assert sorted(ran) == [0, 1, 2]
    assert {(info.state, info.lost) for info in infos} == {(JobState.COMPLETED, 0)}


async def test_a_handler_whose_job_comes_again_to_the_same_worker_is_told() -> None:
    """Its lease is over, whatever the heartbeat has heard of it."""
    store = Torn()
    app = app_on(store, lease="1h", concurrency=2)
    runs: list[str] = []

    @app.task
    async def again(job: Job[Any]) -> None:
        runs.append("run")
        if len(runs) > 1:
            return
        [entry] = store.store.running.values()
        await store.finish([Settlement(entry.id, entry.epoch, entry.holder, JobState.AVAILABLE, delay=0)])
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            runs.append("stopped")
            raise

    async with working(app):
        handle = await again.enqueue()
        async with asyncio.timeout(30):
            await handle.result()
            while "stopped" not in runs:
                await asyncio.sleep(0.01)
    assert sorted(runs) == ["run", "run", "stopped"]


async def test_a_handler_is_told_too_when_the_heartbeat_cannot_open_the_store_again() -> None:
    store = Torn()
    app = app_on(store, lease="1500ms")
    opened: list[bool] = []
    sibling = store.sibling

    def broken() -> Backend:
        other = sibling()

        async def renew(beat: Beat, at: Stamp = None) -> Renewed:
            if store.cut:
                raise RuntimeError("it stumbled")
            return await MemoryBackend.renew(other, beat, at)  # type: ignore[arg-type]

        async def open_() -> None:
            opened.append(store.cut)
            if store.cut:
                raise Unavailable("the store is away")

        other.renew, other.open = renew, open_  # type: ignore[method-assign]
        return other

    store.sibling = broken  # type: ignore[method-assign]

    @app.task
    async def watch(job: Job[Any]) -> None:
        store.cut = True
        while not job.cancel.doubtful:
            await asyncio.sleep(0.01)
        store.cut = False
        while job.cancel.doubtful:
            await asyncio.sleep(0.01)

    async with working(app):
        handle = await watch.enqueue()
        async with asyncio.timeout(30):
            await handle.result()
    assert True in opened
