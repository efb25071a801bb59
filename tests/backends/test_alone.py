"""Rows that come one at a time have a short way in some stores. The whole contract holds for them too: every row of
these suites comes alone, into a queue that the store knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.redis.shard import Shard
from headrace.backends.sqlite import SqliteBackend, insertion
from headrace.seam import records as r
from headrace.seam.protocol import Backend
from headrace.testing.conformance import BackendConformance
from headrace.testing.conformance.base import T0, row
from headrace.testing.wrapped import Wrapped
from tests import postgres, valkey

QUEUES = ("q", "a", "b", "other", "mail")
FEW = 250
"""Rows of a batch that come one at a time. More would only take longer."""


class Alone(Wrapped):
    """A store whose rows come one at a time. It knows the queues of the tests."""

    async def open(self) -> None:
        await super().open()
        first = [row(2**40 + n, queue=queue) for n, queue in enumerate(QUEUES)]
        await self.inner.insert(first, T0)
        await self.inner.alter(r.Selector(ids=[one.id for one in first]), r.Delete(), T0)

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        if len(rows) > FEW:
            return await super().insert(rows, at)
        return [answer for one in rows for answer in await self.inner.insert([one], at)]


class TestPostgres(BackendConformance):
    capabilities = (
        "durable", "hints", "ticks", "references", "documents", "archive", "tracks", "tables", "finish_and_claim",
        "policies", "store_depth", "events", "journal", "parts", "usage", "reserve", "transfers", "strict_order",
        "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> Backend:
        return Alone(postgres.stores.connect(place))


class TestRedis(BackendConformance):
    capabilities = (
        "durable", "hints", "ticks", "references", "documents", "archive", "tracks", "finish_and_claim", "policies",
        "store_depth", "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> Backend:
        return Alone(valkey.stores.connect(place))


class TestSqlite(BackendConformance):
    capabilities = (
        "durable", "hints", "ticks", "references", "documents", "archive", "tracks", "tables", "finish_and_claim",
        "policies", "store_depth", "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> Backend:
        return Alone(SqliteBackend(place / "jobs.db"))


async def test_plain_rows_of_known_queues_take_the_short_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ways: Counter[str] = Counter()
    value, run, alone = PostgresBackend._value, Shard.run, insertion._insert_alone

    async def counted_value(self: PostgresBackend, name: str, *given: Any) -> Any:
        ways[name] += 1
        return await value(self, name, *given)

    async def counted_run(self: Shard, name: str, *given: Any, **more: Any) -> Any:
        ways[name] += 1
        return await run(self, name, *given, **more)

    def counted_alone(*given: Any) -> bool:
        stored = alone(*given)
        ways["insert_one"] += stored
        return stored

    monkeypatch.setattr(PostgresBackend, "_value", counted_value)
    monkeypatch.setattr(Shard, "run", counted_run)
    monkeypatch.setattr(insertion, "_insert_alone", counted_alone)
    for number, suite in enumerate([TestPostgres(), TestRedis(), TestSqlite()]):
        place = tmp_path / str(number)
        place.mkdir()
        store = suite.connect(place)
        await store.open()
        ways.clear()
        await store.insert([row(1), row(2, queue="a"), row(3, reply_to="me"), row(4, expires=10, priority=7)], T0)
        await store.close()
        assert ways == {"insert_one": 4}
