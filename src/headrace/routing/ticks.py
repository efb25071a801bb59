"""Schedules that may be in any of several stores. The jobs of a schedule are made in the store that has it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest, nsmallest

from headrace.errors import Unavailable
from headrace.routing.view import Routed, View, each, present, those_there
from headrace.seam.protocol import Backend
from headrace.seam.records import Stamp
from headrace.seam.ticks import Drop, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome
from headrace.seam.ticks import Look as Request


class RoutedTicks(Routed):
    """A schedule is in one store at a time."""

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        view = await self._look()
        if view.alone is not None:
            return await present(view.alone.ticks).save(batch, at)
        return [(await present((await _home_of(view, change)).ticks).save([change], at))[0] for change in batch]

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        found, problem = await those_there(
            await self._look(), lambda store: present(store.ticks).find(sel, after, limit)
        )
        by_name = {one.name: one for some in found for one in some}
        if problem is not None and (sel.names is None or not by_name.keys() >= set(sel.names)):
            raise problem
        return nsmallest(limit, by_name.values(), key=lambda one: one.name)

    async def due(self, req: Request, at: Stamp = None) -> Looked:
        answers, _ = await those_there(await self._look(), lambda store: present(store.ticks).due(req, at))
        schedules = nsmallest(
            req.limit,
            (one for answer in answers for one in answer.schedules),
            key=lambda one: (one.plan_priority, one.look_at or 0, one.name),
        )
        waits = [answer.next_in for answer in answers if answer.next_in is not None]
        return Looked(max(a.now for a in answers), schedules, min(waits, default=None))

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> list[list[TickOutcome | None] | None]:
        """By the store that has the schedule: the others answer that they do not."""
        outcomes: list[list[TickOutcome | None] | None] = [None] * len(batch)
        view, left = await self._look(), list(range(len(batch)))
        for store in view.stores:
            if not left:
                break
            try:
                answers = await present(store.ticks).plan([batch[n] for n in left], at)
            except Unavailable:
                if not view.apart:
                    raise
                continue  # nothing is known of these: their planners look again
            for n, done in zip(left, answers, strict=True):
                outcomes[n] = done
            left = [n for n in left if outcomes[n] is None]
        return outcomes

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        found = await each(await self._look(), lambda store: present(store.ticks).history(uid, before, limit))
        by_slot: dict[int, Tick] = {}
        for tick in (one for some in found for one in some):
            known = by_slot.get(tick.slot)
            by_slot[tick.slot] = tick if known is None or _tells_more(tick, known) else known
        return [by_slot[slot] for slot in nlargest(limit, by_slot)]

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        await each(await self._look(), lambda store: present(store.ticks).note(batch, at))


def _tells_more(tick: Tick, known: Tick) -> bool:
    """A slot that was missed in one store may have fired in another; and one that has an end tells more."""
    rank = {TickOutcome.FIRED: 2, TickOutcome.SKIPPED: 1, TickOutcome.MISSED: 0}
    return (rank[tick.outcome], bool(tick.state)) > (rank[known.outcome], bool(known.state))


async def _home_of(view: View, change: Save | Drop) -> Backend:
    name = change.name if isinstance(change, Drop) else change.schedule.name
    for store in view.stores:
        if await present(store.ticks).find(ScheduleSelector(names=[name])):
            return store
    return view.home
