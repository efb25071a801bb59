"""One connection to a server, shared by any number of callers."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable
from ssl import SSLError
from typing import Any, cast

import hiredis

from headrace.backends.redis.endpoint import Address, Endpoint
from headrace.backends.redis.requests import LARGE, Argument, in_parts, is_large, pack
from headrace.backends.redis.translate import Refused, translated
from headrace.backends.refusal import NotLetIn
from headrace.errors import ConfigError, Unavailable

CONNECT = 5.0
"""Seconds that a server has to accept a connection and a login."""
SLOWEST = 256 * 1024
"""A request gets one more second for each of these bytes."""
_DOUBT = 1.0
"""Seconds of silence after which a connection is in doubt when a caller gives up."""
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
"""A machine that has vanished is noticed after nine seconds, on an idle connection too."""


_TLS_ALERT = b"\x15\x03"
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")


class Connection(asyncio.Protocol):
    """Requests are sent in the order of the calls, and answers come in that order: none can be taken for another's,
    even if a caller stops waiting. Nothing is sent twice: whether to repeat is for others to decide.

    If the server owes an answer and is silent for ``limit`` seconds, it counts as gone: all waiting calls fail, and the
    connection is closed. A large request gets more time, so that it gets through a slow network.
    """

    _transport: asyncio.Transport

    def __init__(self, where: str, limit: float, unheard: str = "") -> None:
        self.where = where
        self._unheard = unheard
        """What to add to a message if the server never sends anything that we understand."""
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=Refused)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        """Calls that wait, and until when."""
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._heard: Callable[[Any], None] | None = None
        self.ended = False
        self.refused_by_tls = False
        self._doubted = False
        self._outgoing: deque[memoryview] = deque()
        """Of large requests, what the network has not taken yet, and what was sent after them."""
        self._full = False
        """Whether the network takes no more just now."""
        self._fed = 0
        """Bytes that the reader has had."""
        self._lost: asyncio.Future[None] = self._loop.create_future()

    def call(self, *args: Argument) -> asyncio.Future[Any]:
        """Send a command. The future gets its answer."""
        if self.ended:
            raise self._gone()
        parts = in_parts(args) if is_large(args) else [pack(args)]
        loop = self._loop
        answer = loop.create_future()
        due = loop.time() + self._limit + sum(map(len, parts)) / SLOWEST
        self._waiting.append((answer, due))
        if self._watch is None:
            self._watch = loop.call_at(due, self._look)
        if len(parts) > 1 or self._outgoing:
            self._outgoing.extend(map(memoryview, parts))
            self._push()
        else:
            self._transport.write(parts[0])
        return answer

    @property
    def usable(self) -> bool:
        """Whether new calls should use this connection."""
        return not self.ended and not self._doubted

    def doubt(self) -> None:
        """A caller has given up. If nothing was heard for a while, the next caller gets a new connection; calls that
        wait on this one may still get their answers."""
        if self._waiting and not self.ended:
            _, due = self._waiting[0]
            self._doubted = self._loop.time() - max(due - self._limit, self._heard_at) > _DOUBT

    def subscribe(self, heard: Callable[[Any], None], channels: list[bytes]) -> None:
        """From now on ``heard`` gets everything that comes; None: the connection has ended."""
        self._heard = heard
        self.send("SUBSCRIBE", *channels)

    def send(self, *args: bytes | str | int) -> None:
        """Send a command whose answer no caller waits for."""
        self._outgoing.append(memoryview(pack(args)))
        self._push()

    def end(self, why: str = "the connection was closed") -> None:
        """Close the connection. Calls that wait fail, as it is unknown what became of their requests."""
        if not self.ended:
            self.ended = True
            self._why = why
            if self._loop.is_closed():
                return
            self._outgoing.clear()
            self._transport.abort()
            if self._watch is not None:
                self._watch.cancel()
            while self._waiting:
                answer, _ = self._waiting.popleft()
                if not answer.done():
                    answer.set_exception(self._gone())
            if self._heard is not None:
                self._heard(None)

    async def close(self) -> None:
        """Close the connection, and return when it is gone."""
        self.end()
        if not self._loop.is_closed() and not self._lost.done():
            await asyncio.wait([self._lost])

    async def stay(self) -> None:
        """Stay open until closed, or until the event loop ends: that closes generators which are still open."""
        self._stay = self._until_closed()
        await anext(self._stay)

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.close()

    def _gone(self) -> Unavailable:
        return Unavailable(f"{self.where} cannot serve just now: {self._why}")

    def _look(self) -> None:
        """Close the connection if the server is silent for too long."""
        self._watch = None
        if self._waiting:
            due = max(self._waiting[0][1], self._heard_at + self._limit)
            if due <= self._loop.time():
                self.end(f"no answer for {self._limit:g} seconds")
            else:
                self._watch = self._loop.call_at(due, self._look)

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            keep_alive(sock)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._push()

    def _push(self) -> None:
        """Hand over as much as the network takes: what it cannot take yet, the event loop would copy."""
        while self._outgoing and not self._full:
            self._transport.write(self._outgoing.popleft())

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        reader = self._reader
        reader.feed(data)
        try:
            while (said := reader.gets()) is not False:
                if self._heard is not None:
                    self._heard(said)
                    continue
                if isinstance(said, Refused) and not self._waiting:
                    self.end(str(said))
                    return
                answer, _ = self._waiting.popleft()
                if answer.done():
                    continue
                if isinstance(said, Refused):
                    answer.set_exception(said)
                else:
                    answer.set_result(said)
            self._fed += len(data)
            if self._fed > LARGE and not self._waiting and self._heard is None:
                # Its bytes stay with the reader until more come. No answer is on its way, so another one takes over.
                self._reader = hiredis.Reader(replyError=Refused)
                self._fed = 0
            if self._doubted and not self._waiting:
                self.end("it has answered late")
        except (hiredis.ProtocolError, IndexError):
            more = self._unheard if data.startswith(_TLS_ALERT) else ""
            self.end("what answers there does not speak the protocol of Valkey and Redis" + more)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set_result(None)
        self.refused_by_tls = isinstance(exc, SSLError)
        why = f"the connection broke: {exc}" if exc else "the server closed the connection"
        self.end(why if self._heard_at else why + self._unheard)


def keep_alive(sock: socket.socket) -> None:
    """Have the system notice when the machine at the other end is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_clear(endpoint: Endpoint, address: Address) -> None:
    """Refuse to send anything in clear to another machine."""
    if endpoint.in_clear(address) and not endpoint.plaintext:
        raise ConfigError(
            f"{endpoint.where}: expected TLS on the way to another machine, {address}. Write {endpoint.twin} if the "
            "server speaks TLS; on a network where nobody can listen in, add plaintext=yes to the URL"
        )


