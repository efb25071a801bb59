"""plan: slots go on the ledger together with their jobs, and their schedules move on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from headrace.backends.sqlite import ledger
from headrace.backends.sqlite.altering import alter_named
from headrace.backends.sqlite.insertion import insert
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.records import Cancel, JobId, Row, Selector
from headrace.seam.ticks import NewTick, Overlap, Plan, TickOutcome

_SCHEDULE = load("schedule")
_TICK = load("tick")
_SUPERSEDED = Cancel("superseded")
_FIRED = ledger.CODES[TickOutcome.FIRED]

Outcomes = list[TickOutcome | None]


class _Progress(NamedTuple):
    """How far a schedule is planned."""

    name: str
    sid: int
    uid: bytes
    version: int
    slot: int | None
    look_at: int | None
    runs: int
    last_slot: int | None
    last_job: JobId | None

    def fits(self, plan: Plan) -> bool:
        """Whether the plan was made for this schedule as it stands."""
        return self.uid == plan.uid and plan.version in (None, self.version)


def nothing_fits(session: Session, batch: Sequence[Plan]) -> list[Outcomes | None] | None:
    """The answer to plans that all come too late, without a lock; None if one of them can be carried out."""
    progress = _progress(session, batch)
    late = [(one := progress.get(plan.name)) is None or not one.fits(plan) for plan in batch]
    return [None] * len(batch) if all(late) else None


def plan(tx: Transaction, batch: Sequence[Plan], now: int) -> list[Outcomes | None]:
    """Carry out plans; answer each, in order, with what became of its ticks, or None: it came too late."""
    planning = _Planning(tx, _progress(tx, batch), now)
    answers = [planning.carry_out(plan) for plan in batch]
    planning.write()
    return answers


def _progress(session: Session, batch: Sequence[Plan]) -> dict[str, _Progress]:
    names = tuple({plan.name for plan in batch})
    return {row[0]: _Progress._make(row) for row in session.rows(_SCHEDULE["progress"], (apsw.carray(names),))}


class _Planning:
    """Plans that are carried out together. What they write is gathered, as far as nobody looks at it."""

    def __init__(self, tx: Transaction, progress: dict[str, _Progress], now: int) -> None:
        self._tx = tx
        self._now = now
        self._progress = progress
        self._moved: set[str] = set()
        self._ticks: dict[tuple[bytes, int], ledger.TickRow] = {}
        self._replaced: list[tuple[bytes, int]] = []
        """Entries that are on the ledger already, and did not fire."""
        self._jobs: dict[JobId, Row] = {}

    def carry_out(self, plan: Plan) -> Outcomes | None:
        progress = self._progress.get(plan.name)
        if progress is None or not progress.fits(plan):
            return None
        outcomes: Outcomes = []
        stored = ledger.known(self._tx, plan.uid, [tick.slot for tick in plan.ticks])
        for tick in plan.ticks:
            outcome = self._enter(plan.uid, tick, stored.get(tick.slot), progress.last_job)
            outcomes.append(outcome)
            if outcome is TickOutcome.FIRED and tick.row is not None:
                progress = progress._replace(runs=progress.runs + 1)
                if plan.version is not None:
                    progress = progress._replace(last_slot=tick.slot, last_job=tick.row.id)
        if plan.version is not None:
            progress = progress._replace(slot=plan.slot, look_at=plan.look_at)
        self._progress[plan.name] = progress._replace(version=progress.version + 1)
        self._moved.add(plan.name)
        return outcomes

    def _enter(self, uid: bytes, tick: NewTick, stored: int | None, last: JobId | None) -> TickOutcome | None:
        """Put a tick on the ledger, and its job into the store; None: its slot has fired."""
        place = uid, tick.slot
        before = self._ticks[place][3] if place in self._ticks else stored
        if before == _FIRED:
            return None
        if before is not None and place not in self._ticks:
            self._replaced.append(place)
        outcome = self._outcome(tick, last)
        row = tick.row if outcome is TickOutcome.FIRED else None
        if row is not None:
            self._jobs.setdefault(row.id, row)
        job = None if row is None else row.id
        self._ticks[place] = (uid, tick.slot, tick.run_at, ledger.CODES[outcome], self._now, tick.count, job)
        return outcome

    def write(self) -> None:
        """One statement per table."""
        self._insert()
        ledger.take_off(self._tx, self._replaced)
        ledger.add(self._tx, list(self._ticks.values()))
        moved: list[tuple[Any, ...]] = [
            (one.sid, one.version, one.slot, one.look_at, one.runs, one.last_slot, one.last_job)
            for one in map(self._progress.__getitem__, self._moved)
        ]
        self._tx.executemany(_SCHEDULE["move"], moved)

    def _outcome(self, tick: NewTick, last: JobId | None) -> TickOutcome:
        if tick.row is None:
            return TickOutcome.MISSED
        if last is not None and tick.overlap is Overlap.SKIP:
            if last in self._jobs:
                self._insert()
            if self._tx.first(_TICK["live"], (last,)) is not None:
                return TickOutcome.SKIPPED
        if last is not None and tick.overlap is Overlap.CANCEL:
            self._insert()  # in their order: a job that is cancelled lets go of its key
            alter_named(self._tx, Selector(ids=[last]), _SUPERSEDED, self._now)
        return TickOutcome.FIRED

    def _insert(self) -> None:
        if self._jobs:
            insert(self._tx, list(self._jobs.values()), self._now)
            self._jobs.clear()
