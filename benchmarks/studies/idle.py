"""What a worker asks of PostgreSQL while there is nothing to do, with any number of schedules of which none comes up.

``python -m benchmarks.studies.idle`` takes five minutes. What counts is counted by the server: statements a second, and
rows of schedules that they touched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from headrace import App, Every
from headrace.schedules.spec import define, template_of
from headrace.seam.ticks import BUCKETS, Save, Schedule

OUTPUT = HOME / "idle.jsonl"
_DAY = 86_400_000_000
_BATCH = 1_000
_STATEMENTS = """
    SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
    WHERE d.datname = %(name)s AND s.toplevel
"""
_TOUCHED = "SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname IN ('schedules', 'agenda')"


@dataclass(frozen=True)
class Cell:
    """A worker beside so many schedules."""

    schedules: int
    seconds: float
    statements: float
    """A second."""
    touched: float
    """Entries of the indexes of schedules that were read, a second."""


async def measure(server: PostgresServer, url: str, database: str, schedules: int, seconds: float) -> Cell:
    """Let a worker idle."""
    app = App(url)

    @app.task
    async def nothing() -> None: ...

    async with app:
        await _plant(app, schedules)
        worker = asyncio.ensure_future(app.work())
        await asyncio.sleep(seconds / 6)
        before = _counts(server, database)
        await asyncio.sleep(seconds)
        after = _counts(server, database)
        app.stop()
        await worker
    statements, touched = (now - then for now, then in zip(after, before, strict=True))
    return Cell(schedules, seconds, statements / seconds, touched / seconds)


async def _plant(app: App, count: int) -> None:
    """Schedules that fire once a day, tomorrow."""
    backend = await app.client.backend()
    assert backend.ticks is not None
    task: Any = app.tasks["benchmarks.studies.idle.measure.nothing"]
    row = app.client.packer.pack(task.job())
    now = app.client.clock.now()
    definition = define(Every("1d", task.job()), template_of(row), now)
    for first in range(0, count, _BATCH):
        batch = [
            Schedule(
                name=f"s{number}",
                uid=app.client.packer.new_id(),
                queue=row.queue,
                definition=definition.pack(),
                bucket=number % BUCKETS,
                slot=now + _DAY,
                look_at=now + _DAY + number,
            )
            for number in range(first, min(count, first + _BATCH))
        ]
        assert all(await backend.ticks.save([Save(one, 0) for one in batch]))


def _counts(server: PostgresServer, database: str) -> tuple[int, int]:
    [[statements]] = server.ask(_STATEMENTS, {"name": database})
    [[touched]] = server.ask(_TOUCHED, database=database)
    return int(statements), int(touched)


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [("schedules", "statements/s", "index entries/s")]
    rows += [(f"{c.schedules:,}", shown(c.statements), shown(c.touched)) for c in cells]
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.idle", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    sizes, seconds = ((0, 100), 2.0) if given.quick else ((0, 10_000, 100_000), 60.0)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer("counting", None, None)
        try:
            for size in sizes:
                with server.databases(Path(folder)) as database:
                    url = Path(folder, "queue.url").read_text()
                    cells.append(asyncio.run(measure(server, url, database, size, seconds)))
        finally:
            server.close()
    lines = [
        {"kind": "run", "machine": facts(Path(tempfile.gettempdir()))},
        *[{"kind": "cell", **asdict(cell)} for cell in cells],
    ]
    given.output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
