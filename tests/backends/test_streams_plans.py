"""The plans of what PostgreSQL does for windows: the same few rows are touched, however many jobs wait."""

from __future__ import annotations

import psycopg
import pytest

from headrace.backends.streams.deliveries import Delivery, Known
from headrace.backends.streams.truth import Truth
from headrace.seam.records import Settlement
from headrace.types import JobState
from tests.backends.test_postgres_plans import BATCH, LEASE, explained, fill
from tests.postgres import server

SCHEMA = "window_plans"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("depth", [10_000, 200_000])
async def test_a_window_is_fed_and_settled_by_indexes(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with explained(SCHEMA, monkeypatch, Truth) as (truth, plans):
        with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
            fill(connection, depth)
        await truth.name_streams()
        charge = await truth.take_charge("run", 0, None)
        assert charge is not None
        plans.scans.clear()
        found = await truth.candidates(charge.floor, "q", BATCH, None, LEASE, 16_384, None)
        assert found is not None
        assert len(found.line) == BATCH
        assert plans.ways() == {("ready", "ready_line"), ("ready", "ready_later")}
        assert plans.touched() <= BATCH + 2
        plans.scans.clear()
        found = await truth.candidates(charge.floor, "q", BATCH, found.line[-1], LEASE, 16_384, None)
        assert found is not None
        assert plans.touched() <= BATCH + 2
        plans.scans.clear()
        ids = [one.id for one in found.line]
        assert len(await truth.feed(ids)) == BATCH
        assert plans.ways() == {("ready", "ready_pkey"), ("jobs", "jobs_pkey")}
        assert plans.touched() <= 2 * BATCH
        plans.scans.clear()
        epoch = charge.now + 1
        batch = [Settlement(one, epoch, "w", JobState.COMPLETED) for one in ids[:50]]
        given = Known(charge.floor, {(one, epoch, "w") for one in ids[:50]})
        assert await truth.finish_given(batch, given, None) == [JobState.COMPLETED] * 50
        assert ("ready", "ready_pkey") in plans.ways()
        assert not {way for way in plans.ways() if way[1] == "Seq Scan"}
        assert plans.touched() <= 3 * BATCH
        plans.scans.clear()
        taken = await truth.take_over([Delivery(one, epoch, "w", LEASE, False, charge.floor) for one in ids[50:]], None)
        assert len(taken) == 50
        assert plans.ways() == {("ready", "ready_pkey")}
        assert plans.touched() <= BATCH
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
