"""What a store's usage says of pressure on its server: how fast it commits, and whether its backups fail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from servers.postgres import Postgres
from servers.valkey import Valkey

from headrace.api.connection import open_backend
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import row
from tests.postgres import root

LIMIT = 60.0
"""Seconds. A guard: the servers take one or two to count."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server whose log cannot be archived."""
    small = {"fsync": "off", "shared_buffers": "32MB"}
    server = Postgres(root(), small | {"archive_mode": "on", "archive_command": "false"})
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey(settings={"save": ""})
    server.start()
    yield server
    server.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Backend]:
    store = open_backend(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def grown(store: Backend, part: str, least: int) -> None:
    """Once this part of the usage is so much."""
    assert store.usage is not None
    async with asyncio.timeout(LIMIT):
        while (await store.usage()).parts[part] < least:
            await asyncio.sleep(0.05)


async def test_commits_of_postgres(postgres: Postgres) -> None:
    async with opened(postgres.url()) as store:
        assert store.usage is not None
        before = (await store.usage()).parts["commits"]
        for number in range(1, 51):
            await store.insert([row(number)])
        await grown(store, "commits", before + 50)


async def test_archiving_that_fails_on_postgres(postgres: Postgres) -> None:
    async with opened(postgres.url()) as store:
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_switch_wal()")
        await grown(store, "archive_failures", 1)


async def test_commands_of_valkey(valkey: Valkey) -> None:
    async with opened(valkey.url()) as store:
        assert store.usage is not None
        before = (await store.usage()).parts["commands"]
        await store.insert([row(1)])
        await grown(store, "commands", before + 2)


async def test_saving_that_fails_on_valkey(valkey: Valkey) -> None:
    async with opened(valkey.url()) as store:
        assert store.usage is not None
        assert (await store.usage()).parts["save_failed"] == 0
        os.mkdir(os.path.join(valkey.directory, "dump.rdb"))
        valkey.call("BGSAVE")
        await grown(store, "save_failed", 1)
