"""Slots: no job ends one for good, whatever it is made of and whatever comes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from headrace import App, EventKind, Every, Job, JobState, Queue, immediate
from headrace.core.event_log import log_event
from headrace.core.events import Observers
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Leased, Selector, Settlement
from headrace.worker.retry import RetryPolicy
from headrace.worker.runner import Runner
from tests.worker.conftest import Told, working

NOT_UTF8 = b"\x81\xa1\xff\xa1a"


async def test_headers_that_are_no_text_cost_neither_the_job_nor_the_slot(
    make_app: Callable[..., App], store: Backend
) -> None:
    app = make_app(concurrency=1)
    app.observe(Told())
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    async with opened(store), working(app):
        row = replace(app.client.packer.pack(work.job(1)), headers=NOT_UTF8)
        await store.insert([row])
        handle = await work.enqueue(2)
        await handle.result("30s")
        info = await app.get(row.id)
        assert (info.state, info.headers) == (JobState.COMPLETED, {})
        assert row.id in {one.id.bytes for one in await app.client.list_jobs(Selector(queue="default"))}
    assert sorted(ran) == [1, 2]


async def test_a_stored_error_that_is_no_text_costs_no_slot(make_app: Callable[..., App], store: Backend) -> None:
    app = make_app(concurrency=1)

    @app.task(retry=immediate(3))
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError("again")

    async with opened(store), app:
        bad = await work.enqueue(True)
        [job] = (await store.claim(Claim("other", ("default",), 1, 10**9))).jobs
        unreadable = b"\x91\x82\xa4type\xa1\xff\xa7message\xa1\xff"
        await store.finish([Settlement(job.id, job.epoch, "other", JobState.AVAILABLE, error=unreadable)])
        assert (await bad.info()).failures[0].type == "Unreadable"
        async with working(app):
            await (await work.enqueue(False)).result("30s")
            with pytest.raises(Exception, match="again"):
                await bad.result("30s")
        assert [one.type for one in (await bad.info()).failures] == ["Unreadable", *["ValueError"] * 3]


class Moody(RetryPolicy, frozen=True, kw_only=True):
    """A policy with a bug."""

    wait: Any = None

    def delay(self, attempt: int, rng: Random) -> int:
        return 1 // 0 if self.wait is None else self.wait


class Sulky(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise SystemExit("not today")


class Temper(Exception, metaclass=Sulky):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit("I say nothing")


class Odd:
    def __eq__(self, other: object) -> bool:
        raise SystemExit("nothing is like me")

    __hash__ = None  # type: ignore[assignment]


VARIABLE: ContextVar[Any] = ContextVar("VARIABLE", default=None)


async def fails() -> None:
    raise ValueError("of its own")


async def exits_a_generator() -> None:
    raise GeneratorExit


async def says_nothing() -> None:
    raise Silent


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def leaves_something_odd() -> None:
    VARIABLE.set(Odd())


NAUGHTY: list[tuple[Callable[[], Awaitable[None]], RetryPolicy, str]] = [
    (fails, Moody(), "retry policy failed"),
    (fails, Moody(wait=-1), "retry policy failed"),
    (fails, Moody(wait="soon"), "retry policy failed"),
    (fails, RetryPolicy(give_up_on=(Temper,)), "retry policy failed"),
    (exits_a_generator, immediate(2), "retries exhausted"),
    (says_nothing, immediate(2), "retries exhausted"),
    (cancels_itself, immediate(2), ""),
    (leaves_something_odd, immediate(2), ""),
]


@pytest.mark.parametrize("number", range(len(NAUGHTY)))
async def test_whatever_a_handler_does_its_slot_goes_on(number: int) -> None:
    handler, policy, reason = NAUGHTY[number]
    app = App("memory://", worker={"concurrency": 1})
    bad = app.task(name="bad", retry=policy)(handler)

    @app.task
    async def good() -> int:
        return 7

    async with working(app):
        naughty = await bad.enqueue()
        handle = await good.enqueue()
        assert await handle.result("30s") == 7
        await ended(naughty)
        info = await naughty.info()
        assert (info.state, info.reason) == (JobState.FAILED if reason else JobState.COMPLETED, reason)
        async with asyncio.timeout(30):
            while not health(app).ok:
                await asyncio.sleep(0.01)
        assert (health(app).alive, health(app).slots) == (1, 1)


async def test_a_failing_policy_is_told_beside_the_error_of_the_handler() -> None:
    app = App("memory://", worker={"concurrency": 1})
    bad = app.task(name="bad", retry=Moody())(fails)
    async with app:
        handle = await bad.enqueue()
        await app.drain()
        failures = (await handle.info()).failures
    assert [(one.type, one.message) for one in failures] == [
        ("ValueError", "of its own"), ("ZeroDivisionError", "integer division or modulo by zero"),
    ]  # fmt: skip


async def test_a_generator_exit_of_a_batch_or_a_hook_is_an_error_like_any_other() -> None:
    app = App("memory://", worker={"concurrency": 1})

    @app.batch(retry=immediate(1))
    async def many(jobs: list[Job[int]]) -> None:
        raise GeneratorExit

    async with app:
        handle = await many.enqueue(1)
        await app.drain()
        assert (await handle.info()).failures[0].type == "GeneratorExit"

    queue = Queue[int, int]("squares", "memory://")
    errors: list[BaseException] = []
    queue.on("error", errors.append)

    @queue.execute
    async def square(job: Job[int]) -> int:
        return job.payload**2

    @queue.after
    async def after(job: Job[int], ending: Any) -> None:
        raise GeneratorExit if job.payload == 2 else asyncio.CancelledError

    async with queue:
        assert await queue.enqueue_and_wait("1", 2) == 4
        assert await queue.enqueue_and_wait("2", 3) == 9
    assert [type(one) for one in errors] == [GeneratorExit, asyncio.CancelledError]


async def test_an_error_in_the_worker_s_own_code_costs_one_job(
    make_app: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(concurrency=1)
    told = Told()
    app.observe(told)

    @app.task
    async def work(n: int) -> int:
        return n

    async with working(app):
        attempts = app.worker._runner._attempts  # type: ignore[union-attr]
        judged, broken = attempts._judge.settle, []

        def settle(leased: Any, *args: Any) -> Settlement:
            if not broken:
                broken.append(leased.id)
                raise RuntimeError("a bug")
            return judged(leased, *args)

        monkeypatch.setattr(attempts._judge, "settle", settle)
        first, second = await work.enqueue(1), await work.enqueue(2)
        assert await second.result("30s") == 2
        await ended(first)
        info = await first.info()
    assert (info.state, info.reason) == (JobState.FAILED, "outcome cannot be stored")
    assert info.failures[0].message == "a bug"
    assert [event.error for event in told.events if event.kind is EventKind.ERROR]


async def test_a_job_that_cannot_even_be_failed_lapses(
    make_app: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is no longer renewed, so it is taken back like that of a worker that vanished."""
    app = make_app(concurrency=1, lease="1s", max_lost=5)
    told = Told()
    app.observe(told)

    @app.task
    async def work(n: int) -> int:
        return n

    async with working(app):
        judge = app.worker._runner._attempts._judge  # type: ignore[union-attr]

        def broken(*args: Any) -> Settlement:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(judge, "settle", broken)
            patch.setattr(judge, "refuse", broken)
            handle = await work.enqueue(1)
            await told.wait_for(EventKind.ERROR)
        await told.wait_for(EventKind.STALLED)
        assert await handle.result("30s") == 1


