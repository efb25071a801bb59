"""The reliable queue: what listeners are told. Ids are those that the caller gave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Ending, Fail, Job, JobState, NewJob, Queue, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, Unavailable
from headrace.seam.records import Claim, Selector
from tests.facades.harness import Calls, Gate, Store, Tapped, World, serving, simulate, within

NAMES = (
    "queued",
    "processing",
    "failing",
    "completed",
    "failed",
    "cancelled",
    "stalled",
    "requeued",
    "error",
    "started",
    "stopped",
)


class TestEvents:
    """002-25, 002-45."""

    async def test_of_a_job_that_succeeds(self, store: Store) -> None:
        queue, heard = store.queue(worker="worker-one"), []
        for name in NAMES:
            queue.on(name, lambda *given, name=name: heard.append((name, *given)))

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        await queue.enqueue("a", 5)
        async with serving(queue):
            await queue.enqueue_and_wait("a", 5)
        assert heard == [
            ("queued", "a"),
            ("started", "worker-one"),
            ("processing", "a"),
            ("completed", "a", 5),
            ("stopped", "worker-one"),
        ]

    async def test_of_a_job_that_fails(self, store: Store) -> None:
        queue, heard, gone = store.queue(retry=immediate(2)), [], asyncio.Event()
        for name in ("processing", "failing"):
            queue.on(name, lambda *given, name=name: heard.append((name, *given)))
        failed = Calls()
        queue.on("failed", failed)
        queue.on("failed", lambda id, error: gone.set())

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise ValueError(f"attempt {job.attempt}")

        async with serving(queue):
            await queue.enqueue("a", 5)
            await within(gone.wait())
        assert heard == [("processing", "a"), ("failing", "a"), ("processing", "a")]
        [(id, error)] = failed.seen
        assert (id, type(error), str(error)) == ("a", ValueError, "attempt 1")

    async def test_failed_by_decision_comes_with_an_error_too(self, memory: Store) -> None:
        queue, failed = memory.queue(), Calls()
        queue.on("failed", failed)

        @queue.execute
        async def refuse(job: Job[int]) -> Fail:
            return Fail("not a number", "bad input")

        async with serving(queue):
            await queue.enqueue("a", 5)
            [(id, error)] = await failed.until()
        assert id == "a"
        assert isinstance(error, Exception)
        assert "not a number" in str(error)

    async def test_of_a_waiting_job_that_is_cancelled(self, store: Store) -> None:
        """The listener is told the id that was cancelled, not one that it has never seen."""
        queue, heard = store.queue(), Calls()
        queue.on("cancelled", heard)
        await queue.enqueue("a", 1)
        await queue.cancel("a")
        assert await heard.until() == [("a",)]

    async def test_of_a_running_job_that_is_cancelled(self, store: Store) -> None:
        queue, heard, gate = store.queue(), Calls(), Gate()
        queue.on("cancelled", heard)

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
            await queue.cancel("a")
            assert await heard.until() == [("a",)]

    async def test_of_a_job_that_expired(self, memory: Store) -> None:
        """An expired job is told as cancelled, under its own id."""
        clock = ManualClock()
        client = memory.client(clock=clock)
        queue, heard = Queue[Any, Any]("jobs", client), Calls()
        queue.on("cancelled", heard)

        @queue.execute
        async def never_run(job: Job[int]) -> None:
            raise AssertionError("it had expired")

        await client.insert([NewJob(task="jobs", queue="jobs", args={}, key="late", expires="1m")])
        clock.advance("2m")
        async with serving(queue):
            assert await heard.until() == [("late",)]

    def test_stalled_comes_from_the_reaper(self) -> None:
        """002-45: a vanished worker's job is told as stalled, under its own id."""

        async def main(world: World) -> list[Any]:
            queue, heard = world.queue(), Calls()
            queue.on("stalled", heard)

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            await queue.enqueue("a", 1)
            await world.memory.claim(Claim("ghost", ("jobs",), 1, 1_000_000))
            await asyncio.sleep(2)
            async with queue:
                return await heard.until()

        assert simulate(main) == [("a",)]

    async def test_requeued_by_a_stop(self, store: Store) -> None:
        """A job that a stop cut short is told as requeued."""
        queue, heard, gate = store.queue(grace=0), Calls(), Gate()
        queue.on("requeued", heard)

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
        assert heard.seen == [("a",)]

    def test_error_when_the_store_is_away(self) -> None:
        """Trouble with the store is told once, not once per try."""

        class Away(Tapped):
            tries = 0

            async def claim(self, req: Any, at: Any = None) -> Any:
                Away.tries += 1
                if Away.tries <= 5:
                    raise Unavailable("gone fishing")
                return await self.inner.claim(req, at)

        async def main(world: World) -> list[Any]:
            queue, heard = world.queue(), Calls()
            queue.on("error", heard)

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            async with queue:
                assert await queue.enqueue_and_wait("a", 1) == 1
            return heard.seen

        [(error,)] = simulate(main, Away)
        assert isinstance(error, Unavailable)


