"""Everything the tables know of one job, wherever it lies."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from headrace.backends.sqlite.readable_text import readable
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import COMPLETED, PAUSED, STATES
from headrace.backends.sqlite.transaction import Session, Stored
from headrace.seam import records as r
from headrace.types import SECTIONS

_SQL = load("entry")


class Entry(NamedTuple):
    """One job. What only some places know is None in the others."""

    seq: int
    id: r.JobId
    qid: int
    queue: str
    priority: int
    run_at: int
    task: str
    tenant: str
    key: str | None
    enqueued_at: int
    expires_at: int | None
    headers: Stored
    error: Stored
    parameters: Stored
    vm_state: Stored
    metadata: Stored
    blob: Stored
    group: str | None
    lane: int
    code: int
    epoch: int
    attempt: int
    lost: int
    size: int
    holder: str | None
    lease_until: int | None
    cancel: int | None
    finished_at: int | None
    held_until: int | None
    reason: str | None
    result: Stored
    worker: str | None
    listed_until: int | None
    progress: bytes | None
    gid: int
    carried: r.CarriedValues

    @property
    def cells(self) -> tuple[Stored, Stored, Stored, Stored]:
        """The stored cells, in the order of ``SECTIONS``."""
        return self.parameters, self.vm_state, self.metadata, self.blob

    def matches(self, sel: r.Selector, now: int) -> bool:
        """Whether the selector's narrowing fields let this job through."""
        return (
            (sel.queue is None or self.queue == sel.queue)
            and (sel.tenant is None or self.tenant == sel.tenant)
            and (sel.task is None or self.task == sel.task)
            and (sel.states is None or STATES[self.code] in sel.states)
            and (sel.older_than is None or self.enqueued_at <= now - sel.older_than)
            and (sel.reason is None or (self.reason or "") == sel.reason)
            and (sel.above is None or self.id > sel.above)
        )

    def record(self, session: Session, want: frozenset[str], now: int) -> r.Record:
        """What an outsider may know."""
        held = self.code == COMPLETED and (self.held_until or 0) > now
        return r.Record(
            id=self.id, queue=self.queue, task=self.task, state=STATES[self.code], tenant=self.tenant, key=self.key,
            priority=self.priority, run_at=self.run_at, enqueued_at=self.enqueued_at, expires_at=self.expires_at,
            finished_at=self.finished_at, epoch=abs(self.epoch), attempt=self.attempt, lost=self.lost,
            headers=session.read(self.headers),
            worker=self.worker if self.worker is not None and (self.listed_until or 0) > now else "",
            lease_until=self.lease_until, cancel_requested=bool(self.cancel),
            reason=r.CORRUPT if self.code > PAUSED and self.finished_at is None else self.reason or "",
            cells=read_cells(session, self.cells, want), error=session.read(self.error) if "error" in want else None,
            result=session.read(self.result) if held and "result" in want else None, held=held, group=self.group,
            progress=self.progress,
            **r.carried_by_name(self.carried),
        )  # fmt: skip


_COLUMNS = (*Entry._fields[:-1], *r.CARRIED)
_TEXTS = [
    _COLUMNS.index(name)
    for name in ("queue", "task", "tenant", "key", "group", "holder", "reason", "worker", *r.CARRIED_TEXTS)
]


def read_cells(session: Session, cells: Iterable[Stored], want: frozenset[str] | None) -> r.Cells:
    """The wanted cells (None: all) that are there, by section."""
    found: r.Cells = {}
    for name, cell in zip(SECTIONS, cells, strict=True):
        if cell is not None and (want is None or name in want):
            found[name] = cell if isinstance(cell, bytes) else session.read(cell) or b""
    return found


def entries(session: Session, seqs: Iterable[int]) -> list[Entry]:
    """The jobs with these numbers, in their order."""
    wanted = array("q", seqs)
    if not wanted:
        return []
    return [_entry(row) for row in session.rows(_SQL["entries"], (apsw.carray(wanted),))]


def _entry(row: Sequence[Any]) -> Entry:
    fields = list(row)
    for place in _TEXTS:
        if fields[place] is not None:
            fields[place] = readable(fields[place])
    count = len(r.CARRIED)
    return Entry._make((*fields[:-count], tuple(fields[-count:])))


def seqs_of_ids(session: Session, ids: Iterable[r.JobId]) -> dict[r.JobId, int]:
    """The numbers of the jobs with these ids, as far as there are such jobs."""
    wanted = tuple(ids)
    if not wanted:
        return {}
    return dict(session.rows(_SQL["by_id"], (apsw.carray(wanted),)))


def seq_of_key(session: Session, name: r.JobKey) -> int | None:
    """The number of the job that last took the key."""
    row = session.first(_SQL["by_key"], (name.queue, name.key))
    return None if row is None else row[0]


def named(session: Session, sel: r.Selector) -> list[int]:
    """The numbers of the jobs that the selector names outright, in the order named; unknown ones are left out."""
    known = seqs_of_ids(session, sel.ids or ())
    found = [known.get(job_id) for job_id in sel.ids or ()] + [seq_of_key(session, name) for name in sel.keys or ()]
    return [seq for seq in dict.fromkeys(found) if seq is not None]


def fetch(
    session: Session, names: Sequence[r.JobId | r.JobKey], want: frozenset[str], now: int
) -> list[r.Record | None]:
    """The records of the jobs named by id or by key, in order; None for those that are unknown."""
    known = seqs_of_ids(session, [name for name in names if not isinstance(name, r.JobKey)])
    seqs = [seq_of_key(session, name) if isinstance(name, r.JobKey) else known.get(name) for name in names]
    found = {entry.seq: entry for entry in entries(session, {seq for seq in seqs if seq is not None})}
    known_entries = [None if seq is None else found.get(seq) for seq in seqs]
    return [None if entry is None else entry.record(session, want, now) for entry in known_entries]
