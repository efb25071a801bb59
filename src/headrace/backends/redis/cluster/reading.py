"""Reading jobs and numbers from several shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from headrace.backends.listed_workers import claiming_from
from headrace.backends.redis.cluster.shard import ClusterShard
from headrace.backends.redis.cluster.shards import Shards, by_shard, every
from headrace.seam.records import JobId, JobKey, KeptStats, Page, Record, Selector, Stamp, Stats, WorkerStats


async def fetch(
    shards: Shards, names: Sequence[JobId | JobKey], want: frozenset[str], at: Stamp
) -> list[Record | None]:
    """Read keys from the shard of their queue, and ids from where they were seen last or are found. Jobs that are not
    there, or are about to leave, are located."""
    keys = list(dict.fromkeys(name for name in names if isinstance(name, JobKey)))
    ids = list(dict.fromkeys(name for name in names if not isinstance(name, JobKey)))
    where = await shards.whereabouts(ids)
    found = await _fetch_from(shards, keys, where, want, at)
    gone = [name for name, number in where.items() if name not in found or is_leaving(shards, found[name], number)]
    unknown = [key for key in keys if key not in found]
    if unknown:
        await shards.bring(unknown)
    if gone or unknown:
        found = {name: record for name, record in found.items() if name not in gone}
        found |= await _fetch_from(shards, unknown, await shards.locate(gone), want, at)
    return [found.get(name) for name in names]


async def _fetch_from(
    shards: Shards, keys: Sequence[JobKey], where: Mapping[JobId, int], want: frozenset[str], at: Stamp
) -> dict[JobId | JobKey, Record]:
    names: Iterable[JobId | JobKey] = (*keys, *where)
    groups = by_shard(names, lambda name: shards.number_of(name.queue) if isinstance(name, JobKey) else where[name])
    answers = await every(shards.all[number].fetch(of, want, at) for number, of in groups.items())
    found: dict[JobId | JobKey, Record] = {}
    for (number, of), records in zip(groups.items(), answers, strict=True):
        for name, record in zip(of, records, strict=True):
            if record is not None:
                found[name] = record
                if not is_leaving(shards, record, number):
                    shards.saw([record.id], number)
    return found


def is_leaving(shards: Shards, record: Record, number: int) -> bool:
    """Whether the job is on its way from this shard to the shard of its queue."""
    return shards.number_of(record.queue) != number


async def scan(shards: Shards, sel: Selector, after: str | None, limit: int, at: Stamp) -> Page:
    """Merge the pages of all shards, as far down as every shard has looked."""
    asked = _asked_for(shards, sel)
    pages = await every(shard.scan(sel, after, limit, at) for shard in asked)
    seen: dict[JobId, tuple[int, Record]] = {}
    for shard, page in zip(asked, pages, strict=True):
        for record in page.records:
            if record.id not in seen or not is_leaving(shards, record, shard.number):
                seen[record.id] = (shard.number, record)
    leaving = [name for name, (number, record) in seen.items() if is_leaving(shards, record, number)]
    for job_id, there in zip(leaving, await fetch(shards, leaving, frozenset(), at), strict=True):
        if there is None:
            del seen[job_id]
    downto = max((page.after for page in pages if page.after is not None), default=None)
    ids = sorted((job_id for job_id in seen if downto is None or job_id.hex() >= downto), reverse=True)
    records = [seen[job_id][1] for job_id in ids[:limit]]
    return Page(records, records[-1].id.hex() if len(ids) > limit else downto)


def _asked_for(shards: Shards, sel: Selector) -> list[ClusterShard]:
    if sel.queue is not None:
        return [shards.shard_of(sel.queue)]
    if sel.keys is not None and not sel.ids:
        numbers = dict.fromkeys(shards.number_of(key.queue) for key in sel.keys)
        return [shards.all[number] for number in numbers]
    return shards.all


async def stats(shards: Shards, at: Stamp, names: Sequence[str] | None) -> Stats:
    """Each queue is in one shard; a worker is listed in all of them."""
    if not names:
        asked = shards.all
    else:
        asked = [shards.all[number] for number in dict.fromkeys(shards.number_of(name) for name in names)]
    answers = await every(shard.numbers(at, names) for shard in asked)
    queues = sorted(chain.from_iterable(answer[0] for answer in answers), key=lambda queue: queue.queue)
    workers: dict[bytes, WorkerStats] = {}
    for _, listed, _ in answers:
        for holder, worker in listed.items():
            other = workers.get(holder, worker)
            last = max(worker, other, key=lambda one: one.seen_at)
            workers[holder] = replace(last, started_at=min(worker.started_at, other.started_at))
    claiming = sorted(claiming_from(names, workers.values()), key=lambda one: (one.started_at, one.worker))
    if names is not None:
        return Stats(queues, claiming, [])
    kept = [
        KeptStats(same[0].target, sum(one.count for one in same), sum(one.bytes for one in same))
        for same in zip(*(answer[2] for answer in answers), strict=True)
    ]
    return Stats(queues, claiming, kept)
