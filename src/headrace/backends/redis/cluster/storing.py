"""An insert into the queues of several shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.backends.redis import rows as shapes
from headrace.backends.redis.cluster import reading
from headrace.backends.redis.cluster.fleet import Fleet, every
from headrace.backends.redis.shard import LEFT
from headrace.errors import StoreFull
from headrace.records import Inserted, InsertStatus, Row, Stamp


async def insert(fleet: Fleet, rows: Sequence[Row], at: Stamp) -> list[Inserted]:
    """Each shard gets its rows. An id that has left its shard is no new job."""
    shapes.checked(rows)
    answers: dict[int, Inserted] = {}
    await _put(fleet, rows, range(len(rows)), answers, at)
    if left := [place for place, answer in answers.items() if answer is LEFT]:
        await _put_again(fleet, rows, left, answers, at)
    return [answers[place] for place in range(len(rows))]


async def _put(
    fleet: Fleet, rows: Sequence[Row], places: Iterable[int], answers: dict[int, Inserted], at: Stamp
) -> None:
    groups: dict[int, list[int]] = {}
    for place in places:
        groups.setdefault(fleet.number_of(rows[place].queue), []).append(place)
    calls = [fleet.parts[number].insert([rows[place] for place in of], at) for number, of in groups.items()]
    try:
        found = await every(calls)
    except StoreFull as error:
        if len(groups) == 1:
            raise
        raise StoreFull(
            f"{fleet.where}: a server of the cluster has reached its maxmemory. What others were to store is stored; "
            "repeating all of it is safe, and work goes on by itself"
        ) from error
    for (number, of), inserted in zip(groups.items(), found, strict=True):
        answers.update(zip(of, inserted, strict=True))
        fleet.saw((one.id for one in inserted if one is not LEFT), number)


async def _put_again(
    fleet: Fleet, rows: Sequence[Row], places: Sequence[int], answers: dict[int, Inserted], at: Stamp
) -> None:
    """Of jobs that have left their shard: those that are nowhere any more are new."""
    records = await reading.fetch(fleet, [rows[place].id for place in places], frozenset(), at)
    gone: list[int] = []
    for place, record in zip(places, records, strict=True):
        if record is None:
            gone.append(place)
        else:
            answers[place] = Inserted(InsertStatus.SAME, record.id, record.state, None, record.attempt)
    await every(fleet.part_of(rows[place].queue).unmark([rows[place].id]) for place in gone)
    await _put(fleet, rows, gone, answers, at)
