"""The checks of ``headrace doctor``: each returns findings, with advice where something is wrong."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from msgspec import Struct

from headrace import App, Settings
from headrace.api.queue_health import listeners
from headrace.cli.output import counted
from headrace.cli.policy_output import paused
from headrace.cli.times import now
from headrace.seam.protocol import Backend
from headrace.seam.records import QueueStats, Selector, Stats, WorkerStats
from headrace.text import without_secrets
from headrace.types import JobState

_LOOKED_AT = 2_000
_OPTIONAL = {"uvloop": "a faster loop", "watchfiles": "reloading"}


class Finding(Struct, frozen=True):
    """One line of the report: ``ok``, ``warn`` or ``fail`` for one check."""

    level: str
    check: str
    what: str
    advice: str = ""


def versions() -> list[Finding]:
    """What is installed."""
    parts = [f"headrace {version('headrace')}", f"Python {platform.python_version()}", platform.platform()]
    found = [Finding("ok", "versions", ", ".join(parts))]
    present = [f"{name} {have}" for name in ("msgspec", "click", "apsw", *_OPTIONAL) if (have := _version(name))]
    found.append(Finding("ok", "packages", ", ".join(present)))
    absent = [f"{name} ({purpose})" for name, purpose in _OPTIONAL.items() if not _version(name)]
    if absent:
        found.append(Finding("ok", "packages", f"optional, not installed: {', '.join(absent)}"))
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def effective(settings: Settings) -> dict[str, Any]:
    """All settings by dotted name, without secrets."""
    flat: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else key)
        else:
            flat[name] = without_secrets(value) if isinstance(value, str) else value

    walk(msgspec.to_builtins(settings), "")
    return flat


def settings_in_force(settings: Settings) -> list[Finding]:
    """The settings that differ from their defaults."""
    default, now = effective(Settings()), effective(settings)
    changed = [f"{name} = {value}" for name, value in now.items() if value != default[name]]
    text = ", ".join(changed) or "none changed"
    return [Finding("ok", "settings", f"{text} ({len(now) - len(changed)} at their defaults; --json shows all)")]


def sealing(settings: Settings) -> list[Finding]:
    """Whether payloads are sealed, and nothing else is read."""
    if settings.payloads.sealing.keys is None:
        return []
    if not settings.payloads.sealing.read_unsealed:
        return [Finding("ok", "sealing", "payloads and results are sealed")]
    what = "payloads are sealed, but those that are not are read too: whoever writes to the store can add some"
    return [Finding("warn", "sealing", what, "unset payloads.sealing.read_unsealed when the store has changed over")]


def store(backend: Backend, url: str) -> list[Finding]:
    """The store's durability and capabilities."""
    limits = backend.limits
    tests_only = url.startswith("memory:")
    can = [f"hints: {_yes(backend.hints)}", f"finish and claim in one trip: {_yes(backend.finish_and_claim)}"]
    return [
        Finding("ok", "store", f"{url} opened"),
        Finding("warn" if tests_only else "ok", "durability", limits.durable, "for tests only" if tests_only else ""),
        Finding("ok", "capabilities", f"{', '.join(can)}; batches of {limits.max_batch:,}"),
    ]


async def server(backend: Backend, settings: Settings) -> list[Finding]:
    """The store's own checks of its server, if it has any."""
    checks = getattr(backend, "checks", None)
    keep = settings.retention
    kept = sum(one.bytes or 0 for one in (keep.completed, keep.cancelled, keep.failed))
    return [] if checks is None else [Finding(*fact) for fact in await checks(kept)]


def _yes(capability: object) -> str:
    return "no" if capability is None else "yes"


def overview(stats: Stats) -> list[Finding]:
    """Queues and workers."""
    found = [
        Finding(
            "ok",
            "workers",
            f"{worker.worker}: {worker.busy}/{worker.slots} slots busy, queues {', '.join(worker.queues)}",
        )
        for worker in stats.workers
    ]
    if not found:
        found.append(Finding("warn", "workers", "no worker is alive", "headrace worker APP"))
    return found + [_queue(queue, stats.workers) for queue in stats.queues]


def _queue(queue: QueueStats, workers: list[WorkerStats]) -> Finding:
    name = queue.queue
    text = f"{name}: {queue.due:,} due, {queue.scheduled:,} scheduled, {queue.running:,} running, {queue.failed:,} dead"
    if queue.paused:
        return Finding("warn", "queues", f"{text}; {paused(queue, now())}", f"headrace queue resume {name}")
    if queue.oldest_due_age is not None and not listeners(name, workers):
        return Finding("warn", "queues", f"{text}; no worker listens", f"headrace worker APP --queue {name}")
    if queue.failed:
        return Finding("warn", "queues", text, f"headrace dead list --queue {name}")
    return Finding("ok", "queues", text)


async def leases(backend: Backend, now: int) -> list[Finding]:
    """Running jobs whose leases have expired."""
    page = await backend.scan(Selector(states=frozenset({JobState.RUNNING})), None, _LOOKED_AT)
    stale = [job for job in page.records if job.lease_until is not None and job.lease_until < now]
    if not stale:
        return [Finding("ok", "leases", "none has expired")]
    advice = "a worker takes them back within seconds: headrace worker APP"
    return [Finding("warn", "leases", f"{counted(len(stale), 'job')} whose worker has died", advice)]


async def tasks(backend: Backend, app: App) -> list[Finding]:
    """Waiting jobs whose task the app does not have."""
    page = await backend.scan(Selector(states=frozenset({JobState.AVAILABLE})), None, _LOOKED_AT)
    waiting = {job.task for job in page.records}
    unknown = sorted(waiting - app.tasks.keys())
    known = Finding("ok", "tasks", f"the app has: {', '.join(sorted(app.tasks)) or 'none'}")
    if not unknown:
        return [known]
    advice = "deploy the code that has them, or give the old name with @app.task(name=…), or purge them"
    text = f"jobs wait for tasks that the app does not have: {', '.join(unknown)}"
    return [known, Finding("fail", "tasks", text, advice)]
