"""Stores whose calls block keep the contract too: by the same code, on connections of their own."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.redis import RedisBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.core.driving import drive
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.testing.conformance.alter import AlterTests
from headrace.testing.conformance.base import T0, job_id, row
from headrace.testing.conformance.insert import InsertTests
from headrace.testing.conformance.read import ReadTests
from headrace.types import JobState
from tests import postgres, valkey


def _left() -> float:
    return 60.0


class _Calls(InsertTests, AlterTests, ReadTests):
    """What code that blocks may ask for."""


class TestSqlite(_Calls):
    capabilities = ("durable", "policies", "store_depth", "ticks", "references", "finish_and_claim")

    def connect(self, place: Path) -> SqliteBackend:
        return SqliteBackend(place / "jobs.db").blocking(_left)


class TestPostgres(InsertTests):
    capabilities = ("durable", "policies", "store_depth", "ticks", "references", "finish_and_claim")

    def connect(self, place: Path) -> PostgresBackend:
        _made()
        return postgres.stores.connect(place).blocking(_left)


class TestRedis(InsertTests):
    capabilities = ("durable", "policies", "store_depth", "ticks", "references", "finish_and_claim")

    def connect(self, place: Path) -> RedisBackend:
        make = valkey.stores.connect(place).blocking
        assert make is not None
        return make(_left)


@functools.cache
def _made() -> None:
    """The tables; a store whose calls block makes none."""

    async def make() -> None:
        backend = PostgresBackend(postgres.server().url(), schema=postgres.SCHEMA)
        await backend.open()
        await backend.close()

    thread = threading.Thread(target=lambda: asyncio.run(make()))
    thread.start()
    thread.join()


def _connect(kind: str, place: Path) -> Backend:
    tests = {"sqlite": TestSqlite, "postgres": TestPostgres, "redis": TestRedis}
    return tests[kind]().connect(place)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_without_a_loop(kind: str, tmp_path: Path) -> None:
    store = _connect(kind, tmp_path)
    drive(store.open())
    drive(store.insert([row(1)], T0))
    drive(store.insert([row(1)], T0))
    [record, other] = drive(store.fetch([job_id(1), job_id(2)], at=T0))
    assert record is not None
    assert (record.state, other) == (JobState.AVAILABLE, None)
    drive(store.close())
    with pytest.raises(Unavailable):
        drive(store.insert([row(2)], T0))
    drive(store.open())
    drive(store.insert([row(2)], T0))
    assert None not in drive(store.fetch([job_id(1), job_id(2)], at=T0))
    drive(store.close())
