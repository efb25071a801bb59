"""The reliable queue: waiting for results, how long they are kept, and changing them on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Completed, Done, EventKind, Job, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, HeadraceError, InvalidJob, JobFailed, JobNotFound, ResultExpired, WaitTimeout
from headrace.seam.records import Row
from headrace.worker.handler import Ending
from tests.facades.harness import Calls, Events, Gate, Store, serving, within


class TestWaiters:
    async def test_any_number_on_one_id(self, store: Store) -> None:
        """5.3-8, P13: all are served, whoever leaves first."""
        queue, elsewhere, gate = store.queue(), store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "for all"

        async with serving(queue), asyncio.TaskGroup() as group:
            first = group.create_task(queue.enqueue_and_wait("a", 1))
            await gate.reached()
            impatient = group.create_task(_error(queue.enqueue_and_wait("a", 1, timeout="10ms")))
            others = [group.create_task(q.enqueue_and_wait("a", 1)) for q in (queue, elsewhere) * 5]
            assert isinstance(await within(impatient), WaitTimeout)
            gate.open()
            assert await within(asyncio.gather(first, *others)) == ["for all"] * 11

    async def test_after_the_finish(self, store: Store) -> None:
        """5.3-8: whoever comes late gets the cached result."""
        queue, later = store.queue(), store.queue()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        assert await within(later.enqueue_and_wait("a", 2)) == 1

    async def test_for_a_result_that_has_expired(self, store: Store) -> None:
        """5.3-8, P12: a typed error, at once; no waiting in vain."""
        clock = ManualClock()
        app = store.app(clock=clock, result_ttl="1m")

        @app.task
        async def one() -> int:
            return 1

        handle = await one.enqueue()
        await app.drain()
        clock.advance("2m")
        with pytest.raises(ResultExpired):
            await within(handle.result(wait=None))

    async def test_for_a_result_that_is_never_kept(self, store: Store) -> None:
        """P12: the same when the job's own options said so from the start; a wait that says so itself is refused."""
        queue, gate, events = store.queue(), Gate(), Events()
        queue.client.observers.add(events)

        @queue.execute
        async def one(job: Job[int]) -> int:
            await gate.pass_through()
            return 1

        async with serving(queue):
            await queue.enqueue("a", 1, result_ttl=0)
            await gate.reached()
            waiting = asyncio.ensure_future(_error(queue.enqueue_and_wait("a", 1)))
            await events.until(EventKind.DEDUPLICATED)
            gate.open()
            assert isinstance(await within(waiting), ResultExpired)
            with pytest.raises(InvalidJob, match="no result to wait for"):
                await within(queue.enqueue_and_wait("b", 1, result_ttl=0))

    async def test_for_a_job_that_does_not_exist(self, store: Store) -> None:
        """A wait for nothing ends at once."""
        client = store.client()
        with pytest.raises(JobNotFound):
            await within(client.wait("01900000-0000-7000-8000-000000000000", timeout=None))

    async def test_cancelling_the_wait_leaves_the_job(self, store: Store) -> None:
        """002-11: a waiter that is cancelled takes nothing with it."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "done"

        async with serving(queue):
            waiting = asyncio.ensure_future(queue.enqueue_and_wait("a", 1))
            await gate.reached()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            gate.open()
            assert await within(queue.enqueue_and_wait("a", 1)) == "done"

    async def test_are_told_when_their_client_closes(self, memory: Store) -> None:
        """A wait without a limit does not outlive the connection that it listens on."""
        queue, events = memory.queue(), Events()
        queue.client.observers.add(events)
        waiting = asyncio.ensure_future(_error(queue.enqueue_and_wait("a", 1, timeout=None)))
        try:
            await events.until(EventKind.QUEUED)
            await queue.client.close()
            assert isinstance(await within(waiting), HeadraceError)
        finally:
            waiting.cancel()


class TestResultTtl:
    @pytest.mark.parametrize(("ttl", "held"), [("1s", False), ("2h", True), (None, True)])
    async def test_per_job(self, store: Store, ttl: str | None, held: bool) -> None:
        """002-22, 002-35: a job's own ttl wins over the queue's hour."""
        clock = ManualClock()
        queue = store.queue(clock=clock)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1, result_ttl=ttl)
        clock.advance("30m")
        assert await queue.result("a", default="gone") == (1 if held else "gone")

    async def test_the_handler_may_say(self, store: Store) -> None:
        """``Done(result, result_ttl)`` wins over both."""
        clock = ManualClock()
        queue = store.queue(clock=clock)

        @queue.execute
        async def one(job: Job[int]) -> Done:
            return Done(1, result_ttl="3h")

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1, result_ttl="1s")
        clock.advance("2h")
        assert await queue.result("a") == 1
        clock.advance("2h")
        assert await queue.result("a") is None

    async def test_errors_are_kept_with_the_job(self, store: Store) -> None:
        """002-22: the error of a failed job is there as long as its record is, whatever its result_ttl."""
        clock = ManualClock()
        queue = store.queue(clock=clock, retry=never())

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError("kept")

        async with serving(queue):
            with pytest.raises(JobFailed):
                await queue.enqueue_and_wait("a", 1, result_ttl="1s")
        clock.advance("1h")
        status = await queue.status("a")
        assert status is not None
        assert status.error is not None
        assert status.error.error["message"] == "kept"


class TestUpdateResultTtl:
    async def test_updated(self, store: Store) -> None:
        """Longer, and shorter again: counted from now."""
        clock = ManualClock()
        queue = store.queue(clock=clock)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        assert await queue.update_result_ttl("a", "1d") == "updated"
        clock.advance("23h")
        assert await queue.enqueue("a", 1) == Completed(1)
        assert await queue.update_result_ttl("a", "1m") == "updated"
        clock.advance("2m")
        assert await queue.result("a") is None

    async def test_not_found(self, store: Store) -> None:
        assert await store.queue().update_result_ttl("never", "1h") == "not_found"

    async def test_not_terminal(self, store: Store) -> None:
        """A job that waits or runs has no result to keep."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        await queue.enqueue("a", 1)
        assert await queue.update_result_ttl("a", "1h") == "not_terminal"
        async with serving(queue):
            await gate.reached()
            assert await queue.update_result_ttl("a", "1h") == "not_terminal"
            gate.open()

    @pytest.mark.parametrize("how", ["failed", "cancelled", "expired", "not kept"])
    async def test_missing_payload(self, store: Store, how: str) -> None:
        """It ended, but there is no result that could be kept."""
        clock = ManualClock()
        queue, ended = store.queue(clock=clock, retry=never()), Calls()
        queue.on("failed", ended)
        queue.on("completed", ended)

        @queue.execute
        async def maybe(job: Job[str]) -> int:
            if job.payload == "failed":
                raise ValueError("no")
            return 1

        await queue.enqueue("a", how, result_ttl=0 if how == "not kept" else "1m")
        if how == "cancelled":
            await queue.cancel("a")
        else:
            async with serving(queue):
                await ended.until()
        clock.advance("2m")
        assert await queue.update_result_ttl("a", "1h") == "missing_payload"


