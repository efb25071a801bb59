"""How a database becomes a store, how far it has come, and who may use it."""

from __future__ import annotations

import asyncio
import functools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import quote as percent_encoded

from psycopg import AsyncConnection, sql
from psycopg import errors as pg

from headrace.backends.postgres.connections import Connections
from headrace.backends.statements import read
from headrace.errors import ConfigError, SchemaMismatch, Unavailable

LOCK_TIMEOUT = 5.0
"""Seconds that a step may wait for a lock, and others behind it."""
_SHORTEST, _LONGEST = 0.001, 2_147_483.0
"""What the server can be told; it takes less for no limit at all."""
_TRIES = 5
_PAUSE = 1.0
"""Seconds in which those who queued up behind a step get what it waited for in vain."""

_MAKES = re.compile(r"^CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|VIEW|TYPE|FUNCTION) (\w+)", re.M)
_TOUCHES = re.compile(
    r"^(?:ALTER TABLE|CREATE (?:UNIQUE )?INDEX \w+ ON|CREATE TABLE \w+ PARTITION OF|DROP TABLE|LOCK TABLE) (\w+)", re.M
)

Ask = Callable[[str], Awaitable[list[Any]]]
"""Runs a statement; its rows."""


class Migration(NamedTuple):
    """One step; steps only ever add."""

    version: int
    name: str
    script: str

    @property
    def effect(self) -> str:
        """What it makes, and which tables in use it locks, in one line."""
        made = _MAKES.findall(self.script)
        kinds = Counter(kind.lower() for kind, _ in made)
        new = ", ".join(f"{count} {kind if count == 1 else _plural(kind)}" for kind, count in kinds.items())
        locked = sorted(set(_TOUCHES.findall(self.script)) - {name for kind, name in made if kind == "TABLE"})
        locks = f"locks {', '.join(locked)} for a moment" if locked else "locks no table in use"
        return f"new: {new}; {locks}" if new else locks


class Applied(NamedTuple):
    """A step that a store has seen."""

    version: int
    name: str
    at: datetime


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """All steps, in the order of their names. The version is the place in this order: numbers may be left out."""
    entries = sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    scripts = [entry for entry in entries if entry.name.endswith(".sql")]
    return tuple(
        Migration(version, entry.name.removesuffix(".sql"), entry.read_text("utf-8"))
        for version, entry in enumerate(scripts, start=1)
    )


class Found(NamedTuple):
    """What there is in a schema."""

    applied: list[Applied]
    """In order; none if there is no store."""
    confined: bool
    """Whether this role sees the jobs of its tenants only."""
    types: Mapping[str, int]
    """The numbers that the server gave to the types of rows, by name."""

    @property
    def version(self) -> int:
        """0 if there is no store."""
        return self.applied[-1].version if self.applied else 0

    @property
    def needed(self) -> int:
        """The version that this Headrace was made for."""
        return migrations()[-1].version

    @property
    def pending(self) -> list[Migration]:
        """The steps that are missing; none in a store of a newer version."""
        return [step for step in migrations() if step.version > self.version]


async def migrate(
    connection: AsyncConnection[Any], schema: str, *, lock_timeout: float = LOCK_TIMEOUT
) -> list[Migration]:
    """Apply what is missing, on a connection in autocommit mode; which steps were applied. See :class:`Schema`."""
    return [step async for step in Schema(schema).up(connection, lock_timeout)]


