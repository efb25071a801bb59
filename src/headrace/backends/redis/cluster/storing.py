"""An insert into the queues of several shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.backends.redis import marshalling
from headrace.backends.redis.cluster import reading
from headrace.backends.redis.cluster.shards import Shards, by_shard, every
from headrace.backends.redis.shard import LEFT
from headrace.errors import StoreFull
from headrace.seam.records import Inserted, InsertStatus, Record, Row, Stamp


async def insert(shards: Shards, rows: Sequence[Row], at: Stamp) -> list[Inserted]:
    """Send each shard its rows. An id that has left its shard is not new."""
    marshalling.checked(rows)
    answers: dict[int, Inserted] = {}
    detours = _detours(shards, rows)
    if detours:
        await _trace(shards, rows, detours, answers, at)
    await _put(shards, rows, (index for index in range(len(rows)) if index not in answers), answers, at)
    if left := [index for index, answer in answers.items() if answer is LEFT]:
        await _put_again(shards, rows, left, answers, at)
    if detours:
        await _untrace(shards, rows, detours, answers)
    full = [rows[index] for index, answer in answers.items() if answer.status is InsertStatus.FULL]
    shards.admitted(rows[index].id for index, answer in answers.items() if answer.status is not InsertStatus.FULL)
    shards.refused((row.id, shards.number_of(row.queue)) for row in full)
    return [answers[index] for index in range(len(rows))]


def _detours(shards: Shards, rows: Sequence[Row]) -> dict[int, int]:
    """By index: rows whose job found no room in another shard before, and that shard."""
    homes = ((index, row.queue, shards.refused_in(row.id)) for index, row in enumerate(rows))
    return {index: home for index, queue, home in homes if home is not None and home != shards.number_of(queue)}


async def _trace(
    shards: Shards, rows: Sequence[Row], detours: Mapping[int, int], answers: dict[int, Inserted], at: Stamp
) -> None:
    """Leave traces in the shard where these jobs found no room: a repeated enqueue asks there, and must learn that they
    are elsewhere. Jobs that this shard has by now, because another enqueue stored them, are answered."""
    groups = by_shard(detours, detours.__getitem__)
    there = await every(shards.all[home].trace([rows[index].id for index in of]) for home, of in groups.items())
    known = {job_id for ids in there for job_id in ids}
    indexes = [index for index in detours if rows[index].id in known]
    records = await reading.fetch(shards, [rows[index].id for index in indexes], frozenset(), at)
    for index, record in zip(indexes, records, strict=True):
        if record is not None:
            answers[index] = _same(record)


async def _untrace(
    shards: Shards, rows: Sequence[Row], detours: Mapping[int, int], answers: Mapping[int, Inserted]
) -> None:
    """Remove the traces of jobs that were not stored in the end."""
    gone = [index for index in detours if answers[index].status not in (InsertStatus.NEW, InsertStatus.SAME)]
    groups = by_shard(gone, detours.__getitem__)
    await every(shards.all[home].untrace([rows[index].id for index in of]) for home, of in groups.items())


def _same(record: Record) -> Inserted:
    return Inserted(InsertStatus.SAME, record.id, record.state, None, record.attempt)


async def _put(
    shards: Shards, rows: Sequence[Row], indexes: Iterable[int], answers: dict[int, Inserted], at: Stamp
) -> None:
    groups = by_shard(indexes, lambda index: shards.number_of(rows[index].queue))
    calls = [shards.all[number].insert([rows[index] for index in of], at) for number, of in groups.items()]
    try:
        found = await every(calls)
    except StoreFull as error:
        if len(groups) == 1:
            raise
        raise StoreFull(
            f"{shards.where}: a server of the cluster has reached its maxmemory. The rows for others are stored; "
            "repeating all of it is safe, and work goes on by itself"
        ) from error
    for (number, of), inserted in zip(groups.items(), found, strict=True):
        answers.update(zip(of, inserted, strict=True))
        shards.saw((one.id for one in inserted if one is not LEFT), number)


async def _put_again(
    shards: Shards, rows: Sequence[Row], indexes: Sequence[int], answers: dict[int, Inserted], at: Stamp
) -> None:
    """Store the jobs that have left their shard and are nowhere any more: they are new."""
    records = await reading.fetch(shards, [rows[index].id for index in indexes], frozenset(), at)
    gone: list[int] = []
    for index, record in zip(indexes, records, strict=True):
        if record is None:
            gone.append(index)
        else:
            answers[index] = _same(record)
    await every(shards.shard_of(rows[index].queue).untrace([rows[index].id]) for index in gone)
    await _put(shards, rows, gone, answers, at)
