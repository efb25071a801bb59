"""An insert into the queues of several shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.backends.redis import rows as shapes
from headrace.backends.redis.cluster import reading
from headrace.backends.redis.cluster.fleet import Fleet, every
from headrace.backends.redis.shard import LEFT
from headrace.records import Inserted, InsertStatus, JobId, Row, Stamp


async def insert(fleet: Fleet, rows: Sequence[Row], at: Stamp) -> list[Inserted]:
    """Each shard gets its rows. An id that is known to be elsewhere, or that has left its shard, is no new job."""
    shapes.checked(rows)
    answers: list[Inserted] = []
    for piece in _pieces(fleet, rows):
        answers += await _insert(fleet, piece, at)
    return answers


def _pieces(fleet: Fleet, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """In none of them an id goes to two shards; as a rule there is one."""
    shards: dict[JobId, int] = {}
    first = 0
    for place, row in enumerate(rows):
        number = fleet.number_of(row.queue)
        if shards.setdefault(row.id, number) != number:
            yield rows[first:place]
            first, shards = place, {row.id: number}
    yield rows[first:]


async def _insert(fleet: Fleet, rows: Sequence[Row], at: Stamp) -> list[Inserted]:
    known = await elsewhere(fleet, rows, at)
    answers: dict[int, Inserted] = {}
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        if row.id in known:
            answers[place] = known[row.id]
        else:
            groups.setdefault(fleet.number_of(row.queue), []).append(place)
    await _put(fleet, rows, groups, answers, at)
    if left := [place for place, answer in answers.items() if answer is LEFT]:
        await _put_again(fleet, rows, left, answers, at)
    return [answers[place] for place in range(len(rows))]


async def _put(
    fleet: Fleet, rows: Sequence[Row], groups: dict[int, list[int]], answers: dict[int, Inserted], at: Stamp
) -> None:
    calls = [fleet.parts[number].insert([rows[place] for place in places], at) for number, places in groups.items()]
    for (number, places), inserted in zip(groups.items(), await every(calls), strict=True):
        answers.update(zip(places, inserted, strict=True))
        fleet.saw((one.id for one in inserted if one is not LEFT), number)


async def _put_again(
    fleet: Fleet, rows: Sequence[Row], places: Sequence[int], answers: dict[int, Inserted], at: Stamp
) -> None:
    """Of jobs that have left their shard: those that are nowhere any more are new."""
    found = await _same(fleet, [rows[place].id for place in places], at)
    groups: dict[int, list[int]] = {}
    for place in places:
        row = rows[place]
        if row.id in found:
            answers[place] = found[row.id]
        else:
            groups.setdefault(fleet.number_of(row.queue), []).append(place)
    await every(fleet.parts[n].unmark([rows[place].id for place in of]) for n, of in groups.items())
    await _put(fleet, rows, groups, answers, at)


async def elsewhere(fleet: Fleet, rows: Sequence[Row], at: Stamp) -> dict[JobId, Inserted]:
    """Of rows whose id this process has seen in another shard: those whose job is still there."""
    strays = [
        row.id for row in rows if (seen := fleet.last_seen(row.id)) is not None and seen != fleet.number_of(row.queue)
    ]
    return await _same(fleet, strays, at) if strays else {}


async def _same(fleet: Fleet, ids: Sequence[JobId], at: Stamp) -> dict[JobId, Inserted]:
    records = await reading.fetch(fleet, ids, frozenset(), at)
    return {
        record.id: Inserted(InsertStatus.SAME, record.id, record.state, None, record.attempt)
        for record in records
        if record is not None
    }
