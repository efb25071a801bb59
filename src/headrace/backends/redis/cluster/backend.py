"""A store on a cluster of Valkey or Redis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headrace.backends.archive import Archive, End
from headrace.backends.redis.checks import Fact, facts, transport
from headrace.backends.redis.cluster import altering, claiming, reading, renewing, settling, storing, upkeep
from headrace.backends.redis.cluster.policies import ClusterPolicies
from headrace.backends.redis.cluster.references import ClusterReferences
from headrace.backends.redis.cluster.removals import ClusterRemovals
from headrace.backends.redis.cluster.shards import Shards, every, gather
from headrace.backends.redis.cluster.ticks import ClusterTicks
from headrace.backends.redis.cluster.tracks import ClusterTracks
from headrace.backends.redis.cluster.transfers import ClusterTransfers
from headrace.backends.redis.connections import ClusterConnections
from headrace.backends.redis.documents import RedisDocuments
from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.events import RedisEvents
from headrace.backends.redis.hints import Listener
from headrace.backends.redis.journal import RedisJournal
from headrace.backends.redis.opening import check_cluster
from headrace.backends.redis.parts import RedisParts
from headrace.backends.redis.scripts import DIGESTS
from headrace.backends.redis.shard import Shard
from headrace.backends.redis.translate import refusals
from headrace.errors import Unavailable
from headrace.seam import records as r
from headrace.seam.archive import Mark
from headrace.seam.usage import Usage
from headrace.types import JobState

SHARDS = 16
"""The shards of a new store: it can be spread over at most this many primaries."""


class ClusterBackend:
    """Jobs in shards that are spread over the primaries of a cluster. Each shard is a store of its own; the name of a
    queue determines its shard. What concerns one queue is as on one server; the rest is put together from the answers
    of the shards."""

    tables = None
    tx = None
    blocking = None
    tidy = None
    reserve = None
    windows = None
    limits = Shard.limits

    def __init__(
        self, endpoint: Endpoint, *, prefix: str = "headrace", listen: bool = True, shards: int | None = None
    ) -> None:
        self._endpoint = endpoint
        self._prefix = prefix
        self._listen = listen
        self._count = shards
        self._connections = ClusterConnections(endpoint)
        self._shards: Shards | None = None
        self.ticks = ClusterTicks(lambda: self.shards)
        self.policies = ClusterPolicies(lambda: self.shards)
        self.references = ClusterReferences(lambda: self.shards)
        self.documents = RedisDocuments(lambda name, *args: self.shards.all[0].run(name, *args))
        self.archive = Archive(self._ends, self.fetch, ClusterRemovals(lambda: self.shards))
        self.tracks = ClusterTracks(lambda: self.shards)
        self.transfers = ClusterTransfers(lambda: self.shards)
        self._listener = Listener(self._connections, prefix, self._base_of, endpoint.where)
        self.hints = self._listener if listen else None
        base = partial(self._base_of, "")
        self.journal = RedisJournal(self._connections, base, self.now, endpoint.where)
        self.parts = RedisParts(self._connections, self._base_of, endpoint.where)
        self.events = RedisEvents(self._connections, prefix, base, endpoint.where) if listen else None

    @property
    def shards(self) -> Shards:
        """Its shards; raises before it is opened."""
        if self._shards is None:
            raise Unavailable(f"{self._endpoint.where}: the connections are closed")
        return self._shards

    async def _ends(self, state: JobState, after: Mark | None, limit: int, at: r.Stamp) -> tuple[list[End], int]:
        answers = await every(shard.ends(state, after, limit, at) for shard in self.shards.all)
        found = sorted(end for ends, _ in answers for end in ends)
        return found[:limit], min(final for _, final in answers)

    async def usage(self) -> Usage:
        found = await every(shard.usage() for shard in self.shards.all)
        return max(found, key=lambda one: one.used / (one.capacity or 1 << 60))

    def _base_of(self, queue: str) -> str:
        return self.shards.shard_of(queue).base

    def sibling(self) -> ClusterBackend:
        return type(self)(self._endpoint, prefix=self._prefix, listen=self._listen, shards=self._count)

    async def open(self) -> None:
        self._connections.open()
        try:
            count = await check_cluster(
                self._connections, f"{self._prefix}{{meta}}", self._endpoint, self._count, SHARDS
            )
        except BaseException:
            await self.close()
            raise
        self._connections.known_good()
        if self._shards is None:
            self._shards = Shards(self._connections, self._prefix, count, self._endpoint.where)

    async def checks(self, kept: int = 0) -> list[Fact]:
        """Facts about each server that has slots, for operators; ``kept`` is how many bytes of ended jobs retention may
        keep in all."""
        owners = await self._connections.owners()
        with refusals(self._endpoint.where):
            found = [
                (address, await facts(connection.call, kept // len(owners), DIGESTS)) for address, connection in owners
            ]
        each = [fact._replace(what=f"{address}: {fact.what}") for address, of in found for fact in of]
        return transport(self._endpoint) + each

    async def close(self) -> None:
        await self._connections.close()

    async def now(self, at: r.Stamp = None) -> int:
        """The clock that is furthest ahead, of the shards that answer."""
        clocks, _ = await gather({shard.number: shard.now(at) for shard in self.shards.all})
        if not clocks:
            raise Unavailable(f"{self._endpoint.where}: no shard answers")
        return max(clocks.values())

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        return await storing.insert(self.shards, rows, at) if rows else []

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        claimed = await claiming.claim(self.shards, req, at)
        self._listener.claimed(req, claimed)
        return claimed

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        states, claimed = await settling.finish_and_claim(self.shards, batch, req, at)
        self._listener.claimed(req, claimed)
        return states, claimed

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        states = await settling.finish(self.shards, batch, at)
        self._listener.settled()
        return states

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        return await renewing.renew(self.shards, beat, at)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        return await upkeep.reap(self.shards, req, at)

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await altering.alter(self.shards, sel, change, at)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        return await upkeep.sweep(self.shards, clause, at)

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        return await reading.fetch(self.shards, names, want, at) if names else []

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        return await reading.scan(self.shards, sel, after, limit, at)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        return await reading.stats(self.shards, at, queues)
