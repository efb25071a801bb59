"""The worst that one call can ask of a store: full batches, in which every row is of the kind that costs most."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from headrace.seam import records as r
from headrace.seam.policy import Policy, Rate
from headrace.seam.protocol import Backend
from headrace.types import JobState

HOLDER = "hostile"
FULL = 1_000
"""Rows of a full batch, on every store."""
_LEASE = 3_600_000_000
_HOUR = 3_600_000_000
_numbers = itertools.count()
_TURNS = Policy(queue="q", tenant_batch=1)

Case = Callable[[Backend], AsyncIterator[Callable[[], Awaitable[object]]]]
"""Prepares a store, and gives the call that is measured, as often as it is asked."""


def row(queue: str = "q", **more: Any) -> r.Row:
    """A new job."""
    number = next(_numbers)
    stamp = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    given: dict[str, Any] = {"task": "t", "cells": {"parameters": b"0"}}
    return r.Row(stamp + bytes.fromhex(f"7000{number:08x}") + os.urandom(4), queue, **(given | more))


def rows(**more: Any) -> list[r.Row]:
    """A full batch. What is a string has the number of its row appended."""
    made = []
    for number in range(FULL):
        mine = {name: f"{value}{number}" if isinstance(value, str) else value for name, value in more.items()}
        made.append(row(**mine))
    return made


def inserts(**more: Any) -> Case:
    """Inserts of full batches of such rows; each batch has names of its own."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            batch = rows(**mine)
            yield lambda batch=batch: store.insert(batch)  # type: ignore[misc]

    return case


def governed(rule: Policy, **more: Any) -> Case:
    """The same into a governed queue, and a claim that brings all."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        assert store.policies is not None
        await store.policies.save(rule)
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            batch = rows(**mine)
            yield lambda batch=batch: store.insert(batch)  # type: ignore[misc]
            yield lambda: store.claim(r.Claim(HOLDER, ("q",), FULL, _LEASE))

    return case


async def leased(store: Backend, **more: Any) -> list[r.Leased]:
    """A full batch of running jobs."""
    await store.insert(rows(**more))
    found: list[r.Leased] = []
    queues = tuple({"q"} if "queue" not in more else {f"{more['queue']}{n}" for n in range(FULL)})
    while len(found) < FULL:
        claimed = await store.claim(r.Claim(HOLDER, queues, FULL - len(found), _LEASE))
        found += claimed.jobs
        if not claimed.jobs and claimed.next_in is None:
            break
    return found


def claims(names: int = FULL, **more: Any) -> Case:
    """Claims of full batches, from queues of which a thousand have jobs."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        queues = ("q",) if "queue" not in more else tuple(f"{more['queue']}{n}" for n in range(names))
        while True:
            await store.insert(rows(**more))
            yield lambda: store.claim(r.Claim(HOLDER, queues, FULL, _LEASE))

    return case


