"""What looks at single jobs, or changes them from outside: for it, deliveries become leases of PostgreSQL first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from headrace.backends.streams.deliveries import Deliveries, Delivery, Known
from headrace.backends.streams.relay import Relay
from headrace.backends.streams.truth import Truth
from headrace.backends.streams.windows import OPEN, Windows
from headrace.errors import BackendError
from headrace.seam import records as r
from headrace.types import JobState

_FAR = 100_000
_STATELESS = r.Watch | r.Hold


class Changing:
    """Windows and PostgreSQL, brought to agree on some jobs."""

    def __init__(self, truth: Truth, windows: Windows, relay: Relay, deliveries: Deliveries) -> None:
        self._truth = truth
        self._windows = windows
        self._relay = relay
        self._deliveries = deliveries

    async def before_insert(self, rows: Sequence[r.Row], at: r.Stamp) -> None:
        """Whether a job has started decides about a key, and whether a row replaces it: PostgreSQL must know it."""
        pending = [r.JobKey(row.queue, row.key) for row in rows if row.key and row.key_until is r.KeyUntil.STARTED]
        if pending:
            await self.take_over(await self._waiting(pending, at), at)
        keys = [r.JobKey(row.queue, row.key) for row in rows if row.key and row.replaces is not r.Replaces.NOTHING]
        if keys:
            await self._recall(await self._waiting(keys, at), at)

    async def take_over_named(self, beat: r.Beat, at: r.Stamp) -> None:
        """PostgreSQL keeps the progress of jobs with their leases."""
        meant = [(job_id, epoch, beat.holder) for job_id, epoch in beat.leases if job_id in beat.progress]
        for queue, given in self._deliveries.by_queue(meant).items():
            with suppress(BackendError):
                found = await self._windows.find(queue, [job_id for job_id, _ in given], at)
                await self._hand_over(queue, [one for one in found if (one.id, one.epoch) in given], at)

    async def _waiting(self, names: Sequence[r.JobId | r.JobKey], at: r.Stamp) -> list[r.Record]:
        """Of these jobs, those that wait by PostgreSQL's account."""
        records = await self._truth.fetch(names, at=at)
        return [one for one in records if one is not None and one.state is JobState.AVAILABLE]

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        """See :meth:`headrace.seam.protocol.Backend.alter`."""
        if sel.ids is None and sel.keys is None:
            queues = await self._windows.queues(at) if sel.queue is None else [sel.queue]
            for queue in queues:
                if queue in self._windows.feeds or await self._is_open(queue):
                    await self._relay.close(queue, at)
            return await self._truth.alter(sel, change, at)
        names: list[r.JobId | r.JobKey] = [*(sel.ids or ()), *(sel.keys or ())]
        waiting = await self._waiting(names, at)
        if isinstance(change, _STATELESS):
            await self.take_over(waiting, at)
        else:
            await self._recall(waiting, at)
        altered = await self._truth.alter(sel, change, at)
        for queue in {one.queue for one in waiting}:
            with suppress(BackendError):
                await self._windows.tell(queue)
        return altered

    async def _is_open(self, queue: str) -> bool:
        return (await self._windows.health(queue, None)).mode == OPEN

    async def _recall(self, waiting: Sequence[r.Record], at: r.Stamp) -> None:
        for queue, ids in by_queue(waiting).items():
            found = await self._windows.find(queue, ids, at, recall=True)
            await self._hand_over(queue, found, at)

    async def recall(self, ids: Sequence[r.JobId], at: r.Stamp) -> None:
        """These jobs leave their windows, and are looked for again."""
        waiting = await self._waiting(ids, at)
        await self._recall(waiting, at)
        for queue in {one.queue for one in waiting}:
            await self._windows.tell(queue)

    async def take_over(self, waiting: Sequence[r.Record], at: r.Stamp) -> bool:
        """Whether any of these jobs, which wait by PostgreSQL's account, was given out."""
        any_found = False
        for queue, ids in by_queue(waiting).items():
            found = await self._windows.find(queue, ids, at)
            await self._hand_over(queue, found, at)
            any_found = any_found or bool(found)
        return any_found

    async def take_over_all(self, queues: Sequence[str] | None, at: r.Stamp) -> None:
        """All deliveries become leases."""
        for queue in await self._windows.queues(at) if queues is None else queues:
            await self._hand_over(queue, await self._windows.held(queue, _FAR, at), at)

    async def watch(self, at: r.Stamp) -> None:
        """PostgreSQL notes that this Valkey is at work, if it is in charge."""
        if not await self._truth.watch(self._windows.floor, at):
            await self._windows.begin_again(at)

    async def take_back(self, limit: int, pulse: Sequence[int], at: r.Stamp) -> int:
        """Deliveries whose lease has ended become leases that have ended: a reap finds them. How many there were."""
        number = 0
        with suppress(BackendError):
            for queue, found in (await self._windows.overdue(limit, at, pulse)).items():
                await self._hand_over(queue, found, at)
                number += len(found)
        return number

    async def _hand_over(self, queue: str, found: Sequence[Delivery], at: r.Stamp) -> None:
        """PostgreSQL first: a delivery that both know is one lease."""
        if found:
            await self._truth.take_over(found, at)
            await self._windows.settle(queue, [(one.id, one.epoch) for one in found], at)

    async def told_running(self, rows: Sequence[r.Row], answers: list[r.Inserted], at: r.Stamp) -> list[r.Inserted]:
        """The answers to rows whose key a job has that was given out: it runs."""
        told = list(answers)
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if answer.status is r.InsertStatus.DUPLICATE and answer.state is JobState.AVAILABLE:
                found: list[Delivery] = []
                with suppress(BackendError):
                    found = await self._windows.find(row.queue, [answer.id], at)
                if found:
                    told[number] = replace(answer, state=JobState.RUNNING)
        return told

    async def given_elsewhere(self, batch: Sequence[r.Settlement], at: r.Stamp) -> Known:
        """Those that a window has given to their holder, through another process or an earlier life of this one."""
        waiting = await self._waiting([s.id for s in batch], at)
        meant = {(s.id, s.epoch, s.holder) for s in batch}
        for queue, ids in by_queue(waiting).items():
            with suppress(BackendError):
                found = [
                    one for one in await self._windows.find(queue, ids, at) if (one.id, one.epoch, one.holder) in meant
                ]
                self._deliveries.note_found(queue, found)
        return self._deliveries.known(batch)

    async def census(self, beat: r.Beat, renewed: r.Renewed, at: r.Stamp) -> r.Renewed:
        """The holder's deliveries too, and whether any has ended."""
        held = list(renewed.held)
        overdue = renewed.overdue
        try:
            for queue in await self._windows.queues(at):
                found = await self._windows.held(queue, r.CENSUS, at, holder=beat.holder)
                self._deliveries.note_found(queue, found)
                held += [(one.id, one.epoch, one.begun) for one in found]
            overdue = overdue or bool(await self._windows.overdue(1, at))
        except BackendError:
            return replace(renewed, held=held, overdue=overdue, doubtful=True)
        return replace(renewed, held=list(dict.fromkeys(held)), overdue=overdue)

    async def leave(self, beat: r.Beat, at: r.Stamp) -> None:
        """The consumers of a holder that leaves go, where they own nothing."""
        with suppress(BackendError):
            await asyncio.gather(*(self._windows.prune(queue, holder=beat.holder) for queue in beat.queues))


def by_queue(records: Sequence[r.Record]) -> dict[str, list[r.JobId]]:
    """The ids of jobs."""
    found: dict[str, list[r.JobId]] = {}
    for one in records:
        found.setdefault(one.queue, []).append(one.id)
    return found
