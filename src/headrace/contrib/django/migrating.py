"""``manage.py migrate`` also brings the schema of the jobs up to date."""

from __future__ import annotations

import asyncio
import sys
from typing import IO

from django.db import connections

from headrace.api.connection import migrator
from headrace.contrib.django.configuration import alias_of, configuration, database_url


def migrate_database(alias: str, verbosity: int = 1, stdout: IO[str] | None = None) -> None:
    """Apply the steps that are missing, if the jobs are in this database. With the option ``migrate=no`` it is left to
    ``manage.py headrace migrate up``."""
    given = configuration()
    if alias_of(given) != alias or given.options.get("migrate") == "no":
        return
    steps = asyncio.run(_applied(database_url(connections[alias].settings_dict, given.options)))
    for name in steps if verbosity >= 1 else ():
        (stdout or sys.stdout).write(f"  Applying headrace.{name}... OK\n")


async def _applied(url: str) -> list[str]:
    found = migrator(url)
    assert found is not None
    return [step.name async for step in found.up()]
