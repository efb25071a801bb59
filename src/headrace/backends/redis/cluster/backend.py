"""A store on a cluster of Valkey or Redis."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis.checks import Fact, facts, transport
from headrace.backends.redis.cluster import altering, claiming, reading, renewing, settling, storing, upkeep
from headrace.backends.redis.cluster.fleet import Fleet, attempt
from headrace.backends.redis.cluster.policies import ClusterPolicies
from headrace.backends.redis.cluster.ticks import ClusterTicks
from headrace.backends.redis.hints import Listener
from headrace.backends.redis.lines import ClusterLines
from headrace.backends.redis.opening import check_cluster
from headrace.backends.redis.place import Place
from headrace.backends.redis.scripts import DIGESTS
from headrace.backends.redis.shard import Shard
from headrace.backends.redis.translate import Refused, translated
from headrace.errors import Unavailable
from headrace.seam.records import (
    Altered,
    Beat,
    Change,
    Claim,
    Claimed,
    Inserted,
    JobId,
    JobKey,
    Page,
    Reap,
    Reaped,
    Record,
    Renewed,
    Row,
    Selector,
    Settlement,
    Stamp,
    Stats,
    SweepClause,
    Swept,
)
from headrace.types import JobState

SHARDS = 16
"""Of a new store: they can be shared out over so many primaries."""


class ClusterBackend:
    """Jobs in shards that the primaries of a cluster share out among them; each shard is a store in itself, and has the
    queues whose names lead to it. What concerns one queue is as on one server; the rest is put together from the
    shards' answers."""

    tx = None
    tidy = None
    limits = Shard.limits

    def __init__(
        self, place: Place, *, prefix: str = "headrace", listen: bool = True, shards: int | None = None
    ) -> None:
        self._place = place
        self._prefix = prefix
        self._listen = listen
        self._shards = shards
        self._lines = ClusterLines(place)
        self._fleet: Fleet | None = None
        self.ticks = ClusterTicks(lambda: self.fleet)
        self.policies = ClusterPolicies(lambda: self.fleet)
        self._hints = Listener(self._lines, prefix, self._base_of, place.where) if listen else None

    @property
    def hints(self) -> Listener | None:
        return self._hints

    @property
    def fleet(self) -> Fleet:
        """Its shards; there are none before it is opened."""
        if self._fleet is None:
            raise Unavailable(f"{self._place.where}: the connections are closed")
        return self._fleet

    def _base_of(self, queue: str) -> str:
        return self.fleet.part_of(queue).base

    def sibling(self) -> ClusterBackend:
        return type(self)(self._place, prefix=self._prefix, listen=self._listen, shards=self._shards)

    async def open(self) -> None:
        self._lines.open()
        try:
            count = await check_cluster(self._lines, f"{self._prefix}{{meta}}", self._place, self._shards, SHARDS)
        except BaseException:
            await self.close()
            raise
        self._lines.known_good()
        if self._fleet is None:
            self._fleet = Fleet(self._lines, self._prefix, count, self._place.where)

    async def checks(self, kept: int = 0) -> list[Fact]:
        """What is worth knowing of each server that has slots, for those who look after it; ``kept`` is how many bytes
        of ended jobs retention may keep in all."""
        owners = await self._lines.owners()
        try:
            found = [(address, await facts(line.call, kept // len(owners), DIGESTS)) for address, line in owners]
        except Refused as error:
            raise translated(error, self._place.where) from error
        each = [fact._replace(what=f"{address}: {fact.what}") for address, of in found for fact in of]
        return transport(self._place) + each

    async def close(self) -> None:
        await self._lines.close()

    async def now(self, at: Stamp = None) -> int:
        """The clock that is furthest on, of the shards that are there."""
        clocks = await attempt(part.now(at) for part in self.fleet.parts)
        known = [clock for clock in clocks if not isinstance(clock, Unavailable)]
        if not known:
            raise Unavailable(f"{self._place.where}: no shard answers")
        return max(known)

    # -- writing

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        return await storing.insert(self.fleet, rows, at) if rows else []

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        claimed = await claiming.claim(self.fleet, req, at)
        if self._hints is not None:
            self._hints.fed(req, claimed)
        return claimed

    async def finish_and_claim(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        states, claimed = await settling.finish_and_claim(self.fleet, batch, req, at)
        if self._hints is not None:
            self._hints.fed(req, claimed)
        return states, claimed

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        states = await settling.finish(self.fleet, batch, at)
        if self._hints is not None:
            self._hints.settled()
        return states

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        return await renewing.renew(self.fleet, beat, at)

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return await upkeep.reap(self.fleet, req, at)

    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        return await altering.alter(self.fleet, sel, change, at)

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await upkeep.sweep(self.fleet, clause, at)

    # -- reading

    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        return await reading.fetch(self.fleet, names, want, at) if names else []

    async def scan(self, sel: Selector, after: str | None = None, limit: int = 100, at: Stamp = None) -> Page:
        return await reading.scan(self.fleet, sel, after, limit, at)

    async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
        return await reading.stats(self.fleet, at, queues)
