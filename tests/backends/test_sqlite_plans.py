"""The plans of the SQL statements: what grows with the number of jobs, schedules or ticks is reached through an index,
never scanned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import apsw.ext
import pytest

from headrace.backends.sqlite import SqliteBackend
from headrace.backends.sqlite.schema import connect
from headrace.backends.sqlite.statements import load
from headrace.seam.policy import Policy
from headrace.seam.records import Claim, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import BUCKETS, Look, NewTick, Overlap, Plan, Save, ScheduleSelector, TickNote
from headrace.testing.conformance.base import HOUR, LEASE, MINUTE, T0, row
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from headrace.types import JobState

FOLDER = Path(__file__).parents[2] / "src/headrace/backends/sqlite/sql"
NOUNS = sorted(file.stem for file in FOLDER.glob("*.sql"))
STATEMENTS = {f"{noun}.{name}": sql for noun in NOUNS for name, sql in load(noun).items()}
LOOKED_THROUGH = {
    "lease.unlisted", "lease.unlist", "stats.queues", "stats.workers", "stats.kept",
    "select.population", "select.available", "select.running", "select.paused",
    "policy.running", "policy.held", "policy.workers", "queue.waiting_in_all", "set_aside.running",
    "track.tally", "removal.forget",
}  # fmt: skip
"""Statements that may scan: few rows, or bounded by a count that was looked at before."""
SORTED = {
    "archive.ends": ["USE TEMP B-TREE FOR LAST TERM OF ORDER BY"],
    "dead_letter.share": ["USE TEMP B-TREE FOR GROUP BY"],
    "lease.last_listed": ["USE TEMP B-TREE FOR ORDER BY"],
    "claim.first_queues": ["USE TEMP B-TREE FOR ORDER BY"],
    "insert.make_room": ["USE TEMP B-TREE FOR ORDER BY"],
    "removal.add": ["USE TEMP B-TREE FOR GROUP BY"],
    "transfer.inboxes": ["USE TEMP B-TREE FOR ORDER BY"],
}
"""Statements that may sort: a batch of dead letters or of jobs that go, the workers, one job of each queue that a claim
names, those who wait for one job."""
SMALL = (
    "queues",
    "workers",
    "absence",
    "places",
    "l",
    "m",
    "level",
    "marks",
    "mine",
    "one",
    "some",
    "(subquery-1)",
    "(subquery-3)",
)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"

    async def create() -> None:
        backend = SqliteBackend(path)
        await backend.open()
        await backend.close()

    asyncio.run(create())
    with closing(connect(str(path))) as opened:
        yield opened


def explained(connection: apsw.Connection, how: str, sql: str) -> list[Any]:
    bindings = apsw.ext.query_info(connection, sql).bindings_count
    return connection.execute(f"{how} {sql}", (None,) * bindings).fetchall()


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    return [str(row[3]) for row in explained(connection, "EXPLAIN QUERY PLAN", sql)]


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
    assert sorts == SORTED.get(name, []), steps


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claim.take", ["SEARCH r USING PRIMARY KEY (lane=? AND (priority,run_at,id)<(?,?,?))",
                        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
        ("claim.lease", ["SEARCH ready USING PRIMARY KEY (lane=? AND (priority,run_at,id)<(?,?,?))"]),
        ("claim.leave", ["SEARCH ready USING PRIMARY KEY (lane=? AND (priority,run_at,id)<(?,?,?))"]),
        ("claim.lease_alike", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("claim.leave_alike", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("claim.order", ["SEARCH ready USING PRIMARY KEY "
                         "(lane=? AND (priority,run_at,id)>(?,?,?) AND (priority,run_at,id)<(?,?,?))"]),
        ("claim.ahead", ["SEARCH ready USING PRIMARY KEY (lane=?)"]),
        ("delayed.last", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND run_at<?)"]),
        ("delayed.next", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=?)"]),
        ("delayed.set_lanes", ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY 1",
                       "SEARCH r USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("delayed.promote", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))",
                           "CORRELATED SCALAR SUBQUERY 1",
                           "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("lease.oldest_over", ["SEARCH r USING INDEX running_lease (lease_until<?)",
                               "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
                               "SEARCH q USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("sweep.aged", ["SEARCH ended USING INDEX ended_age (state=? AND finished_at<?)"]),
        ("sweep.oldest", ["SEARCH ended USING INDEX ended_age (state=?)"]),
        ("turn.awake", ["CO-ROUTINE one",
                        "SEARCH t USING INDEX tenants_awake (qid=? AND taken=? AND (count,since,name)>(?,?,?))",
                        "SCAN one",
                        "SEARCH m USING PRIMARY KEY (qid=? AND tenant=?) LEFT-JOIN",
                        "SEARCH l USING COVERING INDEX sqlite_autoindex_lanes_1 (tid=?) LEFT-JOIN",
                        "CORRELATED SCALAR SUBQUERY 1",
                        "SEARCH r USING PRIMARY KEY (lane=? AND priority=?)"]),
        ("turn.wake", ["SEARCH tenants USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY 1",
                       "SEARCH t USING COVERING INDEX tenants_asleep (qid=? AND wake_at>? AND wake_at<?)"]),
        ("turn.lane_after", ["SEARCH r USING PRIMARY KEY (lane=? AND (priority,run_at,id)>(?,?,?))",
                       "SEARCH j USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
        ("turn.lane_head", ["SEARCH r USING PRIMARY KEY (lane=?)",
                            "SEARCH j USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
        ("turn.lease_head", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("turn.leave_head", ["SEARCH ready USING PRIMARY KEY (lane=? AND priority=? AND (run_at,id)<(?,?))"]),
        ("turn.lease_run", ["SEARCH ready USING PRIMARY KEY "
                            "(lane=? AND priority=? AND (run_at,id)>(?,?) AND (run_at,id)<(?,?))"]),
        ("turn.leave_run", ["SEARCH ready USING PRIMARY KEY "
                            "(lane=? AND priority=? AND (run_at,id)>(?,?) AND (run_at,id)<(?,?))"]),
        ("group.first", ["SEARCH r USING PRIMARY KEY (lane=? AND priority=?)",
                         "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("insert.key_owner", ["SEARCH k USING PRIMARY KEY (qid=? AND key=?)",
                               "SEARCH e USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
        ("schedule.due", ["SEARCH schedules USING INDEX schedules_due (rank=? AND look_at>? AND look_at<?)"]),
        ("schedule.coming", ["SEARCH schedules USING INDEX schedules_due (rank=? AND look_at>?)"]),
        ("schedule.of_tenant", ["SEARCH schedules USING INDEX schedules_tenant (tenant=? AND name>?)"]),
        ("schedule.of_queue", ["SEARCH schedules USING INDEX schedules_queue (queue=? AND name>?)"]),
        ("schedule.progress", ["SCAN wanted VIRTUAL TABLE INDEX 1:",
                                "SEARCH s USING INDEX sqlite_autoindex_schedules_1 (name=?)"]),
        ("tick.known", ["SEARCH ticks USING PRIMARY KEY (uid=? AND slot=?)", "LIST SUBQUERY 1",
                        "SCAN carray VIRTUAL TABLE INDEX 1:"]),
        ("tick.history", ["SEARCH ticks USING PRIMARY KEY (uid=? AND slot<?)"]),
        ("tick.aged", ["SEARCH ticks USING COVERING INDEX ticks_age (planned_at<?)"]),
        ("tick.forget", ["SEARCH ticks USING INDEX ticks_age ((planned_at,uid,slot)<(?,?,?))"]),
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
        "SEARCH r USING PRIMARY KEY (lane=? AND priority=? AND run_at=? AND id=?) LEFT-JOIN",
        "SEARCH h USING PRIMARY KEY (lane=?)",
        "SEARCH l USING PRIMARY KEY (lane=? AND priority=?)",
    ]


def test_the_heads_of_the_ranks_are_found_by_seeking(connection: apsw.Connection) -> None:
    steps = [step for step in plan(connection, STATEMENTS["schedule.heads"]) if "SUBQUERY" not in step]
    assert steps == [
        "CO-ROUTINE level",
        "SETUP",
        "SEARCH s USING INDEX schedules_due",
        "RECURSIVE STEP",
        "SCAN l",
        "SEARCH s USING INDEX schedules_due (rank>?)",
        "SCAN l",
        "SEARCH s USING INDEX schedules_due (rank=? AND look_at>?)",
    ]


@pytest.mark.parametrize("name", ["schedule.heads", "schedule.due", "schedule.coming", "tick.oldest", "tick.aged"])
def test_looks_for_what_is_due_or_old_stay_inside_the_index(connection: apsw.Connection, name: str) -> None:
    """A table that is opened along with its index is only sought in where a column is read from it."""
    code = [row[:6] for row in explained(connection, "EXPLAIN", STATEMENTS[name])]
    tables = {cursor for _, opcode, cursor, _, _, columns in code if opcode == "OpenRead" and str(columns).isdigit()}
    assert [opcode for _, opcode, cursor, *_ in code if opcode == "Column" and cursor in tables] == []
    assert [opcode for _, opcode, *_ in code if opcode in ("SeekRowid", "NotExists", "FinishSeek")] == []


def test_every_statement_says_what_it_relies_on_or_has_a_part_that_does() -> None:
    for file in sorted(FOLDER.glob("*.sql")):
        statements = file.read_text("utf-8").split("-- name: ")[1:]
        names = [statement.splitlines()[0] for statement in statements]
        assert len(set(names)) == len(names), f"two statements of one name in {file.name}"
        assert {name for name in names if name[0] != "{"} == load(file.stem).keys()
        for name, statement in zip(names, statements, strict=True):
            assert "{" in statement or statement.splitlines()[1].startswith("-- "), (
                f"{file.name}: {name} has no comment"
            )


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


async def _steps_beside(path: Path, priorities: int, tenants: int, queues: int, delay: int) -> dict[str, int]:
    """How many steps of SQLite's machine claims and inserts take beside so many priorities, tenants or queues."""
    backend = SqliteBackend(path, durability="normal")
    await backend.open()
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    async def taken(work: Awaitable[object]) -> int:
        nonlocal steps
        steps = 0
        await work
        return steps

    try:
        assert await backend.policies.save(Policy(queue="g", tenant_batch=5), T0)
        for base, queue in ((0, "q"), (10_000, "g"), (20_000, "r")):
            for start in range(base, base + 3_000, 1_000):
                await backend.insert([
                    row(n, queue=f"r{n % queues}" if queue == "r" else queue, tenant=f"t{n % tenants}",
                        priority=n % priorities - 9_000, delay=delay)
                    for n in range(start, start + 1_000)
                ], T0)  # fmt: skip
        await backend.insert([row(n, queue="qg"[n % 2], tenant="t0") for n in range(30_000, 30_100)], T0)
        for _ in range(800):
            await backend.claim(Claim("w", ("g",), 1, LEASE), T0)  # the tenants wake up, a few with each claim
        assert backend._writer is not None
        assert backend._reader is not None
        for side in (backend._writer._connection, backend._reader._connection):
            assert side is not None
            side.set_progress_handler(step, 1)
        return {
            "look": await taken(backend.claim(Claim("w", ("none", "r"), 1, LEASE), T0)),
            "claim": await taken(backend.claim(Claim("w", ("q",), 10, LEASE), T0)),
            "claim by turns": await taken(backend.claim(Claim("w", ("g",), 1, LEASE), T0)),
            "insert": await taken(backend.insert([row(40_000, queue="q", priority=7)], T0)),
            "insert by turns": await taken(backend.insert([row(40_001, queue="g", tenant="t0", priority=7)], T0)),
        }
    finally:
        await backend.close()


