"""A hundred million jobs a day on PostgreSQL: the transaction ids and the log that a job takes, and what autovacuum has
to do behind them.

``python -m benchmarks.studies.volume`` takes six minutes; ``--quick`` some seconds. First jobs are inserted, claimed
and finished in batches of one size after the other. Then they come and go at the pace of a hundred million a day for
four minutes; in the second one, somebody holds a snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.stores import fresh, keep
from headrace import App
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, JobId, Row, Settlement
from headrace.types import JobState

OUTPUT = HOME / "volume.jsonl"
DAILY = 100_000_000
FREEZE = 200_000_000
"""Transaction ids after which autovacuum freezes what is old, unless it is set otherwise …"""
END = 2**31
"""… and after which nothing more is written."""
TABLES = ("ready", "leased", "deltas")
_QUEUE = "volume"
_HOLDER = "h"
_LEASE = 3_600_000_000
_USED = """
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint
"""
_SEEN = """
    SELECT s.relname, s.n_dead_tup, pg_total_relation_size(s.relid), s.autovacuum_count, {spent}
    FROM pg_stat_user_tables AS s WHERE s.schemaname = 'headrace' AND s.relname = ANY (%s)
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    batches: Sequence[int] = (1, 10, 100, 1_000)
    calls: int = 200
    """With each size."""
    jobs: int = 20_000
    """At most, with each size."""
    minute: float = 60.0
    batch: int = 100
    rate: float = DAILY / 86_400


QUICK = Plan((1, 10), 20, 200, 1.0, 10, 100.0)


@dataclass(frozen=True)
class Cost:
    """Of one job, in batches of one size."""

    batch: int
    insert: float
    claim: float
    finish: float
    """Transaction ids …"""
    turn: float
    """… and those of a finish and a claim in one trip, as busy workers make them."""
    log: float
    """Bytes, for all three."""
    kind: str = "volume, cost"

    @property
    def ids(self) -> float:
        return self.insert + self.turn

    @property
    def hours_to_freeze(self) -> float:
        return FREEZE / (self.ids * DAILY) * 24

    @property
    def days_to_end(self) -> float:
        return END / (self.ids * DAILY)


@dataclass(frozen=True)
class Minute:
    """One minute of load, and the tables at its end."""

    name: str
    jobs: int
    seconds: float
    p50: float
    p99: float
    """Of claims of a whole batch, in milliseconds."""
    dead: dict[str, int]
    """Rows that are to be vacuumed, by table: the most that were seen."""
    size: dict[str, int]
    """Bytes, with indexes."""
    vacuums: dict[str, int]
    spent: float
    """Milliseconds that autovacuum has been at it, up to here; 0 where the server does not tell."""
    kind: str = "volume, minute"


class _Jobs:
    """One producer and worker."""

    def __init__(self, app: App, backend: Backend) -> None:
        self._app = app
        self._backend = backend

    async def insert(self, number: int) -> None:
        rows = [Row(self._id(), _QUEUE, "nothing", {"parameters": b"x" * 200}) for _ in range(number)]
        await self._backend.insert(rows)

    def _id(self) -> JobId:
        return self._app.client.packer.new_id()

    async def claim(self, number: int) -> list[Settlement]:
        """As they are finished."""
        return self._done((await self._backend.claim(Claim(_HOLDER, (_QUEUE,), number, _LEASE))).jobs)

    async def finish(self, done: Sequence[Settlement]) -> None:
        await self._backend.finish(done)

    async def turn(self, done: Sequence[Settlement], number: int) -> list[Settlement]:
        assert self._backend.finish_and_claim is not None
        _, found = await self._backend.finish_and_claim(done, Claim(_HOLDER, (_QUEUE,), number, _LEASE))
        return self._done(found.jobs)

    @staticmethod
    def _done(jobs: Sequence[Any]) -> list[Settlement]:
        return [Settlement(job.id, job.epoch, _HOLDER, JobState.COMPLETED, keep=True) for job in jobs]


