"""Ending leases on jobs of several shards."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis.cluster import claiming
from headrace.backends.redis.cluster.shards import Shards, by_shard, gather
from headrace.backends.redis.cluster.transfer import Route
from headrace.backends.settlement_checks import check_settled
from headrace.errors import Unavailable
from headrace.seam.records import Claim, Claimed, JobId, Settlement, Stamp
from headrace.types import JobState

Settled = dict[int, JobState]
"""By index in the batch: what was not fenced off."""


async def finish(shards: Shards, batch: Sequence[Settlement], at: Stamp) -> list[JobState | None]:
    """Each shard ends its leases; then whatever goes to other shards is carried there. Where a job was seen last may be
    out of date: if a shard does not know a lease, the others are asked, unless this process claimed the job in that
    shard."""
    if not batch:
        return []
    check_settled(batch)
    asked = {s.id: number for s in batch if (number := shards.leased_in(s.id, s.epoch)) is not None}
    asked |= await shards.whereabouts(s.id for s in batch if s.id not in asked)
    settled: Settled = {}
    problem = await _finish_at(shards, batch, asked, settled, at)
    fenced = {
        s.id
        for index, s in enumerate(batch)
        if index not in settled and s.id in asked and shards.leased_in(s.id, s.epoch) != asked[s.id]
    }
    if fenced and problem is None:
        located = await shards.locate(fenced)
        moved = {job_id: number for job_id, number in located.items() if number != asked[job_id]}
        problem = await _finish_at(shards, batch, moved, settled, at)
    if problem is not None:
        raise problem
    return [settled.get(index) for index in range(len(batch))]


async def finish_and_claim(
    shards: Shards, batch: Sequence[Settlement], req: Claim, at: Stamp
) -> tuple[list[JobState | None], Claimed]:
    """In one trip if all of it happens in one shard."""
    number = _only_shard(shards, batch, req)
    if number is None:
        settled = await finish(shards, batch, at)
        try:
            return settled, await claiming.claim(shards, req, at)
        except Unavailable:
            # The caller must learn what was settled; the next claim raises the problem.
            return settled, Claimed([], 0, doubtful=True)
    settled, claimed = await shards.all[number].finish_and_claim(batch, req, at)
    shards.leased(claimed.jobs, number)
    return settled, claimed


def _only_shard(shards: Shards, batch: Sequence[Settlement], req: Claim) -> int | None:
    numbers = {shards.number_of(queue) for queue in req.queues}
    if len(numbers) != 1 or not batch:
        return None
    [number] = numbers
    for settlement in batch:
        if shards.leased_in(settlement.id, settlement.epoch) != number:
            return None
        if settlement.queue is not None and shards.number_of(settlement.queue) != number:
            return None
        if any(shards.number_of(row.queue) != number for row in settlement.spawn):
            return None
    return number


async def _finish_at(
    shards: Shards, batch: Sequence[Settlement], where: dict[JobId, int], settled: Settled, at: Stamp
) -> Unavailable | None:
    here = (index for index, settlement in enumerate(batch) if index not in settled and settlement.id in where)
    groups = by_shard(here, lambda index: where[batch[index].id])
    answers, problem = await gather(
        {number: shards.all[number].finish([batch[index] for index in of], at) for number, of in groups.items()}
    )
    routes: dict[Route, list[JobId]] = {}
    """Where settled jobs and their rows go, and these jobs."""
    for number, states in answers.items():
        for index, state in zip(groups[number], states, strict=True):
            if state is not None:
                settled[index] = state
                for row in batch[index].spawn:
                    routes.setdefault((number, shards.number_of(row.queue)), [])
                if (queue := batch[index].queue) is not None:
                    routes.setdefault((number, shards.number_of(queue)), []).append(batch[index].id)
    for route in await shards.relay.carry(routes):
        shards.saw(routes[route], route[1])
    return problem
