"""Schedules and the ledger of their ticks, over several shards.

A schedule is in the shard of its queue, so that its ticks and their jobs are stored in one step, there. When it gets a
queue of another shard, it goes there as jobs do: its shard drops it and puts it into the channel to the other one, in
one step, so that it is planned by one shard, and then by the other, and never by both. Its ticks stay where they are;
it takes along where that is, and slots that have fired there do not fire again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from headrace.backends.redis.cluster.fleet import Fleet, attempt, checked, every, shorten
from headrace.backends.redis.ticks import Found, Outcomes
from headrace.backends.redis.timetable import Alteration, Past, Stored
from headrace.errors import Unavailable
from headrace.seam.records import Stamp
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome
from headrace.text import shown

_REMEMBERED = 100_000
"""Schedules of which a process remembers the shard."""


class Spot(NamedTuple):
    """Where a schedule is, and where earlier ticks of it are."""

    number: int
    uid: bytes
    version: int
    past: Past


class ClusterTicks:
    """The operations of a :class:`~headrace.seam.protocol.TickStore`."""

    def __init__(self, fleet: Callable[[], Fleet]) -> None:
        self._fleet_now = fleet
        self._seen: dict[str, Spot] = {}
        self._ledgers: dict[bytes, int] = {}
        """Of a schedule: the shard that had a tick of it."""

    @property
    def _fleet(self) -> Fleet:
        return self._fleet_now()

    def _saw(self, number: int, found: Iterable[Stored]) -> None:
        for one, past in found:
            self._seen[one.name] = Spot(number, one.uid, one.version, past)
            self._ledgers[one.uid] = number
        shorten(self._seen, _REMEMBERED)
        shorten(self._ledgers, _REMEMBERED)

    # -- save

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        """All shards are asked for the names first: one is that of one schedule."""
        answers: list[bool] = []
        for piece in _without_repeats(batch):
            answers += await self._save(piece, at)
        return answers

    async def _save(self, batch: Sequence[Save | Drop], at: Stamp) -> list[bool]:
        spots = await self._find_out([_name(change) for change in batch])
        answers = [False] * len(batch)
        groups: dict[int, list[tuple[int, Alteration]]] = {}
        for place, change in enumerate(batch):
            spot = spots.get(_name(change))
            if change.expect != (0 if spot is None else spot.version):
                continue
            if spot is None and isinstance(change, Drop):
                answers[place] = True
                continue
            number, alteration = self._alteration(change, spot)
            groups.setdefault(number, []).append((place, alteration))
        calls = [self._fleet.parts[number].ticks.change([one for _, one in of], at) for number, of in groups.items()]
        routes: set[tuple[int, int]] = set()
        made: list[str] = []
        for (number, of), done in zip(groups.items(), await every(calls), strict=True):
            for (place, alteration), is_done in zip(of, done, strict=True):
                answers[place] = is_done
                self._seen.pop(alteration.name, None)
                if is_done and alteration.to is not None:
                    routes.add((number, alteration.to))
                elif is_done and not alteration.expect:
                    made.append(alteration.name)
        await self._fleet.relay.carry(routes)
        return await self._settle(made, batch, answers) if made else answers

    def _alteration(self, change: Save | Drop, spot: Spot | None) -> tuple[int, Alteration]:
        """Which shard does what."""
        if isinstance(change, Drop):
            assert spot is not None
            return spot.number, Alteration(change.name, change.expect)
        wanted = change.schedule
        target = self._fleet.number_of(wanted.queue)
        if spot is None:
            return target, Alteration(wanted.name, 0, wanted)
        if spot.number == target:
            return target, Alteration(wanted.name, change.expect, wanted, spot.past)
        past = tuple(sorted({*spot.past, spot.number} - {target}))
        return spot.number, Alteration(wanted.name, change.expect, wanted, past, target)

    async def _settle(self, made: Sequence[str], batch: Sequence[Save | Drop], answers: Sequence[bool]) -> list[bool]:
        """Two may have made a schedule of one name at once, in two shards: one of them stays."""
        spots = await self._find_out(made)
        uids = {change.schedule.name: change.schedule.uid for change in batch if isinstance(change, Save)}
        lost = {name for name in made if name in spots and spots[name].uid != uids[name]}
        return [done and _name(change) not in lost for change, done in zip(batch, answers, strict=True)]

    async def _find_out(self, names: Sequence[str]) -> dict[str, Spot]:
        """Where the schedules of these names are. Those that are on their way are helped; of several of one name the
        oldest stays."""
        found, leaving = await self._ask_all(names)
        if leaving:
            await self._fleet.relay.carry_waiting(leaving.keys(), range(len(self._fleet.parts)))
            found, leaving = await self._ask_all(names)
        for of in leaving.values():
            if missing := [name for name in of if name not in found]:
                raise Unavailable(
                    f"{self._fleet.where} cannot serve just now: schedule {shown(missing[0])} is on its way to a queue "
                    "of a server that is away"
                )
        spots: dict[str, Spot] = {}
        for name, several in found.items():
            (number, (one, past)), *others = sorted(several, key=lambda of: _age(of[1].schedule))
            spots[name] = Spot(number, one.uid, one.version, past)
            for where, other in others:
                await self._fleet.parts[where].ticks.save([Drop(name, other.schedule.version)])
        return spots

    async def _ask_all(self, names: Sequence[str]) -> tuple[dict[str, list[tuple[int, Stored]]], dict[int, list[str]]]:
        found: dict[str, list[tuple[int, Stored]]] = {}
        leaving: dict[int, list[str]] = {}
        answers = await every(part.ticks.whose(names) for part in self._fleet.parts)
        for number, (here, going) in enumerate(answers):
            for name, stored in here.items():
                found.setdefault(name, []).append((number, stored))
            if going:
                leaving[number] = going
        return found, leaving

    # -- find, due

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        found = await self._search(sel, after, limit)
        if moving := [number for number, one in found.items() if one.moving]:
            await self._fleet.relay.carry_waiting(moving, range(len(self._fleet.parts)))
            found = await self._search(sel, after, limit)
        by_name: dict[str, Schedule] = {}
        for number, one in found.items():
            self._saw(number, one.stored)
            for schedule, _ in one.stored:
                by_name[schedule.name] = min(schedule, by_name.get(schedule.name, schedule), key=_age)
        return [by_name[name] for name in sorted(by_name)[:limit]]

    async def _search(self, sel: ScheduleSelector, after: str | None, limit: int) -> dict[int, Found]:
        answers = await every(part.ticks.search(sel, after, limit) for part in self._fleet.parts)
        return dict(enumerate(answers))

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        """What the shards have that are there."""
        answers = await attempt(part.ticks.look(req, at) for part in self._fleet.parts)
        now: int | None = None
        schedules: list[Schedule] = []
        coming: list[int] = []
        problem: Unavailable | None = None
        for number, look in enumerate(answers):
            if isinstance(look, Unavailable):
                problem = look
                continue
            now = look.now if now is None else max(now, look.now)
            self._saw(number, look.stored)
            schedules += [one.schedule for one in look.stored]
            coming += [] if look.next_in is None else [look.next_in]
        if now is None:
            raise problem or Unavailable(f"{self._fleet.where} has no shards")
        schedules.sort(key=lambda one: (one.plan_priority, one.look_at, one.name))
        short = len(schedules) < req.limit
        return Looked(now, schedules[: req.limit], min(coming, default=None) if short else None)

    # -- plan

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> Outcomes:
        """Each in the shard of its schedule. Slots that have fired in another are left out; a plan for which that one
        cannot be asked is not carried out."""
        spots = await self._spots(batch)
        known = await attempt(self._planned_before(plan, spots.get(plan.name)) for plan in batch)
        groups: dict[int, list[int]] = {}
        plans: dict[int, list[Plan]] = {}
        for place, (plan, slots) in enumerate(zip(batch, known, strict=True)):
            spot = spots.get(plan.name)
            if spot is not None and spot.uid == plan.uid and not isinstance(slots, Unavailable):
                groups.setdefault(spot.number, []).append(place)
                plans.setdefault(spot.number, []).append(_left(plan, slots))
        answers = await attempt(self._fleet.parts[number].ticks.plan(of, at) for number, of in plans.items())
        found: Outcomes = [None] * len(batch)
        problem = next((slots for slots in known if isinstance(slots, Unavailable)), None)
        routes: set[tuple[int, int]] = set()
        for (number, of), told in zip(groups.items(), answers, strict=True):
            if isinstance(told, Unavailable):
                problem = told
                continue
            for place, outcomes in zip(of, told, strict=True):
                if outcomes is not None:
                    found[place] = list(_with_known(batch[place], checked(known[place]), outcomes))
                    targets = {self._fleet.number_of(tick.row.queue) for tick in batch[place].ticks if tick.row}
                    routes |= {(number, target) for target in targets - {number}}
        await self._fleet.relay.carry(routes)
        if problem is not None:
            raise problem
        return found

    async def _spots(self, batch: Sequence[Plan]) -> dict[str, Spot]:
        """Of each schedule as it was when its plan was made: if it went elsewhere since, the plan is out of date."""
        spots: dict[str, Spot] = {}
        unknown: list[str] = []
        for plan in batch:
            spot = self._seen.get(plan.name)
            if spot is None or spot.uid != plan.uid or spot.version != plan.version:
                unknown.append(plan.name)
            else:
                spots[plan.name] = spot
        if unknown:
            spots |= await self._find_out(list(dict.fromkeys(unknown)))
        return spots

    async def _planned_before(self, plan: Plan, spot: Spot | None) -> set[int]:
        """The slots of a plan that have fired in another shard."""
        if spot is None or not spot.past or not plan.ticks:
            return set()
        slots = [tick.slot for tick in plan.ticks]
        return set().union(*await every(self._fleet.parts[n].ticks.known(plan.uid, slots) for n in spot.past))

    # -- history, note

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        """All are asked: the ticks of one that has moved are in several shards. What was missed in one may have been
        made up for in another."""
        answers = await every(part.ticks.history(uid, before, limit) for part in self._fleet.parts)
        by_slot: dict[int, Tick] = {}
        for tick in chain.from_iterable(answers):
            by_slot[tick.slot] = max(tick, by_slot.get(tick.slot, tick), key=_finality)
        return [by_slot[slot] for slot in nlargest(limit, by_slot)]

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        """The shard is asked that is remembered, and all others for what it does not know."""
        groups: dict[int, list[TickNote]] = {}
        missing: list[TickNote] = []
        for note in batch:
            number = self._ledgers.get(note.uid)
            if number is None:
                missing.append(note)
            else:
                groups.setdefault(number, []).append(note)
        for left in await every(self._fleet.parts[number].ticks.keep(of) for number, of in groups.items()):
            missing += left
        if missing:
            parts = self._fleet.parts
            for part, left in zip(parts, await every(part.ticks.keep(missing) for part in parts), strict=True):
                self._ledgers.update((note.uid, part.number) for note in missing if note not in left)


def _name(change: Save | Drop) -> str:
    return change.name if isinstance(change, Drop) else change.schedule.name


def _age(one: Schedule) -> tuple[int, bytes, int]:
    """The order of several of one name, of which the first stays."""
    return one.created_at, one.uid, -one.version


def _finality(tick: Tick) -> tuple[bool, int]:
    """The order of several of one slot, of which the last one counts."""
    return tick.outcome is TickOutcome.FIRED, tick.planned_at


def _without_repeats(batch: Sequence[Save | Drop]) -> Iterator[list[Save | Drop]]:
    """In pieces that name each schedule once."""
    piece: dict[str, Save | Drop] = {}
    for change in batch:
        if _name(change) in piece:
            yield list(piece.values())
            piece = {}
        piece[_name(change)] = change
    if piece:
        yield list(piece.values())


def _left(plan: Plan, known: Collection[int]) -> Plan:
    """Without the slots that are known."""
    if not known:
        return plan
    return replace(plan, ticks=[tick for tick in plan.ticks if tick.slot not in known])


def _with_known(
    plan: Plan, known: Collection[int], outcomes: Iterable[TickOutcome | None]
) -> Iterator[TickOutcome | None]:
    """What became of all ticks of a plan."""
    told = iter(outcomes)
    for tick in plan.ticks:
        yield None if tick.slot in known else next(told)
