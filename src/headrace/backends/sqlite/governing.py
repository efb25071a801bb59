"""A queue becomes governed: its jobs are brought into the lanes of their tenants and tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.backends.sqlite import tenants
from headrace.backends.sqlite.delayed import delayed, position
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction

_SQL = load("policy")
_TRANSITION = load("transition")
_TENANT = load("tenant")

DONE = 1
UNDER_WAY = 2
"""Some of the jobs that waited before are not in their lanes yet."""

_AT_ONCE = 2_000
"""One step brings in at most this many jobs."""


def govern(tx: Transaction, qid: int, now: int) -> bool:
    """Let the tenants of a queue take turns from now on; return whether that is new."""
    if tx.rules(qid).governed:
        return False
    _switch(tx, qid, UNDER_WAY)
    running = tx.rows(_SQL["running"], (qid,))
    tids = tenants.known(tx, qid, [tenant for _, tenant in running])
    tx.executemany(_SQL["start"], [(seq, tids[tenant]) for seq, tenant in running])
    tx.executemany(_TENANT["start"], list(Counter(tids[tenant] for _, tenant in running).items()))
    bring_in(tx, qid, now)
    return True


def bring_in(tx: Transaction, qid: int, now: int) -> None:
    """The next jobs that waited before the queue was governed: first those that are due, in claim order."""
    left = _AT_ONCE
    for lane in (qid, delayed(qid)):
        if left > 0:
            left -= _shift(tx, qid, lane, tx.rows(_SQL["waiting"], (lane, left)), now)
    if left > 0:
        _switch(tx, qid, DONE)


def _shift(tx: Transaction, qid: int, lane: int, rows: list[Any], now: int) -> int:
    if rows:
        lanes = tenants.put(tx, qid, [(tenant, task, run_at) for _, run_at, _, _, _, tenant, task in rows])
        shifts = []
        lanes_now = []
        for lay_at, run_at, job_id, seq, priority, tenant, task in rows:
            there = position(lanes[tenant, task], priority, run_at, now)
            shifts.append((lane, lay_at, run_at, job_id, *there))
            lanes_now.append((seq, there[0]))
        tx.executemany(_TRANSITION["shift"], shifts)
        tx.executemany(_TRANSITION["set_lane"], lanes_now)
    return len(rows)


def _switch(tx: Transaction, qid: int, governed: int) -> None:
    tx.execute(_SQL["govern"], (qid, governed))
    tx.forget_rules()


def count_holders(tx: Transaction, qid: int) -> None:
    """Count how many jobs of each tenant each holder has, if the policy limits holders."""
    tx.execute(_SQL["drop_holdings"], (qid,))
    tx.execute(_SQL["untake"], (qid,))
    if (most := tx.rules(qid).holders) is not None:
        held = Counter(tx.rows(_SQL["held"], (qid,)))
        tx.executemany(_TENANT["hold"], [(tid, holder, number) for (tid, holder), number in held.items()])
        tx.executemany(_TENANT["take"], list({(tid, most) for tid, _ in held}))