class TestAfterHook:
    """5.2, P29: a hook sees every end before it is stored, and may change it."""

    async def test_changes_the_result(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        async def one(job: Job[int]) -> int:
            return job.payload

        @queue.after
        async def add(job: Job[int], ending: Ending) -> None:
            assert (ending.state, job.payload) == ("completed", 1)
            ending.result += 100

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 101
        assert await queue.result("a") == 101

    async def test_changes_the_ttl(self, store: Store) -> None:
        clock = ManualClock()
        queue = store.queue(clock=clock)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        @queue.after
        async def longer(job: Job[int], ending: Ending) -> None:
            ending.result_ttl = "1d"

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 1
        clock.advance("23h")
        assert await queue.result("a") == 1
        clock.advance("2h")
        assert await queue.result("a") is None

    async def test_changes_the_error(self, store: Store) -> None:
        queue = store.queue(retry=never())

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError("secret: hunter2")

        @queue.after
        async def scrub(job: Job[int], ending: Ending) -> None:
            assert (ending.state, type(ending.error)) == ("failed", ValueError)
            ending.error = RuntimeError("something went wrong")

        async with serving(queue):
            with pytest.raises(JobFailed) as caught:
                await queue.enqueue_and_wait("a", 1)
        assert caught.value.error["type"] == "RuntimeError"
        assert "hunter2" not in str(caught.value.to_dict())

    async def test_runs_at_the_end_and_not_between_attempts(self, store: Store) -> None:
        queue = store.queue(retry=immediate(3))
        endings: list[str] = []

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError("no")

        @queue.after
        async def note(job: Job[int], ending: Ending) -> None:
            endings.append(f"{ending.state} {job.attempt}")

        async with serving(queue):
            with pytest.raises(JobFailed):
                await queue.enqueue_and_wait("a", 1)
        assert endings == ["failed 2"]

    async def test_a_plain_function_is_a_hook_or_is_refused(self, memory: Store) -> None:
        """It does not fail anew, and only there, with every job."""
        queue, errors = memory.queue(), Calls()
        queue.on("error", errors)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        def double(job: Job[int], ending: Ending) -> None:
            ending.result *= 2

        try:
            queue.after(double)  # type: ignore[arg-type]
        except ConfigError:
            return
        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 2
        assert errors.seen == []

    async def test_a_hook_that_raises_changes_nothing_and_is_reported(self, store: Store) -> None:
        queue, errors = store.queue(), Calls()
        queue.on("error", errors)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        @queue.after
        async def broken(job: Job[int], ending: Ending) -> None:
            ending.result = "half-way"
            raise ZeroDivisionError("in the hook")

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 1
        [(error,)] = errors.seen
        assert isinstance(error, ZeroDivisionError)

    @pytest.mark.parametrize("change", [{"result_ttl": "a fortnight"}, {"result_ttl": -1}, {"result": object()}])
    async def test_a_change_that_cannot_be_stored_changes_nothing(self, store: Store, change: dict[str, Any]) -> None:
        clock = ManualClock()
        queue, errors = store.queue(clock=clock), Calls()
        queue.on("error", errors)

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        @queue.after
        async def wrong(job: Job[int], ending: Ending) -> None:
            for name, value in change.items():
                setattr(ending, name, value)

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 1
        assert len(errors.seen) == 1
        clock.advance("30m")
        assert await queue.result("a") == 1

    async def test_sees_a_job_whose_payload_cannot_be_read(self, store: Store) -> None:
        """It fails like any other, and the queue goes on."""
        queue = store.queue()
        endings: list[tuple[str, Any]] = []

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        @queue.after
        async def note(job: Job[Any], ending: Ending) -> None:
            endings.append((ending.state, job.payload))

        backend = await queue.client.backend()
        await backend.insert([Row(b"\1" * 16, "jobs", "jobs", {"parameters": b"garbage"}, key="bad")])
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("good", 1)) == 1
        assert endings == [("failed", None), ("completed", 1)]

    async def test_a_damaged_section_fails_its_job_and_no_other(self, memory: Store) -> None:
        """5.3-9: one corrupt row costs one job, never a slot."""
        queue = memory.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        @queue.after
        async def look(job: Job[Any], ending: Ending) -> None:
            pass

        backend = await queue.client.backend()
        good = queue.client.packer.wrap_value(1, queue._payloads, "payload")
        cells = {"parameters": good, "blob": b"damaged"}
        await backend.insert([Row(b"\1" * 16, "jobs", "jobs", cells, key="bad")])
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("good", 1)) == 1
        status = await queue.status("bad")
        assert status is not None
        assert status.state == "failed"

    @pytest.mark.parametrize("how", ["cancel", "timeout"])
    async def test_a_job_that_is_stopped_in_its_hook_frees_its_slot(self, memory: Store, how: str) -> None:
        """A cancel or a timeout may come while the hook runs: the job ends one way or the other, the slot lives on."""
        queue = memory.queue(timeout="50ms" if how == "timeout" else None, retry=never())
        gate = Gate()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        @queue.after
        async def slow(job: Job[int], ending: Ending) -> None:
            if job.key == "stopped":
                await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("stopped", 1)
            await gate.reached()
            if how == "cancel":
                await queue.cancel("stopped")
            assert await within(queue.enqueue_and_wait("next", 2)) == 2
            status = await queue.status("stopped")
            assert status is not None
            assert status.state in ("completed", "cancelled", "failed")


async def _error(work: Any) -> BaseException | None:
    try:
        await work
    except Exception as error:
        return error
    return None
