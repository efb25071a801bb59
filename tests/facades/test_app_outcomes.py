"""What becomes of a job: every outcome, every way to fail, and what comes along with it."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headrace import (
    Again,
    App,
    Cancelled,
    Done,
    EventKind,
    Fail,
    Job,
    JobState,
    NewJob,
    Patch,
    Paused,
    Retry,
    Sections,
    exponential,
    forever,
    gentle,
    immediate,
    never,
)
from headrace.core.clock import ManualClock
from headrace.errors import (
    HeadraceError,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    ResultExpired,
    Stop,
)
from headrace.payloads.codec import Envelope
from headrace.seam.records import Claim, Reap, Requeue, Row, Selector
from headrace.worker.judge import OUTCOMES
from tests.facades.harness import Events, Gate, Store, script, within, working


class Scripted:
    """An app with one task that does as its argument says, and a clock that stands still."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.clock = ManualClock()
        self.app = store.app(clock=self.clock)
        self.events = Events()
        self.app.observe(self.events)
        self.runs: list[Job[Any]] = []
        self.answers: list[Any] = []

        @self.app.task(name="scripted", **options)
        async def scripted(job: Job[Any]) -> Any:
            self.runs.append(job)
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, BaseException):
                raise answer
            return answer

        self.task = scripted

    async def run(self, *answers: Any, **options: Any) -> Any:
        """Enqueue a job, run it as long as it is due, and tell what has become of it."""
        self.answers.extend(answers)
        handle = await self.task.options(**options).enqueue()
        await within(self.app.drain())
        return await handle.info()


class TestOutcomes:
    async def test_paused_until_somebody_resumes_it(self, store: Store) -> None:
        """Stage 2, 2.2: with what it changes of the job."""
        s = Scripted(store)
        info = await s.run(Paused(patch=Patch(priority=3)))
        assert (info.state, info.attempt, info.priority) == (JobState.PAUSED, 0, 3)
        assert await s.app.resume_job(info.id) is JobState.AVAILABLE
        await within(s.app.drain())
        assert (await s.app.get(info.id)).state is JobState.COMPLETED
        assert await s.app.resume_job(info.id) is JobState.COMPLETED

    async def test_again_at_an_instant(self, store: Store) -> None:
        s = Scripted(store)
        at = datetime.fromtimestamp(s.clock.now() // 1_000_000 + 60, UTC)
        info = await s.run(Again(at=at), Retry(at=at))
        assert (info.state, info.run_at, len(s.runs)) == (JobState.AVAILABLE, at, 1)
        s.clock.advance(60)
        await within(s.app.drain())
        assert ((await s.app.get(info.id)).state, len(s.runs)) == (JobState.COMPLETED, 3)

    async def test_done(self, store: Store) -> None:
        info = await Scripted(store).run(Done({"a": 1}))
        assert (info.state, info.result, info.attempt) == (JobState.COMPLETED, {"a": 1}, 0)

    async def test_done_for_how_long(self, store: Store) -> None:
        world = Scripted(store)
        info = await world.run(Done(1, result_ttl="10m"), key="k")
        assert info.held
        world.clock.advance("11m")
        info = await world.app.get(info.id)
        assert (info.state, info.held, info.result) == (JobState.COMPLETED, False, None)

    async def test_done_without_keeping_the_result(self, store: Store) -> None:
        info = await Scripted(store).run(Done("secret", result_ttl=0))
        assert (info.state, info.held, info.result) == (JobState.COMPLETED, False, None)

    async def test_kept_although_the_task_keeps_none(self, store: Store) -> None:
        info = await Scripted(store, result_ttl=0).run(Done("kept", result_ttl="1m"))
        assert (info.held, info.result) == (True, "kept")

    async def test_retry(self, store: Store) -> None:
        world = Scripted(store)
        info = await world.run(Retry("5m", "not yet"))
        assert (info.state, info.attempt, info.failures[0].message) == (JobState.AVAILABLE, 1, "not yet")
        world.clock.advance("4m")
        await world.app.drain()
        assert len(world.runs) == 1
        world.clock.advance("2m")
        await world.app.drain()
        assert (await world.app.get(info.id)).state is JobState.COMPLETED
        assert [job.attempt for job in world.runs] == [0, 1]

    async def test_retry_past_the_last_attempt_fails(self, store: Store) -> None:
        info = await Scripted(store).run(Retry(0, "one"), Retry(0, "two"), max_attempts=2)
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 2, "retries exhausted")
        assert [failure.message for failure in info.failures] == ["one", "two"]

    async def test_again(self, store: Store) -> None:
        """Not an attempt: a job may snooze as often as it likes."""
        world = Scripted(store)
        info = await world.run(*[Again(0)] * 7, max_attempts=1)
        assert (info.state, info.attempt, len(world.runs)) == (JobState.COMPLETED, 0, 8)

    async def test_again_later(self, store: Store) -> None:
        world = Scripted(store)
        info = await world.run(Again("1h"))
        world.clock.advance("59m")
        await world.app.drain()
        assert len(world.runs) == 1
        world.clock.advance("2m")
        await world.app.drain()
        assert (len(world.runs), (await world.app.get(info.id)).state) == (2, JobState.COMPLETED)

    async def test_fail(self, store: Store) -> None:
        """At once, whatever attempts are left."""
        info = await Scripted(store).run(Fail("no such user", "invalid"), max_attempts=9)
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 1, "invalid")
        assert info.failures[0].message == "no such user"

    async def test_cancelled(self, store: Store) -> None:
        info = await Scripted(store).run(Cancelled("superseded"))
        assert (info.state, info.attempt, info.reason) == (JobState.CANCELLED, 0, "superseded")

    @pytest.mark.parametrize(
        ("outcome", "state"),
        [
            (Done(1), JobState.COMPLETED),
            (Retry("1h"), JobState.AVAILABLE),
            (Again("1h"), JobState.AVAILABLE),
            (Fail("x"), JobState.FAILED),
            (Cancelled(), JobState.CANCELLED),
        ],
    )
    async def test_stop_carries_any_of_them(self, store: Store, outcome: Any, state: JobState) -> None:
        """Raised from deep in a stack, it does what returning would have done."""
        info = await Scripted(store).run(Stop(outcome))
        assert info.state is state

    async def test_stop_without_an_outcome_is_a_failure(self, store: Store) -> None:
        info = await Scripted(store, retry=never()).run(Stop("not an outcome"))  # type: ignore[arg-type]
        assert (info.state, info.failures[0].type) == (JobState.FAILED, "Stop")

    async def test_events_tell_which(self, memory: Store) -> None:
        world = Scripted(memory)
        for outcome in (Done(1), Retry("1h"), Again("1h"), Paused(), Fail("x"), Cancelled("y")):
            await world.run(outcome)
        kinds = ["completed", "retrying", "snoozed", "paused", "failed", "cancelled"]
        told = [event for event in world.events.seen if event.kind in kinds]
        assert [event.kind.value for event in told] == kinds
        assert told[0].result == 1
        assert [event.detail for event in told[4:]] == ["x", "y"]


