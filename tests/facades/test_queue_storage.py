"""The reliable queue's storage interface, as the facades see it: what the waist must offer, item by item.

The full contract of a store is in ``headrace.testing.conformance``; these are the promises that users notice.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace import Again, EventKind, Job, JobState, Queue, Retry, exponential, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import (
    HeadraceError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    ResultExpired,
    RetriesExhausted,
    Unavailable,
    WaitTimeout,
)
from headrace.seam.records import Claim, JobKey, Reap, Selector, Settlement, Watch
from tests.facades.harness import Calls, Events, Gate, Store, Tapped, World, serving, simulate, within


class TestStorage:
    async def test_connect_and_disconnect(self, store: Store) -> None:
        """002-17: opened on first use, closed and opened again as often as one likes."""
        client = store.client()
        await client.close()
        queue = Queue[int, int]("jobs", client)
        for n in range(3):
            await client.open()
            await client.open()
            await queue.enqueue(f"job-{n}", n)
            await client.close()
            await client.close()
        assert await store.count() == 3

    def test_a_waiting_worker_is_woken(self) -> None:
        """002-19: a blocking dequeue; it sleeps until there is something, and no longer."""

        async def main(world: World) -> float:
            queue, started = world.queue(), []

            @queue.execute
            async def note(job: Job[int]) -> None:
                started.append(world.now())

            async with queue:
                await asyncio.sleep(1_000.5)
                await world.queue().enqueue("a", 1)
                await queue.enqueue_and_wait("a", 1)
            return started[0] - 1_000.5

        assert simulate(main) < 0.01

    def test_a_job_that_comes_while_a_claim_is_under_way_is_not_overlooked(self) -> None:
        """002-19: the store looked, found nothing, and is on its way back with the news: what comes in then counts."""

        class Slow(Tapped):
            async def claim(self, req: Any, at: Any = None) -> Any:
                claimed = await self.inner.claim(req, at)
                await asyncio.sleep(0.05)
                return claimed

            async def finish_and_claim(self, batch: Any, req: Any, at: Any = None) -> Any:
                answer = await self.inner.finish_and_claim(batch, req, at)
                await asyncio.sleep(0.05)
                return answer

        async def main(world: World) -> list[float]:
            queue, waits = world.queue(), []

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            async with queue:
                for n, pause in enumerate((0.01, 0.0, 0.02, 0.04, 0.06)):
                    await asyncio.sleep(pause)
                    before = world.now()
                    await queue.enqueue_and_wait(f"job-{n}", n)
                    waits.append(world.now() - before)
            return waits

        assert max(simulate(main, Slow)) < 0.5

    def test_a_worker_that_hears_nothing_looks_by_itself(self) -> None:
        """5.3-15: hints may be lost; every wake path works by polling too."""

        class Deaf(Tapped):
            hints = None

        async def main(world: World) -> tuple[Any, float]:
            queue = world.queue()

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            async with queue:
                await asyncio.sleep(60)
                return await queue.enqueue_and_wait("a", 1), world.now() - 60

        answer, took = simulate(main, Deaf)
        assert answer == 1
        assert took < 1

    async def test_requeue_and_ack(self, store: Store) -> None:
        """002-20: a claimed job is given back or finished, each once."""
        queue = store.queue()
        await queue.enqueue("a", 1)
        backend = await queue.client.backend()
        claim = Claim("me", ("jobs",), 1, 30_000_000)
        [job] = (await backend.claim(claim)).jobs
        assert (await backend.claim(claim)).jobs == []
        give_back = Settlement(job.id, job.epoch, "me", JobState.AVAILABLE)
        assert await backend.finish([give_back, give_back]) == [JobState.AVAILABLE, None]
        [job] = (await backend.claim(claim)).jobs
        ack = Settlement(job.id, job.epoch, "me", JobState.COMPLETED)
        assert await backend.finish([ack]) == [JobState.COMPLETED]

    async def test_many_states_in_one_trip(self, store: Store) -> None:
        """002-21: in the order asked for, unknown ones left empty."""
        queue = store.queue()
        for n in range(3):
            await queue.enqueue(f"job-{n}", n)
        await queue.cancel("job-1")
        backend = await queue.client.backend()
        records = await backend.fetch([JobKey("jobs", f"job-{n}") for n in (2, 1, 9, 0)])
        assert [record and record.state for record in records] == [
            JobState.AVAILABLE,
            JobState.CANCELLED,
            None,
            JobState.AVAILABLE,
        ]

    async def test_in_flight_jobs(self, store: Store) -> None:
        """002-23, 002-48: what runs can be listed without a search of all keys."""
        queue, gate = store.queue(concurrency=2), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
            [stats] = (await queue.client.stats()).queues
            assert (stats.running, stats.available) == (1, 0)
            gate.open()

    async def test_a_job_s_end_is_one_step(self, store: Store) -> None:
        """002-26, 002-27: whoever hears that a job ended finds state, result or error, and free id together."""
        queue, other = store.queue(retry=never()), store.queue()

        @queue.execute
        async def maybe(job: Job[int]) -> int:
            if job.payload < 0:
                raise ValueError("negative")
            return job.payload

        async with serving(queue):
            for n in range(10):
                assert await within(queue.enqueue_and_wait(f"good-{n}", n)) == n
                status = await other.status(f"good-{n}")
                assert status is not None
                assert (status.state, status.result) == ("completed", n)
                with pytest.raises(JobFailed):
                    await within(queue.enqueue_and_wait(f"bad-{n}", -1))
                status = await other.status(f"bad-{n}")
                assert status is not None
                assert (status.state, status.attempts) == ("failed", 1)

    async def test_a_retry_is_one_step(self, store: Store) -> None:
        """002-28: counted and due again, together."""
        clock = ManualClock()
        queue, heard = store.queue(clock=clock), Calls()
        queue.on("failing", heard)

        @queue.execute
        async def later(job: Job[int]) -> Retry:
            return Retry("10m", "not yet")

        async with serving(queue):
            await queue.enqueue("a", 1)
            await heard.until()
        record = await queue.client.fetch(JobKey("jobs", "a"))
        assert record is not None
        assert (record.state, record.attempt) == (JobState.AVAILABLE, 1)
        assert record.run_at == clock.now() + 600_000_000

    async def test_notifications_carry_no_data(self, store: Store) -> None:
        """002-7, 002-24: a hint says which job to look at and nothing else."""
        queue = store.queue()
        backend = await queue.client.backend()
        assert backend.hints is not None

        @queue.execute
        async def secret(job: Job[str]) -> str:
            return job.payload

        async with serving(queue), backend.hints.listen(["inbox:mine"]) as hints:
            await queue.enqueue("a", "hunter2", delay="1h")
            record = await queue.client.fetch(JobKey("jobs", "a"))
            assert record is not None
            await backend.alter(Selector(ids=[record.id]), Watch("mine"))
            await queue.cancel("a")
            hint = await within(anext(hints))
        assert (hint.topic, hint.id) == ("inbox:mine", record.id)
        assert "hunter2" not in repr(hint)

    async def test_all_events_of_a_process(self, store: Store) -> None:
        """002-25: an observer sees every step of every job."""
        queue, events = store.queue(retry=immediate(2)), Events()
        queue.client.observers.add(events)
        runs: list[str | None] = []

        @queue.execute
        async def maybe(job: Job[str]) -> Any:
            if job.payload == "again" and not runs:
                runs.append(job.key)
                return Again(0)
            if job.payload == "bad":
                raise ValueError("no")
            return None

        async with serving(queue):
            await within(queue.enqueue_and_wait("a", "again"))
            with pytest.raises(RetriesExhausted):
                await within(queue.enqueue_and_wait("b", "bad"))
            await queue.enqueue("a", "again")
        # A worker may start a job before its producer has heard that it is stored.
        assert [event.key for event in events.of(EventKind.QUEUED)] == ["a", "b"]
        assert [kind for kind in events.kinds if kind is not EventKind.QUEUED] == [
            EventKind.WORKER_STARTED,
            EventKind.STARTED,
            EventKind.SNOOZED,
            EventKind.STARTED,
            EventKind.COMPLETED,
            EventKind.STARTED,
            EventKind.RETRYING,
            EventKind.STARTED,
            EventKind.FAILED,
            EventKind.DEDUPLICATED,
            EventKind.WORKER_STOPPED,
        ]

    async def test_memory_keeps_nothing(self) -> None:
        """002-31: one process, no persistence, the full API."""
        first = Queue[int, int]("jobs", "memory://")
        await first.enqueue("a", 1)
        await first.stop()
        second = Queue[int, int]("jobs", "memory://")
        assert await second.status("a") is None
        await second.stop()

    async def test_a_file_keeps_everything(self, tmp_path: Path) -> None:
        """002-32: what was queued, retried and finished before a restart is there after it, in order."""
        url = f"sqlite:///{tmp_path}/jobs.db"
        first = Queue[int, int]("jobs", url)
        await first.enqueue("done", 1)

        @first.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(first):
            assert await within(first.enqueue_and_wait("done", 1)) == 1
        for n in range(3):
            await first.enqueue(f"job-{n}", n)
        await first.stop()
        second, order = Queue[int, int]("jobs", url), []

        @second.execute
        async def note(job: Job[int]) -> int:
            order.append(job.payload)
            return job.payload

        assert await second.result("done") == 1
        async with serving(second):
            await within(second.enqueue_and_wait("job-2", 2))
        assert order == [0, 1, 2]

    async def test_a_claimed_job_is_known_as_processing_at_once(self, store: Store) -> None:
        """002-49, P1: claim and state are one step; there is nothing in between to be lost in."""
        queue = store.queue()
        await queue.enqueue("a", 1)
        backend = await queue.client.backend()
        await backend.claim(Claim("me", ("jobs",), 1, 30_000_000))
        status = await store.queue().status("a")
        assert status is not None
        assert status.state == "processing"

    async def test_a_worker_that_was_given_up_on_changes_nothing(self, store: Store) -> None:
        """002-53, P4, P7: a zombie's outcome is refused, whichever it is."""
        clock = ManualClock()
        queue = store.queue(clock=clock)
        await queue.enqueue("a", 1)
        backend = await queue.client.backend()
        [job] = (await backend.claim(Claim("zombie", ("jobs",), 1, 1_000_000), clock.stamp())).jobs
        clock.advance("1m")
        assert [reaped.id for reaped in await backend.reap(Reap(), clock.stamp())] == [job.id]

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 1
        for state in (JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE, JobState.CANCELLED):
            assert await backend.finish([Settlement(job.id, job.epoch, "zombie", state)], clock.stamp()) == [None]
        assert await queue.result("a") == 1


