"""A TCP proxy with faults at hand: what a network does, on a machine that has none."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from types import TracebackType

from servers.thread import LoopThread

_CHUNK = 65_536
_READY = b"Z\0\0\0\5I"
"""How PostgreSQL ends a reply: what was asked for is done and committed."""
_GOODBYE = b"X"
"""What its clients say last, and get no reply to."""


class Proxy:
    """Stands between clients and one server of the loopback.

    Faults concern the connections that are there and those to come, until ``heal``; bytes that a blackhole has taken
    are gone for good, so what was connected through it is reset then.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._thread = LoopThread("proxy")
        self._links: set[_Link] = set()
        self._lost_up = self._lost_down = False
        self._delay = 0.0
        self._pace = math.inf
        self._swallow = 0
        self.swallowed = 0
        """Replies that the server gave and no client got."""
        self.taken = 0
        """Times that a blackhole took what a client sent."""
        self._server = self._thread.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def links(self) -> int:
        """Connections that pass through it now."""
        return len(self._links)

    def close(self) -> None:
        """Cut everything off."""
        self._thread.run(self._set(lost_up=False, lost_down=False, delay=0.0, pace=math.inf, swallow=0, reset=True))
        self._server.close()
        self._thread.close()

    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Take what comes and pass nothing on: requests (``up``), replies (``down``), or both."""
        self._thread.run(self._set(lost_up=up, lost_down=down))

    def stall(self) -> None:
        """Let every connection that is there go silent, as a router does that has forgotten them; new ones work."""
        self._thread.run(self._set(stall=True))

    def delay(self, seconds: float) -> None:
        """Pass everything on so much later."""
        self._thread.run(self._set(delay=seconds))

    def throttle(self, pace: float) -> None:
        """Pass on no more than so many bytes a second, either way."""
        self._thread.run(self._set(pace=pace))

    def swallow_replies(self, count: int = 1) -> None:
        """Let each of the next requests through, and reset its connection in the place of the whole reply."""
        self._thread.run(self._set(swallow=count))

    def reset(self) -> None:
        """Reset every connection."""
        self._thread.run(self._set(reset=True))

    def heal(self) -> None:
        """No more faults."""
        lossy = self._lost_up or self._lost_down
        self._thread.run(self._set(lost_up=False, lost_down=False, delay=0.0, pace=math.inf, swallow=0, reset=lossy))

    async def _set(
        self,
        *,
        lost_up: bool | None = None,
        lost_down: bool | None = None,
        delay: float | None = None,
        pace: float | None = None,
        swallow: int | None = None,
        stall: bool = False,
        reset: bool = False,
    ) -> None:
        self._lost_up = self._lost_up if lost_up is None else lost_up
        self._lost_down = self._lost_down if lost_down is None else lost_down
        self._delay = self._delay if delay is None else delay
        self._pace = self._pace if pace is None else pace
        self._swallow = self._swallow if swallow is None else swallow
        for link in list(self._links):
            link.silent = link.silent or stall
            if reset:
                link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, upstream_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._up(link, reader, upstream_writer))
                pumps.create_task(self._down(link, upstream_reader, writer))
        except* OSError:
            pass
        finally:
            self._links.discard(link)
            link.reset()

    async def _up(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self._lost_up or link.silent:
                self.taken += 1
                continue
            await asyncio.sleep(self._delay + len(data) / self._pace)
            if self._swallow and not link.swallowing and data[:1] != _GOODBYE:
                self._swallow -= 1
                link.swallowing = True
            writer.write(data)
            await writer.drain()
        link.reset()

    async def _down(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = b""
        while data := await reader.read(_CHUNK):
            if link.swallowing:
                end = (end + data)[-len(_READY) :]
                if end == _READY:
                    self.swallowed += 1
                    break
            elif not (self._lost_down or link.silent):
                await asyncio.sleep(self._delay + len(data) / self._pace)
                writer.write(data)
                await writer.drain()
        link.reset()


class _Link:
    """One client and its connection to the server."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.swallowing = False
        self.silent = False

    def reset(self) -> None:
        """Both ends see a reset, not an orderly close."""
        for writer in self._writers:
            if not writer.is_closing():
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
