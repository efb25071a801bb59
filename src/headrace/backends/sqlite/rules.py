"""The rules of queues: policies, limits of tenants, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from headrace.backends.sqlite import groups, tenants
from headrace.backends.sqlite.governing import count_holders, govern
from headrace.backends.sqlite.standing import read_tasks
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
        tenants.reset_rates(tx, qid, policy.tenant_rate)
        tenants.wake_all(tx, qid, now)
    if policy.group_running != known.group_running:
        groups.call_all(tx, qid, now)
    tx.wake_queue(qid)
    return True


def limit(tx: Transaction, wanted: TenantLimit, now: int) -> None:
    """Replace what one tenant may do in one queue."""
    qid = tx.queue(wanted.queue)
    govern(tx, qid, now)
    every, burst = (None, None) if wanted.rate is None else (wanted.rate.every, wanted.rate.burst)
    tx.execute(_SQL["limit"], (qid, wanted.tenant, wanted.running, every, burst))
    tx.execute(_SQL["forget_limits"], (now,))
    [stored] = tx.one(_SQL["known"], (qid,))
    tenants.reset_rate(tx, qid, wanted.tenant, None if stored is None else _decode(stored).tenant_rate)
    tenants.wake_tenant(tx, qid, wanted.tenant, now)


def pause(tx: Transaction, wanted: QueuePause, now: int) -> None:
    """Pause or resume a queue, or a tenant or a task in it."""
    qid = tx.queue(wanted.queue)
    until = wanted.until(now)
    if wanted.tenant is not None:
        govern(tx, qid, now)
        tx.execute(_SQL["pause_tenant"], (qid, wanted.tenant, until))
        tenants.wake_tenant(tx, qid, wanted.tenant, now)
    elif wanted.task is not None:
        govern(tx, qid, now)
        tx.execute(_SQL["pause_task"], (qid, wanted.task, until))
        tenants.wake_all(tx, qid, now)
    else:
        tx.execute(_QUEUE["configure"], (qid, until))
    forget_over(tx, now)
    if not wanted.paused:
        tx.wake_queue(qid)


def any_over(session: Session, now: int) -> bool:
    """Whether there are pauses of tenants that are over."""
    return session.first(_SQL["any_over"], (now,)) is not None


def forget_over(tx: Transaction, now: int) -> None:
    """Pauses that are over, and rates of tasks that are saved up, leave nothing behind."""
    tx.execute(_SQL["forget_limits"], (now,))
    tx.execute(_SQL["forget_tasks"], (now,))


def find(session: Session, queues: Sequence[str] | None, now: int) -> list[PolicyState]:
    """The policies of these queues, or of all, that have one or are governed, by name."""
    names = () if queues is None else tuple(sorted(set(queues)))
    if queues is None:
        rows = session.rows(_SQL["all"])
    else:
        rows = session.rows(_SQL["named"], (apsw.carray(names),)) if names else []
    return [_state(session, row, now) for row in rows]


def _state(session: Session, row: Any, now: int) -> PolicyState:
    qid, name, governed, full_at, stored = row
    policy = Policy(queue=name) if stored is None else _decode(stored)
    if not governed:
        return PolicyState(policy)
    turns = Turns(policy, full_at=full_at)
    read_tasks(session, qid, turns)
    return turns.state(now)


class Tenants:
    """The tenants of one governed queue in numbers."""

    def __init__(self, session: Session, queue: str, count_cap: int, now: int) -> None:
        self._session = session
        self._queue = queue
        self._count_cap = count_cap
        self._now = now
        found = session.rows(_SQL["named"], (apsw.carray((queue,)),))
        self._qid: int | None = found[0][0] if found and found[0][2] else None
        self._policy = _decode(found[0][4]) if found and found[0][4] else Policy(queue=queue)

    def list(self, names: Sequence[str] | None, after: str | None, limit: int) -> list[TenantState]:
        """Those above ``after``, in the order of their names; only those in ``names``, if given."""
        if self._qid is None or names == ():
            return []
        first = "" if after is None else f"{after}\0"  # what comes right after it, as no name holds a NUL
        if names is None:
            found = self._session.rows(_SQL["tenants"], (self._qid, first, limit))
        else:
            wanted = apsw.carray(tuple(sorted(set(names))))
            found = self._session.rows(_SQL["known_tenants"], (self._qid, wanted, first, limit)) if names else []
        workers: dict[int, set[tuple[str, str]]] = {}
        for tid, holder, worker in self._session.rows(_SQL["workers"], (self._qid, self._now)):
            workers.setdefault(tid, set()).add((worker, holder))
        return [self._state(name, workers) for [name] in found]

    def _state(self, name: str, workers: dict[int, set[tuple[str, str]]]) -> TenantState:
        asked = (self._qid, name)
        tid, running, full_at, *rate = self._session.first(_SQL["tenant"], asked) or (0, 0, 0, None, None)
        cap, every, burst, paused_until = self._session.first(_SQL["limit_of"], asked) or (None, None, None, 0)
        own = None if every is None or burst is None else Rate(every, burst)
        limit = None if cap is None and own is None else TenantLimit(self._queue, name, cap, own)
        counts = self._policy.tenant_rate if own is None else own
        same = counts is not None and [counts.every, counts.burst] == rate
        [waiting] = self._session.one(_SQL["waiting_of"], (tid, self._count_cap))
        return TenantState(
            self._queue,
            name,
            waiting,
            running,
            limit,
            paused_until if paused_until > self._now else None,
            opens_at(counts, full_at if same else 0, self._now),
            tuple(sorted(worker for worker, _ in workers.get(tid, ()))),
        )
