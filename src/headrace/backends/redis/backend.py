"""A store on Valkey or Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.backends.redis.checks import Fact, facts, transport
from headrace.backends.redis.connections import Connections, ServerConnections
from headrace.backends.redis.endpoint import Endpoint, Mode
from headrace.backends.redis.events import RedisEvents
from headrace.backends.redis.hints import Listener
from headrace.backends.redis.journal import RedisJournal
from headrace.backends.redis.opening import check
from headrace.backends.redis.parts import RedisParts
from headrace.backends.redis.scripts import DIGESTS
from headrace.backends.redis.shard import Shard
from headrace.backends.redis.translate import refusals
from headrace.seam.protocol import Left
from headrace.seam.records import Claim, Claimed, Settlement, Stamp
from headrace.types import JobState


class RedisBackend(Shard):
    """Jobs in one Valkey or Redis server, or in the primary that sentinels name, shared by any number of machines."""

    tx = None
    tidy = None
    reserve = None
    windows = None

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        prefix: str = "headrace",
        listen: bool = True,
        connections: Connections | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._prefix = prefix
        self._listen = listen
        connections = connections or ServerConnections(endpoint)
        super().__init__(connections, f"{prefix}{{jobs}}", endpoint.where)
        self._listener = Listener(connections, prefix, lambda _: self._base, endpoint.where)
        self.hints = self._listener if listen else None
        self.journal = RedisJournal(connections, lambda: self._base, self.now, endpoint.where)
        self.parts = RedisParts(connections, lambda _: self._base, endpoint.where)
        self.events = RedisEvents(connections, prefix, lambda: self._base, endpoint.where) if listen else None

    @property
    def blocking(self) -> Callable[[Left], RedisBackend] | None:
        """None with sentinels: a caller that blocks would have to find the primary again."""
        if self._endpoint.mode is not Mode.ONE:
            return None
        from headrace.backends.redis.blocking import BlockingRedis

        return lambda left: BlockingRedis(self._endpoint, prefix=self._prefix, left=left, tells=self._listen)

    def sibling(self) -> RedisBackend:
        return type(self)(self._endpoint, prefix=self._prefix, listen=self._listen)

    async def open(self) -> None:
        self._connections.open()
        try:
            await check(self._connections, self._base, self._endpoint)
            self._connections.known_good()
        except BaseException:
            await self.close()
            raise

    async def checks(self, kept: int = 0) -> list[Fact]:
        """Facts about the server for operators; ``kept`` is how many bytes of ended jobs retention may keep."""
        with refusals(self._endpoint.where):
            return transport(self._endpoint) + await facts(partial(self._connections.call, self._base), kept, DIGESTS)

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        claimed = await super().claim(req, at)
        self._listener.claimed(req, claimed)
        return claimed

    async def finish_and_claim(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        states, claimed = await super().finish_and_claim(batch, req, at)
        self._listener.claimed(req, claimed)
        return states, claimed

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        states = await super().finish(batch, at)
        self._listener.settled()
        return states

    async def close(self) -> None:
        await self._connections.close()
