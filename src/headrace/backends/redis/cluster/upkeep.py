"""Reap and sweep over several shards: decided for all together, done in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headrace.backends.redis import ticks
from headrace.backends.redis.cluster.dead import condemn_heaviest
from headrace.backends.redis.cluster.shard import Ended, EndedJob, Overdue, Share
from headrace.backends.redis.cluster.shards import Shards, every, gather
from headrace.backends.redis.schedule_layout import TICK_BYTES
from headrace.seam.dead_letter_shares import bound_of, goes_on
from headrace.seam.records import Reap, Reaped, Stamp, SweepClause, SweepTarget, Swept


async def reap(shards: Shards, req: Reap, at: Stamp) -> list[Reaped]:
    """Take back the oldest leases of all shards; then carry what waits for another shard."""
    looks, unseen = await gather({shard.number: shard.overdue(req, at) for shard in shards.all})
    shares = share_out(looks, req)
    answers, problem = await gather(
        {number: shards.all[number].take_back(req, share, at) for number, share in shares.items()}
    )
    await shards.relay.carry(((number, target) for number, look in looks.items() for target in look.targets), None)
    reaped = [one for answer in answers.values() for one in answer]
    if not reaped and (problem := unseen or problem):
        raise problem
    order = {lease: index for index, lease in enumerate(_oldest(looks))}
    return sorted(reaped, key=lambda one: order.get(one.id, len(order)))


def _oldest(looks: Mapping[int, Overdue]) -> list[bytes]:
    return [job_id for _, job_id in sorted(lease for look in looks.values() for lease in look.leases)]


def share_out(looks: Mapping[int, Overdue], req: Reap) -> dict[int, Share]:
    """What each shard takes back."""
    first = sorted((end, number) for number, look in looks.items() for end, _ in look.leases)[: req.limit]
    left, taken = req.limit - len(first), 0
    shares: dict[int, Share] = {}
    for number, look in looks.items():
        leases = sum(owner == number for _, owner in first)
        cancellable = min(left, look.cancellable)
        if leases or cancellable or look.others:
            shares[number] = Share(leases, cancellable, taken, len(first))
        left, taken = left - cancellable, taken + leases
    return shares


async def sweep(shards: Shards, clause: SweepClause, at: Stamp) -> Swept:
    """Remove the oldest of all shards."""
    if clause.target is SweepTarget.TICKS:
        return await _sweep_ticks(shards, clause, at)
    if clause.target is SweepTarget.KEYS:
        return await _sweep_keys(shards, clause, at)
    if clause.target in (SweepTarget.RESULTS, SweepTarget.TENANTS):
        return await _sweep_each(shards, clause, at)
    if clause.jobs is not None:
        return _together(await every(shard.sweep(clause, at) for shard in shards.all), more=False)
    looks = await every(shard.ended(clause, at) for shard in shards.all)
    if clause.target is SweepTarget.FAILED:
        doomed, more = await _condemn_dead(shards, looks, clause, at)
    else:
        doomed, more = condemn(looks, clause)
    kept = sum(look.total for look in looks)
    if clause.dry_run:
        jobs = [job for of in doomed.values() for job in of]
        return Swept(len(jobs), sum(job.size for job in jobs), kept - len(jobs), more)
    gone = await every(shards.all[number].remove(clause, jobs, at) for number, jobs in doomed.items())
    removed, freed = sum(count for count, _ in gone), sum(size for _, size in gone)
    return Swept(removed, freed, kept - removed, more)


def condemn(looks: Sequence[Ended], clause: SweepClause) -> tuple[dict[int, list[EndedJob]], bool]:
    """What goes in each shard, and whether there is more."""
    count, size = sum(look.total for look in looks), sum(look.bytes for look in looks)
    excess = 0 if clause.max_count is None else count - clause.max_count
    over = 0 if clause.max_bytes is None else size - clause.max_bytes
    doomed: dict[int, list[EndedJob]] = {}
    going, freed = 0, 0
    for job, number in sorted((job, number) for number, look in enumerate(looks) for job in look.jobs):
        if job.old or going < excess or freed < over:
            if going == clause.limit:
                return doomed, True
            doomed.setdefault(number, []).append(job)
            going, freed = going + 1, freed + job.size
    return doomed, any(look.more for look in looks)


async def _condemn_dead(
    shards: Shards, looks: Sequence[Ended], clause: SweepClause, at: Stamp
) -> tuple[dict[int, list[EndedJob]], bool]:
    """FAILED jobs that are too old; if none is, those that are too many."""
    count, size = sum(look.total for look in looks), sum(look.bytes for look in looks)
    bound = "age"
    doomed, more = condemn(looks, replace(clause, max_count=None, max_bytes=None))
    if not doomed:
        bound, excess = bound_of(clause, count, size)
        if bound:
            doomed, more = await condemn_heaviest(shards, looks, clause, bound, excess, at)
    jobs = [job for of in doomed.values() for job in of]
    again = bool(jobs) and goes_on(clause, bound, count - len(jobs), size - sum(job.size for job in jobs))
    return doomed, more or again


async def _sweep_ticks(shards: Shards, clause: SweepClause, at: Stamp) -> Swept:
    looks = await every(shard.ticks.first(clause.limit + 1, at) for shard in shards.all)
    doomed, more = ticks.condemn(looks, clause)
    removed = sum(map(len, doomed))
    if not clause.dry_run:
        removed = sum(await every(shard.ticks.forget(of) for shard, of in zip(shards.all, doomed, strict=True) if of))
    return Swept(removed, removed * TICK_BYTES, sum(look.total for look in looks) - removed, more)


async def _sweep_keys(shards: Shards, clause: SweepClause, at: Stamp) -> Swept:
    """Remove keys that are free by now, and, if the others are too many, those that would be free first."""
    free = await every(shard.outlived(replace(clause, max_count=None), at) for shard in shards.all)
    total, going = sum(look.total for look in free), sum(len(look.instants) for look in free)
    excess = 0 if clause.max_count is None else total - clause.max_count
    looks, more = free, any(look.more for look in free)
    if excess > going:
        looks = await every(shard.outlived(replace(clause, max_count=0), at) for shard in shards.all)
        more, going = False, excess
    first = sorted((instant, number) for number, look in enumerate(looks) for instant in look.instants)
    shares = Counter(number for _, number in first[: min(going, clause.limit)])
    if not clause.dry_run:
        swept = await every(
            shards.all[number].sweep(replace(clause, max_count=free[number].total - share, limit=share), at)
            for number, share in shares.items()
        )
        removed = sum(one.removed for one in swept)
    else:
        removed = shares.total()
    return Swept(removed, 0, total - removed, more or going > clause.limit)


async def _sweep_each(shards: Shards, clause: SweepClause, at: Stamp) -> Swept:
    looks = await every(shard.sweep(replace(clause, dry_run=True), at) for shard in shards.all)
    left = clause.limit
    shares: dict[int, int] = {}
    for number, look in enumerate(looks):
        if share := min(left, look.removed):
            shares[number] = share
            left -= share
    swept = await every(shards.all[number].sweep(replace(clause, limit=share), at) for number, share in shares.items())
    more = any(look.more for look in looks) or sum(look.removed for look in looks) > clause.limit
    return _together(swept, more=more)


def _together(swept: Sequence[Swept], *, more: bool) -> Swept:
    removed, freed = sum(one.removed for one in swept), sum(one.bytes for one in swept)
    return Swept(removed, freed, sum(one.kept for one in swept), more)
