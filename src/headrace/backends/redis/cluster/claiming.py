"""A claim from the queues of several shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headrace.backends.redis.cluster.shard import EXPIRED, PASSED_OVER, Met, Peeked
from headrace.backends.redis.cluster.shards import Shards, by_shard, gather
from headrace.backends.redis.cluster.sharing import Shared, share_out
from headrace.errors import Unavailable
from headrace.seam.policy import FOREVER
from headrace.seam.records import Claim, Claimed, JobId, Leased, Reaped, Stamp

_AHEAD = 2
"""How many times its share is looked at first in each shard."""
_CHOOSE = 10
"""How many passed-over jobs of a shard are used to choose a holder."""
_SOON = 1_000_000
"""How soon to look again if a shard is away and the others have nothing."""


class Plan(NamedTuple):
    """What each shard gives."""

    shares: dict[int, list[Met]]
    """What each shard is to lease. It may lease other jobs, if another claim was faster."""
    expired: dict[int, list[JobId]]
    """What each shard is to cancel: expired jobs that a claim of its share would not reach."""
    passed: dict[int, list[JobId]]
    """What was passed over in each shard."""
    next_in: int | None
    """The answer if every shard gives its share."""
    cut_at: int | None
    """The shard that may have the next job, beyond what was looked at."""
    quiet: list[int]
    """Shards that give nothing but have jobs without a signal: workers that wait for these jobs must be woken."""


async def claim(shards: Shards, req: Claim, at: Stamp) -> Claimed:
    """Look at all shards first, then take the first jobs of all from their shards."""
    queues = by_shard(dict.fromkeys(req.queues), shards.number_of)
    if len(queues) == 1:
        [number] = queues
        claimed = await shards.all[number].claim(req, at)
        shards.leased(claimed.jobs, number)
        return claimed
    if not queues or req.limit <= 0:
        return Claimed([])
    looks, made, problem = await _look(shards, req, queues, at)
    if not looks and problem is not None:
        raise problem
    if any(look.governed for look in looks.values()):
        claimed, failed = await _share_out(shards, req, looks.values(), at)
    else:
        claimed, failed = await _take(shards, req, queues, made, at)
    if problem is None and failed is None:
        return claimed
    found = bool(claimed.jobs or claimed.expired)
    next_in = 0 if found else min(_SOON, claimed.next_in or _SOON)
    return replace(claimed, next_in=next_in, doubtful=failed is not None)


async def _share_out(
    shards: Shards, req: Claim, looks: Collection[Peeked], at: Stamp
) -> tuple[Claimed, Unavailable | None]:
    """Take an even share of each governed queue, and of all others together."""
    governed: frozenset[str] = frozenset().union(*(look.governed for look in looks))
    paused: frozenset[str] = frozenset().union(*(look.paused for look in looks))
    problems: list[Unavailable] = []

    async def take(part: Claim) -> Shared:
        numbers = {shards.number_of(queue) for queue in part.queues}
        if len(numbers) > 1:
            shared, failed = await _take_plain(shards, part, at)
            problems.extend([failed] if failed is not None else [])
            return shared
        [number] = numbers
        try:
            claimed, room = await shards.all[number].take(part, at)
        except Unavailable as problem:
            problems.append(problem)
            return Shared(Claimed([]), part.max_bytes)
        shards.leased(claimed.jobs, number)
        return Shared(claimed, room)

    ends = [look.resumes_in for look in looks if look.resumes_in is not None]
    claimed = await share_out(req, governed, paused, take)
    if len(claimed.jobs) < req.limit and ends:
        claimed = replace(claimed, next_in=min(*ends, FOREVER if claimed.next_in is None else claimed.next_in))
    return claimed, problems[0] if problems else None


async def _take_plain(shards: Shards, req: Claim, at: Stamp) -> tuple[Shared, Unavailable | None]:
    queues = by_shard(req.queues, shards.number_of)
    _, made, problem = await _look(shards, req, queues, at)
    claimed, failed = await _take(shards, req, queues, made, at)
    room = req.max_bytes - sum(met.size for of in made.shares.values() for met in of)
    return Shared(claimed, room), problem or failed


async def _look(
    shards: Shards, req: Claim, queues: Mapping[int, Sequence[str]], at: Stamp
) -> tuple[dict[int, Peeked], Plan, Unavailable | None]:
    """Look at the first jobs of each shard, and deeper into a shard whose jobs come before those of the others. Returns
    what was seen in the shards that answered."""
    near = replace(req, limit=min(req.limit, -(-_AHEAD * req.limit // len(queues))))
    looks, problem = await gather(
        {number: shards.all[number].peek(near, names, at) for number, names in queues.items()}
    )
    made = plan(looks, req)
    deep: set[int] = set()
    while made.cut_at is not None and made.cut_at not in deep:
        number = made.cut_at
        deep.add(number)
        try:
            looks[number] = await shards.all[number].peek(req, queues[number], at)
        except Unavailable as error:
            problem = error
            del looks[number]
        made = plan(looks, req)
    return looks, made, problem


def plan(looks: Mapping[int, Peeked], req: Claim) -> Plan:
    """The first jobs of all shards, in their order."""
    merged = sorted((met, number) for number, look in looks.items() for met in look.met)
    ends = [(look.met[-1], number) for number, look in looks.items() if look.more]
    horizon, at_horizon = min(ends, default=(None, None))
    shares: dict[int, list[Met]] = {}
    expired: dict[int, list[JobId]] = {}
    passed: dict[int, list[JobId]] = {}
    taken, room, left = 0, req.max_bytes, horizon is not None
    for met, number in merged:
        if taken >= req.limit or room <= 0:
            left = True
            break
        if horizon is not None and met > horizon:
            break
        if met.kind == EXPIRED:
            expired.setdefault(number, []).append(met.id)
        elif met.kind == PASSED_OVER:
            passed.setdefault(number, []).append(met.id)
        else:
            taken, room = taken + 1, room - met.size
            shares.setdefault(number, []).append(met)
            expired.pop(number, None)
    coming = [look.next_in for look in looks.values() if look.next_in is not None]
    next_in = 0 if left else min(coming, default=None)
    full = taken >= req.limit or room <= 0
    quiet = [number for number, look in looks.items() if full and look.quiet and number not in shares]
    return Plan(shares, expired, passed, next_in, None if full else at_horizon, quiet)


async def _take(
    shards: Shards, req: Claim, queues: Mapping[int, Sequence[str]], made: Plan, at: Stamp
) -> tuple[Claimed, Unavailable | None]:
    shares = {
        number: replace(req, queues=tuple(queues[number]), limit=len(made.shares.get(number, ())))
        for number in (*made.shares, *made.quiet)
    }
    claims, problem = await gather({number: shards.all[number].claim(share, at) for number, share in shares.items()})
    ends, unended = await gather({number: shards.all[number].expire(ids, at) for number, ids in made.expired.items()})
    choices, _ = await gather(
        {
            number: shards.all[number].choose(req.holder, req.lease_for, ids[:_CHOOSE], at)
            for number, ids in made.passed.items()
        }
    )
    jobs: list[Leased] = []
    expired: list[Reaped] = []
    for number, claimed in claims.items():
        shards.leased(claimed.jobs, number)
        jobs += claimed.jobs
        expired += claimed.expired
    for cancelled in ends.values():
        expired += cancelled
    jobs.sort(key=lambda job: (job.priority, job.run_at, job.id))
    short = len(jobs) < sum(map(len, made.shares.values()))
    next_in = None if len(jobs) >= req.limit else 0 if short else made.next_in
    return Claimed(jobs, next_in, expired, bool(made.passed), any(choices.values())), problem or unended
