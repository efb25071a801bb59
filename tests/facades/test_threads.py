"""``SyncApp`` from any thread of a process: handlers of a worker, threads beside a loop that has the app open, scripts.
And what must be awaited, called where no loop runs."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from headrace import (
    App,
    Completed,
    Duplicate,
    Job,
    JobState,
    NewJob,
    Queue,
    Queued,
    SyncApp,
    SyncQueue,
    never,
)
from headrace.errors import ConfigError, HeadraceError, InvalidJob, WaitTimeout
from headrace.seam.records import JobKey
from tests.facades.harness import STORES, Store, script, within

NOBODY = "01900000-0000-7000-8000-000000000000"


@pytest.fixture(params=STORES)
def place(request: Any, tmp_path: Path) -> Store:
    """A store for tests that have loops of their own."""
    return Store(request.param, tmp_path)


def loops_of_its_own() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-sync"]


class TestHandlers:
    """Plain functions, which a worker runs in threads."""

    async def test_a_plain_task_enqueues_another(self, store: Store) -> None:
        app, ran = store.app(), []
        jobs = SyncApp(app)

        @app.task
        def leaf(n: int) -> int:
            ran.append(n)
            return 2 * n

        @app.task(retry=never())
        def parent() -> str:
            one = jobs.enqueue(leaf.options(key="one"), 1)
            many = jobs.enqueue_many([leaf.job(2), leaf.job(3)])
            assert not loops_of_its_own()
            return ",".join(str(handle.id) for handle in [one, *many])

        async with app:
            handle = await parent.enqueue()
            await within(app.drain())
            ids = (await handle.result()).split(",")
            assert sorted(ran) == [1, 2, 3]
            assert (await app.get(JobKey("default", "one"))).id == (await app.get(ids[0])).id

    async def test_a_plain_task_waits_for_another(self, store: Store) -> None:
        app = store.app()
        jobs = SyncApp(app)

        @app.task
        def leaf(n: int) -> int:
            return 2 * n

        @app.task(retry=never())
        def parent() -> int:
            return jobs.call(leaf, 21) + jobs.enqueue(leaf, 0).result()

        async with app:
            work = asyncio.ensure_future(app.work())
            assert await within(parent.call()) == 42
            app.stop()
            await within(work)

    async def test_a_handler_of_a_queue_enqueues_tasks(self, memory: Store) -> None:
        client = memory.client()
        app, queue = App(client), Queue[int, str]("numbers", client)
        jobs = SyncApp(app)

        @app.task
        def leaf(n: int) -> None: ...

        @queue.execute
        def handle(job: Job[int]) -> str:
            return str(jobs.enqueue(leaf, job.payload).id)

        async with queue:
            enqueued = await within(queue.enqueue_and_wait("a", 7))
        assert (await app.get(enqueued)).args == {"n": 7}
        await client.close()

    def test_under_drain_of_a_sync_app(self, place: Store) -> None:
        """The worker that ``SyncApp.drain`` runs is on the loop that the handler's calls go to."""
        app, ran = place.app(), []
        jobs = SyncApp(app)

        @app.task
        def leaf(n: int) -> None:
            ran.append(n)

        @app.task(retry=never())
        def parent() -> None:
            jobs.enqueue(leaf, 5)
            with SyncApp(app) as others:
                others.enqueue(leaf, 6)

        with jobs:
            jobs.enqueue(parent)
            jobs.drain()
            assert sorted(ran) == [5, 6]
            assert jobs.stats().queues[0].completed == 3

    def test_in_a_process(self, tmp_path: Path) -> None:
        """A process has no loop: its calls go through one of its own."""
        (tmp_path / "shop.py").write_text(f"""
from headrace import App, SyncApp

app = App("sqlite:///{tmp_path}/jobs.db")
jobs = SyncApp(app)

@app.task
def leaf(n: int) -> int:
    return 2 * n

@app.task(executor="process")
def parent() -> int:
    return jobs.call(leaf, 21)
""")
        told = script(
            f"""
            import asyncio, sys
            sys.path.insert(0, {str(tmp_path)!r})
            from shop import app, parent

            async def main():
                async with app:
                    work = asyncio.ensure_future(app.work())
                    print(await parent.call())
                    app.stop()
                    await work

            asyncio.run(main())
            """,
            seconds=60,
        )
        assert told == ["42"]


