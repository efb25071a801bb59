"""Hot tables in the same database of PostgreSQL: in any schema but the store's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from headrace.backends.postgres.connections import Connections
from headrace.errors import ConfigError
from headrace.seam import tables as t
from headrace.seam.records import Stamp

_TYPES = {
    t.ColumnKind.TEXT: "text", t.ColumnKind.INTEGER: "bigint", t.ColumnKind.REAL: "double precision",
    t.ColumnKind.BOOLEAN: "boolean", t.ColumnKind.TIME: "timestamptz", t.ColumnKind.BYTES: "bytea",
    t.ColumnKind.JSON: "jsonb",
}  # fmt: skip
_TIMES = ("timestamp with time zone", "timestamp without time zone", "date")
_NUMBERS = ("bigint", "integer", "double precision", "numeric")
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_DESCRIBE = """
SELECT a.attname::text, format_type(a.atttypid, NULL),
    coalesce(array_position(i.indkey::smallint[], a.attnum), -1)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.oid = to_regclass(%b) AND c.relkind IN ('r', 'p') ORDER BY a.attnum
"""


_INDEXED = """
SELECT c.relkind = 'p', c.relkind = 'r' AND pg_relation_size(c.oid) = 0, EXISTS (
    SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = %b
)
FROM pg_class AS c WHERE c.oid = to_regclass(%b)
"""


def _plain(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _full(table: t.TableName) -> tuple[str, str]:
    """With its schema. Whatever the search path of the role says, a name alone is in ``public``."""
    return ("public", table[0]) if len(table) == 1 else (table[0], table[1])


def _quoted(name: str) -> str:
    """As it stands in a statement with parameters."""
    return _plain(name).replace("%", "%%")


class PostgresTables:
    """The operations of a :class:`~headrace.seam.tables.TableStore`. A table without a schema is in ``public``. Times
    are timestamps or dates; a timestamp without a time zone is in UTC. In a column of numbers they are seconds since
    1970."""

    def __init__(self, connections: Callable[[], Connections], schema: str) -> None:
        self._connections = connections
        self._schema = schema

    def _named(self, table: t.TableName) -> str:
        schema, _ = full = _full(table)
        if schema == self._schema:
            raise ConfigError(f"table {'.'.join(table)!r}: the schema {self._schema!r} is the store's own")
        return ".".join(map(_quoted, full))

    async def _run(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        return await self._connections().rows(sql, params)

    async def describe(self, table: t.TableName) -> t.TableInfo | None:
        self._named(table)
        rows = await self._run(_DESCRIBE, (".".join(map(_plain, _full(table))),))
        keys = sorted((place, name) for name, _, place in rows if place >= 0)
        return t.TableInfo({row[0]: row[1] for row in rows}, tuple(name for _, name in keys)) if rows else None

    async def create(
        self, table: t.TableName, columns: Mapping[str, t.ColumnKind], key: Sequence[str], age: str
    ) -> None:
        parts = [
            f"{_quoted(name)} {_TYPES[kind]}{' DEFAULT now()' if name == age else ''}" for name, kind in columns.items()
        ]
        parts.append(f"PRIMARY KEY ({', '.join(map(_quoted, key))})")
        await self._run(f"CREATE TABLE IF NOT EXISTS {self._named(table)} ({', '.join(parts)})")
        await self._index(table, age)

    async def _index(self, table: t.TableName, age: str) -> None:
        """An index that begins with the age, unless there is one. Others write meanwhile if the table has rows."""
        [[partitioned, empty, has]] = await self._run(_INDEXED, (age, ".".join(map(_plain, _full(table)))))
        if has:
            return
        digest = blake2b("\0".join((*_full(table), age)).encode(), digest_size=12).hexdigest()
        name = f"headrace_age_{digest}"
        made = f"IF NOT EXISTS {name} ON {'.'.join(map(_plain, _full(table)))} ({_plain(age)})"
        async with self._connections().connection() as connection:
            if partitioned or empty:
                await connection.execute(f"CREATE INDEX {made}".encode())
                return
            await connection.execute(f"CREATE INDEX CONCURRENTLY {made}".encode())
            [[_, _, valid]] = await self._run(_INDEXED, (age, ".".join(map(_plain, _full(table)))))
            if not valid:  # a process died while it made it
                schema = _plain(_full(table)[0])
                await connection.execute(f"REINDEX INDEX CONCURRENTLY {schema}.{name}".encode())

    async def prepare(self, table: t.TableName, age: str) -> None:
        if not await self._kind(table, age):  # this locks the table for a moment, also if the column is there
            await self._run(f"ALTER TABLE {self._named(table)} ADD COLUMN IF NOT EXISTS {_quoted(age)} timestamptz")
        await self._index(table, age)

    async def backfill(self, table: t.TableName, age: str, source: str | None, limit: int, at: Stamp = None) -> int:
        kind = await self._kind(table, age)
        now = _instant(kind, f"coalesce(%b::bigint, {_NOW})")
        value = now if source is None else f"t.{_quoted(source)}"
        has = "true" if source is None else f"{value} IS NOT NULL"
        found = await self._run(
            f"WITH these AS (SELECT t.ctid AS at FROM {self._named(table)} AS t WHERE t.{_quoted(age)} IS NULL "
            f"AND {has} LIMIT %b::bigint FOR UPDATE SKIP LOCKED) "
            f"UPDATE {self._named(table)} AS t SET {_quoted(age)} = {value} "
            "FROM these WHERE t.ctid = these.at RETURNING 1",
            (limit, at) if source is None else (limit,),
        )
        return len(found)

    async def put(
        self, table: t.TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> int:
        names, name = ", ".join(map(_quoted, columns)), self._named(table)
        others = [one for one in columns if one not in key]
        change = ", ".join(f"{_quoted(one)} = excluded.{_quoted(one)}" for one in others)
        body = msgspec.json.encode([dict(zip(columns, map(_value, row), strict=True)) for row in rows])
        await self._run(
            f"INSERT INTO {name} ({names}) SELECT {names} FROM jsonb_populate_recordset(NULL::{name}, %b::text::jsonb) "
            f"ON CONFLICT ({', '.join(map(_quoted, key))}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}",
            (body.decode(),),
        )
        return len(rows)

    async def update(
        self, table: t.TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> None:
        name = self._named(table)
        change = ", ".join(f"{_quoted(one)} = k.{_quoted(one)}" for one in columns if one not in key)
        same = " AND ".join(f"t.{_quoted(one)} = k.{_quoted(one)}" for one in key)
        body = msgspec.json.encode([dict(zip(columns, map(_value, row), strict=True)) for row in rows])
        await self._run(
            f"UPDATE {name} AS t SET {change} FROM jsonb_populate_recordset(NULL::{name}, %b::text::jsonb) AS k "
            f"WHERE {same}",
            (body.decode(),),
        )

    async def size(self, table: t.TableName) -> int:
        self._named(table)
        query = "SELECT coalesce(pg_total_relation_size(to_regclass(%b::text)), 0)"
        [[size]] = await self._run(query, (".".join(map(_plain, _full(table))),))
        return int(size)

    async def look(self, rule: t.HotRule, cutoff: t.Cutoff, limit: int) -> t.Look:
        kind, name = await self._kind(rule.table, rule.age), self._named(rule.table)
        condition, bounds = await self._condition(rule, cutoff, kind)
        age = f"t.{_quoted(rule.age)}"
        newest = f"SELECT {_micros(rule, kind)} FROM (SELECT max({age}) AS {_quoted(rule.age)} FROM {name} AS t) AS t"

        def counted(which: str) -> str:
            return f"SELECT count(*) FROM (SELECT FROM {name} AS t WHERE {which} LIMIT %b::bigint) AS c"

        parts, params = [counted(condition)], (*bounds, limit)
        if rule.processed is not None:
            parts.append(counted(f"{age} < {_instant(kind)} AND {condition} IS NOT TRUE"))
            params = (*params, cutoff.processed, *bounds, limit)
        else:
            parts.append("SELECT 0")
        [[condemned, waiting, last]] = await self._run(
            f"SELECT {', '.join(f'({part})' for part in (*parts, newest))}", params
        )
        return t.Look(condemned, waiting, last)

    async def count(self, table: t.TableName, limit: int) -> int:
        counted = f"SELECT count(*) FROM (SELECT FROM {self._named(table)} LIMIT %b::bigint) AS c"
        [[rows]] = await self._run(counted, (limit,))
        return int(rows)

    async def survey(self, rule: t.HotRule, cutoff: t.Cutoff, at: Stamp = None) -> t.Survey:
        kind, name = await self._kind(rule.table, rule.age), self._named(rule.table)
        condition, bounds = await self._condition(rule, cutoff, kind)
        age, micros = f"t.{_quoted(rule.age)}", _micros(rule, kind)
        [[rows, condemned, old, newest, size]] = await self._run(
            f"SELECT count(*), count(*) FILTER (WHERE {condition}), count(*) FILTER (WHERE {age} < {_instant(kind)}), "
            f"max({micros}), pg_total_relation_size(%b::text::regclass) FROM {name} AS t",
            (*bounds, cutoff.processed, ".".join(map(_plain, _full(rule.table)))),
        )
        days = await self._run(
            f"SELECT coalesce(floor((n.now - {micros}) / 86400000000.0), -1)::bigint AS day, count(*) "
            f"FROM {name} AS t, LATERAL (SELECT coalesce(%b::bigint, {_NOW}) AS now) AS n GROUP BY day ORDER BY day",
            (at,),
        )
        return t.Survey(rows, size, condemned, old - condemned, newest, dict(days))

    async def oldest(self, rule: t.HotRule, cutoff: t.Cutoff, limit: int, *, values: bool) -> list[t.OldRow]:
        info = await self.describe(rule.table)
        kind = await self._kind(rule.table, rule.age)
        condition, bounds = await self._condition(rule, cutoff, kind)
        names = [*info.columns] if values and info is not None else []
        columns = "".join(f", t.{_quoted(one)}" for one in names)
        order = ", ".join(f"t.{_quoted(one)}" for one in (rule.age, *rule.key))
        key = ", ".join(f"t.{_quoted(one)} AS {_quoted(one)}" for one in rule.key)
        found = await self._run(
            f"SELECT t.xmin::text, (SELECT to_jsonb(k)::text FROM (SELECT {key}) AS k), {_micros(rule, kind)}{columns} "
            f"FROM {self._named(rule.table)} AS t WHERE {condition} ORDER BY {order} LIMIT %b::bigint",
            (*bounds, limit),
        )
        return [
            t.OldRow((version, named), at, dict(zip(names, row, strict=True))) for version, named, at, *row in found
        ]

    async def delete(self, rule: t.HotRule, cutoff: t.Cutoff, rows: Sequence[t.OldRow]) -> int:
        kind, name = await self._kind(rule.table, rule.age), self._named(rule.table)
        condition, bounds = await self._condition(rule, cutoff, kind)
        same = " AND ".join(f"t.{_quoted(one)} = k.{_quoted(one)}" for one in rule.key)
        keys = "[" + ",".join(named for _, named in (row.key for row in rows)) + "]"
        versions = msgspec.json.encode([version for version, _ in (row.key for row in rows)]).decode()
        found = await self._run(
            "WITH wanted AS (SELECT k.key, v.version "
            "FROM jsonb_array_elements(%b::text::jsonb) WITH ORDINALITY AS k (key, n) "
            "JOIN jsonb_array_elements_text(%b::text::jsonb) WITH ORDINALITY AS v (version, n) ON v.n = k.n) "
            f"DELETE FROM {name} AS t USING wanted AS w, LATERAL jsonb_populate_record(NULL::{name}, w.key) AS k "
            f"WHERE {same} AND t.xmin::text = w.version AND {condition} RETURNING 1",
            (keys, versions, *bounds),
        )
        return len(found)

    async def _kind(self, table: t.TableName, column: str) -> str:
        info = await self.describe(table)
        return "" if info is None else info.columns.get(column, "")

    async def _condition(self, rule: t.HotRule, cutoff: t.Cutoff, kind: str) -> tuple[str, tuple[Any, ...]]:
        """Rows that are too old, and the parameters of that."""
        if kind not in (*_TIMES, *_NUMBERS):
            raise ConfigError(
                f"table {'.'.join(rule.table)}: {rule.age}: expected a column of timestamps, dates or seconds since "
                f"1970, got {kind or 'none'}"
            )
        age, done = f"t.{_quoted(rule.age)}", "true"
        if rule.processed is not None:
            named = f"t.{_quoted(rule.processed)}"
            boolean = await self._kind(rule.table, rule.processed) == "boolean"
            done = f"{named} IS TRUE" if boolean else f"{named} IS NOT NULL"
        instant = _instant(kind)
        # The first comparison is for the index of the age.
        parts = f"({age} < greatest({instant}, {instant}) AND (({age} < {instant} AND {done}) OR {age} < {instant}))"
        return parts, (cutoff.processed, cutoff.any) * 2


def _instant(kind: str, micros: str = "%b::bigint") -> str:
    """An instant in microseconds as a value of a column."""
    if kind in _NUMBERS:
        return f"({micros} / 1000000.0)"
    moment = f"to_timestamp({micros} / 1000000.0)"
    return moment if kind == "timestamp with time zone" else f"({moment} AT TIME ZONE 'UTC')"


def _micros(rule: t.HotRule, kind: str) -> str:
    """The age of a row as an instant."""
    age = f"t.{_quoted(rule.age)}"
    if kind in _NUMBERS:
        return f"({age} * 1000000)::bigint"
    moment = age if kind == "timestamp with time zone" else f"({age}::timestamp AT TIME ZONE 'UTC')"
    return f"(extract(epoch FROM {moment}) * 1000000)::bigint"


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
