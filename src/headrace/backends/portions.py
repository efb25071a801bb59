"""How much one step of a store does: less than 50 ms, whatever a batch is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from headrace.backends.settlement_checks import check_settled
from headrace.seam.records import JobId, Row, Selector, Settlement
from headrace.types import JobState

T = TypeVar("T")

_COMPLETED = JobState.COMPLETED
_BUDGET = 30_000
"""Microseconds of a step, as its costs estimate it."""
_FEW = 80
"""So many rows are never too many."""
_NAMES = 20_000


class Costs(NamedTuple):
    """Microseconds of CPU on a machine of 2026: of a row in a full batch and what is added to it, of a settlement that
    just completes its job, and of any other. All are rounded up."""

    row: int
    key: int
    inbox: int
    group: int
    tenant: int
    """One that comes up in a batch for the first time."""
    queue: int
    """One that this client has not met yet."""
    completed: int
    settled: int
    early: int = 0
    """One that comes, or may come, before another of its group that the batch brought already."""


_Place = tuple[bool, int, JobId]
"""Whether it is counted from now; when it is due, or in how long; and its id."""


class _Met:
    """What a batch has brought so far."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        """That this client has not met before."""
        self.tenants: set[tuple[str, str]] = set()
        self.latest: dict[tuple[str, str], _Place] = {}
        """Of each group."""

    def is_early(self, row: Row) -> bool:
        """Whether the row may come before another of its group."""
        assert row.group is not None
        place = row.run_at is None, row.delay if row.run_at is None else row.run_at, row.id
        before = self.latest.setdefault((row.queue, row.group), place)
        if place[0] == before[0]:
            self.latest[row.queue, row.group] = max(place, before)
            return place < before
        self.latest[row.queue, row.group] = place
        return True


class Portions:
    """Cuts the batches of one client. It remembers the queues that it has met, as only new ones cost much."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: set[str] = set()

    def of_rows(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """New jobs, in order."""
        if len(rows) <= _FEW:
            return [rows]
        plain = [row.queue for row in rows if not row.tenant and row.key is None is row.group and row.reply_to is None]
        if len(plain) == len(rows) and self._known.issuperset(plain):
            return slices(rows, _BUDGET // self._costs.row)
        met = _Met()
        portions = cut(rows, lambda row: self._row(row, met), _BUDGET)
        if len(self._known) > _NAMES:
            self._known.clear()
        self._known |= met.queues
        return portions

    def of_settlements(self, batch: Sequence[Settlement]) -> list[Sequence[Settlement]]:
        """Settlements, in order. Raises ``ValueError`` as ``check_settled`` does."""
        if not [
            s
            for s in batch
            if s.state is not _COMPLETED or s.cells is not None or s.queue is not None or s.error is not None or s.spawn
        ]:
            return slices(batch, max(_FEW, _BUDGET // self._costs.completed))
        check_settled(batch)
        few = len(batch) <= max(_FEW, _BUDGET // self._costs.settled)
        if few and not any(s.spawn for s in batch):
            return [batch]
        met = _Met()
        return cut(batch, lambda s: self._settled(s) + sum(self._row(row, met) for row in s.spawn), _BUDGET)

    def _settled(self, s: Settlement) -> int:
        completed = s.state is _COMPLETED and s.cells is None and s.queue is None and s.error is None
        return self._costs.completed if completed else self._costs.settled

    def _row(self, row: Row, met: _Met) -> int:
        costs, cost = self._costs, self._costs.row
        if row.tenant and (tenant := (row.queue, row.tenant)) not in met.tenants:
            met.tenants.add(tenant)
            cost += costs.tenant
        if row.queue not in self._known and row.queue not in met.queues:
            met.queues.add(row.queue)
            cost += costs.queue
        if row.key is not None:
            cost += costs.key
        if row.reply_to is not None:
            cost += costs.inbox
        if row.group is not None:
            cost += costs.group
            if costs.early and met.is_early(row):
                cost += costs.early
        return cost


def slices(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Items in order, in as few batches of at most that size as can be, which are about equal: a small one at the end
    would cost a commit of its own."""
    size = -(-len(items) // max(-(-len(items) // most), 1))
    return [items[first : first + size] for first in range(0, len(items), size or 1)]


def cut(items: Sequence[T], cost_of: Callable[[T], int], budget: int) -> list[Sequence[T]]:
    """Items in order, in batches that cost no more than the budget, or are one item; about equal, as ``slices`` are."""
    costs = list(map(cost_of, items))
    batches = -(-sum(costs) // budget)
    share = min(budget, sum(costs) // max(batches, 1) + max(costs, default=0))
    found: list[Sequence[T]] = []
    first, total = 0, 0
    for index, cost in enumerate(costs):
        if total + cost > share and index > first:
            found.append(items[first:index])
            first, total = index, 0
        total += cost
    return [*found, items[first:]] if items else []


async def step_by_step(limit: int, most: int, step: Callable[[int, list[T]], Awaitable[list[T]]]) -> list[T]:
    """The answers of a call that takes a limit, made in steps that are not larger than ``most``, until a step finds no
    more. Each step is told what those before it have answered."""
    found: list[T] = []
    while (left := limit - len(found)) > 0:
        found += (some := await step(min(left, most), found))
        if len(some) < most:
            break
    return found


def of_selection(sel: Selector, most: int) -> list[Selector]:
    """The jobs that are named, in batches of that size."""
    if sel.keys is None and sel.ids is not None and len(sel.ids) > most:
        return [msgspec.structs.replace(sel, ids=ids) for ids in slices(list(dict.fromkeys(sel.ids)), most)]
    if sel.ids is None and sel.keys is not None and len(sel.keys) > most:
        return [msgspec.structs.replace(sel, keys=keys) for keys in slices(list(dict.fromkeys(sel.keys)), most)]
    return [sel]
