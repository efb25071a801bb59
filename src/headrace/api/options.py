"""The options that users give to tasks and to single jobs, beyond those of every job, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

from headrace.core.durations import micros
from headrace.core.names import check_queue, did_you_mean
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.types import SECTIONS, Duration, NewJobOptions, SharedOptions
from headrace.worker.retry import RetryPolicy


class JobOptions(NewJobOptions, total=False):
    """What ``task.options(…)`` takes."""

    wait: Duration | None


class BatchOptions(SharedOptions, total=False):
    """What ``@app.batch(…)`` takes."""

    name: str | None
    retry: RetryPolicy | None
    sections: Collection[str] | None
    size: int


class BundleOptions(SharedOptions, total=False):
    """What ``Bundle(…)`` takes."""

    retry: RetryPolicy | None
    sections: Collection[str] | None


class TaskOptions(SharedOptions, total=False):
    """What ``@app.task(…)`` takes."""

    name: str | None
    retry: RetryPolicy | None
    sections: Collection[str] | None
    executor: Literal["thread", "process"] | None


_Changed = tuple[NewJobOptions, Duration | None]


def known(given: Mapping[str, Any], kind: type, where: str) -> None:
    """Refuse options that ``kind`` does not have: a type checker says so earlier, but not everybody runs one."""
    names = list(kind.__annotations__)
    for name in given:
        if name in names:
            continue
        meant = did_you_mean(name, names)
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


def wanted_sections(given: object, where: str) -> frozenset[str] | None:
    """The sections that jobs of a task come with, besides their arguments; None: all."""
    if given is None:
        return None
    there = SECTIONS[1:]
    if isinstance(given, str) or not isinstance(given, Collection) or not set(given) <= set(there):
        raise ConfigError(f"{where}: sections: expected some of {', '.join(there)}, got {shown(given)}")
    return frozenset(given)


def length(options: Mapping[str, Any], name: str, default: Duration | None, where: str = "") -> Any:
    """An option that is a duration, in microseconds; None if neither it nor the default is given."""
    given = default if (said := options.get(name)) is None else said
    return None if given is None else micros(given, f"{where}{name}")


def changed(options: NewJobOptions, wait: Duration | None, changes: JobOptions, where: str) -> _Changed:
    """The options of a task with changes, and how long ``call`` then waits for a result."""
    known(changes, JobOptions, where)
    wait = changes.pop("wait", wait)
    return cast(NewJobOptions, {**options, **changes}), wait