def login(endpoint: Endpoint) -> list[tuple[bytes | str | int, ...]]:
    """The commands with which a connection begins."""
    commands: list[tuple[bytes | str | int, ...]] = []
    if endpoint.password is not None:
        commands.append(("AUTH", *([] if endpoint.user is None else [endpoint.user]), endpoint.password))
    if endpoint.database:
        commands.append(("SELECT", endpoint.database))
    return commands


async def connect(endpoint: Endpoint, address: Address, *, limit: float) -> Connection:
    """A new connection, logged in. Raises errors of the core."""
    loop = asyncio.get_running_loop()
    where = endpoint.where
    check_clear(endpoint, address)
    unheard = "" if endpoint.tls or address.path else f". If it speaks TLS, its URL begins with {endpoint.twin}"
    try:
        async with asyncio.timeout(CONNECT):
            if address.path is not None:
                _, connection = await loop.create_unix_connection(
                    lambda: Connection(where, limit, unheard), address.path
                )
            else:
                _, connection = await loop.create_connection(
                    lambda: Connection(where, limit, unheard), address.host, address.port, ssl=endpoint.tls_context
                )
            try:
                await connection.stay()
                await _log_in(connection, endpoint)
            except Unavailable as error:
                if endpoint.tls is not None:
                    raise _no_tls(connection, error) from None
                raise
            except BaseException:
                await connection.close()
                raise
    except TimeoutError:
        raise Unavailable(
            f"{where} cannot serve just now: no answer from {address} in {CONNECT:g} seconds{_no_tls_there(endpoint)}"
        ) from None
    except SSLError as error:
        problem = translated(error, where)
        if any(sign in str(error) for sign in _NOT_TLS):
            problem = ConfigError(f"{problem}{_no_tls_there(endpoint)}")
        raise problem from error
    except Exception as error:
        raise translated(error, where, login=endpoint.login) from error
    return connection


async def _log_in(connection: Connection, endpoint: Endpoint) -> None:
    for command in login(endpoint):
        try:
            await connection.call(*command)
        except Refused as error:
            raise refused_login(endpoint, command, error) from None
    if endpoint.tls is not None:
        await connection.call("PING")


def refused_login(endpoint: Endpoint, command: tuple[bytes | str | int, ...], error: Refused) -> Exception:
    """What a server's refusal of a login means."""
    if command[0] == "AUTH" and "without any password configured" in str(error):
        return NotLetIn(f"{endpoint.where} asks for no password: leave {endpoint.secret} out of the URL")
    if command[0] == "AUTH" and error.code == "ERR":  # the rest of the message may repeat the password
        return Refused("AUTH was not understood, or is not asked for here")
    return error


def _no_tls_there(endpoint: Endpoint) -> str:
    return f". If it speaks no TLS, its URL begins with {endpoint.twin}" if endpoint.tls is not None else ""


def _no_tls(connection: Connection, error: Unavailable) -> Exception:
    """A server that wants a certificate says so after the first request, or just closes the connection."""
    if connection.refused_by_tls:
        return ConfigError(f"{error}. Check ca, cert, key and verify in the URL")
    return Unavailable(f"{error}. Does the server ask for a certificate? cert and key in the URL name one")
