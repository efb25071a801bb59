"""save, find and due: schedules, by their names and by when somebody must look at them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Stored, Transaction
from headrace.seam.ticks import Drop, Look, Looked, Save, Schedule, ScheduleSelector

_SQL = load("schedule")


def save(tx: Transaction, batch: Sequence[Save | Drop], now: int) -> list[bool]:
    """Make, change and remove schedules; answer each, in order: whether it was done."""
    answers = [_drop(tx, change) if isinstance(change, Drop) else _save(tx, change, now) for change in batch]
    if any(answers):
        tx.hint_planners()
    return answers


def _drop(tx: Transaction, change: Drop) -> bool:
    sid, version, definition = _known(tx, change.name)
    if version != change.expect:
        return False
    if sid is not None:
        tx.drop(definition)
        tx.execute(_SQL["drop"], (sid,))
    return True


def _save(tx: Transaction, change: Save, now: int) -> bool:
    wanted = change.schedule
    sid, version, definition = _known(tx, wanted.name)
    if version != change.expect:
        return False
    tx.drop(definition)
    row = (
        wanted.uid, wanted.queue, wanted.tenant, wanted.plan_priority, wanted.bucket, int(wanted.enabled), wanted.slot,
        wanted.look_at, wanted.runs, wanted.last_slot, wanted.last_job, version + 1, now, tx.put(wanted.definition),
    )  # fmt: skip
    if sid is None:
        tx.execute(_SQL["add"], (*row, now, wanted.name))
    else:
        tx.execute(_SQL["change"], (*row, sid))
    return True


def _known(tx: Transaction, name: str) -> tuple[int | None, int, Stored]:
    """Number, version and definition of a schedule; version 0: there is none."""
    sid, version, definition = tx.first(_SQL["known"], (name,)) or (None, 0, None)
    return sid, version, definition


def find(session: Session, sel: ScheduleSelector, after: str | None, limit: int) -> list[Schedule]:
    """Matching schedules in the order of their names, those above ``after``."""
    first = "" if after is None else f"{after}\0"  # what comes right after it, as no name holds a NUL
    asked: tuple[Any, ...] = (first, limit, sel.tenant, sel.queue)
    if sel.names is not None:
        names = tuple(sorted(set(sel.names)))
        found = session.rows(_SQL["named"], (*asked, apsw.carray(names))) if names else []
    elif sel.tenant or (sel.tenant is not None and sel.queue is None):
        found = session.rows(_SQL["of_tenant"], asked)
    elif sel.queue is not None:
        found = session.rows(_SQL["of_queue"], asked)
    else:
        found = session.rows(_SQL["all"], asked[:2])
    return _schedules(session, (sid for [sid] in found))


def due(session: Session, req: Look, now: int) -> Looked:
    """Up to ``req.limit`` schedules that somebody must look at, the first by (plan_priority, look_at, name)."""
    share = (req.share, req.shares)
    heads = [(rank, first) for rank, first in session.rows(_SQL["heads"], share) if first is not None]
    come = [rank for rank, first in heads if first <= now]
    sids: list[int] = []
    for rank in come:
        if len(sids) < req.limit:
            sids += [sid for [sid] in session.rows(_SQL["due"], (*share, rank, now, req.limit - len(sids)))]
    next_in = None
    if len(sids) < req.limit:
        coming = [first for _, first in heads if first > now]
        for rank in come:
            coming += [first for [first] in session.rows(_SQL["coming"], (*share, rank, now))]
        next_in = min(coming) - now if coming else None
    return Looked(now, _schedules(session, sids), next_in)


def _schedules(session: Session, sids: Iterable[int]) -> list[Schedule]:
    """The schedules with these numbers, in their order."""
    wanted = array("q", sids)
    rows = session.rows(_SQL["rows"], (apsw.carray(wanted),)) if wanted else []
    return [_schedule(session, row) for row in rows]


def _schedule(session: Session, row: Sequence[Any]) -> Schedule:
    fields = dict(zip(Schedule.__struct_fields__, row, strict=True))
    fields["definition"] = session.read(fields["definition"]) or b""
    fields["enabled"] = bool(fields["enabled"])
    return Schedule(**fields)
