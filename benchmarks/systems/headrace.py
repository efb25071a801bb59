"""Headrace itself, through its public face: an app, a task, a worker."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.gate import Gate, memory
from benchmarks.payload import SMALL, pad
from benchmarks.systems.headrace_crowd import WARM_CLAIMS, claims
from benchmarks.systems.probe import Probe, Statements
from benchmarks.systems.system import WARM, Answer, System, needed

QUEUE, ASIDE = "bench", "aside"

_VERY_FAST = 1e6
"""Jobs a second."""


class Headrace(System):
    """What holds for every backend; a subclass says where the store is."""

    distributions: ClassVar[tuple[str, ...]] = ("headrace", "msgspec", "apsw")

    def url(self, place: str, name: str = "queue") -> str:
        """The store in the shared directory."""
        raise NotImplementedError

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """On a loop of its own."""
        return asyncio.run(main())

    # -- enqueue

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """``await task.enqueue(…)``, one after the other."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                enqueue, text = bench.noop.enqueue, pad(SMALL)
                for number in range(WARM):
                    await enqueue(number, text)
                gate.ready()
                start = time.perf_counter()
                for number in range(count):
                    await enqueue(number, text)
                answer = {"seconds": time.perf_counter() - start, **gate.used()}
                await bench.expect(WARM + count)
                return answer

        return self.run(main)

    def concurrent(self, gate: Gate, place: str, count: int, callers: int) -> Answer:
        """The same from many coroutines at once."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                enqueue, text = bench.noop.enqueue, pad(SMALL)

                async def caller(times: int) -> None:
                    for number in range(times):
                        await enqueue(number, text)

                await asyncio.gather(*(caller(2) for _ in range(callers)))
                gate.ready()
                start = time.perf_counter()
                await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
                answer = {"seconds": time.perf_counter() - start, **gate.used()}
                await bench.expect(2 * callers + count)
                return answer

        return self.run(main)

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """``await app.enqueue_many(…)``; ``seconds`` without, ``whole`` with the making of the jobs."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                await bench.fill(WARM)
                gate.ready()
                start = time.perf_counter()
                jobs = bench.jobs(count)
                made = time.perf_counter()
                await bench.app.enqueue_many(jobs)
                end = time.perf_counter()
                answer = {"seconds": end - made, "whole": end - start, **gate.used()}
                await bench.expect(WARM + count)
                return answer

        return self.run(main)

    def fill(self, gate: Gate, place: str, count: int, aside: int = 0, size: int = SMALL, task: str = "noop") -> Answer:
        """As many waiting jobs as asked for, and some in a queue that nobody works on."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                gate.ready()
                await bench.fill(count, size=size, task=task)
                await bench.fill(aside, queue=ASIDE)
                return {}

        return self.run(main)

    # -- work

    def work(self, gate: Gate, place: str) -> Answer:
        """A worker until told to stop; the latencies of jobs that say when they were sent."""

        async def main() -> Answer:
            await self._warm_up(place)
            async with self._bench(place) as bench:
                gate.ready()
                loop = asyncio.get_running_loop()
                gate.on_stop(lambda: loop.call_soon_threadsafe(bench.app.stop))
                await bench.app.work([QUEUE])
                return {"latencies": bench.latencies, **gate.used()}

        return self.run(main)

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which the store held ``goal`` waiting and running jobs, or fewer; the others must have
        completed."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                needed(await bench.left() > goal)
                gate.ready()
                while await bench.left() > goal:
                    await asyncio.sleep(0.001)
                at = time.monotonic_ns()
                if spoilt := await bench.spoilt():
                    raise RuntimeError(f"{spoilt} jobs failed or were cancelled")
                return {"at": at}

        return self.run(main)

    def count(self, gate: Gate, place: str) -> Answer:
        """How many jobs wait or run."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                gate.ready()
                return {"left": await bench.left()}

        return self.run(main)

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until it has run them all."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                gate.ready()
                for _ in range(count):
                    await asyncio.sleep(gap)
                    await bench.stamp.enqueue(time.monotonic_ns())
                while await bench.left():
                    await asyncio.sleep(gap)
                return {}

        return self.run(main)

    def call(self, gate: Gate, place: str, count: int, gap: float = 0.0) -> Answer:
        """``await task.call(…)``, one after the other."""

        async def main() -> Answer:
            async with self._bench(place) as bench:
                gate.ready()
                latencies = []
                for number in range(count):
                    await asyncio.sleep(gap)
                    start = time.monotonic_ns()
                    await bench.echo.call(number)
                    latencies.append(time.monotonic_ns() - start)
                return {"latencies": latencies}

        return self.run(main)

    def footprint(self, gate: Gate, place: str, slots: int) -> Answer:
        """The memory of a worker whose slots are all busy and which has prefetched as many jobs as it may."""

        async def main() -> Answer:
            async with self._bench(place, worker={"concurrency": slots}) as bench:
                prefetch = bench.app.client.settings.worker.prefetch
                gate.ready()
                async with asyncio.TaskGroup() as group:
                    group.create_task(bench.app.work([QUEUE]))
                    prefetched = await self._fill_up(bench, slots, prefetch)
                    resident = memory("VmRSS")
                    bench.release.set()
                    bench.app.stop()
                # The system adds up both figures in steps, each at its own times.
                return {"resident": resident, "peak": max(resident, memory("VmHWM")), "prefetched": prefetched}

        return self.run(main)

    async def _fill_up(self, bench: Bench, slots: int, prefetch: int) -> int:
        """Wait until the worker runs and holds what it may; how many jobs it holds that it does not run."""
        async with asyncio.timeout(60):
            while bench.held < slots:
                await asyncio.sleep(0.05)
            assert bench.app.worker is not None
            claimer = bench.app.worker._claimer
            claimer._per_second = _VERY_FAST  # it prefetches as much as it may, however slow this machine is
            claimer.wake()
            while (prefetched := await bench.running() - slots) < prefetch:
                await asyncio.sleep(0.05)
        return prefetched

    def solo(
        self, gate: Gate, place: str, count: int, aside: int = 0, *, filled: bool = True, traced: bool = False
    ) -> Answer:
        """Drain inside this process, until the store has acknowledged the last job; with everything counted."""
        statements = Statements() if traced else None

        async def main() -> Answer:
            await self._warm_up(place)
            async with self._bench(place, probe=Probe) as bench:
                if not filled:
                    await bench.fill(count)
                    await bench.fill(aside, queue=ASIDE)
                reached: list[int] = []
                if statements:
                    statements.clear()
                gc.collect()
                blocks = sys.getallocatedblocks()
                gate.ready()
                start = time.perf_counter_ns()
                await bench.drain(count, reached)
                used = gate.used()
                gc.collect()
                assert bench.probe is not None
                return {
                    "seconds": (reached[0] - start) / 1e9,
                    "blocks": sys.getallocatedblocks() - blocks,
                    "trips": dict(bench.probe.trips),
                    "claims": bench.probe.claims,
                    **used,
                    **(statements.summary() if statements else {}),
                }

        return self.run(main)

    def claims(self, gate: Gate, place: str, count: int, batch: int) -> Answer:
        """How long single claims take, one after the other."""

        async def main() -> Answer:
            async with self._bench(place, probe=Probe) as bench:
                await claims(bench.probe, QUEUE, WARM_CLAIMS, batch)
                gate.ready()
                return {"latencies": await claims(bench.probe, QUEUE, count, batch)}

        return self.run(main)

    def profiled(self, gate: Gate, place: str, count: int, *, filled: bool) -> Answer:
        """The same under Python's profiler, which sees the loop's thread and no other."""
        import cProfile

        async def main() -> Answer:
            await self._warm_up(place)
            async with self._bench(place, probe=Probe) as bench:
                if not filled:
                    await bench.fill(count)
                gate.ready()
                reached: list[int] = []
                profiler = cProfile.Profile()
                start = time.perf_counter_ns()
                profiler.enable()
                await bench.drain(count, reached)
                profiler.disable()
                profiler.create_stats()
                timings = [(*where, row[1], row[2], row[3]) for where, row in profiler.stats.items()]  # type: ignore[attr-defined]
                return {"seconds": (reached[0] - start) / 1e9, "timings": timings}

        return self.run(main)

    async def _warm_up(self, place: str) -> None:
        async with self._bench(place, name="warm", probe=Probe) as bench:
            await bench.fill(WARM)
            await bench.drain(WARM, [])

    @asynccontextmanager
    async def _bench(
        self,
        place: str,
        *,
        name: str = "queue",
        probe: type[Probe] | None = None,
        worker: dict[str, Any] | None = None,
    ) -> AsyncIterator[Bench]:
        bench = Bench(self.url(place, name), probe, worker or {})
        async with bench.app:
            yield bench


