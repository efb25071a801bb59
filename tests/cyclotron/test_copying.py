"""Whether a manager's chunks go by ``COPY`` is its own choice, unless a URL says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend, bulk
from headrace.backends.streams import StreamsBackend
from headrace.cyclotron import JobInit, Manager
from headrace.routing.moving import Moving
from headrace.routing.sharded import Router
from tests.postgres import server


@pytest.fixture
def url() -> Iterator[str]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE manager")
        yield server().url("manager")
        connection.execute("DROP DATABASE manager WITH (FORCE)")


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each ``COPY`` stored."""
    sizes: list[int] = []
    copy = bulk.Bulk._copy

    async def noted(self: bulk.Bulk, connection: Any, rows: Any, at: Any) -> bool:
        sizes.append(len(rows))
        return await copy(self, connection, rows, at)

    monkeypatch.setattr(bulk.Bulk, "_copy", noted)
    return sizes


def large(count: int) -> list[JobInit]:
    """Jobs of 20 KB that cannot be compressed: a hundred of them are more than COPY begins with."""
    return [JobInit(team_id=1, queue_name="hog", vm_state=random.Random(n).randbytes(20_000)) for n in range(count)]


@pytest.mark.parametrize("copy", [False, True])
async def test_a_manager_copies_large_chunks_if_it_is_asked_to(url: str, copied: list[int], copy: bool) -> None:
    async with Manager(url, copy=copy, chunk_size=100) as manager:
        await manager.bulk_create_jobs(large(250))
        assert copied == ([100, 100] if copy else [])
        assert await manager.depths() == {0: 250}


@pytest.mark.parametrize("said", ["yes", "no"])
async def test_what_a_url_says_counts(url: str, copied: list[int], said: str) -> None:
    for copy in (False, True):
        async with Manager(f"{url}{'&' if '?' in url else '?'}copy={said}", copy=copy) as manager:
            await manager.bulk_create_jobs(large(100))
    assert copied == ([100, 100] if said == "yes" else [])


PG = "postgresql://db/jobs"


@pytest.mark.parametrize("copy", [False, True])
def test_every_postgres_of_a_url_is_told(copy: bool) -> None:
    moving = open_backend(f"{PG} -> {PG}2", copy=copy)
    router = open_backend(f"a = {PG} | b = {PG}2 | *=a", copy=copy)
    streams = open_backend(f"streams://?pg={quote(PG, safe='')}&valkey=redis%3A%2F%2Fcache", copy=copy)
    assert isinstance(moving, Moving)
    assert isinstance(router, Router)
    assert isinstance(streams, StreamsBackend)
    shards = [shard.store for shard in router._guarded.values()]
    inside = [moving.old, moving.new, *shards, streams.truth]
    assert [one._bulk._allowed for one in inside if isinstance(one, PostgresBackend)] == [copy] * 5