class TestPatchAndSpawn:
    async def test_patch_moves_the_job(self, store: Store) -> None:
        """000-30, 000-32: another queue and priority, with the outcome."""
        world = Scripted(store)
        info = await world.run(Again("1h", patch=Patch(queue="overflow", priority=9)))
        assert (info.queue, info.priority, info.state) == ("overflow", 9, JobState.AVAILABLE)

    @pytest.mark.parametrize("outcome", [Done, Retry, Again, Fail, Cancelled])
    async def test_patch_changes_sections(self, store: Store, outcome: Any) -> None:
        """000-30, C14: set, cleared and untouched are three different things; empty is not absent."""
        world = Scripted(store)
        backend = await world.app.client.backend()
        job = NewJob(
            task="scripted",
            args={},
            sections=Sections(vm_state=b"old", metadata=b"gone", blob=b"kept"),
        )
        [inserted] = await world.app.client.insert([job])
        world.answers.append(outcome(patch=Patch(sections=Sections(vm_state=b"", metadata=None))))
        await world.app.drain()
        [record] = await backend.fetch([inserted.id], frozenset({"vm_state", "metadata", "blob"}), world.clock.stamp())
        assert record is not None
        assert world.app.client.packer.sections(record) == {"vm_state": b"", "blob": b"kept"}

    async def test_sections_come_to_the_handler(self, store: Store) -> None:
        world = Scripted(store)
        state = b"\x00\xff" * 10_000
        await world.app.client.insert([NewJob(task="scripted", args={}, sections=Sections(vm_state=state))])
        world.answers.extend([Again(0, patch=Patch(sections=Sections(vm_state=b"two"))), None])
        await world.app.drain()
        assert [job.sections for job in world.runs] == [{"vm_state": state}, {"vm_state": b"two"}]

    @pytest.mark.parametrize("outcome", [Done, Retry, Again, Fail, Cancelled])
    async def test_spawn(self, store: Store, outcome: Any) -> None:
        """Follow-up jobs come with any outcome, in order."""
        world = Scripted(store)
        children = [NewJob(task="child", queue="later", args={"n": n}, key=f"child-{n}") for n in range(3)]
        await world.run(outcome(spawn=children))
        jobs = await world.app.client.list_jobs(Selector(queue="later"))
        assert [job.key for job in jobs] == ["child-2", "child-1", "child-0"]

    async def test_spawn_of_a_task_s_jobs(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task
        async def child(n: int) -> None:
            seen.append(n)

        @app.task
        async def parent() -> Done:
            return Done("spawned", spawn=[child.job(n) for n in range(3)])

        handle = await parent.enqueue()
        await app.drain()
        assert await handle.result() == "spawned"
        assert sorted(seen) == [0, 1, 2]

    async def test_a_refused_outcome_spawns_nothing(self, store: Store) -> None:
        """Atomic: one bad child, and neither its siblings nor the outcome are stored."""
        world = Scripted(store)
        good, bad = NewJob(task="child", queue="later"), NewJob(task="child", queue="later", priority=99_999)
        info = await world.run(Done("result", spawn=[good, bad]))
        assert (info.state, info.result) == (JobState.FAILED, None)
        assert "priority" in info.failures[-1].message
        assert await world.app.client.list_jobs(Selector(queue="later")) == []

    async def test_a_fenced_outcome_spawns_nothing(self, store: Store) -> None:
        """Atomic: a worker that lost its lease leaves nothing behind."""
        clock, events, gate = ManualClock(), Events(), Gate()
        app = store.app(clock=clock, worker={"concurrency": 1, "prefetch": 0})
        app.observe(events)

        @app.task(name="slow")
        async def slow() -> Done:
            await gate.pass_through()
            return Done(1, spawn=[NewJob(task="child", queue="later")])

        handle = await slow.enqueue()
        async with working(app):
            await gate.reached()
            backend = await app.client.backend()
            clock.advance("10m")
            await backend.reap(Reap(), clock.stamp())
            [_] = (await backend.claim(Claim("thief", ("default",), 1, 10**9), clock.stamp())).jobs
            gate.open()
            await events.until(EventKind.LEASE_LOST)
        assert (await handle.info()).state is JobState.RUNNING
        assert await app.client.list_jobs(Selector(queue="later")) == []

    async def test_a_job_may_spawn_its_successor_under_its_own_key(self, store: Store) -> None:
        world = Scripted(store)
        successor = NewJob(task="scripted", args={}, key="chain", delay="1h")
        first = await world.run(Done(None, result_ttl=0, spawn=[successor]), key="chain")
        [second] = await world.app.client.list_jobs(Selector(states=frozenset({JobState.AVAILABLE})))
        assert (second.key, second.id != first.id) == ("chain", True)

    async def test_a_spawned_duplicate_is_no_error(self, store: Store) -> None:
        world = Scripted(store)
        taken = NewJob(task="child", queue="later", key="taken")
        await world.app.client.insert([taken])
        info = await world.run(Done(1, spawn=[msgspec.structs.replace(taken), NewJob(task="child", queue="later")]))
        assert info.state is JobState.COMPLETED
        assert len(await world.app.client.list_jobs(Selector(queue="later"))) == 2


class TestOutcomesThatCannotBeStored:
    """Whatever a handler hands back, the job ends, the reason is told, and the worker goes on."""

    @pytest.mark.parametrize(
        ("outcome", "says"),
        [
            (object(), "object"),
            ({1, object()}, "object"),
            (math.nan, "nan"),
            ({"a": [math.inf]}, "inf"),
            ("\ud800", "surrogates"),
            (b"x" * 16 * 1024 * 1024, "at most"),
            (Done(1, result_ttl="a while"), "result_ttl"),
            (Done(1, result_ttl=-1), "result_ttl"),
            (Retry("later"), "after"),
            (Retry(math.nan), "after"),
            (Again(-5), "after"),
            (Again("11000d"), "after"),
            (Done(1, spawn=["a job"]), "NewJob"),
            (Done(1, spawn=[NewJob(task="")]), "task"),
            (Done(1, spawn=[NewJob(task="x", args=[1])]), "args"),
            (Done(1, patch=Patch(priority=99_999)), "priority"),
            (Done(1, patch=Patch(priority=True)), "priority"),
            (Done(1, patch=Patch(sections=Sections(blob="text"))), "blob"),
            (Done(1, patch=Patch(sections={"blob": b""})), "ections"),
            (Done(1, patch=Patch(queue="")), "queue"),
            (Again(0, patch=Patch(queue="a\0b")), "queue"),
            (Again(0, patch=Patch(queue="\ud800")), "queue"),
            (Again(0, patch=Patch(queue="x" * 1_025)), "queue"),
            (Again(0, patch=Patch(queue=5)), "queue"),
            (Done(1, patch="a patch"), "atch"),
            (Done(1, patch={"queue": "x"}), "atch"),
            (Done(1, spawn=5), "spawn|iterable|int"),
            (
                Done(1, spawn=[NewJob(task="t")] * 501),
                "at most 500 jobs, got 501; spawn a job that",
            ),
            (
                Done(1, spawn=[NewJob(task="t", queue=f"q{n}") for n in range(101)]),
                "of at most 100 queues, got",
            ),
        ],
    )
    async def test_fails_its_job_and_no_other(self, memory: Store, outcome: Any, says: str) -> None:
        world = Scripted(memory, retry=immediate(3))
        world.answers.append(outcome)
        handle = await world.task.enqueue()
        await within(world.app.drain())
        info = await handle.info()
        assert (info.state, info.attempt) == (JobState.FAILED, 1)
        assert info.reason == "outcome cannot be stored"
        assert re.search(says, info.failures[-1].message)
        [failed] = world.events.of(EventKind.FAILED)
        assert failed.detail == f"outcome cannot be stored: {info.failures[-1].message}"
        assert (await world.run("fine")).result == "fine"

    @pytest.mark.parametrize(
        "outcome",
        [
            Fail("x", "\ud800"),
            Fail("x", "\0"),
            Fail("x", "long " * 100_000),
            Fail("x", 5),
            Fail(5, "wrong type"),
            Fail("\ud800\0" * 10_000, "surrogates"),
            Cancelled("\ud800"),
            Cancelled("long " * 100_000),
            Cancelled(None),
            Retry(0, "\ud800"),
        ],
    )
    async def test_a_reason_is_never_the_reason_that_it_is_lost(self, store: Store, outcome: Any) -> None:
        """Texts of any kind are made to fit; what is stored is short, and is text."""
        info = await Scripted(store).run(outcome, max_attempts=1)
        assert info.state in (JobState.FAILED, JobState.CANCELLED)
        assert isinstance(info.reason, str)
        assert len(info.reason.encode()) <= 4_096
        msgspec.json.encode(info.to_dict())


class Note(msgspec.Struct, forbid_unknown_fields=True):
    n: int


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I will not say")


class Everything(BaseException):
    """Not an ``Exception``, as with some libraries' cancellations and timeouts."""


class TestFailures:
    """A handler may raise what it likes: it is a failed attempt, never a dead slot."""

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("plain"),
            ValueError("\ud800 lone surrogate"),
            ValueError("x" * 1_000_000),
            ValueError("nul \0 and escape \x1b[31m"),
            ValueError(object()),
            Mute(),
            ExceptionGroup("many", [ValueError(1), KeyError(2)]),
            BaseExceptionGroup("all", [ValueError(1), asyncio.CancelledError()]),
            StopIteration("end"),
            StopAsyncIteration("end"),
            asyncio.CancelledError("by itself"),
            TimeoutError("by itself"),
            RecursionError("deep"),
            MemoryError(),
            Everything("else"),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_is_a_failed_attempt(self, memory: Store, error: BaseException) -> None:
        world = Scripted(memory, retry=immediate(3))
        world.answers.append(error)
        handle = await world.task.enqueue()
        await within(world.app.drain())
        info = await handle.info()
        assert (info.state, info.attempt, len(world.runs)) == (JobState.COMPLETED, 1, 2)
        [failure] = info.failures
        assert failure.type in (type(error).__name__, "RuntimeError")
        assert len(failure.message) <= 2_001
        assert len(failure.traceback) <= 8_000
        msgspec.json.encode(info.to_dict())

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            ("async def", "SystemExit(1)"),
            ("async def", "Everything('else')"),
            ("def", "SystemExit(1)"),
            ("def", "KeyboardInterrupt()"),
            ("def", "Everything('else')"),
        ],
    )
    def test_nor_does_it_take_the_worker_down(self, error: str, kind: str) -> None:
        """What a handler raises is told as a failure of its job, be it an exit; its neighbours go on."""
        told = script(f"""
            import asyncio
            from headrace import App, never

            class Everything(BaseException):
                pass

            app = App("memory://", worker={{"concurrency": 1}})

            @app.task(retry=never())
            {kind} leaves() -> None:
                raise {error}

            @app.task
            {kind} stays() -> str:
                return "still here"

            async def main():
                async with app, asyncio.timeout(60):
                    first, second = await leaves.enqueue(), await stays.enqueue()
                    await app.drain()
                    print((await first.info()).failures[0].type, await second.result())

            asyncio.run(main())
        """)
        assert told[0] in (error.partition("(")[0], "RuntimeError")
        assert told[1:] == ["still", "here"]

    async def test_only_the_last_few_are_kept(self, store: Store) -> None:
        """000-13: bounded, newest last, with one traceback."""
        info = await Scripted(store, retry=immediate(40)).run(*[ValueError(n) for n in range(29)])
        assert [failure.message for failure in info.failures] == [str(n) for n in range(9, 29)]
        assert [failure.attempt for failure in info.failures] == [*range(10, 30)]
        assert [bool(failure.traceback) for failure in info.failures] == [False] * 19 + [True]


