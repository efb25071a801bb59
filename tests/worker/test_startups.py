"""Start-up functions of workers and their children, what tasks are given, and middleware in a handler's own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    App,
    Bundle,
    CurrentJob,
    Done,
    Job,
    Next,
    Outcome,
    Queue,
    Subject,
    SyncApp,
    Visited,
    current_job,
    given,
    never,
)
from headrace.api.crawler import Cursor
from headrace.errors import ConfigError, JobFailed
from tests.facades.harness import script, within


class Pool:
    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Model:
    pass


@pytest.fixture
def app() -> App:
    return App("memory://", worker={"concurrency": 4})


class TestWorker:
    @pytest.mark.parametrize("kind", ["plain", "async", "generator", "async generator"])
    async def test_every_kind_of_function(self, app: App, kind: str) -> None:
        told: list[str] = []

        def plain() -> Pool:
            return Pool(kind)

        async def awaited() -> Pool:
            return Pool(kind)

        def generator() -> Iterator[Pool]:
            yield Pool(kind)
            told.append("ended")

        async def async_generator() -> AsyncIterator[Pool]:
            yield Pool(kind)
            told.append("ended")

        app.startup({"plain": plain, "async": awaited, "generator": generator}.get(kind, async_generator))

        @app.task
        async def on_the_loop(n: int, pool: Pool = given) -> str:
            return pool.name

        @app.task
        def in_a_thread(job: Job[Any], n: int, *, pool: Pool = given) -> str:
            return f"{pool.name} {app.use(Pool) is pool}"

        async with app:
            first, second = await on_the_loop.enqueue(1), await in_a_thread.enqueue(2)
            await within(app.drain())
            assert [await first.result(), await second.result()] == [kind, f"{kind} True"]
        assert told == (["ended"] if "generator" in kind else [])

    async def test_in_order_and_back(self, app: App) -> None:
        """Each may use what was made before it. The last one is ended first, after the last job."""
        told: list[str] = []

        @app.startup
        def pool() -> Iterator[Pool]:
            told.append("pool")
            yield Pool("first")
            told.append("pool ended")

        @app.startup
        async def model() -> AsyncIterator[Model]:
            told.append(f"model beside {app.use(Pool).name}")
            yield Model()
            told.append("model ended")

        @app.startup
        def hook() -> None:
            told.append("hook")

        @app.task
        async def work() -> None:
            told.append("job")

        async with app:
            await work.enqueue()
            await within(app.drain())
        assert told == ["pool", "model beside first", "hook", "job", "model ended", "pool ended"]
        with pytest.raises(ConfigError, match="there is no Pool here: it is made when a worker starts"):
            app.use(Pool)

    async def test_one_that_fails(self, app: App) -> None:
        """The worker does not start, no job runs, and what was made before is ended."""
        told: list[str] = []

        @app.startup
        def pool() -> Iterator[Pool]:
            yield Pool()
            told.append("ended")

        @app.startup
        async def model() -> Model:
            raise OSError("no such model")

        @app.task
        async def work() -> None:
            told.append("ran")

        async with app:
            handle = await work.enqueue()
            with pytest.raises(OSError, match="no such model"):
                await within(app.drain())
            assert (await handle.info()).state == "available"
        assert told == ["ended"]

    async def test_one_that_fails_at_the_end(self, app: App, caplog: pytest.LogCaptureFixture) -> None:
        """It is logged, and the others are ended all the same."""
        told: list[str] = []

        @app.startup
        def pool() -> Iterator[Pool]:
            yield Pool()
            told.append("ended")

        @app.startup
        async def model() -> AsyncIterator[Model]:
            yield Model()
            raise OSError("already gone")

        @app.task
        async def work() -> None: ...

        async with app:
            await work.enqueue()
            with caplog.at_level(logging.ERROR):
                await within(app.drain())
        assert told == ["ended"]
        assert "model: what comes after its yield raised" in caplog.text

    async def test_stand_ins_for_tests(self, app: App) -> None:
        @app.startup
        def pool() -> Pool:
            raise AssertionError("not in a test")

        @app.task
        def name(pool: Pool = given) -> str:
            return pool.name

        assert name(pool=Pool("by hand")) == "by hand"
        with app.using({Pool: Pool("fake")}):
            assert name() == "fake"
            async with app:
                handle = await name.enqueue()
                await within(app.drain())
                assert await handle.result() == "fake"
        with pytest.raises(ConfigError, match="there is no Pool here"):
            name()

    async def test_tasks_of_a_bundle(self, app: App) -> None:
        bundle = Bundle()

        @bundle.task
        def name(pool: Pool = given) -> str:
            return pool.name

        app.include(bundle)
        app.startup(Pool_of_the_bundle)
        async with app:
            handle = await name.enqueue()
            await within(app.drain())
            assert await handle.result() == "bundle"


class TestBatches:
    @pytest.mark.parametrize("chained", [False, True])
    async def test_are_given_too(self, app: App, chained: bool) -> None:
        """With and without middleware, in a bundle, by name alone, and with stand-ins."""
        bundle = Bundle()

        @bundle.batch(size=10)
        async def double(jobs: list[Job[int]], pool: Pool = given, *, model: Model = given) -> list[str]:
            assert app.use(Model) is model
            return [f"{pool.name} {2 * job.payload}" for job in jobs]

        async def watch(job: Job[Any], next: Next) -> Outcome:
            return await next(job)

        app.include(bundle)
        app.startup(Pool_of_the_bundle)
        app.startup(_model)
        if chained:
            app.middleware(watch)
        async with app:
            handles = await app.enqueue_many([double.job(n) for n in (1, 2)])
            await within(app.drain())
            assert [await handle.result() for handle in handles] == ["bundle 2", "bundle 4"]
            with app.using({Pool: Pool("fake")}):
                handle = await double.enqueue(3)
                await within(app.drain())
            assert await handle.result() == "fake 6"

    async def test_what_nobody_makes(self, app: App) -> None:
        @app.batch(name="many")
        async def many(jobs: list[Job[int]], pool: Pool = given) -> None: ...

        with pytest.raises(ConfigError, match=r"batch task many: pool: no @app\.startup.* function makes Pool"):
            await within(app.drain())

    def test_refused(self, app: App) -> None:
        async def bare(jobs: list[Job[int]], pool=given) -> None: ...  # type: ignore[no-untyped-def]
        async def two(jobs: list[Job[int]], more: int, pool: Pool = given) -> None: ...

        with pytest.raises(ConfigError, match="pool: given needs an annotation"):
            app.batch(bare)
        with pytest.raises(ConfigError, match="one parameter, the list of jobs, besides those that are given, got 2"):
            app.batch(two)  # type: ignore[call-overload]


def _model() -> Model:
    return Model()


def Pool_of_the_bundle() -> Pool:
    return Pool("bundle")


class TestRefused:
    async def test_what_nobody_makes(self, app: App) -> None:
        @app.task(name="name")
        def name(pool: Pool = given) -> str:
            return pool.name

        with pytest.raises(ConfigError, match=r"task name: pool: no @app\.startup\(per='worker'\) function makes Pool"):
            await within(app.drain())

    def test_made_twice(self, app: App) -> None:
        app.startup(Pool_of_the_bundle)
        with pytest.raises(ConfigError, match="another start-up function makes Pool already"):
            app.startup(Pool_of_the_bundle)

    def test_bad_functions(self, app: App) -> None:
        async def awaited() -> Pool:
            return Pool()

        with pytest.raises(ConfigError, match="a child process has no event loop"):
            app.startup(per="child")(awaited)
        with pytest.raises(ConfigError, match="without parameters"):
            app.startup(lambda n: n)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="expected 'worker' or 'child', got 'thread'"):
            app.startup(per="thread")(Pool_of_the_bundle)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="expected a function, got 7"):
            app.startup(7)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="given needs an annotation"):

            @app.task
            def name(pool=given) -> None: ...  # type: ignore[no-untyped-def]

    async def test_a_generator_without_a_yield(self, app: App) -> None:
        @app.startup
        def empty() -> Iterator[Pool]:
            yield from ()

        app.task(name="nothing")(_nothing)
        with pytest.raises(ConfigError, match="expected it to yield once"):
            await within(app.drain())

    async def test_given_is_no_argument(self, app: App) -> None:
        @app.task(name="name")
        def name(n: int, pool: Pool = given) -> None: ...

        with pytest.raises(Exception, match="unknown parameter 'pool'"):
            await name.enqueue(1, pool=Pool())

    def test_where_nothing_is_given(self, app: App) -> None:
        """The handlers of queues, trackers and crawlers, and start-up functions, would get the mark itself."""

        async def of_a_queue(job: Job[Any], pool: Pool = given) -> None: ...
        async def of_a_tracker(subjects: list[Subject], pool: Pool = given) -> Visited | None: ...
        async def of_a_crawler(cursor: Cursor, pool: Pool = given) -> str | None: ...
        def of_a_start(pool: Pool = given) -> Model: ...  # type: ignore[empty-body]

        only = "pool: only tasks and batch tasks are given something; "
        with pytest.raises(ConfigError, match=f"^queue mail: {only}make it where the queue is opened$"):
            Queue[Any, Any]("mail", "memory://").execute(of_a_queue)
        with pytest.raises(ConfigError, match=rf"^tracker 'watch': {only}call app\.use\(Type\) in it$"):
            app.tracker("watch", of_a_tracker, {"DAILY": "1d"})
        with pytest.raises(ConfigError, match=rf"^crawler 'hunt': {only}call app\.use\(Type\) in it$"):
            app.crawler("hunt", of_a_crawler, every="1h")
        with pytest.raises(ConfigError, match=rf"^startup .*of_a_start: {only}call app\.use\(Type\) in it$"):
            app.startup(of_a_start)


def _nothing() -> None: ...


class TestPlainMiddleware:
    async def test_in_the_thread_of_the_handler(self, app: App) -> None:
        told: list[Any] = []

        @app.plain_middleware
        def outer(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
            told.append(("outer", job.task, threading.get_ident()))
            outcome = next()
            assert isinstance(outcome, Done)
            return Done(outcome.result + 1)

        @app.plain_middleware
        def inner(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
            told.append(("inner", job.attempt, threading.get_ident()))
            return next()

        @app.task(name="plain")
        def plain() -> int:
            told.append(("task", current_job().task, threading.get_ident()))  # type: ignore[union-attr]
            return 1

        @app.task
        async def awaited() -> int:
            return 1

        async with app:
            handles = [await plain.enqueue(), await awaited.enqueue()]
            await within(app.drain())
            assert [await handle.result() for handle in handles] == [2, 1]
        assert [one[:2] for one in told] == [("outer", "plain"), ("inner", 0), ("task", "plain")]
        assert len({one[2] for one in told}) == 1
        assert told[0][2] != threading.get_ident()

    async def test_errors_and_what_is_no_outcome(self, app: App) -> None:
        seen: list[str] = []

        @app.plain_middleware
        def watch(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
            try:
                return next()
            except ValueError as error:
                seen.append(str(error))
                raise
            finally:
                if job.task == "forgetful":
                    return None  # type: ignore[return-value]  # noqa: B012

        @app.task(name="broken", retry=never())
        def broken() -> None:
            raise ValueError("broken")

        app.task(name="forgetful", retry=never())(_nothing)
        async with app:
            one, other = await broken.enqueue(), await app.enqueue_named("forgetful", {})
            await within(app.drain())
            with pytest.raises(JobFailed, match="broken"):
                await one.result()
            with pytest.raises(JobFailed, match="which is not an outcome; end it with: return next"):
                await other.result()
        assert seen == ["broken"]

    def test_async_middleware_is_refused(self, app: App) -> None:
        async def awaited(job: Any, next: Any) -> Outcome:
            return Done()

        for wrong in (awaited, 7):
            with pytest.raises(ConfigError, match="expected a plain def"):
                app.plain_middleware(wrong)  # type: ignore[arg-type]


SHOP = """
import os
from collections.abc import Iterator
from headrace import App, CurrentJob, current_job, given

