"""What a call may meet in a store: very many jobs, tenants, groups or rules beside what it asks for."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from benchmarks.studies import hostile_cases as full
from benchmarks.studies.hostile_cases import HOLDER, Case, leased, row, rows
from headrace.seam import records as r
from headrace.seam.policy import Policy, QueuePause, TenantLimit
from headrace.seam.protocol import Backend, PolicyStore
from headrace.types import JobState

_LEASE = 3_600_000_000
_HOUR = 3_600_000_000
_MANY = 10
"""So many full batches lie beside."""

Calls = AsyncIterator[Callable[[], Awaitable[object]]]


def _rules(store: Backend) -> PolicyStore:
    assert store.policies is not None
    return store.policies


def _claim(limit: int, *queues: str, holder: str = HOLDER) -> r.Claim:
    return r.Claim(holder, queues or ("q",), limit, _LEASE)


async def _fill(store: Backend, **more: Any) -> None:
    """Many full batches. What is a string is another one in each row."""
    for turn in range(_MANY):
        mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
        await store.insert(rows(**mine))


async def delayed_of_few_queues(store: Backend) -> Calls:
    """Claims of ten jobs from ten queues, in each of which a full batch of delayed jobs has just become due."""
    queues = tuple(f"q{number}" for number in range(10))
    while True:
        for queue in queues:
            await store.insert([row(queue, delay=1) for _ in range(full.FULL)])
        yield lambda: store.claim(_claim(10, *queues))


async def delayed_of_one_queue(store: Backend) -> Calls:
    """Claims from a full batch of queues: each has delayed jobs, but all that have become due lie in one of them."""
    await store.insert(rows(queue="q", delay=_HOUR))
    queues = tuple(f"q{number}" for number in range(full.FULL))
    while True:
        await store.insert([row("q7", delay=1) for _ in range(full.FULL)])
        yield lambda: store.claim(_claim(full.FULL, *queues))


async def urgent_of_one_queue(store: Backend) -> Calls:
    """Claims from a full batch of queues: each has jobs, but all that are urgent lie in one of them."""
    await store.insert(rows(queue="q"))
    queues = tuple(f"q{number}" for number in range(full.FULL))
    while True:
        await store.insert([row("q7", priority=-1) for _ in range(full.FULL)])
        yield lambda: store.claim(_claim(full.FULL, *queues))


def expired(rule: Policy | None = None, **more: Any) -> Case:
    """Claims that meet very many jobs that have expired, and cancel some."""

    async def case(store: Backend) -> Calls:
        if rule is not None:
            await _rules(store).save(rule)
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            await store.insert(rows(expires=1, priority=-1, **mine))
            await store.insert(rows(expires=1, delay=1, **{name: f"{value}d" for name, value in mine.items()}))
            yield lambda: store.claim(_claim(full.FULL))

    return case


def alters_all(change: r.Change, **more: Any) -> Case:
    """A change of all jobs of a queue, as many as one call meets, beside many of another queue."""

    async def case(store: Backend) -> Calls:
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            await store.insert(rows(**mine))
            await store.insert([row("beside") for _ in range(full.FULL)])
            sel = r.Selector(queue="q", states=frozenset({JobState.AVAILABLE}), limit=full.FULL)
            yield lambda sel=sel: store.alter(sel, change)  # type: ignore[misc]

    return case


async def alters_few(store: Backend) -> Calls:
    """A change of jobs that a filter finds hardly anywhere."""
    await _fill(store, tenant="t")
    while True:
        yield lambda: store.alter(r.Selector(queue="q", tenant="none", limit=full.FULL), r.Cancel())


async def scans(store: Backend) -> Calls:
    """Full pages, and pages of what a filter finds hardly anywhere, beside many jobs."""
    await _fill(store, tenant="t")
    while True:
        yield lambda: store.scan(r.Selector(queue="q"), limit=full.FULL)
        yield lambda: store.scan(r.Selector(queue="q", task="none"), limit=full.FULL)
        yield lambda: store.scan(r.Selector(tenant="none"), limit=full.FULL)
        yield lambda: store.scan(r.Selector(states=frozenset({JobState.FAILED})), limit=full.FULL)


async def out_of_order(store: Backend) -> Calls:
    """Jobs of one group, in a governed queue, each due before the one that came before it; and a claim."""
    await _rules(store).save(Policy(queue="q", tenant_batch=1))
    for turn in itertools.count():
        last = time.time_ns() // 1_000
        batch = [row(group=f"g{turn}", run_at=last - number, tenant="t") for number in range(full.FULL)]
        yield lambda batch=batch: store.insert(batch)  # type: ignore[misc]
        yield lambda: store.claim(_claim(full.FULL))


def several_of_a_group(groups: int) -> Case:
    """Jobs of groups of which a hundred may run at once: a claim, their ends, and a change of that number."""

    async def case(store: Backend) -> Calls:
        number, version = 100, 0
        await _rules(store).save(Policy(queue="q", group_running=number))
        for turn in itertools.count():
            batch = [row(group=f"g{turn}-{n % groups}") for n in range(full.FULL)]
            yield lambda batch=batch: store.insert(batch)  # type: ignore[misc]
            found: list[r.Leased] = []
            while jobs := (await store.claim(_claim(full.FULL))).jobs:
                found += jobs
            ends = [r.Settlement(job.id, job.epoch, HOLDER, JobState.COMPLETED) for job in found]
            yield lambda ends=ends: store.finish(ends)  # type: ignore[misc]
            yield lambda: store.claim(_claim(full.FULL))
            number, version = 101 if number == 100 else 100, version + 1
            policy = Policy(queue="q", version=version, group_running=number)
            yield lambda policy=policy: _rules(store).save(policy)  # type: ignore[misc]

    return case


async def held_by_others(store: Backend) -> Calls:
    """Claims beside many tenants, of which other workers have as many jobs as ``tenant_workers`` allows; and of those
    that such a worker may have."""
    await _rules(store).save(Policy(queue="q", tenant_workers=1, tenant_batch=1))
    batch = [row(tenant=f"t{number}") for number in range(full.FULL)]
    for _ in range(2):
        await store.insert([row(tenant=one.tenant) for one in batch])
    taken = 0
    while taken < full.FULL:
        taken += len((await store.claim(_claim(full.FULL - taken, holder="other"))).jobs)
    while True:
        await store.insert([row(tenant=one.tenant) for one in batch])
        yield lambda: store.claim(_claim(full.FULL))
        yield lambda: store.claim(_claim(full.FULL, holder="other"))


async def limits_of_tenants(store: Backend) -> Calls:
    """One limit more beside a full batch of them, and a claim and an insert that must obey them all."""
    await _rules(store).save(Policy(queue="q", tenant_running=2))
    for number in range(full.FULL):
        await _rules(store).limit(TenantLimit("q", f"t{number}", running=1))
    for turn in itertools.count():
        yield lambda turn=turn: _rules(store).limit(TenantLimit("q", f"t{turn}", running=2))  # type: ignore[misc]
        batch = rows(tenant="t")
        yield lambda batch=batch: store.insert(batch)  # type: ignore[misc]
        yield lambda: store.claim(_claim(full.FULL))
        yield lambda: _rules(store).find(("q",))


async def tenants(store: Backend) -> Calls:
    """Pages of tenants, and a full batch by name, beside many."""
    await _rules(store).save(Policy(queue="q", tenant_running=1))
    await _fill(store, tenant="t")
    names = [f"t0-{number}" for number in range(full.FULL)]
    while True:
        yield lambda: _rules(store).tenants("q", limit=full.FULL)
        yield lambda: _rules(store).tenants("q", after="t5", limit=full.FULL)
        yield lambda: _rules(store).tenants("q", names)
        yield lambda: _rules(store).find()


async def rules_for_all(store: Backend) -> Calls:
    """Rules that concern all tenants of a queue, beside many that can run nothing; and what comes after each."""
    await _rules(store).save(Policy(queue="q", tenant_running=1))
    await _fill(store, tenant="t")
    await leased(store, queue="other")
    for turn in itertools.count(1):
        policy = Policy(queue="q", version=turn, tenant_running=1 + turn % 2)
        yield lambda policy=policy: _rules(store).save(policy)  # type: ignore[misc]
        yield lambda: store.claim(_claim(10))
        yield lambda: _rules(store).pause(QueuePause("q", task="t"))
        yield lambda: _rules(store).pause(QueuePause("q", task="t", paused=False))
        yield lambda: store.claim(_claim(full.FULL))


async def statistics(store: Backend) -> Calls:
    """Of a queue with many priorities, of one with many tenants, and of delayed jobs of many queues."""
    await _rules(store).save(Policy(queue="tenants", tenant_batch=1))
    for turn in range(_MANY):
        first = turn * full.FULL
        await store.insert([row(priority=first + n) for n in range(full.FULL)])
        await store.insert([row("tenants", tenant=f"t{first + n}") for n in range(full.FULL)])
    await _fill(store, queue="q", delay=_HOUR)
    while True:
        yield lambda: store.stats(queues=("q",))
        yield lambda: store.stats(queues=("tenants",))
        yield lambda: store.stats()


CASES: dict[str, Case] = {
    "claim, delayed jobs of ten queues": delayed_of_few_queues,
    "claim, delayed jobs of one of many queues": delayed_of_one_queue,
    "claim, urgent jobs of one of many queues": urgent_of_one_queue,
    "claim, expired jobs": expired(),
    "claim, expired jobs with keys and groups": expired(key="k", group="g"),
    "claim, expired jobs of tenants": expired(Policy(queue="q", tenant_batch=1), tenant="t"),
    "claim, expired jobs of a tenant": expired(Policy(queue="q", tenant_batch=1)),
    "claim, beside tenants that others have": held_by_others,
    "alter, cancel all": alters_all(r.Cancel(), key="k", group="g"),
    "alter, move all": alters_all(r.Move("elsewhere"), key="k"),
    "alter, reschedule all": alters_all(r.Reschedule(_HOUR), group="g"),
    "alter, delete all": alters_all(r.Delete(), key="k", group="g"),
    "alter, few of many": alters_few,
    "scan": scans,
    "insert, one group out of order": out_of_order,
    "groups, a hundred jobs at once": several_of_a_group(1),
    "groups, a hundred jobs at once of many": several_of_a_group(50),
    "limits of tenants": limits_of_tenants,
    "tenants": tenants,
    "rules for all tenants": rules_for_all,
    "stats of priorities and tenants": statistics,
}
