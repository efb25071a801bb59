"""Hints. A waiting worker blocks on a list of signals of its queue, so one signal wakes one worker. Hints for one
process come through a channel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

from headrace.backends.redis.connection import Connection
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.subscription import subscribed
from headrace.backends.redis.translate import Refused, refusals, translated
from headrace.errors import Unavailable
from headrace.seam.records import Claim, Claimed, Hint

_BLOCK = 2
"""Seconds that the server holds a request for signals."""
_PATIENCE = 7.0
"""Seconds that the server has to answer such a request."""
_LEAVING = 1.0
"""Seconds that a leaving listener takes to pass on signals meant for others."""
_SIGNAL_TTL = 60
_MOVING = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Refusals while a slot moves between servers."""


class Signal(NamedTuple):
    """A signal of a queue, as it was taken."""

    base: str
    key: bytes
    value: bytes
    topic: str


_News = asyncio.Queue[Hint | Signal | Exception | None]
"""What was heard; None: time to ask again."""


class Listener:
    """Hears hints, on connections of its own for each ``listen``.

    A process that has all the jobs it wants asks for no signals: they are for others. It has them when its last claim
    brought all it asked for, until it settles jobs without claiming others.
    """

    def __init__(self, connections: Connections, prefix: str, base: Callable[[str], str], where: str) -> None:
        self._connections = connections
        self._prefix = prefix
        self._base = base
        """Returns what the keys of a queue begin with."""
        self._where = where
        self._wanting = True
        self._news: set[_News] = set()

    def claimed(self, req: Claim, claimed: Claimed) -> None:
        """A claim brought this."""
        self._set_wanting(len(claimed.jobs) < req.limit)

    def settled(self) -> None:
        """Jobs have ended, and no others were claimed."""
        self._set_wanting(True)

    def _set_wanting(self, wanting: bool) -> None:
        was, self._wanting = self._wanting, wanting
        if wanting and not was:
            for news in self._news:
                news.put_nowait(None)

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        signals: dict[str, dict[bytes, str]] = {}
        channels: dict[bytes, str] = {}
        for topic in topics:
            kind, _, name = topic.partition(":")
            if kind == "queue":
                base = self._base(name)
                signals.setdefault(base, {})[f"{base}:g:{name}".encode()] = topic
            else:
                channels[f"{self._prefix}:{kind}:{name}".encode()] = topic
        news: _News = asyncio.Queue()
        self._news.add(news)

        def heard(channel: bytes, job_id: bytes) -> None:
            news.put_nowait(Hint(channels[channel], job_id if len(job_id) == 16 else None))

        try:
            with refusals(self._where, self._prefix):
                async with AsyncExitStack() as stack:
                    stack.push_async_callback(self._pass_on_all, news)
                    readers = await stack.enter_async_context(self._signal_readers(signals, news))
                    if channels:
                        await stack.enter_async_context(
                            subscribed(self._connections, self._base(""), channels, heard, news.put_nowait, "hints")
                        )
                    yield self._hear(news, readers)
        finally:
            self._news.discard(news)

    async def _hear(self, news: _News, readers: list[_SignalReader]) -> AsyncIterator[Hint]:
        while True:
            if self._wanting:
                for reader in readers:
                    reader.ask()
            found = await news.get()
            if isinstance(found, Signal):
                if self._wanting:
                    yield Hint(found.topic)
                    await asyncio.sleep(0)  # the claim that follows goes to the server before the next request
                else:
                    await self._pass_on(found)
            elif isinstance(found, Exception):
                raise translated(found, self._where, base=self._prefix) from found
            elif found is not None:
                yield found

    async def _pass_on(self, signal: Signal) -> None:
        with suppress(Unavailable, Refused):
            await self._connections.call(signal.base, "RPUSH", signal.key, signal.value)
            await self._connections.call(signal.base, "EXPIRE", signal.key, _SIGNAL_TTL)

    async def _pass_on_all(self, news: _News) -> None:
        while not news.empty():
            if isinstance(found := news.get_nowait(), Signal):
                await self._pass_on(found)

    @asynccontextmanager
    async def _signal_readers(
        self, signals: dict[str, dict[bytes, str]], news: _News
    ) -> AsyncIterator[list[_SignalReader]]:
        """One reader for each base. Some may be closed at first, but not all."""
        readers = [
            _SignalReader(self._connections, base, keys, news, alone=len(signals) == 1)
            for base, keys in signals.items()
        ]
        try:
            found = await asyncio.gather(*(reader.open() for reader in readers), return_exceptions=True)
            problems = [problem for problem in found if problem is not None]
            for problem in problems:
                if len(problems) == len(readers) or not isinstance(problem, Unavailable):
                    raise problem
            for reader, closed in zip(readers, found, strict=True):
                if closed is not None:
                    reader.rest()
            yield readers
        finally:
            await asyncio.gather(*(reader.leave() for reader in readers))


