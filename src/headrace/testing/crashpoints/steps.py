"""The steps that flows are made of: what producers, workers, the upkeep and operators do."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import (
    Cancel,
    Delete,
    Hold,
    InsertStatus,
    Leased,
    Move,
    Pause,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.testing.crashpoints.actor import HOUR, LEASE, SECOND, Actor, done, job_id, row
from headrace.types import JobState

# -- enqueue


async def enqueue(actor: Actor) -> None:
    await actor.insert(row(1, "a"))


async def enqueue_key(actor: Actor) -> None:
    await actor.insert(row(1, "a", key="k"))


async def enqueue_key_anew(actor: Actor) -> None:
    """A producer that died with its id comes back with a new one, and the same key."""
    await actor.insert(row(1 if actor.holder == "w1" else 2, "a", key="k"))


async def enqueue_bulk(actor: Actor) -> None:
    batch = [row(1, "a"), row(2, "b", key="k"), row(3, "c", delay=SECOND), row(1, "a"), row(4, "d", key="k")]
    await actor.insert(*batch)


async def enqueue_two(actor: Actor) -> None:
    await actor.insert(row(1, "a", key="k"), row(2, "b"))


# -- work


async def work(actor: Actor) -> None:
    await actor.work()


async def work_off(actor: Actor) -> None:
    while await actor.work():
        actor.now += LEASE // 3


async def work_twice(actor: Actor) -> None:
    for _ in range(2):
        await actor.work()
        actor.now += LEASE // 3


def spawn(job: Leased, repaired: bool) -> dict[str, Any]:
    """A new child at each run, and a successor under the job's own key, which is free at once."""
    if job.task != "a":
        return done(job, repaired)
    child, successor = row(100 + job.lost, "child"), row(200 + job.lost, "successor", key="k")
    return {"state": JobState.COMPLETED, "spawn": [child, successor]}


def fail_once(job: Leased, repaired: bool) -> dict[str, Any]:
    if job.attempt:
        return done(job, repaired)
    patch = {"cells": {"vm_state": b"1"}, "priority": 5, "error": b"why"}
    return {"state": JobState.AVAILABLE, "delay": SECOND, "failed_attempt": True} | patch


def release(job: Leased, repaired: bool) -> dict[str, Any]:
    """The first holder shuts down and gives the job back."""
    return done(job, repaired) if job.begun else {"state": JobState.AVAILABLE, "delay": None}


def go_elsewhere(job: Leased, repaired: bool) -> dict[str, Any]:
    if job.queue == "other":
        return done(job, repaired)
    return {"state": JobState.AVAILABLE, "queue": "other"}


def leave_nothing(job: Leased, repaired: bool) -> dict[str, Any]:
    return {"state": JobState.COMPLETED, "keep": False}


def fail_until_repaired(job: Leased, repaired: bool) -> dict[str, Any]:
    if repaired:
        return done(job, repaired)
    return {"state": JobState.FAILED, "error": b"broken", "reason": "boom", "failed_attempt": True}


async def repair(actor: Actor) -> None:
    actor.repaired = True
    await actor.store.alter(Selector(states=frozenset({JobState.FAILED})), Requeue(), actor.now)


async def fail_and_repair(actor: Actor) -> None:
    await actor.work()
    await repair(actor)
    await actor.work()


async def work_long(actor: Actor) -> None:
    jobs = await actor.claim()
    for _ in range(2):
        actor.now += LEASE // 2
        await actor.renew(jobs)
    await actor.finish(jobs)


async def finish_and_claim(actor: Actor) -> None:
    assert actor.store.finish_and_claim is not None
    jobs = await actor.claim(1)
    while jobs:
        actor.now += SECOND
        _, claimed = await actor.store.finish_and_claim(list(map(actor.settlement, jobs)), actor.wish(1), actor.now)
        jobs = actor.start(claimed.jobs)


# -- upkeep


async def vanish(actor: Actor) -> None:
    """Another holder takes everything and is never seen again; then its leases are over."""
    await actor.insert(row(1, "a", key="k"), row(2, "b"))
    await Actor(actor.store, actor.ledger, "gone", done, actor.now).claim()
    actor.now += LEASE


async def vanish_thrice(actor: Actor) -> None:
    await vanish(actor)
    for _ in range(2):
        await actor.reap()
        await Actor(actor.store, actor.ledger, "gone", done, actor.now).claim()
        actor.now += LEASE


async def vanish_cancelled(actor: Actor) -> None:
    await vanish(actor)
    await actor.alter(Cancel(), 1, 2)


async def reap(actor: Actor) -> None:
    await actor.reap()


async def reap_and_work(actor: Actor) -> None:
    await actor.reap()
    await actor.work()


async def let_expire(actor: Actor) -> None:
    await actor.insert(row(1, "a", key="k", expires=SECOND))
    actor.now += SECOND


async def end_five(actor: Actor) -> None:
    for number, task in enumerate("abcde", 1):
        await actor.insert(row(number, task, key=task))
        await actor.work()
        actor.now += SECOND


async def sweep(actor: Actor) -> None:
    clause = SweepClause(target=SweepTarget.FAILED, max_count=2, limit=2)
    await actor.store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=2, limit=2, dry_run=True), actor.now)
    while (await actor.store.sweep(clause, actor.now)).more:
        pass


async def complete_five(actor: Actor) -> None:
    await end_five(actor)
    actor.now += 25 * HOUR


