"""Events between processes: a datagram socket per listener, beside those for hints."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.backends.postbox import Postbox
from headrace.backends.sqlite.hints import Sender, bind, directory_of, is_trusted, received, unlink

_NAME = re.compile("events-[0-9a-f]{8}")


class SqliteEvents:
    """See :class:`headrace.seam.events.Events`. Sending never waits; a listener that is gone is removed."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._directory = directory_of(database)
        self._sender = Sender()
        self._own: set[str] = set()

    async def heard(self) -> bool:
        for address in self._listeners():
            self._sender.post(address, b"?")
        return bool(self._listeners())

    async def tell(self, messages: Sequence[bytes]) -> None:
        told = [b"!" + message for message in messages]
        for address in self._listeners():
            self._sender.post(address, *told)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[bytes]]:
        postbox, loop = Postbox(), asyncio.get_running_loop()
        address = os.path.join(self._directory, f"events-{os.urandom(4).hex()}")
        listening = bind(self._database, self._directory, address)
        if listening is not None:
            self._own.add(address)
            loop.add_reader(listening, _hear, listening, postbox)
        try:
            yield aiter(postbox)
        finally:
            if listening is not None:
                loop.remove_reader(listening)
                listening.close()
                self._own.discard(address)
                unlink(address)

    def close(self) -> None:
        """Stop sending."""
        self._sender.close()

    def _listeners(self) -> list[str]:
        try:
            if not is_trusted(self._directory, os.stat(self._directory)):
                return []
            names = [name for name in os.listdir(self._directory) if _NAME.fullmatch(name)]
        except OSError:
            return []
        return [os.path.join(self._directory, name) for name in names]


def _hear(listening: socket.socket, postbox: Postbox) -> None:
    for message in received(listening):
        if message[:1] == b"!":
            postbox.post(message[1:])
