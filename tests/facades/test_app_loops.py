"""One app and several event loops, threads and processes: what is allowed works, the rest is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Client, EventKind, Job, JobState, Queue, SyncApp, never
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, HeadraceError, InvalidJob, JobFailed, JobNotFound, WaitTimeout
from headrace.seam.records import Selector
from tests.facades.harness import STORES, Events, Gate, Store, Tapped, script, settings, within


@pytest.fixture(params=STORES)
def place(request: Any, tmp_path: Path) -> Store:
    """A store for tests that have loops of their own."""
    return Store(request.param, tmp_path)


class TestLoops:
    def test_one_after_another(self, place: Store) -> None:
        """``asyncio.run`` twice with one app, closed or not, with the jobs of before still there."""
        app = place.app()

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        async def first() -> Any:
            return await double.enqueue(21)

        async def second(handle: Any) -> int:
            await app.drain()
            return int(await handle.result())

        handle = asyncio.run(first())
        assert asyncio.run(second(handle)) == 42

        async def third() -> int:
            async with app:
                return int(await handle.result())

        assert asyncio.run(third()) == 42

    def test_work_on_one_after_another(self, place: Store) -> None:
        app, seen = place.app(), []

        @app.task
        async def note(n: int) -> None:
            seen.append(n)

        async def main(n: int) -> None:
            async with app:
                await note.enqueue(n)
                await app.drain()

        for n in range(3):
            asyncio.run(main(n))
        assert seen == [0, 1, 2]

    def test_a_queue_too(self, place: Store) -> None:
        queue = Queue[int, int]("jobs", place.client())

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async def main(n: int) -> int:
            async with queue:
                answer = await queue.enqueue_and_wait(f"job-{n}", n)
            await queue.client.close()
            return answer

        assert [asyncio.run(main(n)) for n in range(3)] == [0, 1, 2]

    def test_a_second_live_loop_is_refused(self, place: Store) -> None:
        """With advice; and the first goes on unharmed."""
        app = place.app()

        @app.task
        async def one() -> int:
            return 1

        async def elsewhere() -> None:
            await one.enqueue()

        async def main() -> tuple[Any, int]:
            async with app:
                handle = await one.enqueue()
                refused = await asyncio.to_thread(_caught, lambda: asyncio.run(elsewhere()))
                await app.drain()
                return refused, int(await handle.result())

        refused, result = asyncio.run(main())
        assert isinstance(refused, ConfigError)
        assert "one client per loop" in str(refused)
        assert result == 1

    async def test_many_first_uses_at_once_open_once(self, memory: Store) -> None:
        """However many calls find the client unopened, it is opened by one of them."""
        opened: list[int] = []

        class Slow(Tapped):
            async def open(self) -> None:
                opened.append(1)
                for _ in range(5):
                    await asyncio.sleep(0)
                await self.inner.open()

        app = App(Client(Slow(memory.backend()), settings()))

        @app.task
        async def note(n: int) -> None: ...

        await within(asyncio.gather(*(note.enqueue(n) for n in range(20))))
        assert opened == [1]
        await app.client.close()
        assert await memory.count() == 20

    async def test_a_store_that_cannot_be_opened_can_be_tried_again(self, memory: Store) -> None:
        class Flaky(Tapped):
            tries = 0

            async def open(self) -> None:
                Flaky.tries += 1
                if Flaky.tries == 1:
                    raise HeadraceError("not yet")

        client = Client(Flaky(memory.backend()), settings())
        with pytest.raises(HeadraceError, match="not yet"):
            await client.open()
        await client.open()
        assert (await client.stats()).queues == []
        await client.close()

    def test_workers_need_an_open_client(self, memory: Any) -> None:
        with pytest.raises(ConfigError, match="open the client"):
            memory.client().worker({}, ["q"])


class TestFork:
    """Forked servers load the app once and serve from children."""

    def test_parent_and_children_use_one_store(self, tmp_path: Path) -> None:
        """An app that was used before the fork works on both sides of it, and nothing is lost."""
        told = script(f"""
            import asyncio, os
            from headrace import App
            from headrace.seam.records import Selector

            app = App("sqlite:///{tmp_path}/jobs.db")

            @app.task
            async def note(n: int) -> int:
                return n

            async def enqueue(start):
                async with app, asyncio.timeout(60):
                    for n in range(start, start + 20):
                        await note.enqueue(n)

            asyncio.run(enqueue(0))
            children = []
            for number in (1, 2):
                child = os.fork()
                if child == 0:
                    try:
                        asyncio.run(enqueue(100 * number))
                        os._exit(0)
                    except BaseException as error:
                        print(repr(error), flush=True)
                        os._exit(1)
                children.append(child)
            asyncio.run(enqueue(50))
            codes = [os.waitpid(child, 0)[1] for child in children]

            async def count():
                async with app:
                    return len(await app.client.list_jobs(Selector(), limit=1_000))

            print(codes, asyncio.run(count()))
        """)
        assert told == ["[0,", "0]", "80"]

    def test_after_a_fork_each_process_makes_ids_of_its_own(self) -> None:
        """At once, while the clock stands still; and what was given a seed goes on as it would have."""
        told = script("""
            import os
            from random import Random
            from headrace.core.clock import ManualClock
            from headrace.core.ids import IdMaker, seeded_by_system

            own, seeded = IdMaker(ManualClock(), seeded_by_system()), IdMaker(ManualClock(), Random(1))
            own.new()
            for _ in range(3):
                if (child := os.fork()) == 0:
                    print(own.new()[8:].hex(), seeded.new().hex(), flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
            print(own.new()[8:].hex(), seeded.new().hex())
        """)
        assert (len(set(told[::2])), len(set(told[1::2]))) == (4, 1)

    def test_a_fork_in_the_middle_of_an_open_client(self) -> None:
        """The child starts afresh; the parent does not notice."""
        told = script("""
            import asyncio, os
            from headrace import App

            app = App("memory://")

            @app.task
            async def one() -> int:
                return 1

            async def main():
                async with app:
                    await one.enqueue()
                    child = os.fork()
                    if child == 0:
                        os._exit(_child())
                    code = os.waitpid(child, 0)[1]
                    await app.drain()
                    print(code, await (await one.enqueue()).info() is not None)

            def _child():
                # The running loop of the parent is not ours: a new thread has none.
                import threading
                codes = []
                def use():
                    async def enqueue():
                        await one.enqueue()
                        await app.drain()
                        return 7
                    try:
                        codes.append(asyncio.run(enqueue()))
                    except BaseException as error:
                        print(repr(error), flush=True)
                        codes.append(1)
                thread = threading.Thread(target=use)
                thread.start()
                thread.join(60)
                return codes[0] if codes else 2

            asyncio.run(main())
        """)
        assert told == [str(7 << 8), "True"]

    @pytest.mark.parametrize("used", [False, True])
    def test_no_two_children_are_alike(self, used: bool) -> None:
        """Secrets and ids differ in every process: whether or not the app was used before the fork."""
        told = script(f"""
            import asyncio, os
            from headrace import App, EventKind

            app = App("memory://", worker={{"name": "random"}})
            names = []
            app.observe(lambda event: names.append(event.worker) if event.kind is EventKind.WORKER_STARTED else None)

            @app.task
            async def one() -> int:
                return 1

            async def main():
                async with app:
                    await app.drain()

            if {used}:
                asyncio.run(main())
                names.clear()
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    drawn = one.job().id[8:].hex()
                    asyncio.run(main())
                    print(names[0], drawn, one.job().id[8:].hex(), flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
            print(one.job().id[8:].hex())
        """)
        assert len(set(told)) == 3 * 3 + 1

    @pytest.mark.parametrize("used", [False, True])
    def test_no_job_is_taken_for_that_of_another_child(self, tmp_path: Path, used: bool) -> None:
        """Ids of one instant: children that enqueue at once, while the clock stands still, store a job each."""
        told = script(f"""
            import asyncio, os
            from headrace import App
            from headrace.core.clock import SystemClock
            from headrace.seam.records import Selector

            SystemClock.now = lambda self: 1_800_000_000_000_000
            app = App("sqlite:///{tmp_path}/jobs.db")

            @app.task
            async def one() -> int:
                return 1

            @app.batch()
            async def many(jobs) -> None: ...

            async def main():
                await asyncio.gather(one.enqueue(), many.enqueue(1))
                await app.client.close()

            async def count():
                async with app:
                    print(len(await app.client.list_jobs(Selector())))

            if {used}:
                asyncio.run(main())
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    asyncio.run(main())
                    os._exit(0)
                os.waitpid(child, 0)
            asyncio.run(main())
            asyncio.run(count())
        """)
        assert told == [str(2 * (4 + used))]

    def test_sync_app(self) -> None:
        """A sync app that was used before the fork works after it."""
        told = script("""
            import os
            from headrace import App, SyncApp

            app = App("memory://")

            @app.task
            def double(n: int) -> int:
                return 2 * n

            jobs = SyncApp(app)
            jobs.enqueue(double, 1)
            child = os.fork()
            handle = jobs.enqueue(double, 21)
            jobs.drain()
            doubled = handle.result()
            if child == 0:
                os._exit(doubled)
            print(doubled, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            jobs.close()
        """)
        assert told == ["42", "42"]


class TestSyncApp:
    @pytest.fixture
    def jobs(self, place: Store) -> Any:
        app = place.app()
        with SyncApp(app) as jobs:
            yield jobs

    def test_all_of_it(self, jobs: SyncApp) -> None:
        """Every method does what its asynchronous twin does."""

        @jobs.app.task(queue="maths", retry=never())
        def divide(a: int, b: int) -> float:
            return a / b

        handle = jobs.enqueue(divide, 1, b=2)
        assert (handle.duplicate, handle.state) == (False, JobState.AVAILABLE)
        [bad, cancelled] = jobs.enqueue_many([divide.job(1, 0), divide.job(1, 1)])
        assert cancelled.cancel() is JobState.CANCELLED
        jobs.pause("maths")
        jobs.drain()
        assert jobs.get(handle.id).state is JobState.AVAILABLE
        jobs.resume("maths")
        jobs.drain()
        assert handle.result() == 0.5
        assert handle.info().state is JobState.COMPLETED
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            bad.result()
        assert jobs.cancel(handle.id) is JobState.COMPLETED
        assert [job.state.value for job in jobs.list_jobs(Selector(queue="maths"))] == [
            "cancelled",
            "failed",
            "completed",
        ]
        assert jobs.stats().queues[0].queue == "maths"
        with pytest.raises(JobNotFound):
            jobs.get("01900000-0000-7000-8000-000000000000")
        with pytest.raises(InvalidJob):
            jobs.enqueue(divide, "one", 2)  # type: ignore[arg-type]

    def test_from_several_threads(self, jobs: SyncApp) -> None:
        """Thread-safe: calls from anywhere, one loop behind them."""

        @jobs.app.task
        def double(n: int) -> int:
            return 2 * n

        with ThreadPoolExecutor(8) as pool:
            handles = list(pool.map(lambda n: jobs.enqueue(double, n), range(100)))
            jobs.drain()
            results = list(pool.map(lambda handle: handle.result(), handles))
        assert results == [2 * n for n in range(100)]

    def test_first_use_from_several_threads(self, place: Store) -> None:
        """One background thread, however many ask for it first."""
        app = place.app()

        @app.task
        def nothing() -> None: ...

        jobs = SyncApp(app)
        together = threading.Barrier(8)

        def use(_: int) -> None:
            together.wait(20)
            jobs.enqueue(nothing)
            jobs.stats()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(8)))
        assert len([t for t in threading.enumerate() if t.name == "headrace-sync"]) == 1
        jobs.close()
        assert asyncio.run(place.count()) == 8

    def test_call(self, jobs: SyncApp) -> None:
        @jobs.app.task
        async def double(n: int) -> int:
            return 2 * n

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(jobs.call, double, 21)
            while not answer.done():
                jobs.drain()
            assert answer.result() == 42
        with pytest.raises(WaitTimeout):
            jobs.call(double.options(wait="20ms"), 1)

    def test_close_and_use_again(self, place: Store) -> None:
        app = place.app()

        @app.task
        def one() -> int:
            return 1

        jobs = SyncApp(app)
        for _ in range(3):
            with jobs:
                handle = jobs.enqueue(one)
                jobs.drain()
                assert handle.result() == 1
        jobs.close()
        jobs.close()

    def test_an_error_leaves_it_usable(self, jobs: SyncApp) -> None:
        @jobs.app.task
        def one(n: int) -> int:
            return n

        for _ in range(3):
            with pytest.raises(InvalidJob):
                jobs.enqueue(one)  # type: ignore[call-arg]
        assert not jobs.enqueue(one, 1).duplicate

    @pytest.mark.parametrize(
        "use",
        [
            lambda jobs: jobs.call(_task(jobs)),
            lambda jobs: jobs.get("01900000-0000-7000-8000-000000000000"),
            lambda jobs: jobs.cancel("01900000-0000-7000-8000-000000000000"),
            lambda jobs: jobs.list_jobs(Selector()),
            lambda jobs: jobs.stats(),
            lambda jobs: jobs.pause("q"),
            lambda jobs: jobs.resume("q"),
            lambda jobs: jobs.__enter__(),
        ],
    )
    async def test_misuse_inside_a_running_loop(self, memory: Store, use: Callable[[SyncApp], Any]) -> None:
        """It would block the loop: told, with advice, and nothing is stored."""
        jobs = SyncApp(memory.app())
        try:
            with pytest.raises(ConfigError, match=r"await .* here"):
                use(jobs)
        finally:
            await asyncio.to_thread(jobs.close)
        assert await memory.count() == 0

    async def test_misuse_leaves_no_thread_behind(self, memory: Store) -> None:
        """What is refused is not begun."""
        jobs = SyncApp(memory.app())
        try:
            with pytest.raises(ConfigError):
                jobs.stats()
            assert not [t for t in threading.enumerate() if t.name == "headrace-sync"]
        finally:
            await asyncio.to_thread(jobs.close)

    def test_closing_wakes_those_who_wait(self, memory: Any) -> None:
        """A thread that waits for a result without a limit does not wait for ever on a closed app."""
        app = memory.app()
        queued = threading.Event()
        app.observe(lambda event: queued.set() if event.kind is EventKind.QUEUED else None)

        @app.task
        def nobody_runs_this() -> None: ...

        jobs, ended = SyncApp(app), threading.Event()

        def wait() -> None:
            try:
                jobs.call(nobody_runs_this.options(wait=None))
            except BaseException:
                ended.set()

        threading.Thread(target=wait, daemon=True).start()
        assert queued.wait(20)
        jobs.close()
        assert ended.wait(20)


def _task(jobs: SyncApp) -> Any:
    @jobs.app.task
    def nothing() -> None: ...

    return nothing


class TestClosing:
    async def test_waits_for_what_was_submitted(self, store: Store) -> None:
        """What was enqueued before the close is stored by it."""
        app = store.app()

        @app.task
        async def note(n: int) -> None: ...

        async with asyncio.TaskGroup() as group:
            for n in range(50):
                group.create_task(note.enqueue(n))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await app.client.close()
        assert await store.count() == 50

    async def test_a_handler_may_enqueue_while_the_worker_stops(self, store: Store) -> None:
        clock = ManualClock()
        app, gate, events = store.app(clock=clock), Gate(), Events()
        app.observe(events)

        @app.task
        async def child() -> None: ...

        @app.task
        async def parent() -> None:
            await gate.pass_through()
            await child.enqueue()

        await parent.enqueue()
        work = asyncio.ensure_future(app.work())
        await gate.reached()
        app.stop()
        await asyncio.sleep(0)
        gate.open()
        await within(work)
        assert [event.task for event in events.of(EventKind.QUEUED)] == [parent.name, child.name]


def _caught(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None