async def test_a_slot_that_ends_is_started_again_and_shows_until_then(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://", worker={"concurrency": 2, "name": "one"})

    @app.task
    async def work() -> int:
        return 7

    async with working(app):
        assert await (await work.enqueue()).result("30s") == 7
        runner: Runner = app.worker._runner  # type: ignore[union-attr]
        for slot in runner._all:
            assert slot.task is not None
            slot.task.cancel()
        async with asyncio.timeout(30):
            while health(app).alive:
                await asyncio.sleep(0)
        assert not health(app).ok
        assert health(app).detail == "2 of 2 slots are down, and will be started again"
        assert await (await work.enqueue()).result("30s") == 7  # by the slot that is back first
        async with asyncio.timeout(30):
            while not health(app).ok:
                await asyncio.sleep(0)
    assert "headrace-slot-0 ended" in caplog.text


async def test_names_forge_no_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    app = App("memory://", worker={"concurrency": 1})
    forged = "a\nERROR forged \x1b[31m"

    @app.task(name=forged)
    async def work() -> None: ...

    done = asyncio.Event()
    app.observe(lambda event: done.set() if event.kind is EventKind.COMPLETED else None)
    async with working(app):
        await app.schedules.put(Every("1h", work.job(), name=forged))
        await app.schedules.run(forged)
        async with asyncio.timeout(30):
            await done.wait()
        attempts = app.worker._runner._attempts  # type: ignore[union-attr]
        attempts.events._observers = Observers(log_event)
        leased = Leased(id=b"i" * 16, queue="q", task=forged, cells={}, epoch=1)
        attempts.events.tell(EventKind.ERROR, leased, detail="it failed", error=ValueError("x"))
    told = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert any("started" in line for line in told)
    assert any("it failed" in line for line in told)
    assert not [line for line in told if "\n" in line or "\x1b" in line]


def health(app: App) -> Any:
    assert app.worker is not None
    return app.worker.health()


async def ended(handle: Any) -> None:
    """Wait for the end of a job, whatever it is."""
    async with asyncio.timeout(30):
        while not (await handle.info()).state.terminal:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(store: Backend) -> AsyncIterator[None]:
    await store.open()
    yield
    await store.close()


async def test_a_handler_that_cancels_its_own_task_and_returns_costs_neither_its_slot_nor_the_next_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("memory://", worker={"concurrency": 1})

    @app.task(retry=immediate(1))
    async def naughty() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @app.task(retry=immediate(1))
    async def fine() -> int:
        await asyncio.sleep(0.0001)
        return 2

    async with app:
        quick = await app.enqueue_many(fine.job() for _ in range(200))  # so that jobs wait in the worker
        mixed = await app.enqueue_many((fine if n % 5 else naughty).job() for n in range(50))
        await app.drain()
        assert {(await handle.info()).state for handle in quick + mixed} == {JobState.COMPLETED}
    assert "ended; it is started again" not in caplog.text
