"""A receiver of webhooks on the loopback interface, for the demo and for tests. It speaks just enough HTTP for both."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Respond = Callable[[Seen, StreamWriter], Awaitable[None]]
"""Writes the response to a request. Then the connection is closed."""


def response(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """A whole response as bytes."""
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Receiver:
    """A server that keeps what arrives: ``async with Receiver(respond) as receiver``."""

    def __init__(self, respond: Respond, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None):
        self.respond = respond
        self._host = host
        self._tls = tls
        self.port = port
        self.connections = 0
        self.seen: list[Seen] = []
        self._tasks: set[asyncio.Task[object]] = set()

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._connected, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass  # the sender went away, or the receiver does
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Take a request, and answer."""
        seen = await _read(reader)
        self.seen.append(seen)
        await self.respond(seen, writer)
        await writer.drain()


async def _read(reader: StreamReader) -> Seen:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Seen(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))
