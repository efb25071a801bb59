"""What a vault costs, and what it answers: queries over many archived jobs, and a drain with everything that keeps.

``python -m benchmarks.studies.vault`` archives ten million jobs into a directory and asks three questions; then it
drains a SQLite store with and without janitor, vault and budget, in turns. ``--jobs`` and ``--drain`` make it smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from headrace import App
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.seam.records import Record
from headrace.types import JobState
from headrace.vault.layout import page_key
from headrace.vault.tables import encode, jobs_table

OUTPUT = HOME / "vault.jsonl"
_T0 = 1_800_000_000_000_000
_HOUR = 3_600_000_000
_MONTH = 720
"""Hours within which the jobs ended, if they are at least a thousand an hour."""
_PAGE = 50_000
QUESTIONS = {
    "by task and state": "SELECT task, state, count(*) FROM jobs GROUP BY ALL ORDER BY ALL",
    "one tenant, by day": "SELECT date_trunc('day', ended_at), count(*), avg(attempt) FROM jobs "
    "WHERE tenant = 'team 7' GROUP BY ALL ORDER BY ALL",
    "one job": "SELECT task, state, parameters FROM jobs WHERE id = '00000000-0000-0000-0000-000000000001'",
}


@dataclass(frozen=True)
class Answered:
    """One question."""

    jobs: int
    question: str
    seconds: float
    rows: int


@dataclass(frozen=True)
class Drained:
    """One drain."""

    jobs: int
    keeping: bool
    seconds: float


def record(number: int, of: int) -> Record:
    """A job that ended in its turn."""
    at = _T0 + number * (_HOUR * max(1, min(_MONTH, of // 1_000)) // of)
    return Record(
        number.to_bytes(16), f"queue {number % 8}", f"task {number % 40}", JobState.COMPLETED,
        tenant=f"team {number % 100}", run_at=at - 2_000_000, enqueued_at=at - 3_000_000, finished_at=at,
        epoch=at - 1_000, attempt=number % 3, cells={"parameters": b'{"order": %d}' % number},
    )  # fmt: skip


async def fill(folder: Path, jobs: int) -> None:
    """Archive so many jobs, as compacted files have them: one or more for each hour."""
    objects = Objects(parse(f"file://{folder}"))
    page: list[Record] = []
    hour = None
    for number in range(jobs):
        one = record(number, jobs)
        of = (one.finished_at or 0) // _HOUR
        if page and (of != hour or len(page) == _PAGE):
            await objects.create(page_key("completed", page[0], page[-1]), encode(jobs_table(page)))
            page = []
        hour = of
        page.append(one)
    if page:
        await objects.create(page_key("completed", page[0], page[-1]), encode(jobs_table(page)))


async def ask(folder: Path, jobs: int) -> list[Answered]:
    """Time the questions."""
    found = []
    async with App("memory://", vault={"url": f"file://{folder}"}) as app:
        for name, sql in QUESTIONS.items():
            began = time.perf_counter()
            rows = await app.vault.query(sql)
            found.append(Answered(jobs, name, time.perf_counter() - began, len(rows)))
    return found


async def drain(folder: Path, jobs: int, *, keeping: bool) -> Drained:
    """Drain a store of empty jobs, with everything that keeps or with nothing of it."""
    often: dict[str, Any] = {"retention": {"every": "1s"}, "vault": {"url": f"file://{folder}/vault", "every": "1s"}}
    seldom: dict[str, Any] = {"retention": {"every": "1h"}}
    app = App(f"sqlite:///{folder}/jobs.db", **(often if keeping else seldom))

    @app.task(name="nothing")
    async def nothing() -> None: ...

    async with app:
        if keeping:
            await app.janitor.set_budget()
        await app.enqueue_many([nothing.job() for _ in range(jobs)])
        began = time.perf_counter()
        await app.drain()
        return Drained(jobs, keeping, time.perf_counter() - began)


def table(answers: Sequence[Answered], drains: Sequence[Drained]) -> list[str]:
    """Both as text; of the drains the best of each."""
    rows = [[one.question, f"{one.jobs:,} jobs", f"{one.seconds:.2f} s", f"{one.rows} rows"] for one in answers]
    best = {k: min((one.seconds for one in drains if one.keeping is k), default=0.0) for k in (False, True)}
    if best[True]:
        share = best[False] / best[True]
        rows.append(["drain that keeps", f"{drains[0].jobs:,} jobs", f"{share:.0%}", "of the other's speed"])
    return aligned(rows)


async def study(jobs: int, drained: int, rounds: int) -> tuple[list[Answered], list[Drained]]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        await fill(Path(folder), jobs)
        answers = await ask(Path(folder), jobs)
    drains = []
    for _ in range(rounds):
        for keeping in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                drains.append(await drain(Path(folder), drained, keeping=keeping))
    return answers, drains


def main(arguments: Sequence[str]) -> None:
    """Run it and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--drain", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    answers, drains = asyncio.run(study(given.jobs, given.drain, given.rounds))
    lines = [asdict(one) | {"facts": facts(HOME)} for one in (*answers, *drains)]
    given.output.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    print("\n".join(table(answers, drains)))


if __name__ == "__main__":
    main(sys.argv[1:])