app = App("sqlite:///{path}/jobs.db", worker={{"concurrency": 1, **{worker}}})

class Model:
    loads = 0

def tell(what: str) -> None:
    with open("{path}/told", "a") as file:
        print(what, file=file)

@app.startup(per="child")
def model() -> Iterator[Model]:
    Model.loads += 1
    tell(f"start {{os.getpid()}}")
    yield Model()
    tell(f"end {{os.getpid()}}")

@app.plain_middleware
def around(job: CurrentJob, next):
    tell(f"around {{job.task}} {{os.getpid()}}")
    return next()

@app.task(name="predict", executor="process")
def predict(n: int, model: Model = given) -> int:
    assert current_job().task == "predict"
    return os.getpid() if model.loads == 1 else 0

@app.task(name="grow", executor="process")
def grow(size: int) -> int:
    global kept
    kept = b"x" * size
    return os.getpid()
"""
MAIN = """
import asyncio, sys
sys.path.insert(0, {path!r})
import shop

async def main():
    async with shop.app:
        handles = [await shop.{task}.enqueue(n) for n in {given}]
        await shop.app.drain()
        print(*[await handle.result() for handle in handles])

asyncio.run(main())
"""


class TestChildren:
    def _run(self, path: Path, task: str, given: list[int], **worker: int) -> tuple[list[str], list[str]]:
        (path / "shop.py").write_text(SHOP.format(path=path, worker=worker))
        pids = script(MAIN.format(path=str(path), task=task, given=given))
        return pids, (path / "told").read_text().splitlines()

    def test_start_middleware_and_end(self, tmp_path: Path) -> None:
        """One child, which is started once, runs every job inside the middleware, and ends properly."""
        pids, told = self._run(tmp_path, "predict", [1, 2, 3])
        [pid] = set(pids)
        assert told == [f"start {pid}", *[f"around predict {pid}"] * 3, f"end {pid}"]

    def test_replaced_after_some_jobs(self, tmp_path: Path) -> None:
        pids, told = self._run(tmp_path, "predict", [1, 2, 3, 4, 5], max_jobs_per_child=2)
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]
        for pid in pids:
            assert f"start {pid}" in told
            assert f"end {pid}" in told

    def test_replaced_when_it_has_grown(self, tmp_path: Path) -> None:
        mib = 1024 * 1024
        pids, _ = self._run(tmp_path, "grow", [0, 0, 300 * mib, 0], max_memory_per_child=200 * mib)
        assert pids[0] == pids[1] == pids[2] != pids[3]

    def test_a_start_that_fails(self, tmp_path: Path) -> None:
        """The job fails with its error, and the next one tries again."""
        (tmp_path / "shop.py").write_text(
            SHOP.format(path=tmp_path, worker={}).replace("    Model.loads += 1\n", "    raise OSError('no model')\n")
        )
        told = script(f"""
            import asyncio, sys
            sys.path.insert(0, {str(tmp_path)!r})
            import shop
            from headrace.errors import JobFailed

            async def main():
                async with shop.app:
                    handles = [await shop.predict.options(max_attempts=1).enqueue(n) for n in (1, 2)]
                    await shop.app.drain()
                    for handle in handles:
                        try:
                            await handle.result()
                        except JobFailed as error:
                            print("no model" in str(error))

            asyncio.run(main())
        """)
        assert told == ["True", "True"]


@pytest.mark.parametrize("name", ["max_jobs_per_child", "max_memory_per_child"])
def test_bad_limits(name: str) -> None:
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match=f"worker.{name}"):
            App("memory://", worker={name: wrong})


def test_a_sync_drain_starts_them_too(app: App) -> None:
    app.startup(Pool_of_the_bundle)

    @app.task
    def name(pool: Pool = given) -> str:
        return pool.name

    with SyncApp(app) as jobs:
        handle = jobs.enqueue(name)
        jobs.drain()
        assert handle.result() == "bundle"


async def test_a_worker_that_is_stopped_ends_them(app: App) -> None:
    ended = asyncio.Event()

    @app.startup
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        ended.set()

    app.task(name="nothing")(_nothing)
    async with app:
        work = asyncio.ensure_future(app.work())
        assert await within((await app.enqueue_named("nothing", {})).result()) is None
        assert not ended.is_set()
        app.stop()
        await within(work)
    assert ended.is_set()
