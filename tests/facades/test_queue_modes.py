"""The reliable queue: fire and forget, request and response, and who may play which part."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import pytest

from headrace import Completed, Duplicate, Job, Queue, Queued, immediate, never
from headrace.errors import JobFailed, RetriesExhausted, WaitTimeout
from headrace.seam.records import Claim, JobKey, Settlement
from headrace.types import JobState
from tests.facades.harness import Gate, Store, Tapped, World, serving, simulate, within


class TestModes:
    async def test_fire_and_forget_returns_at_once(self, store: Store) -> None:
        """002-1: the answer is there before anybody has looked at the job."""
        queue = store.queue()
        assert await queue.enqueue("job-1", {"to": "a@b.c"}) == Queued()
        status = await queue.status("job-1")
        assert status is not None
        assert (status.state, status.attempts) == ("queued", 0)

    async def test_request_and_response(self, store: Store) -> None:
        """002-2: the caller gets what the handler returns."""
        queue = store.queue()

        @queue.execute
        async def square(job: Job[int]) -> int:
            return job.payload**2

        async with serving(queue):
            assert await queue.enqueue_and_wait("job-7", 7, timeout="5s") == 49

    def test_waits_thirty_seconds_unless_told(self) -> None:
        """002-3: the default timeout is 30 s, and it is kept."""
        assert inspect.signature(Queue.enqueue_and_wait).parameters["timeout"].default == "30s"

        async def main(world: World) -> float:
            queue = world.queue()
            with pytest.raises(WaitTimeout):
                await queue.enqueue_and_wait("nobody-works", 1)
            await queue.stop()
            return world.now()

        assert simulate(main) == pytest.approx(30, abs=0.01)

    async def test_producer_and_consumer_apart(self, store: Store) -> None:
        """002-4: one class serves a producer here and a consumer there."""
        producer, consumer = store.queue(), store.queue()

        @consumer.execute
        async def double(job: Job[int]) -> int:
            return 2 * job.payload

        async with serving(producer, consumer):
            assert await within(producer.enqueue_and_wait("a", 21)) == 42

    async def test_producer_only_runs_nothing(self, store: Store) -> None:
        """002-4: without a handler, starting connects and no more."""
        queue = store.queue()
        async with serving(queue):
            await queue.enqueue("a", 1)
            assert (await queue.client.stats()).workers == []
        status = await queue.status("a")
        assert status is not None
        assert status.state == "queued"

    async def test_consumer_only_finds_what_was_there(self, store: Store) -> None:
        """002-4: a consumer that comes later works off what it finds."""
        producer, consumer = store.queue(), store.queue()
        for n in range(3):
            await producer.enqueue(f"job-{n}", n)
        seen: list[int] = []
        all_seen = asyncio.Event()

        @consumer.execute
        async def note(job: Job[int]) -> None:
            seen.append(job.payload)
            if len(seen) == 3:
                all_seen.set()

        async with serving(consumer):
            await within(all_seen.wait())
        assert seen == [0, 1, 2]

    async def test_combined(self, store: Store) -> None:
        """002-4: one queue may produce and consume."""
        queue = store.queue(concurrency=2)

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            answers = await asyncio.gather(*(queue.enqueue_and_wait(f"job-{n}", n) for n in range(10)))
        assert answers == list(range(10))

    def test_at_least_once_is_said_aloud(self) -> None:
        """002-5: whoever reads the class's help learns that handlers must be idempotent."""
        assert "at least once" in (Queue.__doc__ or "")
        assert "idempotent" in (Queue.__doc__ or "")

    def test_a_job_whose_worker_vanished_is_run_again(self) -> None:
        """002-5, 002-13: at least once, and the waiter is served by the second run."""

        async def main(world: World) -> tuple[Any, int]:
            queue = world.queue()
            runs: list[int] = []

            @queue.execute
            async def answer(job: Job[int]) -> int:
                runs.append(job.lost)
                return job.payload + 1

            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(queue.enqueue_and_wait("a", 1, timeout="10m"))
                await asyncio.sleep(1)
                ghost = Claim("ghost", ("jobs",), 1, 30_000_000)
                assert len((await world.memory.claim(ghost)).jobs) == 1
                await queue.start()
                result = await waiting
            await queue.stop()
            return result, runs[0]

        assert simulate(main) == (2, 1)


