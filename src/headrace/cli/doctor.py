"""``headrace doctor``: a check-up of the whole set-up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from headrace import App
from headrace.cli import disk_checks, doctor_checks
from headrace.cli.commands import Command
from headrace.cli.doctor_checks import Finding
from headrace.cli.loading import Store, load_target, store_file
from headrace.cli.options import answer_options
from headrace.cli.output import answered, print_level
from headrace.cli.problems import FAILED, OK, Problem, explain
from headrace.cli.setting_source import origin
from headrace.errors import ConfigError, HeadraceError
from headrace.text import url_without_secrets, without_secrets

_SELF = re.compile("^headrace doctor(; then |, or )?")
"""Advice to run this very command."""


@click.command("doctor", cls=Command)
@answer_options
@click.pass_context
async def doctor_command(ctx: click.Context, /, store: Store) -> None:
    """Check versions, settings, store, disk, queues and workers, and say what to fix.

    With --app, also check that the app has the tasks of all waiting jobs. Exit code 1 if a check fails.
    """
    findings: list[Finding] = doctor_checks.versions()
    settings: dict[str, Any] = {}
    await _examine(store, findings, settings)
    ok = not any(finding.level == "fail" for finding in findings)
    if not answered({"ok": ok, "findings": findings, "settings": settings}):
        for finding in findings:
            print_level(finding.level, f"{finding.check}: {finding.what}", finding.advice)
    ctx.exit(OK if ok else FAILED)


async def _examine(store: Store, findings: list[Finding], settings: dict[str, Any]) -> None:
    """Run all checks. A failed one skips only those that depend on it."""
    try:
        client = store.client()
    except (Problem, HeadraceError) as error:
        findings.append(_unusable(error, store))
        return
    settings |= doctor_checks.effective(client.settings)
    findings += doctor_checks.settings_in_force(client.settings)
    findings += doctor_checks.sealing(client.settings)
    path = store_file(client.settings.url)
    if path is not None:
        findings += [disk_checks.sqlite_library(), *disk_checks.place(path)]
        if not path.exists():
            url = url_without_secrets(client.settings.url)
            findings.append(
                Finding("warn", "store", f"no store at {url} yet", "the first enqueue or worker creates it")
            )
            return
    try:
        await _examine_store(store, findings, path)
    except (Problem, HeadraceError) as error:
        findings.append(_failed(error, "store"))


async def _examine_store(store: Store, findings: list[Finding], path: Path | None) -> None:
    async with store.opened() as client:
        backend = await client.backend()
        findings += doctor_checks.store(backend, url_without_secrets(client.settings.url))
        findings += await doctor_checks.server(backend, client.settings)
        if path is not None:
            findings += [disk_checks.journal(path), *disk_checks.privacy(path)]
        findings += doctor_checks.overview(await client.stats())
        findings += await doctor_checks.leases(backend, await client.store_now())
        if store.app is not None:
            target = load_target(store.app)
            findings += await doctor_checks.tasks(backend, target) if isinstance(target, App) else []


def _unusable(error: Problem | HeadraceError, store: Store) -> Finding:
    """Why no client could be made."""
    wrong = error if isinstance(error, ConfigError) else error.__cause__
    if isinstance(wrong, ConfigError) and isinstance(wrong.__cause__, ImportError):
        return Finding("fail", "packages", str(wrong))
    if isinstance(wrong, ConfigError) and (where := origin(wrong, store.url)):
        text = str(wrong).removeprefix("settings: ")
        text = text if where in text else f"{text}; it comes from {where}"
        return Finding("fail", "settings", without_secrets(text), f"correct {where}")
    return _failed(error, "app" if store.app is not None else "settings")


def _failed(error: Problem | HeadraceError, check: str) -> Finding:
    problem = error if isinstance(error, Problem) else explain(error)
    return Finding(
        "fail", check, without_secrets(problem.what), without_secrets(_SELF.sub("", problem.run) or problem.cause)
    )
