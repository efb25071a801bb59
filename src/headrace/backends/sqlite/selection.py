"""Which jobs a selector means, in the order of their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.backends.sqlite.entry import Entry, entries, named
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, CODES, ENDED, PAUSED, RUNNING, STATES
from headrace.backends.sqlite.transaction import BEYOND, Session
from headrace.seam.records import Cancel, Change, JobId, Page, Selector

_SQL = load("select")
_QUEUE = load("queue")

_FEW = 10_000
"""Up to this many jobs are looked through table by table; more are walked in the order of their ids."""
_STEP = 10_000
"""One step of a walk looks at this many jobs."""
_CHUNK = 200

FIRST = b""
"""Sorts before every id."""

Hits = list[tuple[JobId, int]]


class Search:
    """The jobs in some states that a selector's narrowing fields let through.

    If few jobs are in these states, they are looked through and sorted. If many are, or nothing narrows the search,
    all ids are walked in bounded steps. So a rare state is found at once in a full store, and a common one soon.
    """

    def __init__(self, session: Session, sel: Selector, codes: frozenset[int], now: int, *, newest: bool) -> None:
        self._session = session
        self._codes = codes
        self._newest = newest
        self._unknown = False
        self._qid: int | None = None
        if sel.queue is not None:
            row = session.first(_QUEUE["find"], (sel.queue,))
            self._unknown = row is None
            self._qid = None if row is None else row[0]
        before = None if sel.older_than is None else now - sel.older_than
        self._narrow = (self._qid, sel.tenant, sel.task, before)

    def step(self, start: JobId, wanted: int) -> tuple[Hits, JobId | None]:
        """Hits beyond ``start`` in the order of their ids, and from where the next step goes on; None: nowhere."""
        if self._unknown or not self._codes:
            return [], None
        return (self._look_through(start), None) if self._few() else self._walk(start, wanted)

    def _few(self) -> bool:
        """Whether one step finds all."""
        if len(self._codes) == len(STATES) and self._qid is None:
            return False
        counts: Sequence[int] = self._session.one(_SQL["population"], (self._qid,))
        mine, all_ = counts[:6], counts[6:]
        reach = all_ if self._qid is None else (mine[AVAILABLE], *all_[1:])
        return sum(reach[code] for code in self._codes) <= _FEW

    def _look_through(self, start: JobId) -> Hits:
        hits: list[Any] = []
        run = self._session.rows
        if AVAILABLE in self._codes:
            hits += run(_SQL["available" if self._qid is None else "available_of_queue"], self._narrow)
        if RUNNING in self._codes:
            hits += run(_SQL["running"], self._narrow)
        if PAUSED in self._codes:
            hits += run(_SQL["paused"], self._narrow)
        for code in self._codes.intersection(ENDED):
            hits += run(_SQL["ended"], (*self._narrow, code))
        beyond = [hit for hit in hits if (hit[0] < start if self._newest else hit[0] > start)]
        return sorted(beyond, reverse=self._newest)

    def _walk(self, start: JobId, wanted: int) -> tuple[Hits, JobId | None]:
        """Looks at more and more jobs, as long as there are too few hits among them."""
        sql = _SQL["older" if self._newest else "newer"]
        states = sum(1 << code for code in self._codes)
        hits: Hits = []
        left, length = _STEP, wanted
        while left > 0 and len(hits) < wanted:
            length = min(length, left)
            rows = self._session.rows(sql, (*self._narrow, start, length, states))
            hits += [(job_id, seq) for job_id, seq, fits in rows if fits]
            if len(rows) < length:
                return hits, None
            start = rows[-1][0]
            left -= length
            length *= 4
        return hits, start


def _load(session: Session, hits: Hits) -> Iterator[Entry]:
    for index in range(0, len(hits), _CHUNK):
        yield from entries(session, [seq for _, seq in hits[index : index + _CHUNK]])


def scan(session: Session, sel: Selector, after: str | None, limit: int, now: int) -> Page:
    """Matching jobs, newest id first, without cells."""
    start = BEYOND if after is None else bytes.fromhex(after)
    hits: Hits
    onward: JobId | None = None
    if sel.ids is not None or sel.keys is not None:
        pool = {entry.id: entry.seq for entry in entries(session, named(session, sel))}
        hits = sorted((hit for hit in pool.items() if hit[0] < start), reverse=True)
    else:
        codes = frozenset(range(len(STATES)) if sel.states is None else (CODES[state] for state in sel.states))
        hits, onward = Search(session, sel, codes, now, newest=True).step(start, limit + 1)
    found = list(islice((entry for entry in _load(session, hits) if entry.matches(sel, now)), limit + 1))
    records = [entry.record(session, frozenset(), now) for entry in found[:limit]]
    if len(found) > limit:
        onward = records[-1].id
    return Page(records, None if onward is None else onward.hex())


def candidates(
    sel: Selector, change: Change, start: JobId, limit: int, session: Session, now: int
) -> tuple[list[int], JobId | None]:
    """Up to ``limit`` jobs beyond ``start`` that the selector means and the change applies to, in the order of their
    ids, and from where the next look goes on; None: nowhere."""
    states = change.applies if sel.states is None else change.applies & sel.states
    codes = frozenset(CODES[state] for state in states)
    hits, onward = Search(session, sel, codes, now, newest=False).step(start, limit)
    fit = (
        (entry.id, entry.seq)
        for entry in _load(session, hits)
        if entry.code in codes and entry.matches(sel, now) and not (isinstance(change, Cancel) and entry.cancel)
    )
    found = list(islice(fit, limit))
    if found and len(found) == limit:
        onward = found[-1][0]
    return [seq for _, seq in found], onward
