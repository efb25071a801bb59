"""How long ``enqueue`` and then ``result()`` take, one after the other, with one worker beside.

``python -m benchmarks.studies.answers`` asks a thousand times on each store. A job that waits for the worker's
poll (5 s) stands out: there must be none. Of answers that are asked for one after the other, 99 in 100 are to come
within 50 ms.
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

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.stores import STORES, fresh, keep
from headrace import App

OUTPUT = HOME / "answers.jsonl"
_LATE = 0.5
BOUND = 50.0
"""Milliseconds."""


@dataclass(frozen=True)
class Cell:
    """So many answers, by so many callers at once. Milliseconds."""

    callers: int
    answers: int
    p50: float
    p99: float
    most: float
    late: int
    """Answers that took longer than half a second."""


async def measure(url: str, callers: int, answers: int) -> Cell:
    """Ask, and wait for the answer."""
    app = App(url)
    taken: list[float] = []

    @app.task
    async def echo(number: int) -> int:
        return number

    async def ask(number: int) -> None:
        for n in range(number, answers, callers):
            began = time.perf_counter()
            handle = await echo.enqueue(n)
            if await handle.result(60) != n:
                raise RuntimeError(f"asked for {n}, got another answer")
            taken.append(time.perf_counter() - began)

    async with app:
        worker = asyncio.ensure_future(app.work())
        await echo.call(0)
        await asyncio.gather(*map(ask, range(callers)))
        app.stop()
        await worker
    late = sum(1 for each in taken if each > _LATE)
    return Cell(callers, answers, percentile(taken, 0.5) * 1e3, percentile(taken, 0.99) * 1e3, max(taken) * 1e3, late)


def wrong(found: Sequence[tuple[str, Cell]]) -> list[str]:
    """What is not as it is to be."""
    late = [f"{store}: {cell.late} answers waited for a poll" for store, cell in found if cell.late]
    slow = [
        f"{store}: p99 of one caller is {cell.p99:.0f} ms, more than {BOUND:.0f}"
        for store, cell in found
        if cell.callers == 1 and cell.p99 > BOUND
    ]
    return [*late, *slow]


def table(found: Sequence[tuple[str, Cell]]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [("store", "callers", "answers", "p50 ms", "p99 ms", "most ms", "over 0.5 s")]
    rows += [
        (store, f"{c.callers}", f"{c.answers:,}", shown(c.p50), shown(c.p99), shown(c.most), f"{c.late}")
        for store, c in found
    ]
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.answers", description=__doc__)
    parser.add_argument("stores", nargs="*", default=STORES, help=f"of {', '.join(STORES)}; all, if none is named")
    parser.add_argument("--answers", type=int, default=1_000)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    machine = facts(Path(tempfile.gettempdir()))
    found = []
    with Servers(None, None) as servers:
        for store in given.stores:
            cells = []
            for callers in (1, 20):
                with fresh(store, servers) as at:
                    cells.append(asyncio.run(measure(at.url, callers, given.answers)))
            keep(given.output, store, machine, [{"kind": "answers", **asdict(cell)} for cell in cells])
            found += [(store, cell) for cell in cells]
    print(table(found))
    print("\n".join(wrong(found)) or "all answers came in time")
    return 1 if wrong(found) else 0


if __name__ == "__main__":
    sys.exit(main())
