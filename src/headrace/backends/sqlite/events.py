"""Events between processes: a datagram socket per listener, beside those for hints."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.backends.postbox import Postbox
from headrace.backends.sqlite.hints import bind, directory_of, is_trusted, unlink

_NAME = re.compile("events-[0-9a-f]{8}")


class SqliteEvents:
    """See :class:`headrace.seam.events.Events`. Sending never waits; a listener that is gone is removed."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._directory = directory_of(database)
        self._sender: socket.socket | None = None
        self._own: set[str] = set()

    async def heard(self) -> bool:
        for address in self._listeners():
            self._post(address, b"?")
        return bool(self._listeners())

    async def tell(self, messages: Sequence[bytes]) -> None:
        for address in self._listeners():
            for message in messages:
                self._post(address, b"!" + message)

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
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _listeners(self) -> list[str]:
        try:
            if not is_trusted(self._directory, os.stat(self._directory)):
                return []
            names = [name for name in os.listdir(self._directory) if _NAME.fullmatch(name)]
        except OSError:
            return []
        return [os.path.join(self._directory, name) for name in names]

    def _post(self, address: str, message: bytes) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        try:
            self._sender.sendto(message, address)
        except ConnectionRefusedError:  # its process is gone
            unlink(address)
        except OSError:  # its buffer is full, or it has just gone: a lost message is lawful
            pass


def _hear(listening: socket.socket, postbox: Postbox) -> None:
    while True:
        try:
            message = listening.recv(1 << 16)
        except OSError:
            return
        if message[:1] == b"!":
            postbox.post(message[1:])
