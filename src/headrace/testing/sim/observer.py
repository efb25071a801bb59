"""An observer outside of the system: reads the store directly, past the network, and changes nothing."""

from __future__ import annotations

from typing import Any

from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Reaped, Record, Selector
from headrace.seam.ticks import Schedule, ScheduleSelector, Tick
from headrace.testing.sim.history import Snapshot
from headrace.types import SECTIONS, JobState

_EVERYTHING = frozenset((*SECTIONS, "result", "error"))
_ALL = Selector()


async def ids(store: Backend, now: int) -> list[JobId]:
    """The id of every job that the store knows, newest first."""
    found: list[JobId] = []
    after: str | None = None
    while True:
        page = await store.scan(_ALL, after, 1_000, now)
        found += [record.id for record in page.records]
        if page.after is None:
            return found
        after = page.after


async def snapshot(store: Backend, now: int, *, final: bool = False) -> Snapshot:
    """The whole store."""
    names = await ids(store, now)
    records: list[Record] = []
    for start in range(0, len(names), 1_000):
        fetched = await store.fetch(names[start : start + 1_000], _EVERYTHING, now)
        records += [record for record in fetched if record is not None]
    schedules: list[Schedule] = []
    ticks: list[tuple[bytes, Tick]] = []
    if store.ticks is not None:
        schedules = await store.ticks.find(ScheduleSelector(), limit=1_000)
        for one in schedules:
            ticks += [(one.uid, tick) for tick in await store.ticks.history(one.uid, limit=100_000)]
    return Snapshot(now, records, await store.stats(now), final, schedules, ticks)


class Audit:
    """Watches one call being carried out and notes what its answer leaves out."""

    def __init__(self, store: Backend, op: str, now: int) -> None:
        self._store = store
        self._op = op
        self._now = now
        self._before: list[JobId] = []

    async def before(self) -> None:
        """Look before the call."""
        if self._op == "sweep":
            self._before = await ids(self._store, self._now)

    async def after(self, answer: Any) -> Any:
        """Look after it: the ids that a sweep removed, or id and ``run_at`` of the jobs that a reap released."""
        if self._op == "sweep":
            left = set(await ids(self._store, self._now))
            return [job_id for job_id in self._before if job_id not in left]
        if self._op == "reap":
            back = [reaped.id for reaped in answer if _came_back(reaped)]
            fetched = await self._store.fetch(back, at=self._now) if back else []
            return [(record.id, record.run_at) for record in fetched if record is not None]
        return None


def _came_back(reaped: Reaped) -> bool:
    return reaped.state is JobState.AVAILABLE
