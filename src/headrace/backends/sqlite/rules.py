"""The rules of queues: policies, limits of tenants, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from headrace.backends.sqlite import marks, tenants
from headrace.backends.sqlite.governed_queue import read_tasks
from headrace.backends.sqlite.governing import count_holders, govern
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.backends.turns import Turns, opens_at
from headrace.seam.policy import Policy, PolicyState, QueuePause, Rate, TenantLimit, TenantState

_SQL = load("policy")
_QUEUE = load("queue")
_decode = msgspec.json.Decoder(Policy).decode
_encode = msgspec.json.Encoder().encode


def save(tx: Transaction, policy: Policy, now: int) -> bool:
    """Replace the policy of a queue; return whether that was done."""
    qid = tx.find_queue(policy.queue)
    stored = None if qid is None else tx.one(_SQL["known"], (qid,))[0]
    known = Policy(queue=policy.queue) if stored is None else _decode(stored)
    if policy.version != known.version:
        return False
    qid = tx.queue(policy.queue)
    blob = _encode(replace(policy, version=policy.version + 1))
    bounded = int(any(rule is not None for rule in (policy.running, policy.tenant_running, policy.tenant_workers)))
    reset = int(policy.rate != known.rate)
    tx.execute(_SQL["save"], (qid, blob, policy.group_running, policy.depth, policy.tenant_workers, bounded, reset))
    tx.forget_rules()
    changed = [task for task, rate in known.task_rates.items() if policy.task_rates.get(task) != rate]
    tx.executemany(_SQL["reset_task_rate"], [(qid, task) for task in changed])
    new = policy.governs and govern(tx, qid, now)
    if tx.rules(qid).governed:
        if new or policy.tenant_workers != known.tenant_workers:
            count_holders(tx, qid)
        marks.begin(tx, qid, marks.TENANTS, now)
    if policy.group_running != known.group_running:
        marks.begin(tx, qid, marks.GROUPS, now)
    tx.hint_queue(qid)
    return True


def limit(tx: Transaction, wanted: TenantLimit, now: int) -> None:
    """Replace what one tenant may do in one queue."""
    qid = tx.queue(wanted.queue)
    govern(tx, qid, now)
    every, burst = (None, None) if wanted.rate is None else (wanted.rate.every, wanted.rate.burst)
    tx.execute(_SQL["limit"], (qid, wanted.tenant, wanted.running, every, burst))
    tx.execute(_SQL["forget_limits"], (now,))
    [stored] = tx.one(_SQL["known"], (qid,))
    tenants.reset_rate(tx, qid, None if stored is None else _decode(stored).tenant_rate, wanted.tenant)
    tenants.wake(tx, qid, now, wanted.tenant)


def pause(tx: Transaction, wanted: QueuePause, now: int) -> None:
    """Pause or resume a queue, or a tenant or a task in it."""
    qid = tx.queue(wanted.queue)
    until = wanted.until(now)
    if wanted.tenant is not None:
        govern(tx, qid, now)
        tx.execute(_SQL["pause_tenant"], (qid, wanted.tenant, until))
        tenants.wake(tx, qid, now, wanted.tenant)
    elif wanted.task is not None:
        govern(tx, qid, now)
        tx.execute(_SQL["pause_task"], (qid, wanted.task, until))
        marks.begin(tx, qid, marks.TENANTS, now)
    else:
        tx.execute(_QUEUE["configure"], (qid, until))
    forget_over(tx, now)
    if not wanted.paused:
        tx.hint_queue(qid)


def any_over(session: Session, now: int) -> bool:
    """Whether there are pauses of tenants that are over."""
    return session.first(_SQL["any_over"], (now,)) is not None


def forget_over(tx: Transaction, now: int) -> None:
    """Pauses that are over, and rates of tasks that are saved up, leave nothing behind."""
    tx.execute(_SQL["forget_limits"], (now,))
    tx.execute(_SQL["forget_tasks"], (now,))


def find(session: Session, queues: Sequence[str] | None, now: int) -> list[PolicyState]:
    """The policies of these queues, or of all, that have one or are governed, by name."""
    rows = session.rows(_SQL["all"]) if queues is None else _named(session, queues)
    return [_state(session, row, now) for row in rows]


def _named(session: Session, queues: Sequence[str]) -> list[Any]:
    names = tuple(sorted(set(queues)))
    return session.rows(_SQL["named"], (apsw.carray(names),)) if names else []


def _state(session: Session, row: Any, now: int) -> PolicyState:
    qid, name, governed, full_at, stored = row
    policy = Policy(queue=name) if stored is None else _decode(stored)
    if not governed:
        return PolicyState(policy)
    turns = Turns(policy, full_at=full_at)
    read_tasks(session, qid, turns)
    return turns.state(now)


def find_tenants(
    session: Session, queue: str, names: Sequence[str] | None, after: str | None, limit: int, count_cap: int, now: int
) -> list[TenantState]:
    """The tenants of a governed queue above ``after``, in the order of their names; only those named, if given."""
    found = [(qid, stored) for qid, _, governed, _, stored in _named(session, [queue]) if governed]
    if not found or (names is not None and not names):
        return []
    [(qid, stored)] = found
    policy = Policy(queue=queue) if stored is None else _decode(stored)
    first = "" if after is None else f"{after}\0"  # what comes right after it, as no name holds a NUL
    if names is None:
        rows = session.rows(_SQL["tenants"], (qid, first, limit))
    else:
        wanted = apsw.carray(tuple(sorted(set(names))))
        rows = session.rows(_SQL["known_tenants"], (qid, wanted, first, limit))
    workers: dict[int, set[tuple[str, str]]] = {}
    for tid, holder, worker in session.rows(_SQL["workers"], (qid, now)):
        workers.setdefault(tid, set()).add((worker, holder))
    return [_tenant(session, qid, policy, name, workers, count_cap, now) for [name] in rows]


def _tenant(
    session: Session, qid: int, policy: Policy, name: str, workers: dict[int, set[tuple[str, str]]], count_cap: int,
    now: int,
) -> TenantState:  # fmt: skip
    tid, running, full_at, *rate = session.first(_SQL["tenant"], (qid, name)) or (0, 0, 0, None, None)
    cap, every, burst, paused_until = session.first(_SQL["limit_of"], (qid, name)) or (None, None, None, 0)
    own = None if every is None or burst is None else Rate(every, burst)
    limit = None if cap is None and own is None else TenantLimit(policy.queue, name, cap, own)
    counts = policy.tenant_rate if own is None else own
    same = counts is not None and [counts.every, counts.burst] == rate
    [waiting] = session.one(_SQL["waiting_of"], (tid, count_cap))
    until = paused_until if paused_until > now else None
    opens = opens_at(counts, full_at if same else 0, now)
    names = tuple(sorted(worker for worker, _ in workers.get(tid, ())))
    return TenantState(policy.queue, name, waiting, running, limit, until, opens, names)