class TestRetries:
    async def test_policy(self, store: Store) -> None:
        """003-7, decision 22: 30, 60, 120 … seconds, and then the dead letters."""
        world = Scripted(store, retry=gentle(4, jitter=False))
        world.answers.extend(ValueError(n) for n in range(4))
        handle = await world.task.enqueue()
        waits = []
        for _ in range(3):
            before = world.clock.now()
            await world.app.drain()
            record = await world.app.client.fetch(handle.id)
            assert record is not None
            waits.append((record.run_at - before) / 1e6)
            world.clock.advance(waits[-1])
        await world.app.drain()
        assert waits == [30, 60, 120]
        assert (await handle.info()).reason == "retries exhausted"

    async def test_give_up_on(self, store: Store) -> None:
        """003-9: some errors are not worth a second try; their kinds neither."""
        world = Scripted(store, retry=exponential(5, give_up_on=(LookupError,)))
        info = await world.run(KeyError("gone"))
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 1, "not retryable")
        assert (await world.run(ValueError("transient"))).state is JobState.AVAILABLE

    async def test_retry_on(self, store: Store) -> None:
        """… or only some are."""
        world = Scripted(store, retry=exponential(5, retry_on=(ConnectionError,)))
        assert (await world.run(ConnectionResetError("again"))).state is JobState.AVAILABLE
        info = await world.run(ValueError("no"))
        assert (info.state, info.reason) == (JobState.FAILED, "not retryable")

    async def test_for_ever(self, store: Store) -> None:
        world = Scripted(store, retry=forever(base=0))
        info = await world.run(*[ValueError(n) for n in range(50)])
        assert (info.state, info.attempt) == (JobState.COMPLETED, 50)

    async def test_max_attempts_of_the_job_wins(self, store: Store) -> None:
        info = await Scripted(store, retry=immediate(9)).run(ValueError(1), ValueError(2), max_attempts=2)
        assert (info.state, info.attempt) == (JobState.FAILED, 2)

    async def test_a_failed_job_can_be_requeued(self, store: Store) -> None:
        """000-45: back from the dead letters, with its counters cleared."""
        world = Scripted(store, retry=never())
        info = await world.run(ValueError("first time"))
        [altered] = await world.app.client.alter(Selector(ids=[info.id.bytes]), Requeue())
        assert altered.changed
        await world.app.drain()
        info = await world.app.get(info.id)
        assert (info.state, info.attempt, info.failures) == (JobState.COMPLETED, 0, [])


