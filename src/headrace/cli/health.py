"""``headrace health``: a check with an exit code, for probes."""

from __future__ import annotations

import asyncio
from typing import Any

import click
import msgspec
from msgspec import Struct

from headrace.cli import options
from headrace.cli.lazy import Command
from headrace.cli.loading import Store, shown_url
from headrace.cli.options import json_option, store_options
from headrace.cli.output import print_json, print_level
from headrace.cli.problems import FAILED, OK, UNAVAILABLE, Problem, explain
from headrace.cli.times import length, seconds
from headrace.durations import micros
from headrace.errors import HeadraceError, Unavailable
from headrace.records import QueueStats, Stats, WorkerStats
from headrace.shown import without_secrets


class Wish(Struct, frozen=True):
    """What is to be called healthy."""

    queues: tuple[str, ...]
    workers: int
    max_silence: int | None
    """None: one lease."""
    max_age: int | None


class Report(Struct, frozen=True):
    """What was found."""

    ok: bool
    store: str
    reachable: bool
    problems: list[str]
    workers: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []


@click.command("health", cls=Command)
@click.option("--queue", type=options.name, multiple=True, help="Look at this queue only; may be repeated.")
@click.option("--workers", type=click.IntRange(0), metavar="N", default=1, help="At least so many must be alive.")
@click.option("--max-silence", type=options.duration, help="How long a live worker may be silent; default: one lease.")
@click.option("--max-age", type=options.duration, help="No due job may have waited longer, such as 10m.")
@json_option
@store_options
@click.pass_context
def health_command(
    ctx: click.Context,
    /,
    store: Store,
    queue: tuple[str, ...],
    workers: int,
    max_silence: int | None,
    max_age: int | None,
    as_json: bool,
) -> None:
    """Check that the store answers, that workers are alive, and that due jobs do not wait without end.

    Exit code 0: healthy. 1: not. 75: the store cannot be reached.
    """
    report = asyncio.run(_examine(store, Wish(queue, workers, max_silence, max_age)))
    if as_json:
        print_json(report)
    else:
        _print(report)
    ctx.exit(OK if report.ok else FAILED if report.reachable else UNAVAILABLE)


async def _examine(store: Store, wish: Wish) -> Report:
    client = store.client()
    url = shown_url(client.settings.url)
    try:
        async with store.opened() as client:
            if wish.max_silence is None:
                wish = msgspec.structs.replace(wish, max_silence=micros(client.settings.worker.lease))
            return judge(url, await client.stats(), wish, client.clock.now())
    except (Unavailable, Problem) as error:
        problem = error if isinstance(error, Problem) else explain(error)
        return Report(False, url, False, [without_secrets(problem.what)])
    except HeadraceError as error:
        return Report(False, url, True, [without_secrets(str(error))])


def judge(url: str, stats: Stats, wish: Wish, now: int) -> Report:
    """Compare what the store tells with what is wished for."""
    queues = [queue for queue in stats.queues if not wish.queues or queue.queue in wish.queues]
    workers = [worker for worker in stats.workers if not wish.queues or set(worker.queues) & set(wish.queues)]
    silence = wish.max_silence
    alive = [worker for worker in workers if silence is None or now - worker.seen_at <= silence]
    problems = []
    if len(alive) < wish.workers:
        silent = f", and {len(workers) - len(alive)} silent" if len(alive) < len(workers) else ""
        problems.append(f"expected at least {wish.workers} worker(s) alive, found {len(alive)}{silent}")
    for queue in queues:
        problems += _queue_problems(queue, alive, wish)
    return Report(
        not problems,
        url,
        True,
        problems,
        [_worker(worker, now, alive=worker in alive) for worker in workers],
        [_queue(queue, alive) for queue in queues],
    )


def _queue_problems(queue: QueueStats, alive: list[WorkerStats], wish: Wish) -> list[str]:
    age = queue.oldest_due_age
    if age is None or queue.paused:
        return []
    if not any(queue.queue in worker.queues for worker in alive):
        return [f"queue {queue.queue} has due jobs and no worker; the oldest has waited {length(age)}"]
    if wish.max_age is not None and age > wish.max_age:
        return [f"the oldest due job of queue {queue.queue} has waited {length(age)}, more than {length(wish.max_age)}"]
    return []


def _worker(worker: WorkerStats, now: int, *, alive: bool) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "alive": alive,
        "seen_seconds_ago": seconds(max(0, now - worker.seen_at)),
        "slots": worker.slots,
        "busy": worker.busy,
        "queues": worker.queues,
    }


def _queue(queue: QueueStats, alive: list[WorkerStats]) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "paused": queue.paused,
        "due": queue.available - queue.scheduled,
        "running": queue.running,
        "dead": queue.failed,
        "oldest_due_seconds": seconds(queue.oldest_due_age),
        "workers": sum(queue.queue in worker.queues for worker in alive),
    }


def _print(report: Report) -> None:
    if report.reachable:
        print_level("ok", f"store {report.store} answers")
    for worker in report.workers:
        level = "ok" if worker["alive"] else "warn"
        text = f"worker {worker['worker']}: seen {worker['seen_seconds_ago']:.0f} s ago"
        print_level(level, f"{text}, {worker['busy']} of {worker['slots']} slots busy")
    for problem in report.problems:
        print_level("fail", problem)
