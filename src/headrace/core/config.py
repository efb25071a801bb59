"""Settings: frozen, nested by part, from keyword arguments over ``HEADRACE_*`` over TOML over defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from headrace.core.durations import micros
from headrace.core.environment import Length, from_env, parts_of
from headrace.core.numbers import check_whole
from headrace.errors import ConfigError
from headrace.text import shown, url_without_secrets


class WorkerSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker process."""

    concurrency: int = 10
    """Jobs that run at the same time."""
    prefetch: int = 500
    """At most this many leased jobs wait for a slot; how many do depends on how fast the handlers are."""
    lease: Length = "30s"
    """A job is taken back when its worker has not been heard from for this long."""
    poll: Length = "5s"
    """How often an idle worker looks for jobs without a hint."""
    poll_blind: Length = "250ms"
    """The same on a store that gives no hints."""
    reap: Length = "5s"
    """How often leases of vanished workers are looked for."""
    max_lost: int = 2
    """A job lost more often than this in a row becomes a dead letter. On its last chance it runs alone."""
    grace: Length = "10s"
    """How long running jobs may go on after a stop is requested; then they are cancelled and requeued."""
    name: str = "host-pid"
    """The worker's name: ``host-pid``, ``hostname``, ``pod``, ``random``, or a name of your own."""
    executor: str = "thread"
    """Where plain functions run: ``thread`` or ``process``. Async functions always run on the loop."""


class PayloadSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes and compression of payloads and results."""

    max_size: int = 16 * 1024 * 1024
    compress_over: int | None = 1_024
    """Cells longer than this are compressed if that makes them smaller; None: never."""


class Keep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much is kept in one place. What exceeds one of the three bounds is removed: the oldest first; of dead letters
    those of the tenants that have the most."""

    age: Length = "1d"
    count: int = 100_000
    bytes: int = 256 * 1024 * 1024


class PlannerSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a worker plans schedules."""

    every: Length = "10s"
    """At least how often it looks for schedules to plan."""
    ahead: Length = "60s"
    """How long before its instant a slot is planned; at most 7 days."""
    batch: int = 100
    """Schedules in one trip."""
    shard: int = 0
    shards: int = 1
    """Split all schedules into ``shards`` shares, and plan only share ``shard``: for 100,000 schedules and more. Run a
    worker for every share; other workers plan a share without one, but late."""


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of jobs that have ended."""

    every: Length = "60s"
    completed: Keep = Keep()
    cancelled: Keep = Keep(bytes=64 * 1024 * 1024)
    failed: Keep = Keep(age="7d", bytes=512 * 1024 * 1024)
    ticks: Keep = Keep(age="7d", count=1_000_000)
    """Ticks: what became of the slots of schedules."""
    keys: int = 10_000_000
    """How many keys may outlive the records of their jobs. A key stays taken for ``result_ttl``, whatever else is
    removed. If there are more, those that would be free first are freed early, and an alert says so."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set.

    >>> Settings.load(env={"HEADRACE_WORKER__CONCURRENCY": "4"}, toml={}).worker.concurrency
    4
    """

    url: str = "sqlite:///headrace.db"
    result_ttl: Length = "1h"
    """How long results can be fetched and completed keys stay taken, unless the task or the job says otherwise."""
    patience: Length = "30s"
    """How long an enqueue is repeated while the store is away."""
    worker: WorkerSettings = WorkerSettings()
    payloads: PayloadSettings = PayloadSettings()
    retention: RetentionSettings = RetentionSettings()
    planner: PlannerSettings = PlannerSettings()

    def __post_init__(self) -> None:
        _check(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The settings without the secrets of the URL, for reprs, which end up in logs."""
        told = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((told | {"url": url_without_secrets(self.url)}).items())

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        toml: Mapping[str, Any] | None = None,
    ) -> Settings:
        """Settings from all sources: ``overrides`` win over the environment, that over ``headrace.toml`` (or the
        ``[tool.headrace]`` table of ``pyproject.toml``) in the working directory, that over the defaults."""
        layers = [_from_files() if toml is None else dict(toml), from_env(os.environ if env is None else env, cls)]
        merged: dict[str, Any] = {}
        for layer in (*layers, dict(overrides or {})):
            _merge(merged, layer)
        _refuse_unknown(merged, cls)
        try:
            return msgspec.convert(merged, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"settings: {error}") from error


def _refuse_unknown(given: Mapping[str, Any], part: type[Struct], path: tuple[str, ...] = ()) -> None:
    """Refuse the first unknown name, and suggest the setting that may have been meant."""
    hints, parts = get_type_hints(part), parts_of(part)
    for name, value in given.items():
        if name in hints:
            if name in parts and isinstance(value, Mapping):
                _refuse_unknown(value, parts[name], (*path, name))
            continue
        meant: list[tuple[str, ...]] = [
            (parent, name) for parent, kind in parts.items() if name in kind.__struct_fields__
        ]
        meant = meant or [(close,) for close in get_close_matches(str(name), hints, 1)]
        shapes = [repr(one[0]) if len(one) == 1 else f'{one[0]}={{"{name}": {shown(value)}}}' for one in meant]
        hint = f"did you mean {' or '.join(shapes)}?" if shapes else f"there are: {', '.join(hints)}"
        raise ConfigError(f"settings: unknown setting {'.'.join((*path, str(name)))!r}; {hint}")


def _check(settings: Settings) -> None:
    worker = settings.worker
    for name, low in (("concurrency", 1), ("prefetch", 0), ("max_lost", 0)):
        check_whole(getattr(worker, name), f"worker.{name}", low)
    try:
        size = len(worker.name.encode())
    except (AttributeError, UnicodeEncodeError):
        size = 0
    if not 0 < size <= 1_024 or "\0" in worker.name:
        raise ConfigError(f"worker.name: expected a name of at most 1,024 bytes, got {shown(worker.name)}")
    for name in ("lease", "poll", "poll_blind", "reap"):
        if micros(getattr(worker, name), f"worker.{name}") < 10_000:
            raise ConfigError(f"worker.{name}: expected at least 10ms, got {getattr(worker, name)!r}")
    micros(worker.grace, "worker.grace")
    if worker.executor not in ("thread", "process"):
        raise ConfigError(f"worker.executor: expected 'thread' or 'process', got {worker.executor!r}")
    micros(settings.result_ttl, "result_ttl")
    micros(settings.patience, "patience")
    check_whole(settings.payloads.max_size, "payloads.max_size", 1)
    if settings.payloads.compress_over is not None:
        check_whole(settings.payloads.compress_over, "payloads.compress_over", 0)
    if micros(settings.retention.every, "retention.every") < 10_000:
        raise ConfigError(f"retention.every: expected at least 10ms, got {settings.retention.every!r}")
    for name in ("every", "ahead"):
        if micros(getattr(settings.planner, name), f"planner.{name}") < 10_000:
            raise ConfigError(f"planner.{name}: expected at least 10ms, got {getattr(settings.planner, name)!r}")
    if micros(settings.planner.ahead) > micros(_AHEAD):
        raise ConfigError(f"planner.ahead: expected at most {_AHEAD}, got {settings.planner.ahead!r}")
    for name, low in (("batch", 1), ("shard", 0), ("shards", 1)):
        check_whole(getattr(settings.planner, name), f"planner.{name}", low)
    if settings.planner.shard >= settings.planner.shards:
        raise ConfigError(
            f"planner.shard: expected a share from 0 to {settings.planner.shards - 1}, got {settings.planner.shard}"
        )
    for place in ("completed", "cancelled", "failed", "ticks"):
        keep: Keep = getattr(settings.retention, place)
        micros(keep.age, f"retention.{place}.age")
        check_whole(keep.count, f"retention.{place}.count", 0)
        check_whole(keep.bytes, f"retention.{place}.bytes", 0)
    check_whole(settings.retention.keys, "retention.keys", 0)


def _from_files() -> dict[str, Any]:
    for path, table in ((Path("headrace.toml"), ()), (Path("pyproject.toml"), ("tool", "headrace"))):
        if path.is_file():
            try:
                data = tomllib.loads(path.read_text("utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: expected TOML: {error}") from error
            for part in table:
                data = data.get(part, {})
                if not isinstance(data, dict):
                    raise ConfigError(f"{path}: expected a table [{'.'.join(table)}], got {shown(data)}")
            if data:
                return data
    return {}


_AHEAD = "7d"
"""Half of the time for which a store with one partition per day makes partitions ahead."""
_DEEPEST = 8
"""Deeper than any settings are nested."""


def _merge(into: dict[str, Any], layer: Mapping[str, Any], depth: int = 0) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            if depth == _DEEPEST:
                raise ConfigError(f"settings: {shown(name)} is nested too deeply, or a table contains itself")
            place = into.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name}: expected a table of settings, got {shown(place)}")
            _merge(place, value, depth + 1)
        elif isinstance(into.get(name), dict) and not isinstance(value, Struct):
            raise ConfigError(f"{name}: expected a table of settings, got {shown(value)}")
        elif isinstance(value, timedelta):
            into[name] = value.total_seconds()
        else:
            into[name] = msgspec.to_builtins(value) if isinstance(value, Struct) else value