class _SignalReader:
    """Asks for the next signal, one request at a time, and only while somebody waits for it.

    While its slot moves, or its server is away and there are other readers, it pauses. Then it connects to the server
    that has the slot by then. Signals may have been missed meanwhile, so all its topics get a hint.
    """

    _connection: Connection
    _number: int

    def __init__(
        self, connections: Connections, base: str, keys: dict[bytes, str], news: _News, *, alone: bool
    ) -> None:
        self._connections = connections
        self._base = base
        self._keys = keys
        self._news = news
        self._alone = alone
        self._request: asyncio.Future[Any] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._is_open = False
        self._left = False

    async def open(self) -> None:
        """Connect to the server that has the slot."""
        self._connection = await self._connections.single(self._base, limit=_PATIENCE)
        try:
            self._number = await self._connection.call("CLIENT", "ID")
            self._is_open = True
        finally:
            if not self._is_open:
                self._connection.end()

    def ask(self) -> None:
        """Ask for a signal, unless a request is under way."""
        if self._request is None and self._is_open:
            self._request = self._connection.call("BLPOP", *self._keys, _BLOCK)
            self._request.add_done_callback(self._answered)

    def _answered(self, request: asyncio.Future[Any]) -> None:
        self._request = None
        if (error := request.exception()) is not None:
            is_away = isinstance(error, Unavailable) and not self._alone
            if is_away or (isinstance(error, Refused) and error.code in _MOVING):
                self.rest()
            else:
                self._news.put_nowait(error if isinstance(error, Exception) else None)
        elif (found := request.result()) is None:
            self._news.put_nowait(None)
        else:
            key, value = found
            self._news.put_nowait(Signal(self._base, key, value, self._keys[key]))

    def rest(self) -> None:
        """Close for a while."""
        if self._left:
            return
        if self._is_open:
            self._is_open = False
            self._connection.end()
        self._resting = asyncio.get_running_loop().create_task(self._reopen(), name="headrace-signals")

    async def _reopen(self) -> None:
        while not self._is_open:
            await asyncio.sleep(_BLOCK)
            with suppress(Unavailable, Refused):
                await self.open()
        for topic in self._keys.values():
            self._news.put_nowait(Hint(topic))

    async def leave(self) -> None:
        """End the request that is under way, without cutting it off: the server may be sending a signal."""
        self._left = True
        if self._resting is not None:
            self._resting.cancel()
            await asyncio.wait([self._resting])
        if not self._is_open:
            return
        request = self._request
        if request is not None and not self._connection.ended:
            with suppress(Unavailable, Refused, TimeoutError):
                async with asyncio.timeout(_LEAVING):
                    beside = await self._connections.beside(self._connection)
                    await beside.call("CLIENT", "UNBLOCK", self._number)
                    await asyncio.wait([request])
        self._is_open = False
        self._connection.end()