class TestBesideALoop:
    """The app is open on a loop, as in a web server; threads beside it use ``SyncApp``."""

    async def test_calls_go_to_that_loop(self, store: Store) -> None:
        app = store.app()

        @app.task
        def double(n: int) -> int:
            return 2 * n

        jobs = SyncApp(app)

        def endpoint(n: int) -> int:
            with SyncApp(app) as own:
                assert own.stats().queues is not None
            handle = jobs.enqueue(double, n)
            assert handle.info().task == double.name
            assert not loops_of_its_own()
            return handle.result()

        async with app:
            work = asyncio.ensure_future(app.work())
            answers = await within(asyncio.gather(*(asyncio.to_thread(endpoint, n) for n in range(4))))
            assert answers == [0, 2, 4, 6]
            assert await within(double.call(9)) == 18
            app.stop()
            await within(work)
        await asyncio.to_thread(jobs.close)

    async def test_and_to_a_loop_of_its_own_when_the_app_is_closed(self, store: Store) -> None:
        app = store.app()

        @app.task
        def double(n: int) -> int:
            return 2 * n

        jobs = SyncApp(app)
        async with app:
            await asyncio.to_thread(jobs.enqueue, double, 1)
        assert not loops_of_its_own()
        handle = await asyncio.to_thread(jobs.enqueue, double, 2)
        await asyncio.to_thread(jobs.stats)
        assert len(loops_of_its_own()) == 1
        await asyncio.to_thread(jobs.close)
        assert not loops_of_its_own()
        async with app:
            assert (await app.get(handle.id)).state is JobState.AVAILABLE
        assert await store.count() == 2

    async def test_first_uses_at_once_find_one_loop(self, store: Store) -> None:
        """A loop that opens the app, and two sync apps in several threads: whoever is first, the others join."""
        app = store.app()

        @app.task
        def note(n: int) -> None: ...

        both, together = [SyncApp(app), SyncApp(app)], threading.Barrier(4)

        def use(n: int) -> None:
            together.wait(20)
            both[n % 2].enqueue(note, n)

        await within(asyncio.gather(*(asyncio.to_thread(use, n) for n in range(4))), 30)
        for jobs in both:
            await asyncio.to_thread(jobs.close)
        assert not loops_of_its_own()
        assert await store.count() == 4

    async def test_a_task_of_another_app_goes_to_its_own(self, memory: Store) -> None:
        app, other = memory.app(), memory.app()

        @app.task
        def note() -> None: ...

        async with app:
            handle = await asyncio.to_thread(SyncApp(other).enqueue, note)
            assert (await app.get(handle.id)).task == note.name
            assert not loops_of_its_own()

    async def test_it_may_be_open_in_the_background_and_on_a_loop(self, store: Store) -> None:
        """Neither knows of the other: the background has a client of its own."""
        app = store.app()

        @app.task
        def note() -> None: ...

        jobs = SyncApp(app)
        early = await asyncio.to_thread(jobs.enqueue, note)
        async with app:
            late = await note.enqueue()
            assert await asyncio.to_thread(lambda: early.info().id) == (await app.get(early.id)).id
            await within(app.drain())
            assert (await late.info()).state is JobState.COMPLETED
        assert await asyncio.to_thread(early.result) is None
        await asyncio.to_thread(jobs.close)
        assert not loops_of_its_own()

    async def test_on_the_loop_itself(self, memory: Store, caplog: pytest.LogCaptureFixture) -> None:
        """An enqueue is brief: it is served from the background, with a word of warning. What may take long is refused,
        with what to write instead."""
        app = memory.app()

        @app.task
        def note() -> None: ...

        jobs = SyncApp(app)
        async with app:
            for use in (jobs.stats, jobs.drain, lambda: jobs.call(note), note.call_sync):
                with pytest.raises(ConfigError, match="await "):
                    use()
            with pytest.raises(ConfigError, match=r"await note\.call\(…\) here"):
                note.call_sync()
            for _ in range(2):
                jobs.enqueue(note)
            jobs.enqueue_many([note.job()])
            told = [record.message for record in caplog.records if "await note.enqueue(…)" in record.message]
            assert len(told) == 1
            jobs.close()
        assert not loops_of_its_own()
        assert await memory.count() == 3

    async def test_closing_in_a_task_of_its_drain(self, memory: Store) -> None:
        """The drain stops after that task."""
        app = memory.app()
        jobs, ran = SyncApp(app), []

        @app.task(retry=never())
        async def close() -> None:
            jobs.close()
            ran.append(1)

        def use() -> None:
            with jobs:
                jobs.enqueue(close)
                jobs.drain()

        await within(asyncio.to_thread(use), 30)
        assert ran == [1]

    def test_on_the_loop_in_the_background(self, memory: Any) -> None:
        """It would wait for itself: refused."""
        app, told = memory.app(), []

        @app.task
        def note() -> None: ...

        jobs = SyncApp(app)

        async def use() -> None:
            for call in (note.enqueue_sync, jobs.close):
                with pytest.raises(ConfigError) as refused:
                    call()
                told.append(str(refused.value))

        with jobs:
            jobs.wait_for(use())
        assert [text.partition(";")[0] for text in told] == [
            "this call would block the event loop that runs here",
            "close() would wait for the loop that it was called on",
        ]

    def test_a_loop_that_does_not_run(self, memory: Any) -> None:
        """Nobody would ever answer there; the background does."""
        app = memory.app()

        @app.task
        def note() -> None: ...

        loop = asyncio.new_event_loop()
        loop.run_until_complete(app.client.open())
        with SyncApp(app) as jobs:
            jobs.enqueue(note)
        loop.run_until_complete(app.client.close())
        loop.close()
        assert asyncio.run(memory.count()) == 1

    def test_a_loop_that_ends_meanwhile(self, memory: Any) -> None:
        """A thread that waits is told, whether the loop was closed properly or merely stopped."""
        app = memory.app()

        @app.task
        def nobody_runs_this() -> None: ...

        jobs = SyncApp(app)
        for properly in (True, False):
            told: list[BaseException] = []
            enqueued = threading.Event()
            app.observe(lambda event, enqueued=enqueued: enqueued.set())

            def wait(told: list[BaseException] = told) -> None:
                try:
                    jobs.call(nobody_runs_this.options(wait=None))
                except BaseException as error:
                    told.append(error)

            async def main(enqueued: threading.Event = enqueued) -> threading.Thread:
                await app.client.open()
                thread = threading.Thread(target=wait, daemon=True)
                thread.start()
                await asyncio.to_thread(enqueued.wait, 30)
                return thread

            if properly:
                thread = asyncio.run(main())
                thread.join(30)
            else:
                loop = asyncio.new_event_loop()
                thread = loop.run_until_complete(main())
                thread.join(30)
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                loop.run_until_complete(app.client.close())
                loop.close()
            assert isinstance(told[0], HeadraceError), told
            assert "event loop" in str(told[0])


