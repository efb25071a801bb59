"""What outsiders see of several shards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from headrace.backends.redis.cluster.fleet import Fleet, every
from headrace.backends.redis.cluster.part import Part
from headrace.records import JobId, JobKey, Page, PlaceStats, Record, Selector, Stamp, Stats, WorkerStats


async def fetch(fleet: Fleet, names: Sequence[JobId | JobKey], want: frozenset[str], at: Stamp) -> list[Record | None]:
    """Keys from the shard of their queue; ids from where they were seen, or from all."""
    groups: dict[int, list[JobId | JobKey]] = {}
    for name in dict.fromkeys(names):
        if isinstance(name, JobKey):
            groups.setdefault(fleet.number_of(name.queue), []).append(name)
        else:
            seen = fleet.last_seen(name)
            for number in range(len(fleet.parts)) if seen is None else (seen,):
                groups.setdefault(number, []).append(name)
    found = await _fetch_from(fleet, groups, want, at)
    doubtful = [
        name
        for name in dict.fromkeys(names)
        if not isinstance(name, JobKey)
        and (seen := fleet.last_seen(name)) is not None
        and (name not in found or is_leaving(fleet, found[name], seen))
    ]
    if doubtful:
        found |= await _fetch_from(fleet, {part.number: list(doubtful) for part in fleet.parts}, want, at)
    return [found.get(name) for name in names]


async def _fetch_from(
    fleet: Fleet, groups: dict[int, list[JobId | JobKey]], want: frozenset[str], at: Stamp
) -> dict[JobId | JobKey, Record]:
    answers = await every(fleet.parts[number].fetch(names, want, at) for number, names in groups.items())
    found: dict[JobId | JobKey, Record] = {}
    for (number, names), records in zip(groups.items(), answers, strict=True):
        for name, record in zip(names, records, strict=True):
            if record is None:
                continue
            if not is_leaving(fleet, record, number):
                fleet.saw([record.id], number)
                found[name] = record
            else:
                found.setdefault(name, record)
    return found


def is_leaving(fleet: Fleet, record: Record, number: int) -> bool:
    """Whether the job is on its way from this shard to that of its queue."""
    return fleet.number_of(record.queue) != number


async def scan(fleet: Fleet, sel: Selector, after: str | None, limit: int, at: Stamp) -> Page:
    """The pages of all shards in one, as far down as each of them has looked."""
    parts = _parts_of(fleet, sel)
    pages = await every(part.scan(sel, after, limit, at) for part in parts)
    found: dict[JobId, Record] = {}
    for part, page in zip(parts, pages, strict=True):
        for record in page.records:
            if record.id not in found or not is_leaving(fleet, record, part.number):
                found[record.id] = record
    downto = max((page.after for page in pages if page.after is not None), default=None)
    ids = sorted((job_id for job_id in found if downto is None or job_id.hex() >= downto), reverse=True)
    records = [found[job_id] for job_id in ids[:limit]]
    return Page(records, records[-1].id.hex() if len(ids) > limit else downto)


def _parts_of(fleet: Fleet, sel: Selector) -> list[Part]:
    if sel.queue is not None:
        return [fleet.part_of(sel.queue)]
    if sel.keys is not None and not sel.ids:
        numbers = dict.fromkeys(fleet.number_of(key.queue) for key in sel.keys)
        return [fleet.parts[number] for number in numbers]
    return fleet.parts


async def stats(fleet: Fleet, at: Stamp) -> Stats:
    """Queues are each in one shard; every worker is listed in all of them."""
    answers = await every(part.numbers(at) for part in fleet.parts)
    queues = sorted(chain.from_iterable(answer[0] for answer in answers), key=lambda queue: queue.queue)
    workers: dict[bytes, WorkerStats] = {}
    for _, listed, _ in answers:
        for holder, worker in listed.items():
            other = workers.get(holder, worker)
            last = max(worker, other, key=lambda one: one.seen_at)
            workers[holder] = replace(last, started_at=min(worker.started_at, other.started_at))
    places = [
        PlaceStats(same[0].place, sum(one.count for one in same), sum(one.bytes for one in same))
        for same in zip(*(answer[2] for answer in answers), strict=True)
    ]
    return Stats(queues, sorted(workers.values(), key=lambda one: (one.started_at, one.worker)), places)
