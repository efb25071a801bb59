"""A job that is completed in its handler's own transaction: both come true, or neither."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest

from headrace import App, EventKind, Handle, Job, JobState, immediate, never
from headrace.backends.postgres import PostgresBackend
from headrace.errors import CodecError, ConfigError, InvalidJob, LeaseLost
from headrace.seam.protocol import AsyncJoined, Joined
from headrace.seam.records import Beat, Claim, Leased, Reap, Renewed, Row, Settlement, Stamp
from headrace.worker.job import CancelToken
from tests.bind.conftest import Shop
from tests.bind.drivers import WRITE, Driver, undone
from tests.worker.conftest import Told

ALONE: dict[str, Any] = {"lease": "30s", "reap": "1h", "concurrency": 1, "prefetch": 0}
"""One job at a time, and its lease lasts unless the test ends it."""


@pytest.fixture
def told(shop: Shop) -> Told:
    told = Told()
    shop.app.observe(told)
    return told


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    """A worker of the app, for as long as the block lasts."""
    async with app, asyncio.TaskGroup() as group:
        group.create_task(app.work())
        try:
            yield
        finally:
            app.stop()


@asynccontextmanager
async def connected(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(shop.url) as connection:
        yield connection


async def take_back(shop: Shop, app: App, handle: Handle[Any]) -> None:
    """End the lease, again if a heartbeat came in between; whoever reaps, the job is no longer the holder's."""
    async with asyncio.timeout(60):
        while (await handle.info()).state is JobState.RUNNING:
            shop.run("UPDATE headrace.leased SET lease_until = 1")
            await app.client._backend.reap(Reap())


async def ended(handle: Handle[Any]) -> tuple[JobState, Any, int]:
    info = await handle.info()
    return info.state, info.result, info.attempt


async def test_committed_with_the_write(shop: Shop, driver: Driver, told: Told) -> None:
    """What the handler returns afterwards is not stored."""

    @shop.app.task
    async def publish(job: Job[None], uid: str) -> str:
        async with driver.begin() as connection:
            await driver.write(connection, uid)
            await driver.bound(shop.app, connection, "complete", job, "in the transaction")
            assert shop.written == []
        return "afterwards"

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, "in the transaction", 0)
    assert shop.written == ["a"]
    assert told.kinds().count(EventKind.COMPLETED) == 1
    assert EventKind.LEASE_LOST not in told.kinds()
    assert (await told.wait_for(EventKind.COMPLETED)).result == "in the transaction"


async def test_rolled_back_by_an_error_it_is_tried_again(shop: Shop, told: Told) -> None:
    @shop.app.task(retry=immediate(2))
    async def publish(job: Job[None], uid: str) -> None:
        async with connected(shop) as connection:
            await connection.execute(WRITE.format(f"{uid}{job.attempt}"))
            await shop.app.bind(connection).complete(job)
            if job.attempt == 0:
                raise RuntimeError("once")

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, None, 1)
    assert shop.written == ["a1"]
    endings = [kind for kind in told.kinds() if kind in (EventKind.RETRYING, EventKind.COMPLETED, EventKind.LEASE_LOST)]
    assert endings == [EventKind.RETRYING, EventKind.COMPLETED]


async def test_rolled_back_in_silence_it_is_completed_as_ever(shop: Shop, told: Told) -> None:
    """The handler has returned, and the worker records what it returned."""

    @shop.app.task
    async def publish(job: Job[None], uid: str) -> str:
        async with undone(connected(shop)) as connection:
            await connection.execute(WRITE.format(uid))
            await shop.app.bind(connection).complete(job, "in the transaction")
        return "afterwards"

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, "afterwards", 0)
    assert shop.written == []
    assert (await told.wait_for(EventKind.COMPLETED)).result == "afterwards"


async def test_what_is_raised_after_the_commit_changes_nothing(shop: Shop, told: Told) -> None:
    @shop.app.task(retry=immediate(2))
    async def publish(job: Job[None], uid: str) -> None:
        async with connected(shop) as connection:
            await connection.execute(WRITE.format(uid))
            await shop.app.bind(connection).complete(job)
        raise RuntimeError("too late")

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, None, 0)
    assert shop.written == ["a"]
    assert told.kinds().count(EventKind.STARTED) == told.kinds().count(EventKind.COMPLETED) == 1
    assert not {EventKind.RETRYING, EventKind.LEASE_LOST} & set(told.kinds())
    assert str((await told.wait_for(EventKind.COMPLETED)).error) == "too late"


