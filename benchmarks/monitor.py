"""What clients ask of a Valkey, command by command, as the server itself tells it."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import redis

_INSIDE = b" lua]"
_HEAD = 80
"""A line says within so many bytes who sent the command."""
_END = "no more is counted"


class Monitor:
    """Counts while it is entered: commands that clients send, and those that scripts call. The one client that is given
    to it does not count."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._client = client
        self.sent = 0
        self.inside = 0

    def __enter__(self) -> Monitor:
        self._ours = f" {self._client.client_info()['addr']}]".encode()
        self._line = socket.create_connection(self._address)
        self._line.sendall(b"MONITOR\r\n")
        self._file = self._line.makefile("rb")
        self._file.readline()
        self._thread = threading.Thread(target=self._listen, name="monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.echo(_END)
        self._thread.join()
        self._file.close()
        self._line.close()

    def _listen(self) -> None:
        end = _END.encode()
        for line in self._file:
            head = line[:_HEAD]
            if _INSIDE in head:
                self.inside += 1
            elif self._ours not in head:
                self.sent += 1
            elif end in line:
                return