class TestErrors:
    """002-59: typed, with a code for programs and a form for wires."""

    @pytest.mark.parametrize(
        ("error", "code", "also"),
        [
            (WaitTimeout, "wait_timeout", TimeoutError),
            (RetriesExhausted, "retries_exhausted", JobFailed),
            (JobFailed, "job_failed", HeadraceError),
            (JobNotFound, "job_not_found", LookupError),
            (JobCancelled, "job_cancelled", HeadraceError),
            (JobExpired, "job_expired", JobCancelled),
            (ResultExpired, "result_expired", HeadraceError),
            (Unavailable, "unavailable", HeadraceError),
        ],
    )
    def test_codes(self, error: type[HeadraceError], code: str, also: type[Exception]) -> None:
        assert issubclass(error, HeadraceError)
        assert issubclass(error, also)
        assert error().code == code
        assert error("what happened").to_dict()["message"] == "what happened"
        assert str(error())

    async def test_exhausted_retries_tell_the_last_error(self, store: Store) -> None:
        """002-68: what went wrong, how often, and a form that JSON can carry."""
        queue = store.queue(retry=immediate(2))

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise OSError(f"disk {job.attempt} on fire")

        async with serving(queue):
            with pytest.raises(RetriesExhausted) as caught:
                await within(queue.enqueue_and_wait("a", {"disk": 1}))
        told = json.loads(json.dumps(caught.value.to_dict()))
        assert told["payload"] == {"disk": 1}
        assert (told["code"], told["attempts"], told["reason"]) == ("retries_exhausted", 2, "retries exhausted")
        assert (told["error"]["type"], told["error"]["message"]) == ("OSError", "disk 1 on fire")
        assert "on fire" in told["error"]["traceback"]
        assert told["job_id"]

    async def test_an_error_that_is_not_worth_retrying_is_a_failure_without_exhaustion(self, store: Store) -> None:
        """003-9: terminal and transient are told apart."""
        queue = store.queue(retry=exponential(5, give_up_on=(KeyError,)))

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise KeyError("gone")

        async with serving(queue):
            with pytest.raises(JobFailed) as caught:
                await within(queue.enqueue_and_wait("a", 1))
        assert not isinstance(caught.value, RetriesExhausted)
        assert (caught.value.attempts, caught.value.reason) == (1, "not retryable")

    async def test_an_expired_job_is_told_as_such(self, store: Store) -> None:
        clock = ManualClock()
        app = store.app(clock=clock)

        @app.task
        async def never_run() -> None:
            raise AssertionError("it had expired")

        handle = await never_run.options(expires="1m").enqueue()
        clock.advance("2m")
        await app.drain()
        with pytest.raises(JobExpired):
            await within(handle.result())

    def test_a_wait_ends_in_time_while_the_store_is_away(self) -> None:
        """5.3-8: a timeout is a timeout, whatever keeps the answer away."""

        class Away(Tapped):
            away = False

            async def fetch(self, names: Any, want: Any = frozenset(), at: Any = None) -> Any:
                if Away.away:
                    raise Unavailable("gone fishing")
                return await self.inner.fetch(names, want, at)

        async def main(world: World) -> float:
            app = world.app()

            @app.task
            async def one() -> int:
                return 1

            handle = await one.enqueue()
            Away.away = True
            with pytest.raises((WaitTimeout, Unavailable)):
                async with asyncio.timeout(3_600):
                    await handle.result("5s")
            Away.away = False
            return world.now()

        assert simulate(main, Away) <= 6

    def test_a_wait_survives_a_store_that_comes_back(self) -> None:
        """5.3-8: the store may be away for a while in the middle of a wait."""

        class Away(Tapped):
            until = 0.0

            async def fetch(self, names: Any, want: Any = frozenset(), at: Any = None) -> Any:
                if asyncio.get_running_loop().time() < 20:
                    raise Unavailable("gone fishing")
                return await self.inner.fetch(names, want, at)

        async def main(world: World) -> Any:
            queue = world.queue()

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            async with queue:
                return await queue.enqueue_and_wait("a", 1, timeout="1m")

        assert simulate(main, Away) == 1
