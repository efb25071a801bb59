"""Jobs in transactions of the caller's own: which connections we know, and how each is spoken to.

A driver is recognised by the modules that are loaded already; none is imported here for its sake. One text is sent and
one text comes back, so that no adapter, codec or row factory of the caller's connection has a say in it.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, sql
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from headrace.backends.postgres.composites import JOB
from headrace.backends.statements import read
from headrace.errors import ConfigError, SchemaMismatch
from headrace.seam.instants import to_datetime
from headrace.seam.records import Inserted, InsertStatus, KeyUntil, Replaces, Row, Settlement, Step
from headrace.types import JobState

_LEASE_LOST = "LL001"
_NOT_OURS = ("3F000", "42883")
"""No such schema, no such function."""
_REFUSED = "42501"

Send = Callable[[str, str], str]
AsyncSend = Callable[[str, str], Awaitable[str]]
Session = AbstractAsyncContextManager[AsyncConnection[Any]]


class PostgresTransactions:
    """Joins transactions in the database that the store is in."""

    def __init__(self, schema: str, where: str, session: Callable[[], Session]) -> None:
        self._schema = schema
        self._where = where
        self._session = session
        self._statements = read(__package__, "bind")
        self._quoted = sql.Identifier(schema).as_string(None)
        self.floor_of: Callable[[Settlement], int | None] = lambda _: None
        """The floor under which the job of a settlement was given out, if a window did it."""

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncPostgresJoined]:
        """See :class:`headrace.seam.protocol.Transactions`."""
        async with self._session() as connection, connection.transaction():
            yield self._awaited(partial(_psycopg_async, connection), self._percent())

    def join(self, connection: object) -> PostgresJoined | AsyncPostgresJoined:
        """See :class:`headrace.seam.protocol.Transactions`."""
        if isinstance(connection, Connection):
            return self._joined(partial(_psycopg, connection), self._percent())
        if isinstance(connection, AsyncConnection):
            return self._awaited(partial(_psycopg_async, connection), self._percent())
        if _is_a(connection, "asyncpg:Connection"):
            return self._awaited(partial(_asyncpg, connection), self._sql(self._quoted, "$1"))
        if _is_a(connection, "sqlalchemy.engine:Connection"):
            return self._joined(partial(_sqlalchemy, connection), self._colon())
        if _is_a(connection, "sqlalchemy.orm:Session", "sqlalchemy.orm:scoped_session"):
            return self._joined(partial(_session, connection), self._colon())
        if _is_a(connection, "sqlalchemy.ext.asyncio:AsyncConnection"):
            return self._awaited(partial(_sqlalchemy_async, connection, _sqlalchemy), self._colon())
        if _is_a(connection, "sqlalchemy.ext.asyncio:AsyncSession", "sqlalchemy.ext.asyncio:async_scoped_session"):
            return self._awaited(partial(_sqlalchemy_async, connection, _session), self._colon())
        if hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor"):
            return self._joined(partial(_django, connection), self._percent())
        raise ConfigError(
            "expected a connection of psycopg, asyncpg or Django, or a Connection, Session, AsyncConnection or "
            f"AsyncSession of SQLAlchemy, got {type(connection).__module__}.{type(connection).__qualname__}; "
            "a pool or an engine is none: take a connection from it"
        )

    def _joined(self, send: Send, statements: Mapping[str, str]) -> PostgresJoined:
        async def sent(statement: str, given: str) -> str:
            return send(statement, given)

        return PostgresJoined(sent, statements, self._explaining, self.floor_of)

    def _awaited(self, send: AsyncSend, statements: Mapping[str, str]) -> AsyncPostgresJoined:
        return AsyncPostgresJoined(send, statements, self._explaining, self.floor_of)

    def _percent(self) -> dict[str, str]:
        return self._sql(self._quoted.replace("%", "%%"), "%s")

    def _colon(self) -> dict[str, str]:
        return self._sql(self._quoted.replace(":", "\\:"), ":given")

    def _sql(self, schema: str, given: str) -> dict[str, str]:
        """The statements as a driver wants them. The schema comes last, as a name may hold anything."""
        return {
            name: text.replace("{given}", given).replace("{schema}", schema) for name, text in self._statements.items()
        }

    @contextmanager
    def _explaining(self, part: str) -> Iterator[None]:
        """Only what has to do with us is told in our words; ``part`` is the one that gives the right to it."""
        try:
            yield
        except Exception as error:
            if _sqlstate(error) == _REFUSED:
                remedy = _hint(error) or f"It takes a {part}: headrace migrate grant {part} ROLE"
                raise ConfigError(
                    f"{self._where} refuses the role of this connection: {_first_line(_server(error))}. {remedy}"
                ) from error
            if _sqlstate(error) in _NOT_OURS:
                raise SchemaMismatch(
                    f"the database of this connection holds no jobs in a schema {self._schema!r}, or those of an older "
                    f"version: {_first_line(_server(error))}. Bind a connection to the database at {self._where}; "
                    "if it is one, bring its schema up to date first: headrace migrate up"
                ) from error
            raise


class _Joined:
    """A transaction of somebody else's."""

    def __init__(
        self,
        send: AsyncSend,
        statements: Mapping[str, str],
        explaining: Callable[[str], Any],
        floor_of: Callable[[Settlement], int | None],
    ) -> None:
        self._send = send
        self._statements = statements
        self._explaining = explaining
        self._floor_of = floor_of

    async def insert(self, rows: Sequence[Row]) -> list[Inserted]:
        with self._explaining("producer"):
            return _answers(await self._send(self._statements["enqueue"], _jobs(rows)))

    async def complete(self, settlement: Settlement) -> bool:
        with self._explaining("worker"):
            try:
                await self._send(self._statements["complete"], _completion(settlement, self._floor_of(settlement)))
            except Exception as error:
                return _unless_fenced(error)
        return True


