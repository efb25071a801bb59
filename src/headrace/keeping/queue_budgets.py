"""Budgets of queues: how many bytes the jobs of one queue may take up that wait or run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.documents import TypedDocument
from headrace.core.events import Observers
from headrace.seam.documents import DocumentStore
from headrace.seam.protocol import Backend
from headrace.seam.records import Inserted, InsertStatus, JobId, JobKey, Record, Room, Row, Selector
from headrace.text import shown
from headrace.types import SECTIONS, JobState

_BUDGETS = TypedDocument[dict[str, int]]("budget/queues", dict[str, int], {})
ALERT = 0.8
REFUSE = 0.85
_NEAR = 0.7
_SAMPLE = 20
"""Jobs of a queue that are weighed."""
_HEAVY = 4 * 1024 * 1024
"""Bytes after which no more jobs are read to be weighed."""
_ROW = 300
"""Bytes that a job takes up besides its sections, roughly."""
_LIVE = frozenset((JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED))


class QueueUsage(Struct, frozen=True):
    """A queue against its budget."""

    queue: str
    used: int
    budget: int

    @property
    def share(self) -> float:
        """Which part of the budget is used."""
        return self.used / self.budget

    @property
    def refuses(self) -> bool:
        """Whether new jobs are refused."""
        return self.share >= REFUSE

    def __str__(self) -> str:
        return f"queue {shown(self.queue)} takes up about {self.used:,} of {self.budget:,} bytes ({self.share:.0%})"


class QueueBudgets:
    """Weighs the queues that have budgets, and knows which of them are full.

    How many jobs wait is counted by the store. What each weighs is not added up anywhere, as this would cost every
    change of every job: some are read, half of them the latest, half from any other place, and stand for all.
    """

    def __init__(self, backend: Backend, documents: DocumentStore, clock: Clock, observers: Observers) -> None:
        self._backend = backend
        self._documents = documents
        self._clock = clock
        self._observers = observers
        self._rng = Random()
        self._full: dict[str, Room] = {}
        self._near = False

    @property
    def full(self) -> bool:
        """Whether one of them was full when it was last measured."""
        return bool(self._full)

    async def refuse(self, rows: Sequence[Row]) -> dict[int, Inserted]:
        """By position: the answers to rows whose queues were full when they were last measured. A row whose id or key
        is known to the store is none of them: it may be there already."""
        full = [i for i, row in enumerate(rows) if row.queue in self._full]
        if not full:
            return {}
        ids: list[JobId | JobKey] = [rows[i].id for i in full]
        keys = {i: JobKey(rows[i].queue, key) for i in full if (key := rows[i].key) is not None}
        found = await self._backend.fetch([*ids, *keys.values()], at=self._clock.stamp())
        known = {i for i, record in zip((*full, *keys), found, strict=True) if record is not None}
        return {
            i: Inserted(InsertStatus.FULL, rows[i].id, room=self._full[rows[i].queue]) for i in full if i not in known
        }

    @property
    def nearly_full(self) -> bool:
        """Whether one of them was nearly full when it was last measured."""
        return self._near

    async def measure(self) -> list[QueueUsage]:
        """All queues that have a budget; those that are nearly full are reported."""
        found = [
            QueueUsage(queue, await self._weigh(queue), budget)
            for queue, budget in (await read_queue_budgets(self._documents)).items()
        ]
        self._full = {one.queue: Room(one.queue, one.budget, one.used, bytes=True) for one in found if one.refuses}
        self._near = any(one.share >= _NEAR for one in found)
        for one in found:
            if one.share >= ALERT:
                consequence = "new jobs are refused" if one.refuses else "start workers, or raise its budget"
                self._observers.alert(Alert.BUDGET_NEARLY_USED, one.queue, f"{one}: {consequence}", queue=one.queue)
        return found

    async def _weigh(self, queue: str) -> int:
        stats = await self._backend.stats(self._clock.stamp(), queues=[queue])
        live = sum(one.available + one.running + one.jobs_paused for one in stats.queues)
        if not live:
            return 0
        oldest = max((one.oldest_due_age or 0 for one in stats.queues), default=0)
        weights: list[int] = []
        for one in await self._sample(queue, oldest):
            [record] = await self._backend.fetch([one.id], frozenset(SECTIONS), self._clock.stamp())
            if record is not None:
                weights.append(_ROW + sum(map(len, record.cells.values())))
            if sum(weights) >= _HEAVY:
                break
        return 0 if not weights else live * sum(weights) // len(weights)

    async def _sample(self, queue: str, oldest: int) -> list[Record]:
        """Some of its jobs: the latest, and others that are older than an age between 0 and that of the oldest."""
        latest = await self._page(Selector(queue=queue, states=_LIVE))
        if len(latest) < _SAMPLE or not oldest:
            return latest
        others = await self._page(Selector(queue=queue, states=_LIVE, older_than=self._rng.randrange(oldest)))
        mixed = [one for pair in zip(latest, others, strict=False) for one in pair]
        return (mixed or latest)[:_SAMPLE]

    async def _page(self, selector: Selector) -> list[Record]:
        found: list[Record] = []
        after = None
        for _ in range(5):
            page = await self._backend.scan(selector, after, _SAMPLE, self._clock.stamp())
            found += page.records
            if (after := page.after) is None or len(found) >= _SAMPLE:
                break
        return found[:_SAMPLE]


async def read_queue_budgets(documents: DocumentStore) -> dict[str, int]:
    """By queue: its budget."""
    return await _BUDGETS.read(documents)


async def save_queue_budget(documents: DocumentStore, queue: str, bytes: int | None) -> None:
    """Give a queue a budget, or take it away; those of others stay."""
    given = {} if bytes is None else {queue: bytes}
    await _BUDGETS.change(documents, lambda old: {name: old[name] for name in old if name != queue} | given)
