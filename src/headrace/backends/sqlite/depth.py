"""How many jobs may wait."""

from __future__ import annotations

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction
from headrace.seam.policy import OPERATIONS, STORE
from headrace.seam.records import Room

_SQL = load("queue")


class Depth:
    """The room for new jobs, in each queue and in the store, as one insert finds it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._depths: dict[int, int | None] = {}
        self._waits: dict[int, int] = {}
        """By queue, as far as they have a depth."""
        whole = tx.find_queue(STORE)
        self._depth = None if whole is None else tx.rules(whole).depth
        self._waits_in_all = 0 if self._depth is None else self._waiting()

    def bounds(self, qid: int) -> bool:
        """Whether there is a rule for the queue, or for the store."""
        return self._depth is not None or self._tx.rules(qid).depth is not None

    def admit(self, qid: int, name: str) -> Room | None:
        """One more waits in the queue; or where there is no room for it."""
        depth = self._depths[qid] if qid in self._depths else self._look(qid)
        exempt = name == OPERATIONS and self._depth != 0
        if self._depth is not None and self._waits_in_all >= self._depth and not exempt:
            return Room(STORE, self._depth, self._waits_in_all)
        if depth is not None and self._waits[qid] >= depth:
            return Room(name, depth, self._waits[qid])
        if depth is not None:
            self._waits[qid] += 1
        self._waits_in_all += 1
        return None

    def _look(self, qid: int) -> int | None:
        depth = self._depths[qid] = self._tx.rules(qid).depth
        if depth is not None:
            self._waits[qid] = self._waiting(qid)
        return depth

    def _waiting(self, qid: int | None = None) -> int:
        self._tx.flush()
        whole = qid is None
        [waiting] = self._tx.one(_SQL["waiting_in_all"]) if whole else self._tx.one(_SQL["waiting"], (qid,))
        return int(waiting)
