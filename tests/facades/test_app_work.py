"""Working: workers, middleware, observers, batches, executors; and what one job must not do to the next."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    Again,
    App,
    Client,
    Done,
    Event,
    EventKind,
    Fail,
    Job,
    JobState,
    NewJob,
    Retry,
    immediate,
    never,
)
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, InvalidJob, JobCancelled, Stop
from headrace.seam.records import Reap
from headrace.types import Outcome
from headrace.worker.middleware import Next
from tests.facades import processes
from tests.facades.harness import Events, Gate, Store, Tapped, World, script, settings, simulate, within, working


class TestDrain:
    async def test_runs_what_is_due_and_what_that_makes_due(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task
        async def count_down(n: int) -> None:
            seen.append(n)
            if n:
                await count_down.enqueue(n - 1)

        await count_down.enqueue(5)
        await app.drain()
        assert seen == [5, 4, 3, 2, 1, 0]

    async def test_of_nothing(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def idle() -> None: ...

        await within(app.drain())

    async def test_leaves_what_is_for_later(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def later() -> None:
            raise AssertionError("not yet")

        handle = await later.options(delay="1h").enqueue()
        await within(app.drain())
        assert (await handle.info()).state is JobState.AVAILABLE

    async def test_of_some_queues(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task(queue="a")
        async def first() -> None:
            seen.append("a")

        @app.task(queue="b")
        async def second() -> None:
            seen.append("b")

        await first.enqueue()
        await second.enqueue()
        await app.drain(["b"])
        assert seen == ["b"]
        await app.drain()
        assert seen == ["b", "a"]

    async def test_a_queue_that_is_no_list_is_refused(self, memory: Store) -> None:
        """``"mail"`` is not the queues m, a, i and l."""
        app = memory.app()

        @app.task(queue="mail")
        async def welcome() -> None: ...

        with pytest.raises((ConfigError, InvalidJob)):
            await within(app.drain("mail"))

    async def test_without_tasks(self, memory: Store) -> None:
        with pytest.raises(ConfigError, match="this app has no tasks"):
            await memory.app().drain()

    async def test_again_and_again(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task
        async def note(n: int) -> None:
            seen.append(n)

        for n in range(5):
            await note.enqueue(n)
            await app.drain()
        assert seen == [0, 1, 2, 3, 4]


class TestWorkAndStop:
    async def test_until_stopped(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def echo(n: int) -> int:
            return n

        async with working(app):
            assert app.worker is not None
            assert app.worker.queues == ("default",)
            assert await within(echo.call(1)) == 1
            assert app.worker.health().ok
        assert app.worker is None
        app.stop()

    async def test_one_worker_at_a_time(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def echo(n: int) -> int:
            return n

        async with working(app):
            with pytest.raises(ConfigError, match="already runs"):
                await app.work()
            assert await within(echo.call(1)) == 1

    async def test_two_starts_at_once_start_one(self, memory: Store) -> None:
        """Even on a store that takes its time to open."""

        class Slow(Tapped):
            async def open(self) -> None:
                for _ in range(5):
                    await asyncio.sleep(0)
                await self.inner.open()

        app = App(Client(Slow(memory.backend()), settings()))

        @app.task
        async def echo(n: int) -> int:
            return n

        answers = await within(asyncio.gather(app.drain(), app.drain(), return_exceptions=True))
        assert sorted(type(answer).__name__ for answer in answers) == ["ConfigError", "NoneType"]
        await app.client.close()

    async def test_a_stop_that_comes_before_the_start_is_heard(self, memory: Store) -> None:
        """Stopping right after starting, before the worker is up, stops it."""

        class Slow(Tapped):
            async def open(self) -> None:
                for _ in range(5):
                    await asyncio.sleep(0)
                await self.inner.open()

        app = App(Client(Slow(memory.backend()), settings()))

        @app.task
        async def echo(n: int) -> int:
            return n

        work = asyncio.ensure_future(app.work())
        await asyncio.sleep(0)
        app.stop()
        try:
            await within(work)
        finally:
            app.stop()
            await asyncio.wait([work])
            await app.client.close()

    def test_run_until_told_to_end(self) -> None:
        """SIGTERM ends ``run`` gracefully: what runs is finished."""
        told = script("""
            import os, signal
            from headrace import App

            app = App("memory://")

            @app.task
            async def last() -> None:
                os.kill(os.getpid(), signal.SIGTERM)
                print("finished")

            import asyncio
            async def enqueue():
                await last.enqueue()

            asyncio.run(enqueue())
            app.run()
            print("ended")
        """)
        assert told == ["finished", "ended"]

    async def test_pause_and_resume(self, store: Store) -> None:
        """000-35: a paused queue is not claimed from."""
        app, seen = store.app(), []

        @app.task(queue="mail")
        async def note(n: int) -> None:
            seen.append(n)

        await app.client.pause("mail")
        await note.enqueue(1)
        await app.drain()
        assert seen == []
        await app.client.resume("mail")
        await app.drain()
        assert seen == [1]


class TestMiddleware:
    async def test_order(self, store: Store) -> None:
        """The first one added is outermost; each sees the job and the outcome."""
        order: list[str] = []

        def named(name: str) -> Any:
            async def middleware(job: Job[Any], call: Next) -> Outcome:
                order.append(f"{name} in {job.payload['n']}")
                outcome = await call(job)
                order.append(f"{name} out {outcome.result}")  # type: ignore[union-attr]
                return outcome

            return middleware

        app = App(store.client(), middleware=[named("first")])
        app.middleware(named("second"))

        @app.task
        async def double(n: int, /) -> int:
            order.append("handler")
            return 2 * n

        await double.enqueue(21)
        await app.drain()
        assert order == ["first in 21", "second in 21", "handler", "second out 42", "first out 42"]

    async def test_short_circuit(self, store: Store) -> None:
        """A middleware may answer instead of the handler."""
        app = store.app()

        @app.middleware
        async def closed(job: Job[Any], call: Next) -> Outcome:
            return Fail("closed on Sundays", "policy")

        @app.task
        async def never_run() -> None:
            raise AssertionError("the middleware said no")

        handle = await never_run.enqueue()
        await app.drain()
        assert (await handle.info()).reason == "policy"

    async def test_changes_the_outcome(self, store: Store) -> None:
        app = store.app()

        @app.middleware
        async def wrap(job: Job[Any], call: Next) -> Outcome:
            outcome = await call(job)
            return Done({"wrapped": outcome.result}) if isinstance(outcome, Done) else outcome

        @app.task
        async def one() -> Any:
            return 1

        handle = await one.enqueue()
        await app.drain()
        assert await handle.result() == {"wrapped": 1}

    async def test_sees_the_exception(self, store: Store) -> None:
        app = store.app()

        @app.middleware
        async def rescue(job: Job[Any], call: Next) -> Outcome:
            try:
                return await call(job)
            except KeyError:
                return Done("rescued")

        @app.task
        async def broken() -> Any:
            raise KeyError("x")

        handle = await broken.enqueue()
        await app.drain()
        assert await handle.result() == "rescued"

    async def test_may_raise(self, store: Store) -> None:
        app = store.app()

        @app.middleware
        async def broken(job: Job[Any], call: Next) -> Outcome:
            if job.attempt == 0:
                raise ConnectionError("in the middleware")
            raise Stop(Again("1h"))

        @app.task(retry=immediate(5))
        async def never_run() -> None:
            raise AssertionError("the middleware is in between")

        handle = await never_run.enqueue()
        await app.drain()
        info = await handle.info()
        assert (info.state, info.attempt, info.failures[0].type) == (JobState.AVAILABLE, 1, "ConnectionError")

    async def test_that_forgets_to_return_is_told_so(self, store: Store) -> None:
        app = store.app()

        @app.middleware
        async def forgetful(job: Job[Any], call: Next) -> Any:
            await call(job)

        @app.task(retry=never())
        async def one() -> Any:
            return 1

        handle = await one.enqueue()
        await app.drain()
        info = await handle.info()
        assert info.state is JobState.FAILED
        assert "forgetful returned None" in info.failures[-1].message
        assert "return await next(job)" in info.failures[-1].message

    async def test_around_plain_functions_and_with_the_job(self, memory: Store) -> None:
        app, seen = memory.app(), []

        @app.middleware
        async def look(job: Job[Any], call: Next) -> Outcome:
            seen.append(job.task)
            return await call(job)

        @app.task(name="plain")
        def plain(n: int) -> int:
            return n

        @app.task(name="with job")
        async def with_job(job: Job[Any], n: int) -> int:
            return n

        handles = [await plain.enqueue(1), await with_job.enqueue(2)]
        await app.drain()
        assert [await handle.result() for handle in handles] == [1, 2]
        assert sorted(seen) == ["plain", "with job"]


class TestObservers:
    async def test_one_that_raises_harms_nobody(self, store: Store, caplog: Any) -> None:
        app, events = store.app(), Events()

        @app.observe
        def broken(event: Event) -> None:
            raise RuntimeError("in an observer")

        app.observe(events)

        @app.task
        async def one() -> int:
            return 1

        handle = await one.enqueue()
        await app.drain()
        assert await handle.result() == 1
        assert EventKind.COMPLETED in events.kinds
        assert "an observer raised" in caplog.text

    async def test_events_name_the_job(self, store: Store) -> None:
        app, events = store.app(), Events()
        app.observe(events)

        @app.task(name="one", queue="mail")
        async def one() -> int:
            return 1

        handle = await one.options(key="k").enqueue()
        await app.drain()
        [done] = events.of(EventKind.COMPLETED)
        assert (done.job_id, done.queue, done.task, done.key) == (handle.id, "mail", "one", "k")
        assert (done.result, done.error, done.attempt) == (1, None, 0)
        assert done.seconds >= 0

    async def test_a_failure_comes_with_its_exception(self, store: Store) -> None:
        app, events = store.app(), Events()
        app.observe(events)

        @app.task(retry=immediate(2))
        async def broken() -> None:
            raise KeyError("x")

        await broken.enqueue()
        await app.drain()
        assert [(event.kind, event.attempt) for event in events.seen if event.error] == [
            (EventKind.RETRYING, 0),
            (EventKind.FAILED, 1),
        ]
        assert all(isinstance(event.error, KeyError) for event in events.seen if event.error)

    async def test_a_job_behaves_the_same_unobserved(self, memory: Store) -> None:
        """The quick path without observers and the long one come to the same end."""
        for observed in (False, True):
            app = memory.app()
            if observed:
                app.observe(Events())

            @app.task(name="any")
            async def anything(what: str) -> Any:
                return {"result": 1, "nothing": None, "outcome": Fail("x"), "unstorable": object()}[what]

            handles = [await anything.enqueue(what) for what in ("result", "nothing", "outcome", "unstorable")]
            await app.drain()
            states = [(await handle.info()).state.value for handle in handles]
            assert states == ["completed", "completed", "failed", "failed"]


class TestBatches:
    async def test_one_call_for_many(self, store: Store) -> None:
        app, sizes = store.app(worker={"concurrency": 10}), []

        @app.batch(size=4)
        async def note(jobs: list[Job[int]]) -> None:
            sizes.append(len(jobs))

        await app.enqueue_many(note.job(n) for n in range(10))
        await app.drain()
        assert sum(sizes) == 10
        assert max(sizes) <= 4
        assert len(sizes) < 10

    async def test_one_outcome_each(self, store: Store) -> None:
        """000-116: per-job acknowledgement inside a batch."""
        clock = ManualClock()
        app = store.app(clock=clock, worker={"concurrency": 10})

        @app.batch(size=10)
        async def decide(jobs: list[Job[str]]) -> list[Any]:
            answers = {"done": Done("yes"), "plain": 5, "fail": Fail("no"), "again": Again("1h"), "retry": Retry("1h")}
            return [answers[job.payload] for job in jobs]

        handles = {what: await decide.enqueue(what) for what in ("done", "plain", "fail", "again", "retry")}
        await app.drain()
        infos = {what: await handle.info() for what, handle in handles.items()}
        assert {what: (info.state.value, info.attempt) for what, info in infos.items()} == {
            "done": ("completed", 0),
            "plain": ("completed", 0),
            "fail": ("failed", 1),
            "again": ("available", 0),
            "retry": ("available", 1),
        }
        assert (await handles["done"].result(), await handles["plain"].result()) == ("yes", 5)

    @pytest.mark.parametrize("answer", [ValueError("all of you"), [1], [1] * 99, 5, Stop(Fail("all of you"))])
    async def test_that_fails_fails_for_all(self, store: Store, answer: Any) -> None:
        app = store.app(worker={"concurrency": 3})

        @app.batch(size=3, retry=never())
        async def broken(jobs: list[Job[int]]) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        handles = await app.enqueue_many(broken.job(n) for n in range(3))
        await app.drain()
        infos = [await handle.info() for handle in handles]
        if answer == [1]:
            assert {info.state for info in infos} <= {JobState.FAILED, JobState.COMPLETED}
        else:
            assert [info.state for info in infos] == [JobState.FAILED] * 3

    async def test_payloads_are_typed_and_checked(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.batch()
        async def take(jobs: list[Job[dict[str, int]]]) -> None:
            seen.extend(job.payload for job in jobs)

        await take.enqueue({"a": 1}, priority=3, key="k")
        task: Any = take
        with pytest.raises(InvalidJob, match=r"(?i)expected `int`"):
            await task.enqueue({"a": "one"})
        with pytest.raises(ConfigError, match="bogus"):
            await task.enqueue({"a": 1}, bogus=1)
        await app.drain()
        assert seen == [{"a": 1}]
        assert await store.count() == 1

    async def test_by_name(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.batch(name="take")
        async def take(jobs: list[Job[dict[str, int]]]) -> None:
            seen.extend(job.payload for job in jobs)

        await app.enqueue_named("take", {"a": 1})
        await app.drain()
        assert seen == [{"a": 1}]

    async def test_timeout(self, store: Store) -> None:
        app = store.app()

        @app.batch(timeout="20ms", retry=never())
        async def slow(jobs: list[Job[int]]) -> None:
            await asyncio.sleep(60)

        handle = await slow.enqueue(1)
        await within(app.drain())
        assert (await handle.info()).failures[0].type == "TimeoutError"

    async def test_a_payload_type_that_cannot_be_rebuilt_costs_no_slot(self, memory: Store) -> None:
        """Whatever decoding raises, the job fails and the worker goes on."""
        app = memory.app(worker={"concurrency": 1})

        async def take(jobs: list[Any]) -> None: ...

        take.__annotations__["jobs"] = list[Job[_Opaque]]  # type: ignore[assignment]
        try:
            batch: Any = app.batch(name="take")(take)
        except ConfigError:
            return
        await app.client.insert([_raw("take", {"a": 1})])
        await within(app.drain())
        assert batch.name == "take"


class _Opaque:
    pass


def _raw(task: str, args: dict[str, Any]) -> NewJob:
    return NewJob(task=task, args=args)


class TestThreads:
    async def test_plain_functions_run_in_threads(self, store: Store) -> None:
        app, names = store.app(), []

        @app.task
        def work(n: int) -> int:
            names.append(threading.current_thread() is threading.main_thread())
            return n + 1

        handles = [await work.enqueue(n) for n in range(5)]
        await app.drain()
        assert [await handle.result() for handle in handles] == [1, 2, 3, 4, 5]
        assert names == [False] * 5

    async def test_side_by_side(self, memory: Store) -> None:
        app, barrier = memory.app(worker={"concurrency": 4}), threading.Barrier(4, timeout=60)

        @app.task
        def meet() -> int:
            return barrier.wait()

        handles = [await meet.enqueue() for _ in range(4)]
        await within(app.drain())
        assert sorted([await handle.result() for handle in handles]) == [0, 1, 2, 3]

    async def test_a_blocked_loop_costs_no_lease(self, memory: Store) -> None:
        """5.3-3: a handler that blocks the loop for many leases is still run once."""
        app, runs = memory.app(worker={"lease": "300ms", "reap": "20ms"}), []

        @app.task
        async def blocks() -> str:
            runs.append(1)
            time.sleep(1)  # noqa: ASYNC251 - blocking the loop is the point
            return "done"

        handle = await blocks.enqueue()
        await within(app.drain())
        assert (await handle.result(), runs) == ("done", [1])

    async def test_nothing_is_left(self, memory: Store) -> None:
        app, before = memory.app(), {*threading.enumerate()}

        @app.task
        def work() -> None: ...

        await work.enqueue()
        await app.drain()
        for thread in {*threading.enumerate()} - before:
            if thread.name.startswith("headrace"):
                thread.join(60)
                assert not thread.is_alive()


class TestProcesses:
    """Children are spawned; a few hundred milliseconds each."""

    async def _run(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        app = processes.app
        app.client = Client(Store("memory", Path()).backend(), settings())
        async with app:
            handle = await task.enqueue(*args, **kwargs)
            await within(app.drain())
            return await handle.info()

    async def test_run_elsewhere(self) -> None:
        info = await self._run(processes.pid)
        assert info.state is JobState.COMPLETED
        assert info.result != os.getpid()

    async def test_arguments_and_results_travel(self) -> None:
        info = await self._run(processes.area, processes.Size(6, 7), scale=2)
        assert info.result == 84

    async def test_errors_travel(self) -> None:
        info = await self._run(processes.broken.options(max_attempts=1))
        assert (info.state, info.failures[0].type, info.failures[0].message) == (
            JobState.FAILED,
            "ValueError",
            "in a child",
        )

    async def test_an_error_that_cannot_travel_is_still_a_failure(self) -> None:
        info = await self._run(processes.picky.options(max_attempts=1))
        assert info.state is JobState.FAILED

    @pytest.mark.parametrize("how", ["exit", "_exit", "cancel", "interrupt"])
    def test_a_child_that_goes_away_takes_nobody_along(self, how: str) -> None:
        """Its job has failed that attempt; the worker lives."""
        told = script(f"""
            import asyncio
            from tests.facades import processes

            async def main():
                async with processes.app, asyncio.timeout(60):
                    gone = await processes.leave.options(max_attempts=1).enqueue({how!r})
                    await processes.app.drain()
                    print((await gone.info()).state.value)

            if __name__ == "__main__":
                asyncio.run(main())
        """)
        assert told == ["failed"]

    async def test_a_child_whose_job_is_given_up_on_is_killed(self, tmp_path: Path) -> None:
        app, note = processes.app, tmp_path / "pid"
        app.client = Client(Store("memory", Path()).backend(), settings())
        async with app, working(app):
            handle = await processes.linger.enqueue(str(note))
            await _eventually(lambda: note.exists() and bool(note.read_text()))
            await handle.cancel()
            with pytest.raises(JobCancelled):
                await within(handle.result())
            await _eventually(lambda: not _runs(int(note.read_text())))

    def test_a_job_cannot_be_handed_over(self, memory: Store) -> None:
        app = memory.app(worker={"executor": "process"})

        @app.task
        def wants_job(job: Job[Any]) -> None: ...

        with pytest.raises(ConfigError, match="another process"):
            asyncio.run(app.drain())


async def _eventually(true: Callable[[], bool]) -> None:
    """Another process has no way to tell us: look until it is so."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


