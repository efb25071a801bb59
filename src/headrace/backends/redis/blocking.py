"""A Valkey or Redis server for callers that block: the same scripts on a socket of the caller's own."""

from __future__ import annotations

import select
import socket
from time import monotonic
from typing import Any, NoReturn

import hiredis

from headrace.backends.redis.backend import RedisBackend
from headrace.backends.redis.connection import (
    CONNECT,
    SLOWEST,
    Connection,
    check_clear,
    keep_alive,
    login,
    refused_login,
)
from headrace.backends.redis.connections import LIMIT, Connections
from headrace.backends.redis.endpoint import Address, Endpoint
from headrace.backends.redis.events import RedisEvents
from headrace.backends.redis.requests import Argument, in_parts, is_large, pack
from headrace.backends.redis.translate import Refused, translated
from headrace.errors import HeadraceError, Unavailable
from headrace.seam.protocol import Left

_PIECE = 1 << 16
_LEAST = 0.001
"""Seconds: none would mean without end."""


class BlockingConnections(Connections):
    """One socket to one server, made when it is needed. Belongs to one thread at a time."""

    def __init__(self, endpoint: Endpoint, left: Left) -> None:
        super().__init__(endpoint)
        self._left = left
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader(replyError=Refused)

    async def call(self, key: str, *args: Argument) -> Any:
        found = self._socket
        if found is not None and not _silent(found):  # it has hung up, most likely
            self._drop()
            found = None
        if found is None:
            with self._connecting():
                found = self._socket = self._connect()
        said = self._asked(found, args)
        if isinstance(said, Refused):
            if "READONLY" in str(said):
                self._drop()
            raise said
        return said

    def _connect(self) -> socket.socket:
        [address] = self._endpoint.addresses
        check_clear(self._endpoint, address)
        where = self._endpoint.where
        try:
            found = self._reached(address)
            try:
                for command in login(self._endpoint):
                    said = self._asked(found, command)
                    if isinstance(said, Refused):
                        raise refused_login(self._endpoint, command, said)
                said = self._asked(found, ("INFO", "replication"))
                if isinstance(said, Refused):
                    raise said
                if b"role:slave" in said:
                    raise Unavailable(f"{where} is a replica just now: the URL must name the primary")
            except BaseException:
                found.close()
                raise
        except HeadraceError:
            raise
        except Exception as error:
            raise translated(error, where, login=self._endpoint.login) from error
        return found

    def _reached(self, address: Address) -> socket.socket:
        limit = max(_LEAST, min(CONNECT, self._left()))
        if address.path is not None:
            found = socket.socket(socket.AF_UNIX)
            found.settimeout(limit)
            found.connect(address.path)
            return found
        found = socket.create_connection((address.host, address.port), limit)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(found)
        context = self._endpoint.tls_context
        return found if context is None else context.wrap_socket(found, server_hostname=address.host)

    def _asked(self, found: socket.socket, args: tuple[Argument, ...]) -> Any:
        parts = in_parts(args) if is_large(args) else [memoryview(pack(args))]
        began = monotonic()
        deadline = began + min(self._left(), LIMIT + sum(map(len, parts)) / SLOWEST)
        reader = self._reader
        try:
            found.settimeout(max(_LEAST, deadline - began))
            for part in parts:
                found.sendall(part)
            while (said := reader.gets()) is False:
                found.settimeout(max(_LEAST, deadline - monotonic()))
                data = found.recv(_PIECE)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                reader.feed(data)
            return said
        except BaseException as error:  # whatever it was, the next answer on this socket may be that to this call
            self._drop()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"{self._endpoint.where} cannot serve just now: no answer for {monotonic() - began:.3g} seconds"
                ) from None
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise Unavailable(
                    f"{self._endpoint.where} cannot serve just now: the connection broke: {error}"
                ) from error
            raise

    def _drop(self) -> None:
        found, self._socket, self._reader = self._socket, None, hiredis.Reader(replyError=Refused)
        if found is not None:
            found.close()

    async def single(self, key: str, *, limit: float) -> Connection:
        _unasked()

    async def beside(self, connection: Connection) -> Connection:
        _unasked()

    async def close(self) -> None:
        self._open = False
        self._drop()


def _silent(found: socket.socket) -> bool:
    """Whether the server has sent nothing unasked."""
    unasked = select.poll()
    unasked.register(found, select.POLLIN)
    return not unasked.poll(0)


def _unasked() -> NoReturn:
    raise NotImplementedError("callers that block do not listen")


class BlockingRedis(RedisBackend):
    """A server for one thread at a time."""

    def __init__(self, endpoint: Endpoint, *, prefix: str = "headrace", left: Left, tells: bool = True) -> None:
        connections = BlockingConnections(endpoint, left)
        self._left = left
        super().__init__(endpoint, prefix=prefix, listen=False, connections=connections)
        if tells:
            self.events = RedisEvents(connections, prefix, lambda: self._base, endpoint.where)

    def sibling(self) -> BlockingRedis:
        return BlockingRedis(self._endpoint, prefix=self._prefix, left=self._left)
