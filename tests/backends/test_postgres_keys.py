"""What a keyed job costs PostgreSQL does not depend on how many keys are held."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from headrace.seam.records import Claim, SweepClause, SweepTarget
from headrace.testing.conformance.base import LEASE, row, settle
from headrace.types import JobState
from tests import postgres

HELD = 3_000
MANY = 100


def _entries_read() -> int:
    """Of the index of keys, by connections that are closed."""
    with psycopg.connect(postgres.server().url(), autocommit=True) as connection:
        [[found]] = connection.execute(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname = 'keys_pkey'",
            (postgres.SCHEMA,),
        )
    return int(found)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
async def test_the_end_of_a_keyed_job_looks_for_its_own_key_alone(tmp_path: Path, state: JobState) -> None:
    store = postgres.stores.connect(tmp_path)
    await store.open()
    for first in range(0, HELD, 1_000):
        await store.insert([row(n, key=f"k{n}") for n in range(first, first + 1_000)])
    jobs = (await store.claim(Claim("w1", ("q",), MANY, LEASE))).jobs
    await store.close()
    before = _entries_read()
    await store.open()
    await store.finish([settle(job, state, result_ttl=LEASE) for job in jobs])
    swept = await store.sweep(SweepClause(target=SweepTarget(state.value), max_count=0))
    assert swept.removed == MANY
    await store.close()
    assert _entries_read() - before <= 20 * MANY
