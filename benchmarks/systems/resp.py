"""The least that asyncio needs to talk to Valkey: commands packed and replies parsed by hiredis, nothing in between."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit


class Resp(asyncio.Protocol):
    """One connection, one caller: what is sent in one piece is answered in one piece."""

    def __init__(self) -> None:
        import hiredis

        self._reader = hiredis.Reader()
        self._replies: list[Any] = []
        self._wanted = 0
        self._waiter: asyncio.Future[list[Any]] | None = None

    @classmethod
    async def connect(cls, url: str) -> Resp:
        """A connection to the database at ``url``."""
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        _, protocol = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        await protocol.ask(("SELECT", parts.path.strip("/")))
        return protocol

    def ask(self, *commands: tuple[Any, ...]) -> asyncio.Future[list[Any]]:
        """All replies, once the last of them is there."""
        import hiredis

        self._wanted = len(commands)
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join([hiredis.pack_command(command) for command in commands]))
        return self._waiter

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.append(reply)
        if len(self._replies) >= self._wanted and self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            replies, self._replies = self._replies, []
            failed = [reply for reply in replies if isinstance(reply, Exception)]
            if failed:
                waiter.set_exception(failed[0])
            else:
                waiter.set_result(replies)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is not None:
            self._waiter.set_exception(error or ConnectionError("the server closed the connection"))