class PostgresJoined(_Joined):
    """A transaction on a connection that blocks."""

    blocks: Final[Literal[True]] = True


class AsyncPostgresJoined(_Joined):
    """A transaction on a connection that is awaited."""

    blocks: Final[Literal[False]] = False

    async def sources(self, prefix: str = "") -> list[str]:
        with self._explaining("producer"):
            found: list[str] = json.loads(await self._send(self._statements["sources"], prefix))
            return found

    async def positions(self, source: str) -> dict[str, int]:
        with self._explaining("producer"):
            found: dict[str, int] = json.loads(await self._send(self._statements["positions"], source))
            return found

    async def advance(self, source: str, steps: Sequence[Step]) -> bool:
        with self._explaining("producer"):
            return await self._send(self._statements["advance"], _steps(source, steps)) == "true"


# -- drivers


def _psycopg(connection: Connection[Any], statement: str, given: str) -> str:
    if connection.autocommit:
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            with connection.pipeline() as pipeline:
                pipeline.sync()
        with connection.lock:
            _in_transaction(connection)
    with Cursor(connection, row_factory=tuple_row) as cursor:
        return _only(cursor.execute(statement, (given,)).fetchone())


async def _psycopg_async(connection: AsyncConnection[Any], statement: str, given: str) -> str:
    if connection.autocommit:
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            async with connection.pipeline() as pipeline:
                await pipeline.sync()
        async with connection.lock:
            _in_transaction(connection)
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        return _only(await (await cursor.execute(statement, (given,))).fetchone())


def _in_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """To be asked while no statement is under way: before that it is not known."""
    if connection.info.transaction_status is TransactionStatus.IDLE:
        raise ConfigError(
            "this psycopg connection commits every statement by itself (autocommit), so the job would stay when you "
            "roll back; use it within connection.transaction(), or connect without autocommit"
        )


async def _asyncpg(connection: Any, statement: str, given: str) -> str:
    if not connection.is_in_transaction():
        raise ConfigError(
            "this asyncpg connection is in no transaction, so the job would stay when you roll back; "
            "use it within connection.transaction()"
        )
    return str(await connection.fetchval(statement, given))


def _sqlalchemy(connection: Any, statement: str, given: str) -> str:
    """Never through the connection beneath: it may not have begun yet, and then commits at once."""
    if connection.dialect.name != "postgresql":
        raise ConfigError(f"expected a SQLAlchemy connection to PostgreSQL, got one to {connection.dialect.name}")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise ConfigError(
            "this SQLAlchemy connection commits every statement by itself (isolation_level AUTOCOMMIT), so the job "
            "would stay when you roll back; use one with another isolation level"
        )
    return str(connection.execute(sys.modules["sqlalchemy"].text(statement), {"given": given}).scalar_one())


def _session(session: Any, statement: str, given: str) -> str:
    return _sqlalchemy(session.connection(), statement, given)


async def _sqlalchemy_async(connection: Any, send: Callable[[Any, str, str], str], statement: str, given: str) -> str:
    if _is_a(connection, "sqlalchemy.ext.asyncio:async_scoped_session"):
        connection = connection()
    return str(await connection.run_sync(send, statement, given))


