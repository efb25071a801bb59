"""A queue becomes governed: its jobs are brought into the lanes of their tenants and tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.backends.sqlite import turns
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction

_SQL = load("policy")
_PLACE = load("place")
_TENANT = load("tenant")

DONE = 1
UNDER_WAY = 2
"""Some of the jobs that waited before are not in their lanes yet."""

_AT_ONCE = 2_000
"""So many jobs one step brings in."""
_END_OF_TIME = 2**62


def govern(tx: Transaction, qid: int, now: int) -> bool:
    """Let the tenants of a queue take turns from now on; whether that is new."""
    if tx.rules(qid).governed:
        return False
    _switch(tx, qid, UNDER_WAY)
    running = tx.rows(_SQL["running"], (qid,))
    tids = turns.known(tx, qid, [tenant for _, tenant in running])
    tx.executemany(_SQL["start"], [(seq, tids[tenant]) for seq, tenant in running])
    tx.executemany(_TENANT["start"], list(Counter(tids[tenant] for _, tenant in running).items()))
    bring_in(tx, qid, now)
    return True


def bring_in(tx: Transaction, qid: int, now: int) -> None:
    """The next jobs that waited before the queue was governed: first those that are due, in claim order."""
    levels = [priority for [priority] in tx.rows(_SQL["levels"], (qid,))]
    left = _AT_ONCE
    for until in (now, _END_OF_TIME):
        for priority in levels:
            if left > 0:
                left -= _shift(tx, qid, tx.rows(_SQL["waiting"], (qid, priority, until, left)))
    if left > 0:
        _switch(tx, qid, DONE)


def _shift(tx: Transaction, qid: int, rows: list[Any]) -> int:
    if rows:
        lanes = turns.put(tx, qid, [(tenant, task, run_at) for _, run_at, _, _, tenant, task in rows])
        shifts = [
            (qid, priority, run_at, job_id, lanes[tenant, task], priority)
            for priority, run_at, job_id, _, tenant, task in rows
        ]
        tx.executemany(_PLACE["shift"], shifts)
        tx.executemany(_PLACE["lie"], [(seq, lanes[tenant, task]) for _, _, _, seq, tenant, task in rows])
    return len(rows)


def _switch(tx: Transaction, qid: int, governed: int) -> None:
    tx.execute(_SQL["govern"], (qid, governed))
    tx.look_anew()


def count_holders(tx: Transaction, qid: int) -> None:
    """Who has jobs of which tenant, as far as the policy counts that."""
    tx.execute(_SQL["drop_holdings"], (qid,))
    tx.execute(_SQL["untake"], (qid,))
    if (most := tx.rules(qid).holders) is not None:
        held = Counter(tx.rows(_SQL["held"], (qid,)))
        tx.executemany(_TENANT["hold"], [(tid, holder, number) for (tid, holder), number in held.items()])
        tx.executemany(_TENANT["take"], list({(tid, most) for tid, _ in held}))
