"""Connections to the server: how many, how long a call may take on one, and when one is thrown away."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, AsyncTransaction, BaseConnection, Error, ProgrammingError, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.backends.postgres.arrays import register
from headrace.backends.postgres.spoken import Spoken
from headrace.backends.postgres.translate import REMEMBERED, translated
from headrace.backends.postgres.transport import in_clear, secured
from headrace.errors import ConfigError, Unavailable

T = TypeVar("T")
Then = Callable[[Sequence[Any]], bytes | None]

log = logging.getLogger("headrace")

LIMIT = 30.0
"""Seconds that a call may take. The server ends the statement then, so that nothing of it is left behind."""
_SLOWEST = 256 * 1024
"""A call gets more time for what it sends, at this many bytes a second, so that a large batch gets through."""
_LARGE = 1024 * 1024
"""Bytes from which the server is told so, as it counts the time in which they arrive."""
GRACE = 1.0
"""Seconds more until a silent server counts as gone."""
_STALL = 5.0
"""Seconds that an answer may pause once it has begun to arrive."""
CANCELLING = 5.0
"""Seconds in which the server must accept a request to end a statement."""
_SPARE = 60.0
"""Seconds that a connection may lie unused; the last one stays."""
LIFETIME = 3_600.0
"""Seconds that a connection is used: host names move to other addresses, and sessions grow."""

_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 9_000,
    "target_session_attrs": "read-write",
    "fallback_application_name": "headrace",
}
"""Unless the URL says otherwise. Nine seconds after a machine is gone, so are its connections. Of several hosts, the
one that takes writes is used, never a standby."""
_ENVIRONMENT = {"connect_timeout": "PGCONNECT_TIMEOUT", "target_session_attrs": "PGTARGETSESSIONATTRS"}

_FIXED = {"client_encoding": "UTF8"}
"""Whatever the URL says."""

SETTINGS = """
    SELECT set_config('default_transaction_isolation', 'read committed', false), CASE
        WHEN current_setting('statement_timeout')::interval NOT BETWEEN '1 ms' AND %s * interval '1 ms'
        THEN set_config('statement_timeout', %s, false)
    END, CASE
        WHEN current_setting('client_connection_check_interval', true) = '0' AND version() LIKE '%%linux%%'
        THEN set_config('client_connection_check_interval', '2s', false)
    END
