"""PostgreSQL for callers that block: the same functions, on a connection of the caller's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from time import monotonic
from typing import Any, TypeVar

from psycopg import Connection, Cursor
from psycopg.abc import PQGen

from headrace.backends.postgres.arrays import register, texts
from headrace.backends.postgres.backend import PostgresBackend
from headrace.backends.postgres.connections import LIFETIME, LIMIT, SETTINGS, Connections, Then, wrong_encoding
from headrace.backends.postgres.crowd import note
from headrace.backends.postgres.hints import NOTIFY, Notifier, channel
from headrace.backends.postgres.spoken import Spoken
from headrace.backends.postgres.translate import REMEMBERED, translated
from headrace.errors import HeadraceError, Unavailable

T = TypeVar("T")

log = logging.getLogger("headrace")


class _Session(Spoken, Connection[Any]):
    """One connection. A call that takes too long, or is interrupted, is its last."""

    limit = LIMIT

    @cached_property
    def cursor_of_rows(self) -> Cursor[Any]:
        """One for all calls."""
        return self.cursor(binary=True)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        more = {} if timeout is None else {"timeout": timeout}
        return super().wait(_limited(gen, monotonic() + self.limit), interval, **more)

    def end(self) -> None:
        """Hang up, without a word to the server."""
        self.pgconn.finish()


def _limited(gen: PQGen[T], deadline: float) -> PQGen[T]:
    """The same, but not for ever."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and monotonic() > deadline:
                raise TimeoutError
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class BlockingConnections(Connections):
    """One connection, made when it is needed. Belongs to one thread at a time."""

    _session: _Session | None = None
    limit = LIMIT
    """Seconds that a call may take."""

    async def open(self) -> None:
        self._open = True
        await self.rows("SELECT")

    async def close(self) -> None:
        self._open = False
        self._forget()

    async def rows(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        return self.rows_now(sql, params, then)

    def rows_now(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        """All rows of one statement; see :class:`Connections`."""
        try:
            session = self._connected()
            cursor = session.cursor_of_rows
            cursor.execute(sql, params, binary=True)
            rows = cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
            if then is not None and (statement := then(rows)):
                session.wait(session.say(statement))
            return rows
        except BaseException as error:
            raise self._failed(error) from error

    async def value(self, sql: bytes, params: Sequence[bytes | None], sent: int) -> bytes | None:
        try:
            session = self._connected()
            return session.wait(session.ask(sql, params))
        except BaseException as error:
            raise self._failed(error) from error

    def _connected(self) -> _Session:
        session = self._session
        if session is not None and session.silent and monotonic() < session.born + LIFETIME:
            return session
        self._forget()
        if not self._open:
            raise Unavailable(f"{self.where}: the connections are closed")
        session = _Session.connect(self.conninfo, autocommit=True, prepare_threshold=2 if self._prepare else None)
        try:
            if problem := wrong_encoding(session, self.where):
                raise problem
            session.born = monotonic()
            register(session, self.types)
            if self._prepare:
                session.execute(SETTINGS, (limit := str(int(LIMIT * 1_000)), limit))
        except BaseException:
            session.end()
            raise
        session.limit = self.limit
        self._session = session
        return session

    def _failed(self, error: BaseException) -> BaseException:
        """The error as the core knows it. The connection is not used again, unless it is known to be fine."""
        session = self._session
        if session is None or not session.through or isinstance(error, REMEMBERED):
            self._forget()
        if isinstance(error, TimeoutError):
            return Unavailable(f"{self.where}: no answer in {self.limit:.3g} s")
        if isinstance(error, HeadraceError) or not isinstance(error, Exception):
            return error
        return translated(error, self.where)

    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()


class _Notifier(Notifier):
    """Sends hints at once."""

    def __init__(self, connections: BlockingConnections, schema: str) -> None:
        super().__init__(connections, schema)
        self._now = connections.rows_now

    def along(self, topic: str) -> tuple[bytes, bytes]:
        self._sent += 1
        return channel(self._schema, topic).encode(), note(1, self._sent).encode()

    def _go(self) -> None:
        while batch := self._gathered():
            try:
                self._now(NOTIFY, tuple(texts(list(part)) for part in zip(*batch, strict=True)))
            except HeadraceError as error:
                log.debug("hints were lost: %s", error)

    async def flush(self) -> None:
        """Nothing is ever left."""


class BlockingPostgres(PostgresBackend):
    """A database for one thread at a time."""

    def _connect(self) -> Connections:
        return BlockingConnections(self._url, self._where, size=1, prepare=self._prepare)

    def within(self, limit: float) -> None:
        """Give up calls that take longer."""
        assert isinstance(self._connections, BlockingConnections)
        self._connections.limit = min(limit, LIMIT)

    def _tell_by(self, connections: Connections) -> Notifier:
        assert isinstance(connections, BlockingConnections)
        return _Notifier(connections, self._schema)
