"""The worker as a whole: order of stopping, pace, poison, outages, duties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from headrace import App, Done, EventKind, JobState, immediate
from headrace.backends.refusal import NotLetIn
from headrace.core.config import RetentionSettings
from headrace.errors import BackendError, ConfigError, SchemaMismatch, Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, Reap, Row, Settlement, Stamp
from headrace.testing.wrapped import Carry
from tests.worker.conftest import Told, working
from tests.worker.stores import Plain


async def test_burst_runs_everything_due_and_what_that_makes_due(make_app: Callable[..., App]) -> None:
    app = make_app()
    ran = []

    @app.task
    async def leaf(n: int) -> None:
        ran.append(n)

    @app.task(retry=immediate(3))
    async def root() -> Done:
        ran.append(0)
        if ran.count(0) < 3:
            raise ValueError("not yet")
        return Done(spawn=[leaf.job(1), leaf.options(delay="1h").job(2)])

    async with app:
        await root.enqueue()
        await app.drain()
    assert ran == [0, 0, 0, 1]


async def test_a_store_without_hints_and_turns_is_polled(make_app: Callable[..., App], store: Backend) -> None:
    plain = Plain(store.sibling())
    app = make_app(plain)
    done = asyncio.Event()

    @app.task
    async def work() -> None:
        done.set()

    async with working(app):
        await work.enqueue()
        async with asyncio.timeout(60):
            await done.wait()
    assert "finish_and_claim" not in plain.calls


async def test_a_store_that_is_away_costs_time_and_no_attempt(make_app: Callable[..., App], store: Backend) -> None:
    """F33, C16: infrastructure errors are not job failures, and the loop never dies of them."""
    plain = Plain(store.sibling())
    app = make_app(plain, lease="60s")
    told = Told()
    app.observe(told)
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> int:
        started.set()
        await go_on.wait()
        return 7

    async with working(app):
        handle = await work.enqueue()
        await started.wait()
        plain.away = True
        go_on.set()
        await told.wait_for(EventKind.STORE_AWAY)
        plain.away = False
        await told.wait_for(EventKind.STORE_BACK)
        assert await handle.result("60s") == 7
        info = await handle.info()
    assert (info.state, info.attempt, info.lost) == (JobState.COMPLETED, 0, 0)


async def test_what_another_worker_made_of_a_job_is_not_told_as_ones_own(
    make_app: Callable[..., App], store: Backend
) -> None:
    """I4: the outcome was refused, however often it was sent; the run that took over has its own."""
    plain = Plain(store.sibling())
    app = make_app(plain, lease="60s")
    told = Told()
    app.observe(told)
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> int:
        started.set()
        await go_on.wait()
        return 7

    async with store_of(store) as other, working(app):
        handle = await work.enqueue()
        await started.wait()
        plain.away = True
        go_on.set()
        await told.wait_for(EventKind.STORE_AWAY)
        later = 10**16
        await other.reap(Reap(max_lost=9), later)
        [job] = (await other.claim(Claim("other", ("default",), 1, 10**9), later)).jobs
        await other.finish([Settlement(job.id, job.epoch, "other", JobState.COMPLETED)], later)
        plain.away = False
        await told.wait_for(EventKind.LEASE_LOST)
        assert (await handle.info()).state is JobState.COMPLETED
    assert EventKind.COMPLETED not in told.kinds()
    assert told.kinds().count(EventKind.STORE_AWAY) == told.kinds().count(EventKind.STORE_BACK) == 1


@asynccontextmanager
async def store_of(store: Backend) -> AsyncIterator[Backend]:
    """Another way to the same jobs."""
    other = store.sibling()
    await other.open()
    yield other
    await other.close()


async def test_an_enqueue_rides_out_a_short_outage(make_app: Callable[..., App], store: Backend) -> None:
    plain = Plain(store.sibling())
    app = make_app(plain)

    @app.task
    async def work() -> None: ...

    async with app:
        plain.away = True
        enqueue = asyncio.ensure_future(work.enqueue())
        while plain.calls.count("insert") < 2:
            await asyncio.sleep(0)
        plain.away = False
        handle = await enqueue
        assert (await handle.info()).state is JobState.AVAILABLE


async def test_a_slow_worker_does_not_hoard(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=2)
    started = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    @app.task
    async def slow() -> None:
        started.release()
        await go_on.wait()

    async with working(app):
        await app.enqueue_many([slow.job() for _ in range(50)])
        await started.acquire()
        await started.acquire()
        [queue] = (await app.client.stats()).queues
        assert (queue.running, queue.available) == (2, 48)
        go_on.set()


async def test_a_graceful_stop_finishes_what_it_can_and_returns_the_rest(make_app: Callable[..., App]) -> None:
    """002-44, corner-cases 5.3.16: back in the queue at once, in its place, attempts unchanged."""
    app = make_app(concurrency=2, grace="2s", lease="60s")
    told = Told()
    app.observe(told)
    started = asyncio.Semaphore(0)
    almost = asyncio.Event()

    @app.task
    async def work(quick: bool) -> None:
        started.release()
        await (almost if quick else asyncio.Event()).wait()

    async with working(app):
        quick = await work.enqueue(True)
        endless = await work.enqueue(False)
        waiting = await work.enqueue(False)
        await started.acquire()
        await started.acquire()
        app.stop()
        almost.set()
    async with app:
        infos = [await handle.info() for handle in (quick, endless, waiting)]
        assert (await app.client.stats()).workers == []
    assert [info.state for info in infos] == [JobState.COMPLETED, JobState.AVAILABLE, JobState.AVAILABLE]
    assert [info.attempt for info in infos] == [0, 0, 0]
    assert infos[1].run_at == infos[1].enqueued_at
    assert EventKind.RELEASED in told.kinds()


async def _lose(store: Backend, rows: Sequence[Row], times: int) -> None:
    """Insert jobs that vanished workers have lost so often."""
    backend = store.sibling()
    await backend.open()
    await backend.insert(rows, 10**15)
    now = 10**15
    for _ in range(times):
        claimed = await backend.claim(Claim("gone", ("default",), 1_000, 1), now)
        assert len(claimed.jobs) == len(rows)
        now += 1
        await backend.reap(Reap(max_lost=10), now)
    await backend.close()


async def test_a_job_on_its_last_chance_runs_alone(make_app: Callable[..., App], store: Backend) -> None:
    """F30, C09: blame only the job that ran, never its neighbours."""
    app = make_app(concurrency=8, lease="60s")
    running: set[str] = set()
    beside: list[set[str]] = []

    @app.task(name="work")
    async def work(name: str) -> None:
        running.add(name)
        for _ in range(20):
            if name.startswith("suspect"):
                beside.append(running - {name})
            await asyncio.sleep(0)
        running.discard(name)

    async with app:
        jobs = [work.job("suspect-0"), work.job("suspect-1"), work.job("suspect-2")]
        rows = [app.client.packer.pack(job) for job in jobs]
        await _lose(store, rows, 2)
        handles = await app.enqueue_many([work.job(f"plain-{n}") for n in range(40)])
        await app.drain()
        backend = await app.client.backend()
        while any((r and r.state) is not JobState.COMPLETED for r in await backend.fetch([row.id for row in rows])):
            await app.drain()
        assert {(await handle.info()).state for handle in handles} == {JobState.COMPLETED}
    assert len(beside) == 60
    assert set().union(*beside) == set()


async def test_pausing_a_queue_returns_what_was_buffered(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=1, prefetch=100)
    go_on = asyncio.Event()
    ran = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        if n == 150:
            await app.client.pause("default")
            await go_on.wait()

    async with working(app):
        await app.enqueue_many([work.job(n) for n in range(400)])
        async with asyncio.timeout(60):
            while True:
                [queue] = (await app.client.stats()).queues
                if queue.paused and queue.running == 1:
                    break
                await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.sleep(0)
    assert ran == list(range(151))


async def test_every_worker_keeps_what_has_ended_within_bounds(make_app: Callable[..., App], store: Backend) -> None:
    """000-47, 002-58: nothing that ends grows for ever."""
    app = make_app()
    told = Told()
    settings = app.client.settings
    from headrace import Client, Settings

    bounds = {"count": 10, "age": "1d", "bytes": 10**9}
    loaded = Settings.load(
        {
            "worker": {"name": "random"},
            "patience": "10ms",
            "retention": {"every": "20ms", "completed": bounds, "failed": bounds},
        },
        env={},
        toml={},
    )
    assert settings.worker.name == loaded.worker.name
    bounded = App(Client(store.sibling(), loaded))
    bounded.observe(told)

    @bounded.task(retry=immediate(1))
    async def work(n: int) -> None:
        if n % 2:
            raise ValueError(n)

    async with working(bounded):
        await bounded.enqueue_many([work.job(n) for n in range(100)])
        async with asyncio.timeout(60):
            while True:
                stats = await bounded.client.stats()
                [queue] = stats.queues
                kept = {p.target: p.count for p in stats.kept}
                # room is made for what is under way, and some of that may be stored already
                few = all(5 <= kept[target] <= 10 for target in ("completed", "failed"))
                if few and (queue.available, queue.running) == (0, 0):
                    break
                await asyncio.sleep(0.01)
    assert EventKind.SWEPT in told.kinds()


async def test_health_tells_whether_work_gets_done(make_app: Callable[..., App], store: Backend) -> None:
    """C16, I25: alive is not the same as consuming."""
    plain = Plain(store.sibling())
    app = make_app(plain, poll="10ms", lease="2s")

    @app.task
    async def work() -> None: ...

    async with working(app):
        assert app.worker is not None
        await work.enqueue()
        await _until(lambda: app.worker is not None and app.worker.health().ok)
        assert app.worker.health().detail == "ok"
        plain.away = True
        await _until(lambda: app.worker is not None and not app.worker.health().consuming)
        assert app.worker.health().detail == "no claim got through"
        plain.away = False
        await _until(lambda: app.worker is not None and app.worker.health().ok)


async def test_a_worker_that_holds_back_for_a_last_chance_is_healthy(
    make_app: Callable[..., App], store: Backend
) -> None:
    app = make_app(poll="10ms", lease="60s")
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="work")
    async def work(name: str) -> None:
        started.set()
        await go_on.wait()

    async with app:
        await _lose(store, [app.client.packer.pack(work.job("suspect"))], 2)
    async with working(app):
        await started.wait()
        await work.enqueue("other")
        assert app.worker is not None
        long_ago = asyncio.get_running_loop().time() - 3_600
        app.worker._exchange.started = long_ago
        for trips in app.worker._trips:
            trips.beat = long_ago
        assert app.worker.health().consuming
        assert app.worker.health().busy == 1
        go_on.set()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


class Refusing(Plain):
    """Refuses outcomes with a certain result, in a way that no store should."""

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        if any(b"poison" in (settlement.result or b"") for settlement in batch):
            raise ValueError("no such outcome")
        return await self.inner.finish(batch, at)


class Stumbling(Plain):
    """Fails to store outcomes a few times, or those with a certain result for ever."""

    def __init__(self, inner: Backend, error: Exception, times: int = 0) -> None:
        super().__init__(inner)
        self._error = error
        self.times = times

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        if self.times or any(b"poison" in (settlement.result or b"") for settlement in batch):
            self.times = max(0, self.times - 1)
            raise self._error
        return await self.inner.finish(batch, at)


@pytest.mark.parametrize(
    "error",
    [
        BackendError("a passing one"),
        SchemaMismatch("gone"),
        ConfigError("no right"),
        NotLetIn("no right"),
        ConnectionResetError("gone"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        AttributeError("a bug of a driver"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_outcome_is_not_blamed_for_what_may_pass(
    make_app: Callable[..., App], store: Backend, error: Exception
) -> None:
    """C12: only errors of the content are the content's."""
    app = make_app(Stumbling(store.sibling(), error, times=3), concurrency=4, lease="60s")
    runs: list[int] = []

    @app.task
    async def work(number: int) -> None:
        runs.append(number)

    async with app:
        handles = await app.enqueue_many([work.job(n) for n in range(4)])
        await app.drain()
        infos = [await handle.info() for handle in handles]
    assert [info.state for info in infos] == [JobState.COMPLETED] * 4
    assert sorted(runs) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [BackendError("often"), Unavailable("often"), OSError("often")])
