"""Schedules over long times: a million slots, and what comes after six hours without anybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.core.config import PlannerSettings
from headrace.core.events import Observers
from headrace.errors import Unavailable
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Misfire, Template, look_at
from headrace.schedules.planner import Planner
from headrace.seam.records import Claim, Inserted, InsertStatus, Row, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import Overlap, Save, Schedule, ScheduleSelector, TickOutcome
from headrace.testing.sim import History, Node, Plan, SimClock, check, run
from headrace.testing.sim.history import Event, Kind
from headrace.testing.sim.world import World
from headrace.types import JobState

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def make_schedule(world: World, name: str, interval: int, ahead: int, **options: Any) -> Schedule:
    """One whose slots are counted from now."""
    now = world.clock.now()
    definition = Definition(rule=EveryRule(interval, now), template=Template("t", {}), **options)
    uid = world.rng(name).randbytes(16)
    made = Schedule(name=name, uid=uid, queue="q", definition=definition.pack(), slot=definition.first(now))
    when = look_at(made, definition, made.slot, ahead)
    return Schedule(
        name=name, uid=uid, queue="q", definition=made.definition, slot=made.slot, look_at=when, bucket=uid[0]
    )


# -- a million slots


class Accepted(MemoryBackend):
    """Counts the jobs that it is given, and keeps none: as if each were done at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[bytes, bytearray] = {}
        self.anchor = 0
        self.farthest = 0
        self.stray = 0

    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        assert row.headers is not None
        assert row.run_at is not None
        uid, _, slot = row.headers[row.headers.rindex(b"\xd9") + 2 :].partition(b":")
        number, beside = divmod(int(slot) - self.anchor, SECOND)
        self.stray += beside != 0
        self.farthest = max(self.farthest, abs(row.run_at - int(slot)))
        self.seen[uid][number] += 1
        return Inserted(InsertStatus.NEW, row.id)


class Forgetful(History):
    """Keeps nothing: a million slots are too many to remember."""

    def invoke(self, node: str, op: str, args: Any) -> int:
        return 0

    def _reply(self, call: int, kind: Kind, data: Any) -> None:
        pass

    def _add(self, node: str, kind: Kind, op: str, call: int, data: Any) -> Event:
        return Event(0, 0, node, kind, op, call, None)


AHEAD = PlannerSettings(every="30s", ahead="2m", batch=100)


