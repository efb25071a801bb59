"""Schedules and their ticks, over several shards.

A schedule is in the shard of its queue, so its ticks and their jobs are stored there in one step. If it gets a queue of
another shard, it goes there as jobs do: its shard drops it and puts it into the channel to the other one, in one step.
So it is planned by one shard, then by the other, and never by both. Its ticks stay where they are. It takes along where
they are, and slots that have fired there do not fire again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from headrace.backends.redis.cluster.shards import Capability, Shards, by_shard, every, gather, shorten
from headrace.backends.redis.schedule_layout import Alteration, Past, Stored
from headrace.backends.redis.ticks import Found, Outcomes
from headrace.errors import Unavailable
from headrace.seam.records import Stamp
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome
from headrace.text import shown

_REMEMBERED = 100_000
"""How many schedules' shards a process remembers."""


class Location(NamedTuple):
    """Where a schedule is, and where its earlier ticks are."""

    number: int
    uid: bytes
    version: int
    past: Past


class ClusterTicks(Capability):
    """The operations of a :class:`~headrace.seam.protocol.TickStore`."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        super().__init__(shards)
        self._seen: dict[str, Location] = {}
        self._histories: dict[bytes, int] = {}
        """By uid: a shard that had a tick of the schedule."""

    def _saw(self, number: int, found: Iterable[Stored]) -> None:
        for one, past in found:
            self._seen[one.name] = Location(number, one.uid, one.version, past)
            self._histories[one.uid] = number
        shorten(self._seen, _REMEMBERED)
        shorten(self._histories, _REMEMBERED)

    # -- save

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        """All shards are asked for the names first, because a name belongs to one schedule."""
        answers: list[bool] = []
        for piece in _without_repeats(batch):
            answers += await self._save(piece, at)
        return answers

    async def _save(self, batch: Sequence[Save | Drop], at: Stamp) -> list[bool]:
        locations = await self._find_out([_name(change) for change in batch])
        answers = [False] * len(batch)
        groups: dict[int, list[tuple[int, Alteration]]] = {}
        for index, change in enumerate(batch):
            location = locations.get(_name(change))
            if change.expect != (0 if location is None else location.version):
                continue
            if location is None and isinstance(change, Drop):
                answers[index] = True
                continue
            number, alteration = self._alteration(change, location)
            groups.setdefault(number, []).append((index, alteration))
        calls = [self._shards.all[number].ticks.change([one for _, one in of], at) for number, of in groups.items()]
        routes: set[tuple[int, int]] = set()
        made: list[str] = []
        for (number, of), done in zip(groups.items(), await every(calls), strict=True):
            for (index, alteration), is_done in zip(of, done, strict=True):
                answers[index] = is_done
                self._seen.pop(alteration.name, None)
                if is_done and alteration.to is not None:
                    routes.add((number, alteration.to))
                elif is_done and not alteration.expect:
                    made.append(alteration.name)
        await self._shards.relay.carry(routes)
        return await self._settle(made, batch, answers) if made else answers

    def _alteration(self, change: Save | Drop, location: Location | None) -> tuple[int, Alteration]:
        """The shard that makes the change, and the change."""
        if isinstance(change, Drop):
            assert location is not None
            return location.number, Alteration(change.name, change.expect)
        wanted = change.schedule
        target = self._shards.number_of(wanted.queue)
        if location is None:
            return target, Alteration(wanted.name, 0, wanted)
        if location.number == target:
            return target, Alteration(wanted.name, change.expect, wanted, location.past)
        past = tuple(sorted({*location.past, location.number} - {target}))
        return location.number, Alteration(wanted.name, change.expect, wanted, past, target)

    async def _settle(self, made: Sequence[str], batch: Sequence[Save | Drop], answers: Sequence[bool]) -> list[bool]:
        """Two clients may have made schedules of one name at once in two shards: one of them stays."""
        locations = await self._find_out(made)
        uids = {change.schedule.name: change.schedule.uid for change in batch if isinstance(change, Save)}
        lost = {name for name in made if name in locations and locations[name].uid != uids[name]}
        return [done and _name(change) not in lost for change, done in zip(batch, answers, strict=True)]

    async def _find_out(self, names: Sequence[str]) -> dict[str, Location]:
        """The locations of the schedules of these names. Schedules that are on their way are carried first; of several
        with one name the oldest stays."""
        found, leaving = await self._ask_all(names)
        if leaving:
            await self._shards.relay.carry_waiting(leaving.keys(), range(len(self._shards.all)))
            found, leaving = await self._ask_all(names)
        for of in leaving.values():
            if missing := [name for name in of if name not in found]:
                raise Unavailable(
                    f"{self._shards.where} cannot serve just now: schedule {shown(missing[0])} is moving to a queue "
                    "on a server that is away"
                )
        locations: dict[str, Location] = {}
        for name, several in found.items():
            (number, (one, past)), *others = sorted(several, key=lambda of: _age(of[1].schedule))
            locations[name] = Location(number, one.uid, one.version, past)
            for where, other in others:
                await self._shards.all[where].ticks.save([Drop(name, other.schedule.version)])
        return locations

    async def _ask_all(self, names: Sequence[str]) -> tuple[dict[str, list[tuple[int, Stored]]], dict[int, list[str]]]:
        found: dict[str, list[tuple[int, Stored]]] = {}
        leaving: dict[int, list[str]] = {}
        answers = await every(shard.ticks.whose(names) for shard in self._shards.all)
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
            await self._shards.relay.carry_waiting(moving, range(len(self._shards.all)))
            found = await self._search(sel, after, limit)
        by_name: dict[str, Schedule] = {}
        for number, one in found.items():
            self._saw(number, one.stored)
            for schedule, _ in one.stored:
                by_name[schedule.name] = min(schedule, by_name.get(schedule.name, schedule), key=_age)
        return [by_name[name] for name in sorted(by_name)[:limit]]

    async def _search(self, sel: ScheduleSelector, after: str | None, limit: int) -> dict[int, Found]:
        answers = await every(shard.ticks.search(sel, after, limit) for shard in self._shards.all)
        return dict(enumerate(answers))

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        """The due schedules of all shards that answer."""
        looks, problem = await gather({shard.number: shard.ticks.look(req, at) for shard in self._shards.all})
        if problem is not None and not looks:
            raise problem
        schedules: list[Schedule] = []
        for number, look in looks.items():
            self._saw(number, look.stored)
            schedules += [one.schedule for one in look.stored]
        now = max(look.now for look in looks.values())
        coming = [look.next_in for look in looks.values() if look.next_in is not None]
        schedules.sort(key=lambda one: (one.plan_priority, one.look_at, one.name))
        short = len(schedules) < req.limit
        return Looked(now, schedules[: req.limit], min(coming, default=None) if short else None)

    # -- plan

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> Outcomes:
        """Carry out each plan in the shard of its schedule. Slots that have fired in another shard are left out; if
        that shard cannot be asked, the plan is not carried out."""
        locations = await self._locations(batch)
        known, unasked = await gather(
            {index: self._planned_before(plan, locations.get(plan.name)) for index, plan in enumerate(batch)}
        )
        left = {index: _left(batch[index], slots) for index, slots in known.items()}
        here = {
            index: location.number
            for index, plan in left.items()
            if (location := locations.get(plan.name)) is not None and location.uid == plan.uid
        }
        groups = by_shard(here, here.__getitem__)
        answers, problem = await gather(
            {n: self._shards.all[n].ticks.plan([left[index] for index in of], at) for n, of in groups.items()}
        )
        done = {
            index: outcomes
            for number, answer in answers.items()
            for index, outcomes in zip(groups[number], answer, strict=True)
            if outcomes is not None
        }
        await self._shards.relay.carry(
            {(here[index], target) for index in done for target in self._targets(batch[index])}
        )
        if problem := problem or unasked:
            raise problem
        return [list(_with_known(plan, known[n], done[n])) if n in done else None for n, plan in enumerate(batch)]

    def _targets(self, plan: Plan) -> set[int]:
        """The shards of the queues that the plan's jobs go to."""
        return {self._shards.number_of(tick.row.queue) for tick in plan.ticks if tick.row}

    async def _locations(self, batch: Sequence[Plan]) -> dict[str, Location]:
        """The location of each schedule as it was when its plan was made. If the schedule has moved since, the plan is
        out of date."""
        locations: dict[str, Location] = {}
        unknown: list[str] = []
        for plan in batch:
            location = self._seen.get(plan.name)
            if location is None or location.uid != plan.uid or location.version != plan.version:
                unknown.append(plan.name)
            else:
                locations[plan.name] = location
        if unknown:
            locations |= await self._find_out(list(dict.fromkeys(unknown)))
        return locations

    async def _planned_before(self, plan: Plan, location: Location | None) -> set[int]:
        """The slots of a plan that have fired in another shard."""
        if location is None or not location.past or not plan.ticks:
            return set()
        slots = [tick.slot for tick in plan.ticks]
        return set().union(*await every(self._shards.all[n].ticks.known(plan.uid, slots) for n in location.past))

    # -- history, note

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        """All shards are asked: a schedule that has moved has ticks in several. A slot that was missed in one shard may
        have fired in another."""
        answers = await every(shard.ticks.history(uid, before, limit) for shard in self._shards.all)
        by_slot: dict[int, Tick] = {}
        for tick in chain.from_iterable(answers):
            by_slot[tick.slot] = max(tick, by_slot.get(tick.slot, tick), key=_finality)
        return [by_slot[slot] for slot in nlargest(limit, by_slot)]

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        """Ask the remembered shard first, then all of them for ticks that it does not know."""
        groups: dict[int, list[TickNote]] = {}
        missing: list[TickNote] = []
        for note in batch:
            number = self._histories.get(note.uid)
            if number is None:
                missing.append(note)
            else:
                groups.setdefault(number, []).append(note)
        for left in await every(self._shards.all[number].ticks.keep(of) for number, of in groups.items()):
            missing += left
        if missing:
            asked = self._shards.all
            for shard, left in zip(asked, await every(shard.ticks.keep(missing) for shard in asked), strict=True):
                self._histories.update((note.uid, shard.number) for note in missing if note not in left)


