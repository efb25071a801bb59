"""A single job is written on the caller's thread while that is a matter of a moment, and by the writer's thread
otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from headrace.backends.sqlite import SqliteBackend
from headrace.backends.sqlite.writer import Writer
from headrace.seam.records import InsertStatus
from headrace.testing.conformance.base import job_id, row


class Store:
    """A store, and how many commands its writer's thread was given since it is open."""

    def __init__(self, backend: SqliteBackend, writer: Writer) -> None:
        self.backend = backend
        self.writer = writer
        self.given = 0
        self.came = asyncio.Event()

    async def insert(self, number: int) -> None:
        [answer] = await self.backend.insert([row(number)])
        assert answer.status is InsertStatus.NEW

    async def has(self, number: int) -> bool:
        [record] = await self.backend.fetch([job_id(number)], frozenset())
        return record is not None


@pytest_asyncio.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    backend = SqliteBackend(tmp_path / "jobs.db")
    await backend.open()
    writer = backend._writer
    assert writer is not None
    store = Store(backend, writer)
    submit = writer.submit

    def counted(command: Any) -> Any:
        store.given += 1
        store.came.set()
        return submit(command)

    monkeypatch.setattr(writer, "submit", counted)
    yield store
    await backend.close()


async def test_while_commits_are_quick_the_caller_writes(store: Store) -> None:
    for number in range(1, 6):
        store.writer._pace = 0.0
        await store.insert(number)
    assert store.given == 0
    assert await store.has(5)


async def test_while_commits_take_long_the_thread_writes_until_they_are_quick_again(store: Store) -> None:
    store.writer._pace = 10.0
    await store.insert(1)
    assert store.given == 1
    with store.writer._in_use:  # the thread has answered, and may still be about to let go of the file
        pass
    for _ in range(200):
        store.writer._note(0.0)
    await store.insert(2)
    assert store.given == 1


async def test_several_jobs_at_once_are_the_thread_s(store: Store) -> None:
    store.writer._pace = 0.0
    await store.backend.insert([row(1), row(2)])
    assert store.given == 1


async def test_where_somebody_else_writes_the_thread_waits_for_him_and_the_loop_goes_on(
    store: Store, tmp_path: Path
) -> None:
    other = apsw.Connection(str(tmp_path / "jobs.db"))
    other.execute("BEGIN IMMEDIATE")
    store.writer._pace = 0.0
    inserting = asyncio.create_task(store.insert(1))
    await store.came.wait()
    other.execute("ROLLBACK")
    other.close()
    await inserting
    assert store.given == 1
    assert await store.has(1)
