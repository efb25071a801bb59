"""What every machine has: two stores, a world, a look at everything after each step, and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, JobKey, Record, Stats
from headrace.testing.machine import draws, laws, pools
from headrace.testing.machine.twins import Twins, tidy_stats
from headrace.testing.machine.world import World
from headrace.types import SECTIONS

EVERYTHING = frozenset((*SECTIONS, "result", "error"))
_KEYS = [JobKey(queue, key) for queue in pools.QUEUES for key in pools.KEYS]


class MachineBase(RuleBasedStateMachine):
    """One sequence of operations on one fresh store and one fresh model."""

    connect: ClassVar[Callable[[Path], Backend]]
    durable: ClassVar[bool]
    root: ClassVar[Path | None]
    without: ClassVar[frozenset[str]]
    """What the store cannot do, or is spared: ``store_depth``, although it has policies; ``strict_order``;
    ``policies``."""
    seen: ClassVar[Counter[str]]
    """How often each rule ran and each outcome came up, over all sequences of this class."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = "strict_order" not in self.without
        self.twins = Twins(type(self).connect, self.root, strict=self.strict)
        self.ruled = self.twins.store.policies is not None and "policies" not in self.without
        self.world = World(self.twins.store.limits)
        self.requeued = False
        """Whether the present step may bring ended jobs back."""
        self._written = False

    def teardown(self) -> None:
        self.twins.close()

    @property
    def store(self) -> Backend:
        """The store under test."""
        return self.twins.store

    @property
    def now(self) -> int:
        """The instant of the next operation."""
        return self.world.now

    def note(self, *outcomes: str) -> None:
        """These came up."""
        self.seen.update(outcomes)

    def begin_rule(self, name: str, after: int = 0) -> None:
        """A rule begins, this many ticks after the last one."""
        self.note(f"rule {name}")
        self.wait(after)

    def wait(self, ticks: int) -> None:
        """Time passes."""
        if ticks:
            self.world.now += ticks * self.world.tick
            self.look()

    def look(self) -> None:
        """Everything visible in the two stores is equal, and lawful after what was seen before."""
        now, world = self.now, self.world
        names: list[JobId | JobKey] = [*world.ids, *_KEYS]

        async def everything(backend: Backend) -> tuple[list[Record | None], Stats]:
            return await backend.fetch(names, EVERYTHING, now), await backend.stats(now)

        records, stats = self.twins.ask(everything, lambda seen: (seen[0], tidy_stats(seen[1])))
        books = {record.id: record for record in records[: len(world.ids)] if record is not None}
        laws.check_step(world.books, books, now, requeued=self.requeued, passed_on=world.passed_on)
        self._written = self._written or books != world.books
        self.requeued = False
        world.books, world.stats = books, stats
        world.called = self._called()
        laws.check_records(books, stats, now, world.called)
        laws.check_groups(books, world.called, world.turns)

    def _called(self) -> set[JobId]:
        groups = self.world.groups()
        if not groups:
            return set()

        async def ask() -> set[JobId]:
            states = [await self.twins.model.policies.group(queue, group) for queue, group in groups]
            return {job_id for state in states for job_id in state.called}

        return self.twins.run(ask())

    @invariant()
    def the_stores_are_equal(self) -> None:
        self.look()

    @rule(instant=draws.instants())
    def wait_until(self, instant: int) -> None:
        self.begin_rule("wait_until")
        self.world.now = instant

    @precondition(lambda self: self._written)
    @rule(anew=draws.flags)
    def reconnect(self, anew: bool) -> None:
        self.begin_rule("reconnect")
        reopened = anew and self.durable
        self.note("reconnect: anew" if reopened else "reconnect: with a sibling")
        self.twins.swap(self.twins.connect(self.twins.place) if reopened else self.store.sibling())
        self._written = False
