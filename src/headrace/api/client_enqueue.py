"""How a client stores new jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.api.client_connection import ClientConnection
from headrace.api.loop_guard import marked
from headrace.core import validation
from headrace.core.batcher import Batcher
from headrace.core.events import Event, EventKind
from headrace.core.slow_calls import timed
from headrace.errors import PartlyUnavailable, Unavailable
from headrace.keeping.budget import BudgetWatch
from headrace.keeping.queue_budgets import QueueBudgets
from headrace.limits.gate import Admission, Gate
from headrace.payloads.stowage import Stowage
from headrace.seam import records as r
from headrace.seam.policy import OPERATIONS
from headrace.types import NewJob

Sending = Callable[[Sequence[NewJob]], AbstractContextManager[list[NewJob]]]
_FLUSHES = 1_000
"""How often a client that is closed waits for jobs that keep coming."""
_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of rows in one trip, unless a single row is larger."""


class ClientEnqueue(ClientConnection):
    """One job, or many; jobs that find no room wait at the gate."""

    sending: Sending | None = None
    """Encloses every enqueue, and may mark its jobs; for traces."""

    def _begin(self) -> None:
        super()._begin()
        self._budget = BudgetWatch(self._backend, self.observers, self.clock)
        self._inserts: Batcher[r.Row, r.Inserted] = Batcher(
            self._insert_rows,
            self._tasks,
            self._rng,
            max_batch=self._backend.limits.max_batch,
            max_bytes=_MAX_BYTES,
            weigh=_weight,
            patience=self._patience.seconds,
            apart=lambda row: row.queue,
            name="headrace-insert",
        )

    async def _end(self) -> None:
        await super()._end()
        for _ in range(_FLUSHES):
            await self._inserts.flush()
            if self._inserts.quiet:
                break

    @marked
    def enqueue(self, job: NewJob, *, reply: bool = False) -> Coroutine[Any, Any, r.Inserted]:
        """Store one job. Calls made at the same time share a trip. With ``reply`` its end can be waited for cheaply."""
        return self._enqueue(job, reply=reply)

    def _enqueue(
        self, job: NewJob, *, reply: bool, at_gate: list[Admission] | None = None
    ) -> Coroutine[Any, Any, r.Inserted]:
        """``at_gate`` gets what is known about the job if there was no room for it."""
        return (self._store if self.sending is None else self._store_marked)(job, reply, at_gate)

    async def _store_marked(self, job: NewJob, reply: bool, at_gate: list[Admission] | None) -> r.Inserted:
        assert self.sending is not None
        with self.sending([job]) as [marked]:
            return await self._store(marked, reply, at_gate)

    async def _store(self, job: NewJob, reply: bool, at_gate: list[Admission] | None) -> r.Inserted:
        if not self._is_open():
            await self._open_patiently()
        if reply:
            await self._waiter.prepare()
        inbox = self._waiter.inbox if reply else None
        row = await self._seal(job, inbox) if self.packer.seals else self.packer.pack(job, inbox)
        try:
            answer = await self._inserts.put(row)
        except Unavailable as error:
            raise _maybe_stored(error) from error.__cause__
        self._tell_inserted(row, answer)
        if answer.status is not r.InsertStatus.FULL:
            return answer
        admission = Admission([job], [row], [answer])
        if at_gate is not None:
            at_gate.append(admission)
        return (await self._admit(admission))[0]

    async def _seal(self, job: NewJob, inbox: str | None) -> r.Row:
        [row] = await self.packer.pack_all([job], inbox)
        return row

    async def _pack_all(self, jobs: list[NewJob]) -> list[r.Row]:
        return await self.packer.pack_all(jobs)

    async def insert(self, jobs: Iterable[NewJob]) -> list[r.Inserted]:
        """Store many jobs, in chunks of the store's batch size; answers come in the order of the jobs.

        All jobs are checked before the first is stored. Up to 64 jobs of 64 MiB are stored whole or not at all, except
        for those that a queue has no room for: ``QueueFull`` lists them. Larger chunks are stored in pieces, in order,
        where they would hold up the store, say by jobs with keys or for very many queues, tenants or groups. Servers of
        a cluster, and shards, store what is theirs by themselves. Repeating the call with the same jobs (and ids) after
        an error stores nothing twice.
        """
        given = validation.check_jobs(jobs)
        if self.sending is None:
            return await self._store_all(given)
        with self.sending(given) as marked:
            return await self._store_all(marked)

    async def _store_all(self, given: list[NewJob]) -> list[r.Inserted]:
        await self._open_patiently()
        rows = await self._pack_all(given)
        answers: list[r.Inserted] = []
        for chunk in chunks(rows, self._backend.limits.max_batch):
            at = len(answers)
            try:
                found = await self._insert_patiently(chunk)
            except Unavailable as error:
                raise _maybe_stored(error, at, len(chunk), len(rows)) from error.__cause__
            full = any(answer.status is r.InsertStatus.FULL for answer in found)
            if self.observers.present or self.observers.meter or full:
                for row, answer in zip(chunk, found, strict=True):
                    self._tell_inserted(row, answer)
            if full:
                admission = Admission(given[at : at + len(chunk)], chunk, found)
                found = await self._admit(admission, rows[:at], rows[at + len(chunk) :])
            answers += found
        return answers

    async def _admit(
        self, admission: Admission, before: Sequence[r.Row] = (), after: Sequence[r.Row] = ()
    ) -> list[r.Inserted]:
        """The answers to jobs of which some were refused, once they have found room. Raises ``QueueFull``, which also
        lists the jobs stored ``before`` and those to be stored ``after``."""
        gate = Gate(self._insert_patiently, self._rng, self._patience.seconds, self._closed)
        refused = admission.refused
        try:
            why = await gate.pass_through(admission)
        except Unavailable as error:
            total = len(before) + len(admission.rows) + len(after)
            raise _maybe_stored(error, len(before), len(admission.rows), total) from error.__cause__
        for i in refused:
            if admission.answers[i].status is not r.InsertStatus.FULL:
                self._tell_inserted(admission.rows[i], admission.answers[i])
        if admission.refused:
            raise admission.error(before, after, why)
        return admission.answers

    async def _insert_patiently(self, rows: list[r.Row]) -> list[r.Inserted]:
        """Past the batcher: the rows are a whole batch already."""
        return await self._patience.repeat(lambda: self._insert_rows(rows), rows, _weight)

    def _insert_rows(self, rows: list[r.Row]) -> Coroutine[Any, Any, list[r.Inserted]]:
        """Checks the budget; few layers of coroutines, as every answer goes through all of them."""
        refusal = self._budget.refusal(self._tasks)
        if refusal and any(row.queue != OPERATIONS for row in rows):
            raise refusal
        queues = self._budget.queues
        return self._store_rows(rows) if queues is None or not queues.full else self._store_some(queues, rows)

    async def _store_some(self, queues: QueueBudgets, rows: list[r.Row]) -> list[r.Inserted]:
        """Those rows whose queues are within their budgets."""
        refused = await queues.refuse(rows)
        if not refused:
            return await self._store_rows(rows)
        others = [row for i, row in enumerate(rows) if i not in refused]
        try:
            answers = iter(await self._store_rows(others) if others else ())
        except PartlyUnavailable as error:
            raise Unavailable(str(error)) from error  # its positions are those of the others
        return [refused[i] if i in refused else next(answers) for i in range(len(rows))]

    def _store_rows(self, rows: list[r.Row]) -> Coroutine[Any, Any, list[r.Inserted]]:
        if self._stowage is None:
            return timed(self.observers, "insert", self._backend.insert(rows, self.clock.stamp()))
        return self._stow_rows(self._stowage, rows)

    async def _stow_rows(self, stowage: Stowage, rows: list[r.Row]) -> list[r.Inserted]:
        stowed = await stowage.stow_rows(rows)
        answers = await timed(self.observers, "insert", self._backend.insert(stowed, self.clock.stamp()))
        full = r.InsertStatus.FULL
        stowage.stored(row for row, one in zip(rows, answers, strict=True) if one.status is not full)
        return answers

    def _tell_inserted(self, row: r.Row, answer: r.Inserted) -> None:
        if self.observers.meter is not None and answer.status is not r.InsertStatus.FULL:
            new = answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME)
            self.observers.meter.count(row.queue, row.task, "enqueued" if new else "deduplicated")
        if self.observers.present or answer.status is r.InsertStatus.FULL:
            new = answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME)
            kind = EventKind.QUEUED if new else EventKind.DEDUPLICATED
            if answer.status is r.InsertStatus.FULL:
                kind = EventKind.REFUSED
            about = (answer.id, row.queue, row.task, row.key, answer.attempt)
            self.observers.tell(Event(kind, *about, tenant=row.tenant))


def _maybe_stored(error: Unavailable, stored: int = 0, unknown: int = 1, total: int = 1) -> Unavailable:
    """The error of an insert without an answer for some of its jobs. Subclasses of ``Unavailable`` are answers: they
    say that these were not stored."""
    if type(error) not in (Unavailable, PartlyUnavailable):
        return error
    what = "What was enqueued may be stored all the same"
    if unknown < total:
        what = f"Of {total:,} jobs, the first {stored:,} are stored, and the next {unknown:,} may be"
    again = "enqueue the same NewJob again, or one with the same key, and nothing is stored twice"
    return Unavailable(f"{error}. {what}: {again}")


def _weight(row: r.Row) -> int:
    return 256 + sum(map(len, row.cells.values()))


def chunks(rows: list[r.Row], most: int) -> Iterator[list[r.Row]]:
    """Rows in order, in pieces of bounded number and bytes."""
    chunk: list[r.Row] = []
    weight = 0
    for row in rows:
        weight += _weight(row)
        if chunk and (len(chunk) == most or weight > _MAX_BYTES):
            yield chunk
            chunk, weight = [], _weight(row)
        chunk.append(row)
    if chunk:
        yield chunk
