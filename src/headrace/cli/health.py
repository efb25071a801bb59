"""``headrace health``: a check with an exit code, for probes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from random import Random
from typing import Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from headrace.api.queue_health import waiting_problems
from headrace.cli import options
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, counted, print_level
from headrace.cli.problems import FAILED, OK, UNAVAILABLE, USAGE, Problem, explain
from headrace.cli.queue_data import queue_data
from headrace.cli.times import seconds
from headrace.core.names import worker_name
from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.seam.records import Stats, WorkerStats
from headrace.text import url_without_secrets, without_secrets

R = TypeVar("R")


class Criteria(Struct, frozen=True):
    """What counts as healthy."""

    queues: tuple[str, ...] = ()
    workers: int = 1
    max_silence: int | None = None
    """None: one lease; after that, the store no longer lists the worker."""
    max_age: int | None = None
    named: re.Pattern[str] | None = None
    """Check only workers with such names, and no queues; None: check everything."""
    whose: str = ""
    """The same, for messages."""


_LIMIT = 5.0
"""Seconds that the store has to open, and for each answer: a probe must end before it is ended."""


class Report(Struct, frozen=True):
    """What was found."""

    ok: bool
    store: str
    reachable: bool
    problems: list[str]
    workers: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []


@click.command("health", cls=Command)
@click.option("--queue", type=options.name, multiple=True, help="Check only this queue; may be repeated.")
@click.option("--worker", type=options.name, help="Check only the worker with this name.")
@click.option("--here", is_flag=True, help="Check only the workers of this machine or pod, by the setting worker.name.")
@click.option(
    "--away-ok", is_flag=True, help="Exit with 0, not 75, if the store cannot be reached: for liveness probes."
)
@click.option("--workers", type=click.IntRange(0), metavar="N", default=1, help="At least N workers must be alive.")
@click.option("--max-silence", type=options.duration, help="How long a live worker may be silent. Default: one lease.")
@click.option("--max-age", type=options.duration, help="How long a due job may wait, such as 10m.")
@answer_options
@click.pass_context
async def health_command(
    ctx: click.Context,
    /,
    store: Store,
    queue: tuple[str, ...],
    worker: str | None,
    here: bool,
    away_ok: bool,
    workers: int,
    max_silence: int | None,
    max_age: int | None,
) -> None:
    """Check that the store answers, that workers are alive, and that queues with due jobs have a worker.

    --worker and --here check only that those workers are alive: a probe must not fail because of others. A worker
    counts as alive until it has been silent for one lease, and only while at least one of its slots is up. A store that
    gives no answer in 5 s counts as away.

    Exit code 0: healthy. 1: not healthy. 75: the store cannot be reached.
    """
    if worker is not None and here:
        raise click.UsageError("expected --worker or --here, got both")
    if max_age is not None and not queue and (worker is not None or here):
        raise click.UsageError("--max-age is about queues: with --worker or --here, name them with --queue")
    criteria = Criteria(queue, workers, max_silence, max_age)
    report, away = await _examine(store, criteria, worker, here=here)
    if not answered(report):
        _print(report, "warn" if away_ok and away else "fail")
    if away:
        ctx.exit(OK if away_ok else UNAVAILABLE)
    ctx.exit(OK if report.ok else FAILED)


async def _examine(store: Store, criteria: Criteria, worker: str | None, *, here: bool) -> tuple[Report, bool]:
    """What was found, and whether the store is away. A wrong setting is no absence, though nobody was reached."""
    client = store.client()
    url = url_without_secrets(client.settings.url)
    if worker is not None:
        criteria = replace(criteria, named=re.compile(re.escape(worker)), whose=f" called {worker}")
    elif here:
        named, names = _here(client.settings.worker.name)
        criteria = replace(criteria, named=named, whose=f" of this machine (named {names})")
    opened = False
    try:
        async with AsyncExitStack() as stack:
            client = await _soon(url, stack.enter_async_context(store.opened()))
            opened = True
            stats = await _soon(url, client.stats(criteria.queues or None))
            return judge(url, stats, criteria, await _soon(url, client.store_now())), False
    except (Unavailable, Problem) as error:
        problem = error if isinstance(error, Problem) else explain(error)
        return Report(False, url, False, [without_secrets(problem.what)]), True
    except HeadraceError as error:
        reached = opened or not isinstance(error, ConfigError)
        return Report(False, url, reached, [without_secrets(str(error))]), False


async def _soon(url: str, call: Awaitable[R]) -> R:
    try:
        async with asyncio.timeout(_LIMIT):
            return await call
    except TimeoutError as error:
        message = f"{url}: expected an answer within {_LIMIT:g} s, got none: the store hangs or cannot be reached"
        raise Unavailable(message) from error


def _here(strategy: str) -> tuple[re.Pattern[str], str]:
    """What matches the names of this machine's workers, and the same for messages."""
    if strategy == "random":
        raise Problem(
            USAGE,
            "--here: workers have random names, so those of this machine cannot be recognised",
            run="set HEADRACE_WORKER__NAME=pod for the worker and for this command, or name it with --worker",
        )
    if strategy == "host-pid":
        name = worker_name("hostname", Random())
        return re.compile(re.escape(name) + "-[0-9]+"), f"{name}-<number>"
    name = worker_name(strategy, Random())
    if strategy in ("hostname", "pod"):
        return re.compile(re.escape(name)), name
    return re.compile(f"{re.escape(name)}(-[0-9]+)?"), f"{name} or {name}-<number>"


def judge(url: str, stats: Stats, criteria: Criteria, now: int) -> Report:
    """Compare the store's statistics with what counts as healthy."""
    all_queues = criteria.named is None and not criteria.queues
    queues = [queue for queue in stats.queues if all_queues or queue.queue in criteria.queues]
    workers = [
        worker
        for worker in stats.workers
        if (not criteria.queues or set(worker.queues) & set(criteria.queues))
        and (criteria.named is None or criteria.named.fullmatch(worker.worker))
    ]
    silence = criteria.max_silence
    heard = [worker for worker in workers if silence is None or now - worker.seen_at <= silence]
    alive = [worker for worker in heard if worker.slots]
    problems = []
    if len(alive) < criteria.workers:
        silent = f", and {len(workers) - len(heard)} silent" if len(heard) < len(workers) else ""
        silent += f", and {len(heard) - len(alive)} without slots" if len(alive) < len(heard) else ""
        wanted = f"{counted(criteria.workers, 'worker')}{criteria.whose}"
        problems.append(f"expected at least {wanted} alive, found {len(alive)}{silent}")
    for queue in queues:
        problems += waiting_problems(queue, alive, criteria.max_age)
    return Report(
        not problems,
        url,
        True,
        problems,
        [_worker(worker, now, alive=worker in alive) for worker in workers],
        [queue_data(queue, alive) for queue in queues],
    )


def _worker(worker: WorkerStats, now: int, *, alive: bool) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "alive": alive,
        "seen_seconds_ago": seconds(max(0, now - worker.seen_at)),
        "slots": worker.slots,
        "busy": worker.busy,
        "queues": worker.queues,
    }


def _print(report: Report, level_of_problems: str) -> None:
    if report.reachable:
        print_level("ok", f"store {report.store} answers")
    for worker in report.workers:
        level = "ok" if worker["alive"] else "warn"
        text = f"worker {worker['worker']}: seen {worker['seen_seconds_ago']:.0f} s ago"
        print_level(level, f"{text}, {worker['busy']} of {worker['slots']} slots busy")
    for problem in report.problems:
        print_level(level_of_problems, problem)