class Schema:
    """The store in one schema: how far it is, and the steps that take it further, each a transaction of its own.

    A store of a newer version is left as it is: steps only add, so it serves this one too.
    """

    def __init__(self, name: str, where: str = "PostgreSQL") -> None:
        self.name = name
        self._where = where
        self._sql = read(__package__, "schema")

    async def look(self, ask: Ask) -> Found:
        """What there is."""
        [[columns, confined, types]] = await ask(self.query("look"))
        if columns is None:
            return Found([], confined, {})
        applied: list[Applied] = []
        if {"version", "name", "applied_at"} <= set(columns):
            applied = [Applied(*row) for row in await ask(self.query("ledger"))]
        if not applied or applied[0][:2] != migrations()[0][:2]:
            raise SchemaMismatch(
                f"{self._where}: the table migrations in schema {self.name!r} belongs to another program; "
                "give Headrace a schema of its own: add schema=NAME to the URL"
            )
        return Found(applied, confined, types or {})

    async def found(self, connection: AsyncConnection[Any], lock_timeout: float = LOCK_TIMEOUT) -> Found:
        """What there is; waits no longer for it than that."""
        async with connection.transaction():
            await connection.execute(self._patience(lock_timeout).encode())
            return await self.look(_asking(connection))

    async def up(
        self, connection: AsyncConnection[Any], lock_timeout: float = LOCK_TIMEOUT
    ) -> AsyncIterator[Migration]:
        """Apply what is missing; each step, when it has been applied.

        Waits at most ``lock_timeout`` seconds, from a millisecond to 24 days, for what another session has locked, a
        few times; then raises ``Unavailable``. Nothing of that step is left then, and those before it stay.
        """
        for step in (await self.found(connection, lock_timeout)).pending:
            if await self._apply(connection, step, lock_timeout):
                yield step

    def sql(self, after: int = 0, *, bare: bool = False) -> str:
        """The steps after that version. ``bare``: to be run inside of a transaction, which finds its settings as they
        were; else each step is a transaction of its own."""
        steps = [step for step in migrations() if step.version > after]
        begin = self._patience(LOCK_TIMEOUT) + self._text("begin")
        bodies = [f"{self._alone(step)}{self._body(step)}" for step in steps]
        if not bare:
            named = zip(steps, bodies, strict=True)
            return "\n".join(f"-- {step.name}\nBEGIN;\n{begin}{body}COMMIT;\n" for step, body in named)
        bodies = [f"-- {step.name}\n{body}" for step, body in zip(steps, bodies, strict=True)]
        return "\n".join([self._text("save") + begin, *bodies, self._text("restore")]) if steps else ""

    def query(self, head: str) -> str:
        """A statement for the driver, which takes a percent sign for its own."""
        names = {blank: name.replace("%", "%%") for blank, name in self._names().items()}
        return self._text(head, **names)

    # -- inside

    def _names(self) -> dict[str, str]:
        quoted, literal = sql.Identifier(self.name).as_string(None), sql.Literal(self.name).as_string(None)
        return {"schema": quoted, "name": literal.strip()}

    def _text(self, head: str, **values: object) -> str:
        """A statement with its blanks filled in, at once: what fills one may look like another."""
        filled = self._names() | values
        return re.sub(r"\{(\w+)\}", lambda found: str(filled[found[1]]), self._sql[head]) + "\n"

    def _patience(self, lock_timeout: float) -> str:
        if not _SHORTEST <= lock_timeout <= _LONGEST:
            raise ConfigError(f"lock timeout: expected between 1 ms and 24 days, got {lock_timeout:g} s")
        return self._text("patience", milliseconds=round(lock_timeout * 1_000))

    def _alone(self, step: Migration) -> str:
        """What keeps others from migrating meanwhile. The first step makes what they would lock."""
        return "" if step.version == 1 else self._text("alone")

    def _body(self, step: Migration) -> str:
        """A step from within its transaction."""
        head = self._text("first") if step.version == 1 else self._text("next", before=step.version - 1)
        return f"{head}{step.script}{self._text('last', version=step.version, step=step.name)}"

    async def _apply(self, connection: AsyncConnection[Any], step: Migration, lock_timeout: float) -> bool:
        """Whether it was this call that applied it, and not another one at the same time."""
        for tried in range(1, _TRIES + 1):
            try:
                return await self._try(connection, step, lock_timeout)
            except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
                told = str(error).splitlines()[0]
            except (pg.UniqueViolation, pg.DuplicateSchema, pg.DuplicateTable) as error:
                if step.version > 1:
                    raise
                told = str(error).splitlines()[0]  # somebody else makes the store at the same time
            if tried < _TRIES:
                await asyncio.sleep(_PAUSE)
        raise Unavailable(
            f"{self._where}: step {step.name} needs a lock that another session has, and waited {_TRIES} times "
            f"{lock_timeout:g} s: {told}. Nothing of the step was changed; look in pg_stat_activity for what takes so "
            "long, and run it again"
        )

    async def _try(self, connection: AsyncConnection[Any], step: Migration, lock_timeout: float) -> bool:
        async with connection.transaction():
            await connection.execute((self._patience(lock_timeout) + self._text("begin") + self._alone(step)).encode())
            found = await self.look(_asking(connection))
            if found.version >= step.version:
                return False
            if not found.applied and (taken := await self._taken(_asking(connection))):
                found = await self.look(_asking(connection))
                if found.version >= step.version:  # somebody else has made the store since the first look
                    return False
                raise SchemaMismatch(
                    f"{self._where}: schema {self.name!r} belongs to another program, which has {', '.join(taken)} "
                    "there already; give Headrace a schema of its own: add schema=NAME to the URL"
                )
            await connection.execute(self._body(step).encode())
        return True

    async def _taken(self, ask: Ask) -> list[str]:
        """The names of the store that are there already: a schema of another program is shared only where none is."""
        ours = {name for step in migrations() for _, name in _MAKES.findall(step.script)}
        return sorted(ours & {name for [name] in await ask(self.query("names"))})


