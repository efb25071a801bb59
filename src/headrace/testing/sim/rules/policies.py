"""Policies: they are saved by version, and what is said of tenants and groups is true (I16, I21)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.testing.sim.ledger import Ledger
from headrace.types import JobState


def on_save_policy(book: Ledger, policy: Policy, saved: bool, now: int) -> None:
    """Somebody has saved a policy, or came too late."""
    right = book.realm.save(policy)
    if saved is not right:
        book.blame("I16", None, f"a policy of version {policy.version} was answered {saved}, which should be {right}")
    book.reach("policy saved" if saved else "policy changed by another")


def on_limit(book: Ledger, limit: TenantLimit, answer: None, now: int) -> None:
    """A tenant has a limit of its own."""
    book.realm.limit(limit)
    book.reach("tenant limited")


def on_pause(book: Ledger, pause: QueuePause, answer: None, now: int) -> None:
    """A queue, a tenant or a task was paused or resumed."""
    book.realm.pause(pause, now)
    if pause.tenant is not None or pause.task is not None:
        kind = "task" if pause.tenant is None else "tenant"
        book.reach(f"{kind} {'paused' if pause.paused else 'resumed'}")
    elif pause.paused:
        book.paused.add(pause.queue)
        book.reach("queue paused")
    else:
        book.paused.discard(pause.queue)


def on_policies(book: Ledger, queues: Sequence[str] | None, states: Sequence[PolicyState], now: int) -> None:
    """Policies were read."""
    for state in states:
        queue = state.policy.queue
        told = (state.policy.version, state.governed)
        right = (book.realm.versions.get(queue, 0), book.realm.governs(queue))
        if told != right:
            book.blame("I16", None, f"the policy of {queue!r} is answered as {told}, which should be {right}")


def on_tenants(
    book: Ledger,
    queue: str,
    names: Sequence[str] | None,
    after: str | None,
    limit: int,
    tenants: Sequence[TenantState],
    now: int,
) -> None:
    """Tenants were listed."""
    seen = book.realm.of(queue).book
    for tenant in tenants:
        jobs = [job for job in seen.jobs.values() if job.tenant == tenant.tenant and seen.has_turn(job)]
        waiting = sum(job.state is JobState.AVAILABLE for job in jobs)
        right = (waiting, len(seen.running(tenant.tenant)))
        if (tenant.waiting, tenant.running) != right:
            book.blame("I21", None, f"tenant {tenant.tenant!r} is answered as {tenant!r}, where {right} wait and run")
    book.reach("tenants listed")


def on_group(book: Ledger, queue: str, group: str, state: GroupState, now: int) -> None:
    """A group was looked at."""
    seen = book.realm.of(queue).book
    jobs = [job for job in seen.jobs.values() if job.group == group]
    called = {job.id for job in jobs if job.id in seen.called}
    if set(state.called) != called:
        book.blame("I27", None, f"group {group!r} has called {len(state.called)} jobs, which should be {len(called)}")