async def test_a_handler_that_lost_its_job_writes_nothing(shop: Shop) -> None:
    """The lease runs out, another worker takes the job: the first one's write is rolled back."""
    slow, quick, told = shop.another(**ALONE), shop.another(**ALONE), Told()
    slow.observe(told)
    started, go_on = asyncio.Event(), asyncio.Event()
    refused: list[LeaseLost] = []

    @slow.task(name="publish", retry=never())
    async def publish(job: Job[None]) -> None:
        started.set()
        await go_on.wait()
        try:
            async with connected(shop) as connection:
                await connection.execute(WRITE.format("by the first"))
                await slow.bind(connection).complete(job)
        except LeaseLost as error:
            refused.append(error)
            raise

    @quick.task(name="publish")
    async def publish_again(job: Job[None]) -> None:
        async with connected(shop) as connection:
            await connection.execute(WRITE.format("by the second"))
            await quick.bind(connection).complete(job)

    async with working(slow), quick:
        handle = await publish.enqueue()
        await asyncio.wait_for(started.wait(), 60)
        await take_back(shop, quick, handle)
        await quick.drain()
        go_on.set()
        await told.wait_for(EventKind.LEASE_LOST)
        assert await ended(handle) == (JobState.COMPLETED, None, 0)
    assert shop.written == ["by the second"]
    assert EventKind.COMPLETED not in told.kinds()
    [error] = refused
    assert str(handle.id) in str(error)


async def test_a_handler_that_rolled_back_and_lost_its_job_is_not_believed(shop: Shop) -> None:
    """Asking for a completion is none: that the lease is gone may have another reason."""
    app, other, told = shop.another(**ALONE), shop.another(), Told()
    app.observe(told)
    rolled_back, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="publish")
    async def publish(job: Job[None]) -> None:
        async with undone(connected(shop)) as connection:
            await app.bind(connection).complete(job)
        rolled_back.set()
        await go_on.wait()

    async with working(app), other:
        handle = await publish.enqueue()
        await asyncio.wait_for(rolled_back.wait(), 60)
        await take_back(shop, other, handle)
        go_on.set()
        await told.wait_for(EventKind.LEASE_LOST)
        await told.wait_for(EventKind.COMPLETED)
    kinds = Counter(told.kinds())
    assert (kinds[EventKind.STARTED], kinds[EventKind.LEASE_LOST], kinds[EventKind.COMPLETED]) == (2, 1, 1)


BRIEF: dict[str, Any] = {"lease": "500ms", "reap": "1h"}
"""Many heartbeats soon; that they come late on a busy machine costs no job."""


class Beating(PostgresBackend):
    """Counts the heartbeats that come back."""

    beats = threading.Semaphore(0)

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        renewed = await super().renew(beat, at)
        self.beats.release()
        return renewed

    @classmethod
    async def more(cls, count: int) -> None:
        """Wait for so many from now on; there are six in the life of a lease."""
        cls.beats = threading.Semaphore(0)
        for _ in range(count):
            assert await asyncio.to_thread(cls.beats.acquire, timeout=60)


async def test_a_handler_goes_on_after_its_commit(shop: Shop) -> None:
    """For longer than a lease, of which there is none left to lose."""
    app, told = shop.another(Beating(shop.url), **BRIEF), Told()
    app.observe(told)

    @app.task
    async def publish(job: Job[None]) -> None:
        async with connected(shop) as connection:
            await app.bind(connection).complete(job)
        await Beating.more(10)

    async with app:
        await publish.enqueue()
        await app.drain()
    assert told.kinds().count(EventKind.COMPLETED) == 1
    assert EventKind.LEASE_LOST not in told.kinds()
    assert (await told.wait_for(EventKind.COMPLETED)).error is None


async def test_no_heartbeat_waits_for_an_open_transaction(shop: Shop) -> None:
    """Or the other jobs of this worker would lose their leases meanwhile."""
    app, told = shop.another(Beating(shop.url), **BRIEF), Told()
    app.observe(told)

    @app.task
    async def publish(job: Job[None]) -> None:
        async with connected(shop) as connection:
            await app.bind(connection).complete(job)
            await Beating.more(10)

    async with app:
        handle = await publish.enqueue()
        await app.drain()
        assert await ended(handle) == (JobState.COMPLETED, None, 0)
    assert {EventKind.LEASE_LOST, EventKind.STALLED} & set(told.kinds()) == set()


async def renewed(shop: Shop) -> None:
    async with asyncio.timeout(60):
        while shop.run("SELECT lease_until > headrace.now_us() FROM headrace.leased") != [True]:
            await asyncio.sleep(0.01)


