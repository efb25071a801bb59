"""What governed queues and groups cost on Valkey, what they leave behind, and what is done bit by bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.errors import Unavailable
from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import Cancel, Claim, Leased, Reap, Selector, SweepClause, SweepTarget
from headrace.testing.conformance.base import HOUR, LEASE, MINUTE, SECOND, T0, number, row, settle
from headrace.types import JobState
from tests.backends.redis_audit import Audit
from tests.backends.test_redis_costs import commands
from tests.valkey import server, stores

STAYS = {"q", "qn", "qi", "b", "v", "P", "o", "Mn", "fq", "E", "Ej", "Eb"}
"""Keys of a store that has policies and no jobs, and counts what was removed."""


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


def problems() -> list[str]:
    return Audit(server().call).problems()


def left() -> set[str]:
    """The kinds of keys that do not go by themselves."""
    keys = [key.decode() for key in server().call("KEYS", "*") if server().call("PTTL", key) < 0]
    return {key.partition("}:")[2].partition(":")[0] for key in keys}


async def fill(store: RedisBackend, count: int, *, tenants: int, first: int = 0, at: int = T0) -> None:
    """Insert jobs of as many tenants by turns."""
    for begin in range(first, first + count, 1_000):
        numbers = range(begin, min(first + count, begin + 1_000))
        await store.insert([row(n, tenant=f"t{n % tenants:05d}") for n in numbers], at)


async def take(store: RedisBackend, limit: int = 100, *, at: int = T0, holder: str = "w1") -> list[Leased]:
    return (await store.claim(Claim(holder, ("q",), limit, LEASE), at)).jobs


async def work_off(store: RedisBackend, at: int) -> int:
    """Run all that can be run; how many jobs that were."""
    done = 0
    while jobs := await take(store, 500, at=at):
        await store.finish([settle(job, keep=False) for job in jobs], at)
        done += len(jobs)
    return done


# -- costs


async def cost_of_a_turn(store: RedisBackend, jobs: int, tenants: int) -> int:
    """Commands that a claim of 50 and the end of these take."""
    server().call("FLUSHALL")
    await store.policies.save(Policy(queue="q", tenant_workers=1_000), T0)
    await fill(store, jobs, tenants=tenants)
    await fill(store, tenants, tenants=tenants, first=jobs, at=T0 + HOUR)
    await take(store, 1)
    with commands() as asked:
        claimed = await take(store, 50)
        await store.finish([settle(job) for job in claimed], T0)
    assert len(claimed) == 50
    return asked.count()


async def test_what_a_turn_costs_does_not_depend_on_how_many_wait(store: RedisBackend) -> None:
    few = await cost_of_a_turn(store, 1_000, 50)
    assert abs(await cost_of_a_turn(store, 10_000, 500) - few) <= 20
    assert few < 120


async def test_no_claim_walks_over_what_may_not_run(store: RedisBackend) -> None:
    await store.policies.save(Policy(queue="q", tenant_running=1), T0)
    await fill(store, 5_000, tenants=5)
    await store.policies.pause(QueuePause("q", tenant="t00001"), T0)
    await store.policies.pause(QueuePause("q", task="u"), T0)
    await store.insert([row(10_000 + n, task="u", tenant="x") for n in range(1_000)], T0)
    await store.insert([row(20_000 + n, tenant="y", group="g") for n in range(1_000)], T0)
    assert len(await take(store)) == 5
    with commands() as asked:
        assert await take(store) == []
    assert asked.count() < 30


async def test_a_job_without_a_group_reads_nothing_of_groups(store: RedisBackend) -> None:
    await store.insert([row(n, queue="r", group=f"g{n}") for n in range(100)], T0)
    with commands() as asked:
        await store.insert([row(1_000 + n) for n in range(100)], T0)
        jobs = await take(store)
        await store.finish([settle(job) for job in jobs], T0)
    assert len(jobs) == 100
    assert not [words for words in asked.all if any("}:i" in word for word in words)]


async def test_the_next_of_a_group_is_called_at_the_same_cost_however_many_wait(store: RedisBackend) -> None:
    costs = []
    for waiting in (10, 10, 5_000):  # at first the server may have to be told a script
        server().call("FLUSHALL")
        for first in range(0, waiting, 1_000):
            rows = [row(n, group="g") for n in range(first, min(waiting, first + 1_000))]
            await store.insert(rows, T0)
        [job] = await take(store)
        with commands() as asked:
            await store.finish([settle(job)], T0)
            [following] = await take(store)
        assert number(following) == 1
        costs.append(asked.count())
    assert costs[1] == costs[2]


async def test_stats_are_exact_and_cost_the_same_however_many_tenants_there_are(store: RedisBackend) -> None:
    costs = []
    for tenants in (20, 20, 2_000):
        server().call("FLUSHALL")
        await store.insert([row(90_000, tenant="early", delay=HOUR), row(90_001, tenant="early")], T0)
        await store.policies.save(Policy(queue="q", tenant_workers=9), T0)
        await fill(store, tenants, tenants=tenants, at=T0 + SECOND)
        await store.insert([row(91_000 + n, tenant=f"t{n:05d}", delay=MINUTE) for n in range(10)], T0 + SECOND)
        with commands() as asked:
            [stats] = (await store.stats(T0 + MINUTE)).queues
        costs.append(asked.count())
        assert (stats.available, stats.scheduled, stats.oldest_due_age) == (tenants + 12, 11, MINUTE)
    assert costs[1] == costs[2]
    jobs = await take(store, 1_000, at=T0 + 2 * MINUTE)
    while len(jobs) < 1_000:
        jobs += await take(store, 1_000 - len(jobs), at=T0 + 2 * MINUTE)
    late = [settle(job, JobState.AVAILABLE, delay=MINUTE) for job in jobs[:100]]
    await store.finish([*late, *(settle(job) for job in jobs[100:])], T0 + 2 * MINUTE)
    [stats] = (await store.stats(T0 + 2 * MINUTE)).queues
    assert (stats.available, stats.scheduled) == (2_012 - 1_000 + 100, 101)
    assert stats.oldest_due_age == 2 * MINUTE - SECOND
    assert problems() == []
    await work_off(store, T0 + 2 * HOUR)
    [stats] = (await store.stats(T0 + 2 * HOUR)).queues
    assert (stats.available, stats.scheduled, stats.oldest_due_age) == (0, 0, None)
    assert problems() == []


# -- one claim, several steps


async def test_a_lane_that_is_made_again_within_a_claim_goes_by_its_own_task(store: RedisBackend) -> None:
    await store.policies.save(Policy(queue="q", tenant_workers=9), T0)
    await store.policies.pause(QueuePause("q", task="paused"), T0)
    first = row(1, task="t", tenant="x", group="g", expires=SECOND)
    await store.insert([first, row(2, task="paused", tenant="x", group="g")], T0)
    claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + MINUTE)
    assert (claimed.jobs, [job.id for job in claimed.expired]) == ([], [first.id])
    [stats] = (await store.stats(T0 + MINUTE)).queues
    assert (stats.available, stats.scheduled, stats.oldest_due_age) == (1, 0, MINUTE)
    assert problems() == []
    await store.policies.pause(QueuePause("q", task="paused", paused=False), T0 + MINUTE)
    [job] = await take(store, at=T0 + MINUTE)
    assert number(job) == 2
    assert problems() == []


# -- bit by bit


async def test_very_many_jobs_are_brought_into_turns_in_several_steps(store: RedisBackend) -> None:
    await fill(store, 3_500, tenants=7)
    with commands() as asked:
        await store.policies.save(Policy(queue="q", tenant_workers=9, tenant_batch=1), T0)
    assert max(call.read("j") for call in asked.calls()) <= 1_000
    assert problems() == []
    jobs = await take(store, 14)
    assert Counter(job.tenant for job in jobs) == {f"t{n:05d}": 2 for n in range(7)}
    cancelled = await store.alter(Selector(queue="q", tenant="t00003", limit=10_000), Cancel(), T0)
    assert sum(one.after is not None and one.after.terminal for one in cancelled) == 498
    assert problems() == []
    assert await work_off(store, T0) == 3_500 - 14 - 498
    assert problems() == []


async def test_very_many_tenants_are_woken_by_the_claims_that_follow(store: RedisBackend) -> None:
    await store.policies.save(Policy(queue="q", rate=Rate(HOUR)), T0)
    await fill(store, 2_500, tenants=2_500)
    await store.policies.pause(QueuePause("q", task="t"), T0)
    while (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).next_in == 0:
        pass
    await store.policies.pause(QueuePause("q", task="t", paused=False), T0)
    [found] = await store.policies.find(["q"], T0)
    assert await store.policies.save(Policy(queue="q", version=found.policy.version), T0)
    assert problems() == []
    done = 0
    while (claimed := await store.claim(Claim("w1", ("q",), 500, LEASE), T0)).jobs or claimed.next_in == 0:
        done += len(claimed.jobs)
    assert done == 2_500
    assert problems() == []


async def test_very_many_groups_get_their_turns_in_several_steps(store: RedisBackend) -> None:
    for first in range(0, 4_800, 800):
        await store.insert([row(n, group=f"g{n % 1_200}") for n in range(first, first + 800)], T0)
    with commands() as asked:
        assert await store.policies.save(Policy(queue="q", group_running=2), T0)
    assert len(asked.calls()) > 2
    assert max(call.count() for call in asked.calls()) < 8_000
    jobs = [*await take(store, 1_200), *await take(store, 2_000)]
    assert Counter(job.group for job in jobs) == {f"g{n}": 2 for n in range(1_200)}
    assert problems() == []


@pytest.mark.parametrize("governed", [True, False])
async def test_a_group_of_very_many_is_called_and_sent_back_in_several_steps(
    governed: bool, store: RedisBackend
) -> None:
    batch = 1_000 if governed else None
    for first in range(0, 3_000, 1_000):
        await store.insert([row(n, group="g", tenant=f"t{n % 5}") for n in range(first, first + 1_000)], T0)
    await store.insert([row(3_000 + n, group=f"g{n}") for n in range(20)], T0)
    for version, (running, called) in enumerate([(3_000, 3_000), (7, 7), (2_000, 2_000), (1, 1)]):
        rules = Policy(queue="q", version=version, tenant_batch=batch, group_running=running)
        with commands() as asked:
            await store.policies.save(rules, T0)
        assert len((await store.policies.group("q", "g")).called) == called
        assert max(script.count() for script in asked.calls()) < 6_000
    await store.policies.save(Policy(queue="q", version=4, tenant_batch=batch, group_running=2_000), T0)
    got: list[int] = []
    while len(got) < 1_000:
        got += map(number, await take(store, 1_000))
    with commands() as asked:
        await store.policies.save(Policy(queue="q", version=5, tenant_batch=batch, group_running=1_010), T0)
    assert max(script.count() for script in asked.calls()) < 6_000
    while more := await take(store, 1_000):
        got += map(number, more)
    assert len([n for n in got if n < 3_000]) == 1_010
    assert len(got) == 1_030
    assert problems() == []


@pytest.mark.parametrize("helper", ["claim", "reap", "save"])
async def test_an_interrupted_change_of_turns_is_brought_to_its_end(
    helper: str, store: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 2_600, 650):
        await store.insert([row(n, group=f"g{n % 1_300}") for n in range(first, first + 650)], T0)
    if helper == "claim":
        await store.policies.pause(QueuePause("q", tenant="x"), T0)
        while (await store.claim(Claim("w1", ("q",), 0, LEASE), T0)).next_in == 0:
            pass
    run = store.policies._run

    async def interrupted(name: str, *args: Any) -> Any:
        if name == "steps":
            raise Unavailable("away")
        return await run(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(store.policies, "_run", interrupted)
        with pytest.raises(Unavailable):
            await store.policies.save(Policy(queue="q", group_running=2), T0)
    assert server().call("HLEN", "headrace{jobs}:ir") == 1
    assert problems() == []
    if helper == "save":
        assert await store.policies.save(Policy(queue="q", version=1, group_running=2), T0)
    for _ in range(10 if helper != "save" else 0):
        await (take(store, 1) if helper == "claim" else store.reap(Reap(), T0))
    assert server().call("HLEN", "headrace{jobs}:ir") == 0
    assert problems() == []
    assert await work_off(store, T0) == 2_600 - (10 if helper == "claim" else 0)


# -- what is said of them


async def test_tenants_above_the_one_without_a_name_are_all_but_that(store: RedisBackend) -> None:
    await store.policies.save(Policy(queue="q", tenant_workers=9), T0)
    await store.insert([row(1), row(2, tenant="a"), row(3, tenant="b")], T0)
    for names in (None, ["", "a", "b"]):
        found = [await store.policies.tenants("q", names, after, at=T0) for after in (None, "", "a", "b")]
        assert [[one.tenant for one in page] for page in found] == [["", "a", "b"], ["a", "b"], ["b"], []]


# -- what is left behind


@pytest.mark.parametrize("rules", [Policy(queue="q", tenant_workers=2), Policy(queue="q", tenant_rate=Rate(SECOND, 5))])
async def test_tenants_and_groups_that_are_gone_leave_nothing_behind(rules: Policy, store: RedisBackend) -> None:
    await store.policies.save(rules, T0)
    await store.policies.limit(TenantLimit("q", "t00001", 1), T0)
    await store.policies.pause(QueuePause("q", tenant="t00002", lasts=SECOND), T0)
    await store.insert(
        [row(5_000 + n, group=f"g{n % 7}", tenant=f"t{n % 9:05d}", expires=LEASE) for n in range(50)], T0
    )
    await fill(store, 600, tenants=60)
    await take(store, 20, holder="lost")
    at = T0
    for _ in range(200):
        await store.reap(Reap(), at)
        await work_off(store, at)
        at += SECOND
    await store.policies.limit(TenantLimit("q", "t00001"), at)
    for place in (SweepTarget.COMPLETED, SweepTarget.CANCELLED, SweepTarget.FAILED):
        await store.sweep(SweepClause(target=place, older_than=0), at)
    assert problems() == []
    await store.sweep(SweepClause(target=SweepTarget.TENANTS), at + 20 * MINUTE)
    assert problems() == []
    assert left() - {"of"} <= STAYS
    assert server().call("HLEN", "headrace{jobs}:M") == 0
