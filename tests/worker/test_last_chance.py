"""Jobs on their last chance in a fleet: one worker makes room, all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct

from headrace import App, Task
from headrace.protocol import Backend
from headrace.records import Claim, Move, Reap, Row, Selector
from tests.facades.harness import World, simulate
from tests.worker.conftest import working

LONG, SHORT, ENDLESS, LEASE = 12.0, 0.5, 1_000.0, 30.0
BEGIN = LONG + 1.03
"""When the suspects come."""


class Seen(Struct):
    """What a fleet did while there was enough to do."""

    busy: list[tuple[float, int]] = []
    """Slots in use, from each time on."""
    makers: int = 0
    """Workers that held back at once, at most."""
    beside: list[int] = []
    """Jobs that ran in the same worker as one on its last chance, for each of these."""
    served: list[float] = []

    def least(self) -> int:
        return min(count for _, count in self.busy)

    def idle(self, slots: int) -> float:
        """Slot-seconds that were not used."""
        pairs = zip(self.busy, self.busy[1:], strict=False)
        return sum((later - at) * (slots - count) for (at, count), (later, _) in pairs)


async def lose(store: Backend, rows: Sequence[Row], now: int, times: int = 2) -> None:
    """Jobs that vanished workers have lost so often, brought into the queue ``default``."""
    await store.insert(rows, now)
    for n in range(times):
        claimed = await store.claim(Claim("gone", ("aside",), 1_000, 1), now + n)
        assert len(claimed.jobs) == len(rows)
        await store.reap(Reap(max_lost=10), now + n + 1)
    await store.alter(Selector(ids=[row.id for row in rows]), Move("default"), now + times)


class Fleet:
    """Workers in virtual time on one store, which has enough for all of them to do. Every tenth job is a long one."""

    def __init__(self, world: World, workers: int, slots: int, jobs: int) -> None:
        self.seen = Seen()
        self._world = world
        self._left = jobs
        self._most = workers * slots
        self._running = [0] * workers
        self._workers = [self._make(number, slots) for number in range(workers)]

    def _make(self, number: int, slots: int) -> tuple[App, Task[[float, bool], None]]:
        app = self._world.app(worker={"concurrency": slots, "prefetch": 0, "lease": "30s"})

        @app.task(name="work")
        async def work(seconds: float, suspect: bool) -> None:
            self._running[number] += 1
            await asyncio.sleep(seconds)
            if suspect:
                self.seen.beside.append(self._running[number] - 1)
                self.seen.served.append(self._world.now())
            self._running[number] -= 1
            self._left -= not suspect

        return app, work

    def _look(self) -> None:
        if self._left > self._most:
            self.seen.busy.append((self._world.now(), sum(self._running)))
            held = sum(app.worker._claimer.holding_back for app, _ in self._workers if app.worker is not None)
            self.seen.makers = max(self.seen.makers, held)

    async def run(self, suspects: int, suspect_takes: float = SHORT, endless: Collection[int] = ()) -> Seen:
        """Suspects come to the head of the queue when all are at work."""
        app, work = self._workers[0]
        aside = work.options(queue="aside", priority=-1)
        async with app, asyncio.TaskGroup() as group:
            lengths = [SHORT if n % 10 else LONG for n in range(self._left)]
            for n in endless:
                lengths[n] = ENDLESS
            await app.enqueue_many([work.job(length, False) for length in lengths])
            for one, _ in self._workers:
                group.create_task(one.work())
            await asyncio.sleep(BEGIN)  # looks fall between the ends of jobs
            rows = [app.client.packer.pack(aside.job(suspect_takes, True)) for _ in range(suspects)]
            await lose(self._world.memory, rows, self._world.clock.now())
            while self._left or len(self.seen.served) < suspects:
                await asyncio.sleep(0.1)
                self._look()
            for one, _ in self._workers:
                one.stop()
        return self.seen


def run_fleet(workers: int, slots: int, jobs: int, suspects: int = 1, **given: Any) -> Seen:
    return simulate(lambda world: Fleet(world, workers, slots, jobs).run(suspects, **given))


def test_one_worker_makes_room_and_the_others_stay_full() -> None:
    seen = run_fleet(6, 10, 1_000)
    assert (seen.makers, seen.beside) == (1, [0])
    assert seen.least() >= 50


def test_one_worker_serves_many_of_them_one_after_the_other() -> None:
    seen = run_fleet(6, 10, 1_500, 40)
    assert (seen.makers, seen.beside) == (1, [0] * 40)
    assert seen.least() >= 50
    assert seen.served[-1] - seen.served[0] < 40 * SHORT + 1


def test_those_that_last_are_served_by_one_more_worker_with_each_lease() -> None:
    seen = run_fleet(4, 2, 200, 4, suspect_takes=600)
    assert seen.beside == [0] * 4
    assert seen.served[-1] - seen.served[0] < 3 * (LEASE + LONG) + 1


def test_a_worker_that_cannot_make_room_leaves_it_to_another() -> None:
    seen = run_fleet(3, 2, 300, endless=(0, 2))
    assert seen.beside == [0]
    assert seen.served[0] < BEGIN + 2 * LEASE + LONG + 1
    assert seen.makers == 1


def test_an_idle_worker_takes_it_at_once() -> None:
    seen = run_fleet(4, 2, 1, endless=(0,))
    assert seen.beside == [0]
    assert seen.served[0] < BEGIN + SHORT + 0.2


async def test_of_several_workers_one_holds_back(make_app: Callable[..., App], store: Backend) -> None:
    apps = [make_app(concurrency=4, prefetch=0, lease="60s") for _ in range(3)]
    works, beside, most, left = list[Task[[bool], None]](), list[int](), 0, 300
    served = asyncio.Event()

    def add_task(app: App) -> Task[[bool], None]:
        running = 0

        @app.task(name="work")
        async def work(suspect: bool) -> None:
            nonlocal running, most, left
            running += 1
            for _ in range(3):
                await asyncio.sleep(0.005)
                if left > 50 and not served.is_set():
                    most = max(most, sum(one.worker._claimer.holding_back for one in apps if one.worker is not None))
            if suspect:
                beside.append(running - 1)
                served.set()
            running -= 1
            left -= not suspect

        return work

    works += [add_task(app) for app in apps]
    async with apps[0] as app:
        await app.enqueue_many([works[0].job(False) for _ in range(left)])
        row = app.client.packer.pack(works[0].options(queue="aside", priority=-1).job(True))
        await lose(await app.client.backend(), [row], 10**15)
    async with working(apps[0]), working(apps[1]), working(apps[2]), asyncio.timeout(60):
        await served.wait()
    assert (beside, most) == ([0], 1)