class TestListeners:
    async def test_hear_only_of_their_own_queue(self, memory: Store) -> None:
        """Two queues on one client do not hear each other."""
        client = memory.client()
        first, second = Queue[Any, Any]("first", client, worker="one"), Queue[Any, Any]("second", client, worker="two")
        heard: list[tuple[str, tuple[Any, ...]]] = []
        for name in NAMES:
            second.on(name, lambda *given, name=name: heard.append((name, given)))

        @first.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(first):
            await first.enqueue_and_wait("a", 1)
            await first.enqueue("b", 1, delay="1h")
            await first.cancel("b")
        assert heard == []

    async def test_a_result_that_the_hook_changed_is_told_as_it_is_stored(self, store: Store) -> None:
        queue, heard = store.queue(), Calls()
        queue.on("completed", heard)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        @queue.after
        async def change(job: Job[Any], ending: Ending) -> None:
            ending.result = 99

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 6) == 99
            assert await heard.until() == [("a", 99)]

    async def test_a_cancellation_by_number_is_told_under_its_own_id(self, store: Store) -> None:
        client = store.client()
        mine, other = Queue[Any, Any]("mine", client), Queue[Any, Any]("other", client)
        heard, misled = Calls(), Calls()
        mine.on("cancelled", heard)
        other.on("cancelled", misled)
        await mine.enqueue("my-id", 1, delay="1h")
        [job] = await client.list_jobs(Selector(queue="mine"))
        assert await client.cancel(job.id) is JobState.CANCELLED
        assert heard.seen == [("my-id",)]
        assert misled.seen == []

    async def test_a_retry_that_a_cancellation_overtook_is_told_as_cancelled(self, store: Store) -> None:
        """The store has the last word: what it did not accept is not told."""
        queue, gate = store.queue(retry=immediate(5)), Gate()
        heard: list[tuple[str, str]] = []
        for name in ("failing", "cancelled"):
            queue.on(name, lambda *given, name=name: heard.append((name, *given)))
        over = asyncio.Event()
        queue.on("cancelled", lambda *given: over.set())

        @queue.execute
        async def stubborn(job: Job[int]) -> int:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                raise ValueError("I fail instead") from None
            return 1

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
            assert await queue.cancel("a") == "processing"
            await within(over.wait())
        assert heard == [("cancelled", "a")]

    async def test_one_that_raises_harms_nobody(self, store: Store) -> None:
        """P30: neither the job nor the other listeners."""
        queue, heard = store.queue(), Calls()

        def broken(*given: Any) -> None:
            raise RuntimeError("in a listener")

        for name in NAMES:
            queue.on(name, broken)
        queue.on("completed", heard)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 1
        assert heard.seen == [("a", 1)]

    @pytest.mark.parametrize("event", ["complete", "", "COMPLETED", None, 5])
    def test_unknown_events_are_refused(self, memory: Store, event: Any) -> None:
        with pytest.raises(ConfigError, match="completed"):
            memory.queue().on(event, print)

    async def test_an_error_without_a_listener_is_not_fatal(self, memory: Store) -> None:
        """P30."""
        queue = memory.queue(retry=never())

        @queue.execute
        async def one(job: Job[int]) -> int:
            return 1

        @queue.after
        async def broken(job: Job[int], ending: Any) -> None:
            raise RuntimeError("in the hook")

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 1) == 1