"""
"""The statement of a process that was killed ends within two seconds, if the server can see that. Without the view
``pg_settings``, which would take milliseconds."""


def _completed(conninfo: str, where: str) -> str:
    try:
        given = conninfo_to_dict(conninfo)
    except ProgrammingError as error:
        raise ConfigError(f"{where}: {str(error).strip().replace(conninfo, where)}") from None
    unsaid: dict[str, Any] = {
        name: value for name, value in _DEFAULTS.items() if _ENVIRONMENT.get(name, "") not in os.environ
    }  # fmt: skip
    return make_conninfo("", **(unsaid | secured(given) | given | _FIXED))


class Session(Spoken, AsyncConnection[Any]):
    """One connection. It is not used again after a call that was broken off: its answer may still arrive, and must not
    be taken for that of the next call."""

    unused_since = 0.0
    limit: asyncio.Timeout | None = None
    """Of the current call; None on a connection that belongs to one caller."""
    given_up = False
    """Whether a call was broken off that the server may still work on."""
    rolled_back = False
    """Whether a transaction failed on it: the driver has the server forget all prepared statements then, also those
    that it knows nothing of."""
    _sending = False
    """Whether some of the last call may not have been sent."""

    @cached_property
    def cursor_of_rows(self) -> AsyncCursor[Any]:
        """One for all calls: making one takes as long as using it."""
        return self.cursor(binary=True)

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[AsyncTransaction]:
        try:
            async with super().transaction(savepoint_name, force_rollback) as transaction:
                yield transaction
        except BaseException:
            self.rolled_back = True
            raise

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        if self.given_up:  # whatever follows, such as a rollback, is broken off too
            gen.close()
            raise asyncio.CancelledError
        more = {} if timeout is None else {"timeout": timeout}
        try:
            return await waiting.wait_async(self._hearing(gen), self.pgconn.socket, interval, **more)
        except asyncio.CancelledError:
            self.given_up = self.limit is not None and not self._sending
            if not self.given_up:  # the server waits for us, if for anybody
                self.end()
            raise

    def _hearing(self, gen: PQGen[T]) -> PQGen[T]:
        """The same, but no limit ends a call whose answer is arriving: it may have taken effect."""
        try:
            state = next(gen)
            while True:
                self._sending = bool(state & waiting.WAIT_W)
                ready = yield state
                if self.limit is not None and ready & waiting.READY_R:
                    soon = asyncio.get_running_loop().time() + _STALL
                    if soon > (self.limit.when() or soon):
                        self.limit.reschedule(soon)
                state = gen.send(ready)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def abandon(self) -> None:
        """Have the server end a call that was given up. Returns when it has, or has hung up."""
        try:
            await self.cancel_safe(timeout=CANCELLING)
        except Error as error:
            log.debug("a statement that was given up could not be cancelled: %s", error)
        try:
            await waiting.wait_async(self.discard(), self.pgconn.socket, interval=1.0)
        except Error as error:
            log.debug("a connection that was given up is gone: %s", error)

    def __del__(self, *_: Any) -> None:
        """Hang up if the loop has ended."""
        if hasattr(self, "pgconn"):
            self.end()


class Connections:
    """A few connections, made when they are needed. Every call is one statement and one transaction. Nothing is kept in
    a session, so a pooler in transaction mode may be in between.

    A call that cannot be made fails at once, or after its limit; others decide whether to repeat it. A connection is
    not used again if the server is gone, or has given an error that may come from what the session remembers.

    A call that is given up keeps its place until the server is done with it, which it is asked to be at once. So there
    are never more sessions than places, however impatient the callers are.
    """

    def __init__(self, conninfo: str, where: str, *, size: int, prepare: bool) -> None:
        self.conninfo = _completed(conninfo, where)
        self.where = where
        self._prepare = prepare
        self._places = asyncio.Semaphore(size)
        self._idle: list[Session] = []
        """The one that was used last is at the end, and is used next."""
        self._tidying: asyncio.TimerHandle | None = None
        self._behind: set[asyncio.Task[Any]] = set()
        """What goes on after its caller has given up."""
        self._watch: AsyncGenerator[None, None] | None = None
        self._open = False
        self.types: dict[str, int] = {}
        """The server's numbers of composite types, by name."""

    @property
    def in_clear(self) -> str:
        """The ``sslmode`` by which others may listen in; empty where they cannot."""
        return in_clear(conninfo_to_dict(self.conninfo))

    async def open(self) -> None:
        """Connect; raises when the server cannot be reached."""
        self._open = True
        self._watch = self._watch_over()
        await anext(self._watch)
        try:
            await self.rows("SELECT")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect."""
        self._open = False
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        self._forget()
        if self._watch is not None:
            await self._watch.aclose()
            self._watch = None

    async def _watch_over(self) -> AsyncGenerator[None, None]:
        """Ends background tasks when this is closed, or when the loop is, which ends its generators last. A cancelled
        task may start another."""
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            while behind := [task for task in self._behind if task.get_loop() is loop]:
                for task in behind:
                    task.cancel()
                await asyncio.wait(behind)

    async def rows(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        """All rows of one statement. ``then`` may make another statement from them: it runs before they are returned,
        in its own transaction."""
        sent = sum(len(param) for param in params if isinstance(param, (bytes, bytearray)))
        async with self.session(sent) as session:
            if sent < _LARGE:
                rows = await _rows(session, sql, params)
            else:
                async with session.transaction():
                    await give_time(session, sent)
                    rows = await _rows(session, sql, params)
            if then is not None and (statement := then(rows)):
                await session.wait(session.say(statement))
            return rows

    async def value(self, sql: bytes, params: Sequence[bytes | None], sent: int) -> bytes | None:
        """The one value of a statement, both as they travel."""
        async with self.session(sent) as session:
            return await session.wait(session.ask(sql, params))

    @asynccontextmanager
    async def session(self, sent: int) -> AsyncIterator[Session]:
        """A connection for one transaction that sends this many bytes."""
        if not self._open:
            raise Unavailable(f"{self.where}: the connections are closed")
        limit = LIMIT + sent / _SLOWEST + GRACE
        try:
            async with asyncio.timeout(limit) as session_limit:
                deadline = asyncio.get_running_loop().time() + limit
                session = await self._take(deadline)
                session.limit = session_limit
                try:
                    yield session
                finally:
                    session.limit = None
                    if session.given_up:
                        self._leave(session, deadline)
                    else:
                        self._give(session)
        except TimeoutError as error:
            raise Unavailable(f"{self.where}: no answer in {limit:.3g} s") from error
        except REMEMBERED as error:
            self._forget()
            raise translated(error, self.where) from error
        except Exception as error:
            raise translated(error, self.where) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection for several statements, some of which take long."""
        connection = await self.single()
        try:
            yield connection
        except Exception as error:
            raise translated(error, self.where) from error
        finally:
            await connection.close()

    async def single(self) -> AsyncConnection[Any]:
        """A connection of its own, without limits; the caller closes it."""
        try:
            return await self._connect(prepare=False)
        except Exception as error:
            raise translated(error, self.where) from error

    async def _connect(self, *, prepare: bool) -> Session:
        session = await Session.connect(
            self.conninfo, autocommit=True, prepare_threshold=2 if prepare else None
        )  # fmt: skip
        if problem := wrong_encoding(session, self.where):
            session.end()
            raise problem
        session.born = asyncio.get_running_loop().time()
        register(session, self.types)
        return session

    async def _take(self, deadline: float) -> Session:
        await self._places.acquire()
        while self._idle:
            session = self._idle.pop()
            if session.silent:
                return session
            session.end()
        making = self._go_on(self._new())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_at(deadline, making.cancel)
            making.add_done_callback(self._made)
            task = asyncio.current_task()
            if (
                making.cancelled() and not self._open and not (task and task.cancelling())
            ):  # the caller was not cancelled
                raise Unavailable(f"{self.where}: the connections are closed") from None
            raise
        except BaseException:
            self._places.release()
            raise

    def _made(self, making: asyncio.Task[Session]) -> None:
        """Nobody waits for this connection any more: the next call finds it."""
        if making.cancelled() or making.exception() is not None:
            self._places.release()
        else:
            self._give(making.result())

    def _leave(self, session: Session, deadline: float) -> None:
        """Keep the place of a call that was given up until the server is done with it, or until the deadline."""

        async def abandon() -> None:
            try:
                async with asyncio.timeout_at(deadline):
                    await session.abandon()
            except TimeoutError:
                log.debug("%s: no answer to a call that was given up", self.where)

        def abandoned(_: asyncio.Task[None]) -> None:
            session.end()
            self._places.release()

        self._go_on(abandon()).add_done_callback(abandoned)

    def _go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name="headrace-connection")
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    async def _new(self) -> Session:
        session = await self._connect(prepare=self._prepare)
        if self._prepare:  # else a pooler may stand between, and the settings would be somebody else's
            limit = str(int(LIMIT * 1_000))
            try:
                await session.execute(SETTINGS, (limit, limit))
            except BaseException:
                session.end()
                raise
        return session

    def _give(self, session: Session) -> None:
        self._places.release()
        now = asyncio.get_running_loop().time()
        if not (self._open and session.through and not session.rolled_back and now < session.born + LIFETIME):
            session.end()
            return
        session.unused_since = now
        self._idle.append(session)
        if len(self._idle) > 1 and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_SPARE, self._tidy)

    def _tidy(self) -> None:
        """Hang up unused connections. The last one stays, so that a server without a free connection does not shut this
        process out."""
        loop = asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0].unused_since <= loop.time() - _SPARE:
            self._idle.pop(0).end()
        self._tidying = loop.call_later(_SPARE, self._tidy) if len(self._idle) > 1 else None

    def _forget(self) -> None:
        while self._idle:
            self._idle.pop().end()


def wrong_encoding(session: BaseConnection[Any], where: str) -> ConfigError | None:
    """What is wrong with a database whose text is not all text."""
    encoding = session.info.parameter_status("server_encoding")
    if encoding in ("UTF8", None):
        return None
    return ConfigError(
        f"{where}: expected a database in UTF8, got one in {encoding}, where not every name has a place; "
        "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    )


async def give_time(session: Session, sent: int) -> None:
    """Let the statements of this transaction take as long as this many bytes may take to arrive."""
    limit = str(int((LIMIT + sent / _SLOWEST) * 1_000))
    await session.execute("SELECT set_config('statement_timeout', %s, true)", (limit,))


async def _rows(session: Session, sql: str, params: Sequence[Any]) -> list[Any]:
    cursor = session.cursor_of_rows
    await cursor.execute(sql, params, binary=True)
    if not (cursor.pgresult and cursor.pgresult.nfields):
        return []
    rows = await cursor.fetchall()
    cursor.pgresult.clear()  # the cursor would keep it until the next call: twice the bytes of large cells
    return rows
