"""Every command either reads, or notes in the audit log what it is about to do."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace.cli

HOME = Path(headrace.cli.__file__).parent
NOTING = {"changing", "note_change", "note_jobs", "note_selected", "submit", "cancel_operation", "purge"}
READING = {
    "completion.completion", "config.show", "dead.export", "dead.list", "dead.reasons", "dead.show", "doctor.doctor",
    "health.health", "janitor.log", "janitor.preview", "janitor.removed", "janitor.rules", "job.list", "job.show",
    "job.why", "migrate.plan", "migrate.sql", "migrate.status", "objects.check", "objects.plan", "op.list", "op.log",
    "op.show", "queue.list", "queue_windows.windows", "report.report", "schedule.list", "schedule.next",
    "schedule.show", "seal.status", "shard.list", "table.list", "table.preview", "table.protected", "table.show",
    "tenant.list", "top.top", "tracker.list", "tracker.show", "transfer.plan", "transfer.status", "transfer.verify",
    "vault.ls", "vault.query", "vault.verify", "workers.workers",
}  # fmt: skip
WORKING = {
    "bench.bench", "dashboard.dashboard", "dev.dev", "enqueue.enqueue", "migrate.up", "objects.load", "op.run",
    "serve.serve", "worker.worker",
}  # fmt: skip
"""They enqueue or run jobs, or do what workers do. The schema has a history of its own."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _calls(function: Function, others: dict[str, Function], seen: frozenset[str] = frozenset()) -> set[str]:
    """What the function calls, by itself and through others of its module."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found.add(name)
            if name in others and name not in seen:
                found |= _calls(others[name], others, seen | {name})
    return found


def _is_command(function: Function) -> bool:
    calls = (one.func for one in function.decorator_list if isinstance(one, ast.Call))
    return any(getattr(call, "attr", "") == "command" for call in calls)


def test_every_command_reads_or_notes_what_it_does() -> None:
    quiet, noted = set(), set()
    for path in HOME.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        functions: dict[str, Function] = {node.name: node for node in nodes if isinstance(node, Function)}
        for name, function in functions.items():
            if _is_command(function):
                command = f"{path.stem}.{name.removesuffix('_command')}"
                (noted if _calls(function, functions) & NOTING else quiet).add(command)
    assert quiet == READING | WORKING
    assert len(noted) > 30
