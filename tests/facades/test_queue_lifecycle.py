"""The reliable queue: starting, stopping, and what a worker is called."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import EventKind, Job, Queue
from headrace.errors import ConfigError
from headrace.seam.records import Claim, JobKey
from tests.facades.harness import Calls, Events, Gate, Store, World, script, serving, simulate, within


class TestStartAndStop:
    """002-17, 002-44."""

    async def test_are_idempotent(self, store: Store) -> None:
        queue, started, stopped = store.queue(), Calls(), Calls()
        queue.on("started", started)
        queue.on("stopped", stopped)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        await queue.stop()
        await queue.start()
        await queue.start()
        assert await queue.enqueue_and_wait("a", 1) == 1
        await within(queue.stop())
        await queue.stop()
        assert (len(started.seen), len(stopped.seen)) == (1, 1)

    async def test_may_be_repeated(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        for n in range(3):
            async with serving(queue):
                assert await within(queue.enqueue_and_wait(f"job-{n}", n)) == n

    async def test_starting_twice_at_once_starts_one_worker(self, store: Store) -> None:
        queue, started = store.queue(), Calls()
        queue.on("started", started)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        await within(asyncio.gather(queue.start(), queue.start(), queue.start()))
        assert await queue.enqueue_and_wait("a", 1) == 1
        await within(queue.stop())
        assert len(started.seen) == 1

    async def test_stop_waits_for_what_runs(self, store: Store) -> None:
        """Within the grace, a running job is finished and its result stored."""
        queue, gate = store.queue(grace="5s"), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "finished"

        await queue.start()
        await queue.enqueue("a", 1)
        await queue.enqueue("b", 1)
        await gate.reached()
        stopping = asyncio.ensure_future(queue.stop())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not stopping.done()
        gate.open()
        await within(stopping)
        assert await queue.result("a") == "finished"
        status = await queue.status("b")
        assert status is not None
        assert status.state == "queued"

    async def test_two_stops_at_once_both_wait(self, memory: Store) -> None:
        """The second stop does not pull the store away from under the first."""
        queue, gate = Queue[int, str]("jobs", "memory://", grace="5s"), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> str:
            await gate.pass_through()
            return "finished"

        await queue.start()
        await queue.enqueue("a", 1)
        await gate.reached()
        stops = [asyncio.ensure_future(queue.stop()) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(stop.done() for stop in stops)
        gate.open()
        await within(asyncio.gather(*stops))
        assert await queue.result("a") == "finished"
        await queue.client.close()

    async def test_past_the_grace_jobs_go_back_with_their_attempts(self, store: Store) -> None:
        """5.3-16, P3: in the queue at once, attempts unchanged, not lost and not failed."""
        queue, gate = store.queue(grace="30ms"), Gate()
        attempts: list[int] = []

        @queue.execute
        async def gated(job: Job[int]) -> str:
            attempts.append(job.attempt + job.lost)
            await gate.pass_through()
            return "second time"

        async with serving(queue):
            await queue.enqueue("a", 1)
            await gate.reached()
        status = await queue.status("a")
        assert status is not None
        assert (status.state, status.attempts) == ("queued", 0)
        gate.open()
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == "second time"
        assert attempts == [0, 0]

    async def test_what_was_given_back_keeps_its_place(self, store: Store) -> None:
        """002-47: first in, first out, over a stop too."""
        queue, gate = store.queue(grace=0), Gate()
        order: list[str | None] = []

        @queue.execute
        async def gated(job: Job[int]) -> None:
            order.append(job.key)
            await gate.pass_through()

        for name in "abc":
            await queue.enqueue(name, 1)
        async with serving(queue):
            await gate.reached()
        gate.open()
        async with serving(queue):
            await queue.enqueue_and_wait("d", 1)
        assert order == ["a", "a", "b", "c", "d"]

    async def test_stop_takes_the_worker_off_the_list(self, store: Store) -> None:
        """002-23: at once, without waiting for its entry to expire."""
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        assert (await queue.client.stats()).workers == []

    async def test_nothing_is_left_running(self, memory: Store) -> None:
        """002-55: no task and no thread outlives a stop."""
        queue = Queue[int, int]("jobs", "memory://")

        @queue.execute
        def in_a_thread(job: Job[int]) -> int:
            return job.payload

        before, others = len(asyncio.all_tasks()), set(threading.enumerate())
        async with serving(queue):
            await queue.enqueue_and_wait("a", 1)
        assert len(asyncio.all_tasks()) == before
        for thread in set(threading.enumerate()) - others:
            if thread.name.startswith("headrace"):
                thread.join(60)
                assert not thread.is_alive(), thread.name

    async def test_owns_the_client_it_made_and_no_other(self, memory: Store) -> None:
        """A client that was handed in stays open for its other users."""
        client = memory.client()
        first, second = Queue[int, int]("first", client), Queue[int, int]("second", client)

        @second.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(second):
            async with serving(first):
                pass
            assert await within(second.enqueue_and_wait("a", 1)) == 1

    async def test_a_handler_that_comes_later(self, memory: Store) -> None:
        """Starting again after ``execute`` begins the work."""
        queue = memory.queue()
        await queue.start()
        await queue.enqueue("a", 1)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 1


class TestWork:
    """A queue works by itself, without a block around it."""

    async def test_a_burst_runs_what_is_due(self, store: Store) -> None:
        queue, ran = store.queue(), []

        @queue.execute
        async def note(job: Job[int]) -> None:
            ran.append(job.payload)

        for n in range(3):
            await queue.enqueue(f"job-{n}", n)
        await within(queue.work(burst=True))
        assert ran == [0, 1, 2]

    async def test_until_it_is_stopped(self, store: Store) -> None:
        queue, gate = store.queue(), Gate()

        @queue.execute
        async def gated(job: Job[int]) -> int:
            await gate.pass_through()
            return 7

        work = asyncio.ensure_future(queue.work())
        await queue.enqueue("a", 1)
        await gate.reached()
        with pytest.raises(ConfigError, match="already runs"):
            await queue.work()
        gate.open()
        await within(queue.stop())
        await within(work)
        assert await queue.result("a") == 7

    async def test_needs_a_handler_and_a_thread_of_its_own(self, memory: Store) -> None:
        queue = memory.queue()
        with pytest.raises(ConfigError, match="no handler"):
            await queue.work()
        with pytest.raises(ConfigError, match=r"await queue\.work\(\)"):
            queue.run()
        with pytest.raises(ConfigError, match=r"await app\.work\(\)"):
            memory.app().run()

    def test_a_signal_stops_it(self, tmp_path: Path) -> None:
        said = script(
            f"""
            import os, signal
            from headrace import Job, Queue
            queue = Queue[int, int]("jobs", "sqlite:///{tmp_path}/jobs.db")
            @queue.execute
            async def work(job: Job[int]) -> int:
                os.kill(os.getpid(), signal.SIGTERM)
                print("ran")
                return 1
            import asyncio
            async def enqueue():
                await queue.enqueue("a", 1)
            asyncio.run(enqueue())
            queue.run()
            print(asyncio.run(queue.result("a")))
            """
        )
        assert said == ["ran", "1"]


class TestWorkers:
    @pytest.mark.parametrize(
        ("strategy", "name"),
        [
            ("hostname", socket.gethostname()),
            ("pod", "pod-7"),
            ("host-pid", f"{socket.gethostname()}-{os.getpid()}"),
            ("my own name", "my own name"),
        ],
        ids=["hostname", "pod", "host-pid", "own"],
    )
    async def test_names(self, memory: Store, monkeypatch: Any, strategy: str, name: str) -> None:
        """002-46."""
        monkeypatch.setenv("HOSTNAME", "pod-7")
        assert await self._name(memory, strategy) == name

    async def test_random_names(self, memory: Store) -> None:
        """002-35, 002-46: the default, 128 bits of it, new at every start."""
        names = {await self._name(memory, "random") for _ in range(3)}
        assert len(names) == 3
        assert all(len(bytes.fromhex(name)) == 16 for name in names)

    async def _name(self, memory: Store, strategy: str) -> str:
        queue, started = memory.queue(worker=strategy), Calls()
        queue.on("started", started)

        @queue.execute
        async def echo(job: Job[int]) -> int:
            return job.payload

        async with serving(queue):
            [(name,)] = await started.until()
        return str(name)

    def test_are_listed_with_what_they_do(self) -> None:
        """002-23, 002-48: who works on what, and how many of its slots are taken."""

        async def main(world: World) -> Any:
            queue = world.queue(worker="worker-one", concurrency=3)

            @queue.execute
            async def slow(job: Job[int]) -> None:
                await asyncio.sleep(30)

            async with queue:
                await queue.enqueue("a", 1)
                await asyncio.sleep(20)
                return (await queue.client.stats()).workers

        [worker] = simulate(main)
        assert (worker.worker, worker.queues, worker.slots, worker.busy) == ("worker-one", ("jobs",), 3, 1)

    def test_are_unlisted_when_they_vanish(self) -> None:
        """002-23, P2: a live worker stays listed, a dead one does not."""

        async def main(world: World) -> tuple[int, int]:
            queue = world.queue()

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            await queue.start()
            await asyncio.sleep(600)
            alive = len((await queue.client.stats()).workers)
            work = queue._work
            assert work is not None
            work.cancel()
            await asyncio.wait([work])
            await asyncio.sleep(600)
            return alive, len((await world.memory.stats()).workers)

        assert simulate(main) == (1, 0)


class TestStalls:
    """002-52 … 002-55: what a vanished worker held is taken back after about one lease."""

    def test_recovery_takes_about_one_lease(self) -> None:
        """002-54: no sooner, and not much later."""

        async def main(world: World) -> float:
            queue = world.queue(lease="30s")

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            await queue.enqueue("a", 1)
            await world.memory.claim(Claim("ghost", ("jobs",), 1, 30_000_000))
            async with queue:
                await queue.enqueue_and_wait("a", 1, timeout="5m")
                return world.now()

        assert 30 <= simulate(main) <= 45

    def test_a_long_job_is_run_once(self) -> None:
        """5.3-3, P5: a job a hundred times longer than its lease is kept by heartbeats."""

        async def main(world: World) -> list[int]:
            first, second = world.queue(lease="1s"), world.queue(lease="1s")
            runs: list[int] = []
            for queue in (first, second):

                @queue.execute
                async def slow(job: Job[int]) -> int:
                    runs.append(job.lost)
                    await asyncio.sleep(100)
                    return job.payload

            async with first, second:
                await first.enqueue_and_wait("a", 1, timeout="5m")
            return runs

        assert simulate(main) == [0]

    def test_a_crashing_job_does_not_loop_for_ever(self) -> None:
        """P6: lost once too often, in a row, it is a dead letter."""

        async def main(world: World) -> Any:
            queue = world.queue(lease="1s")

            @queue.execute
            async def echo(job: Job[int]) -> int:
                return job.payload

            await queue.enqueue("a", 1)
            reaper, events = world.queue("other", lease="1s"), Events()
            reaper.client.observers.add(events)

            @reaper.execute
            async def nothing(job: Job[int]) -> None:
                pass

            async with reaper:
                for _ in range(10):
                    await world.memory.claim(Claim("ghost", ("jobs",), 1, 1_000_000))
                    await asyncio.sleep(20)
            return await queue.status("a"), await queue.client.why(JobKey("jobs", "a")), events.of(EventKind.FAILED)

        status, why, told = simulate(main)
        assert (status.state, status.error.reason) == ("failed", "lost")
        sentence = "lost: its worker died while running it, 3 times in a row"
        assert str(status.error).endswith(f" failed, {sentence}")
        assert (why.sentence, [event.detail for event in told]) == (f"it has ended: failed, {sentence}", [sentence])


class TestDefinition:
    def test_one_handler(self, memory: Store) -> None:
        """002-43: a second one is a mistake."""
        queue = memory.queue()
        queue.execute(print)
        with pytest.raises(ConfigError, match="handler already"):
            queue.execute(print)

    @pytest.mark.parametrize("handler", [None, 5, "handler", {}])
    def test_a_handler_is_a_function(self, memory: Store, handler: Any) -> None:
        with pytest.raises(ConfigError, match="function"):
            memory.queue().execute(handler)

    def test_defaults(self) -> None:
        """002-35: one at a time, three attempts, half a minute's lease, an hour's results, ten seconds' grace."""
        queue = Queue[Any, Any]("jobs", "memory://")
        worker = queue.settings.worker
        assert (worker.concurrency, worker.lease, worker.grace, worker.name) == (1, 30, 10, "random")
        assert (queue._retry.max_attempts, queue._result_ttl) == (3, 3_600_000_000)
