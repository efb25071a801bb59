"""How a governed queue stands as a whole: what a claim reads first."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.backends.sqlite.governing import UNDER_WAY
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import RUNNING
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.backends.turns import Turns
from headrace.seam.policy import Policy

_SQL = load("turn")
_decode = msgspec.json.Decoder(Policy).decode


def read_tasks(session: Session, qid: int, turns: Turns) -> None:
    """The tasks of a queue that are paused, or whose rate is under way."""
    for task, paused_until, full_at in session.rows(_SQL["tasks"], (qid,)):
        turns.paused_tasks[task] = paused_until
        turns.task_full_at[task] = full_at


class GovernedQueue(NamedTuple):
    """One governed queue."""

    qid: int
    queue: str
    turns: Turns
    under_way: bool
    """Whether some of its jobs are not in the lanes of their tenants yet."""
    wake_at: int | None
    """When the first sleeping tenant wakes."""
    any_awake: int
    """Whether a tenant is awake that any holder may have."""

    @classmethod
    def load(cls, session: Session, qid: int) -> GovernedQueue:
        queue, governed, round_, full_at, running, policy, *tenants = session.one(_SQL["state"], (qid,))
        if isinstance(session, Transaction):
            running += session.pending(qid, RUNNING)
        decoded = _decode(policy) if policy else Policy(queue=queue)
        return cls(qid, queue, Turns(decoded, round_, full_at, running), governed == UNDER_WAY, *tenants)

    def coming(self, now: int) -> list[int]:
        """How long until there may be something to claim."""
        if self.under_way:
            return [0]
        next_in = self.turns.next_in(self.wake_at, now)
        return [] if next_in is None else [next_in]

    def has_turn(self, session: Session, holder: str, now: int) -> bool:
        """Whether a claim of the holder would find anything to do."""
        if self.under_way or (self.wake_at is not None and self.wake_at <= now):
            return True
        if self.turns.room(1, now) <= 0:
            return False
        if self.any_awake:
            return True
        counted = self.turns.policy.tenant_workers is not None
        return counted and session.first(_SQL["any_mine"], (self.qid, holder)) is not None