COLOUR: ContextVar[str] = ContextVar("colour", default="none")


class TestIsolation:
    @pytest.mark.parametrize("kind", ["quick", "job", "middleware", "thread", "batch"])
    async def test_context_variables_do_not_leak(self, memory: Store, kind: str) -> None:
        """What one job sets, the next does not see, in whichever way it is run."""
        app, seen = memory.app(worker={"concurrency": 1}), []

        def paint(name: str) -> None:
            seen.append(COLOUR.get())
            COLOUR.set(name)

        if kind == "middleware":

            @app.middleware
            async def outer(job: Job[Any], call: Next) -> Outcome:
                paint("outer")
                return await call(job)

        if kind == "batch":

            @app.batch(name="paint", size=1)
            async def paint_batch(jobs: list[Job[dict[str, str]]]) -> None:
                paint(jobs[0].payload["name"])
        elif kind == "thread":

            @app.task(name="paint")
            def paint_thread(name: str) -> None:
                paint(name)
        elif kind == "job":

            @app.task(name="paint")
            async def paint_job(job: Job[Any], name: str) -> None:
                paint(name)
        else:

            @app.task(name="paint")
            async def paint_quick(name: str) -> None:
                paint(name)

        await app.client.insert([_raw("paint", {"name": name}) for name in ("red", "green", "blue")])
        await within(app.drain())
        assert seen[:: 2 if kind == "middleware" else 1] == ["none"] * 3

    async def test_what_was_set_before_is_seen(self, memory: Store) -> None:
        app, seen = memory.app(), []

        @app.task
        async def look() -> None:
            seen.append(COLOUR.get())

        await look.enqueue()
        token = COLOUR.set("blue")
        await app.drain()
        COLOUR.reset(token)
        assert seen == ["blue"]

    async def test_a_handler_that_cancels_itself_frees_its_slot(self, memory: Store) -> None:
        """A ``CancelledError`` out of the handler's own work is a failed attempt, not a dead slot."""
        app = memory.app(worker={"concurrency": 1})

        @app.task(retry=never())
        async def cancels_itself() -> None:
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner

        @app.task
        async def one() -> int:
            return 1

        first, second = await cancels_itself.enqueue(), await one.enqueue()
        await within(app.drain())
        info = await first.info()
        assert (info.state, info.failures[0].type) == (JobState.FAILED, "CancelledError")
        assert await second.result() == 1

    async def test_a_handler_that_cancels_its_task_frees_its_slot(self, memory: Store) -> None:
        """Neither does ``current_task().cancel()`` cost a slot."""
        app = memory.app(worker={"concurrency": 1})

        @app.task(retry=never())
        async def cancels_its_task() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        @app.task
        async def one() -> int:
            return 1

        first, second = await cancels_its_task.enqueue(), await one.enqueue()
        await within(app.drain())
        assert (await first.info()).state is JobState.FAILED
        assert await second.result() == 1

    def test_a_job_that_comes_back_while_it_still_runs(self) -> None:
        """5.3-2: its lease lost and claimed again by the very same worker, the new run counts and no slot is lost."""

        async def main(world: World) -> tuple[list[Any], list[Any]]:
            app, gates, runs = world.app(worker={"concurrency": 2, "lease": "1h"}), [Gate(), Gate()], [0, 0]

            @app.task
            async def slow(n: int) -> int:
                runs[n] += 1
                if runs[n] == 1:
                    await gates[n].pass_through()
                    return -1
                return n

            @app.task
            async def other() -> str:
                return "still here"

            work, results = asyncio.ensure_future(app.work()), []
            for n in range(2):
                handle = await slow.enqueue(n)
                await gates[n].reached()
                for entry in world.memory.store.running.values():
                    entry.lease_until = 0
                await world.memory.reap(Reap())
                results.append(await handle.result())
                gates[n].open()
                await asyncio.sleep(1)
            async with asyncio.timeout(600):
                others = [await other.call() for _ in range(4)]
                app.stop()
                await work
            return results, others

        assert simulate(main) == ([0, 1], ["still here"] * 4)


async def test_a_handler_may_not_close_the_app_that_runs_it(memory: Store) -> None:
    app = memory.app()

    @app.task(retry=never())
    async def closes() -> None:
        await app.close()

    @app.task
    async def works() -> int:
        return 1

    async with app:
        closing, working = await closes.enqueue(), await works.enqueue()
        await within(app.drain())
        info = await closing.info()
        message = "a handler may not close the app that runs it; app.stop() asks its worker to stop"
        assert (info.failures[-1].type, info.failures[-1].message) == ("ConfigError", message)
        assert await working.result() == 1
