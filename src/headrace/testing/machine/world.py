"""What a sequence has done so far: the strategies draw from it, so that most operations meet something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from headrace.seam.records import JobId, KeyUntil, Limits, Record, Row, Stats
from headrace.types import JobState

_START = 1_800_000_000_000_000


class Fence(Struct, frozen=True, order=True):
    """What a holder must name to write."""

    id: JobId
    epoch: int
    holder: str


class World:
    """The clock, the ids in use, every lease ever given out, and the store as it was after the last step."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tick = limits.time_precision
        self.now = _START
        self.ids: dict[JobId, None] = {}
        self.fences: dict[Fence, None] = {}
        self.instants: set[int] = set()
        self.books: dict[JobId, Record] = {}
        self.stats = Stats([], [], [])
        self.versions: Counter[str] = Counter()
        """Those of the policies."""
        self.turns: dict[str, int] = {}
        """How many jobs of a group may be called, by queue."""
        self.governed: set[str] = set()
        self.called: set[JobId] = set()
        """The jobs that are called in their group."""
        self.passed_on: set[str] = set()
        """Keys that running jobs may have lost to others."""

    def know(self, rows: Iterable[Row]) -> None:
        """These ids are in use from now on."""
        for row in rows:
            self.ids[row.id] = None
            if row.key is not None and row.key_until is KeyUntil.STARTED:
                self.passed_on.add(row.key)

    def in_state(self, *states: JobState) -> list[Record]:
        """The records in these states, by id."""
        return [record for _, record in sorted(self.books.items()) if record.state in states]

    def live_fences(self) -> list[Fence]:
        """The leases that are good now."""
        running = {record.id: record.epoch for record in self.in_state(JobState.RUNNING)}
        return [fence for fence in self.fences if running.get(fence.id) == fence.epoch]

    def groups(self) -> set[tuple[str, str]]:
        """Queue and name of the groups that have jobs."""
        return {(record.queue, record.group) for record in self.books.values() if record.group is not None}

    def bound(self, record: Record) -> bool:
        """Whether it takes more than to be due and first for the job to be given out."""
        return record.group is not None or record.queue in self.governed

    def has_turn(self, record: Record) -> bool:
        """Whether the job need not wait for others of its group."""
        return record.group is None or record.id in self.called

    def used_keys(self) -> list[tuple[str, str]]:
        """Queue and key of the jobs that have one; only of those whose result is held, if there are any."""
        keyed = [record for record in self.in_state(*JobState) if record.key is not None]
        pool = [record for record in keyed if record.held] or keyed
        return [(record.queue, record.key) for record in pool if record.key is not None]

    def displaced(self) -> list[Record]:
        """Ended jobs whose key another job has taken since."""
        keyed = [record for record in self.in_state(*JobState) if record.key is not None]
        taken = {(record.queue, record.key) for record in keyed if not record.state.terminal}
        return [record for record in keyed if record.state.terminal and (record.queue, record.key) in taken]

    def horizon(self) -> list[int]:
        """The instants ahead at which something falls due, expires or is let go."""
        found = set(self.instants)
        for record in self.in_state(JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED):
            found.update(i for i in (record.run_at, record.lease_until, record.expires_at) if i is not None)
        return sorted(instant for instant in found if instant > self.now)

    def priority(self, wish: int) -> int:
        """The request, as far as the store can take it."""
        return min(max(wish, self.limits.min_priority), self.limits.max_priority)