@pytest.mark.parametrize("delay", [0, HOUR], ids=["due", "not due"])
async def test_claims_and_inserts_cost_the_same_whatever_users_choose(tmp_path: Path, delay: int) -> None:
    few = await _steps_beside(tmp_path / "few.db", 1, 1, 1, delay)
    for name, numbers in {"priorities": (3_000, 1, 1), "tenants": (1, 3_000, 1), "queues": (1, 1, 1_000)}.items():
        many = await _steps_beside(tmp_path / f"{name}.db", *numbers, delay)
        assert {call: steps for call, steps in many.items() if steps > few[call] * 1.3} == {}, (name, few)


async def _tick_steps(path: Path, *, number: int, ticks_of_each: int) -> dict[str, int]:
    """How many steps of SQLite's machine the operations on schedules and ticks take in such a store."""
    backend = SqliteBackend(path, durability="normal")
    await backend.open()
    ticks = backend.ticks
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    async def taken(work: Awaitable[object]) -> int:
        nonlocal steps
        steps = 0
        await work
        return steps

    try:
        kept = [
            schedule(
                n,
                plan_priority=n % 3,
                bucket=crc32(b"%d" % n) % BUCKETS,
                look_at=T0 + (n % 2) * MINUTE,
                tenant=f"t{n % 2}",
                queue=f"q{n % 2}",
            )
            for n in range(number)
        ]
        for start in range(0, number, 1_000):
            await ticks.save([Save(one, 0) for one in kept[start : start + 1_000]], T0)
        for one in kept:
            missed = [NewTick(T0 - slot, T0 - slot) for slot in range(ticks_of_each)]
            await ticks.plan([Plan(one.name, one.uid, None, missed)], T0)
        assert backend._writer is not None
        assert backend._reader is not None
        for side in (backend._writer._connection, backend._reader._connection):
            assert side is not None
            side.set_progress_handler(step, 1)
        sweep = SweepClause(target=SweepTarget.TICKS, max_count=0, limit=10)
        aged = SweepClause(target=SweepTarget.TICKS, older_than=HOUR, limit=10)
        notes = [TickNote(uid(n), T0, "completed", 1, 1) for n in range(10)]
        first, *_ = found = await ticks.find(ScheduleSelector(), limit=10)
        plans = [moved(one, fires(T0 + 1, n, Overlap.SKIP)) for n, one in enumerate(found)]
        return {
            "due": await taken(ticks.due(Look(limit=10), T0)),
            "due, and none is": await taken(ticks.due(Look(limit=10), T0 - 1)),
            "due of a share": await taken(ticks.due(Look(limit=2, share=1, shares=4), T0)),
            "find": await taken(ticks.find(ScheduleSelector(), first.name, 10)),
            "find by tenant": await taken(ticks.find(ScheduleSelector(tenant="t1"), first.name, 10)),
            "find by queue": await taken(ticks.find(ScheduleSelector(queue="q1"), first.name, 10)),
            "plan": await taken(ticks.plan(plans, T0)),
            "plan too late": await taken(ticks.plan(plans, T0)),
            "note": await taken(ticks.note(notes, T0)),
            "history": await taken(ticks.history(first.uid, T0, 10)),
            "sweep nothing": await taken(backend.sweep(aged, T0)),
            "sweep": await taken(backend.sweep(sweep, T0)),
            "sweep what is old": await taken(backend.sweep(aged, T0 + HOUR)),
            "save": await taken(ticks.save([Save(schedule(number), 0)], T0)),
            "stats": await taken(backend.stats(T0)),
        }
    finally:
        await backend.close()


async def test_schedules_and_ticks_cost_the_same_in_a_big_store(tmp_path: Path) -> None:
    small = await _tick_steps(tmp_path / "small.db", number=30, ticks_of_each=20)
    big = await _tick_steps(tmp_path / "big.db", number=2_000, ticks_of_each=20)
    long = await _tick_steps(tmp_path / "long.db", number=30, ticks_of_each=1_000)
    assert min(small.values()) > 0
    for other in (big, long):
        assert {name: steps for name, steps in other.items() if steps > small[name] * 1.1} == {}
