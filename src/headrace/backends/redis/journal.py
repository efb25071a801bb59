"""The journal on Valkey: a sorted set whose members begin with their numbers, so that they sort by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.backends.redis.connections import Connections
from headrace.backends.redis.translate import refusals
from headrace.seam.journal import KEPT, JournalEntry
from headrace.seam.records import Stamp

_TRIMMED = 100
"""After this many entries, what is too old goes."""
_NUMBER, _AT = 8, 16


class RedisJournal:
    """See :class:`headrace.seam.journal.Journal`. An entry takes three commands. If its writer dies between them, a
    number is left out."""

    def __init__(
        self, connections: Connections, base: Callable[[], str], now: Callable[[], Awaitable[int]], where: str
    ) -> None:
        self._connections = connections
        self._base = base
        self._now = now
        self._where = where

    async def write(self, text: bytes, at: Stamp = None) -> int:
        instant = await self._now() if at is None else at
        base = self._base()
        with refusals(self._where, base):
            number = int(await self._connections.call(base, "INCR", f"{base}:journal:n"))
            member = number.to_bytes(8, "big") + instant.to_bytes(8, "big") + text
            await self._connections.call(base, "ZADD", f"{base}:journal", 0, member)
            if number % _TRIMMED == 0:
                await self._trim(base)
        return number

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        base = self._base()
        top = b"+" if before is None else b"(" + before.to_bytes(8, "big")
        with refusals(self._where, base):
            found = await self._connections.call(base, "ZREVRANGEBYLEX", f"{base}:journal", top, "-", "LIMIT", 0, limit)
        return [
            JournalEntry(int.from_bytes(one[:_NUMBER]), int.from_bytes(one[_NUMBER:_AT]), one[_AT:]) for one in found
        ]

    async def _trim(self, base: str) -> None:
        extra = int(await self._connections.call(base, "ZCARD", f"{base}:journal")) - KEPT
        if extra > 0:
            oldest = await self._connections.call(base, "ZRANGE", f"{base}:journal", 0, min(extra, 2 * _TRIMMED) - 1)
            await self._connections.call(base, "ZREM", f"{base}:journal", *oldest)
