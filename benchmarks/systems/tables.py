"""Two sets of SQLite tables for loops over the bare driver, with the statements that work on them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]


class Tables:
    """An apsw connection to one file in WAL mode; the schema is made on first use."""

    schema = ""

    def __init__(self, path: Path, durability: str) -> None:
        import apsw

        self.connection = apsw.Connection(str(path))
        self.connection.set_busy_timeout(10_000)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {durability}")
        self.connection.execute("PRAGMA cache_size = -16384")  # as large as Headrace's
        self.connection.execute(self.schema)

    def insert(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Store jobs, as (number, payload), in one transaction."""
        raise NotImplementedError

    def turn(self, done: Sequence[int], limit: int) -> list[tuple[int, bytes]]:
        """In one transaction, end the jobs in ``done`` and take up to ``limit`` others."""
        raise NotImplementedError

    def left(self) -> bool:
        """Whether a job waits or is not acknowledged."""
        raise NotImplementedError


class Narrow(Tables):
    """The least that survives a crash: a payload, a place in the queue, no lease, and nothing once a job is done."""

    schema = """
        CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, task TEXT, payload BLOB);
        CREATE TABLE IF NOT EXISTS ready (
            priority INTEGER, run_at INTEGER, id INTEGER, PRIMARY KEY (priority, run_at, id)
        ) WITHOUT ROWID;
    """

    def insert(self, rows: Iterable[tuple[int, bytes]]) -> None:
        rows, now = list(rows), time.time_ns()
        with self.connection as db:
            db.executemany("INSERT INTO jobs VALUES (?, 'noop', ?)", rows)
            db.executemany("INSERT INTO ready VALUES (0, ?, ?)", [(now, number) for number, _ in rows])

    def turn(self, done: Sequence[int], limit: int) -> list[tuple[int, bytes]]:
        db = self.connection
        db.execute("BEGIN IMMEDIATE")
        if done:
            db.executemany("DELETE FROM jobs WHERE id = ?", [(number,) for number in done])
        rows: Rows = db.execute(
            "SELECT run_at, id, payload FROM ready CROSS JOIN jobs USING (id)"
            " WHERE priority = 0 ORDER BY run_at, id LIMIT ?",
            (limit,),
        ).fetchall()
        if rows:
            places = [(run_at, number) for run_at, number, _ in rows]
            db.executemany("DELETE FROM ready WHERE priority = 0 AND run_at = ? AND id = ?", places)
        db.execute("COMMIT")
        return [(number, payload) for _, number, payload in rows]

    def left(self) -> bool:
        [(found,)] = self.connection.execute("SELECT EXISTS (SELECT 1 FROM jobs)").fetchall()
        return bool(found)


class Leased(Tables):
    """What Headrace's promises need on disk, and as Headrace lays it out: the job and its unique id, its place in the
    queue, a lease that can be found by its age, the record and result of what has ended, and the queue's counters."""

    schema = """
        CREATE TABLE IF NOT EXISTS queues (
            qid INTEGER PRIMARY KEY, available INTEGER, running INTEGER, completed INTEGER
        );
        INSERT OR IGNORE INTO queues VALUES (1, 0, 0, 0);
        CREATE TABLE IF NOT EXISTS jobs (
            seq INTEGER PRIMARY KEY, id BLOB, qid INTEGER, priority INTEGER, run_at INTEGER, task TEXT,
            enqueued_at INTEGER, parameters BLOB
        );
        CREATE UNIQUE INDEX IF NOT EXISTS jobs_id ON jobs (id);
        CREATE TABLE IF NOT EXISTS ready (
            qid INTEGER, priority INTEGER, run_at INTEGER, id BLOB, seq INTEGER,
            PRIMARY KEY (qid, priority, run_at, id)
        ) WITHOUT ROWID;
        CREATE TABLE IF NOT EXISTS running (seq INTEGER PRIMARY KEY, epoch INTEGER, lease_until INTEGER, holder TEXT);
        CREATE INDEX IF NOT EXISTS running_lease ON running (lease_until);
        CREATE TABLE IF NOT EXISTS ended (
            seq INTEGER PRIMARY KEY, state INTEGER, finished_at INTEGER, held_until INTEGER, result BLOB
        );
        CREATE INDEX IF NOT EXISTS ended_age ON ended (state, finished_at, held_until);
        CREATE INDEX IF NOT EXISTS ended_held ON ended (held_until);
    """

    def insert(self, rows: Iterable[tuple[int, bytes]]) -> None:
        now = time.time_ns() // 1_000
        ids = now.to_bytes(8, "big")
        values = [(seq, ids + seq.to_bytes(8, "big"), now, now, text) for seq, text in rows]
        with self.connection as db:
            db.executemany("INSERT INTO jobs VALUES (?, ?, 1, 0, ?, 'noop', ?, ?)", values)
            db.executemany("INSERT INTO ready VALUES (1, 0, ?, ?, ?)", [(now, row[1], row[0]) for row in values])
            db.execute("UPDATE queues SET available = available + ? WHERE qid = 1", (len(values),))

    def turn(self, done: Sequence[int], limit: int) -> list[tuple[int, bytes]]:
        import apsw

        db, now = self.connection, time.time_ns() // 1_000
        db.execute("BEGIN IMMEDIATE")
        if done:
            held = now + 3_600_000_000
            db.execute("DELETE FROM running WHERE seq IN carray(?)", (apsw.carray(array("q", done)),))
            db.executemany("INSERT INTO ended VALUES (?, 3, ?, ?, x'6e756c6c')", [(seq, now, held) for seq in done])
        rows: Rows = db.execute(
            "SELECT r.run_at, r.id, r.seq, j.parameters FROM ready AS r CROSS JOIN jobs AS j USING (seq)"
            " WHERE r.qid = 1 AND r.priority = 0 AND r.run_at <= ? ORDER BY r.run_at, r.id LIMIT ?",
            (now, limit),
        ).fetchall()
        if rows:
            last = rows[-1][:2]
            taken = "FROM ready WHERE qid = 1 AND priority = 0 AND (run_at, id) <= (?1, ?2)"
            db.execute(f"INSERT INTO running SELECT seq, 1, ?3, 'holder' {taken}", (*last, now + 30_000_000))
            db.execute(f"DELETE {taken}", last)
        db.execute(
            "UPDATE queues SET available = available - ?1, running = running + ?1 - ?2, completed = completed + ?2",
            (len(rows), len(done)),
        )
        db.execute("COMMIT")
        return [(seq, payload) for _, _, seq, payload in rows]

    def left(self) -> bool:
        [(found,)] = self.connection.execute("SELECT available + running FROM queues").fetchall()
        return bool(found)