class Migrator:
    """A schema and the way to it: for those who open the store, and for tools that bring it up to date or say who may
    use it."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self.schema = Schema(schema, connections.where)
        self._connections = connections

    async def ready(self, *, migrate: bool) -> Found:
        """What there is, which is at least of this version. Writes nothing and locks nothing if it is already."""
        found = await self._look()
        if not found.pending:
            return found
        if not migrate:
            raise self._behind(found, "its URL says migrate=no")
        try:
            async for _ in self.up():
                pass
        except ConfigError as error:
            if isinstance(error.__cause__, pg.InsufficientPrivilege):
                raise self._behind(found, str(error.__cause__).splitlines()[0]) from error
            raise
        return await self._look()

    async def _look(self) -> Found:
        found = await self.schema.look(self._connections.rows)
        self._connections.types.update(found.types)
        return found

    async def found(self) -> Found:
        """What there is."""
        async with self._connections.connection() as connection:
            return await self.schema.found(connection)

    async def up(self, lock_timeout: float = LOCK_TIMEOUT) -> AsyncIterator[Migration]:
        """Apply what is missing; see :meth:`Schema.up`."""
        async with self._connections.connection() as connection:
            async for step in self.schema.up(connection, lock_timeout):
                yield step

    async def grant(self, part: str, role: str, tenants: Sequence[str] | None = None) -> None:
        """Give a database role a part. With ``tenants`` it is confined to their jobs; an empty list lets it out."""
        async with self._connections.connection() as connection, connection.transaction():
            if tenants is not None:
                await connection.execute(self.schema.query("confine").encode(), (role, list(tenants) or None))
            await connection.execute(self.schema.query("grant").encode(), (part, role))

    async def revoke(self, part: str, role: str) -> None:
        """Take a part back."""
        async with self._connections.connection() as connection:
            await connection.execute(self.schema.query("revoke").encode(), (part, role))

    def _behind(self, found: Found, why: str) -> SchemaMismatch:
        where, name = self._connections.where, self.schema.name
        version = f"is at version {found.version}" if found.applied else "holds no store yet"
        option = "" if name == "headrace" else f"?schema={percent_encoded(name, safe='')}"
        return SchemaMismatch(
            f"{where}: schema {name!r} {version}, this Headrace needs version {found.needed}, and it cannot be brought "
            f"there: {why}. Run as its owner: headrace migrate up --url '{where}{option}', or hand on what this "
            f"prints: headrace migrate sql --from {found.version} --schema {quote(name)}"
        )


def _asking(connection: AsyncConnection[Any]) -> Ask:
    async def ask(query: str) -> list[Any]:
        return await (await connection.execute(query.encode(), (), binary=True)).fetchall()

    return ask


def _plural(kind: str) -> str:
    return "indexes" if kind == "index" else f"{kind}s"
