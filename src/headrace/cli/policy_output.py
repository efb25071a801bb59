"""The rules of a queue as text and JSON, with its current load."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from headrace import App, Client, Policies, PolicyInfo
from headrace.cli.output import note, print_fields
from headrace.cli.times import length
from headrace.core.durations import relative
from headrace.seam.instants import to_datetime
from headrace.seam.policy import TENANT_BATCH, Rate
from headrace.seam.records import QueueStats, Stats


def policies_of(client: Client) -> Policies:
    """The policies of a client's store."""
    return App(client).policies


async def task_rates(client: Client, queue: str) -> dict[str, Rate]:
    """The rates of a queue's tasks, in the form that ``Policies.set`` takes."""
    store = (await client.backend()).policies
    found = [] if store is None else await store.find([queue], client.clock.stamp())
    return found[0].policy.task_rates if found else {}


class Load(Struct, frozen=True):
    """How many jobs run and wait."""

    running: int = 0
    waiting: int = 0
    paused: bool = False
    paused_until: datetime | None = None

    @classmethod
    def of(cls, queue: str, stats: Stats) -> Load:
        """Of a queue."""
        found = next((one for one in stats.queues if one.queue == queue), QueueStats(queue))
        return cls(found.running, found.available + found.jobs_paused, found.paused, paused_until(found))

    @classmethod
    def of_store(cls, stats: Stats) -> Load:
        """Of all queues together."""
        waiting = sum(queue.available + queue.jobs_paused for queue in stats.queues)
        return cls(sum(queue.running for queue in stats.queues), waiting)


def policy_data(info: PolicyInfo, load: Load) -> dict[str, Any]:
    """Rules for programs."""
    return info.to_dict() | {
        "paused": load.paused,
        "paused_until": load.paused_until,
        "now": {"running": load.running, "waiting": load.waiting},
    }


def print_policy(info: PolicyInfo, load: Load, at: datetime) -> None:
    """Rules for people."""
    each = (f"{info.tenant_running:,} at once" if info.tenant_running else "", info.tenant_rate or "")
    fields: list[tuple[str, object]] = [
        ("queue", info.queue),
        ("paused", pause(load.paused_until, at) if load.paused else ""),
        ("tenants", f"take turns, {_jobs(info.tenant_batch or TENANT_BATCH)} per turn" if info.fair else ""),
        ("running", f"{info.running:,} at most, {load.running:,} now" if info.running is not None else ""),
        ("rate", info.rate),
        ("each tenant", "; ".join(filter(None, each))),
        ("workers", _tenant_workers(info.tenant_workers)),
        *(
            (f"task {task}", _task(info, task, at))
            for task in sorted(info.task_rates.keys() | info.paused_tasks.keys())
        ),
        ("ageing", _ageing(info.ageing)),
        ("groups", f"{_jobs(info.group_running)} of a group at a time"),
        ("depth", _depth(info.depth, load)),
    ]
    print_fields(fields)


def _task(info: PolicyInfo, task: str, at: datetime) -> str:
    rate = info.task_rates.get(task, "")
    paused = f"paused, {pause(info.paused_tasks[task], at)}" if task in info.paused_tasks else ""
    return "; ".join(filter(None, (rate, paused)))


def print_store(depth: int | None, load: Load) -> None:
    """The one rule of the whole store."""
    print_fields([("depth", _depth(depth, load))])
    if depth is None:
        note("any number of jobs may wait in the store")


def _depth(depth: int | None, load: Load) -> str:
    return "" if depth is None else f"{depth:,} may wait, {load.waiting:,} now"


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


def _tenant_workers(number: int | None) -> str:
    if number is None:
        return ""
    return f"at most {'1 worker has' if number == 1 else f'{number:,} workers have'} jobs of one tenant"


def _ageing(seconds: float | None) -> str:
    return "" if seconds is None else f"waiting {length(round(seconds * 1e6))} counts as one step of priority"


def paused_until(queue: QueueStats) -> datetime | None:
    """When the pause of a queue ends; None if it must be resumed."""
    return None if queue.paused_until is None else to_datetime(queue.paused_until)


def paused(queue: QueueStats, at: datetime) -> str:
    """Whether a queue is paused, and until when."""
    until = paused_until(queue)
    if not queue.paused:
        return ""
    return "paused" if until is None else f"paused, {pause(until, at)}"


def pause(until: datetime | None, at: datetime) -> str:
    """How long a pause lasts.

    >>> from datetime import UTC
    >>> noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    >>> pause(noon, noon.replace(hour=11)), pause(None, noon)
    ('ends in 1h', 'until it is resumed')
    """
    return "until it is resumed" if until is None else f"ends {relative(until, at)}"
