"""The janitor: takes back stalled jobs, sorts out poison pills, counts and deletes old jobs, looks after objects."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

from msgspec import Struct

from headrace.api.client import Client
from headrace.api.connection import connect
from headrace.core.durations import micros
from headrace.core.numbers import check_whole
from headrace.core.walks import walk
from headrace.cyclotron.aggregates import AGGREGATES, Aggregate, added, read
from headrace.cyclotron.deletion import QUEUE, Deletion
from headrace.cyclotron.fields import OURS
from headrace.cyclotron.resumes import Resumes
from headrace.cyclotron.surplus import Surplus
from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.keeping.object_keeper import ObjectKeeper
from headrace.seam.records import Reap, Selector
from headrace.types import Duration, JobState
from headrace.worker.reaper import event_of

log = logging.getLogger("headrace")

_LIMIT = 1_000


class Report(Struct, frozen=True, kw_only=True):
    """What one round of the janitor did."""

    stalled: int = 0
    """Jobs that were taken back from workers that died."""
    poisoned: int = 0
    """Jobs that stalled too often in a row, and are dead letters now."""
    resumed: int = 0
    """Jobs that have paused, and were to be resumed before that."""
    deleted: int = 0
    """Jobs that went because of their age."""
    surplus: int = 0
    """Dead letters that went because there were too many, or their bytes were."""
    aggregates: list[Aggregate] = []
    """Of what this round found to be deleted because of its age."""
    depths: dict[str, int] = {}
    """Jobs that wait, by queue; 0 for a queue that was seen before and is gone."""
    skipped: bool = False
    """Whether another janitor was deleting at the same time, or this one is still in its last round."""


class Janitor:
    """Keeps a shard tidy. Any number may run at once; one of them at a time deletes.

    >>> import asyncio
    >>> from headrace import connect
    >>> from headrace.cyclotron import Janitor
    >>> async def main():
    ...     async with connect("memory://") as client, Janitor(client, max_touches=3) as janitor:
    ...         return (await janitor.run_once()).stalled
    >>> asyncio.run(main())
    0
    """

    def __init__(
        self,
        shard: str | Client,
        *,
        completed: Duration = "1h",
        failed: Duration = "7d",
        max_touches: int = 3,
        interval: Duration = "10s",
        batch: int = 1_000,
        budget: Duration = "30s",
        keep_aggregates: Duration = "30d",
        **settings: Any,
    ) -> None:
        """``completed``, ``failed``: how long ended jobs stay; a cancelled one as long as a completed one.
        ``max_touches``: a job that stalls more often than this in a row is a poison pill. ``interval``: between two
        rounds of ``run``. ``batch``: jobs that are counted and deleted together. ``budget``: how long one round may go
        on deleting. ``keep_aggregates``: how long counts stay if nobody consumes them. ``settings`` are for a shard
        that is given as a URL. ``retention.failed`` among them, or a rule in the store, bounds how many dead letters
        there may be and how many bytes.
        """
        self._client = shard if isinstance(shard, Client) else connect(shard, **settings)
        self._owns = self._client is not shard
        spare = 2 * micros(self._client.settings.patience)
        ages = {JobState.COMPLETED: completed, JobState.CANCELLED: completed, JobState.FAILED: failed}
        keep = {state: micros(age, state.value) for state, age in ages.items()}
        if min(keep.values()) < spare:
            raise ConfigError(
                f"completed, failed: expected at least twice the patience ({spare / 1e6:g} s), in which an insert that "
                "was stored may be repeated; keep jobs for longer, or lower patience"
            )
        self._max_touches = check_whole(max_touches, "max_touches", 0)
        self._interval = micros(interval, "interval") / 1e6
        self._spread = int(self._interval * 1e6)
        self._budget = micros(budget, "budget") / 1e6
        self._pull = self._client.pull(QUEUE, batch=1, want={"parameters"}, upkeep=False)
        self._deletion = Deletion(
            self._client,
            self._pull,
            keep=keep,
            batch=check_whole(batch, "batch", 1, _LIMIT),
            keep_counts=keep_aggregates,
        )
        self._surplus = Surplus(self._client, spare)
        self._resumes = Resumes(self._client, interval)
        self._objects: ObjectKeeper | None = None
        self._busy = False
        self._seen: set[str] = set()

    # -- opening and closing

    async def open(self) -> None:
        """Connect."""
        await self._pull.open()
        await self._deletion.prepare()

    async def close(self) -> None:
        """Stop and disconnect."""
        await self._pull.close()
        await self._resumes.close()
        if self._owns:
            await self._client.close()

    async def __aenter__(self) -> Janitor:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- the work

    async def run_once(self) -> Report:
        """One round: poison pills and stalled jobs, then deletion, then dead letters of which there are too many, then
        objects, as often as ``objects.every`` says. It is skipped if another round is under way. Every job whose worker
        was not heard of in time counts as stalled, even if the store stood still meanwhile; ``run`` is more careful."""
        return await self._round(Reap(limit=_LIMIT, max_lost=self._max_touches, spread=self._spread))

    async def _round(self, request: Reap) -> Report:
        if self._busy:
            return Report(skipped=True)
        self._busy = True
        try:
            await self.open()
            stalled, poisoned = await self._take_back(request)
            resumed = await self._resumes.run()
            deleted = await self._deletion.run(asyncio.get_running_loop().time() + self._budget)
            surplus = await self._surplus.run()
            await self._look_after_objects()
            return Report(
                stalled=stalled,
                poisoned=poisoned,
                resumed=resumed,
                deleted=0 if deleted is None else deleted[1],
                surplus=surplus,
                aggregates=[] if deleted is None else added(deleted[0]),
                depths=await self._depths(),
                skipped=deleted is None,
            )
        finally:
            self._busy = False

    async def run(self) -> None:
        """Rounds for ever, until cancelled. A round that fails is reported, and the next one comes all the same."""
        lease = micros(self._client.settings.worker.lease)
        await self.open()
        careful = Reap(
            limit=_LIMIT,
            max_lost=self._max_touches,
            spread=self._spread,
            holder=self._pull.holder,
            gap=lease // 4,
            steady=lease // 2,
        )
        while True:
            try:
                await self._round(careful)
            except Unavailable as error:
                log.warning("the janitor cannot reach the store; it tries again: %s", error)
            except HeadraceError:
                log.exception("a round of the janitor failed; the next one comes all the same")
            await asyncio.sleep(self._interval)

    async def _take_back(self, request: Reap) -> tuple[int, int]:
        """Each job in one step: above ``max_touches`` it becomes a dead letter, else it is available again."""
        backend, stalled, poisoned, met = await self._client.backend(), 0, 0, _LIMIT
        while met == _LIMIT:
            reaped = await backend.reap(request, self._client.clock.stamp())
            met = len(reaped)
            for job in reaped:
                stalled += job.state is JobState.AVAILABLE
                poisoned += job.state is JobState.FAILED
                self._client.observers.tell(event_of(job))
        return stalled, poisoned

    async def _look_after_objects(self) -> None:
        """The workers of this package leave it to the janitor."""
        client = self._client
        if client.stowage is None:
            return
        if self._objects is None:
            backend, settings = await client.backend(), client.settings.objects
            self._objects = ObjectKeeper(backend, client.stowage, client.clock, Random(), client.observers, settings)
        await self._objects.look()

    async def _depths(self) -> dict[str, int]:
        stats = await self._client.stats()
        found = {one.queue: one.available + one.jobs_paused for one in stats.queues if not one.queue.startswith(OURS)}
        self._seen |= {*found}
        return {queue: found.get(queue, 0) for queue in sorted(self._seen)}

    async def aggregates(self) -> list[Aggregate]:
        """The counts of all jobs that were deleted. Of those that a janitor deleted because of their age, as far as
        nobody has consumed the jobs that carry them, in the queue ``_cyclotron_aggregates``. Others were counted by the
        store: they were too many, or retention removed them."""
        found = await self._surplus.aggregates()
        client, waiting = self._client, Selector(queue=AGGREGATES, states=frozenset({JobState.AVAILABLE}))
        async for records in walk(await client.backend(), waiting, client.clock, want=frozenset({"parameters"})):
            for record in records:
                if (cell := record.cells.get("parameters")) is not None:
                    found += read(client.packer.envelope.unwrap(cell, "parameters", record.id, record.tenant)[1])
        return added(found)
