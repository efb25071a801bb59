"""The manager: creates jobs, one or very many, on one shard or several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar
from uuid import UUID
from zlib import crc32

from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.core.config import Settings, merged
from headrace.core.durations import micros
from headrace.core.numbers import check_whole
from headrace.cyclotron.fields import JobInit, check, check_state, task_of, tenant_of
from headrace.cyclotron.resumes import remember
from headrace.cyclotron.shard import Shard
from headrace.cyclotron.stored_job import StoredJob, stored_job
from headrace.errors import ConfigError, JobNotFound, QueueFull, Unavailable
from headrace.payloads.object_url import parse
from headrace.seam.records import Change, Pause, Requeue, Resume, Selector
from headrace.text import shown
from headrace.types import SECTIONS, Duration, JobState

T = TypeVar("T")

_AT_ONCE = 4
"""Chunks that are under way at once."""
_POLL = 0.1
"""Seconds between two looks for room."""
_ALL = frozenset(SECTIONS)


class Manager:
    """Creates jobs. Chunks of a bulk go to the shards in turn.

    A shard that is away is left out, and tried again later; only if all are away, an error is raised. So is every other
    error at once, such as a ``ConfigError``.
    A look at jobs that may be on it says so instead of an answer.

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
        until there is room, or ``"reroute"`` to the shards that have some. ``chunk_size``: jobs that go to a
        store together; up to 64 are one transaction, more may be a few. ``parallel``: several chunks at once.
        ``copy`` (PostgreSQL, unless a URL says ``copy=`` itself) and ``compress_vm_state``, which counts for more than
        ``payloads``, are for shards given as URLs; a client has settings of its own, as ``settings`` are. Of several
        shards with ``objects``, each is a client with a prefix of its own.
        """
        given = [shards] if isinstance(shards, str | Client) else list(shards)
        if not given:
            raise ConfigError("shards: expected at least one URL or client, got none")
        if when_full not in ("raise", "block", "reroute"):
            raise ConfigError(f"when_full: expected 'raise', 'block' or 'reroute', got {shown(when_full)}")
        self._depth_limit = None if depth_limit is None else check_whole(depth_limit, "depth_limit", 0)
        self._chunk_size = check_whole(chunk_size, "chunk_size", 1)
        self._parallel = parallel
        self._when_full = when_full
        self._timeout = None if timeout is None else micros(timeout, "timeout") / 1e6
        every = micros(check_interval, "check_interval") / 1e6
        clients = [one if isinstance(one, Client) else _client(one, copy, compress_vm_state, settings) for one in given]
        _check_objects(clients)
        self._own = [client for client, one in zip(clients, given, strict=True) if client is not one]
        self._shards = [Shard(one, i, depth_limit=depth_limit, every=every) for i, one in enumerate(clients)]

    # -- opening and closing

    async def open(self) -> None:
        """Connect to all shards. Those that are away raise only if none is there."""
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

        If a chunk fails, the others are stored all the same, and the error is raised in the end. A chunk of up to 64
        jobs and 64 MiB is stored whole or not at all. A larger one may be stored in part: it is cut into transactions
        where it would hold up the store for more than 50 ms, say by jobs of very many teams. ``QueueFull`` lists in
        ``admitted`` and ``refused`` which jobs are stored.

        Call it again with the same objects, and what is stored already is not stored twice, on whichever shard it is:
        the objects know where they were sent, and go nowhere else. Other objects with the same ids are looked for on
        all shards that are there.
        """
        given = list(jobs)
        packer = (await self._up())[0].client.packer
        for init in given:
            check(init, packer)
        known = [init for init in given if init.id is not None]
        for init in given:
            init.id = init.id or UUID(bytes=packer.new_id())
        stored = await self._stored(known)
        left = {init.id: init for init in reversed(given) if init.id not in stored}
        refused = await self._store_chunks(self._chunks(list(reversed(left.values()))))
        if refused:
            raise _full(refused, given)
        return [init.id for init in given if init.id is not None]

    async def _stored(self, known: list[JobInit]) -> set[UUID]:
        """Those of these jobs that are stored already. One shard without a limit finds that out by itself."""
        if len(self._shards) == 1 and self._depth_limit is None:
            return set()
        up = [shard for shard in self._shards if shard.opened]
        places = [[init for init in known if self._place(init) in (None, shard.number)] for shard in up]
        return set().union(
            *await asyncio.gather(*(shard.has(inits) for shard, inits in zip(up, places, strict=True) if inits))
        )

    def _place(self, init: JobInit) -> int | None:
        """The number of the shard that a job was sent to, if it is one of these."""
        return init.shard if init.shard in range(len(self._shards)) else None

    def _chunks(self, inits: list[JobInit]) -> list[tuple[list[JobInit], list[Shard]]]:
        """Chunks, each with the shards that it may go to, the first choice first: what was sent to one goes there
        again, and the rest to all in turn. The same jobs make the same chunks, which go to the same places."""
        places: dict[int | None, list[JobInit]] = {}
        for init in inits:
            places.setdefault(self._place(init), []).append(init)
        size = min(self._chunk_size, *(shard.client.limits.max_batch for shard in self._shards))
        chunks = []
        for number, there in places.items():
            turn = crc32(there[0].id.bytes) if there[0].id is not None else 0
            for i in range(0, len(there), size):
                first = (turn + i // size) % len(self._shards) if number is None else number
                order = self._shards[first:] + self._shards[:first] if number is None else [self._shards[first]]
                chunks.append((there[i : i + size], order))
        return chunks

    async def _store_chunks(self, chunks: list[tuple[list[JobInit], list[Shard]]]) -> list[JobInit]:
        """Store them all; returns what there is no room for. Raises the first error when all the others are stored."""
        gate = asyncio.Semaphore(_AT_ONCE if self._parallel else 1)
        failed: list[Exception] = []
        refused: list[JobInit] = []

        async def store(chunk: list[JobInit], order: list[Shard]) -> None:
            async with gate:
                try:
                    refused.extend(await self._store(chunk, order))
                except Exception as error:
                    failed.append(error)

        async with asyncio.TaskGroup() as group:
            for chunk, order in chunks:
                group.create_task(store(chunk, order), name="headrace-chunk")
        if failed:
            raise failed[0]
        return refused

    async def _store(self, left: list[JobInit], order: list[Shard]) -> list[JobInit]:
        """Store a chunk on the first of these shards that is there; returns what there is no room for."""
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout is None else loop.time() + self._timeout
        again = False
        while True:
            there = False
            for shard in order:
                if not await shard.ready(at_once=len(order) == 1, now=again):
                    continue
                there = True
                left = await shard.take(left)
                if not left:
                    return []
                if self._when_full != "reroute":
                    break
            if not there:
                raise self._away([order[0]]) or Unavailable("no shard is there")
            if self._when_full != "block" or (deadline is not None and loop.time() >= deadline):
                return left
            await asyncio.sleep(_POLL)
            again = True

    # -- looking and changing

    async def get_job(self, job_id: UUID) -> StoredJob:
        """A job with all its sections, on whichever shard it is. Raises ``JobNotFound``; ``Unavailable``, if it may be
        on a shard that is away."""

        async def look(shard: Shard) -> StoredJob | None:
            record = await shard.client.fetch(job_id, _ALL)
            return None if record is None else stored_job(record, shard.client.packer.envelope)

        return await self._ask(job_id, look)

    async def _ask(self, job_id: UUID, look: Callable[[Shard], Awaitable[T | None]]) -> T:
        """What the shard says that has the job."""
        await self._up()
        for shard in self._shards:
            try:
                found = await look(shard) if await shard.open() else None
            except Unavailable as error:
                shard.rest(error)
                continue
            if found is not None:
                return found
        raise self._away(self._shards) or JobNotFound(f"no job {job_id} on any shard")

    def _away(self, shards: list[Shard]) -> Unavailable | None:
        """The error that says that one of these is not there."""
        for shard in shards:
            if shard.error is not None:
                return Unavailable(f"shard {shard.number} is away, and may have the jobs: {shard.error}")
        return None

    async def list_jobs(
        self,
        *,
        team_id: int | None = None,
        function_id: UUID | None = None,
        queue_name: str | None = None,
        state: JobState | str | None = None,
        limit: int = 100,
    ) -> list[StoredJob]:
        """Jobs of a team, a function, a queue or in a state, newest first on each shard, without sections. Raises
        ``Unavailable``, if a shard is away and the list may lack its jobs."""
        wanted = Selector(
            tenant=None if team_id is None else tenant_of(team_id),
            task=None if function_id is None else task_of(function_id),
            queue=queue_name,
            states=None if state is None else frozenset({check_state(state)}),
        )
        found: list[StoredJob] = []
        await self._up()
        for shard in self._shards:
            if len(found) < limit and await shard.open():
                found += await shard.scan(wanted, limit - len(found))
        if len(found) < limit and (away := self._away(self._shards)):
            raise away
        return found

    async def pause_job(self, job_id: UUID) -> JobState:
        """``available`` to ``paused``. Returns its state. Raises as ``get_job`` does."""
        return (await self._change(job_id, Pause()))[1]

    async def resume_job(self, job_id: UUID) -> JobState:
        """``paused`` to ``available``. Returns its state. If it runs, the janitor resumes it once it pauses. Raises as
        ``get_job`` does."""
        shard, state = await self._change(job_id, Resume())
        if state is JobState.RUNNING:
            await remember(shard.client, job_id)
        return state

    async def replay_job(self, job_id: UUID) -> JobState:
        """Run a job again that has ended, such as a dead letter, with all counts at zero. Returns its state. Raises as
        ``get_job`` does."""
        return (await self._change(job_id, Requeue()))[1]

    async def _change(self, job_id: UUID, change: Change) -> tuple[Shard, JobState]:
        async def alter(shard: Shard) -> tuple[Shard, JobState] | None:
            altered = await shard.client.alter(Selector(ids=[job_id.bytes]), change)
            return (shard, altered[0].after) if altered and altered[0].after is not None else None

        return await self._ask(job_id, alter)

    async def depths(self) -> dict[int, int | None]:
        """How many jobs wait on each shard, counted from 0; None: it is not there. Dead letters do not count."""
        found: dict[int, int | None] = {}
        for shard in self._shards:
            found[shard.number] = await shard.depth(now=True) if await shard.open() else None
        return found


def _client(url: str, copy: bool, compress_vm_state: bool, settings: dict[str, Any]) -> Client:
    given = merged(settings, {"payloads": {"compress": {"vm_state": compress_vm_state}}, "url": url})
    return Client(open_backend(url, copy=copy), Settings.load(given))


def _check_objects(clients: Sequence[Client]) -> None:
    """Two stores under one prefix would delete each other's objects. In memory, each has objects of its own."""
    met: dict[str, int] = {}
    for number, client in enumerate(clients):
        url = client.settings.objects.url
        if url is None or (location := parse(url)).scheme == "memory":
            continue
        if (first := met.setdefault(location.where, number)) != number:
            raise ConfigError(
                f"shards {first} and {number}: expected objects under a prefix of each one's own, got "
                f"{location.where} for both; give each shard as connect(url, objects={{'url': …}})"
            )


def _full(refused: list[JobInit], jobs: list[JobInit]) -> QueueFull:
    ids = {init.id for init in refused}
    return QueueFull(
        f"{len(refused):,} of {len(jobs):,} jobs were not stored: the shard is full, or a queue of it; try again "
        "later, or use when_full='block' or 'reroute'",
        queue=refused[0].queue_name,
        admitted=[init.id for init in jobs if init.id is not None and init.id not in ids],
        refused=[init.id for init in jobs if init.id is not None and init.id in ids],
    )