class _Instant(Tapped):
    """A store so quick that the job has ended before its insert is answered."""

    async def insert(self, rows: Any, at: Any = None) -> Any:
        answers = await self.inner.insert(rows, at)
        claimed = await self.inner.claim(Claim("quick", (rows[0].queue,), 1, 1_000_000), at)
        done = [
            Settlement(job.id, job.epoch, "quick", JobState.COMPLETED, result=job.cells["parameters"], result_ttl=10**9)
            for job in claimed.jobs
        ]
        await self.inner.finish(done, at)
        for _ in range(20):
            await asyncio.sleep(0)
        return answers


class _Recording(Tapped):
    """Notes the order of what is asked of the store."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    @property
    def hints(self) -> Any:
        return self

    def listen(self, topics: Any) -> Any:
        self.asked.extend(topic.partition(":")[0] for topic in topics)
        return self.inner.listen(topics)

    async def insert(self, rows: Any, at: Any = None) -> Any:
        self.asked.append("insert")
        return await self.inner.insert(rows, at)

    async def fetch(self, names: Any, want: Any = frozenset(), at: Any = None) -> Any:
        self.asked.append("fetch")
        return await self.inner.fetch(names, want, at)


class TestRequestAndResponse:
    def test_subscribes_before_it_enqueues(self) -> None:
        """002-6: no window in which the answer could be missed."""

        async def main(world: World) -> list[str]:
            queue = world.queue()
            with pytest.raises(WaitTimeout):
                await queue.enqueue_and_wait("a", 1, timeout="1s")
            backend: Any = await queue.client.backend()
            await queue.stop()
            return list(backend.asked)

        asked = simulate(main, _Recording)
        assert asked.index("inbox") < asked.index("insert")

    def test_an_answer_that_overtakes_the_enqueue_is_not_missed(self) -> None:
        """002-6: a job that ends before its insert has been answered is told at once, not at the next poll."""

        async def main(world: World) -> tuple[Any, float]:
            queue = world.queue()
            return await queue.enqueue_and_wait("a", 5), world.now()

        answer, took = simulate(main, _Instant)
        assert answer == 5
        assert took < 0.1

    def test_is_told_and_does_not_poll(self) -> None:
        """002-7: the waiter hears of the end in the instant it happens; the result is fetched then, once."""

        async def main(world: World) -> tuple[float, int]:
            queue = world.queue()

            @queue.execute
            async def slow(job: Job[int]) -> int:
                await asyncio.sleep(1)
                return job.payload

            async with queue:
                await queue.enqueue_and_wait("a", 1)
                took = world.now()
            backend: Any = await queue.client.backend()
            return took, backend.asked.count("fetch")

        took, fetches = simulate(main, _Recording)
        assert took == pytest.approx(1, abs=0.01)
        assert fetches == 1

    async def test_a_completed_job_answers_from_the_cache(self, store: Store) -> None:
        """002-8: the second caller gets the first one's result, and the handler is not run again."""
        queue = store.queue()
        runs: list[str | None] = []

        @queue.execute
        async def count(job: Job[int]) -> int:
            runs.append(job.key)
            return len(runs)

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 0) == 1
            assert await queue.enqueue_and_wait("a", 0) == 1
            assert await queue.enqueue("a", 0) == Completed(1)
        assert runs == ["a"]

    async def test_a_duplicate_in_flight_joins(self, store: Store) -> None:
        """002-9: waiting on an id that runs already waits for that run."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[str]) -> str:
            await gate.pass_through()
            return job.payload

        async with serving(queue), asyncio.TaskGroup() as group:
            first = group.create_task(queue.enqueue_and_wait("a", "first"))
            await gate.reached()
            second = group.create_task(queue.enqueue_and_wait("a", "second"))
            assert await queue.enqueue("a", "third") == Duplicate("processing", 0)
            gate.open()
            assert await within(asyncio.gather(first, second)) == ["first", "first"]

    async def test_a_duplicate_from_elsewhere_joins(self, store: Store) -> None:
        """002-9: and so does one in another process."""
        queue, elsewhere, gate = store.queue(), store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[str]) -> str:
            await gate.pass_through()
            return job.payload

        async with serving(queue), asyncio.TaskGroup() as group:
            await queue.enqueue("a", "first")
            await gate.reached()
            second = group.create_task(elsewhere.enqueue_and_wait("a", "second"))
            third = group.create_task(elsewhere.enqueue_and_wait("a", "third"))
            await asyncio.sleep(0)
            gate.open()
            assert await within(asyncio.gather(second, third)) == ["first", "first"]

    async def test_a_failure_is_raised_with_its_cause(self, store: Store) -> None:
        """002-10: the stored error comes to the waiter."""
        queue = store.queue(retry=never())

        @queue.execute
        async def broken(job: Job[int]) -> None:
            raise KeyError("no such user")

        async with serving(queue):
            with pytest.raises(JobFailed) as caught:
                await queue.enqueue_and_wait("a", 1)
        assert caught.value.error["type"] == "KeyError"
        assert "no such user" in caught.value.error["message"]

    async def test_a_failed_duplicate_raises_at_once_when_asked_for(self, store: Store) -> None:
        """002-10, decision 18: ``on_failed="return"`` gives the failure back; nothing runs again."""
        queue = store.queue(retry=never())
        runs: list[int] = []

        @queue.execute
        async def broken(job: Job[int]) -> None:
            runs.append(1)
            raise ValueError("no")

        async with serving(queue):
            with pytest.raises(JobFailed):
                await queue.enqueue_and_wait("a", 1)
            with pytest.raises(RetriesExhausted):
                await queue.enqueue_and_wait("a", 1, on_failed="return")
            assert await queue.enqueue("a", 1, on_failed="return") == Duplicate("failed", 1)
        assert runs == [1]

    def test_a_failed_duplicate_takes_no_time(self) -> None:
        """002-10: at once means in the same instant."""

        async def main(world: World) -> float:
            queue = world.queue(retry=never())

            @queue.execute
            async def broken(job: Job[int]) -> None:
                raise ValueError("no")

            async with queue:
                with pytest.raises(JobFailed):
                    await queue.enqueue_and_wait("a", 1)
                before = world.now()
                with pytest.raises(JobFailed):
                    await queue.enqueue_and_wait("a", 1, on_failed="return")
                return world.now() - before

        assert simulate(main) < 0.01

    async def test_a_timeout_leaves_the_job_alone(self, store: Store) -> None:
        """002-11: the waiter gives up, the job goes on and its result can be had later."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "done after all"

        async with serving(queue):
            with pytest.raises(WaitTimeout) as caught:
                await queue.enqueue_and_wait("a", 1, timeout="3s")
            assert isinstance(caught.value, TimeoutError)
            assert "may still finish" in str(caught.value)
            info = await queue.client.get(JobKey("jobs", "a"))
            assert caught.value.job_id == caught.value.to_dict()["job_id"] == str(info.id)
            await gate.reached()
            gate.open()
            assert await queue.enqueue_and_wait("a", 1) == "done after all"

    async def test_waiting_without_a_limit(self, store: Store) -> None:
        """002-11: ``timeout=None`` waits as long as it takes."""
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 3, timeout=None)) == 3

    @pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
    async def test_large_results(self, store: Store, size: int) -> None:
        """002-12: a result of megabytes travels like a small one, whether it compresses or not."""
        queue = Queue[bytes, bytes]("jobs", store.client())
        blob = os.urandom(size)

        @queue.execute
        async def echo(job: Job[bytes]) -> bytes:
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("random", blob)) == blob
            assert await within(queue.enqueue_and_wait("zeros", bytes(size))) == bytes(size)

    async def test_a_retried_job_serves_its_waiter(self, store: Store) -> None:
        """002-13: a waiter does not mind that the first attempt failed."""
        queue = store.queue(retry=immediate(3))

        @queue.execute
        async def second_time_lucky(job: Job[int]) -> int:
            if job.attempt == 0:
                raise ConnectionError("not yet")
            return job.attempt

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 1