class HeadraceMemory(Headrace):
    """The worker's own work, and the memory model's: no store to wait for."""

    roles = frozenset({"enqueue", "concurrent", "bulk", "solo"})
    shared = False

    def __init__(self, name: str) -> None:
        super().__init__(name, "memory", "nothing is durable; default settings")

    def url(self, place: str, name: str = "queue") -> str:
        return "memory://"


class HeadraceSqlite(Headrace):
    """One file, several processes."""

    roles = frozenset(
        {"enqueue", "concurrent", "bulk", "fill", "work", "watch", "produce", "call", "footprint", "solo"}
    )  # fmt: skip

    def __init__(self, name: str, durability: str) -> None:
        default = " (its default)" if durability == "full" else ""
        super().__init__(name, "sqlite", f"WAL, synchronous={durability.upper()}{default}; default settings")
        self._durability = durability

    def url(self, place: str, name: str = "queue") -> str:
        return f"sqlite:///{Path(place, name)}.db?durability={self._durability}"

    def engine(self) -> dict[str, str]:
        import apsw

        return {"sqlite (apsw)": apsw.sqlite_lib_version()}


class Bench:
    """An app on one store, with the tasks that the roles need."""

    def __init__(self, url: str, probe: type[Probe] | None, worker: dict[str, Any]) -> None:
        from headrace import App, Client, Settings
        from headrace.api.connection import open_backend

        settings = Settings.load({"url": url, "worker": worker}, env={}, toml={})
        backend = open_backend(url)
        self.probe = probe(backend) if probe else None
        self.app = App(Client(self.probe or backend, settings))  # type: ignore[arg-type]
        self.latencies: list[int] = []
        self.held = 0
        self.release = asyncio.Event()
        self.noop = self.app.task(name="noop", queue=QUEUE)(_noop)
        self.echo = self.app.task(name="echo", queue=QUEUE)(_echo)
        self.stamp = self.app.task(name="stamp", queue=QUEUE)(self._stamp)
        self.hold = self.app.task(name="hold", queue=QUEUE)(self._hold)

    def jobs(self, count: int, *, size: int = SMALL, queue: str = QUEUE, task: str = "noop") -> list[Any]:
        """Jobs ready to be stored."""
        make, text = getattr(self, task).options(queue=queue).job, pad(size)
        return [make(number, text) for number in range(count)]

    async def fill(self, count: int, **which: Any) -> None:
        """Store jobs, without ever holding a million of them in memory."""
        for first in range(0, count, 10_000):
            await self.app.enqueue_many(self.jobs(min(10_000, count - first), **which))

    async def left(self) -> int:
        """What the store itself says: waiting and running jobs of the measured queue."""
        return await self._number("available", "running")

    async def running(self) -> int:
        """Jobs that workers hold."""
        return await self._number("running")

    async def spoilt(self) -> int:
        """Jobs that ended otherwise than they should."""
        return await self._number("failed", "cancelled")

    async def expect(self, count: int) -> None:
        """So many jobs wait, or what was measured was not what it is said to be."""
        if (found := await self._number("available")) != count:
            raise RuntimeError(f"{found} jobs were stored, not {count}")

    async def _number(self, *names: str) -> int:
        stats = await self.app.client.stats()
        return sum(getattr(queue, name) for queue in stats.queues if queue.queue == QUEUE for name in names)

    async def drain(self, count: int, reached: list[int]) -> None:
        """Work until the store has acknowledged so many jobs as completed; ``reached`` gets that instant."""
        assert self.probe is not None

        def note(at: int) -> None:
            reached.append(at)
            self.app.stop()

        self.probe.expect(count, note)
        await self.app.work([QUEUE])

    async def _stamp(self, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)

    async def _hold(self, n: int, pad: str) -> None:
        self.held += 1
        await self.release.wait()


async def _noop(n: int, pad: str) -> None:
    pass


async def _echo(n: int) -> int:
    return n
