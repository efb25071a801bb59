"""A tenant with thousands of tasks in a governed queue on SQLite."""

from __future__ import annotations

from pathlib import Path

from headrace.backends.sqlite import SqliteBackend
from headrace.seam.policy import Policy
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, SECOND, T0, number, row

TASKS = 1_500


async def test_all_jobs_of_a_tenant_with_very_many_tasks_come_in_the_end(tmp_path: Path) -> None:
    store = SqliteBackend(tmp_path / "jobs.db")
    await store.open()
    assert await store.policies.save(Policy(queue="q", tenant_batch=10), T0)
    await store.insert([row(n, task=f"t{n:05}", delay=SECOND * (n % 2)) for n in range(TASKS)], T0)
    found: list[int] = []
    at = T0
    for _ in range(40):
        claimed = await store.claim(Claim("w", ("q",), 200, LEASE), at)
        found += [number(job) for job in claimed.jobs]
        if at < T0 + SECOND and len(found) >= TASKS // 2:
            assert sorted(found) == [*range(0, TASKS, 2)]
        if claimed.next_in is None and len(claimed.jobs) < 200:
            break
        at += 777 + (claimed.next_in or 0)
    assert sorted(found) == [*range(TASKS)]
    assert at >= T0 + SECOND
    await store.close()
