"""Three ways for subjects to lie in a store, as prototypes: what the study of sheets compares."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

from benchmarks.studies.stores import Fresh

_HEAD = struct.Struct("<IIB")
_TIERS = (0, 1)
Subjects = dict[str, tuple[int, int]]
"""When each was added, and last seen."""


class Shape(Protocol):
    """Subjects with a tier, each due at a time."""

    def add(self, ids: Sequence[str]) -> None:
        """New ones, those that are there already left as they are."""

    def visit(self) -> None:
        """All of the first tier, page by page: read them, and make them due later."""

    def move(self, ids: Sequence[str]) -> None:
        """From the first tier to the second."""

    def bytes(self) -> int:
        """What the store takes up."""

    def count(self) -> int:
        """How many there are."""


def place(subject: str) -> int:
    """Where it lies among all: 52 bits, evenly spread."""
    return int.from_bytes(hashlib.blake2b(subject.encode(), digest_size=8).digest()) >> 12


def pack(subjects: Subjects) -> bytes:
    """A sheet as bytes."""
    return b"".join(_HEAD.pack(*times, len(name)) + name.encode() for name, times in subjects.items())


def unpack(data: bytes) -> Subjects:
    """The subjects of a sheet."""
    found, at = {}, 0
    while at < len(data):
        added, seen, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size + size
        found[data[at - size : at].decode()] = added, seen
    return found


def divided(lo: int, subjects: Subjects, most: int) -> dict[int, Subjects]:
    """One sheet, or two if there are too many for one."""
    if len(subjects) <= most:
        return {lo: subjects}
    ordered = sorted(subjects, key=place)
    half = len(ordered) // 2
    parts = {lo: ordered[:half], place(ordered[half]): ordered[half:]}
    return {begins: {one: subjects[one] for one in part} for begins, part in parts.items()}


class Sql:
    """SQLite and PostgreSQL behind one face. A transaction per ``with``."""

    def __init__(self, connection: Any, postgres: bool) -> None:
        self._connection = connection
        self._postgres = postgres

    def run(self, text: str, *values: Any) -> list[Any]:
        if self._postgres:
            cursor = self._connection.execute(text.replace("?", "%s"), values)
            return list(cursor.fetchall()) if cursor.description else []
        return list(self._connection.execute(text, values))

    def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        if self._postgres:
            with self._connection.cursor() as cursor:
                cursor.executemany(text.replace("?", "%s"), rows)
        else:
            self._connection.executemany(text, rows)

    def covering(self, tier: int, places: Mapping[str, int]) -> Iterator[tuple[str, int, bytes]]:
        """Of each place, the sheet that it lies on."""
        look = "SELECT lo, data FROM sheets WHERE tier = ? AND lo <= {} ORDER BY lo DESC LIMIT 1"
        if self._postgres:
            yield from self.run(
                "SELECT w.subject, s.lo, s.data FROM unnest(?::text[], ?::bigint[]) AS w (subject, place),"
                f" LATERAL ({look.format('w.place')}) AS s",
                [*places], [*places.values()], tier,
            )  # fmt: skip
        else:
            for one, at in places.items():
                [[lo, data]] = self.run(look.format("?"), tier, at)
                yield one, lo, data

    def make(self, text: str) -> None:
        if self._postgres:
            text = text.replace("BLOB", "bytea").replace("INTEGER", "bigint").replace("WITHOUT ROWID", "")
        for one in text.split(";"):
            if one.strip():
                self.run(one)

    def transaction(self) -> Any:
        return self._connection.transaction() if self._postgres else self._connection

    def bytes(self) -> int:
        if self._postgres:
            self.run("VACUUM")
            tables = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relname = ANY (?)"
            return int(self.run(tables, ["subjects", "sheets", "places"])[0][0] or 0)
        [[size]], [[free]], [[pages]] = map(
            self.run, ("PRAGMA page_size", "PRAGMA freelist_count", "PRAGMA page_count")
        )
        return int(size * (pages - free))


class SqlRows:
    """A narrow row for each subject, an index by tier and time."""

    def __init__(self, sql: Sql, size: int) -> None:
        self._sql = sql
        sql.make(
            "CREATE TABLE subjects (subject TEXT PRIMARY KEY, due INTEGER, tier INTEGER, added INTEGER, seen INTEGER)"
            " WITHOUT ROWID; CREATE INDEX subjects_due ON subjects (tier, due)"
        )
        self._now = 0

    def add(self, ids: Sequence[str]) -> None:
        with self._sql.transaction():
            insert = "INSERT INTO subjects VALUES (?, ?, 0, 1, 0) ON CONFLICT (subject) DO NOTHING"
            self._sql.many(insert, [(one, self._now) for one in ids])

    def visit(self) -> None:
        self._now += 1
        due = "SELECT subject FROM subjects WHERE tier = 0 AND due < ? LIMIT 50"
        while found := self._sql.run(due, self._now):
            with self._sql.transaction():
                update = "UPDATE subjects SET due = ?, seen = 1 WHERE subject = ?"
                self._sql.many(update, [(self._now, *row) for row in found])

    def move(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 50):
            with self._sql.transaction():
                moved = [(self._now, one) for one in ids[start : start + 50]]
                self._sql.many("UPDATE subjects SET tier = 1, due = ? WHERE subject = ?", moved)

    def bytes(self) -> int:
        return self._sql.bytes()

    def count(self) -> int:
        return int(self._sql.run("SELECT count(*) FROM subjects")[0][0])


class SqlSheets:
    """Sheets of subjects that share tier and time. By hash: a sheet holds a range of hashes, and needs no index."""

    def __init__(self, sql: Sql, size: int, *, hashed: bool) -> None:
        self._sql = sql
        self._most = size
        self._hashed = hashed
        sql.make(
            "CREATE TABLE sheets (tier INTEGER, lo INTEGER, due INTEGER, n INTEGER, data BLOB, PRIMARY KEY (tier, lo));"
            "CREATE INDEX sheets_due ON sheets (tier, due)"
        )
        if not hashed:
            sql.make("CREATE TABLE places (subject TEXT PRIMARY KEY, tier INTEGER, lo INTEGER) WITHOUT ROWID")
        self._now = 0
        self._last = 0
        for tier in _TIERS:
            self._write(tier, {0: {}})

    def _write(self, tier: int, sheets: Mapping[int, Subjects]) -> None:
        self._sql.many(
            "INSERT INTO sheets VALUES (?, ?, ?, ?, ?) ON CONFLICT (tier, lo) DO UPDATE SET n = excluded.n,"
            " data = excluded.data, due = excluded.due",
            [(tier, lo, self._now, len(subjects), pack(subjects)) for lo, subjects in sheets.items()],
        )

    def _covering(self, tier: int, ids: Sequence[str]) -> dict[int, tuple[Subjects, list[str]]]:
        sheets: dict[int, tuple[Subjects, list[str]]] = {}
        for one, lo, data in self._sql.covering(tier, {one: place(one) for one in ids}):
            if lo not in sheets:
                sheets[lo] = unpack(data), []
            sheets[lo][1].append(one)
        return sheets

    def _put(self, tier: int, ids: Sequence[str]) -> None:
        if not self._hashed:
            self._append(tier, ids)
            return
        changed = {}
        for lo, (subjects, new) in self._covering(tier, ids).items():
            changed |= divided(lo, subjects | dict.fromkeys(new, (1, 0)), self._most)
        self._write(tier, changed)

    def _append(self, tier: int, ids: Sequence[str]) -> None:
        """To the sheet that is being filled, and to the index."""
        subjects = unpack(self._sql.run("SELECT data FROM sheets WHERE tier = ? AND lo = ?", tier, self._last)[0][0])
        subjects |= dict.fromkeys(ids, (1, 0))
        self._write(tier, {self._last: subjects})
        self._sql.many(
            "INSERT INTO places VALUES (?, ?, ?)"
            " ON CONFLICT (subject) DO UPDATE SET tier = excluded.tier, lo = excluded.lo",
            [(one, tier, self._last) for one in ids],
        )
        if len(subjects) >= self._most:
            self._last += 1
            for each in _TIERS:
                self._write(each, {self._last: {}})

    def add(self, ids: Sequence[str]) -> None:
        with self._sql.transaction():
            if self._hashed:
                for sheet, wanted in self._covering(1, ids).values():
                    assert not sheet.keys() & {*wanted}
            self._put(0, ids)

    def visit(self) -> None:
        self._now += 1
        while found := self._sql.run("SELECT lo, data FROM sheets WHERE tier = 0 AND due < ? LIMIT 1", self._now):
            with self._sql.transaction():
                [[lo, data]] = found
                self._write(0, {lo: unpack(data)})

    def move(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 50):
            page = ids[start : start + 50]
            with self._sql.transaction():
                self._write(0, self._holding(page))
                self._put(1, page)

    def _holding(self, ids: Sequence[str]) -> dict[int, Subjects]:
        """The sheets of these, without them."""
        if self._hashed:
            found = self._covering(0, ids)
            return {lo: {k: v for k, v in held.items() if k not in gone} for lo, (held, gone) in found.items()}
        by_sheet = defaultdict(set)
        for one in ids:
            [[lo]] = self._sql.run("SELECT lo FROM places WHERE subject = ?", one)
            by_sheet[lo].add(one)
        left = {}
        for lo, gone in by_sheet.items():
            [[data]] = self._sql.run("SELECT data FROM sheets WHERE tier = 0 AND lo = ?", lo)
            left[lo] = {k: v for k, v in unpack(data).items() if k not in gone}
        return left

    def bytes(self) -> int:
        return self._sql.bytes()

    def count(self) -> int:
        return int(self._sql.run("SELECT sum(n) FROM sheets")[0][0])


@contextmanager
def opened(found: Fresh, store: str) -> Iterator[Any]:
    """A connection of the driver's own."""
    if store == "sqlite":
        import apsw

        connection = apsw.Connection(found.url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = normal")
        with closing(connection):
            yield Sql(connection, postgres=False)
    elif store == "postgres":
        import psycopg

        with psycopg.connect(found.url, autocommit=True) as psycopg_connection:
            yield Sql(psycopg_connection, postgres=True)
    else:
        import valkey

        with closing(valkey.Valkey.from_url(found.url)) as client:
            yield client


def _shapes() -> dict[tuple[str, str], Callable[[Any, int], Shape]]:
    from benchmarks.studies.sheet_shapes_valkey import ValkeyRows, ValkeySheets

    made: dict[tuple[str, str], Callable[[Any, int], Shape]] = {
        ("valkey", "rows"): ValkeyRows,
        ("valkey", "indexed"): lambda client, size: ValkeySheets(client, size, hashed=False),
        ("valkey", "hashed"): lambda client, size: ValkeySheets(client, size, hashed=True),
    }
    for store in ("sqlite", "postgres"):
        made[store, "rows"] = SqlRows
        made[store, "indexed"] = lambda sql, size: SqlSheets(sql, size, hashed=False)
        made[store, "hashed"] = lambda sql, size: SqlSheets(sql, size, hashed=True)
    return made


SHAPES = _shapes()
