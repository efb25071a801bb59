"""How many jobs may wait."""

from __future__ import annotations

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction
from headrace.policy import STORE

_SQL = load("queue")


class Depth:
    """The room for new jobs, in each queue and in the store, as one insert finds it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rooms: dict[int, int | None] = {}
        """By queue; None: any number."""
        whole = tx.find_queue(STORE)
        depth = None if whole is None else tx.rules(whole).depth
        self._room = None if depth is None else depth - self._waiting()

    def bounds(self, qid: int) -> bool:
        """Whether there is a rule for the queue, or for the store."""
        return self._room is not None or self._tx.rules(qid).depth is not None

    def admits(self, qid: int) -> bool:
        """Whether one more may wait in the queue; if so, it does."""
        room = self._rooms[qid] if qid in self._rooms else self._look(qid)
        if (room is not None and room <= 0) or (self._room is not None and self._room <= 0):
            return False
        if room is not None:
            self._rooms[qid] = room - 1
        if self._room is not None:
            self._room -= 1
        return True

    def _look(self, qid: int) -> int | None:
        depth = self._tx.rules(qid).depth
        self._rooms[qid] = None if depth is None else depth - self._waiting(qid)
        return self._rooms[qid]

    def _waiting(self, qid: int | None = None) -> int:
        self._tx.flush()
        whole = qid is None
        [waiting] = self._tx.one(_SQL["waiting_in_all"]) if whole else self._tx.one(_SQL["waiting"], (qid,))
        return int(waiting)
