"""Whole runs from one seed: load, meddling and faults; then calm, and everything must come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.seam.protocol import Backend
from headrace.seam.records import Reap
from headrace.testing.sim.alarm import logged_errors_count
from headrace.testing.sim.cast.fleet import Fleet
from headrace.testing.sim.cast.governor import Governor
from headrace.testing.sim.cast.impostor import Impostor
from headrace.testing.sim.cast.janitor import Janitor
from headrace.testing.sim.cast.keeper import Keeper
from headrace.testing.sim.cast.nemesis import Nemesis
from headrace.testing.sim.cast.operator import Operator
from headrace.testing.sim.cast.planning import planning
from headrace.testing.sim.cast.producer import Load, Producer
from headrace.testing.sim.cast.seat import Duty, WorkerMain
from headrace.testing.sim.cast.waiter import Waiter
from headrace.testing.sim.cast.worker import scripted_worker
from headrace.testing.sim.checker import check
from headrace.testing.sim.history import History
from headrace.testing.sim.loop import run
from headrace.testing.sim.plan import Plan
from headrace.testing.sim.script import SECOND, Script
from headrace.testing.sim.verdict import Verdict
from headrace.testing.sim.world import World

_STILL = 40.0
"""Seconds of calm without any change after which what is left is stuck: longer than any delay, handler or lease."""
_LONGEST = 600.0
_AFTERMATH = 6.0
"""Seconds for which schedules go on when faults have stopped."""
KINDS = ("crash", "freeze", "partition", "blackout", "skew", "leap", "retire")
"""Everything that a nemesis can do."""
_PLAIN = ("crash", "freeze", "partition", "retire")
"""What it does to single planners."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A run in numbers."""

    workers: int = 3
    producers: int = 3
    waiters: int = 1
    trouble: float = 14.0
    """Seconds of faults."""
    duty: Duty = Duty()
    load: Load = Load()
    plan: Plan = Plan()
    kinds: tuple[str, ...] = KINDS
    """What the nemesis does; empty: nothing."""
    strikes: tuple[float, float] = (0.6, 3.0)
    meddling: tuple[float, float] = (0.2, 1.2)
    looks: float = 4.0
    """Seconds between the observer's looks at the store."""
    schedules: int = 0
    """How many are kept; 0: the store keeps none, and nobody plans."""
    planners: int = 2
    """Processes that do nothing else, where there are schedules."""
    governed: str | None = None
    """The queue that has rules; None: no queue has."""


def draw_scenario(seed: int | str) -> Scenario:
    """A scenario with some features and not others: what is left out lets what is left in go further."""
    rng = Random(f"{seed}:scenario")

    def sometimes(most: float) -> float:
        return rng.choice((0.0, rng.uniform(0, most), most))

    return Scenario(
        workers=rng.choice((1, 2, 3, 4)),
        producers=rng.choice((2, 3)),
        duty=Duty(
            slots=rng.randint(1, 5),
            want=rng.choice((None, None, frozenset({"parameters", "blob"}))),
            turns=rng.random() < 0.5,
            reap=Reap(
                limit=rng.choice((2, 100)),
                max_lost=rng.choice((1, 2)),
                spread=rng.choice((0, SECOND)),
            ),
            at_work=rng.choice((SECOND, 10 * SECOND)),
        ),
        plan=Plan(
            slow=sometimes(0.05),
            late=sometimes(0.02),
            drop=sometimes(0.04),
            mute=sometimes(0.04),
            double=sometimes(0.04),
            hint_drop=rng.choice((0.0, 0.3, 1.0)),
            hint_double=sometimes(0.2),
            hint_delay=sometimes(0.2),
        ),
        kinds=tuple(kind for kind in KINDS if rng.random() < 0.6),
    )


def draw_ticking(seed: int | str) -> Scenario:
    """A scenario with schedules, and less of everything else."""
    rng = Random(f"{seed}:ticking")
    drawn = draw_scenario(seed)
    return replace(
        drawn,
        workers=rng.choice((1, 2)),
        producers=1,
        waiters=0,
        load=Load(requests=6),
        schedules=rng.randint(3, 7),
        planners=rng.choice((1, 2, 3)),
        looks=6.0,
    )