async def test_a_transaction_that_is_tried_again_keeps_the_lease(shop: Shop) -> None:
    """For longer than a lease: rolled back, the job is this worker's as before, and its heartbeat knows."""
    app, told = shop.another(Beating(shop.url), **BRIEF), Told()
    app.observe(told)

    @app.task
    async def publish(job: Job[None]) -> Any:
        for _ in range(2):
            async with undone(connected(shop)) as connection:
                await app.bind(connection).complete(job, "never")
            await Beating.more(8)
            await renewed(shop)
        async with connected(shop) as connection:
            await app.bind(connection).complete(job, "at last")

    async with app:
        handle = await publish.enqueue()
        await app.drain()
        assert await ended(handle) == (JobState.COMPLETED, "at last", 0)
    assert told.kinds().count(EventKind.STARTED) == 1
    assert (await told.wait_for(EventKind.COMPLETED)).result == "at last"


async def test_the_event_tells_the_result_that_was_stored(shop: Shop, told: Told) -> None:
    """Not that of a second completion, which was refused."""

    @shop.app.task
    async def publish(job: Job[None]) -> Any:
        async with connected(shop) as connection:
            await shop.app.bind(connection).complete(job, 7)
        with pytest.raises(LeaseLost):
            async with connected(shop) as connection:
                await shop.app.bind(connection).complete(job, 8)

    async with shop.app:
        handle = await publish.enqueue()
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, 7, 0)
    assert (await told.wait_for(EventKind.COMPLETED)).result == 7


async def test_nobody_waits_for_the_open_transactions_of_handlers_that_were_given_up_on(shop: Shop) -> None:
    """Plain functions cannot be cancelled. There are more of them than lanes; their outcomes wait, and nothing else."""
    app, told = shop.another(concurrency=10), Told()
    app.observe(told)
    in_hand, go_on = threading.Semaphore(0), threading.Event()

    @app.task(timeout="5s", retry=never())
    def publish(job: Job[None]) -> None:
        with psycopg.connect(shop.url) as connection:
            app.bind(connection).complete(job)
            in_hand.release()
            go_on.wait(60)

    @app.task
    async def quick() -> None: ...

    async with working(app):
        slow = await app.enqueue_many([publish.job() for _ in range(4)])
        for _ in slow:
            assert await asyncio.to_thread(in_hand.acquire, timeout=60)
        await asyncio.sleep(5.1)  # past their timeout
        for _ in range(5):
            await quick.options(wait="60s").call()
        go_on.set()
        await told.wait_for(EventKind.COMPLETED, 9)
        assert {(await handle.info()).state for handle in slow} == {JobState.COMPLETED}


async def test_a_handler_that_was_given_up_on_completes_nothing(shop: Shop) -> None:
    app, told = shop.another(), Told()
    app.observe(told)
    given_up, refused = threading.Event(), threading.Event()

    @app.task(timeout="100ms", retry=never())
    def publish(job: Job[None]) -> None:
        given_up.wait(60)
        with pytest.raises(LeaseLost, match="given up on"), psycopg.connect(shop.url) as connection:
            app.bind(connection).complete(job)
        refused.set()

    async with working(app):
        handle = await publish.enqueue()
        await told.wait_for(EventKind.FAILED)
        given_up.set()
        assert await asyncio.to_thread(refused.wait, 20)
        assert (await handle.info()).state is JobState.FAILED


class Overtaken(Beating):
    """Whose first heartbeat that names a lease is held up, and then finds it gone."""

    named, go_on, gone = threading.Event(), threading.Event(), threading.Event()

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        if beat.leases:
            self.named.set()
            await asyncio.to_thread(self.go_on.wait, 20)
        renewed = await super().renew(beat, at)
        if renewed.lost:
            self.gone.set()
        return renewed


async def test_a_heartbeat_that_the_commit_overtook(shop: Shop) -> None:
    """Finds the lease gone, and the worker knows why."""
    app, told = shop.another(Overtaken(shop.url), **BRIEF), Told()
    app.observe(told)

    @app.task
    async def publish(job: Job[None]) -> None:
        assert await asyncio.to_thread(Overtaken.named.wait, 20)
        async with connected(shop) as connection:
            await app.bind(connection).complete(job)
        Overtaken.go_on.set()
        assert await asyncio.to_thread(Overtaken.gone.wait, 20)
        await Overtaken.more(2)

    async with app:
        await publish.enqueue()
        await app.drain()
    assert told.kinds().count(EventKind.COMPLETED) == 1
    assert EventKind.LEASE_LOST not in told.kinds()
    assert (await told.wait_for(EventKind.COMPLETED)).error is None


