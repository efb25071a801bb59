"""The options that users give to tasks, to single jobs and to jobs of a queue, each with its type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, cast

from headrace.core.durations import micros
from headrace.core.names import check_queue
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.types import Duration
from headrace.worker.retry import RetryPolicy


class SharedOptions(TypedDict, total=False):
    """Options that a task sets for all its jobs and that a single job can override; ``NewJob`` explains each."""

    queue: str
    priority: int
    timeout: Duration | None
    expires: Duration | None
    result_ttl: Duration | None
    overflow: str | None
    when_full: Literal["raise", "block"]


class NewJobOptions(SharedOptions, total=False):
    """Options of a single job."""

    key: str | None
    tenant: str
    group: str | None
    run_at: datetime | None
    delay: Duration | None
    max_attempts: int | None
    headers: Mapping[str, str] | None
    on_failed: Literal["run", "return"]


class JobOptions(NewJobOptions, total=False):
    """What ``task.options(…)`` takes."""

    wait: Duration | None


class BatchOptions(SharedOptions, total=False):
    """What ``@app.batch(…)`` takes."""

    name: str | None
    retry: RetryPolicy | None
    size: int


class TaskOptions(SharedOptions, total=False):
    """What ``@app.task(…)`` takes."""

    name: str | None
    retry: RetryPolicy | None
    executor: Literal["thread", "process"] | None


class QueueOptions(TypedDict, total=False):
    """What ``queue.enqueue(…)`` takes."""

    priority: int
    result_ttl: Duration | None
    tenant: str
    group: str | None
    delay: Duration | None
    max_attempts: int | None
    headers: Mapping[str, str] | None
    on_failed: Literal["run", "return"]


_Changed = tuple[NewJobOptions, Duration | None]


def known(given: Mapping[str, Any], kind: type, where: str) -> None:
    """Refuse options that ``kind`` does not have: a type checker says so earlier, but not everybody runs one."""
    names = list(kind.__annotations__)
    for name in given:
        if name in names:
            continue
        close = get_close_matches(name, names, 1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        if kind is not JobOptions and name in JobOptions.__annotations__:
            meant = f" (it is an option of single jobs: task.options({name}=…))"
        raise ConfigError(f"{where}unknown option {name!r}{meant}; there are: {', '.join(names)}")


def shared(given: Mapping[str, Any], task: str) -> NewJobOptions:
    """The options of a task that its jobs take over; refuses what no job could have."""
    options = cast(NewJobOptions, {name: given[name] for name in SharedOptions.__annotations__ if name in given})
    check_queue(options.get("queue", "default"))
    if (overflow := options.get("overflow")) is not None:
        check_queue(overflow, f"task {task}: overflow")
        if overflow == options.get("queue", "default"):
            raise ConfigError(f"task {task}: overflow: expected a queue other than its own, got {overflow!r}")
    if (full := options.get("when_full", "raise")) not in ("raise", "block"):
        raise ConfigError(f"task {task}: when_full: expected 'raise' or 'block', got {shown(full)}")
    for what in ("timeout", "result_ttl", "expires"):
        length(options, what, None, f"task {task}: ")
    return options


def length(options: Mapping[str, Any], name: str, default: Duration | None, where: str = "") -> Any:
    """An option that is a duration, in microseconds; None if neither it nor the default is given."""
    given = default if (said := options.get(name)) is None else said
    return None if given is None else micros(given, f"{where}{name}")


def changed(options: NewJobOptions, wait: Duration | None, changes: JobOptions, where: str) -> _Changed:
    """The options of a task with changes, and how long ``call`` then waits for a result."""
    known(changes, JobOptions, where)
    wait = changes.pop("wait", wait)
    return cast(NewJobOptions, {**options, **changes}), wait
