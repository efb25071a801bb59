"""The plans of the SQL statements: what grows with the number of jobs is reached through an index, never scanned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import apsw.ext
import pytest

from headrace.backends.sqlite import SqliteBackend
from headrace.backends.sqlite.statements import load, load_all
from headrace.records import Claim, Settlement
from headrace.testing.conformance.base import HOUR, LEASE, T0, row
from headrace.types import JobState

STATEMENTS = load_all()
LOOKED_THROUGH = {
    "lease.unlisted", "lease.unlist", "lease.total", "stats.queues", "stats.workers", "stats.places",
    "select.population", "select.available", "select.running", "select.paused",
}  # fmt: skip
"""Statements that may scan: few rows, or bounded by a count that was looked at before."""
SMALL = ("queues", "workers", "places", "l", "level", "(subquery-1)")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"

    async def create() -> None:
        backend = SqliteBackend(path)
        await backend.open()
        await backend.close()

    asyncio.run(create())
    with closing(apsw.Connection(str(path))) as opened:
        yield opened


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    bindings = apsw.ext.query_info(connection, sql).bindings_count
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * bindings)]


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_nothing_big_is_scanned_and_nothing_is_sorted(connection: apsw.Connection, name: str) -> None:
    steps = plan(connection, STATEMENTS[name])
    if name not in LOOKED_THROUGH:
        scans = [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]
        big = [step for step in scans if step.split()[1] not in SMALL and "CONSTANT ROW" not in step]
        bounded = [step for step in big if " USING " in step and "LIMIT" in STATEMENTS[name]]
        assert big == bounded, steps
    assert not [step for step in steps if "AUTOMATIC" in step], steps
    sorts = [step for step in steps if "TEMP B-TREE" in step]
    assert sorts == (["USE TEMP B-TREE FOR count(DISTINCT)"] if name == "lease.over" else []), steps


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claim.take", ["SEARCH r USING PRIMARY KEY (qid=? AND priority=? AND run_at<?)",
                        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("claim.lease", ["SEARCH ready USING PRIMARY KEY (qid=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("claim.leave", ["SEARCH ready USING PRIMARY KEY (qid=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("claim.order", ["SEARCH ready USING PRIMARY KEY (qid=? AND priority=? AND run_at<?)"]),
        ("lease.oldest_over", ["SEARCH r USING INDEX running_lease (lease_until<?)",
                               "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
                               "SEARCH q USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("sweep.aged", ["SEARCH ended USING INDEX ended_age (state=? AND finished_at<?)"]),
        ("sweep.oldest", ["SEARCH ended USING INDEX ended_age (state=?)"]),
        ("insert.key_holder", ["SEARCH k USING PRIMARY KEY (qid=? AND key=?)",
                               "SEARCH e USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
    ],
)  # fmt: skip
def test_hot_statements_use_the_index_meant_for_them(
    connection: apsw.Connection, name: str, expected: list[str]
) -> None:
    assert plan(connection, STATEMENTS[name]) == expected


def test_the_heads_of_the_queues_are_found_by_seeking(connection: apsw.Connection) -> None:
    steps = [
        step for step in plan(connection, STATEMENTS["claim.heads"]) if "ready" in step or step.startswith("SEARCH")
    ]
    assert steps == [
        "SEARCH q USING INDEX sqlite_autoindex_queues_1 (name=?)",
        "SEARCH r USING PRIMARY KEY (qid=?)",
        "SEARCH r USING PRIMARY KEY (qid=? AND priority>?)",
        "SEARCH r USING PRIMARY KEY (qid=? AND priority=?)",
    ]


def test_every_statement_says_what_it_relies_on() -> None:
    folder = Path(__file__).parents[2] / "src/headrace/backends/sqlite/sql"
    for file in sorted(folder.glob("*.sql")):
        parts = file.read_text("utf-8").split("-- name: ")[1:]
        assert len(parts) == len(load(file.stem)), f"two statements of one name in {file.name}"
        for part in parts:
            assert part.splitlines()[1].startswith("-- "), f"{file.name}: {part.splitlines()[0]} has no comment"


async def _claim_steps(path: Path, *, waiting: int, scheduled: int, ended: int) -> int:
    """How many steps of SQLite's machine a claim of ten takes in such a store."""
    backend = SqliteBackend(path, durability="normal")
    await backend.open()
    try:
        steps = 0

        def step() -> bool:
            nonlocal steps
            steps += 1
            return False

        for first in range(0, ended, 1_000):
            await backend.insert([row(first + n) for n in range(1_000)], T0)
            jobs = (await backend.claim(Claim("w", ("q",), 1_000, LEASE), T0)).jobs
            await backend.finish([Settlement(j.id, j.epoch, "w", JobState.COMPLETED) for j in jobs], T0)
        for base, number, delay in ((100_000, waiting, 0), (200_000, scheduled, HOUR)):
            for first in range(0, number, 1_000):
                await backend.insert([row(base + first + n, delay=delay) for n in range(min(1_000, number))], T0)
        assert backend._writer is not None
        connection = backend._writer._connection
        await backend._write(lambda _tx, _now: connection.set_progress_handler(step, 1), T0)
        assert len((await backend.claim(Claim("w", ("q", "r"), 10, LEASE), T0)).jobs) == 10
        return steps
    finally:
        await backend.close()


async def test_a_claim_costs_the_same_in_a_big_store(tmp_path: Path) -> None:
    small = await _claim_steps(tmp_path / "small.db", waiting=100, scheduled=0, ended=0)
    big = await _claim_steps(tmp_path / "big.db", waiting=6_000, scheduled=6_000, ended=6_000)
    assert big <= small * 1.1
