"""Rows and settlements as they travel to PostgreSQL, and the functions that take them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace

from headrace.backends.postgres import PostgresBackend, bulk
from headrace.backends.postgres.composites import NOTICE, NOTICES, TYPES, Columns, job_row, job_rows
from headrace.seam.instants import to_datetime
from headrace.seam.policy import STORE, Policy
from headrace.seam.records import Claim, InsertStatus, Settlement
from headrace.testing.conformance.base import job_id, row
from headrace.testing.conformance.references import ref
from headrace.types import SECTIONS, JobState
from tests.postgres import server


@pytest.fixture
def url() -> Iterator[str]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE rows")
        yield server().url("rows")
        connection.execute("DROP DATABASE rows WITH (FORCE)")


SENT = [(name, {column.name: column.kind for column in columns}) for name, columns in TYPES.items()]
ANSWERED = [("notice", NOTICE), *((f"{name}_row", columns) for name, columns in NOTICES.items())]


@pytest.mark.parametrize(("name", "columns"), [*SENT, *ANSWERED])
async def test_the_table_of_columns_is_the_type_of_the_schema(url: str, name: str, columns: Columns) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT a.attname, format_type(t.oid, NULL) FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid"
            " WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum",
            (f"headrace.{name}",),
        ).fetchall()
    assert [(column, kind.name) for column, kind in columns.items()] == [
        (attribute, kind.removeprefix("headrace.")) for attribute, kind in found
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cells": {}},
        {"cells": dict.fromkeys(SECTIONS, b"x")},
        {"tenant": "ü", "delay": 5, "priority": -7, "headers": b"h", "reply_to": "i"},
        {"run_at": 1, "expires": 2, "max_attempts": 3, "timeout": 4, "result_ttl": 5},
    ],
    ids=str,
)
def test_a_row_by_itself_is_packed_like_one_of_a_batch(given: dict[str, Any]) -> None:
    one = row(1, **given)
    array = bytes(job_rows([one])[1])
    assert job_row(one) == array[24:]


async def test_a_job_is_the_same_whichever_way_its_row_goes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``COPY``, or as an array."""
    backend = PostgresBackend(url)
    await backend.open()
    full = row(
        1, tenant="t", priority=3, run_at=10**15, expires=10**12, max_attempts=7, timeout=8, result_ttl=9, headers=b"h",
        cells={name: name.encode() for name in SECTIONS},
    )  # fmt: skip
    await backend.insert([full], 5)
    monkeypatch.setattr(bulk, "THRESHOLD", 0)
    await backend.insert([replace(full, id=job_id(2)), row(3)], 5)
    one, other = await backend.fetch([job_id(1), job_id(2)], frozenset(SECTIONS))
    assert one is not None
    assert other == replace(one, id=job_id(2))
    await backend.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that was tried by ``COPY`` was copied."""
    done: list[bool] = []
    copy = bulk.Bulk._copy

    async def noted(self: bulk.Bulk, *given: Any) -> bool:
        done.append(await copy(self, *given))
        return done[-1]

    monkeypatch.setattr(bulk.Bulk, "_copy", noted)
    return done


async def test_many_rows_whose_cells_are_elsewhere_go_by_copy(url: str, copied: list[bool]) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    away = {"blob": ref(480_000)}
    await backend.insert([row(n) for n in range(bulk.MANY)])
    await backend.insert([row(n, cells=away) for n in range(bulk.MANY, 2 * bulk.MANY - 1)])
    assert copied == []
    await backend.insert([row(n, cells=away) for n in range(2 * bulk.MANY, 3 * bulk.MANY)])
    assert copied == [True]
    assert len(await backend.references.find(480_001, limit=3 * bulk.MANY)) == 2 * bulk.MANY - 1
    await backend.close()


class TestCopyWithADepth:
    """Large batches go by ``COPY`` where a depth limits the queue, or the store."""

    @pytest.fixture(autouse=True)
    def always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bulk, "THRESHOLD", 0)

    @pytest.mark.parametrize("queue", ["q", STORE])
    async def test_all_or_what_fits(self, url: str, copied: list[bool], queue: str) -> None:
        backend = PostgresBackend(url)
        await backend.open()
        await backend.policies.save(Policy(queue=queue, depth=30))
        first = await backend.insert([row(n) for n in range(20)])
        second = await backend.insert([row(n) for n in range(20, 40)])
        third = await backend.insert([row(n) for n in range(40, 50)])
        assert copied == [True, False, False]
        statuses = [answer.status for answer in first + second + third]
        assert statuses == [InsertStatus.NEW] * 30 + [InsertStatus.FULL] * 20
        assert len((await backend.claim(Claim("h", ("q",), 100, 10**9))).jobs) == 30
        await backend.close()

    async def test_governed_queues_take_the_other_way(self, url: str, copied: list[bool]) -> None:
        backend = PostgresBackend(url)
        await backend.open()
        await backend.policies.save(Policy(queue="q", running=5, depth=1_000))
        await backend.insert([row(n) for n in range(20)])
        assert copied == [False]
        assert len((await backend.claim(Claim("h", ("q",), 100, 10**9))).jobs) == 5
        await backend.close()

    async def test_batches_at_the_same_moment_share_the_room(self, url: str, copied: list[bool]) -> None:
        backends = [PostgresBackend(url) for _ in range(6)]
        for backend in backends:
            await backend.open()
        await backends[0].policies.save(Policy(queue=STORE, depth=1_000))
        found = await asyncio.gather(
            *(one.insert([row(n) for n in range(300 * i, 300 * (i + 1))]) for i, one in enumerate(backends))
        )
        new = sum(answer.status is InsertStatus.NEW for answers in found for answer in answers)
        assert new == 1_000
        assert copied.count(True) == 3
        for backend in backends:
            await backend.close()

    async def test_an_id_that_is_stored_already_fails_no_other(self, url: str, copied: list[bool]) -> None:
        backend = PostgresBackend(url)
        await backend.open()
        await backend.insert([row(3)])
        answers = await backend.insert([row(n) for n in range(5)])
        statuses = [answer.status.value for answer in answers]
        assert statuses == ["new", "new", "new", "same", "new"]
        assert copied == [True]
        await backend.close()

    async def test_can_be_switched_off(self, url: str, copied: list[bool]) -> None:
        backend = PostgresBackend(url, copy=False).sibling()
        await backend.open()
        await backend.insert([row(n) for n in range(20)])
        assert copied == []
        await backend.close()


async def test_a_store_that_was_made_anew_is_served_by_those_who_were_there_before(url: str) -> None:
    """Its types have other numbers."""
    backend, other = PostgresBackend(url), PostgresBackend(url)
    await backend.open()
    await backend.insert([row(1)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA headrace CASCADE")
    await other.open()
    await backend.insert([row(2), row(3)])
    assert [found and found.id for found in await other.fetch([job_id(1), job_id(2)])] == [None, job_id(2)]
    await backend.close()
    await other.close()


async def test_a_queue_without_a_mark_is_looked_at_from_its_beginning(url: str) -> None:
    """Also where all that a client knows is up to when jobs were promoted."""
    backend = PostgresBackend(url)
    await backend.open()
    await backend.insert([row(1)])
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT id, passed_over FROM headrace.claim_v1(NULL, 'h', '{q}', 1, 1000000, 0::smallint, NULL,"
            " 1000, true, '{}', '{}', '{}', '{}', 0) ORDER BY id"
        ).fetchall()
    assert found == [(UUID(bytes=job_id(1)), None), (None, 0)]
    await backend.close()


async def test_the_view_of_jobs_has_the_instant_of_the_last_change(url: str) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.insert([row(n) for n in range(3)])
    leases = (await backend.claim(Claim("h", ("q",), 2, 60_000_000))).jobs
    await backend.finish([Settlement(leases[0].id, leases[0].epoch, "h", JobState.COMPLETED)])
    records = await backend.fetch([job_id(n) for n in range(3)])
    with psycopg.connect(url) as connection:
        found = dict(connection.execute("SELECT id, updated_at FROM headrace.jobs_v1").fetchall())
    assert found == {UUID(bytes=one.id): to_datetime(one.last_transition) for one in records if one is not None}
    assert len(set(found.values())) == 3
    await backend.close()
