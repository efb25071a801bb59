"""Hot tables in a SQLite file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import migrations
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.errors import ConfigError
from headrace.seam import tables as t
from headrace.seam.instants import to_datetime
from headrace.seam.records import Stamp

_OWN = frozenset(re.findall(r"CREATE TABLE (\w+)", "\n".join(migrations())))
_TYPES = {
    t.ColumnKind.TEXT: "TEXT", t.ColumnKind.INTEGER: "INTEGER", t.ColumnKind.REAL: "REAL",
    t.ColumnKind.BOOLEAN: "INTEGER", t.ColumnKind.TIME: "TEXT", t.ColumnKind.BYTES: "BLOB", t.ColumnKind.JSON: "TEXT",
}  # fmt: skip
_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
_SECONDS = re.compile("INT|REAL|FLOA|DOUB|NUM", re.IGNORECASE)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _named(table: t.TableName) -> str:
    if len(table) != 1:
        raise ConfigError(f"table: expected one name on SQLite, got {'.'.join(table)!r}")
    if table[0].lower() in _OWN or table[0].lower().startswith("sqlite_"):
        raise ConfigError(f"table {table[0]!r} is one of the store's own")
    return _quoted(table[0])


class SqliteTables(Capability):
    """The operations of a :class:`~headrace.seam.tables.TableStore`. Times are texts (ISO 8601, in UTC), or seconds
    since 1970 in a column of numbers."""

    async def describe(self, table: t.TableName) -> t.TableInfo | None:
        _named(table)
        return await self._read(lambda session, _: _describe(session, table), None)

    async def create(
        self, table: t.TableName, columns: Mapping[str, t.ColumnKind], key: Sequence[str], age: str
    ) -> None:
        parts = [
            f"{_quoted(name)} {_TYPES[kind]}{f' DEFAULT ({_NOW})' if name == age else ''}"
            for name, kind in columns.items()
        ]
        parts.append(f"PRIMARY KEY ({', '.join(map(_quoted, key))})")
        made = f"CREATE TABLE IF NOT EXISTS {_named(table)} ({', '.join(parts)})"

        def work(tx: Transaction, _: int) -> None:
            tx.execute(made)
            _index(tx, table, age)

        await self._write(work, None, grows=True)

    async def prepare(self, table: t.TableName, age: str) -> None:
        def work(tx: Transaction, _: int) -> None:
            found = _describe(tx, table)
            if found is not None and age not in found.columns:
                tx.execute(f"ALTER TABLE {_named(table)} ADD COLUMN {_quoted(age)} TEXT")
            _index(tx, table, age)

        await self._write(work, None, grows=True)

    async def backfill(self, table: t.TableName, age: str, source: str | None, limit: int, at: Stamp = None) -> int:
        def work(tx: Transaction, now: int) -> int:
            value = "?2" if source is None else f"t.{_quoted(source)}"
            info = _describe(tx, table)
            names = ", ".join(map(_quoted, info.key if info is not None and info.key else ("rowid",)))
            done = tx.rows(
                f"UPDATE {_named(table)} AS t SET {_quoted(age)} = coalesce({value}, ?2) WHERE ({names}) IN ("
                f"SELECT {names} FROM {_named(table)} AS t WHERE t.{_quoted(age)} IS NULL AND {value} IS NOT NULL "
                "LIMIT ?1) RETURNING 1",
                (limit, _instant(now, _is_number(info, age))),
            )
            return len(done)

        return await self._write(work, at, weight=limit)

    async def put(
        self, table: t.TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> int:
        others = [name for name in columns if name not in key]
        change = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in others)
        statement = (
            f"INSERT INTO {_named(table)} ({', '.join(map(_quoted, columns))}) "
            f"VALUES ({', '.join('?' * len(columns))}) "
            f"ON CONFLICT ({', '.join(map(_quoted, key))}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}"
        )
        values = [tuple(map(_value, row)) for row in rows]
        await self._write(lambda tx, _: tx.executemany(statement, values) and None, None, weight=len(rows), grows=True)
        return len(rows)

    async def update(
        self, table: t.TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> None:
        places = {name: number for number, name in enumerate(columns, start=1)}
        change = ", ".join(f"{_quoted(name)} = ?{place}" for name, place in places.items() if name not in key)
        where = " AND ".join(f"t.{_quoted(name)} = ?{places[name]}" for name in key)
        statement = f"UPDATE {_named(table)} AS t SET {change} WHERE {where}"
        values = [tuple(map(_value, row)) for row in rows]
        await self._write(lambda tx, _: tx.executemany(statement, values) and None, None, weight=len(rows))

    async def size(self, table: t.TableName) -> int:
        return await self._read(lambda session, _: _size(session, table), None)

    async def look(self, rule: t.HotRule, cutoff: t.Cutoff, limit: int) -> t.Look:
        return await self._read(lambda session, _: _look(session, rule, cutoff, limit), None)

    async def count(self, table: t.TableName, limit: int) -> int:
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {_named(table)} LIMIT ?1)"
        return int(await self._read(lambda session, _: session.one(counted, (limit,))[0], None))

    async def survey(self, rule: t.HotRule, cutoff: t.Cutoff, at: Stamp = None) -> t.Survey:
        return await self._read(lambda session, now: _survey(session, rule, cutoff, now), at)

    async def oldest(self, rule: t.HotRule, cutoff: t.Cutoff, limit: int, *, values: bool) -> list[t.OldRow]:
        return await self._read(lambda session, _: _oldest(session, rule, cutoff, limit), None)

    async def delete(self, rule: t.HotRule, cutoff: t.Cutoff, rows: Sequence[t.OldRow]) -> int:
        return await self._write(lambda tx, _: _delete(tx, rule, cutoff, rows), None, weight=len(rows))


def _index(tx: Transaction, table: t.TableName, age: str) -> None:
    """An index that begins with the age, unless there is one."""
    [there] = tx.one(
        "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) AS i JOIN pragma_index_info(i.name) AS c "
        "WHERE NOT i.partial AND c.seqno = 0 AND c.name = ?2)",
        (table[0], age),
    )
    if not there:
        name = blake2b(f"{table[0]}\0{age}".encode(), digest_size=12).hexdigest()
        tx.execute(f"CREATE INDEX IF NOT EXISTS headrace_age_{name} ON {_named(table)} ({_quoted(age)})")


def _describe(session: Session, table: t.TableName) -> t.TableInfo | None:
    found = session.rows("SELECT name, type, pk FROM pragma_table_xinfo(?1) ORDER BY cid", (table[0],))
    keys = sorted((pk, name) for name, _, pk in found if pk)
    return t.TableInfo({name: kind for name, kind, _ in found}, tuple(name for _, name in keys)) if found else None


def _is_number(info: t.TableInfo | None, column: str) -> bool:
    return info is not None and _SECONDS.search(info.columns.get(column, "")) is not None


def _instant(at: int | None, number: bool) -> float | str | None:
    if at is None:
        return None
    return at / 1e6 if number else to_datetime(at).strftime("%Y-%m-%d %H:%M:%S.%f")


def _condition(rule: t.HotRule) -> str:
    """Rows that are too old; ?1 is the cutoff of those that are processed, ?2 that of all. Columns are named with their
    table: SQLite takes an unknown name in quotes for a text otherwise."""
    age = f"t.{_quoted(rule.age)}"
    done = f"t.{_quoted(rule.processed)}" if rule.processed is not None else "1"
    either = f"({age} < ?1 AND {done} IS NOT NULL AND {done} <> 0) OR {age} < ?2"
    return f"({age} < max(?1, coalesce(?2, ?1)) AND ({either}))"  # the first comparison is for the index of the age


def _bounds(session: Session, rule: t.HotRule, cutoff: t.Cutoff) -> tuple[Any, Any]:
    number = _is_number(_describe(session, rule.table), rule.age)
    return _instant(cutoff.processed, number), _instant(cutoff.any, number)


def _micros(rule: t.HotRule, *, number: bool) -> str:
    age = f"t.{_quoted(rule.age)}"
    return f"CAST({age} * 1000000 AS INTEGER)" if number else f"CAST(unixepoch({age}, 'subsec') * 1000000 AS INTEGER)"


def _size(session: Session, table: t.TableName) -> int:
    [size] = session.one(
        "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE aggregate = TRUE "
        "AND name IN (SELECT name FROM sqlite_schema WHERE tbl_name = ?1)",
        (table[0],),
    )
    return int(size)


def _look(session: Session, rule: t.HotRule, cutoff: t.Cutoff, limit: int) -> t.Look:
    number = _is_number(_describe(session, rule.table), rule.age)
    bounds = _bounds(session, rule, cutoff)
    name, age = _named(rule.table), f"t.{_quoted(rule.age)}"

    def counted(which: str) -> str:
        return f"SELECT count(*) FROM (SELECT 1 FROM {name} AS t WHERE {which} LIMIT ?3)"

    waiting = "0" if rule.processed is None else counted(f"{age} < ?1 AND {_condition(rule)} IS NOT TRUE")
    newest = (
        f"SELECT {_micros(rule, number=number)} FROM (SELECT max({age}) AS {_quoted(rule.age)} FROM {name} AS t) AS t"
    )
    found = session.one(f"SELECT ({counted(_condition(rule))}), ({waiting}), ({newest})", (*bounds, limit))
    return t.Look(*found)


def _survey(session: Session, rule: t.HotRule, cutoff: t.Cutoff, now: int) -> t.Survey:
    number = _is_number(_describe(session, rule.table), rule.age)
    first, last = _bounds(session, rule, cutoff)
    age, instant = f"t.{_quoted(rule.age)}", _micros(rule, number=number)
    rows, condemned, old, newest = session.one(
        f"SELECT count(*), count(*) FILTER (WHERE {_condition(rule)}), count(*) FILTER (WHERE {age} < ?1), "
        f"max({instant}) FROM {_named(rule.table)} AS t",
        (first, last),
    )
    days = session.rows(
        f"SELECT coalesce(CAST((?1 - {instant}) / 86400000000 AS INTEGER), -1) AS day, count(*) "
        f"FROM {_named(rule.table)} AS t GROUP BY day ORDER BY day",
        (now,),
    )
    return t.Survey(
        rows, _size(session, rule.table), condemned, old - condemned, newest, {int(day): count for day, count in days}
    )


def _oldest(session: Session, rule: t.HotRule, cutoff: t.Cutoff, limit: int) -> list[t.OldRow]:
    info = _describe(session, rule.table)
    assert info is not None
    names = [*info.columns]
    number = _is_number(info, rule.age)
    columns = ", ".join(f"t.{_quoted(name)}" for name in names)
    order = ", ".join(f"t.{_quoted(name)}" for name in (rule.age, *rule.key))
    found = session.rows(
        f"SELECT {_micros(rule, number=number)}, {columns} FROM {_named(rule.table)} AS t "
        f"WHERE {_condition(rule)} ORDER BY {order} LIMIT ?3",
        (*_bounds(session, rule, cutoff), limit),
    )
    return [t.OldRow(tuple(row), at, dict(zip(names, row, strict=True))) for at, *row in found]


def _delete(tx: Transaction, rule: t.HotRule, cutoff: t.Cutoff, rows: Sequence[t.OldRow]) -> int:
    info = _describe(tx, rule.table)
    if info is None:
        return 0
    same = " AND ".join(f"t.{_quoted(name)} IS ?{number}" for number, name in enumerate(info.columns, start=3))
    statement = f"DELETE FROM {_named(rule.table)} AS t WHERE {same} AND {_condition(rule)} RETURNING 1"
    bounds = _bounds(tx, rule, cutoff)
    return sum(len(tx.rows(statement, (*bounds, *row.key))) for row in rows if len(row.key) == len(info.columns))


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo is not None else value
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    return msgspec.json.encode(value).decode()
