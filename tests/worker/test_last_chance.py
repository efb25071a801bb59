"""Jobs on their last chance in a fleet: one worker makes room, or has a helper, and all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from msgspec import Struct

from headrace import App, Retry, Task
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, JobId, Move, Reap, Row, Selector
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
    await vanish(store, [row.id for row in rows], now, times)


async def vanish(store: Backend, ids: Sequence[JobId], now: int, times: int = 2) -> None:
    """Workers that vanish lose these jobs so often, all that are in the queue ``aside``."""
    for n in range(times):
        claimed = await store.claim(Claim("gone", ("aside",), 1_000, 1), now + n)
        assert len(claimed.jobs) == len(ids)
        await store.reap(Reap(max_lost=10), now + n + 1)
    await store.alter(Selector(ids=list(ids)), Move("default"), now + times)


class Found:
    """The worker of a helper that is no process."""

    jobs = 0

    def job_found(self) -> None:
        self.jobs += 1


class InLoop:
    """A helper that is no process: an app of its own in the same loop, up after a second."""

    useful = True

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._work: asyncio.Future[None] | None = None

    def start(self) -> None:
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(1)
        app = self._make()
        app.client.guest, app.client.helped = True, Found()
        async with app:
            await app.drain()


class OfNoUse(InLoop):
    useful = False

    def start(self) -> None:
        raise AssertionError("called although it is of no use")


class Fleet:
    """Workers in virtual time on one store, which has enough for all of them to do. Every tenth job is a long one."""

    def __init__(self, world: World, workers: int, slots: int, jobs: int, helpers: type[InLoop] | None = None) -> None:
        self.seen = Seen()
        self._world = world
        self._left = jobs
        self._most = workers * slots
        self._running: list[int] = []
        self._workers = [self._make(slots) for _ in range(workers)]
        if helpers is not None:
            for app, _ in self._workers:
                app.client.helper = helpers(lambda: self._make(1)[0])

    def _make(self, slots: int) -> tuple[App, Task[[float, bool], None]]:
        app = self._world.app(worker={"concurrency": slots, "prefetch": 0, "lease": "30s"})
        number = len(self._running)
        self._running.append(0)

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


def run_fleet(
    workers: int, slots: int, jobs: int, suspects: int = 1, helpers: type[InLoop] | None = None, **given: Any
) -> Seen:
    return simulate(lambda world: Fleet(world, workers, slots, jobs, helpers).run(suspects, **given))


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


@pytest.mark.parametrize("suspects", [1, 40])
def test_with_helpers_no_slot_is_idle(suspects: int) -> None:
    seen = run_fleet(6, 10, 1_500, suspects, InLoop)
    assert (seen.makers, seen.beside) == (0, [0] * suspects)
    assert seen.least() >= 60
    assert seen.served[0] < BEGIN + SHORT + 1 + SHORT + 0.2
    assert seen.served[-1] - seen.served[0] < suspects * SHORT + 1


def test_with_helpers_those_that_last_do_not_wait_for_one_another() -> None:
    seen = run_fleet(4, 2, 400, 4, InLoop, suspect_takes=600)
    assert (seen.makers, seen.beside) == (0, [0] * 4)
    assert seen.served[-1] - seen.served[0] < 600


def test_an_idle_worker_leaves_it_to_its_helper() -> None:
    seen = run_fleet(4, 2, 1, 1, InLoop, endless=(0,))
    assert (seen.makers, seen.beside) == (0, [0])


def test_a_worker_whose_helper_is_of_no_use_makes_room() -> None:
    seen = run_fleet(6, 10, 1_000, 1, OfNoUse)
    assert (seen.makers, seen.beside) == (1, [0])
    assert seen.least() >= 50


class Awaited(InLoop):
    """A helper that does not come up."""

    def start(self) -> None:
        pass


def test_while_one_waits_for_its_helper_others_are_not_late() -> None:
    """What is delayed, and what is to run again, starts when it is due, not at the next poll."""

    async def run(world: World) -> list[float]:
        app, starts = world.app(worker={"concurrency": 2}), list[float]()
        app.client.helper = Awaited(world.app)

        @app.task(name="work")
        async def work() -> Retry | None:
            starts.append(world.now())
            return Retry("1s") if len(starts) % 2 else None

        async with app:
            row = app.client.packer.pack(work.options(queue="aside").job())
            await lose(world.memory, [row], world.clock.now())
            working = asyncio.ensure_future(app.work())
            await asyncio.sleep(1)
            late = []
            for _ in range(20):
                began = world.now()
                await (await work.options(delay="2s").enqueue()).result()
                late += [starts[-2] - began - 2, starts[-1] - starts[-2] - 1]
                await asyncio.sleep(1.7)
            app.stop()
            await working
        return late

    late = simulate(run)
    assert len(late) == 40
    assert -0.001 < min(late) <= max(late) < 0.1


# -- the worker in a helper


def help_out(lost: Sequence[int], queues: Sequence[str] = ("default",)) -> tuple[list[int], int, float]:
    """Which jobs a helper has run, of those that were lost so often, how many it found to be on their last chance,
    and when it ended."""

    async def run(world: World) -> tuple[list[int], int, float]:
        app, ran, found = world.app(worker={"concurrency": 1}), list[int](), Found()

        @app.task(name="work")
        async def work(number: int) -> None:
            ran.append(number)

        async with app:
            for number, times in enumerate(lost):
                row = app.client.packer.pack(work.options(queue="aside").job(number))
                await lose(world.memory, [row], world.clock.now(), times)
                await asyncio.sleep(0.001)
            app.client.guest, app.client.helped = True, found
            began = world.now()
            await app.drain(queues)
        return ran, found.jobs, world.now() - began

    return simulate(run)


def test_a_helper_runs_them_and_ends_with_the_first_that_is_none() -> None:
    ran, found, _ = help_out([2, 3, 2, 1, 2, 0])
    assert (ran, found) == ([0, 1, 2, 3], 3)


def test_a_helper_looks_as_often_as_there_are_queues() -> None:
    ran, found, _ = help_out([2, 1, 2, 0, 0, 0, 2], ("default", "other", "third"))
    assert (ran, found) == ([0, 1, 2, 3, 4, 5], 2)


def test_a_helper_ends_soon_when_there_is_nothing() -> None:
    assert help_out([])[:2] == ([], 0)
    assert 0.5 < help_out([2])[2] < 5


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
