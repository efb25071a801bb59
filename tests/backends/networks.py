"""What the tests of network faults need to know about each store that is a server."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.proxy import Proxy

from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend, presence
from headrace.backends.postgres import connections as postgres_connections
from headrace.backends.postgres import hints as postgres_hints
from headrace.backends.redis import connections as redis_connections
from headrace.backends.redis import hints as redis_hints
from headrace.backends.redis import subscription as redis_subscription
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from tests import postgres, valkey


class Network(ABC):
    """A store, its server, and what a fault of the line looks like there."""

    shared: bool
    """Whether callers share a connection, and see a fault of it together."""
    default_limit: float
    """Seconds after which a call that nobody answers is given up, unless a test sets another ``limit``."""

    @abstractmethod
    def port(self) -> int:
        """Where the server listens."""

    @abstractmethod
    def near(self, place: Path) -> Backend:
        """The store, blank and without a line between."""

    @abstractmethod
    def far(self, line: Proxy, *, listen: bool = False, whole: bool = False) -> Backend:
        """The same store at the end of the line. ``whole``: each call is one request."""

    @abstractmethod
    async def prepare(self, store: Backend) -> None:
        """Leave nothing to be sent but the calls of the test."""

    @abstractmethod
    def limit(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        """Calls are given up after this time."""

    @abstractmethod
    def listen_closely(self, patch: pytest.MonkeyPatch) -> None:
        """A listener soon asks whether its connection still works."""

    @abstractmethod
    def listen_for_ever(self, patch: pytest.MonkeyPatch) -> None:
        """A listener never asks that."""

    @abstractmethod
    async def lost(self, line: Proxy, call: Awaitable[Any]) -> None:
        """The server does what is asked, and nobody hears of it."""

    @abstractmethod
    async def cut(self, line: Proxy, call: Awaitable[Any]) -> None:
        """The request never gets there."""

    @abstractmethod
    async def lose_replies(self, line: Proxy) -> None:
        """For a moment requests get through and replies do not."""

    @abstractmethod
    async def send_junk_hints(self, store: Backend) -> None:
        """To whoever waits for jobs of queue ``q``, as anybody can who may write to the server."""

    @abstractmethod
    def raw(self, backend: Backend) -> AbstractAsyncContextManager[socket.socket]:
        """The socket of a connection."""


class OverPostgres(Network):
    shared = False
    default_limit = 30.0

    def port(self) -> int:
        return postgres.server().port

    def near(self, place: Path) -> Backend:
        return postgres.stores.connect(place)

    def far(self, line: Proxy, *, listen: bool = False, whole: bool = False) -> Backend:
        url = f"postgresql://headrace@127.0.0.1:{line.port}/postgres"
        return PostgresBackend(url, schema=postgres.SCHEMA, listen=listen, prepare=not whole)

    async def prepare(self, store: Backend) -> None:
        """Opening has done it."""

    def limit(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        patch.setattr(postgres_connections, "LIMIT", seconds)
        patch.setattr(postgres_connections, "GRACE", 0.0)

    def listen_closely(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("_QUIET", "_ANSWER"):
            patch.setattr(presence, name, 0.2)

    def listen_for_ever(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(presence, "_QUIET", 3_600.0)

    async def lost(self, line: Proxy, call: Awaitable[Any]) -> None:
        before = line.swallowed
        line.swallow_replies()
        with pytest.raises(Unavailable):
            await call
        assert line.swallowed == before + 1

    async def cut(self, line: Proxy, call: Awaitable[Any]) -> None:
        await _cut(line, call)

    async def lose_replies(self, line: Proxy) -> None:
        line.swallow_replies()

    async def send_junk_hints(self, store: Backend) -> None:
        assert isinstance(store, PostgresBackend)
        channel = postgres_hints.channel(postgres.SCHEMA, "queue:q")
        for payload in ("zz", "00", "x" * 7_000, ""):
            await store._connections.rows("SELECT pg_notify(%s, %s)", (channel, payload))

    @asynccontextmanager
    async def raw(self, backend: Backend) -> AsyncIterator[socket.socket]:
        assert isinstance(backend, PostgresBackend)
        session = await backend._connections._take(asyncio.get_running_loop().time() + 30)
        with socket.socket(fileno=socket.dup(session.pgconn.socket)) as raw:
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9_000
            yield raw
        backend._connections._give(session)


class OverValkey(Network):
    shared = True
    default_limit = 10.0

    def port(self) -> int:
        return valkey.server().port

    def near(self, place: Path) -> Backend:
        backend: Backend = valkey.stores.connect(place)
        return backend

    def far(self, line: Proxy, *, listen: bool = False, whole: bool = False) -> Backend:
        return open_backend(f"redis://127.0.0.1:{line.port}/0?listen={'yes' if listen else 'no'}")

    async def prepare(self, store: Backend) -> None:
        await valkey.every_operation(store)
        valkey.server().call("FLUSHALL")

    def limit(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        patch.setattr(redis_connections, "LIMIT", seconds)

    def listen_closely(self, patch: pytest.MonkeyPatch) -> None:
        for name, value in {"_BLOCK": 1, "_PATIENCE": 1.5}.items():
            patch.setattr(redis_hints, name, value)
        for name, value in {"_PATIENCE": 1.5, "_QUIET": 0.2, "_ANSWER": 0.2}.items():
            patch.setattr(redis_subscription, name, value)

    def listen_for_ever(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(redis_hints, "_PATIENCE", 3_600.0)
        for name in ("_QUIET", "_PATIENCE"):
            patch.setattr(redis_subscription, name, 3_600.0)

    async def lost(self, line: Proxy, call: Awaitable[Any]) -> None:
        before = _scripts_run()
        line.blackhole(up=False, down=True)
        asking = asyncio.ensure_future(call)
        async with asyncio.timeout(60):
            while _scripts_run() == before:
                await asyncio.sleep(0.002)
        line.heal()
        with pytest.raises(Unavailable):
            await asking

    async def cut(self, line: Proxy, call: Awaitable[Any]) -> None:
        before = _scripts_run()
        await _cut(line, call)
        assert _scripts_run() == before

    async def lose_replies(self, line: Proxy) -> None:
        line.blackhole(up=False, down=True)
        await asyncio.sleep(0.03)
        line.heal()

    async def send_junk_hints(self, store: Backend) -> None:
        call = valkey.server().call
        async with asyncio.timeout(60):
            while not (channels := call("PUBSUB", "CHANNELS", "headrace:*")):
                await asyncio.sleep(0.01)
        for payload in (b"zz", b"", b"x" * 7_000, bytes(16)):
            call("RPUSH", "headrace{jobs}:g:q", payload)
            for channel in channels:
                call("PUBLISH", channel, payload)

    @asynccontextmanager
    async def raw(self, backend: Backend) -> AsyncIterator[socket.socket]:
        yield backend._connections._kept.connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]


async def _cut(line: Proxy, call: Awaitable[Any]) -> None:
    taken = line.taken
    line.blackhole(up=True, down=True)
    asking = asyncio.ensure_future(call)
    async with asyncio.timeout(60):
        while line.taken == taken:
            await asyncio.sleep(0.002)
    line.heal()
    with pytest.raises(Unavailable):
        await asking


def _scripts_run() -> int:
    """Those that Valkey has run to their end."""
    found = valkey.server().info("commandstats")
    count = 0
    for name in ("eval", "evalsha", "fcall"):
        told = dict(part.split("=") for part in found.get(f"cmdstat_{name}", "calls=0,failed_calls=0").split(","))
        count += int(told["calls"]) - int(told["failed_calls"])
    return count