async def test_an_outcome_that_is_refused_for_ever_holds_up_no_other(
    make_app: Callable[..., App], store: Backend, error: Exception
) -> None:
    """It is nobody's fault as far as anybody knows: after a while its lease is left to run out."""
    app = make_app(Stumbling(store.sibling(), error), concurrency=4, lease="2s", max_lost=0)
    told = Told()
    app.observe(told)

    @app.task
    async def work(text: str) -> str:
        return text

    async with working(app):
        handles = await app.enqueue_many([work.job("poison" if n == 2 else "fine") for n in range(4)])
        for _ in range(20):
            handles.append(await work.enqueue("fine"))
            await asyncio.sleep(0.05)  # others come to their end meanwhile
        for number, handle in enumerate(handles):
            if number != 2:
                assert await handle.result("60s") == "fine"
        await told.wait_for(EventKind.FAILED)
        info = await handles[2].info()
    assert (info.state, info.reason) == (JobState.FAILED, "lost")


async def test_an_outcome_that_the_store_refuses_takes_no_other_along(
    make_app: Callable[..., App], store: Backend
) -> None:
    """C12: what is wrong with one job is that job's affair."""
    app = make_app(Refusing(store.sibling()), concurrency=10, lease="60s")
    told = Told()
    app.observe(told)

    @app.task
    async def work(text: str) -> str:
        return text

    async with app:
        handles = await app.enqueue_many([work.job("poison" if n == 3 else "fine") for n in range(10)])
        await app.drain()
        infos = [await handle.info() for handle in handles]
    assert [info.state for info in infos] == [JobState.FAILED if n == 3 else JobState.COMPLETED for n in range(10)]
    assert (infos[3].reason, infos[3].failures[-1].message) == ("outcome cannot be stored", "no such outcome")
    assert [event.error.args for event in told.events if event.kind is EventKind.ERROR and event.error] == [
        ("no such outcome",)
    ]
    assert sum(event.kind is EventKind.COMPLETED for event in told.events) == 9
    [failed] = [event for event in told.events if event.kind is EventKind.FAILED]
    assert (failed.id, failed.detail, failed.result) == (handles[3].id.bytes, "outcome cannot be stored", None)


