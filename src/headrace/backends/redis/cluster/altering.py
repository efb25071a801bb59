"""Changes from outside, of jobs that may be in any shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from headrace.backends.redis.cluster.fleet import Fleet, every
from headrace.backends.redis.cluster.part import Part
from headrace.seam.records import Altered, Change, JobId, JobKey, Move, Selector, Stamp

Answers = dict[JobId, tuple[int, Altered]]
"""By id: the shard, and what it says."""


async def alter(fleet: Fleet, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """As far as possible in one shard; else what the change meets is found first, in the order of all shards."""
    shard = _only_shard(fleet, sel, change)
    if shard is not None:
        return await fleet.parts[shard].alter(sel, change, at)
    if sel.ids is None and sel.keys is None:
        return await _alter_matching(fleet, sel, change, at)
    keys = await fleet.holders(sel.keys) if sel.keys else []
    ids = list(dict.fromkeys((*(sel.ids or ()), *keys)))
    narrowed = replace(sel, keys=None)
    if isinstance(change, Move):
        met = await _ask(fleet, ids, lambda part, of: part.meet(replace(narrowed, ids=of), change, at))
        return await _move(fleet, [met[job_id] for job_id in ids if job_id in met], narrowed, change, at)
    answers = await _ask(fleet, ids, partial(_alter_part, sel=narrowed, change=change, at=at))
    return [answers[job_id][1] for job_id in ids if job_id in answers]


def _only_shard(fleet: Fleet, sel: Selector, change: Change) -> int | None:
    """The shard in which all of it happens."""
    if sel.queue is None or sel.ids is not None or sel.keys is not None:
        return None
    shard = fleet.number_of(sel.queue)
    return None if isinstance(change, Move) and fleet.number_of(change.queue) != shard else shard


async def _ask(
    fleet: Fleet, ids: Sequence[JobId], call: Callable[[Part, list[JobId]], Awaitable[list[Altered]]]
) -> Answers:
    """Each shard for its jobs. Where a job was seen last may be out of date: one that is not met is looked for."""
    found: Answers = {}
    asked = await fleet.whereabouts(ids)
    await _ask_at(fleet, asked, call, found)
    if missing := [job_id for job_id in asked if job_id not in found]:
        located = await fleet.locate(missing)
        elsewhere = {job_id: number for job_id, number in located.items() if number != asked[job_id]}
        await _ask_at(fleet, elsewhere, call, found)
    return found


async def _ask_at(
    fleet: Fleet,
    where: dict[JobId, int],
    call: Callable[[Part, list[JobId]], Awaitable[list[Altered]]],
    found: Answers,
) -> None:
    groups: dict[int, list[JobId]] = {}
    for job_id, number in where.items():
        groups.setdefault(number, []).append(job_id)
    answers = await every(call(fleet.parts[number], ids) for number, ids in groups.items())
    for number, altered in zip(groups, answers, strict=True):
        found.update((one.id, (number, one)) for one in altered)


async def _alter_matching(fleet: Fleet, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """In the order of the ids of all shards. Jobs that have changed between the look and the change are not met; others
    take their places."""
    parts = fleet.parts if sel.queue is None else [fleet.part_of(sel.queue)]
    found: list[Altered] = []
    above = sel.above
    while len(found) < sel.limit:
        here = replace(sel, above=above, limit=sel.limit - len(found))
        looks = await every(part.meet(here, change, at) for part in parts)
        met = [(part.number, one) for part, look in zip(parts, looks, strict=True) for one in look]
        met = sorted(met, key=lambda of: of[1].id)[: here.limit]
        if not met:
            break
        if isinstance(change, Move):
            answers = await _move(fleet, met, here, change, at)
        else:
            where = {one.id: number for number, one in met}
            done: Answers = {}
            narrowed = partial(_alter_part, sel=here, change=change, at=at)
            await _ask_at(fleet, where, narrowed, done)
            answers = [done[job_id][1] for job_id in where if job_id in done]
        found += [one for one in answers if one.before in change.applies]
        if len(met) < here.limit:
            break
        above = met[-1][1].id
    return found


async def _alter_part(part: Part, ids: list[JobId], *, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    return await part.alter(replace(sel, ids=ids), change, at)


async def _move(
    fleet: Fleet, met: Sequence[tuple[int, Altered]], sel: Selector, change: Move, at: Stamp
) -> list[Altered]:
    """Those whose key is taken at the target stay; of several with the same key the first goes."""
    keys = [one.key for _, one in met if one.key is not None]
    if len(set(keys)) < len(keys):
        return [answer for one in met for answer in await _move(fleet, [one], sel, change, at)]
    target = fleet.part_of(change.queue)
    taken = await target.taken([JobKey(change.queue, key) for key in keys], at) if keys else []
    refused = {key for key, is_taken in zip(keys, taken, strict=True) if is_taken}
    groups: dict[tuple[int, int | None], list[JobId]] = {}
    for number, one in met:
        stays = one.key in refused and number != target.number
        groups.setdefault((number, None if stays else target.number), []).append(one.id)
    answers = await every(
        fleet.parts[number].move(replace(sel, ids=ids, above=None), change, to, at)
        for (number, to), ids in groups.items()
    )
    by_id = {one.id: one for altered in answers for one in altered}
    await _arrive(fleet, [(number, target.number) for number, to in groups if to not in (None, number)], by_id.values())
    return [by_id[one.id] for _, one in met if one.id in by_id]


async def _arrive(fleet: Fleet, routes: Sequence[tuple[int, int]], moved: Iterable[Altered]) -> None:
    arrived = await fleet.relay.carry(routes)
    if len(arrived) == len(routes) and routes:
        fleet.saw((one.id for one in moved if one.changed), routes[0][1])
