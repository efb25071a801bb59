"""Notes in the audit log what a command is about to change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec import to_builtins

from headrace import Client
from headrace.admin.audit import Audit
from headrace.cli.loading import Store
from headrace.core.actor import local_actor
from headrace.seam.records import JobId, Selector

_NAMED = 100
"""Jobs that an entry names; it has the number of all."""


async def note_change(client: Client, action: str, **details: object) -> None:
    """Note it under the name of this user and machine."""
    await Audit(client).note(local_actor(), action, **details)


@asynccontextmanager
async def changing(store: Store, action: str, **details: object) -> AsyncIterator[Client]:
    """An open client, once it is noted what is to be changed with it."""
    async with store.opened() as client:
        await note_change(client, action, **details)
        yield client


async def note_jobs(client: Client, action: str, ids: Sequence[JobId]) -> None:
    """The same for jobs by id."""
    await note_change(client, action, ids=[str(UUID(bytes=one)) for one in ids[:_NAMED]], jobs=len(ids))


async def note_selected(client: Client, action: str, filters: Selector, jobs: int) -> None:
    """The same for jobs that match."""
    given = {name: getattr(filters, name) for name in ("queue", "task", "tenant", "reason", "older_than")}
    await note_change(client, action, **{name: to_builtins(value) for name, value in given.items()}, jobs=jobs)
