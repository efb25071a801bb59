"""``headrace top``: queues, workers and what happens, live in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace import Admin, JobInfo, Overview
from headrace.admin.views import JobPage
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, clean, print_table, terminal
from headrace.cli.times import by_clock, length
from headrace.core.feed import Digest
from headrace.errors import BackendError
from headrace.seam.instants import to_datetime
from headrace.text import url_without_secrets, without_secrets

if TYPE_CHECKING:
    from rich.console import Group

_WINDOW = 10.0
"""Seconds over which rates are taken."""
_LINES = 12
_LOOKED_AT = 50
"""Running jobs whose progress is looked at, the newest."""


class Rates:
    """What was heard lately: rates by queue, and the last things that were not routine."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, Digest]] = deque()
        self.happenings: deque[str] = deque(maxlen=_LINES)

    def hear(self, digest: Digest, now: float) -> None:
        """A digest came."""
        self._heard.append((now, digest))
        for one in digest.happenings:
            what = " ".join(
                part for part in (one.kind.replace("_", " "), one.queue, one.task, one.error, one.detail) if part
            )
            self.happenings.append(f"{to_datetime(one.at).astimezone():%H:%M:%S}  {clean(what)}")

    def per_second(self, now: float) -> Counter[tuple[str, str]]:
        """By queue and by what happened to its jobs."""
        while self._heard and now - self._heard[0][0] > _WINDOW:
            self._heard.popleft()
        span = max(1.0, min(_WINDOW, now - self._heard[0][0])) if self._heard else 1.0
        found: Counter[tuple[str, str]] = Counter()
        for _, digest in self._heard:
            for tally in digest.tallies:
                found[tally.queue, tally.what] += tally.count
        return Counter({name: round(count / span) for name, count in found.items()})


_HEADS = ["queue", "due", "scheduled", "running", "dead", "oldest", "in/s", "done/s", "retried/s", "dead/s", "slots"]


def rows(overview: Overview, rates: Counter[tuple[str, str]]) -> list[list[Any]]:
    """The table of queues, those with most to do first."""
    queues = sorted(overview.queues, key=lambda queue: (queue.available + queue.running, queue.name), reverse=True)
    return [
        [
            queue.name + (" (paused)" if queue.paused else ""),
            queue.due,
            queue.scheduled,
            queue.running,
            queue.failed,
            "" if queue.oldest_due_seconds is None else length(round(queue.oldest_due_seconds * 1e6)),
            *(rates[queue.name, what] for what in ("enqueued", "completed", "retried", "dead")),
            f"{queue.busy} of {queue.slots}",
        ]
        for queue in queues
    ]


@click.command("top", cls=Command)
@click.option("--every", type=click.FloatRange(0.2, 60), default=1.0, metavar="SECONDS", help="How often to look.")
@answer_options
async def top_command(store: Store, every: float) -> None:
    """Watch queues, workers and what happens. Ctrl-C ends it.

    If the output is no terminal, prints the queues once.
    """
    async with store.admin() as admin:
        overview = await admin.overview()
        if answered(overview):
            return
        if terminal(sys.stdout):
            await _watch(admin, every)
        else:
            print_table(_HEADS, rows(overview, Counter()))


async def _watch(admin: Admin, every: float) -> None:
    from rich.live import Live

    rates, loop = Rates(), asyncio.get_running_loop()

    async def hear() -> None:
        async with admin.listening.listen() as digests:
            async for digest in digests:
                rates.hear(digest, loop.time())

    async with asyncio.TaskGroup() as group:
        group.create_task(hear())
        with Live(screen=True, auto_refresh=False) as live:
            overview, running, away = Overview(url_without_secrets(admin.client.settings.url), None), JobPage([]), ""
            while True:
                try:
                    overview, running = await admin.overview(), await admin.jobs("state:running", limit=_LOOKED_AT)
                    away = ""
                except BackendError as error:
                    away = without_secrets(str(error))
                live.update(screen(overview, rates, loop.time(), advances(running.jobs), away), refresh=True)
                await asyncio.sleep(every)


def advances(jobs: Sequence[JobInfo]) -> list[str]:
    """The jobs that say how far they have come, a line for each."""
    said = [job for job in jobs if job.progress is not None]
    return [f"{clean(job.task)}  {job.id}  {clean(job.progress)}" for job in said[:_LINES]]


def screen(overview: Overview, rates: Rates, now: float, running: Sequence[str] = (), away: str = "") -> Group:
    """What is shown. ``away``: why these numbers are not those of now."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in _HEADS:
        table.add_column(head, justify="left" if head == "queue" else "right")
    for row in rows(overview, rates.per_second(now)):
        table.add_row(*(Text(clean(cell)) for cell in row))
    busy, slots = (sum(getattr(worker, name) for worker in overview.workers) for name in ("busy", "slots"))
    workers = f"{len(overview.workers)} workers, {busy} of {slots} slots busy"
    head = f"{clean(overview.store)}   {by_clock(overview.now)}   {workers}"
    lines = [Text(line) for line in rates.happenings] or [Text("nothing out of the ordinary yet", style="dim")]
    if running:
        lines = [*map(Text, running), Text(), *lines]
    if away:
        lines = [Text(f"the store does not answer: {clean(away)}", style="bold red"), Text(), *lines]
    return Group(Text(head, style="bold"), Text(), table, Text(), *lines)
