"""PostgreSQL for callers that block: the same functions, on a connection of the caller's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cached_property
from math import inf
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from psycopg import Connection, Cursor, Error, waiting
from psycopg.abc import PQGen

from headrace.backends.postgres.arrays import register, texts
from headrace.backends.postgres.backend import PostgresBackend
from headrace.backends.postgres.connections import (
    CANCELLING,
    GRACE,
    LIFETIME,
    LIMIT,
    SETTINGS,
    Connections,
    Then,
    wrong_encoding,
)
from headrace.backends.postgres.crowd import note
from headrace.backends.postgres.hints import NOTIFY, Notifier, channel
from headrace.backends.postgres.spoken import Spoken
from headrace.backends.postgres.translate import REMEMBERED, translated
from headrace.errors import HeadraceError, Unavailable
from headrace.seam.protocol import Left

T = TypeVar("T")

log = logging.getLogger("headrace")


class _Session(Spoken, Connection[Any]):
    """One connection. A call that takes too long, or is interrupted, is its last."""

    deadline = inf
    """When the current call is given up."""
    sending = False
    """Whether some of the last call may not have been sent."""

    def __del__(self, *_: Any, **__: Any) -> None:
        """Without the driver's warning: a program may drop its app, or end, with connections open. libpq hangs up."""

    @cached_property
    def cursor_of_rows(self) -> Cursor[Any]:
        """One for all calls."""
        return self.cursor(binary=True)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        more = {} if timeout is None else {"timeout": timeout}
        return super().wait(self._limited(gen), min(interval, max(0.001, self.deadline - monotonic())), **more)

    def _limited(self, gen: PQGen[T]) -> PQGen[T]:
        """The same, but not for ever."""
        try:
            state = next(gen)
            while True:
                self.sending = bool(state & waiting.WAIT_W)
                ready = yield state
                if not ready and monotonic() > self.deadline:
                    raise TimeoutError
                state = gen.send(ready)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def abandon(self) -> None:
        """Have the server end a call that was given up, and hang up when it has."""
        self.deadline = monotonic() + LIMIT + GRACE
        try:
            self.cancel_safe(timeout=CANCELLING)
            self.wait(self.discard(), interval=1.0)
        except (Error, TimeoutError) as error:
            log.debug("a call that was given up could not be ended: %s", error)
        finally:
            self.end()


class BlockingConnections(Connections):
    """One connection, made when it is needed. Belongs to one thread at a time.

    Another thread makes it, as nothing else ends in time whatever it meets. Another one, too, has the server end a call
    that was given up; until it has, no other connection is made.
    """

    _session: _Session | None = None
    _beside: Future[_Session | None] | None = None
    """What goes on in another thread: brings a new connection, or ends a call that was given up."""
    _deadline = inf
    left: Left

    async def open(self) -> None:
        self._open = True
        await self.rows("SELECT")

    async def close(self) -> None:
        self._open = False
        self._forget()
        if self._beside is not None:
            self._beside.add_done_callback(_end)
            self._beside = None

    async def rows(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        return self.rows_now(sql, params, then)

    def rows_now(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        """All rows of one statement; see :class:`Connections`."""
        with self._call() as session:
            cursor = session.cursor_of_rows
            cursor.execute(sql, params, binary=True)
            rows = cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
            if then is not None and (statement := then(rows)):
                session.wait(session.say(statement))
            return rows

    async def value(self, sql: bytes, params: Sequence[bytes | None], sent: int) -> bytes | None:
        with self._call() as session:
            return session.wait(session.ask(sql, params))

    @contextmanager
    def _call(self) -> Iterator[_Session]:
        """The connection, for one call. It is not used again after an error, unless it is known to be fine."""
        began = monotonic()
        self._deadline = began + min(self.left(), LIMIT)
        try:
            session = self._connected()
            session.deadline = self._deadline
            yield session
        except BaseException as error:
            last = self._session
            if last is not None and not last.through:
                self._give_up(last)
            elif isinstance(error, REMEMBERED):
                self._forget()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{self.where}: no answer in {monotonic() - began:.3g} s") from error
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise translated(error, self.where) from error

    def _connected(self) -> _Session:
        if self._beside is not None:
            with suppress(Exception):
                self._session = self._brought()
            if self._beside is not None:
                raise TimeoutError
        session = self._session
        if session is not None and session.silent and monotonic() < session.born + LIFETIME:
            return session
        self._forget()
        if not self._open:
            raise Unavailable(f"{self.where}: the connections are closed")
        self._go_beside(self._make)
        self._session = session = self._brought()
        assert session is not None
        return session

    def _go_beside(self, work: Callable[[], _Session | None]) -> None:
        beside: Future[_Session | None] = Future()

        def run() -> None:
            try:
                beside.set_result(work())
            except BaseException as error:
                beside.set_exception(error)

        self._beside = beside
        Thread(target=run, name="headrace-connection", daemon=True).start()

    def _brought(self) -> _Session | None:
        """What comes of the other thread; ``TimeoutError`` if it takes too long."""
        assert self._beside is not None
        wait([self._beside], max(0.0, self._deadline - monotonic()))
        if not self._beside.done():
            raise TimeoutError
        beside, self._beside = self._beside, None
        return beside.result()

    def _make(self) -> _Session:
        session = _Session.connect(self.conninfo, autocommit=True, prepare_threshold=2 if self._prepare else None)
        session.deadline = monotonic() + LIMIT
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
        return session

    def _give_up(self, session: _Session) -> None:
        """Hang up on the last call, after the server has been told if it works on it."""
        if session.sending or session.closed:  # it waits for us, if for anybody
            self._forget()
            return
        self._session = None
        self._go_beside(session.abandon)

    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()


def _end(made: Future[_Session | None]) -> None:
    if made.exception() is None and (session := made.result()) is not None:
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

    def _connect(self, size: int) -> Connections:
        return BlockingConnections(self._url, self._where, size=1, prepare=self._prepare)

    def within(self, left: Left) -> None:
        """Give up calls that take longer."""
        assert isinstance(self._connections, BlockingConnections)
        self._connections.left = left

    def sibling(self) -> PostgresBackend:
        assert isinstance(self._connections, BlockingConnections)
        return self.blocking(self._connections.left)

    def _tell_by(self, connections: Connections) -> Notifier:
        assert isinstance(connections, BlockingConnections)
        return _Notifier(connections, self._schema)