def draw_governed(seed: int | str) -> Scenario:
    """A scenario with a queue that has rules, groups, and one tenant that asks for most of it."""
    rng = Random(f"{seed}:governed")
    drawn = draw_scenario(seed)
    tenants = ("heavy",) * rng.choice((1, 4)) + ("light", "small", "")
    return replace(
        drawn,
        workers=rng.choice((2, 3, 4)),
        producers=2,
        waiters=0,
        load=Load(requests=14, queues=("a", "a", "b"), tenants=tenants, grouped=rng.choice((0.0, 0.4)), keyed=0.1),
        governed="a",
        looks=6.0,
    )


class Cast(Struct, frozen=True, kw_only=True):
    """The players: small actors of the simulation that use the waist directly, or others in their place."""

    name: str = "scripted"
    worker: WorkerMain = scripted_worker
    producer: type[Producer] = Producer
    waiter: type[Waiter] = Waiter
    draw: Callable[[int | str], Scenario] = draw_scenario


SCRIPTED = Cast()
"""Small actors that use the waist directly: under test are the store, and the simulation itself."""


def simulate(
    seed: int | str,
    scenario: Scenario | None = None,
    *,
    store: Callable[[], Backend] = MemoryBackend,
    cast: Cast = SCRIPTED,
) -> tuple[History, Verdict]:
    """Run one seed to its end and judge it. ``store`` and ``cast`` say what is under test."""
    given = cast.draw(seed) if scenario is None else scenario
    replay = f"python -m headrace.testing.sim --cast {cast.name} {seed}"
    try:
        with logged_errors_count():
            history = run(_play(seed, replay, given, store, cast), seed=seed)
    except Exception as error:
        error.add_note(f"seed {seed}; again: {replay}")
        raise
    return history, check(history)


async def _play(seed: int | str, replay: str, scenario: Scenario, store: Callable[[], Backend], cast: Cast) -> History:
    world = World(store(), scenario.plan, seed, replay, schedules=scenario.schedules > 0)
    await world.store.open()
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(world, scenario.workers, scenario.duty, Script(seed=seed), cast.worker)
        operator = Operator(world, scenario.load.queues, scenario.meddling)
        impostor = Impostor(world, scenario.meddling)
        janitor = Janitor(world, keep=8 * SECOND)
        senders = [cast.producer(world, f"producer {n}", scenario.load).task for n in range(scenario.producers)]
        senders += [cast.waiter(world, f"waiter {n}", scenario.load, calls=4).task for n in range(scenario.waiters)]
        fleets = [fleet]
        if scenario.schedules:
            keeper = Keeper(
                world, scenario.schedules, scenario.load.queues, scenario.meddling, scenario.trouble + _AFTERMATH
            )
            senders.append(keeper.task)
            fleets.append(Fleet(world, scenario.planners, scenario.duty, Script(seed=seed), planning, "planner"))
        if scenario.governed is not None:
            senders.append(Governor(world, scenario.governed, scenario.load.tenants, scenario.meddling).task)
        background = [group.create_task(one.keep()) for one in fleets]
        background.append(group.create_task(_watch(world, scenario.looks)))
        for one, name, able in zip(fleets, ("nemesis", "nemesis of planners"), (KINDS, _PLAIN), strict=False):
            if kinds := tuple(kind for kind in scenario.kinds if kind in able):
                nemesis = Nemesis(world, one, scenario.strikes, kinds, name)
                background.append(group.create_task(nemesis.strike()))
        await asyncio.sleep(scenario.trouble)
        world.clear_up()
        await asyncio.gather(*senders, operator.task, impostor.task)
        if scenario.schedules:
            await asyncio.sleep(2 * _AFTERMATH)
        background.append(group.create_task(operator.put_right()))
        await _drained(world)
        for one in fleets:
            await one.dismiss()
        for task in (janitor.task, *background):
            task.cancel()
    await asyncio.sleep(10)
    await world.look(final=True)
    world.history.close()
    return world.history


async def _watch(world: World, period: float) -> None:
    rng = world.rng("observer")
    while True:
        await asyncio.sleep(period * rng.uniform(0.5, 1.5))
        await world.look()


async def _drained(world: World) -> None:
    """Until nothing is left to do, or nothing moves any more."""
    end = world.loop.time() + _LONGEST
    until, before = end, None
    while world.loop.time() < min(until, end):
        queues = (await world.store.stats(world.clock.now())).queues
        counts = [(q.available, q.running, q.jobs_paused, q.completed, q.cancelled, q.failed) for q in queues]
        if not any(waiting for line in counts for waiting in line[:3]):
            return
        if counts != before:
            until, before = world.loop.time() + _STILL, counts
        await asyncio.sleep(0.5)