class TestTimeouts:
    async def test_an_async_handler_is_cancelled(self, store: Store) -> None:
        app, stopped = store.app(), []

        @app.task(timeout="30ms", retry=never())
        async def slow(job: Job[Any]) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.append(job.cancel.reason)
                raise

        handle = await slow.enqueue()
        await within(app.drain())
        info = await handle.info()
        assert (info.state, info.failures[0].type) == (JobState.FAILED, "TimeoutError")
        assert stopped == ["timed out"]

    async def test_a_job_s_own_timeout_wins(self, store: Store) -> None:
        app = store.app()

        @app.task(timeout="1h", retry=never())
        async def slow() -> None:
            await asyncio.sleep(60)

        handle = await slow.options(timeout="20ms").enqueue()
        await within(app.drain())
        assert (await handle.info()).failures[0].type == "TimeoutError"

    async def test_counts_as_an_attempt(self, store: Store) -> None:
        app, runs = store.app(), []

        @app.task(timeout="20ms", retry=immediate(2))
        async def slow() -> str:
            runs.append(1)
            if len(runs) == 1:
                await asyncio.sleep(60)
            return "second time"

        handle = await slow.enqueue()
        await within(app.drain())
        assert (await handle.result(), (await handle.info()).attempt) == ("second time", 1)

    async def test_a_handler_that_finishes_all_the_same_has_finished(self, memory: Store) -> None:
        app = memory.app()

        @app.task(timeout="20ms", retry=never())
        async def stubborn() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "done"
            return "never"

        first = await stubborn.enqueue()
        second = await stubborn.enqueue()
        await within(app.drain())
        assert await first.result() == await second.result() == "done"

    async def test_a_thread_is_left_behind_and_fenced(self, memory: Store) -> None:
        """Architecture §5: the worker settles the job itself, the thread sees that it should stop."""
        app, release, seen = memory.app(), threading.Event(), []

        @app.task(timeout="30ms", retry=never())
        def blocks(job: Job[Any]) -> str:
            job.cancel.wait(60)
            seen.append(job.cancel.reason)
            release.set()
            return "too late"

        handle = await blocks.enqueue()
        await within(app.drain())
        info = await handle.info()
        assert (info.state, info.result) == (JobState.FAILED, None)
        assert await asyncio.to_thread(release.wait, 5)
        assert seen == ["timed out"]