def _django(connection: Any, statement: str, given: str) -> str:
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"expected a Django connection to PostgreSQL, got {connection.alias!r} to {connection.vendor}"
        )
    if not connection.in_atomic_block:
        raise ConfigError(
            f"Django's connection {connection.alias!r} is in no atomic block, so the job would stay when you roll "
            f"back; use it within transaction.atomic(using={connection.alias!r})"
        )
    with connection.cursor() as cursor:
        cursor.execute(statement, [given])
        return _only(cursor.fetchone())


def _only(row: tuple[Any, ...] | None) -> str:
    assert row is not None
    return row[0].decode() if isinstance(row[0], bytes) else str(row[0])


def _is_a(connection: object, *names: str) -> bool:
    """Whether it is an instance of one of these, of which only loaded ones can have any."""
    for name in names:
        module, _, kind = name.partition(":")
        if isinstance(connection, getattr(sys.modules.get(module), kind, ())):
            return True
    return False


# -- what is sent, and what comes back


def _jobs(rows: Sequence[Row]) -> str:
    return json.dumps([_job(row) for row in rows])


def _job(row: Row) -> dict[str, Any]:
    cells = row.cells if row.headers is None else row.cells | {"headers": row.headers}
    job: dict[str, Any] = {"cells": {name: b64encode(cell).decode() for name, cell in cells.items()}}
    for name in _OPTIONS:
        if (value := getattr(row, name)) != _DEFAULTS.get(name):
            job[name] = _SAID[name](value) if name in _SAID else value
    if row.key_until:
        job["unique"] = _UNIQUE[row.key_until]
    if row.replaces:
        job["on_duplicate"] = _ON_DUPLICATE[row.replaces]
    return job | ({"on_failed": "return"} if row.hold_failed else {})


_UNIQUE = {KeyUntil.ENDED: "until done", KeyUntil.STARTED: "while pending"}
_ON_DUPLICATE = {
    Replaces.CELLS: "replace arguments", Replaces.TIME: "replace time", Replaces.BOTH: "replace",
}  # fmt: skip


def _seconds(length: int) -> float:
    """At most ten years, so a float still tells microseconds apart."""
    return length / 1e6


_OPTIONS = [
    column.attribute
    for column in JOB
    if column.attribute not in ("cells", "headers", "reply_to", "hold_failed", "key_until", "replaces")
]
_DEFAULTS = {"tenant": "", "priority": 0, "delay": 0}
_SAID: dict[str, Callable[[Any], Any]] = {
    "id": bytes.hex,
    "run_at": lambda run_at: to_datetime(run_at).isoformat(),
    "delay": _seconds,
    "expires": _seconds,
    "timeout": _seconds,
    "result_ttl": _seconds,
}
"""What ``enqueue_v1`` wants in another form than a row has it; all else goes as it is."""


def _completion(settlement: Settlement, floor: int | None) -> str:
    return json.dumps(
        {
            "id": settlement.id.hex(),
            "epoch": settlement.epoch,
            "holder": settlement.holder,
            "result": None if settlement.result is None else b64encode(settlement.result).decode(),
            "result_ttl": settlement.result_ttl,
            "floor": floor,
        }
    )


def _answers(text: str) -> list[Inserted]:
    return [
        Inserted(
            InsertStatus(status),
            UUID(job_id).bytes,
            JobState(state),
            None if result is None else b64decode(result),
            attempt,
        )
        for job_id, status, state, attempt, result in json.loads(text)
    ]


def _steps(source: str, steps: Sequence[Step]) -> str:
    return json.dumps({"source": source, "steps": [[step.part, step.seen, step.next] for step in steps]})


def _unless_fenced(error: Exception) -> bool:
    """False for what the server says of a lease that is lost; anything else goes on its way."""
    if _sqlstate(error) == _LEASE_LOST:
        return False
    raise error


def _sqlstate(error: BaseException) -> str | None:
    code = getattr(_server(error), "sqlstate", None)
    return code if isinstance(code, str) else None


def _hint(error: BaseException) -> str | None:
    said = _server(error)
    return getattr(said, "hint", None) or getattr(getattr(said, "diag", None), "message_hint", None)


def _server(error: BaseException) -> BaseException:
    """What the server said, in the driver's own class: SQLAlchemy and Django wrap it, some more than once."""
    found = error
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(getattr(inner, "sqlstate", None), str):
            found = inner
        inner = getattr(inner, "orig", None) or inner.__cause__
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
