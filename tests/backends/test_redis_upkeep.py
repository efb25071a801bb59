"""What the Valkey store keeps beside jobs goes with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from headrace.backends.redis import RedisBackend
from headrace.seam.policy import QueuePause
from headrace.seam.records import Beat, Cancel, Claim, Delete, Reap, Selector
from headrace.testing.conformance.base import LEASE, T0, job_id, row, settle
from tests.valkey import every_operation, server, stores


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


def keys() -> set[str]:
    """What there is, without the store's prefix."""
    return {key.decode().partition("}:")[2] for key in server().call("KEYS", "*")}


async def test_queues_without_jobs_are_forgotten(store: RedisBackend) -> None:
    await store.insert([row(n, queue=f"q{n}") for n in range(30)], T0)
    claimed = await store.claim(Claim("w1", tuple(f"q{n}" for n in range(30)), 100, LEASE), T0)
    await store.finish([settle(job, keep=False) for job in claimed.jobs[1:]], T0)
    while server().call("HLEN", "headrace{jobs}:q") > 1:
        await store.reap(Reap(), T0)
    assert server().call("HKEYS", "headrace{jobs}:q") == [b"q0"]
    assert server().call("HLEN", "headrace{jobs}:qn") == 1
    [record] = await store.fetch([job_id(0)])
    assert record is not None
    assert record.queue == "q0"
    await store.insert([row(40, queue="q5")], T0)
    [job] = (await store.claim(Claim("w1", ("q5",), 1, LEASE), T0)).jobs
    assert job.id == job_id(40)


async def test_a_paused_queue_is_not_forgotten(store: RedisBackend) -> None:
    await store.policies.pause(QueuePause("q"))
    await store.reap(Reap(), T0)
    await store.insert([row(1)], T0)
    assert not (await store.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs


@pytest.mark.parametrize("entry", ["", "\xc1", "x", "\x91\x01"])
async def test_a_worker_whose_entry_cannot_be_read_is_listed_anew(store: RedisBackend, entry: str) -> None:
    await store.insert([row(1)], T0)
    await store.claim(Claim("w1", ("q",), 1, LEASE), T0)
    server().call("HSET", "headrace{jobs}:W", "w2", entry.encode("latin-1"))
    late = T0 + LEASE + 1
    assert await store.reap(Reap(holder="w2"), late) == []
    await store.renew(Beat("w2", "w2", ("q",), LEASE, ttl=60 * LEASE), late)
    [taken] = await store.reap(Reap(holder="w2", gap=LEASE, steady=LEASE), late + LEASE)
    assert taken.id == job_id(1)


async def test_a_tenants_jobs_are_found_without_a_look_at_the_others(store: RedisBackend) -> None:
    await store.insert(
        [row(n, tenant="big") for n in range(500)] + [row(600 + n, tenant="small") for n in range(3)], T0
    )
    server().call("CONFIG", "RESETSTAT")
    page = await store.scan(Selector(tenant="small"))
    assert [record.id for record in page.records] == [job_id(602), job_id(601), job_id(600)]
    assert len(await store.alter(Selector(tenant="small", limit=10), Cancel(), T0)) == 3
    looked = server().info("commandstats")["cmdstat_hget"].partition("calls=")[2].partition(",")[0]
    assert int(looked) < 100


async def test_a_tenants_list_goes_with_its_last_job(store: RedisBackend) -> None:
    await store.insert([row(n, tenant="t") for n in range(4)], T0)
    claimed = await store.claim(Claim("w1", ("q",), 2, LEASE), T0)
    await store.finish([settle(job, keep=False) for job in claimed.jobs], T0)
    assert {"u", "u:t"} <= keys()
    await store.alter(Selector(ids=[job_id(2), job_id(3)]), Delete(), T0)
    assert not {"u", "u:t"} & keys()


def test_every_operation_on_uvloop(tmp_path: Path) -> None:
    async def work() -> None:
        backend = stores.connect(tmp_path)
        await backend.open()
        try:
            await every_operation(backend)
        finally:
            await backend.close()

    uvloop.run(work())


async def test_a_census_beside_more_leases_than_one_call_renews_tells_what_has_run_out(store: RedisBackend) -> None:
    await store.insert([row(1)], T0)
    await store.claim(Claim("vanished", ("q",), 1, LEASE), T0)
    unknown = [(job_id(number), 1) for number in range(2, 1_100)]
    renewed = await store.renew(Beat("w1", "w1", ("q",), LEASE, unknown, census=True), T0 + LEASE + 1)
    assert renewed.overdue
    assert len(renewed.lost) == len(unknown)
