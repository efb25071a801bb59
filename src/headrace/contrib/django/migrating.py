"""``manage.py migrate`` also brings the schema of the jobs up to date."""

from __future__ import annotations

import asyncio
import sys
from typing import IO
from urllib.parse import parse_qsl, urlsplit

from django.db import connections

from headrace.api.connection import migrator
from headrace.contrib.django.project import jobs_alias, jobs_url


def migrate_database(alias: str, verbosity: int = 1, stdout: IO[str] | None = None) -> None:
    """Apply the steps that are missing, if the jobs are in this database. With the option ``migrate=no`` it is left to
    ``manage.py headrace migrate up``."""
    if jobs_alias() != alias:
        return
    url = jobs_url(connections[alias].settings_dict)
    if ("migrate", "no") in parse_qsl(urlsplit(url).query):
        return
    steps = asyncio.run(_applied(url))
    for name in steps if verbosity >= 1 else ():
        (stdout or sys.stdout).write(f"  Applying headrace.{name}... OK\n")


async def _applied(url: str) -> list[str]:
    found = migrator(url)
    assert found is not None
    return [step.name async for step in found.up()]