async def test_a_plain_function_completes_its_job(shop: Shop, told: Told) -> None:
    """In its thread, on a connection that blocks."""

    @shop.app.task
    def publish(job: Job[None], uid: str) -> int:
        with psycopg.connect(shop.url) as connection:
            connection.execute(WRITE.format(uid))
            shop.app.bind(connection).complete(job, 7)
        return 0

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await handle.result() == 7
    assert shop.written == ["a"]
    assert told.kinds().count(EventKind.COMPLETED) == 1


async def test_a_batch_completes_its_jobs_together(shop: Shop, told: Told) -> None:
    """And enqueues what follows, all in one transaction."""

    @shop.app.batch(size=10)
    async def publish(jobs: list[Job[str]]) -> None:
        async with connected(shop) as connection:
            bound = shop.app.bind(connection)
            for job in jobs:
                await connection.execute(WRITE.format(job.payload))
                await bound.complete(job)
                await bound.enqueue(shop.extract, job.payload)

    async with shop.app:
        await shop.app.enqueue_many(publish.job(uid) for uid in "abc")
        await shop.app.drain()
    assert shop.written == ["a", "b", "c"]
    assert sorted(shop.ran) == [("a", 0), ("b", 0), ("c", 0)]
    assert told.kinds().count(EventKind.COMPLETED) == 6
    assert EventKind.LEASE_LOST not in told.kinds()


async def test_nobody_need_observe(shop: Shop) -> None:
    app = shop.another()

    @app.task
    async def publish(job: Job[None]) -> None:
        async with connected(shop) as connection:
            await app.bind(connection).complete(job)

    async with app:
        handle = await publish.enqueue()
        await app.drain()
        assert await ended(handle) == (JobState.COMPLETED, None, 0)


async def test_completed_once(shop: Shop) -> None:
    """The second time there is no lease left to end, in the same transaction or in the next."""
    second: list[type[BaseException]] = []

    @shop.app.task
    async def publish(job: Job[None], uid: str) -> None:
        async with connected(shop) as connection:
            bound = shop.app.bind(connection)
            await bound.complete(job)
            with suppress(LeaseLost):
                async with connection.transaction():
                    await bound.complete(job)
                second.append(RuntimeError)
        async with connected(shop) as connection:
            try:
                await shop.app.bind(connection).complete(job)
            except LeaseLost as error:
                second.append(type(error))

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await ended(handle) == (JobState.COMPLETED, None, 0)
    assert second == [LeaseLost]


async def test_a_result_that_cannot_be_stored_is_refused_at_once(shop: Shop) -> None:
    """Before anything is sent, so the transaction goes on."""

    @shop.app.task
    async def publish(job: Job[None], uid: str) -> str:
        async with connected(shop) as connection:
            await connection.execute(WRITE.format(uid))
            with pytest.raises(CodecError, match=r"^result of .*publish\(…\) -> str: cannot encode object"):
                await shop.app.bind(connection).complete(job, object())
            with pytest.raises(CodecError, match=r"^result of .*publish\(…\) -> str: expected str, got int$"):
                await shop.app.bind(connection).complete(job, 7)
        return "plain"

    async with shop.app:
        handle = await publish.enqueue("a")
        await shop.app.drain()
        assert await handle.result() == "plain"
    assert shop.written == ["a"]


async def test_only_a_job_that_runs_can_be_completed(shop: Shop) -> None:
    made = Job(Leased(bytes(16), "q", "t", {}, 1), None, "holder", CancelToken(), {})
    async with connected(shop) as connection:
        bound = shop.app.bind(connection)
        with pytest.raises(ConfigError, match="expected a job that a worker runs"):
            await bound.complete(made)
        with pytest.raises(InvalidJob, match="expected the job that the handler was given, got 'a'"):
            await bound.complete("a")  # type: ignore[arg-type]


async def test_who_waits_for_it_is_told_at_the_commit(shop: Shop) -> None:
    store = shop.app.client._backend
    tx = store.tx
    assert tx is not None
    async with shop.app:
        assert store.hints is not None
        await store.insert([Row(bytes(15) + b"1", "q", "t", {}, reply_to="me")])
        [job] = (await store.claim(Claim("holder", ("q",), 1, 10**7))).jobs
        async with store.hints.listen(["inbox:me"]) as hints:
            async with connected(shop) as connection:
                joined: Joined | AsyncJoined = tx.join(connection)
                assert not joined.blocks
                done = Settlement(job.id, job.epoch, "holder", JobState.COMPLETED, result=b"", result_ttl=10**9)
                assert await joined.complete(done)
            async with asyncio.timeout(60):
                assert (await anext(hints)).id == job.id
        [record] = await store.fetch([job.id], frozenset({"result"}))
    assert record is not None
    assert (record.state, record.result) == (JobState.COMPLETED, b"")
