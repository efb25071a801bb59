"""Apps and queues whose worker runs in another task: a stop is heard whenever it comes, and leaving awaits it."""

from __future__ import annotations

import asyncio

import pytest

from headrace import App, Client, Job, JobState, Queue
from headrace.errors import ConfigError
from headrace.seam.records import JobKey
from tests.facades.harness import Gate, Store, Tapped, settings, within


def slow_client(memory: Store) -> Client:
    """One whose store takes its time to open."""

    class Slow(Tapped):
        async def open(self) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            await self.inner.open()

    return Client(Slow(memory.backend()), settings())


class TestLeavingAnApp:
    async def test_stops_and_awaits_its_worker(self, store: Store) -> None:
        """What runs is finished and stored, on a store that is still open."""
        app, gate = store.app(), Gate()

        @app.task
        async def gated() -> str:
            await gate.pass_through()
            return "finished"

        async with app:
            handle = await gated.enqueue()
            work = asyncio.ensure_future(app.work())
            await gate.reached()
            asyncio.get_running_loop().call_soon(gate.open)
        assert work.done()
        await work
        async with app:
            assert (await app.get(handle.id)).state is JobState.COMPLETED

    async def test_before_the_worker_has_begun(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def note() -> None: ...

        async with app:
            work = asyncio.ensure_future(app.work())
        await within(work)
        assert app.client.home is None

    async def test_while_the_worker_begins(self, memory: Store) -> None:
        app = App(slow_client(memory))

        @app.task
        async def note() -> None: ...

        work = asyncio.ensure_future(app.work())
        await asyncio.sleep(0)
        await within(app.close())
        assert work.done()
        assert app.client.home is None

    async def test_by_an_error(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def note() -> None: ...

        async def fail() -> None:
            async with app:
                works.append(asyncio.ensure_future(app.work()))
                await within(note.call())
                raise ZeroDivisionError

        works: list[asyncio.Future[None]] = []
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert works[0].done()

    async def test_a_block_within_a_block_leaves_the_outer_one_alone(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def echo(n: int) -> int:
            return n

        async with app:
            work = asyncio.ensure_future(app.work())
            waiting = asyncio.ensure_future(echo.options(delay="200ms").call(1))
            async with app:
                assert await within(echo.call(2)) == 2
            assert await within(waiting) == 1
            assert not work.done()
        assert work.done()

    @pytest.mark.parametrize("outer", [True, False])
    async def test_a_handler_that_enters_it_does_not_stop_its_own_worker(self, store: Store, outer: bool) -> None:
        app = store.app()

        @app.task
        async def child() -> int:
            return 7

        @app.task
        async def parent() -> int:
            async with app:
                handle = await child.enqueue()
            return await handle.result()

        if outer:
            await app.__aenter__()
        work = asyncio.ensure_future(app.work())
        assert await within(parent.call()) == 7
        assert not work.done()
        app.stop()
        await within(work)
        if outer:
            await app.__aexit__()
        await app.client.close()

    async def test_an_app_that_was_left_opens_itself_again(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def echo(n: int) -> int:
            return n

        for n in range(2):
            async with app:
                work = asyncio.ensure_future(app.work())
                assert await within(echo.call(n)) == n
            assert work.done()
        await echo.enqueue(3)
        await app.close()
        await app.close()
        assert app.client.home is None


class TestStopping:
    async def test_before_the_first_turn_of_work(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def note() -> None: ...

        await note.enqueue()
        for start in (app.work, app.drain):
            work = asyncio.ensure_future(start())
            app.stop()
            await within(work)
        await within(app.drain())
        await app.client.close()

    async def test_is_not_forgotten_for_a_second_start(self, memory: Store) -> None:
        """One that is refused does not take back the stop of the first, which is not up yet."""
        app = App(slow_client(memory))

        @app.task
        async def note() -> None: ...

        work = asyncio.ensure_future(app.work())
        await asyncio.sleep(0)
        app.stop()
        with pytest.raises(ConfigError, match="already runs"):
            await app.work()
        await within(work)
        await app.client.close()

    async def test_that_was_for_an_earlier_worker_does_not_stop_the_next(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def echo(n: int) -> int:
            return n

        app.stop()
        async with app:
            work = asyncio.ensure_future(app.work())
            assert await within(echo.call(1)) == 1
            assert not work.done()

    async def test_a_queue_before_the_first_turn_of_work(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        await queue.enqueue("a", 1)
        work = asyncio.ensure_future(queue.work())
        await within(queue.stop())
        await within(work)
        assert (await queue.client.get(JobKey("jobs", "a"))).state is JobState.AVAILABLE
        await within(queue.work(burst=True))
        assert await queue.result("a") == 1

    @pytest.mark.parametrize("begin", ["work", "start"])
    async def test_a_queue_while_it_begins(self, memory: Store, begin: str) -> None:
        queue = Queue[int, int]("jobs", slow_client(memory))

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        beginning = asyncio.ensure_future(getattr(queue, begin)())
        await asyncio.sleep(0)
        await within(queue.stop())
        await within(beginning)
        await queue.enqueue("a", 1)
        assert await queue.result("a") is None
        await queue.client.close()

    async def test_a_queue_in_another_task_is_awaited(self, store: Store) -> None:
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "finished"

        await queue.enqueue("a", 1)
        work = asyncio.ensure_future(queue.work())
        await gate.reached()
        asyncio.get_running_loop().call_soon(gate.open)
        await within(queue.stop())
        await within(work)
        assert await queue.result("a") == "finished"