class TestPayloads:
    async def test_an_unknown_task_is_tried_later(self, store: Store) -> None:
        """The next deployment may know it; the message says which are known."""
        world = Scripted(store)
        [inserted] = await world.app.client.insert([NewJob(task="of.tomorrow", args={})])
        await world.app.drain()
        info = await world.app.get(inserted.id)
        assert (info.state, info.attempt, info.failures[0].type) == (JobState.AVAILABLE, 0, "UnknownTask")
        assert "scripted" in info.failures[0].message
        assert info.run_at is not None
        assert len(world.events.of(EventKind.RELEASED)) == 1

    @pytest.mark.parametrize("attempts", [1, 3, None])
    async def test_a_task_that_nobody_gets_to_know_is_a_dead_letter_after_ten_tries(
        self, store: Store, attempts: int | None
    ) -> None:
        world = Scripted(store)
        job = NewJob(task="of.tomorrow", args={}, max_attempts=attempts)
        [inserted] = await world.app.client.insert([job])
        for tried in range(10):
            assert (await world.app.get(inserted.id)).state is JobState.AVAILABLE, tried
            await world.app.drain()
            world.clock.advance("10m")
        info = await world.app.get(inserted.id)
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 0, "no worker knows its task")
        assert [(one.type, one.times) for one in info.failures] == [("UnknownTask", 10)]

    async def test_workers_that_do_not_know_a_task_use_up_none_of_its_attempts(self, store: Store) -> None:
        world = Scripted(store)
        [once] = await world.app.client.insert([NewJob(task="new", args={}, max_attempts=1)])
        [often] = await world.app.client.insert([NewJob(task="failing", args={})])
        for _ in range(4):
            await world.app.drain()
            world.clock.advance("10m")
        app = store.app(clock=world.clock)

        @app.task(name="new")
        async def new() -> int:
            return 7

        @app.task(name="failing", retry=immediate(2))
        async def failing() -> None:
            raise ValueError("really")

        await app.drain()
        info = await app.get(once.id)
        assert (info.state, info.result, info.attempt) == (JobState.COMPLETED, 7, 0)
        info = await app.get(often.id)
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 2, "retries exhausted")
        assert [(one.type, one.times) for one in info.failures] == [
            ("UnknownTask", 4), ("ValueError", 1), ("ValueError", 1),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "cells",
        [
            {},
            {"parameters": b""},
            {"parameters": b"garbage that was never wrapped"},
            {"parameters": b"\x01\x00\x00\x00\x00{}"},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"{", 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"\xff\xfe", 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"[1]", 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b'{"n": "one"}', 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b'{"n": 1, "m": 2}', 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"{}", 1, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"\x81\xa1n\x01", 2, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"not zstd", 0x11, "x")},
            {"parameters": Envelope(max_size=99, compress_over=None).wrap(b"{}", 9, "x")},
        ],
    )
    @pytest.mark.parametrize("kind", ["task", "middleware", "batch"])
    async def test_an_undecodable_payload_fails_its_job_and_no_other(
        self, store: Store, cells: dict[str, bytes], kind: str
    ) -> None:
        """5.3-9: at once, with the reason; decoding it again would not help."""
        app, seen = store.app(), []
        if kind == "batch":

            @app.batch(name="note")
            async def note_all(jobs: list[Job[Note]]) -> None:
                seen.extend(job.payload.n for job in jobs)
        else:
            if kind == "middleware":

                @app.middleware
                async def outer(job: Job[Any], call: Any) -> Any:
                    return await call(job)

            @app.task(name="note")
            async def note(n: int) -> None:
                seen.append(n)

        backend = await app.client.backend()
        await backend.insert([Row(b"\1" * 16, "default", "note", cells)])
        good = NewJob(task="note", args={"n": 7})
        await app.client.insert([good])
        await within(app.drain())
        info = await app.get(b"\1" * 16)
        assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 1, "payload cannot be used")
        assert info.failures[0].type in ("CodecError", "PayloadMissing", "PayloadTooLarge")
        assert seen == [7]

    async def test_a_damaged_section_fails_its_job_and_no_other(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task(name="note")
        async def note(job: Job[Any], n: int) -> None:
            seen.append(n)

        good = app.client.packer.pack(note.job(1)).cells
        backend = await app.client.backend()
        await backend.insert([Row(b"\1" * 16, "default", "note", good | {"blob": b"damaged"})])
        await note.enqueue(2)
        await within(app.drain())
        assert seen == [2]
        assert (await app.get(b"\1" * 16)).state is JobState.FAILED

    async def test_an_oversized_payload_is_refused(self, store: Store) -> None:
        """X13: one byte over the limit, and nothing is stored."""
        app = store.app(payloads={"max_size": 1_000})

        @app.task
        async def take(text: str) -> None: ...

        frame = len(b'{"text":""}')
        await take.enqueue("x" * (1_000 - frame))
        with pytest.raises(PayloadTooLarge, match="1001"):
            await take.enqueue("x" * (1_001 - frame))
        job = NewJob(task="t", sections=Sections(blob=bytes(1_001)))
        with pytest.raises(PayloadTooLarge, match="blob"):
            await app.client.insert([job])
        assert await store.count() == 1

    async def test_an_oversized_result_fails_its_job(self, store: Store) -> None:
        app = store.app(payloads={"max_size": 1_000})

        @app.task(retry=immediate(5))
        async def give(n: int) -> str:
            return "x" * n

        fine, over = await give.enqueue(998), await give.enqueue(999)
        await within(app.drain())
        assert len(await fine.result()) == 998
        with pytest.raises(JobFailed, match="at most 1000 bytes, got 1001"):
            await over.result()

    async def test_a_task_that_keeps_no_result_may_return_anything(self, store: Store) -> None:
        """What is not stored need not be storable."""
        app = store.app()

        @app.task(result_ttl=0)
        async def give() -> Any:
            return object()

        handle = await give.enqueue()
        await within(app.drain())
        assert (await handle.info()).state is JobState.COMPLETED
        with pytest.raises(ResultExpired):
            await handle.result()

    async def test_a_result_of_another_type_than_promised(self, memory: Store) -> None:
        """The task says int and returns text: told where it happens, not to whoever reads it later."""
        app, events = memory.app(), Events()
        app.observe(events)

        @app.task
        async def lies() -> int:
            return "text"  # type: ignore[return-value]

        handle = await lies.enqueue()
        await within(app.drain())
        info = await handle.info()
        assert (info.state, info.reason) == (JobState.FAILED, "outcome cannot be stored")
        [failed] = events.of(EventKind.FAILED)
        assert "-> int: expected int, got str" in failed.detail


class TestCancel:
    async def test_reaches_the_handler(self, store: Store) -> None:
        """000-40, C39: the running handler is cancelled, and the job ends as cancelled."""
        app, gate, seen = store.app(), Gate(), []

        @app.task
        async def gated(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            finally:
                seen.append((job.cancel.requested, job.cancel.reason))

        handle = await gated.enqueue()
        async with working(app):
            await gate.reached()
            assert await handle.cancel() is JobState.RUNNING
            with pytest.raises(JobCancelled):
                await within(handle.result())
        assert seen == [(True, "cancelled")]

    async def test_a_handler_may_clean_up(self, store: Store) -> None:
        app, gate, order = store.app(), Gate(), []

        @app.task
        async def gated() -> None:
            try:
                await gate.pass_through()
            finally:
                await asyncio.sleep(0)
                order.append("cleaned up")

        handle = await gated.enqueue()
        async with working(app):
            await gate.reached()
            await handle.cancel()
            with pytest.raises(JobCancelled):
                await within(handle.result())
        assert order == ["cleaned up"]

    async def test_cancel_does_not_touch_the_next_job_of_the_slot(self, memory: Store) -> None:
        app, gate = memory.app(worker={"concurrency": 1}), Gate()

        @app.task
        async def gated(n: int) -> int:
            if n == 0:
                await gate.pass_through()
            return n

        handles = [await gated.enqueue(n) for n in range(5)]
        async with working(app):
            await gate.reached()
            await handles[0].cancel()
            assert [await within(handle.result()) for handle in handles[1:]] == [1, 2, 3, 4]


def test_every_kind_of_outcome_is_known() -> None:
    """``Outcome`` and what handlers may return are the same."""
    assert set(OUTCOMES) == {Done, Retry, Again, Paused, Fail, Cancelled}


async def test_pack_refuses_what_is_not_a_job(memory: Store) -> None:
    app: App = memory.app()
    with pytest.raises(InvalidJob, match="NewJob"):
        await app.enqueue_many(["a job"])  # type: ignore[list-item]


class TestReschedule:
    """A waiting job becomes due at another time."""

    async def test_now_later_and_at_an_instant(self, store: Store) -> None:
        s = Scripted(store)
        handle = await s.task.options(delay="1h").enqueue()
        await within(s.app.drain())
        assert s.runs == []
        at = datetime.fromtimestamp(s.clock.now() // 1_000_000, UTC) + timedelta(minutes=5)
        assert await s.app.reschedule(handle.id, at=at) is JobState.AVAILABLE
        assert (await handle.info()).run_at == at
        assert await s.app.reschedule(handle.id, delay="10s") is JobState.AVAILABLE
        await within(s.app.drain())
        assert s.runs == []
        assert await s.app.reschedule(handle.id) is JobState.AVAILABLE
        await within(s.app.drain())
        assert len(s.runs) == 1
        assert await s.app.reschedule(handle.id) is JobState.COMPLETED

    async def test_while_it_is_paused(self, store: Store) -> None:
        s = Scripted(store)
        handle = await s.task.options(delay="1h").enqueue()
        assert await s.app.pause_job(handle.id) is JobState.PAUSED
        assert await s.app.reschedule(handle.id) is JobState.PAUSED
        await within(s.app.drain())
        assert s.runs == []
        assert await s.app.resume_job(handle.id) is JobState.AVAILABLE
        await within(s.app.drain())
        assert len(s.runs) == 1

    async def test_a_worker_that_sleeps_hears_of_it(self, store: Store) -> None:
        """Whose poll would come much later."""
        app = store.app(worker={"poll": "1h"})
        ran = asyncio.Event()

        @app.task
        async def note() -> None:
            ran.set()

        async with working(app):
            handle = await note.options(delay="1h").enqueue()
            await app.reschedule(handle.id)
            await within(ran.wait())

    async def test_what_is_refused(self, store: Store) -> None:
        s = Scripted(store)
        handle = await s.task.options(delay="1h").enqueue()
        now = datetime.now(UTC)
        for wrong in ({"delay": "1m", "at": now}, {"delay": -1}, {"at": now.replace(tzinfo=None)}, {"at": "noon"}):
            with pytest.raises(HeadraceError):
                await s.app.reschedule(handle.id, **wrong)  # type: ignore[arg-type]
        with pytest.raises(JobNotFound):
            await s.app.reschedule(bytes(16))
