"""Wake-ups. Whoever waits for a queue's jobs blocks on a list of signals, so that one signal wakes one of them; what is
meant for a certain process comes through a channel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from headrace.backends.redis.line import Line
from headrace.backends.redis.lines import Lines
from headrace.backends.redis.translate import Refused, translated
from headrace.errors import Unavailable
from headrace.records import Hint

_BLOCK = 2
"""Seconds that the server holds a request for signals."""
_PATIENCE = 7.0
"""Seconds that it has to answer one."""
_QUIET = 10.0
"""Seconds without a word on a channel after which the server is asked whether it is still there."""
_ANSWER = 5.0
"""Seconds that it has to say so."""


class Listener:
    """Hears hints on connections of its own for each ``listen``."""

    def __init__(self, lines: Lines, prefix: str, base: Callable[[str], str], where: str) -> None:
        self._lines = lines
        self._prefix = prefix
        self._base = base
        """Of a queue: what its keys begin with."""
        self._where = where

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
        news: asyncio.Queue[Hint | Exception | None] = asyncio.Queue()
        try:
            async with AsyncExitStack() as stack:
                doors = [await stack.enter_async_context(self._door(base, signals[base], news)) for base in signals]
                radio = await stack.enter_async_context(self._radio(channels, news)) if channels else None
                yield self._hear(news, doors, radio)
        except Refused as error:
            raise translated(error, self._where) from error

    async def _hear(
        self, news: asyncio.Queue[Hint | Exception | None], doors: list[_Door], radio: _Radio | None
    ) -> AsyncIterator[Hint]:
        while True:
            for door in doors:
                door.ask()
            try:
                async with asyncio.timeout(_QUIET):
                    found = await news.get()
            except TimeoutError:
                if radio is not None:
                    await radio.check()
                continue
            if isinstance(found, Exception):
                raise translated(found, self._where) from found
            if found is not None:
                yield found

    @asynccontextmanager
    async def _door(
        self, base: str, keys: dict[bytes, str], news: asyncio.Queue[Hint | Exception | None]
    ) -> AsyncIterator[_Door]:
        line = await self._lines.single(base, limit=_PATIENCE)
        try:
            door = _Door(line, keys, news, await line.call("CLIENT", "ID"))
            yield door
            await door.leave(self._lines, base)
        finally:
            line.end()

    @asynccontextmanager
    async def _radio(
        self, channels: dict[bytes, str], news: asyncio.Queue[Hint | Exception | None]
    ) -> AsyncIterator[_Radio]:
        line = await self._lines.single(self._base(""), limit=_PATIENCE)
        try:
            radio = _Radio(line, channels, news, self._where)
            await radio.tuned
            yield radio
        finally:
            line.end()


class _Door:
    """Asks for the next signal, one request at a time, and only while somebody waits for it."""

    def __init__(
        self, line: Line, keys: dict[bytes, str], news: asyncio.Queue[Hint | Exception | None], number: int
    ) -> None:
        self._line = line
        self._keys = keys
        self._news = news
        self._number = number
        self._request: asyncio.Future[Any] | None = None

    def ask(self) -> None:
        """Wait for a signal, unless that is under way."""
        if self._request is None:
            self._request = self._line.call("BLPOP", *self._keys, _BLOCK)
            self._request.add_done_callback(self._answered)

    def _answered(self, request: asyncio.Future[Any]) -> None:
        if self._request is request:
            self._request = None
            if (error := request.exception()) is not None:
                self._news.put_nowait(error if isinstance(error, Exception) else None)
            else:
                found = request.result()
                self._news.put_nowait(None if found is None else Hint(self._keys[found[0]]))

    async def leave(self, lines: Lines, base: str) -> None:
        """End the request that is under way. A signal that it brings is passed on: it was meant for one who works."""
        request, self._request = self._request, None
        if request is None:
            return
        with suppress(Unavailable, Refused):
            await lines.call(base, "CLIENT", "UNBLOCK", self._number)
            if (found := await request) is not None:
                await lines.call(base, "RPUSH", *found)


class _Radio:
    """Channels that are this process's own."""

    def __init__(
        self, line: Line, channels: dict[bytes, str], news: asyncio.Queue[Hint | Exception | None], where: str
    ) -> None:
        self._line = line
        self._channels = channels
        self._news = news
        self._where = where
        self._missing = len(channels)
        self._alive = asyncio.Event()
        self.tuned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when everything that is said from now on is heard."""
        line.subscribe(self._heard, list(channels))

    def _heard(self, said: Any) -> None:
        self._alive.set()
        problem: Exception | None = said if isinstance(said, Refused) else None
        if said is None:
            problem = Unavailable(f"{self._where} cannot serve just now: the connection for hints broke")
        if problem is not None:
            if self.tuned.done():
                self._news.put_nowait(problem)
            else:
                self.tuned.set_exception(problem)
        elif said[0] == b"subscribe":
            self._missing -= 1
            if not self._missing and not self.tuned.done():
                self.tuned.set_result(None)
        elif said[0] == b"message":
            _, channel, job_id = said
            self._news.put_nowait(Hint(self._channels[channel], job_id if len(job_id) == 16 else None))

    async def check(self) -> None:
        """Whether the server is still there."""
        self._alive.clear()
        self._line.send("PING")
        try:
            async with asyncio.timeout(_ANSWER):
                await self._alive.wait()
        except TimeoutError:
            raise Unavailable(f"{self._where}: no answer on the connection for hints") from None