async def sweep_results(actor: Actor) -> None:
    while (await actor.store.sweep(SweepClause(target=SweepTarget.RESULTS, limit=3), actor.now)).more:
        pass


# -- changes from outside


async def cancel(actor: Actor) -> None:
    await actor.alter(Cancel(), 1, 2)


async def cancel_running(actor: Actor) -> None:
    jobs = await actor.claim()
    await cancel(actor)
    assert set(await actor.renew(jobs)) == {job.id for job in jobs}
    await actor.finish(jobs)


async def pause_and_resume(actor: Actor) -> None:
    await actor.alter(Pause(), 1, 2)
    await resume(actor)


async def resume(actor: Actor) -> None:
    await actor.alter(Resume(), 1, 2)


async def move(actor: Actor) -> None:
    await actor.alter(Move("other"), 1, 2)


async def reprioritise(actor: Actor) -> None:
    await actor.alter(Reprioritise(-7), 1, 2)


async def reschedule(actor: Actor) -> None:
    await actor.alter(Reschedule(run_at=actor.now - 1), 1, 2)


async def watch(actor: Actor) -> None:
    await actor.alter(Watch("inbox"), 1, 2)


async def complete_two(actor: Actor) -> None:
    await enqueue_two(actor)
    await actor.work()


async def hold(actor: Actor) -> None:
    await actor.alter(Hold(48 * HOUR), 1, 2)


async def delete(actor: Actor) -> None:
    await actor.alter(Delete(), 1, 2)


async def pause_queue_and_resume(actor: Actor) -> None:
    await actor.policies.pause(QueuePause("q"), actor.now)
    await resume_queue(actor)


async def resume_queue(actor: Actor) -> None:
    await actor.policies.pause(QueuePause("q", paused=False), actor.now)


# -- groups

LINE = "abc"
"""The tasks of a group's jobs, in their order."""


async def enqueue_group(actor: Actor) -> None:
    await actor.insert(*(row(number, task, group="g") for number, task in enumerate(LINE, 1)))


async def vanish_in_group(actor: Actor) -> None:
    await enqueue_group(actor)
    await vanish_with_all(actor)


async def vanish_with_all(actor: Actor) -> None:
    await Actor(actor.store, actor.ledger, "gone", done, actor.now).claim()
    actor.now += LEASE


def follow(job: Leased, repaired: bool) -> dict[str, Any]:
    """The first of the group spawns the last."""
    if job.task != "a":
        return done(job, repaired)
    return {"state": JobState.COMPLETED, "spawn": [row(100 + job.lost, "d", group="g", delay=SECOND)]}


async def cancel_first(actor: Actor) -> None:
    await actor.alter(Cancel(), 1)


# -- rules

RULES = Policy(queue="q", running=3, tenant_running=2, tenant_workers=1, tenant_batch=1, rate=Rate(SECOND, 10))
NARROW = Policy(queue="q", depth=2)


async def enqueue_tenants(actor: Actor) -> None:
    await actor.insert(*(row(number, task, tenant="xxxyy"[number - 1]) for number, task in enumerate("abcde", 1)))


async def govern(actor: Actor) -> None:
    await actor.rule(RULES)


async def govern_and_work(actor: Actor) -> None:
    await govern(actor)
    await actor.work()


async def enqueue_under_rules(actor: Actor) -> None:
    await govern(actor)
    await enqueue_tenants(actor)


async def enqueue_group_under_rules(actor: Actor) -> None:
    await govern(actor)
    await enqueue_group(actor)


async def vanish_under_rules(actor: Actor) -> None:
    await enqueue_under_rules(actor)
    await vanish_with_all(actor)


async def change_rules(actor: Actor) -> None:
    """While jobs run."""
    jobs = await actor.claim()
    await loosen(actor)
    await actor.finish(jobs)


async def loosen(actor: Actor) -> None:
    await actor.rule(replace(RULES, running=None))
    await actor.policies.limit(TenantLimit("q", "x", 1), actor.now)


async def pause_tenant_and_resume(actor: Actor) -> None:
    await actor.policies.pause(QueuePause("q", tenant="x"), actor.now)
    await actor.work()
    await resume_tenant(actor)


async def resume_tenant(actor: Actor) -> None:
    await actor.policies.pause(QueuePause("q", tenant="x", paused=False), actor.now)


async def enqueue_elsewhere(actor: Actor) -> None:
    await govern(actor)
    await actor.insert(row(1, "a", queue="other", tenant="x"), row(2, "b", queue="other", tenant="x"))


def come_back(job: Leased, repaired: bool) -> dict[str, Any]:
    if job.queue == "q":
        return done(job, repaired)
    return {"state": JobState.AVAILABLE, "queue": "q"}


async def narrow(actor: Actor) -> None:
    await actor.rule(NARROW)
    await actor.insert(row(1, "a"))


async def enqueue_too_many(actor: Actor) -> None:
    """As long as one waits there is room for one more."""
    answers = await actor.insert(row(2, "b"), row(3, "c"))
    assert answers[1].status is InsertStatus.FULL


async def enqueue_second(actor: Actor) -> None:
    await actor.insert(row(2, "b"))


async def look(actor: Actor) -> None:
    await actor.store.fetch([job_id(1)], frozenset({"parameters"}), actor.now)
    await actor.store.scan(Selector(), None, 1, actor.now)
    await actor.store.stats(actor.now)
