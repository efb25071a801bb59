"""One write transaction as the operations see it: statements, and what is gathered until it commits."""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw

from headrace.backends.sqlite.statements import load
from headrace.errors import Corrupt
from headrace.seam.records import JobId

INLINE = 1_024
"""Cells up to this size lie in their job's row."""

Stored = bytes | int | None
"""A cell as it lies in a row: absent, small, or the number of a row in ``cells``."""

_QUEUE = load("queue")
_CELL = load("cell")


class Rules(NamedTuple):
    """What counts when jobs of a queue come and go."""

    qid: int
    name: str
    governed: int
    turns: int
    """Of each group."""
    depth: int | None
    holders: int | None
    bounded: int
    """Whether the end of a job may be what others wait for."""


class Damaged(Corrupt):
    """Tables of the store that should agree do not, and which row is to blame was not found. Restore a backup."""


class Session:
    """A connection to read from."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany

    def read(self, cell: Stored) -> bytes | None:
        """The bytes of a stored cell. Of one whose row is gone, which takes damage to the file, nothing is left: the
        core refuses an empty cell, and with it that one job."""
        if not isinstance(cell, int):
            return cell
        row = self.first(_CELL["get"], (cell,))
        return b"" if row is None else bytes(row[0])

    def weigh(self, cell: Stored) -> int:
        """How many bytes a stored cell has."""
        if isinstance(cell, int):
            row = self.first(_CELL["size"], (cell,))
            return 0 if row is None else int(row[0])
        return 0 if cell is None else len(cell)

    def rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """All rows."""
        return self.execute(sql, bindings).fetchall()

    def one(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """The only row of a statement that always has one."""
        [row] = self.execute(sql, bindings)
        return row

    def first(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """The first row, or None."""
        return self.execute(sql, bindings).fetchone()


class Transaction(Session):
    """A connection to write to. Counters are added up here and written once; hints are sent once it has committed."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.hints: dict[str, list[JobId]] = {}
        self._counts: dict[int, list[int]] = {}
        self._places: dict[int, list[int]] = {}
        self._qids: dict[str, int] = {}
        self._rules: dict[int, Rules] = {}
        self._last_cell: int | None = None

    # -- counters

    def count(self, qid: int, code: int, change: int) -> None:
        """So many jobs more, or less, of this queue are in this state; or so many of its keys outlive theirs."""
        counts = self._counts.get(qid)
        if counts is None:
            counts = self._counts[qid] = [0] * 7
        counts[code] += change

    def pending(self, qid: int, code: int) -> int:
        """By how much the counter of a queue will change."""
        counts = self._counts.get(qid)
        return 0 if counts is None else counts[code]

    def fill(self, code: int, count: int, size: int) -> None:
        """So many records and bytes more, or less, lie in this place of ended jobs, of keys or of ticks."""
        place = self._places.setdefault(code, [0, 0])
        place[0] += count
        place[1] += size

    def flush(self) -> None:
        """Write the counters: before the commit, and before anything that reads them."""
        for qid, counts in self._counts.items():
            self.execute(_QUEUE["tally"], (qid, *counts))
        for code, place in self._places.items():
            self.execute(_QUEUE["place"], (code, *place))
        self._counts.clear()
        self._places.clear()

    # -- queues

    def find_queue(self, name: str) -> int | None:
        """The number of a queue, if it is known."""
        qid = self._qids.get(name)
        if qid is None and (row := self.first(_QUEUE["find"], (name,))) is not None:
            qid = self._know(Rules._make(row))
        return qid

    def _know(self, rules: Rules) -> int:
        self._qids[rules.name] = rules.qid
        self._rules[rules.qid] = rules
        return rules.qid

    def queue(self, name: str) -> int:
        """The number of a queue, which is made known."""
        qid = self.find_queue(name)
        if qid is None:
            qid = self._know(Rules._make(self.one(_QUEUE["add"], (name,))))
        return qid

    def forget_idle_queues(self, now: int) -> None:
        """The names of queues that nothing refers to any more go; a number that they had may come again."""
        self.flush()
        self.execute(_QUEUE["forget_idle"], (now,))
        self.look_anew()

    def look_anew(self) -> None:
        """Queues, or their rules, have changed."""
        self._qids.clear()
        self._rules.clear()

    def rules(self, qid: int) -> Rules:
        """What counts in a queue that is known."""
        rules = self._rules.get(qid)
        if rules is None:
            rules = Rules._make(self.one(_QUEUE["rules"], (qid,)))
            self._know(rules)
        return rules

    # -- cells

    def put(self, cell: bytes | None) -> Stored:
        """Store a cell's bytes: what to write into the row."""
        if cell is None or len(cell) <= INLINE:
            return cell
        if self._last_cell is None:
            [self._last_cell] = self.one(_CELL["last"])
        self._last_cell += 1
        self.execute(_CELL["put"], (self._last_cell, cell))
        return self._last_cell

    def drop(self, *cells: Stored) -> None:
        """Let go of stored cells whose rows are about to forget them."""
        for cell in cells:
            if isinstance(cell, int):
                self.execute(_CELL["drop"], (cell,))

    # -- hints

    def wake_queue(self, qid: int) -> None:
        """A job of this queue may have become claimable."""
        self.hints.setdefault(f"queue:{self.rules(qid).name}", [])

    def wake_holder(self, holder: str) -> None:
        """The holder's next renew brings a cancellation."""
        self.hints.setdefault(f"holder:{holder}", [])

    def wake_planners(self) -> None:
        """A schedule was saved."""
        self.hints.setdefault("schedules:all", [])

    def wake_inbox(self, inbox: str, job_id: JobId) -> None:
        """A job that the inbox waits for has ended."""
        self.hints.setdefault(f"inbox:{inbox}", []).append(job_id)


def dies_at(expires_at: int | None, run_at: int) -> int | None:
    """From when on a job is due and expired."""
    return None if expires_at is None else max(expires_at, run_at)