class TestClosed:
    def test_a_closed_one_is_not_used_again(self, place: Store) -> None:
        app = place.app()

        @app.task
        def one() -> int:
            return 1

        jobs = SyncApp(app)
        with jobs:
            handle = jobs.enqueue(one)
        for use in (jobs.stats, handle.info, lambda: jobs.enqueue(one)):
            with pytest.raises(ConfigError, match=r"this SyncApp is closed; make another, or enter it again"):
                use()
        assert not loops_of_its_own()
        with jobs:
            assert handle.info().state is JobState.AVAILABLE

    def test_closing_ends_a_drain(self, memory: Any) -> None:
        """What runs is finished, then the drain returns; no thread waits for ever."""
        app, running, go_on = memory.app(), threading.Event(), threading.Event()

        @app.task
        def slow() -> int:
            running.set()
            go_on.wait(30)
            return 1

        jobs, ended = SyncApp(app), threading.Event()
        handle = jobs.enqueue(slow)

        def drain() -> None:
            jobs.drain()
            ended.set()

        threading.Thread(target=drain, daemon=True).start()
        assert running.wait(30)
        closing = threading.Thread(target=jobs.close, daemon=True)
        closing.start()
        go_on.set()
        closing.join(30)
        assert ended.wait(30)
        with jobs:
            assert handle.info().state is JobState.COMPLETED