async def governed_queues(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A claim from a full batch of governed queues, each with a job."""
    assert store.policies is not None
    queues = tuple(f"q{number}" for number in range(FULL))
    for queue in queues:
        await store.policies.save(Policy(queue=queue, tenant_batch=1))
    while True:
        await store.insert(rows(queue="q"))
        yield lambda: store.claim(r.Claim(HOLDER, queues, FULL, _LEASE))


async def after_a_burst(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Claims beside 10,000 tenants that have just come, by ten at a time."""
    assert store.policies is not None
    await store.policies.save(_TURNS)
    for turn in itertools.count():
        for some in range(10):
            await store.insert([row(tenant=f"t{turn}-{some}-{number}") for number in range(FULL)])
        yield lambda: store.claim(r.Claim(HOLDER, ("q",), 500, _LEASE))
        yield lambda: store.claim(r.Claim(HOLDER, ("q",), 500, _LEASE))


async def tasks_of_a_tenant(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Claims of ten jobs beside 10,000 tasks of their tenant."""
    assert store.policies is not None
    await store.policies.save(_TURNS)
    for turn in range(10):
        await store.insert(rows(task=f"t{turn}-"))
    while True:
        yield lambda: store.claim(r.Claim(HOLDER, ("q",), 10, _LEASE))


def ends(settled: Callable[[r.Leased], r.Settlement], **more: Any) -> Case:
    """Settlements of full batches."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            batch = [settled(job) for job in await leased(store, **mine)]
            yield lambda batch=batch: store.finish(batch)  # type: ignore[misc]

    return case


def _end(job: r.Leased, state: JobState, **more: Any) -> r.Settlement:
    return r.Settlement(job.id, job.epoch, HOLDER, state, **more)


def completed(job: r.Leased) -> r.Settlement:
    """With a result that is kept."""
    return _end(job, JobState.COMPLETED, result=b"r" * 100, result_ttl=_HOUR)


def retried(job: r.Leased) -> r.Settlement:
    """Everything about it changes."""
    cells = {"parameters": b"1", "vm_state": b"2" * 100}
    return _end(job, JobState.AVAILABLE, delay=_HOUR, failed_attempt=True, cells=cells, error=b"e" * 100, priority=3)


def moved(job: r.Leased) -> r.Settlement:
    """To a queue of its own."""
    return _end(job, JobState.AVAILABLE, queue=f"to-{job.id.hex()}")


def failed(job: r.Leased) -> r.Settlement:
    return _end(job, JobState.FAILED, error=b"e" * 100, reason="error")


def spawning(number: int, **more: Any) -> Case:
    """One settlement that spawns so many rows."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        while True:
            await store.insert([row()])
            [job] = (await store.claim(r.Claim(HOLDER, ("q",), 1, _LEASE))).jobs
            spawned = [msgspec.structs.replace(one, queue="spawned") for one in rows(**more)[:number]]
            end = _end(job, JobState.COMPLETED, spawn=spawned)
            yield lambda end=end: store.finish([end])  # type: ignore[misc]

    return case


def alters(change: r.Change, **more: Any) -> Case:
    """A change of a full batch, by ids."""

    async def case(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        for turn in itertools.count():
            mine = {name: f"{value}{turn}-" if isinstance(value, str) else value for name, value in more.items()}
            batch = rows(**mine)
            await store.insert(batch)
            sel = r.Selector(ids=[one.id for one in batch])
            yield lambda sel=sel: store.alter(sel, change)  # type: ignore[misc]

    return case


async def renewals(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A beat with a full batch of leases, and a census."""
    jobs = await leased(store)
    beat = r.Beat(HOLDER, "w", ("q",), _LEASE, [(job.id, job.epoch) for job in jobs], census=True)
    while True:
        yield lambda: store.renew(beat)


async def reaps(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A full batch of leases that have run out; the jobs are of tenants, groups and keys of their own."""
    for turn in itertools.count():
        await store.insert(rows(key=f"k{turn}-", tenant="t", group=f"g{turn}-"))
        await store.claim(r.Claim("gone", ("q",), FULL, 1))
        yield lambda: store.reap(r.Reap(limit=FULL))


async def fetches(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A full batch of records, each by its key."""
    batch = rows(key="k")
    await store.insert(batch)
    while True:
        yield lambda: store.fetch([r.JobKey("q", f"k{number}") for number in range(FULL)])


async def sweeps(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A full batch of ended jobs with keys and results."""
    for turn in itertools.count():
        await store.finish([_end(job, JobState.COMPLETED) for job in await leased(store, key=f"k{turn}-")])
        yield lambda: store.sweep(r.SweepClause(target=r.SweepTarget.COMPLETED, older_than=0, limit=FULL))


async def rates(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A policy with as many rates of tasks as it may have, and a claim beside them."""
    assert store.policies is not None
    version = 0
    while True:
        task_rates = {f"t{number}": Rate(1 + version, 1) for number in range(FULL)}
        policy = Policy(queue="q", version=version, task_rates=task_rates)
        yield lambda policy=policy: store.policies.save(policy)  # type: ignore[misc]
        version += 1
        await store.insert(rows(task="t"))
        yield lambda: store.claim(r.Claim(HOLDER, ("q",), FULL, _LEASE))


async def statistics(store: Backend) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Of 10,000 queues."""
    for turn in range(10):
        await store.insert(rows(queue=f"q{turn}-"))
    while True:
        yield lambda: store.stats()


CASES: dict[str, Case] = {
    "insert, plain": inserts(),
    "insert, keys": inserts(key="k"),
    "insert, inboxes": inserts(reply_to="r"),
    "insert, groups": inserts(group="g"),
    "insert, new queues": inserts(queue="q"),
    "insert, new queues, groups, keys, inboxes": inserts(queue="q", group="g", key="k", reply_to="r"),
    "insert and claim, new tenants": governed(_TURNS, tenant="t"),
    "insert and claim, new tenants, groups": governed(_TURNS, tenant="t", group="g"),
    "insert and claim, new tasks": governed(_TURNS, task="t"),
    "insert and claim, a tenant": governed(_TURNS, priority=3),
    "claim, plain": claims(),
    "claim, of many queues": claims(queue="q"),
    "claim, of 10,000 queues": claims(10_000, queue="q"),
    "claim, of many governed queues": governed_queues,
    "claim, after a burst of tenants": after_a_burst,
    "claim, beside 10,000 tasks": tasks_of_a_tenant,
    "finish, results": ends(completed),
    "finish, keys and groups": ends(completed, key="k", group="g"),
    "finish, retries": ends(retried),
    "finish, retries of groups": ends(retried, group="g"),
    "finish, moves with keys": ends(moved, key="k"),
    "finish, failures": ends(failed, tenant="t"),
    "finish, spawning": spawning(r.SPAWNED),
    "finish, spawning keys": spawning(r.SPAWNED, key="k"),
    "finish, spawning groups": spawning(r.SPAWNED_NAMES, key="k", group="g"),
    "renew": renewals,
    "reap": reaps,
    "alter, cancel": alters(r.Cancel(), key="k", group="g"),
    "alter, move": alters(r.Move("elsewhere"), key="k"),
    "alter, reschedule": alters(r.Reschedule(_HOUR), group="g"),
    "alter, delete": alters(r.Delete(), key="k", group="g"),
    "fetch": fetches,
    "sweep": sweeps,
    "rates of tasks": rates,
    "stats of 10,000 queues": statistics,
}
