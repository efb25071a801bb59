"""What a vault answers: queries over many archived jobs.

``python -m benchmarks.studies.vault`` writes ten million jobs into a directory as the archiver would, and asks three
questions. The files are of whole hours, as a compaction leaves them. ``--jobs`` makes it smaller. Each answer is to
come within ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from headrace import App
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.seam.records import Record
from headrace.types import JobState
from headrace.vault.layout import page_key
from headrace.vault.tables import arrow, encode, jobs_table

if TYPE_CHECKING:
    import pyarrow as pa

OUTPUT = HOME / "vault.jsonl"
_T0 = 1_800_000_000_000_000
_HOUR = 3_600_000_000
_MONTH = 720
"""Hours within which the jobs ended, if they are at least a thousand an hour."""
_PAGE = 50_000
_CYCLE = 600
"""Jobs after which queue, task, tenant and attempt are as they were."""
SOON = 10.0
QUESTIONS = {
    "by task and state": "SELECT task, state, count(*) FROM jobs GROUP BY ALL ORDER BY ALL",
    "one tenant, by day": "SELECT date_trunc('day', ended_at), count(*), avg(attempt) FROM jobs "
    "WHERE tenant = 'team 7' GROUP BY ALL ORDER BY ALL",
    "one job": "SELECT task, state, parameters FROM jobs WHERE id = '00000000-0000-0000-0000-000000000001'",
}


@dataclass(frozen=True)
class Filled:
    """A vault."""

    jobs: int
    seconds: float
    bytes: int
    kind: str = "filled"


@dataclass(frozen=True)
class Answered:
    """One question."""

    jobs: int
    question: str
    seconds: float
    rows: int
    kind: str = "answered"


def _apart(of: int) -> int:
    return max(1, _HOUR * max(1, min(_MONTH, of // 1_000)) // of)


def _ended_at(number: int, of: int) -> int:
    return _T0 + number * _apart(of)


def _uuid(number: int) -> str:
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def record(number: int, of: int) -> Record:
    """A job that ended in its turn."""
    at = _ended_at(number, of)
    return Record(
        number.to_bytes(16), f"queue {number % 8}", f"task {number % 40}", JobState.COMPLETED,
        tenant=f"team {number % 100}", run_at=at - 2_000_000, enqueued_at=at - 3_000_000, finished_at=at,
        epoch=at - 1_000, attempt=number % 3, cells={"parameters": b'{"order": %d}' % number},
    )  # fmt: skip


class Pages:
    """Pages of such jobs, as compacted files have them: one or more for each hour. A table of every combination of
    queue, task, tenant and attempt is made once; what is different of each job is filled in."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._template = jobs_table([record(number, jobs) for number in range(_CYCLE + min(jobs, _PAGE))])

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Key and table of each."""
        start = 0
        while start < self._jobs:
            stop = min(self._end_of_hour(start), start + _PAGE, self._jobs)
            yield page_key("completed", record(start, self._jobs), record(stop - 1, self._jobs)), self.page(start, stop)
            start = stop

    def _end_of_hour(self, number: int) -> int:
        """The first job of the next hour."""
        at, each = _ended_at(number, self._jobs), _apart(self._jobs)
        return number + max(1, -((at - (at // _HOUR + 1) * _HOUR) // each))

    def page(self, start: int, stop: int) -> pa.Table:
        """These jobs."""
        pa = arrow()
        table = self._template.slice(start % _CYCLE, stop - start)
        ends = range(_ended_at(start, self._jobs), _ended_at(stop, self._jobs), _apart(self._jobs))
        fresh = {
            "id": [_uuid(number) for number in range(start, stop)],
            "parameters": [b'{"order": %d}' % number for number in range(start, stop)],
            "ended_at": ends,
            "run_at": [at - 2_000_000 for at in ends],
            "enqueued_at": [at - 3_000_000 for at in ends],
            "epoch": [at - 1_000 for at in ends],
        }
        for name, values in fresh.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
        return table


async def fill(folder: Path, jobs: int) -> int:
    """Archive so many jobs; how many bytes they take."""
    objects, size = Objects(parse(f"file://{folder}")), 0
    for key, page in Pages(jobs):
        body = encode(page)
        size += len(body)
        await objects.create(key, body)
    return size


async def ask(folder: Path, jobs: int) -> list[Answered]:
    """Time the questions."""
    found = []
    async with App("memory://", vault={"url": f"file://{folder}"}) as app:
        for name, sql in QUESTIONS.items():
            began = time.perf_counter()
            rows = await app.vault.query(sql)
            found.append(Answered(jobs, name, time.perf_counter() - began, len(rows)))
    return found


def verdict(answers: Sequence[Answered]) -> list[str]:
    """What is not as it is to be."""
    return [f"{one.question}: {one.seconds:.1f} s, more than {SOON:g} s" for one in answers if one.seconds > SOON]


def table(answers: Sequence[Answered]) -> list[str]:
    """For people."""
    return aligned(
        [[one.question, f"{one.jobs:,} jobs", f"{one.seconds:.2f} s", f"{one.rows} rows"] for one in answers]
    )


async def study(jobs: int, place: Path | None = None) -> tuple[Filled, list[Answered]]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="headrace-study-", dir=place) as folder:
        began = time.perf_counter()
        size = await fill(Path(folder), jobs)
        return Filled(jobs, time.perf_counter() - began, size), await ask(Path(folder), jobs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and keep the result."""
    parser = argparse.ArgumentParser("python -m benchmarks.studies.vault", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--place", type=Path, help="where the vault is; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    filled, answers = asyncio.run(study(given.jobs, given.place))
    lines = [{"kind": "run", "machine": facts(HOME)}, *map(asdict, (filled, *answers))]
    given.output.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines), "utf-8")
    print(f"{filled.jobs:,} jobs: written in {filled.seconds:.0f} s, {filled.bytes:,} bytes")
    print("\n".join(table(answers)))
    told = verdict(answers)
    print("\n".join(told or ["as it is to be"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
