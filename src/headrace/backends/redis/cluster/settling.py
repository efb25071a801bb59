"""The ends of leases on jobs of several shards."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis.cluster import claiming
from headrace.backends.redis.cluster.fleet import Fleet, attempt
from headrace.backends.redis.cluster.transfer import Route
from headrace.backends.settled import check_settled
from headrace.errors import Unavailable
from headrace.seam.records import Claim, Claimed, JobId, Settlement, Stamp
from headrace.types import JobState

Settled = dict[int, JobState]
"""By its place in the batch: what was not fenced off."""


async def finish(fleet: Fleet, batch: Sequence[Settlement], at: Stamp) -> list[JobState | None]:
    """Each shard ends its leases; then what goes to other shards is carried there. When a shard says that a lease is
    not there, the others are asked, unless this process had the lease from that one: where a job was seen last may be
    out of date."""
    if not batch:
        return []
    check_settled(batch)
    asked = {s.id: number for s in batch if (number := fleet.leased_in(s.id, s.epoch)) is not None}
    asked |= await fleet.whereabouts(s.id for s in batch if s.id not in asked)
    settled: Settled = {}
    problem = await _finish_at(fleet, batch, asked, settled, at)
    fenced = {
        s.id
        for place, s in enumerate(batch)
        if place not in settled and s.id in asked and fleet.leased_in(s.id, s.epoch) != asked[s.id]
    }
    if fenced and problem is None:
        located = await fleet.locate(fenced)
        moved = {job_id: number for job_id, number in located.items() if number != asked[job_id]}
        problem = await _finish_at(fleet, batch, moved, settled, at)
    if problem is not None:
        raise problem
    return [settled.get(place) for place in range(len(batch))]


async def finish_and_claim(
    fleet: Fleet, batch: Sequence[Settlement], req: Claim, at: Stamp
) -> tuple[list[JobState | None], Claimed]:
    """In one trip where all of it happens in one shard."""
    number = _only_shard(fleet, batch, req)
    if number is None:
        settled = await finish(fleet, batch, at)
        try:
            return settled, await claiming.claim(fleet, req, at)
        except Unavailable:
            # What was settled is told; the next claim says what is wrong.
            return settled, Claimed([], 0, doubtful=True)
    settled, claimed = await fleet.parts[number].finish_and_claim(batch, req, at)
    fleet.leased(claimed.jobs, number)
    return settled, claimed


def _only_shard(fleet: Fleet, batch: Sequence[Settlement], req: Claim) -> int | None:
    numbers = {fleet.number_of(queue) for queue in req.queues}
    if len(numbers) != 1 or not batch:
        return None
    [number] = numbers
    for settlement in batch:
        if fleet.leased_in(settlement.id, settlement.epoch) != number:
            return None
        if settlement.queue is not None and fleet.number_of(settlement.queue) != number:
            return None
        if any(fleet.number_of(row.queue) != number for row in settlement.spawn):
            return None
    return number


async def _finish_at(
    fleet: Fleet, batch: Sequence[Settlement], where: dict[JobId, int], settled: Settled, at: Stamp
) -> Unavailable | None:
    groups: dict[int, list[int]] = {}
    for place, settlement in enumerate(batch):
        if place not in settled and settlement.id in where:
            groups.setdefault(where[settlement.id], []).append(place)
    answers = await attempt(
        fleet.parts[number].finish([batch[place] for place in places], at) for number, places in groups.items()
    )
    problem: Unavailable | None = None
    routes: dict[Route, list[JobId]] = {}
    for (number, places), states in zip(groups.items(), answers, strict=True):
        if isinstance(states, Unavailable):
            problem = states
            continue
        for place, state in zip(places, states, strict=True):
            if state is not None:
                settled[place] = state
                _add_routes(fleet, batch[place], number, routes)
    for route in await fleet.relay.carry(routes):
        fleet.saw(routes[route], route[1])
    return problem


def _add_routes(fleet: Fleet, settlement: Settlement, number: int, routes: dict[Route, list[JobId]]) -> None:
    """Where a settlement sends its job and its rows, and which job that is."""
    for row in settlement.spawn:
        target = fleet.number_of(row.queue)
        if target != number:
            routes.setdefault((number, target), [])
    if settlement.queue is not None:
        target = fleet.number_of(settlement.queue)
        if target != number:
            routes.setdefault((number, target), []).append(settlement.id)