async def cost(url: str, plan: Plan, batch: int) -> Cost:
    """Insert, claim, finish, one kind after the other; then turns."""
    calls = min(plan.calls, max(1, plan.jobs // batch))
    number = calls * batch
    with psycopg.connect(url, autocommit=True) as other:

        def used() -> tuple[int, int]:
            return other.execute(_USED).fetchone() or (0, 0)

        async with App(url) as app:
            jobs = _Jobs(app, await app.client.backend())
            await jobs.insert(1)
            await jobs.finish(await jobs.claim(1))
            start = used()
            for _ in range(calls):
                await jobs.insert(batch)
            inserted = used()
            claimed = [await jobs.claim(batch) for _ in range(calls)]
            held = used()
            for done in claimed:
                await jobs.finish(done)
            finished = used()
            for _ in range(calls):
                await jobs.insert(batch)
            before = used()
            done = []
            for _ in range(calls):
                done = await jobs.turn(done, batch)
            turned = used()
            await jobs.finish(done)
    return Cost(
        batch,
        insert=(inserted[0] - start[0]) / number,
        claim=(held[0] - inserted[0]) / number,
        finish=(finished[0] - held[0]) / number,
        turn=(turned[0] - before[0]) / number,
        log=(finished[1] - start[1]) / number,
    )


async def load(url: str, plan: Plan) -> list[Minute]:
    """Four minutes at one pace."""
    found = []
    names = ("load", "a snapshot is held", "after it", "later")
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as analysis:
        async with App(url) as app:
            jobs = _Jobs(app, await app.client.backend())
            for name in names:
                if name == names[1]:
                    analysis.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    analysis.execute("SELECT 1 FROM headrace.queues")
                found.append(await _minute(name, jobs, other, plan))
                analysis.rollback()
    return found


async def _minute(name: str, jobs: _Jobs, other: psycopg.Connection[Any], plan: Plan) -> Minute:
    took, number, seen = [], 0, _seen(other)
    dead = dict.fromkeys(TABLES, 0)
    began = time.perf_counter()
    looked = began
    while (now := time.perf_counter()) < began + plan.minute:
        if number >= (now - began) * plan.rate:
            await asyncio.sleep(0.005)
            continue
        await jobs.insert(plan.batch)
        start = time.perf_counter()
        done = await jobs.claim(plan.batch)
        took.append((time.perf_counter() - start) * 1e3)
        await jobs.finish(done)
        number += len(done)
        if now > looked + plan.minute / 60:
            looked, seen = now, _seen(other)
            dead = {table: max(dead[table], seen[table][0]) for table in TABLES}
    return Minute(
        name,
        number,
        time.perf_counter() - began,
        percentile(took, 0.5),
        percentile(took, 0.99),
        dead,
        {table: seen[table][1] for table in TABLES},
        {table: seen[table][2] for table in TABLES},
        sum(seen[table][3] for table in TABLES),
    )


def _seen(other: psycopg.Connection[Any]) -> dict[str, tuple[int, int, int, float]]:
    tells = other.info.server_version >= 180_000
    query = _SEEN.format(spent="s.total_autovacuum_time" if tells else "0")
    return {name: told for name, *told in other.execute(query.encode(), (list(TABLES),))}


def table(costs: Sequence[Cost], minutes: Sequence[Minute]) -> str:
    """What people read."""
    rows: list[Sequence[str]] = [
        ("batch", "ids: insert", "claim", "finish", "turn", "log bytes", "hours to freeze", "days to the end")
    ]
    for c in costs:
        figures = (c.insert, c.claim, c.finish, c.turn, c.log, c.hours_to_freeze, c.days_to_end)
        rows.append((f"{c.batch:,}", *map(shown, figures)))
    more: list[Sequence[str]] = [("", "jobs/s", "claim p50 ms", "p99 ms", "dead rows", "kB", "vacuums", "spent ms")]
    for m in minutes:
        more.append(
            (
                m.name,
                shown(m.jobs / m.seconds),
                shown(m.p50),
                shown(m.p99),
                " / ".join(f"{m.dead[name]:,}" for name in TABLES),
                " / ".join(f"{m.size[name] // 1024:,}" for name in TABLES),
                " / ".join(f"{m.vacuums[name]}" for name in TABLES),
                shown(m.spent),
            )
        )
    return "\n".join([*aligned(rows), "", f"tables: {' / '.join(TABLES)}", *aligned(more)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.volume", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    costs = []
    with Servers(None, None) as servers:
        for batch in plan.batches:
            with fresh("postgres", servers) as at:
                costs.append(asyncio.run(cost(at.url, plan, batch)))
        with fresh("postgres", servers) as at:
            minutes = asyncio.run(load(at.url, plan))
    print(table(costs, minutes))
    found = [*[asdict(cost) for cost in costs], *[asdict(minute) for minute in minutes]]
    keep(given.output, "postgres", facts(Path(tempfile.gettempdir())), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