class TestBesideADrain:
    """The loop of a drain ends with it, so nobody else's calls go there."""

    def test_calls_of_other_threads_are_not_cut_off(self, place: Store) -> None:
        app = place.app()

        @app.task
        def note(n: int) -> None: ...

        jobs, stop, calls = SyncApp(app), threading.Event(), [0, 0]
        failed: list[BaseException] = []

        def hammer(i: int, call: Callable[[], object]) -> None:
            try:
                while not stop.is_set():
                    call()
                    calls[i] += 1
            except BaseException as error:
                failed.append(error)

        work = (lambda: jobs.enqueue_many([note.options(delay="1h").job(1)]), jobs.stats)
        with jobs:
            threads = [threading.Thread(target=hammer, args=pair, daemon=True) for pair in enumerate(work)]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + 60
            drains = 0
            while not failed and (drains < 30 or min(calls) < 30) and time.monotonic() < deadline:
                jobs.drain()
                drains += 1
            stop.set()
            for thread in threads:
                thread.join(30)
            assert not failed
            assert jobs.stats().queues[0].scheduled == calls[0]

    def test_one_drain_at_a_time(self, place: Store) -> None:
        """A second one is refused in one sentence, whatever the first one is at."""
        app = place.app()

        @app.task
        def note() -> None: ...

        jobs, told, drained = SyncApp(app), set[str](), [0, 0]

        def drain(i: int) -> None:
            while drained[i] < 20:
                try:
                    jobs.drain()
                    drained[i] += 1
                except ConfigError as error:
                    told.add(str(error))
                    time.sleep(0.001)  # the other one goes on

        with jobs:
            jobs.enqueue(note)
            threads = [threading.Thread(target=drain, args=(i,), daemon=True) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            assert drained == [20, 20]
            assert told <= {"a worker of this app already runs in this process"}
            assert jobs.stats().queues[0].completed == 1


class TestWithoutALoop:
    """What is awaited raises where it is called when no loop runs there: nothing would come of it."""

    @pytest.fixture
    def app(self) -> App:
        return App("memory://")

    @pytest.mark.parametrize(
        ("use", "instead"),
        [
            (lambda app, task, batch, queue: task.enqueue(1), r"call its enqueue_sync\(…\)"),
            (lambda app, task, batch, queue: task.options(delay=1).enqueue(1), r"call its enqueue_sync\(…\)"),
            (lambda app, task, batch, queue: task.call(1), r"call its call_sync\(…\)"),
            (lambda app, task, batch, queue: batch.enqueue(1), r"call its enqueue_sync\(…\)"),
            (lambda app, task, batch, queue: batch.call(1), r"call its call_sync\(…\)"),
            (lambda app, task, batch, queue: app.enqueue_many([task.job(1)]), r"SyncApp\(app\)\.enqueue_many\(jobs\)"),
            (lambda app, task, batch, queue: app.enqueue_named(task.name, {"n": 1}), r"SyncApp\(app\)\.enqueue_named"),
            (lambda app, task, batch, queue: app.cancel(NOBODY), r"SyncApp\(app\)\.cancel\(id\)"),
            (lambda app, task, batch, queue: queue.enqueue("a", 1), r"SyncQueue\(queue\)\.enqueue\(…\)"),
            (lambda app, task, batch, queue: queue.enqueue_and_wait("a", 1), r"SyncQueue\(queue\)\.enqueue_and_wait"),
        ],
    )
    def test_refused(self, app: App, use: Callable[..., Any], instead: str) -> None:
        @app.task
        def task(n: int) -> None: ...

        @app.batch
        async def batch(jobs: list[Job[int]]) -> None: ...

        with pytest.raises(ConfigError, match=rf"no event loop runs here, so nothing was done.*{instead}"):
            use(app, task, batch, Queue[int, int]("numbers", "memory://"))

    async def test_in_a_plain_handler_the_job_fails(self, store: Store) -> None:
        """It does not complete with its child lost."""
        app = store.app()

        @app.task
        def child() -> None: ...

        @app.task(retry=never())
        def parent() -> None:
            child.enqueue()

        async with app:
            handle = await parent.enqueue()
            await within(app.drain())
            with pytest.raises(HeadraceError, match="enqueue_sync"):
                await handle.result()

    async def test_they_still_pass_for_coroutine_functions(self, app: App) -> None:
        """For mocks, web frameworks and task groups."""

        @app.task
        def task(n: int) -> int:
            return n

        assert asyncio.iscoroutinefunction(task.enqueue)
        assert asyncio.iscoroutinefunction(app.enqueue_many)
        assert inspect.signature(task.enqueue).parameters.keys() == {"args", "kwargs"}
        with patch.object(task, "enqueue") as mocked:
            assert isinstance(mocked, AsyncMock)
        async with asyncio.TaskGroup() as group:
            stored = group.create_task(task.enqueue(1))
        assert not stored.result().duplicate
        await app.client.close()

    def test_a_wait_that_is_too_short(self, place: Store) -> None:
        """A TimeoutError of the call itself is not taken for one of the bridge."""
        app = place.app()

        @app.task
        def nobody_runs_this() -> None: ...

        with SyncApp(app) as jobs, pytest.raises(WaitTimeout):
            jobs.call(nobody_runs_this.options(wait="10ms"))


def test_what_is_no_task(memory: Any) -> None:
    with SyncApp(memory.app()) as jobs:
        for use in (jobs.enqueue, jobs.call):
            with pytest.raises(InvalidJob, match="expected a task and its arguments, got"):
                use(NewJob(task="t"))  # type: ignore[operator]


def test_jobs_without_a_task(place: Store) -> None:
    """``enqueue_many`` and ``wait_for`` take what is not of this app's tasks."""
    app = place.app()
    with SyncApp(app) as jobs:
        [handle] = jobs.enqueue_many([NewJob(task="elsewhere", args={})])
        assert jobs.wait_for(app.client.fetch(handle.id)) is not None


class TestQueues:
    """``SyncQueue``: what can be asked of a queue, without await."""

    async def test_every_call(self, store: Store) -> None:
        queue = store.queue("lengths", result_ttl="1h")

        @queue.execute
        def length(job: Job[str]) -> int:
            return len(job.payload)

        lengths = SyncQueue(queue)

        def use() -> None:
            assert lengths.enqueue_and_wait("a", "hello") == 5
            assert lengths.enqueue("a", "hello") == Completed(5)
            assert lengths.result("a") == 5
            assert lengths.update_result_ttl("a", "2h") == "updated"
            assert lengths.enqueue("b", "later", delay="1h") == Queued()
            status = lengths.status("b")
            assert status is not None
            assert status.state == "queued"
            assert lengths.cancel("b") == "cancelled"
            assert not loops_of_its_own()

        async with queue:
            await within(asyncio.to_thread(use))

    def test_without_a_loop(self, place: Store) -> None:
        with SyncQueue(Queue[int, int]("numbers", place.client())) as numbers:
            assert numbers.enqueue("a", 1) == Queued()
            assert isinstance(numbers.enqueue("a", 1), Duplicate)
        assert not loops_of_its_own()
        with pytest.raises(ConfigError, match="this SyncQueue is closed"):
            numbers.status("a")


class TestTwins:
    """``enqueue_sync`` and ``call_sync`` of tasks and batch tasks."""

    async def test_in_plain_tasks(self, store: Store) -> None:
        app, ran = store.app(), []

        @app.batch(size=10)
        async def collect(jobs: list[Job[int]]) -> list[int]:
            ran.extend(job.payload for job in jobs)
            return [2 * job.payload for job in jobs]

        @app.task
        def double(n: int) -> int:
            return 2 * n

        @app.task(retry=never())
        def parent() -> list[int]:
            handle = double.options(key="one").enqueue_sync(1)
            return [handle.result(), double.call_sync(2), collect.call_sync(3), collect.enqueue_sync(4).result()]

        async with app:
            work = asyncio.ensure_future(app.work())
            assert await within(parent.call()) == [2, 4, 6, 8]
            app.stop()
            await within(work)
        assert sorted(ran) == [3, 4]

    def test_nothing_has_to_be_opened_or_closed(self, tmp_path: Path) -> None:
        """The end of the program is the end of the background: no thread is left, no warning is told."""
        told = script(f"""
            import subprocess, sys
            code = '''
            from headrace import App
            app = App("sqlite:///{tmp_path}/jobs.db")

            @app.task(name="note")
            def note(n: int) -> None: ...

            print(note.enqueue_sync(1).state)
            '''
            from textwrap import dedent
            done = subprocess.run([sys.executable, "-X", "dev", "-c", dedent(code)], capture_output=True, text=True)
            print(done.returncode, done.stdout, done.stderr)
        """)
        assert told == ["0", "available"]
        assert not (tmp_path / "jobs.db-wal").exists()

    def test_run_after_an_enqueue(self, place: Store) -> None:
        """A script that enqueues, then works: the background has a client of its own."""
        app, ran = place.app(), []

        @app.task
        async def note(n: int) -> None:
            ran.append(n)

        handle = note.enqueue_sync(1)
        app.run(burst=True)
        assert ran == [1]
        assert handle.result(0) is None

    def test_a_fork_while_somebody_waits(self, tmp_path: Path) -> None:
        """The connections of the background stay open for the one who waits, and the fork is not held up."""
        told = script(f"""
            import os, threading
            from headrace import App
            from headrace.errors import WaitTimeout

            app = App("sqlite:///{tmp_path}/jobs.db")

            @app.task(name="nobody_runs_this")
            def nobody_runs_this() -> None: ...

            handle, told = nobody_runs_this.enqueue_sync(), []

            def wait():
                try:
                    handle.result("3s")
                except WaitTimeout:
                    told.append("waited")

            thread = threading.Thread(target=wait)
            thread.start()
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
            thread.join()
            print(*told, nobody_runs_this.enqueue_sync().state)
        """)
        assert told == ["waited", "available"]
