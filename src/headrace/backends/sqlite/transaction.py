"""One write transaction as the operations see it: statements, and what is gathered until it commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import apsw

from headrace.backends.sqlite.statements import load
from headrace.errors import Corrupt
from headrace.seam.records import JobId

INLINE = 1_024
"""Cells up to this size lie in their job's row."""

LARGE = 1024 * 1024
"""Cells beyond this size are written and read in place: the driver and SQLite would each copy them on the way."""
_PIECE = 1024 * 1024

BEYOND = b"\xff" * 17
"""Sorts after every id."""

Stored = bytes | int | None
"""A cell as it lies in a row: absent, small, or the number of a row in ``cells``."""

_QUEUE = load("queue")
_CELL = load("cell")


class Rules(NamedTuple):
    """The rules of a queue that matter when its jobs come and go."""

    qid: int
    name: str
    governed: int
    group_running: int
    depth: int | None
    holders: int | None
    bounded: int
    """Whether others may wait for a job to stop running."""


class Damaged(Corrupt):
    """Tables of the store that should agree do not, and which row is to blame was not found. Restore a backup."""


class Session:
    """A connection to read from."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._open = connection.blob_open
        self.execute = connection.execute
        self.executemany = connection.executemany

    def read(self, cell: Stored) -> bytes | None:
        """The bytes of a stored cell. If its row is gone because the file is damaged, the cell is empty: the core
        refuses it, and with it that one job."""
        if not isinstance(cell, int):
            return cell
        row = self.first(_CELL["get"], (cell, LARGE))
        if row is None:
            return b""
        if row[0] is not None:
            return bytes(row[0])
        blob = self._open("main", "cells", "data", cell, False)
        try:
            return blob.read()
        finally:
            blob.close()

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
        """Change the count of the queue's jobs in this state, or of its keys that outlive their jobs."""
        counts = self._counts.get(qid)
        if counts is None:
            counts = self._counts[qid] = [0] * 7
        counts[code] += change

    def count_all(self, qids: Iterable[int], code: int, change: int) -> None:
        """The same for each of these: a queue is named once per job."""
        for qid, number in Counter(qids).items():
            self.count(qid, code, change * number)

    def pending(self, qid: int, code: int) -> int:
        """By how much the counter of a queue will change."""
        counts = self._counts.get(qid)
        return 0 if counts is None else counts[code]

    def fill(self, code: int, count: int, size: int) -> None:
        """Change the count and the bytes of ended jobs in this state, of keys or of ticks."""
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
        """The number of a queue, which is added if it is unknown."""
        qid = self.find_queue(name)
        if qid is None:
            qid = self._know(Rules._make(self.one(_QUEUE["add"], (name,))))
        return qid

    def forget_idle_queues(self, now: int) -> None:
        """Forget queues that nothing refers to; their numbers may be used again."""
        self.flush()
        self.execute(_QUEUE["forget_idle"], (now,))
        self.forget_rules()

    def forget_rules(self) -> None:
        """Read the rules of queues again, since they have changed."""
        self._qids.clear()
        self._rules.clear()

    def rules(self, qid: int) -> Rules:
        """The rules of a known queue."""
        rules = self._rules.get(qid)
        if rules is None:
            rules = Rules._make(self.one(_QUEUE["rules"], (qid,)))
            self._know(rules)
        return rules

    # -- cells

    def put(self, cell: bytes | None) -> Stored:
        """Store a cell's bytes; return what to write into the row."""
        if cell is None or len(cell) <= INLINE:
            return cell
        if self._last_cell is None:
            [self._last_cell] = self.one(_CELL["last"])
        self._last_cell += 1
        if len(cell) <= LARGE:
            self.execute(_CELL["put"], (self._last_cell, cell))
        else:
            self._put_large(self._last_cell, cell)
        return self._last_cell

    def _put_large(self, number: int, cell: bytes) -> None:
        self.execute(_CELL["put"], (number, apsw.zeroblob(len(cell))))
        whole = memoryview(cell)
        with self._open("main", "cells", "data", number, True) as blob:
            for start in range(0, len(cell), _PIECE):
                blob.write(whole[start : start + _PIECE])

    def drop(self, *cells: Stored) -> None:
        """Drop stored cells that their rows are about to forget."""
        for cell in cells:
            if isinstance(cell, int):
                self.execute(_CELL["drop"], (cell,))

    # -- hints

    def hint_queue(self, qid: int) -> None:
        """A job of this queue may have become claimable."""
        self.hint_queue_named(self.rules(qid).name)

    def hint_queue_named(self, name: str) -> None:
        """The same, by its name."""
        self.hints.setdefault(f"queue:{name}", [])

    def hint_holder(self, holder: str) -> None:
        """The holder's next renew brings a cancellation."""
        self.hints.setdefault(f"holder:{holder}", [])

    def hint_planners(self) -> None:
        """A schedule was saved."""
        self.hints.setdefault("schedules:all", [])

    def hint_inbox(self, inbox: str, job_id: JobId) -> None:
        """A job that the inbox waits for has ended."""
        self.hints.setdefault(f"inbox:{inbox}", []).append(job_id)


def dies_at(expires_at: int | None, run_at: int) -> int | None:
    """From when on a job is due and expired."""
    return None if expires_at is None else max(expires_at, run_at)
