"""A tracker: subjects by the million, each visited as often as its tier says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from typing import TypedDict, cast

from headrace.api.options import TaskOptions
from headrace.api.registered import TaskOwner
from headrace.api.task import Task
from headrace.core.callables import is_async
from headrace.core.durations import micros
from headrace.core.names import check_name, refuse_unknown
from headrace.errors import ConfigError
from headrace.seam.documents import DocumentStore
from headrace.seam.instants import to_datetime
from headrace.seam.records import Row
from headrace.seam.tracks import Sheet, TrackStore
from headrace.text import shown
from headrace.tracking.roster import Roster
from headrace.tracking.sink import RowSink
from headrace.tracking.subject import Subject, Visited, check_visited
from headrace.tracking.visit_notes import UnderWay, VisitNotes
from headrace.types import Duration
from headrace.worker.given import refuse_given
from headrace.worker.retry import RetryPolicy

Visit = Callable[[list[Subject]], Awaitable[Visited | None]]
_SHORTEST = 1_000_000


class TrackerOptions(TypedDict, total=False):
    """What ``app.tracker(…)`` takes besides its tiers: options of the jobs that visit subjects."""

    queue: str
    priority: int
    timeout: Duration | None
    retry: RetryPolicy | None


class TierCount(TypedDict):
    """One tier in numbers.

    >>> TierCount(subjects=120, sheets=2, bytes=2_520)["subjects"]
    120
    """

    subjects: int
    sheets: int
    bytes: int


class Tracker:
    """Subjects that are visited again and again.

    >>> import asyncio
    >>> from headrace import App, Subject, Visited
    >>> app = App("memory://")
    >>> async def look(subjects: list[Subject]) -> Visited:
    ...     return Visited(move={subject.id: "DAILY" for subject in subjects})
    >>> watch = app.tracker("watch", look, tiers={"HOURLY": "1h", "DAILY": "1d"})
    >>> async def main():
    ...     async with app:
    ...         await watch.add_many(["dQw4w9WgXcQ", "jNQXAC9IVRw"])
    ...         return await watch.count()
    >>> asyncio.run(main())
    2
    """

    def __init__(
        self,
        owner: TaskOwner,
        name: str,
        handler: Visit,
        tiers: Mapping[str, Duration],
        results: RowSink | None,
        options: TrackerOptions,
    ) -> None:
        self.name = check_name(name, "tracker")
        self._where = f"tracker {shown(name)}"
        if not callable(handler) or not is_async(handler):
            raise ConfigError(f"{self._where}: expected an async function of a list of subjects, got {shown(handler)}")
        refuse_given(handler, self._where)
        refuse_unknown(options, [*TrackerOptions.__annotations__], f"{self._where}: option")
        self._owner = owner
        self._handler = handler
        self._results = results
        self._tiers = _checked(tiers, self._where)
        self._first = next(iter(self._tiers))
        self._roster = Roster(self.name, self._tiers, self._store, lambda: owner.client)
        # Its key is free as soon as a visit is over: the next one has the same.
        given = cast("TaskOptions", {**options, "result_ttl": 0})
        self.visiting: Task[[str, int, int], None] = Task(owner, self._visit, f"tracker:{name}", given)
        """The task whose jobs visit subjects. Its queue may be paused, limited and watched like any other."""
        self.adding: Task[[list[str], str], None] = Task(owner, self._add, f"tracker:{name}:add", given)
        """A task that adds subjects: ``app.bind(connection).enqueue(tracker.adding, ids, tier)`` adds them if your
        transaction commits, and not if it does not."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """The names of the tiers."""
        return tuple(self._tiers)

    def __repr__(self) -> str:
        return f"Tracker({self.name!r}, tiers={self.tiers!r})"

    # -- subjects

    async def add(self, subject: str, tier: str | None = None) -> bool:
        """Track a subject from now on, in the first tier unless another is named. False: it is tracked already, and
        stays as it is. Its first visit comes within one interval of the tier."""
        return await self.add_many([subject], tier) == 1

    async def add_many(self, subjects: Iterable[str], tier: str | None = None) -> int:
        """Track subjects; returns how many are new. Those that are tracked already stay as they are."""
        return await self._roster.add(_ids(subjects, self._where), self._tier(tier))

    async def move(self, subjects: str | Iterable[str], tier: str) -> int:
        """Take subjects to another tier; returns how many changed it."""
        given = [subjects] if isinstance(subjects, str) else subjects
        return await self._roster.move(_ids(given, self._where), self._tier(tier))

    async def remove(self, subjects: str | Iterable[str]) -> int:
        """Track subjects no more; returns how many were tracked."""
        given = [subjects] if isinstance(subjects, str) else subjects
        return await self._roster.remove(_ids(given, self._where))

    async def get(self, subject: str) -> Subject | None:
        """What is known of a subject; None: it is not tracked."""
        [found] = await self._roster.get(_ids([subject], self._where))
        return found

    def subjects(self, tier: str | None = None) -> AsyncIterator[Subject]:
        """All subjects of a tier, or of all, in no order."""
        return self._roster.all(self.tiers if tier is None else [self._tier(tier)])

    async def count(self, tier: str | None = None) -> int:
        """How many subjects there are."""
        counts = await self.counts()
        if tier is not None:
            return counts[self._tier(tier)]["subjects"]
        return sum(one["subjects"] for one in counts.values())

    async def counts(self) -> dict[str, TierCount]:
        """All tiers in numbers; tiers of earlier versions of this tracker too, as long as they have subjects."""
        none = TierCount(subjects=0, sheets=0, bytes=0)
        counts = {tier: none.copy() for tier in self._tiers}
        for one in await self._roster.tally():
            if one.subjects or one.tier in counts:
                counts[one.tier] = TierCount(subjects=one.subjects, sheets=one.sheets, bytes=one.bytes)
        return counts

    # -- visits

    def row(self, sheet: Sheet) -> Row:
        """The job that visits the subjects on a sheet."""
        if sheet.tier not in self._tiers:
            raise ConfigError(
                f"{sheet.subjects} subjects are in the tier {shown(sheet.tier)}, which {self._where} does not have any "
                f"more; it has {', '.join(self._tiers)}. Name it again, and move them"
            )
        key = f"{self.name}/{sheet.tier}"
        key = key if len(key.encode()) <= 1_000 else _digest(key)
        job = self.visiting.options(key=f"{key}/{sheet.low:013x}").job(sheet.tier, sheet.low, sheet.run)
        return self._owner.client.packer.pack(job)

    async def _visit(self, tier: str, low: int, run: int) -> None:
        begun = await self._roster.begin(tier, low, run)
        if begun is None:
            return
        began, sheet, subjects = begun
        notes = visit = None
        if self._results is not None and subjects:
            notes = VisitNotes(await self._documents(), self.name, tier, low)
            names = [one.id for one in subjects]
            visit = await notes.begin(UnderWay(run, sheet.ran_at, sheet.due_at, names))
            subjects = [one for one in subjects if one.id in visit.subjects]
        answer = await self._handler(subjects) if subjects else None
        visited = check_visited(answer, subjects, self._tiers, self._where)
        if visited.rows:
            if self._results is None or visit is None:
                raise ConfigError(f"{self._where}: its handler returned rows, but it has no results= to put them in")
            name = f"{_digest(tier)}-{low:013x}-{run}-{_digest(' '.join(visit.subjects))}"
            await self._results.append(self.name, visited.rows, at=to_datetime(visit.due_at), name=name)
        if await self._roster.end(tier, low, run, began, subjects, visited) and notes is not None:
            await notes.end()

    async def _add(self, subjects: list[str], tier: str) -> None:
        await self.add_many(subjects, tier)

    # -- checks

    def _tier(self, tier: str | None) -> str:
        if tier is None:
            return self._first
        if tier not in self._tiers:
            raise ConfigError(f"{self._where}: expected one of the tiers {', '.join(self._tiers)}, got {shown(tier)}")
        return tier

    async def _documents(self) -> DocumentStore:
        documents = (await self._owner.client.backend()).documents
        if documents is None:
            raise ConfigError(f"{self._where}: results: this store cannot note which visits are under way")
        return documents

    async def _store(self) -> TrackStore:
        backend = await self._owner.client.backend()
        if backend.tracks is None:
            raise ConfigError(f"{self._where}: this store cannot have trackers")
        return backend.tracks


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=8).hexdigest()


def _checked(tiers: Mapping[str, Duration], where: str) -> dict[str, int]:
    if not isinstance(tiers, Mapping) or not tiers:
        raise ConfigError(f'{where}: tiers: expected names and intervals like {{"HOURLY": "1h"}}, got {shown(tiers)}')
    intervals = {check_name(tier, f"{where}: tier"): micros(every, f"{where}: {tier}") for tier, every in tiers.items()}
    for tier, interval in intervals.items():
        if interval < _SHORTEST:
            raise ConfigError(f"{where}: {tier}: expected an interval of at least a second, got {shown(tiers[tier])}")
    return intervals


def _ids(subjects: Iterable[str], where: str) -> list[str]:
    if isinstance(subjects, str | bytes):
        raise ConfigError(f"{where}: expected a list of ids, got the text {shown(subjects)}")
    return [check_name(one, f"{where}: subject") for one in subjects]
