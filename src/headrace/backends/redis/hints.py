"""Wake-ups: a list for each topic, on which a connection of its own waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis

from headrace.backends.redis.translate import translated
from headrace.records import Hint

_BLOCK = 1.0
"""Seconds that the server holds a request for signals."""
_PATIENCE = 5.0
"""Seconds that it has to answer one."""
_KEYS = {"queue": ":g:", "inbox": ":i:", "holder": ":o:"}


class Listener:
    """Hears hints on a connection of its own, one per ``listen``."""

    def __init__(self, connect: Callable[[float], Redis], base: str, where: str) -> None:
        self._connect = connect
        self._base = base
        self._where = where

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        client = self._connect(_PATIENCE)
        ear = _Ear(client, {self._key(topic): topic for topic in topics}, self._where)
        try:
            await ear.open()
            yield ear
        except Exception as error:
            raise translated(error, self._where) from error
        finally:
            async with self._connect(_PATIENCE) as helper:
                await ear.close(helper)
            await client.aclose()

    def _key(self, topic: str) -> bytes:
        kind, _, name = topic.partition(":")
        return (self._base + _KEYS[kind] + name).encode()


class _Ear:
    """Asks for the next signal, again and again. A request is never broken off: it might have a signal in its hands."""

    def __init__(self, client: Redis, topics: dict[bytes, str], where: str) -> None:
        self._client = client
        self._topics = topics
        self._where = where
        # Of what is there at the same time, the first is heard first: queues have others who look after them.
        self._order = sorted(topics, key=lambda key: topics[key].startswith("queue:"))
        self._number = 0
        self._request: asyncio.Future[Any] | None = None

    async def open(self) -> None:
        """Connect."""
        self._number = await self._client.client_id()

    def __aiter__(self) -> _Ear:
        return self

    async def __anext__(self) -> Hint:
        while True:
            if self._request is None:
                self._request = asyncio.ensure_future(self._client.blpop(self._order, timeout=_BLOCK))
            try:
                found = await asyncio.shield(self._request)
            except Exception as error:
                self._request = None
                raise translated(error, self._where) from error
            self._request = None
            if found is not None:
                key, value = found
                return Hint(self._topics[key], value or None)

    async def close(self, helper: Redis) -> None:
        """End the request that is under way. A signal that it brings is passed on."""
        if self._request is None:
            return
        with suppress(Exception):
            await helper.client_unblock(self._number)
        with suppress(Exception):
            if (found := await self._request) is not None:
                await helper.rpush(*found)
