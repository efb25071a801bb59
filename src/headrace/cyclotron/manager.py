"""The manager: creates jobs, one or very many, on one shard or several."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal
from uuid import UUID

from headrace.api.client import Client
from headrace.api.connection import connect
from headrace.core.durations import micros
from headrace.core.numbers import check_whole
from headrace.cyclotron.fields import JobInit, check, check_state, new_job, task_of, tenant_of
from headrace.cyclotron.resumes import remember
from headrace.cyclotron.shard import Shard
from headrace.cyclotron.stored_job import StoredJob, stored_job
from headrace.errors import ConfigError, JobNotFound, QueueFull, Unavailable
from headrace.seam.records import Change, Pause, Requeue, Resume, Selector
from headrace.text import shown
from headrace.types import SECTIONS, Duration, JobState, NewJob

_AT_ONCE = 4
"""Chunks that are under way at once."""
_POLL = 0.1
"""Seconds between two looks for room."""
_ALL = frozenset(SECTIONS)


class Manager:
    """Creates jobs. Chunks of a bulk go to the shards in turn.

    A shard that cannot be opened is left out, and tried again later; only if none can be opened, an error is raised.

    >>> import asyncio
    >>> from headrace.cyclotron import JobInit, Manager
    >>> async def main():
    ...     async with Manager("memory://", depth_limit=10_000) as manager:
    ...         ids = await manager.bulk_create_jobs([JobInit(team_id=7, queue_name="hog") for _ in range(3)])
    ...         return len(ids), (await manager.get_job(ids[0])).state.value
    >>> asyncio.run(main())
    (3, 'available')
    """

    def __init__(
        self,
        shards: str | Client | Sequence[str | Client],
        *,
        depth_limit: int | None = None,
        check_interval: Duration = "10s",
        when_full: Literal["raise", "block", "reroute"] = "raise",
        timeout: Duration | None = None,
        chunk_size: int = 1_000,
        parallel: bool = False,
        copy: bool = False,
        compress_vm_state: bool = False,
        **settings: Any,
    ) -> None:
        """``shards``: the stores, as URLs or clients. ``depth_limit``: how many jobs may wait in each of them, which is
        looked at every ``check_interval``. ``when_full``: ``"raise"`` ``QueueFull``, ``"block"`` for up to ``timeout``
        until there is room, or ``"reroute"`` to the shards that have some. ``chunk_size``: jobs per transaction.
        ``parallel``: several chunks at once. ``copy`` (PostgreSQL) and ``compress_vm_state`` are for shards given as
        URLs; a client has settings of its own, as ``settings`` are.
        """
        given = [shards] if isinstance(shards, str | Client) else list(shards)
        if not given:
            raise ConfigError("shards: expected at least one URL or client, got none")
        if when_full not in ("raise", "block", "reroute"):
            raise ConfigError(f"when_full: expected 'raise', 'block' or 'reroute', got {shown(when_full)}")
        if depth_limit is not None:
            check_whole(depth_limit, "depth_limit", 0)
        self._chunk_size = check_whole(chunk_size, "chunk_size", 1)
        self._parallel = parallel
        self._when_full = when_full
        self._timeout = None if timeout is None else micros(timeout, "timeout") / 1e6
        every = micros(check_interval, "check_interval") / 1e6
        clients = [one if isinstance(one, Client) else _client(one, copy, compress_vm_state, settings) for one in given]
        self._own = [client for client, one in zip(clients, given, strict=True) if client is not one]
        self._shards = [Shard(one, i, depth_limit=depth_limit, every=every) for i, one in enumerate(clients)]
        self._next = 0

    # -- opening and closing

    async def open(self) -> None:
        """Connect to all shards. Raises only if none is there."""
        await self._up()

    async def close(self) -> None:
        """Disconnect from the shards that were given as URLs."""
        for client in self._own:
            await client.close()
        for shard in self._shards:
            shard.opened = False

    async def __aenter__(self) -> Manager:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _up(self) -> list[Shard]:
        for at_once in (False, True):  # if all are resting, try them before giving up
            there = await asyncio.gather(*(shard.open(at_once=at_once) for shard in self._shards))
            if up := [shard for shard, is_there in zip(self._shards, there, strict=True) if is_there]:
                return up
        errors = [shard.error for shard in self._shards if shard.error is not None]
        raise errors[0] if len(self._shards) == 1 else Unavailable(f"none of the shards can be opened: {errors[0]}")

    # -- creating

    async def create_job(self, job: JobInit) -> UUID:
        """Store one job; returns its id."""
        [job_id] = await self.bulk_create_jobs([job])
        return job_id

    async def bulk_create_jobs(self, jobs: Iterable[JobInit]) -> list[UUID]:
        """Store many jobs; returns their ids, in order. All are checked before the first is stored.

        Each chunk is a transaction of its own. If one fails, the others are stored all the same, and the error is
        raised in the end. Then call it again with the same objects: what is stored already is not stored twice.
        ``QueueFull`` lists in ``admitted`` and ``refused`` which jobs are stored.
        """
        given = list(jobs)
        up = await self._up()
        packer = up[0].client.packer
        for init in given:
            check(init, packer)
        for init in given:
            init.id = init.id or UUID(bytes=packer.new_id())
        rows = [new_job(init) for init in given]
        size = min(self._chunk_size, *(shard.client.limits.max_batch for shard in up))
        await self._store_chunks([rows[i : i + size] for i in range(0, len(rows), size)], up)
        return [init.id for init in given if init.id is not None]

    async def _store_chunks(self, chunks: list[list[NewJob]], up: list[Shard]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE if self._parallel else 1)
        failed: list[Exception] = []
        refused: list[NewJob] = []

        async def store(chunk: list[NewJob], shards: list[Shard]) -> None:
            async with gate:
                if failed and not self._parallel:
                    return
                try:
                    refused.extend(await self._store(chunk, shards))
                except Exception as error:
                    failed.append(error)

        async with asyncio.TaskGroup() as group:
            for chunk in chunks:
                group.create_task(store(chunk, self._rotated(up)), name="headrace-chunk")
        if failed:
            raise failed[0]
        if refused:
            raise _full(refused, [job for chunk in chunks for job in chunk])

    def _rotated(self, up: list[Shard]) -> list[Shard]:
        """The shards, each time beginning with another one."""
        self._next += 1
        first = self._next % len(up)
        return up[first:] + up[:first]

    async def _store(self, jobs: list[NewJob], shards: list[Shard]) -> list[NewJob]:
        """Store a chunk; returns what there is no room for."""
        if self._when_full != "reroute":
            shards = shards[:1]
        deadline = None if self._timeout is None else asyncio.get_running_loop().time() + self._timeout
        left = jobs
        while True:
            for shard in shards:
                try:
                    room = await shard.reserve(len(left))
                except Unavailable as error:  # nothing was sent, so another shard may have it
                    if shard is shards[-1]:
                        raise
                    shard.rest(error)
                    continue
                part, left = left[:room], left[room:]
                if part:
                    left = [*await shard.insert(part), *left]
                if not left:
                    return []
            if self._when_full != "block" or (deadline is not None and asyncio.get_running_loop().time() >= deadline):
                return left
            await asyncio.sleep(_POLL)
            await shards[0].depth(now=True)

    # -- looking and changing

    async def get_job(self, job_id: UUID) -> StoredJob:
        """A job with all its sections, on whichever shard it is. Raises ``JobNotFound``."""
        for shard in await self._up():
            record = await shard.client.fetch(job_id, _ALL)
            if record is not None:
                return stored_job(record, shard.client.packer.envelope)
        raise JobNotFound(f"no job {job_id} on any shard")

    async def list_jobs(
        self,
        *,
        team_id: int | None = None,
        function_id: UUID | None = None,
        queue_name: str | None = None,
        state: JobState | str | None = None,
        limit: int = 100,
    ) -> list[StoredJob]:
        """Jobs of a team, a function, a queue or in a state, newest first on each shard, without sections."""
        wanted = Selector(
            tenant=None if team_id is None else tenant_of(team_id),
            task=None if function_id is None else task_of(function_id),
            queue=queue_name,
            states=None if state is None else frozenset({check_state(state)}),
        )
        found: list[StoredJob] = []
        for shard in await self._up():
            backend, after = await shard.client.backend(), None
            while len(found) < limit:
                size = min(limit - len(found), backend.limits.max_batch)
                page = await backend.scan(wanted, after, size, shard.client.clock.stamp())
                found += [stored_job(record, shard.client.packer.envelope) for record in page.records]
                if (after := page.after) is None:
                    break
        return found

    async def pause_job(self, job_id: UUID) -> JobState:
        """``available`` to ``paused``. Returns its state. Raises ``JobNotFound``."""
        return await self._change(job_id, Pause())

    async def resume_job(self, job_id: UUID) -> JobState:
        """``paused`` to ``available``. Returns its state. If it runs, the janitor resumes it once it pauses. Raises
        ``JobNotFound``."""
        state = await self._change(job_id, Resume())
        if state is JobState.RUNNING:
            await remember(await self._home(job_id), job_id)
        return state

    async def replay_job(self, job_id: UUID) -> JobState:
        """Run a job again that has ended, such as a dead letter, with all counts at zero. Returns its state. Raises
        ``JobNotFound``."""
        return await self._change(job_id, Requeue())

    async def _change(self, job_id: UUID, change: Change) -> JobState:
        for shard in await self._up():
            altered = await shard.client.alter(Selector(ids=[job_id.bytes]), change)
            if altered and altered[0].after is not None:
                return altered[0].after
        raise JobNotFound(f"no job {job_id} on any shard")

    async def _home(self, job_id: UUID) -> Client:
        """The shard that has the job."""
        for shard in await self._up():
            if await shard.client.fetch(job_id, frozenset()) is not None:
                return shard.client
        raise JobNotFound(f"no job {job_id} on any shard")

    async def depths(self) -> dict[int, int | None]:
        """How many jobs wait on each shard, counted from 0; None: it is not there. Dead letters do not count."""
        found: dict[int, int | None] = {}
        for shard in self._shards:
            found[shard.number] = await shard.depth(now=True) if await shard.open() else None
        return found


def _client(url: str, copy: bool, compress_vm_state: bool, settings: dict[str, Any]) -> Client:
    if url.startswith(("postgresql:", "postgres:")):
        url += f"{'&' if '?' in url else '?'}copy={'yes' if copy else 'no'}"
    payloads = {"compress": {"vm_state": compress_vm_state}}
    return connect(url, **{"payloads": payloads, **settings})


def _full(refused: list[NewJob], jobs: list[NewJob]) -> QueueFull:
    ids = {job.job_id for job in refused}
    admitted = [job.job_id for job in jobs if job.job_id not in ids]
    return QueueFull(
        f"{len(refused):,} of {len(jobs):,} jobs were not stored: the shard is full, or a queue of it; try again "
        "later, or use when_full='block' or 'reroute'",
        queue=refused[0].queue,
        admitted=[job_id for job_id in admitted if job_id is not None],
        refused=[job.job_id for job in jobs if job.job_id in ids and job.job_id is not None],
    )
