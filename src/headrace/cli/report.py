"""``headrace report``: everything that a bug report needs, without secrets."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import distributions
from typing import Any

import click

from headrace import Settings
from headrace.cli.commands import Command
from headrace.cli.doctor_checks import effective, versions
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, print_fields
from headrace.cli.problems import Problem
from headrace.errors import HeadraceError
from headrace.seam.records import COUNTS
from headrace.text import without_secrets

_OURS = (
    "apsw", "asyncpg", "hiredis", "msgspec", "obstore", "opentelemetry-api", "prometheus-client", "psycopg",
    "starlette", "uvicorn", "uvloop",
)  # fmt: skip


@click.command("report", cls=Command)
@answer_options
async def report_command(store: Store) -> None:
    """Print what a bug report needs: versions, changed settings, and the store in numbers.

    It has no secrets, no payloads, and no names of queues, tasks or tenants.
    """
    told = await _report(store)
    if answered(told):
        return
    for title, part in told.items():
        print(f"\n## {title}\n")
        print_fields([(name, value) for name, value in part.items()])


async def _report(store: Store) -> dict[str, dict[str, Any]]:
    installed = {one.metadata["Name"]: one.version for one in distributions()}
    told: dict[str, dict[str, Any]] = {
        "versions": {
            **{finding.check: finding.what for finding in versions()[:1]},
            "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
            **{name: installed[name] for name in _OURS if name in installed},
        }
    }
    try:
        client = store.client()
        default = effective(Settings())
        changed = {name: value for name, value in effective(client.settings).items() if value != default[name]}
        told["settings"] = changed or {"all": "at their defaults"}
        async with store.admin() as admin:
            told["store"] = _numbers(await admin.overview(), admin.client.limits.durable)
    except (HeadraceError, Problem) as error:
        told["store"] = {"error": without_secrets(str(error))}
    return told


def _numbers(overview: Any, durable: str) -> dict[str, Any]:
    queues, workers = overview.queues, overview.workers
    return {
        "kind": overview.store.partition(":")[0],
        "durable": durable,
        "queues": len(queues),
        "queues paused": sum(queue.paused for queue in queues),
        **{state: sum(getattr(queue, state) for queue in queues) for state in COUNTS},
        "oldest due, seconds": max((queue.oldest_due_seconds or 0.0 for queue in queues), default=0.0),
        "workers": len(workers),
        "slots": sum(worker.slots for worker in workers),
        "slots busy": sum(worker.busy for worker in workers),
        **{f"kept, {kept.target}": kept.count for kept in overview.kept},
        "bytes": overview.store_bytes,
    }
