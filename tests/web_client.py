"""Asks HTTP servers, over TCP or a Unix socket, as a plain client does."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from msgspec import Struct

from headrace.web.address import Address


class Answer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class _Local(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


def ask(
    address: Address, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """One request on a connection of its own; it blocks, so ask from a thread where a loop runs."""
    connection = (
        _Local(address.path) if address.path else http.client.HTTPConnection(address.host, address.port, timeout=30)
    )
    try:
        connection.request(method, path, body=body, headers=headers or {})
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()
