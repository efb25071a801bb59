"""What claims and inserts cost a Valkey server does not depend on what users choose: priorities, tasks, tenants,
queues. Counted in commands, which no neighbour can make slower."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Delete,
    JobId,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Reschedule,
    Row,
    Selector,
    Watch,
)  # fmt: skip
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, number, row, settle
from headrace.types import JobState
from tests.backends.test_redis_audit import problems
from tests.backends.test_redis_costs import BASE, commands
from tests.valkey import stores

FEW, MANY = 10, 4_000
FIRST = 100_000
"""The number of the first job that is put beside the others."""


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


async def put(store: RedisBackend, rows: Sequence[Row]) -> None:
    for first in range(0, len(rows), 1_000):
        await store.insert(rows[first : first + 1_000], T0)


async def cost(call: Callable[[], Awaitable[object]]) -> int:
    """The commands of the longest script."""
    with commands() as asked:
        await call()
    return max(script.count() for script in asked.calls())


async def costs(store: RedisBackend, kinds: int, make: Callable[[int, int], Row], numbers: int) -> tuple[int, ...]:
    """Of a claim and of inserts beside jobs of so many kinds."""
    await put(store, [make(n, kinds) for n in range(numbers)])
    rows = [make(FIRST + kinds + n, kinds) for n in range(20)]
    claim = Claim("w1", ("q",), 10, LEASE)
    return (
        await cost(lambda: store.claim(claim, T0)),
        await cost(lambda: store.insert(rows[:1], T0)),
        await cost(lambda: store.insert(rows[1:], T0)),
    )


def due(n: int, kinds: int) -> Row:
    return row(n, priority=n % kinds - 1_000)


def coming(n: int, kinds: int) -> Row:
    return row(n, priority=n % kinds - 1_000, delay=HOUR)


def of_tenant(n: int, kinds: int) -> Row:
    return row(n, tenant="t", priority=n % kinds - 1_000)


def of_tasks(n: int, kinds: int) -> Row:
    return row(n, tenant="t", task=f"task-{n % kinds}")


@pytest.mark.parametrize(("make", "governed"), [(due, False), (coming, False), (of_tenant, True), (of_tasks, True)])
async def test_a_claim_and_an_insert_cost_the_same_beside_any_number_of_priorities_and_tasks(
    store: RedisBackend, make: Callable[[int, int], Row], governed: bool
) -> None:
    found = []
    for kinds in (FEW, MANY):
        queue = store.sibling()
        await queue.open()
        await stores_blank(queue)
        if governed:
            await queue.policies.save(Policy(queue="q", tenant_batch=10), T0)
        found.append(await costs(queue, kinds, make, MANY))
        assert problems() == []
        await queue.close()
    few, many = found
    assert all(other <= 1.5 * one + 30 for one, other in zip(few, many, strict=True)), found


async def stores_blank(store: RedisBackend) -> None:
    await store._connections.call(store._base, "FLUSHALL")


@pytest.mark.parametrize("delay", [0, HOUR])
async def test_a_claim_that_names_very_many_queues_asks_for_all_of_them_at_once(
    store: RedisBackend, delay: int
) -> None:
    names = tuple(f"queue-{n}" for n in range(MANY))
    await put(store, [row(n, queue=name, delay=delay) for n, name in enumerate(names)])
    with commands() as asked:
        claimed = await store.claim(Claim("w1", names, 10, LEASE), T0)
    assert len(claimed.jobs) == (10 if delay == 0 else 0)
    assert claimed.next_in == (None if delay == 0 else HOUR)
    assert asked.count() < 700
    assert problems() == []


async def test_a_trickle_lists_the_level_of_its_job_once_and_no_more(store: RedisBackend) -> None:
    """What is written goes to the append-only file, and to replicas."""
    await put(store, [row(1)])
    await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
    with commands() as asked:
        await put(store, [row(2)])
        [job] = (await store.claim(Claim("w1", ("q",), 10, LEASE), T0)).jobs
        await store.finish_and_claim([settle(job)], Claim("w1", ("q",), 10, LEASE), T0)
    levels = [words for words in asked.all if words[0] in ("ZADD", "ZREM") and words[1].startswith(f"{BASE}:p")]
    assert [words[:2] for words in levels] == [["ZADD", f"{BASE}:pq"], ["ZREM", f"{BASE}:pq"]]
    assert problems() == []


async def test_of_many_queues_with_due_jobs_none_is_left(store: RedisBackend) -> None:
    names = tuple(f"queue-{n}" for n in range(1_500))
    await put(store, [row(n, queue=name, priority=n % 3) for n, name in enumerate(names)])
    found = []
    while jobs := (await store.claim(Claim("w1", names, 400, LEASE), T0)).jobs:
        assert [job.priority for job in jobs] == sorted(job.priority for job in jobs)
        found += map(number, jobs)
    assert sorted(found) == [*range(1_500)]
    assert problems() == []


async def test_of_very_many_governed_queues_a_claim_visits_some_and_the_next_others(store: RedisBackend) -> None:
    names = tuple(f"queue-{n}" for n in range(300))
    for name in names:
        await store.policies.save(Policy(queue=name, tenant_batch=10), T0)
    await put(store, [row(n, queue=name) for n, name in enumerate(names)])
    found: list[int] = []
    at = T0
    for _ in range(60):
        claimed = await store.claim(Claim("w1", names, 1_000, LEASE), at)
        found += map(number, claimed.jobs)
        at += 7_777
        if claimed.next_in is None:
            break
        assert claimed.next_in > 0
    assert sorted(found) == [*range(300)]
    with commands() as asked:
        assert (await store.claim(Claim("w1", names, 1_000, LEASE), at)).next_in is None
    assert asked.count() < 1_500
    assert problems() == []


async def test_numbers_of_very_many_queues_and_levels_are_asked_for_in_several_steps(store: RedisBackend) -> None:
    await put(store, [row(n, queue=f"queue-{n}", delay=HOUR) for n in range(2_000)])
    await put(store, [row(10_000 + n, priority=n, run_at=T0 - n) for n in range(3_000)])
    with commands() as asked:
        stats = await store.stats(T0)
    assert len(stats.queues) == 2_001
    assert [queue.oldest_due_age for queue in stats.queues if queue.queue == "q"] == [2_999]
    assert sum(queue.scheduled for queue in stats.queues) == 2_000
    assert max(script.count() for script in asked.calls()) < 4_000


async def test_a_change_for_one_tenant_touches_no_other(store: RedisBackend) -> None:
    await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    await put(store, [row(n, tenant=f"t{n}") for n in range(3_000)])
    assert await cost(lambda: store.policies.limit(TenantLimit("q", "t7", 1), T0)) < 60
    for paused in (True, False):
        pause = QueuePause("q", "t7", paused=paused)
        assert await cost(lambda: store.policies.pause(pause, T0)) < 60  # noqa: B023
    assert problems() == []


async def test_a_queue_becomes_governed_in_steps_whatever_runs(store: RedisBackend) -> None:
    """Nothing is given out before all that runs is counted."""
    await put(store, [row(n, queue="qr"[n % 2], tenant="t") for n in range(4_000)])
    for _ in range(4):
        await store.claim(Claim("w1", ("q", "r"), 1_000, LEASE, max_bytes=1 << 30), T0)
    with commands() as asked:
        await store.policies.save(Policy(queue="q", tenant_running=2_001), T0)
    assert len(asked.calls()) > 2
    assert max(script.count() for script in asked.calls()) < 5_000
    await put(store, [row(FIRST + n, tenant="t") for n in range(5)])
    assert [job.id for job in (await store.claim(Claim("w1", ("q",), 5, LEASE), T0)).jobs] == [job_id(FIRST)]
    assert problems() == []


async def test_a_worker_of_very_many_queues_beats_at_the_cost_of_few(store: RedisBackend) -> None:
    names = tuple(f"queue-{n}" for n in range(MANY))
    await put(store, [row(n, queue=name) for n, name in enumerate(names)])
    await store.policies.pause(QueuePause(names[5]), T0)
    with commands() as asked:
        renewed = await store.renew(Beat("h", "w", names, LEASE), T0)
    assert renewed.paused == [names[5]]
    assert asked.count() < 60


async def test_more_queues_than_one_call_looks_at_are_claimed_from_in_several(
    store: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.backends.redis.shard._NAMED", 3)
    names = tuple(f"queue-{n}" for n in range(8))
    await put(store, [row(n, queue=name) for n, name in enumerate(names)])
    await put(store, [row(100, queue=names[4], delay=HOUR)])
    first = await store.claim(Claim("w1", names, 5, LEASE), T0)
    assert (len(first.jobs), first.next_in) == (5, None)
    rest = await store.claim(Claim("w1", names, 5, LEASE), T0)
    assert sorted(map(number, (*first.jobs, *rest.jobs))) == [*range(8)]
    assert rest.next_in == HOUR
    heavy = Claim("w1", names, 5, LEASE, max_bytes=1)
    await put(store, [row(200 + n, queue=name) for n, name in enumerate(names)])
    claimed = await store.claim(heavy, T0)
    assert (len(claimed.jobs), claimed.next_in) == (1, 0)


async def test_a_turn_finds_what_its_own_settlements_have_made_free(store: RedisBackend) -> None:
    """In governed queues that had nothing to give before."""
    names = ("q", "r")
    for name in names:
        await store.policies.save(Policy(queue=name, running=1), T0)
    await put(store, [row(n, queue=names[n % 2]) for n in range(6)])
    claimed = await store.claim(Claim("w1", names, 10, LEASE), T0)
    assert len(claimed.jobs) == 2
    assert (await store.claim(Claim("w1", names, 10, LEASE), T0)).jobs == []
    _, claimed = await store.finish_and_claim([settle(job) for job in claimed.jobs], Claim("w1", names, 10, LEASE), T0)
    assert sorted(map(number, claimed.jobs)) == [2, 3]


def to_queues(n: int) -> Row:
    return row(n, queue=f"queue-{n}", tenant=f"t{n}")


def to_tenants(n: int) -> Row:
    return row(n, tenant=f"t{n}", key=f"k{n}")


def to_lanes(n: int) -> Row:
    return row(n, tenant=f"t{n % 20}", task=f"task-{n}", priority=n % 7)


def to_groups(n: int) -> Row:
    return row(n, tenant=f"t{n}", group=f"g{n % 500}", key=f"k{n}", expires=HOUR, reply_to="me")


def to_one_group(n: int) -> Row:
    return row(n, tenant=f"t{n % 3}", group="g", key=f"k{n}")


@pytest.mark.parametrize("governed", [False, True])
@pytest.mark.parametrize("make", [to_queues, to_tenants, to_lanes, to_groups, to_one_group])
async def test_no_script_makes_very_many_steps(store: RedisBackend, make: Callable[[int], Row], governed: bool) -> None:
    """Whatever a batch names: it goes in pieces, and what a claim leaves is had by the next."""
    rows = [make(n) for n in range(1_000)]
    names = tuple(dict.fromkeys(one.queue for one in rows))
    for name in names if governed else ():
        await store.policies.save(Policy(queue=name, tenant_running=100), T0)
    with commands() as inserting:
        await store.insert(rows, T0)
    claim = Claim("w1", names, 1_000, LEASE, max_bytes=1 << 30)
    at, found, jobs = T0, [], []
    with commands() as working:
        for _ in range(150):
            settled, claimed = await store.finish_and_claim([settle(job) for job in jobs], claim, at)
            assert settled == [JobState.COMPLETED] * len(jobs)
            jobs = claimed.jobs
            found += map(number, jobs)
            if not jobs and claimed.next_in is None:
                break
            assert claimed.next_in is None or claimed.next_in < SECOND or claimed.jobs
            at += 7_777
    assert sorted(found) == [*range(len(found) if make is to_one_group else len(rows))]
    assert problems() == []
    assert max(script.count() for script in inserting.calls()) < 3_500
    assert max(script.count() for script in working.calls()) < 5_000


async def put_all_sorts(store: RedisBackend, jobs: int, **changes: Any) -> list[JobId]:
    """Jobs with a tenant, a key and a group of their own, in a governed queue."""
    await store.policies.save(Policy(queue="q", tenant_batch=10), T0)
    await put(store, [row(n, tenant=f"t{n}", key=f"k{n}", group=f"g{n}", **changes) for n in range(jobs)])
    return [job_id(n) for n in range(jobs)]


CHANGES = [Delete(), Cancel(), Pause(), Move("r"), Reprioritise(5), Reschedule(HOUR), Watch("in")]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *((change, "by ids") for change in CHANGES),
        (Delete(), "by keys"), (Cancel(), "by keys"), (Move("r"), "by both"), (Cancel(), "by both"),
        (Delete(), "by a filter"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_change_of_very_many_jobs_goes_in_pieces(store: RedisBackend, change: Change, named: str) -> None:
    """Each job is met once, in the order named."""
    ids = await put_all_sorts(store, 1_000)
    keys = [JobKey("q", f"k{n}") for n in range(1_000)]
    selector = {
        "by ids": Selector(ids=[*reversed(ids), *ids]),
        "by keys": Selector(keys=[*reversed(keys), JobKey("q", "unknown"), *keys]),
        "by both": Selector(ids=[*reversed(ids[500:]), bytes(16)], keys=[*reversed(keys), *keys]),
        "by a filter": Selector(queue="q", limit=1_000),
    }[named]
    with commands() as asked:
        answers = await store.alter(selector, change, T0)
    assert [answer.id for answer in answers] == (ids if named == "by a filter" else ids[::-1])
    assert all(answer.changed for answer in answers)
    assert max(script.count() for script in asked.calls()) < 5_000
    assert problems() == []


async def test_any_number_of_jobs_may_be_named(store: RedisBackend) -> None:
    ids = await put_all_sorts(store, MANY)
    assert await cost(lambda: store.alter(Selector(ids=ids), Delete(), T0)) < 5_000
    assert (await store.stats(T0)).queues == []


@pytest.mark.parametrize("end", ["they wait again", "they are dead", "they are cancelled"])
async def test_a_reap_of_very_many_leases_goes_in_pieces(store: RedisBackend, end: str) -> None:
    """Oldest expiry first, and spread as if it were one step."""
    ids = await put_all_sorts(store, 1_000)
    leased: list[JobId] = []
    while len(leased) < len(ids):
        claim = Claim("gone", ("q",), 1_000, LEASE)
        leased += [job.id for job in (await store.claim(claim, T0 + len(leased))).jobs]
    if end == "they are cancelled":
        await store.alter(Selector(ids=ids), Cancel(), T0)
    at = T0 + HOUR
    with commands() as asked:
        reaped = await store.reap(Reap(max_lost=0 if end == "they are dead" else 2, spread=1_000 * SECOND), at)
    assert {job.id for job in reaped} == set(ids)
    assert max(script.count() for script in asked.calls()) < 5_000
    assert problems() == []
    if end == "they wait again":
        found = await store.fetch([job.id for job in reaped], at=at)
        assert [record and record.run_at for record in found] == [at + n * SECOND for n in range(1_000)]


@pytest.mark.parametrize("groups", [1, 1_000])
async def test_a_reap_cancels_very_many_expired_jobs_in_pieces(store: RedisBackend, groups: int) -> None:
    """And calls none of them when another of their group ends."""
    await store.policies.save(Policy(queue="q", tenant_batch=10), T0)
    rows = [row(n, tenant=f"t{n}", key=f"k{n}", group=f"g{n % groups}", expires=SECOND) for n in range(1_000)]
    await put(store, [*rows, *(row(2_000 + n, group=f"g{n}") for n in range(groups))])
    with commands() as asked:
        reaped = await store.reap(Reap(limit=2_000), T0 + SECOND)
    assert [job.id for job in reaped] == [one.id for one in rows]
    assert max(script.count() for script in asked.calls()) < 5_000
    called = [words for words in asked.all if words[0] == "ZADD" and words[1].startswith(f"{BASE}:ic:1:")]
    assert len(called) == groups
    assert problems() == []


@pytest.mark.parametrize("rated", [True, False])
async def test_rates_of_other_tasks_cost_a_claim_nothing(store: RedisBackend, rated: bool) -> None:
    """Neither commands, nor bytes that each script reads."""
    found = []
    for rules in (1, 10_000):
        await stores_blank(store)
        task = "task-0" if rated else "unrated"
        rates = {f"task-{n}": Rate(SECOND, 100) for n in range(rules)}
        await store.policies.save(Policy(queue="q", task_rates=rates), T0)
        await store.insert([row(n, task=task) for n in range(10)], T0)
        claiming = await cost(lambda: store.claim(Claim("w1", ("q",), 5, LEASE), T0))
        inserting = await cost(lambda: store.insert([row(100, task=task)], T0))  # noqa: B023
        found.append((claiming, inserting, await store._connections.call(BASE, "HSTRLEN", f"{BASE}:P", 1)))
        [state] = await store.policies.find(["q"], T0)
        assert state.policy.task_rates == rates
    few, many = found
    assert few == many
