"""Changes from outside, of jobs that may be in any shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from headrace.backends.redis.cluster.shard import ClusterShard
from headrace.backends.redis.cluster.shards import Shards, by_shard, every
from headrace.seam.records import Altered, Change, JobId, JobKey, Move, Selector, Stamp

Answers = dict[JobId, tuple[int, Altered]]
"""By id: the shard, and its answer."""


async def alter(shards: Shards, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """Send the change to one shard if that is enough. Otherwise find the jobs first, in the order of their ids over all
    shards, then change them."""
    number = _only_shard(shards, sel, change)
    if number is not None:
        return await shards.all[number].alter(sel, change, at)
    if sel.ids is None and sel.keys is None:
        return await _alter_matching(shards, sel, change, at)
    keys = await shards.jobs_of(sel.keys) if sel.keys else []
    ids = list(dict.fromkeys((*(sel.ids or ()), *keys)))
    narrowed = replace(sel, keys=None)
    if isinstance(change, Move):
        met = await _ask(shards, ids, lambda shard, of: shard.meet(replace(narrowed, ids=of), change, at))
        return await _move(shards, [met[job_id] for job_id in ids if job_id in met], narrowed, change, at)
    answers = await _ask(shards, ids, partial(_alter_in, sel=narrowed, change=change, at=at))
    return [answers[job_id][1] for job_id in ids if job_id in answers]


def _only_shard(shards: Shards, sel: Selector, change: Change) -> int | None:
    """The shard in which all of it happens, if there is one."""
    if sel.queue is None or sel.ids is not None or sel.keys is not None:
        return None
    number = shards.number_of(sel.queue)
    return None if isinstance(change, Move) and shards.number_of(change.queue) != number else number


async def _ask(
    shards: Shards, ids: Sequence[JobId], call: Callable[[ClusterShard, list[JobId]], Awaitable[list[Altered]]]
) -> Answers:
    """Ask each shard for its jobs. Where a job was seen last may be out of date, so jobs that were not found are
    located."""
    found: Answers = {}
    asked = await shards.whereabouts(ids)
    await _ask_at(shards, asked, call, found)
    if missing := [job_id for job_id in asked if job_id not in found]:
        located = await shards.locate(missing)
        elsewhere = {job_id: number for job_id, number in located.items() if number != asked[job_id]}
        await _ask_at(shards, elsewhere, call, found)
    return found


async def _ask_at(
    shards: Shards,
    where: dict[JobId, int],
    call: Callable[[ClusterShard, list[JobId]], Awaitable[list[Altered]]],
    found: Answers,
) -> None:
    groups = by_shard(where, where.__getitem__)
    answers = await every(call(shards.all[number], ids) for number, ids in groups.items())
    for number, altered in zip(groups, answers, strict=True):
        found.update((one.id, (number, one)) for one in altered)


async def _alter_matching(shards: Shards, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """Change the matching jobs in the order of their ids over all shards. Jobs that change between the look and the
    change are skipped, and others are found instead."""
    asked = shards.all if sel.queue is None else [shards.shard_of(sel.queue)]
    found: list[Altered] = []
    above = sel.above
    while len(found) < sel.limit:
        here = replace(sel, above=above, limit=sel.limit - len(found))
        looks = await every(shard.meet(here, change, at) for shard in asked)
        met = [(shard.number, one) for shard, look in zip(asked, looks, strict=True) for one in look]
        met = sorted(met, key=lambda of: of[1].id)[: here.limit]
        if not met:
            break
        if isinstance(change, Move):
            answers = await _move(shards, met, here, change, at)
        else:
            where = {one.id: number for number, one in met}
            done: Answers = {}
            narrowed = partial(_alter_in, sel=here, change=change, at=at)
            await _ask_at(shards, where, narrowed, done)
            answers = [done[job_id][1] for job_id in where if job_id in done]
        found += [one for one in answers if one.before in change.applies]
        if len(met) < here.limit:
            break
        above = met[-1][1].id
    return found


async def _alter_in(
    shard: ClusterShard, ids: list[JobId], *, sel: Selector, change: Change, at: Stamp
) -> list[Altered]:
    return await shard.alter(replace(sel, ids=ids), change, at)


async def _move(
    shards: Shards, met: Sequence[tuple[int, Altered]], sel: Selector, change: Move, at: Stamp
) -> list[Altered]:
    """Jobs whose key is taken at the target stay; of several with the same key the first goes."""
    keys = [one.key for _, one in met if one.key is not None]
    if len(set(keys)) < len(keys):
        return [answer for one in met for answer in await _move(shards, [one], sel, change, at)]
    target = shards.shard_of(change.queue)
    taken = await target.taken([JobKey(change.queue, key) for key in keys], at) if keys else []
    refused = {key for key, is_taken in zip(keys, taken, strict=True) if is_taken}
    groups: dict[tuple[int, int | None], list[JobId]] = {}
    for number, one in met:
        stays = one.key in refused and number != target.number
        groups.setdefault((number, None if stays else target.number), []).append(one.id)
    answers = await every(
        shards.all[number].move(replace(sel, ids=ids, above=None), change, to, at)
        for (number, to), ids in groups.items()
    )
    by_id = {one.id: one for altered in answers for one in altered}
    await _arrive(
        shards, [(number, target.number) for number, to in groups if to not in (None, number)], by_id.values()
    )
    return [by_id[one.id] for _, one in met if one.id in by_id]


async def _arrive(shards: Shards, routes: Sequence[tuple[int, int]], moved: Iterable[Altered]) -> None:
    arrived = await shards.relay.carry(routes)
    if len(arrived) == len(routes) and routes:
        shards.saw((one.id for one in moved if one.changed), routes[0][1])