def _name(change: Save | Drop) -> str:
    return change.name if isinstance(change, Drop) else change.schedule.name


def _age(one: Schedule) -> tuple[int, bytes, int]:
    """Sorts schedules of one name; the first stays."""
    return one.created_at, one.uid, -one.version


def _finality(tick: Tick) -> tuple[bool, int]:
    """Sorts ticks of one slot; the last one counts."""
    return tick.outcome is TickOutcome.FIRED, tick.planned_at


def _without_repeats(batch: Sequence[Save | Drop]) -> Iterator[list[Save | Drop]]:
    """Pieces of the batch that name each schedule once."""
    piece: dict[str, Save | Drop] = {}
    for change in batch:
        if _name(change) in piece:
            yield list(piece.values())
            piece = {}
        piece[_name(change)] = change
    if piece:
        yield list(piece.values())


def _left(plan: Plan, known: Collection[int]) -> Plan:
    """The plan without the slots that are known."""
    if not known:
        return plan
    return replace(plan, ticks=[tick for tick in plan.ticks if tick.slot not in known])


def _with_known(
    plan: Plan, known: Collection[int], outcomes: Iterable[TickOutcome | None]
) -> Iterator[TickOutcome | None]:
    """What became of all ticks of the plan."""
    fresh = iter(outcomes)
    for tick in plan.ticks:
        yield None if tick.slot in known else next(fresh)
