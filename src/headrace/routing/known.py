"""New jobs that are old ones: their id, or their key, is in the store that jobs move away from."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.routing.transit import deliver_named
from headrace.routing.view import View
from headrace.seam.policy import STORE
from headrace.seam.records import Inserted, InsertStatus, JobId, JobKey, Row, Stamp


async def known_in(view: View, rows: Mapping[int, Row], at: Stamp) -> dict[int, Inserted]:
    """The answers to rows that the first store knows already. It is closed to new jobs, so it answers for those that it
    knows, by id or by key, and refuses the others. Jobs of the others that are in parcels are in the second store
    afterwards, which then knows them."""
    if not rows:
        return {}
    found = dict(zip(rows, await view.stores[0].insert(list(rows.values()), at), strict=True))
    refused = [rows[number] for number, answer in found.items() if is_closed(answer)]
    names: list[JobId | JobKey] = [row.id for row in refused]
    names += [JobKey(row.queue, row.key) for row in refused if row.key is not None]
    await deliver_named(view, names)
    return {number: answer for number, answer in found.items() if not is_closed(answer)}


def is_closed(answer: Inserted) -> bool:
    """Whether the store takes no new jobs at all: jobs go to the other one."""
    room = answer.room
    return answer.status is InsertStatus.FULL and room is not None and (room.queue, room.depth) == (STORE, 0)
