"""Deletes ended jobs, and counts each of them once, whatever crashes in between.

One job of the store, the *broom*, says which jobs are being deleted. Whoever holds it sweeps, so there is one janitor
at a time. To delete a batch, the holder releases the broom with the list of these jobs; in the same step it spawns a
job with their counts. The next holder, most often the same janitor, deletes what is on the list, and only then looks
for more. So a batch is counted exactly when it is put on the list, and deleted, perhaps in several tries, after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from uuid import UUID

import msgspec

from headrace.api.client import Client
from headrace.cyclotron.aggregates import Aggregate, aggregates, entry
from headrace.cyclotron.fields import OURS
from headrace.errors import PayloadError
from headrace.seam.records import Delete, JobId, Record, Requeue, Selector
from headrace.types import Duration, JobState, NewJob
from headrace.worker.pull import Pull
from headrace.worker.pulled_job import PulledJob

log = logging.getLogger("headrace")

QUEUE = f"{OURS}janitor"
_BROOM = UUID("0196c1c1-0710-7000-8000-6a616e69746f")
_ENDED = frozenset((JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED))
_PAGE = 1_000
_PART = 100
"""Jobs that are deleted in one call: more would keep others waiting."""

Listed = list[tuple[JobId, int]]
"""Jobs that are being deleted, each with the instant at which it ended."""
_DECODER = msgspec.msgpack.Decoder(Listed)


class Deletion:
    """Deletes what ended longer ago than ``keep`` says of its state, in batches."""

    def __init__(
        self, client: Client, pull: Pull, *, keep: Mapping[JobState, int], batch: int, keep_counts: Duration
    ) -> None:
        self._client = client
        self._pull = pull
        self._keep = keep
        self._batch = batch
        self._keep_counts = keep_counts

    async def prepare(self) -> None:
        """Make the broom, if there is none. One that died with its holders too often is put back, with its list."""
        await self._client.insert([NewJob(task="cyclotron.janitor", queue=QUEUE, id=_BROOM)])
        await self._client.alter(Selector(ids=[_BROOM.bytes], states=_ENDED), Requeue())

    async def run(self, until: float) -> tuple[list[Aggregate], int] | None:
        """Delete until nothing is left, or until a moment of the loop's clock. Returns the counts of what it put on the
        list and how many jobs it deleted; None: another janitor has the broom."""
        counted: list[Aggregate] = []
        deleted, more, met = 0, True, False
        loop = asyncio.get_running_loop()
        search, mine = _Search(self._client, self._keep), Listed()
        while more:
            found = await self._pull.take(1, wait=0)
            if not found:
                return (counted, deleted) if met else None
            [broom], met = found, True
            listed = _listed(broom)
            if listed != mine:  # somebody else had the broom: what was found before may be counted by now
                search = _Search(self._client, self._keep)
            deleted += await self._delete(listed)
            batch = await search.next(self._batch) if loop.time() < until else []
            more = bool(batch)
            counts = aggregates(batch)
            mine = [(record.id, record.finished_at or 0) for record in batch]
            broom.set_parameters(msgspec.msgpack.encode(mine) if mine else None)
            if counts:
                broom.spawn(entry(counts, self._keep_counts))
            broom.set_state(JobState.AVAILABLE)
            await broom.release()
            counted += counts
        return counted, deleted

    async def _delete(self, listed: Listed) -> int:
        """Delete what is on the list, unless it runs again by now, or has ended again."""
        deleted, backend = 0, await self._client.backend()
        for at in range(0, len(listed), _PART):
            part = dict(listed[at : at + _PART])
            records = await backend.fetch(list(part), at=self._client.clock.stamp())
            ids = [one.id for one in records if one is not None and one.finished_at == part[one.id]]
            if ids:
                altered = await self._client.alter(Selector(ids=ids, states=_ENDED), Delete())
                deleted += sum(one.after is None for one in altered)
        return deleted


class _Search:
    """Looks for jobs that ended long enough ago, a page at a time."""

    def __init__(self, client: Client, keep: Mapping[JobState, int]) -> None:
        self._client = client
        self._left = list(keep.items())
        self._after: str | None = None
        self._found: list[Record] = []

    async def next(self, count: int) -> list[Record]:
        """The next ones, as many as that; fewer if there are no more."""
        backend, stamp = await self._client.backend(), self._client.clock.stamp()
        while self._left and len(self._found) < count:
            state, keep = self._left[0]
            wanted = Selector(states=frozenset({state}), older_than=keep)
            page = await backend.scan(wanted, self._after, min(_PAGE, backend.limits.max_batch), stamp)
            ended = await backend.now(stamp) - keep
            self._found += [one for one in page.records if one.finished_at is not None and one.finished_at <= ended]
            self._after = page.after
            if self._after is None:
                self._left.pop(0)
        found, self._found = self._found[:count], self._found[count:]
        return found


def _listed(broom: PulledJob) -> Listed:
    try:
        packed = broom.section("parameters")
        return [] if packed is None else _DECODER.decode(packed)
    except (PayloadError, msgspec.MsgspecError):
        log.exception("the list of jobs that are being deleted cannot be read; they are found and counted again")
        return []
