"""``headrace bench``: measure a store."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import click

from headrace import App
from headrace.cli.bench_measurements import CALLERS, Bench
from headrace.cli.commands import Command
from headrace.cli.loading import hide_own_variables
from headrace.cli.options import json_option
from headrace.cli.output import answered, print_table, progress
from headrace.cli.problems import USAGE, Problem
from headrace.cli.worker_process import run_fast
from headrace.text import url_without_secrets

_FIGURES = {
    "enqueue_sequential": ("enqueue, one after another", "jobs/s"),
    "enqueue_concurrent": (f"enqueue, {CALLERS} callers at once", "jobs/s"),
    "enqueue_bulk": ("enqueue, {jobs:,} in one call", "jobs/s"),
    "drain": ("drain, one worker process", "jobs/s"),
    "pick_up": ("enqueue to start, idle worker", "ms"),
    "request_response": ("call to result, idle worker", "ms"),
}


@click.command("bench", cls=Command)
@click.option("--url", metavar="URL", help="The store to measure. Default: a temporary SQLite file.")
@click.option("--jobs", type=click.IntRange(10, 1_000_000), metavar="N", default=10_000, help="Jobs in bulk and drain.")
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N", default=3, help="Rounds; the median is shown.")
@json_option
def bench_command(url: str | None, jobs: int, rounds: int) -> None:
    """Measure a store with jobs that do nothing: enqueue, drain, pick-up, request and response.

    Uses queues of its own and deletes their jobs afterwards; PostgreSQL forgets their names a day later. Its workers
    plan no schedules and take back no jobs. The figures hold for this machine, this disk and this moment.
    """
    if url is not None and url.startswith("memory:"):
        raise Problem(USAGE, "memory:// lives in one process, but the worker runs in another", run="headrace bench")
    hide_own_variables()
    with _store(url) as place:
        report = run_fast(_bench(place, jobs, rounds))
    if answered(report):
        return
    rows = [
        (_FIGURES[name][0].format(jobs=jobs), _shown(figure["median"]), figure["unit"], _range(figure["all"]))
        for name, figure in report["figures"].items()
    ]
    print_table(("what", "median", "unit", "all rounds"), rows)
    print(f"\n{report['store']}: {report['durable']}")
    print(f"Python {report['python']}, {report['cpus']} CPUs, {report['platform']}")


@contextmanager
def _store(url: str | None) -> Iterator[str]:
    """The URL to measure. A temporary file lies in the working directory, because /tmp is often in memory."""
    if url is not None:
        yield url
        return
    parent = Path.cwd() if os.access(Path.cwd(), os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".headrace-bench-", dir=parent) as directory:
        yield f"sqlite:///{Path(directory) / 'bench.db'}"


async def _bench(url: str, jobs: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in _FIGURES}
    async with App(url) as app:
        bench = Bench(app, url, f"headrace-bench-{token_hex(4)}", jobs)
        try:
            with progress("measuring", rounds * len(_FIGURES)) as advance:
                for _ in range(rounds):
                    async for name, figure in _round(bench):
                        found[name].append(figure)
                        advance(1)
        finally:
            await bench.clear()
        durable = (await app.client.backend()).limits.durable
    return {
        "figures": {
            name: {"median": median(values), "unit": _FIGURES[name][1], "all": values} for name, values in found.items()
        },
        "jobs": jobs,
        "rounds": rounds,
        "store": url_without_secrets(url),
        "durable": durable,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


async def _round(bench: Bench) -> AsyncIterator[tuple[str, float]]:
    yield "enqueue_sequential", await bench.sequential()
    yield "enqueue_concurrent", await bench.concurrent()
    await bench.clear()
    yield "enqueue_bulk", await bench.bulk()
    yield "drain", await bench.drain()
    await bench.clear()
    pick_up, answer = await bench.trips()
    yield "pick_up", pick_up
    yield "request_response", answer


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _range(values: list[float]) -> str:
    return " … ".join(map(_shown, sorted(values)))
