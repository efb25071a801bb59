"""Clients: answers arrive unchanged (I16), waiters get their own (I15), nothing acknowledged is lost (I1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.seam.records import Inserted, InsertStatus, JobId, Row
from headrace.testing.sim.history import Event, Kind, Snapshot, Wait
from headrace.testing.sim.ledger import Ledger
from headrace.types import JobState

_GRACE = 1_000_000
"""How much later than its timeout a waiter may hear of it."""
ONCE = b"once:"
"""Rows whose headers hold this and are equal are tries of one request: at most one of them may be accepted."""


class Clients:
    """What the nodes heard, against what the store said and did."""

    def __init__(self, book: Ledger) -> None:
        self._book = book
        self._answers: dict[int, list[Any]] = {}
        self._requests: dict[bytes, JobId] = {}
        self._acknowledged: dict[JobId, None] = {}
        self._attempted: dict[JobId, None] = {}
        self._leapt = 0
        self._leapt_before: dict[int, int] = {}

    def applied(self, call: int, answer: Any) -> None:
        """The store has answered."""
        self._answers.setdefault(call, []).append(answer)

    def invoked(self, rows: Sequence[Row]) -> None:
        """An insert was sent."""
        for row in rows:
            self._attempted[row.id] = None

    def accepted(self, rows: Sequence[Row], answers: Sequence[Inserted]) -> None:
        """The store has taken rows in."""
        for row, answer in zip(rows, answers, strict=False):
            if answer.status is InsertStatus.NEW and row.headers is not None and ONCE in row.headers:
                first = self._requests.setdefault(row.headers, row.id)
                if first != row.id:
                    self._book.blame("I13", row.id, f"a request was accepted twice, first as {first.hex()}")

    def answered(self, event: Event) -> None:
        """An answer has reached its node."""
        given = self._answers.get(event.call)
        if given is None:
            self._book.blame("I16", None, f"{event.op} was answered to {event.node}, and the store never saw it")
        elif event.data not in given:
            self._book.blame("I16", None, f"{event.op}: {event.node} got an answer that the store did not give")

    def acknowledged(self, rows: Sequence[Row], answers: Sequence[Inserted]) -> None:
        """A sender knows that its rows are safe."""
        for row, answer in zip(rows, answers, strict=False):
            if answer.status in (InsertStatus.NEW, InsertStatus.SAME):
                self._acknowledged[row.id] = None

    def leapt(self, by: int) -> None:
        """The store's clock, which dates events, has jumped: nobody has waited that long."""
        self._leapt += by

    def waits(self, asked: Event) -> None:
        """Somebody begins to wait."""
        self._leapt_before[asked.call] = self._leapt

    def waited(self, asked: Event, heard: Event) -> None:
        """A waiter has heard: the state that the job ended in and its result, None for a timeout, or that it went."""
        wait: Wait = asked.data
        took = heard.at - asked.at - (self._leapt - self._leapt_before[asked.call])
        if took > wait.timeout + _GRACE:
            self._book.blame("I15", wait.id, f"a waiter heard {took} µs after it asked")
        if heard.kind is Kind.FAIL:
            self._book.reach("wait for a job that is gone")
            return
        if heard.data is None:
            self._book.reach("wait timed out")
            return
        state, result = heard.data
        ends = self._book.ends.get(wait.id, [])
        if (state, result) in ends or (result is None and state in [end for end, _ in ends]):
            self._book.reach("wait answered" if state is JobState.COMPLETED else "wait answered with an error")
        else:
            self._book.blame("I15", wait.id, f"a waiter got {state}, {result!r}; the job ended as {ends}")

    def lost(self, snapshot: Snapshot) -> tuple[JobId, ...]:
        """Acknowledged jobs that should be there and are not."""
        found = {record.id for record in snapshot.records}
        return tuple(i for i in self._acknowledged if i not in found and i not in self._book.gone)

    def unexpected(self, snapshot: Snapshot) -> tuple[JobId, ...]:
        """Jobs that are there and that nobody asked for."""
        known = self._book.jobs.keys() | self._book.gone.keys() | self._attempted.keys()
        return tuple(record.id for record in snapshot.records if record.id not in known)

    def recovered(self) -> tuple[JobId, ...]:
        """Jobs that were stored without their senders' ever knowing."""
        stored = self._book.jobs.keys() | self._book.gone.keys()
        return tuple(i for i in self._attempted if i in stored and i not in self._acknowledged)