class Planners:
    """Real planners on machines of their own, whose clocks are wrong; each dies after a while, and another comes."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._rng = world.rng("planners")
        self._born = 0
        self.nodes = [self._start() for _ in range(count)]

    async def haunt(self, seconds: float) -> None:
        """Kill one after the other."""
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end:
            await asyncio.sleep(self._rng.uniform(20, 200))
            place = self._rng.randrange(len(self.nodes))
            self.nodes[place].kill()
            self.nodes[place] = self._start()

    def _start(self) -> Node:
        self._born += 1
        node = self._world.node(f"planner {self._born}")
        node.skew = self._rng.randint(-HOUR, HOUR)
        clock = SimClock(self._world.loop, node=node)
        ticks = self._world.backend(node).ticks
        assert ticks is not None
        rng = self._world.rng(node.name)
        node.start(self._plan(Planner(ticks, clock, rng, Observers(), AHEAD)))
        return node

    async def _plan(self, planner: Planner) -> None:
        while True:
            try:
                await planner.plan_due()
            except Unavailable:
                pass
            await asyncio.sleep(self._rng.uniform(20, 60))


@pytest.mark.parametrize("seed", range(4))
def test_a_million_slots_are_one_job_each_whoever_dies_meanwhile(seed: int) -> None:
    """A quarter of them with each seed."""
    schedules, slots = 25, 10_000

    async def main() -> Accepted:
        store = Accepted()
        world = World(store, Plan(drop=0.02, mute=0.02, double=0.02, late=0.02, slow=0.05), seed)
        world.history = Forgetful(world.clock.now)
        store.anchor = world.clock.now()
        for n in range(schedules):
            one = make_schedule(
                world, f"s{n}", SECOND, 2 * MINUTE, jitter=0.1 * (n % 6), misfire=Misfire.ALL, max_age=HOUR,
                end=store.anchor + slots * SECOND,
            )  # fmt: skip
            store.seen[one.uid.hex().encode()] = bytearray(slots + 1)
            await store.ticks.save([Save(one, 0)], store.anchor)
        planners = Planners(world, 4)
        for _ in range(slots // 500 + 1):
            await planners.haunt(500)
            await store.sweep(SweepClause(target=SweepTarget.TICKS, max_count=20_000, limit=100_000), world.clock.now())
        left = await store.ticks.find(ScheduleSelector(), limit=schedules)
        assert [one.slot for one in left] == [None] * schedules
        assert [one.runs for one in left] == [slots] * schedules
        world.history.close()
        return store

    store = run(main(), seed=seed)
    assert sum(map(sum, store.seen.values())) == 250_000
    assert all(numbers == b"\0" + b"\1" * slots for numbers in store.seen.values())
    assert store.stray == 0
    assert 0.4 * SECOND < store.farthest <= 0.5 * SECOND


# -- six hours without anybody

EVERY_MINUTE = PlannerSettings(every="10s", ahead="60s")


class Outage:
    """A schedule of every minute that is planned for ten minutes, left alone for six hours, and planned again. Jobs are
    done before the next one comes."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.anchor = 0
        self.back = 0
        self.verdict, self.outcomes = run(self._play(), seed=str(options))

    def of(self, outcome: TickOutcome) -> list[int]:
        """The minutes, counted from the first, whose slots ended so."""
        return [minute for minute, (what, _) in sorted(self.outcomes.items()) if what is outcome]

    async def _play(self) -> tuple[Any, dict[int, tuple[TickOutcome, int]]]:
        world = World(MemoryBackend(), Plan(), 1)
        self.anchor = world.clock.now()
        keeper = world.backend(world.node("keeper")).ticks
        assert keeper is not None
        made = make_schedule(world, "s", MINUTE, MINUTE, **self.options)
        await keeper.save([Save(made, 0)])
        doing = asyncio.get_running_loop().create_task(self._do(world))
        await self._plan(world, "planner 1", 10 * 60 + 30)
        await asyncio.sleep(6 * 3600)
        self.back = world.clock.now() - self.anchor
        await self._plan(world, "planner 2", 5 * 60 + 2)
        doing.cancel()
        await world.look()
        assert world.store.ticks is not None
        ticks = await world.store.ticks.history(made.uid, limit=1_000)
        world.history.close()
        return check(world.history), {
            (tick.slot - self.anchor) // MINUTE: (tick.outcome, tick.count) for tick in ticks
        }  # fmt: skip

    async def _plan(self, world: World, name: str, seconds: float) -> None:
        node = world.node(name)
        ticks = world.backend(node).ticks
        assert ticks is not None
        clock = SimClock(world.loop, node=node)
        node.start(Planner(ticks, clock, world.rng(name), Observers(), EVERY_MINUTE).run())
        await asyncio.sleep(seconds)
        node.kill()

    async def _do(self, world: World) -> None:
        backend = world.backend(world.node("worker"))
        while True:
            await asyncio.sleep(20)
            claimed = await backend.claim(Claim("w", ("q",), 100, MINUTE))
            done = [Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in claimed.jobs]
            if done:
                await backend.finish(done)


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("misfire", list(Misfire))
def test_after_six_hours_slots_go_by_their_policies(misfire: Misfire, overlap: Overlap) -> None:
    story = Outage(misfire=misfire, overlap=overlap, max_age=HOUR)
    assert story.verdict.ok, story.verdict.story
    minutes = [minute + more for minute, (_, count) in sorted(story.outcomes.items()) for more in range(count)]
    assert minutes == list(range(1, minutes[-1] + 1))
    planned = 11 if overlap is Overlap.ALLOW else 10
    [(first, (_, missed))] = [one for one in story.outcomes.items() if one[1][0] is TickOutcome.MISSED]
    assert first == planned + 1
    again = first + missed
    fired, skipped = (story.of(outcome) for outcome in (TickOutcome.FIRED, TickOutcome.SKIPPED))
    assert fired[:planned] == list(range(1, planned + 1))
    back = story.back // MINUTE
    assert back == 370
    assert again == {Misfire.ONCE: back - 1, Misfire.SKIP: back, Misfire.ALL: back - 59}[misfire]
    caught_up = [minute for minute in range(again, minutes[-1] + 1) if minute <= back]
    if overlap is Overlap.SKIP:
        assert skipped == caught_up[1:]
    else:
        assert skipped == []
        assert set(caught_up) <= set(fired)