class Broken(Plain):
    """Fails in ways that no store should, for a while."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.failures = {"claim": 2, "reap": 2, "sweep": 2}

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[Any]) -> Any:
        if self.failures.get(name):
            self.failures[name] -= 1
            raise RuntimeError(f"{name} is broken")
        return await super()._call(name, args, at, carry)


async def test_a_worker_outlives_a_store_that_fails_in_unheard_of_ways(
    make_app: Callable[..., App], store: Backend
) -> None:
    """C16: the loop never dies of an error that it does not know."""
    broken = Broken(store.sibling())
    app = make_app(broken)
    app.client.settings = replace(app.client.settings, retention=RetentionSettings(every="10ms"))

    @app.task
    async def work() -> int:
        return 7

    async with working(app):
        handle = await work.enqueue()
        assert await handle.result("60s") == 7
        await _until(lambda: not any(broken.failures.values()))


async def test_the_worker_stays_listed_and_leaves_the_list(make_app: Callable[..., App]) -> None:
    """P2: a live worker is never unlisted."""
    app = make_app(lease="1s", name="pod-7")

    @app.task
    async def work() -> None: ...

    async with working(app):
        async with asyncio.timeout(60):
            while not (stats := await app.client.stats()).workers:
                await asyncio.sleep(0.01)
        first = stats.workers[0].seen_at
        async with asyncio.timeout(60):
            while (await app.client.stats()).workers[0].seen_at < first + 2_200_000:  # longer than an entry lasts
                await asyncio.sleep(0.01)
        assert stats.workers[0].worker == "pod-7"
    async with app:
        assert (await app.client.stats()).workers == []


@pytest.mark.parametrize("count", [1, 3_000])
async def test_two_workers_share_the_work_and_run_each_job_once(
    make_app: Callable[..., App], store: Backend, count: int
) -> None:
    ran: list[int] = []
    apps = [make_app(), make_app()]
    for app in apps:

        @app.task(name="work")
        async def work(n: int) -> None:
            ran.append(n)
            await asyncio.sleep(0)

    async with apps[0]:
        await apps[0].enqueue_many([apps[0].tasks["work"].job(n) for n in range(count)])
        async with apps[1]:
            await asyncio.gather(*(app.drain() for app in apps))
        stats = await apps[0].client.stats()
    assert sorted(ran) == list(range(count))
    assert stats.queues[0].completed == count


async def test_cancelling_the_work_gives_its_jobs_back(make_app: Callable[..., App], store: Backend) -> None:
    """Each to its place, and none is counted as lost: a program that ends its worker like that does not poison jobs."""
    app = make_app(concurrency=1, prefetch=4)
    started = asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app:
        handles = await app.enqueue_many([endless.job() for _ in range(3)])
        for _ in range(4):
            started.clear()
            work = asyncio.ensure_future(app.work())
            await started.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            infos = [await handle.info() for handle in handles]
            assert {(info.state, info.lost, info.attempt) for info in infos} == {(JobState.AVAILABLE, 0, 0)}


async def test_an_outcome_that_waits_for_the_store_is_not_lost_with_the_worker(
    make_app: Callable[..., App], store: Backend
) -> None:
    class Refusing(Plain):
        refuses, asked = True, asyncio.Event()

        async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
            self.asked.set()
            if self.refuses:
                raise Unavailable("not now")
            return await self.inner.finish(batch, at)

    plain = Refusing(store)
    app = make_app(plain)

    @app.task
    async def seven() -> int:
        return 7

    async with app:
        handle = await seven.enqueue()
        work = asyncio.ensure_future(app.work())
        await plain.asked.wait()
        plain.refuses = False
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (await handle.info()).result == 7


async def test_a_worker_that_may_not_claim_says_so_and_ends(make_app: Callable[..., App], store: Backend) -> None:
    class Forbidden(Plain):
        async def claim(self, req: Claim, at: int | None = None) -> Claimed:
            raise ConfigError("this role may not claim")

    app = make_app(Forbidden(store))

    @app.task
    async def noop() -> None: ...

    async with app:
        with pytest.raises(ConfigError, match="may not claim"):
            await app.work()
        with pytest.raises(ConfigError, match="may not claim"):
            await app.drain()


async def test_a_claim_answer_that_never_reached_the_worker_is_taken_back(
    make_app: Callable[..., App], store: Backend
) -> None:
    """F01: the reply of a claim is lost after the store granted it."""

    class Deaf(Plain):
        deaf = True

        async def claim(self, req: Claim, at: int | None = None) -> Claimed:
            claimed = await self.inner.claim(req, at)
            if self.deaf and claimed.jobs:
                self.deaf = False
                raise Unavailable("the reply was lost")
            return claimed

    app = make_app(Deaf(store.sibling()), lease="1s")
    done = asyncio.Event()

    @app.task
    async def work() -> None:
        done.set()

    async with working(app):
        handle = await work.enqueue()
        async with asyncio.timeout(60):
            await done.wait()
        await handle.result("60s")
        info = await handle.info()
    assert (info.state, info.attempt) == (JobState.COMPLETED, 0)
