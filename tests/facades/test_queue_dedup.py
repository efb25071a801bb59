"""The reliable queue: one id, one job. Duplicates are answers, never errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Completed, Duplicate, Job, Queued, content_id, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import JobNotFound
from headrace.seam.records import SweepClause, SweepTarget
from tests.facades.harness import Gate, Store, fail_once, serving, within


class TestEnqueueAnswers:
    async def test_queued_then_duplicate(self, store: Store) -> None:
        """002-37, 002-38: the second enqueue is told what state the first one is in."""
        queue = store.queue()
        assert await queue.enqueue("a", 1) == Queued()
        answer = await queue.enqueue("a", 2)
        assert answer == Duplicate("queued", 0)
        assert (answer.status, await store.count()) == ("duplicate", 1)

    async def test_processing(self, store: Store) -> None:
        """002-37: a running job answers as a duplicate that is processing."""
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> None:
            await gate.pass_through()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
            assert await queue.enqueue("a", 1) == Duplicate("processing", 0)
            gate.open()

    async def test_failing(self, store: Store) -> None:
        """002-37: one that waits for its next attempt is failing, and says how often it has been tried."""
        queue = store.queue(clock=ManualClock())
        await fail_once(queue)
        assert await queue.enqueue("a", 1) == Duplicate("failing", 1)

    async def test_completed_brings_the_result(self, store: Store) -> None:
        """002-37: a finished id answers with its cached result."""
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", [1, {"two": 3}])
            answer = await queue.enqueue("a", "something else")
        assert answer == Completed([1, {"two": 3}])
        assert answer.status == "completed"

    async def test_completed_and_swept(self, store: Store) -> None:
        """An id is taken for its result_ttl, whatever retention removes; the result is gone."""
        queue = store.queue(result_ttl="1h")

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
            backend = store.backend()
            await backend.open()
            swept = await backend.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))
            await backend.close()
            assert swept.removed == 1
            assert await queue.enqueue("a", 1) == Duplicate("completed", 0)
            with pytest.raises(JobNotFound):
                await queue.enqueue_and_wait("a", 1)
            assert await queue.status("a") is None

    @pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
    async def test_an_empty_result_is_a_result(self, store: Store, value: Any) -> None:
        """002-37, P11: having no value is not the same as not being done."""
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", value) == value
            assert await queue.enqueue("a", value) == Completed(value)

    async def test_the_first_accepted_enqueue_decides(self, store: Store) -> None:
        """002-36, 002-37, P28: payload, attempts and ttl of a duplicate are dropped."""
        queue = store.queue(retry=immediate(9))
        payloads: list[str] = []

        @queue.execute
        async def broken(job: Job[str]) -> None:
            payloads.append(job.payload)
            raise ValueError("no")

        await queue.enqueue("a", "first", max_attempts=2)
        await queue.enqueue("a", "second", max_attempts=7)
        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await within(gone.wait())
        assert payloads == ["first", "first"]

    async def test_one_winner_among_many(self, store: Store) -> None:
        """002-18, 002-57: however many ask at once, from however many clients, one is accepted."""
        queues = [store.queue() for _ in range(4)]
        answers = await asyncio.gather(*(queues[n % 4].enqueue("same", n) for n in range(40)))
        assert sorted(answer.status for answer in answers) == ["duplicate"] * 39 + ["queued"]
        assert await store.count() == 1

    async def test_ids_belong_to_their_queue(self, store: Store) -> None:
        """002-56: the same id in another queue is another job."""
        first, second = store.queue("first"), store.queue("second")
        assert await first.enqueue("a", 1) == Queued()
        assert await second.enqueue("a", 1) == Queued()


class TestFailedIds:
    async def _fail(self, store: Store, **options: Any) -> tuple[Any, list[int]]:
        queue = store.queue(retry=never(), **options)
        runs: list[int] = []

        @queue.execute
        async def broken(job: Job[int]) -> int:
            runs.append(job.payload)
            if job.payload < 0:
                raise ValueError("negative")
            return job.payload

        return queue, runs

    async def test_a_failed_id_runs_again(self, store: Store) -> None:
        """002-51, decision 18: enqueueing a failed id is accepted by default, with its new payload."""
        queue, runs = await self._fail(store)
        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await queue.enqueue("a", -1)
            await within(gone.wait())
        assert (await queue.status("a")).state == "failed"
        async with serving(queue):
            assert await queue.enqueue_and_wait("a", 5) == 5
        assert runs == [-1, 5]

    async def test_or_answers_as_a_duplicate(self, store: Store) -> None:
        """002-51, decision 18: with ``on_failed="return"`` it is a duplicate in the state failed."""
        queue, runs = await self._fail(store)
        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await queue.enqueue("a", -1)
            await within(gone.wait())
        assert await queue.enqueue("a", 5, on_failed="return") == Duplicate("failed", 1)
        assert runs == [-1]

    async def test_the_record_of_the_failure_stays_until_the_new_run_takes_the_id(self, store: Store) -> None:
        """002-51: asking changes nothing."""
        queue, _ = await self._fail(store)
        gone = asyncio.Event()
        queue.on("failed", lambda id, error: gone.set())
        async with serving(queue):
            await queue.enqueue("a", -1)
            await within(gone.wait())
        await queue.enqueue("a", 5, on_failed="return")
        assert (await queue.status("a")).state == "failed"
        await queue.enqueue("a", 5)
        assert (await queue.status("a")).state == "queued"


class TestDedupMemory:
    async def test_a_completed_id_is_free_when_its_result_expires(self, store: Store) -> None:
        """002-58: dedup lasts as long as the result does, so its memory does not grow for ever."""
        clock = ManualClock()
        queue = store.queue(clock=clock, result_ttl="1h")
        runs: list[int] = []

        @queue.execute
        async def note(job: Job[int]) -> int:
            runs.append(job.payload)
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
            clock.advance("59m")
            assert await queue.enqueue("a", 2) == Completed(1)
            clock.advance("2m")
            assert await within(queue.enqueue_and_wait("a", 3)) == 3
        assert runs == [1, 3]

    async def test_a_result_that_is_not_kept_frees_its_id_at_once(self, store: Store) -> None:
        """002-58: ``result_ttl=0`` keeps neither result nor id."""
        queue = store.queue()
        done = asyncio.Event()
        queue.on("completed", lambda id, result: done.set())

        @queue.execute
        async def nothing(job: Job[int]) -> int:
            return 1

        async with serving(queue):
            await queue.enqueue("a", 1, result_ttl=0)
            await within(done.wait())
        assert await queue.result("a", default="gone") == "gone"
        assert await queue.enqueue("a", 2) == Queued()


class TestContentId:
    """002-56: the id that a payload gives itself."""

    def test_does_not_depend_on_the_order_of_keys(self) -> None:
        assert content_id({"a": 1, "b": {"c": 2, "d": 3}}) == content_id({"b": {"d": 3, "c": 2}, "a": 1})

    def test_depends_on_everything_else(self) -> None:
        payloads: list[Any] = [None, 0, "0", [], {}, [1, 2], [2, 1], {"a": 1}, {"a": 2}, {"a": None}, "", [[]]]
        assert len({content_id(payload) for payload in payloads}) == len(payloads)

    def test_has_128_bits(self) -> None:
        assert len(bytes.fromhex(content_id("x"))) == 16

    async def test_makes_equal_payloads_duplicates(self, store: Store) -> None:
        queue = store.queue()
        one, same = {"a": 1, "b": 2}, {"b": 2, "a": 1}
        assert await queue.enqueue(content_id(one), one) == Queued()
        assert await queue.enqueue(content_id(same), same) == Duplicate("queued", 0)
