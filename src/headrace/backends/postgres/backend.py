"""The ten operations on PostgreSQL: each is one call of a function on the server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from msgspec.structs import replace
from psycopg import DataError, IntegrityError, sql
from psycopg.errors import DatatypeMismatch, UniqueViolation

from headrace.backends.archive import Archive
from headrace.backends.changes import arguments
from headrace.backends.claims import ClaimParts
from headrace.backends.detours import Detours
from headrace.backends.listed_workers import claiming_from
from headrace.backends.portions import Costs, Portions, of_selection, step_by_step
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.archive import PostgresEnds, PostgresRemovals
from headrace.backends.postgres.arrays import Array, bigints, byteas, smallints, texts, uuids
from headrace.backends.postgres.bind import PostgresTransactions
from headrace.backends.postgres.bulk import COLUMNS, Bulk
from headrace.backends.postgres.checks import (
    EXTENSION,
    LONG,
    SETTINGS,
    STATEMENTS,
    Fact,
    commits,
    slow_calls,
    transport,
)
from headrace.backends.postgres.composites import ALL_SECTIONS, mask
from headrace.backends.postgres.connections import Connections, Then
from headrace.backends.postgres.crowd import Crowd
from headrace.backends.postgres.days import Days
from headrace.backends.postgres.documents import PostgresDocuments
from headrace.backends.postgres.events import PostgresEvents
from headrace.backends.postgres.hints import Listener, Notifier
from headrace.backends.postgres.journal import PostgresJournal
from headrace.backends.postgres.marks import Marks, Way
from headrace.backends.postgres.parts import PostgresParts
from headrace.backends.postgres.policies import PostgresPolicies
from headrace.backends.postgres.references import PostgresReferences
from headrace.backends.postgres.schema import Migrator
from headrace.backends.postgres.statements import calls
from headrace.backends.postgres.tables import PostgresTables
from headrace.backends.postgres.ticks import PostgresTicks
from headrace.backends.postgres.tracks import PostgresTracks
from headrace.backends.postgres.transfers import PostgresTransfers
from headrace.backends.postgres.translate import allowed
from headrace.backends.refusal import NotLetIn, NotThere
from headrace.backends.states import CODES, STATES
from headrace.errors import BackendError, ConfigError, HeadraceError, SchemaMismatch
from headrace.seam import records as r
from headrace.seam.protocol import Left
from headrace.seam.usage import Usage
from headrace.types import JobState

T = TypeVar("T")

log = logging.getLogger("headrace")

_ID = attrgetter("id")
_COUNT_CAP = r.Limits().count_cap
_STATUSES = {
    1: r.InsertStatus.SAME, 2: r.InsertStatus.DUPLICATE, 3: r.InsertStatus.DONE, 5: r.InsertStatus.REPLACED,
}  # fmt: skip
_CLAIMABLE = (r.InsertStatus.NEW, r.InsertStatus.REPLACED)
_FULL = 4
_LEFT, _NOT_PLAIN = b"\0\2", b"\0\3"
"""Answers of ``insert_one_v1``."""
_COSTS = Costs(row=8, key=45, inbox=4, group=60, tenant=8, queue=130, completed=230, settled=230, early=300)
_CHANGED = 40
"""Jobs that one statement changes or takes back: one by one, as each may concern a key, a group and a tenant, and so
takes up to a millisecond."""
_NAMED = 1_000
"""Queues that one statement claims from or counts."""
_TARGETS = {
    CODES[JobState(place)]: place.value
    for place in (r.SweepTarget.COMPLETED, r.SweepTarget.CANCELLED, r.SweepTarget.FAILED)
} | {
    6: r.SweepTarget.TICKS.value,
    7: r.SweepTarget.KEYS.value,
}
_UNCONFINED = re.compile(r"\{schema\}\.(insert_v1|fetch_v1|matching_v1|save_v1|find_v1|due_v1|plan_v1|history_v1)\b")
"""What a role that is confined to tenants calls by another name."""


class PostgresBackend:
    """Jobs in one schema of a PostgreSQL database, shared by any number of machines."""

    windows = None

    def __init__(
        self,
        url: str,
        *,
        where: str = "PostgreSQL",
        schema: str = "headrace",
        size: int = 4,
        listen: bool = True,
        prepare: bool = True,
        migrate: bool = True,
        copy: bool = True,
    ) -> None:
        self._url = url
        self._where = where
        self._schema = schema
        self._listen = listen
        self._prepare = prepare
        self._migrate = migrate
        self._again = partial(
            type(self), url, where=where, schema=schema, size=size, listen=listen, prepare=prepare, migrate=migrate,
            copy=copy,
        )  # fmt: skip
        self._connections = self._connect(size)
        self._notifier = self._tell_by(self._connections)
        self._crowd = Crowd()
        self._listener = Listener(self._connections, schema, self._crowd, self._ranks) if listen else None
        self._events = PostgresEvents(self._connections, schema) if listen else None
        self.tx = PostgresTransactions(schema, where, lambda: self._connections.session(0))
        means = (self._call, lambda topics: self._notifier.send(topics))
        self.ticks = PostgresTicks(*means)
        self.policies = PostgresPolicies(*means, _COUNT_CAP)
        self.tidy = Days(lambda: self._connections, self._call, lambda: self._sql).tidy
        self.references = PostgresReferences(*means)
        self.documents = PostgresDocuments(*means)
        self.archive = Archive(PostgresEnds(*means), self.fetch, PostgresRemovals(*means))
        self.tracks = PostgresTracks(*means)
        self.transfers = PostgresTransfers(*means)
        self.tables = PostgresTables(lambda: self._connections, schema)
        self.journal = PostgresJournal(*means)
        self.parts = PostgresParts(*means)
        self._way = Way()
        self.migrator = Migrator(self._connections, schema)
        self._opened = self._confined = False
        self._served: set[frozenset[str]] = set()
        """The parts that may call what went through once, here or on a sibling: what the server refuses of a call that
        all of these may make was there before, and may be there again."""
        self._sql = _statements(schema)
        self._detours = Detours()
        self._allowed = {name: allowed(call) or frozenset({name}) for name, call in self._sql.items()}
        self._one = {"insert_one": self._sql["insert_one"].replace("%%", "%").encode()}
        self._bulk = Bulk(self._connections, self._sql, allowed=copy)
        self._portions = Portions(_COSTS)
        self._claim_parts = ClaimParts(_NAMED)
        self._seals = _seals(self._sql["seal"].encode())
        self.limits = r.Limits(
            max_batch=1_000,
            count_cap=_COUNT_CAP,
            trips=2,
            durable="what was acknowledged survives what the server's synchronous_commit says",
        )

    def _connect(self, size: int) -> Connections:
        return Connections(self._url, self._where, size=size, prepare=self._prepare)

    def _tell_by(self, connections: Connections) -> Notifier:
        return Notifier(connections, self._schema)

    @property
    def blocking(self) -> Callable[[Left], PostgresBackend]:
        from headrace.backends.postgres.blocking import BlockingPostgres

        def make(left: Left) -> PostgresBackend:
            other = BlockingPostgres(
                self._url, where=self._where, schema=self._schema, listen=False, prepare=self._prepare, migrate=False,
                copy=False,
            )  # fmt: skip
            other._served = self._served
            other._events = PostgresEvents(other._connections, self._schema) if self._listen else None
            other.within(left)
            return other

        return make

    @property
    def events(self) -> PostgresEvents | None:
        return self._events

    @property
    def hints(self) -> Listener | None:
        return self._listener

    def sibling(self) -> PostgresBackend:
        other = self._again()
        other._served = self._served
        return other

    async def open(self) -> None:
        if self._opened:
            return
        await self._connections.open()
        try:
            found = await self.migrator.ready(migrate=self._migrate)
        except BaseException as error:
            await self._connections.close()
            if isinstance(error, NotLetIn) and not self._served:
                raise ConfigError(str(error)) from error.__cause__
            raise
        self._confined = found.confined
        if found.confined:
            self._sql = _statements(self._schema, confined=True)
        self._opened = True

    async def checks(self, kept: int = 0) -> list[Fact]:
        """What is worth knowing of the server, if this is open, and of the way to it, for those who look after it."""
        if not self._opened:
            return transport(self._connections.in_clear)
        [[commit, fsync, standbys]] = await self._connections.rows(SETTINGS)
        told = commits(commit, fsync, standbys)
        return [*transport(self._connections.in_clear), told, *slow_calls(await self._slow_calls())]

    async def _slow_calls(self) -> list[Any]:
        """Where the server counts statements, and this role may see what it counted."""
        for [place] in await self._connections.rows(EXTENSION):
            schema = self._schema.replace('"', '""').replace("'", "''").replace("%", "%%")
            try:
                return await self._connections.rows(STATEMENTS.format(place=place, schema=schema, long=LONG))
            except HeadraceError as error:
                log.debug("cannot read pg_stat_statements: %s", error)
        return []

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._notifier.flush()
            await self._connections.close()

    async def now(self, at: r.Stamp = None) -> int:
        if at is not None:
            return at
        [[now]] = await self._call("now")
        return int(now)

    async def _call(self, name: str, *params: Any) -> list[Any]:
        return await self._served_by(name, self._sent(name, params))

    async def _served_by(self, name: str, call: Awaitable[T]) -> T:
        parts = self._allowed[name]
        try:
            answer = await call
        except (NotLetIn, SchemaMismatch) as error:
            served = any(known <= parts for known in self._served)
            if isinstance(error, NotLetIn):
                raise error if served else ConfigError(str(error)) from error.__cause__
            raise NotThere(str(error)) if served else error from error.__cause__
        self._served.add(parts)
        return answer

    async def _sent(self, name: str, params: Sequence[Any]) -> list[Any]:
        try:
            return await self._connections.rows(self._sql[name], params, self._seals.get(name))
        except BackendError as error:
            if not isinstance(error.__cause__, DatatypeMismatch):
                raise
        await self.migrator.ready(migrate=False)  # the store was recreated, and its types have other numbers
        return await self._connections.rows(self._sql[name], params, self._seals.get(name))

    async def _go_on(self, name: str, at: r.Stamp, *params: Any) -> list[Any]:
        """Call what must not fail for a single job: where one cannot be read, it is set aside; then call again."""
        try:
            return await self._call(name, at, *params)
        except BackendError as error:
            if not isinstance(error.__cause__, DataError | IntegrityError):
                raise
            aside = await self._call("set_aside", at)
            if not aside:
                raise
            log.error("jobs could not be read, and were set aside; see the dead letters (%s)", error)
        self._notifier.send(shapes.hints(shapes.notices(aside)))
        return await self._call(name, at, *params)

    def _tell(self, notices: Sequence[shapes.Notice], batch: Sequence[r.Settlement] = ()) -> None:
        told = shapes.hints(notices) + [(f"queue:{row.queue}", None) for s in batch for row in s.spawn]
        jobs = Counter(topic for topic, job_id in told if topic.startswith("queue:"))
        for topic, number in jobs.items():
            self._notifier.count(topic, number)
        if len(told) > jobs.total():
            self._notifier.send(hint for hint in told if hint[0] not in jobs)

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        if not rows:
            return []
        if len(rows) == 1 and await self._insert_one(rows[0], at):
            return [r.Inserted(r.InsertStatus.NEW, rows[0].id)]
        if len(portions := self._portions.of_rows(rows)) > 1:
            return [answer for some in portions for answer in await self.insert(some, at)]
        answers = [r.Inserted(r.InsertStatus.NEW, row.id) for row in rows]
        if not (self._bulk.takes(rows) and await self._bulk.insert(rows, at)):
            found = await self._insert(at, shapes.insert_params(rows))
            for ord_, status, job_id, state, attempt, result, packed in found:
                if status == _FULL:
                    room = shapes.room(rows[ord_ - 1].queue, packed)
                    answers[ord_ - 1] = r.Inserted(r.InsertStatus.FULL, job_id, room=room)
                else:
                    answers[ord_ - 1] = r.Inserted(_STATUSES[status], job_id, STATES[state], result, attempt)
        new = Counter(row.queue for row, answer in zip(rows, answers, strict=True) if answer.status in _CLAIMABLE)
        for queue, jobs in new.items():
            self._notifier.count(f"queue:{queue}", jobs)
        return answers

    async def _insert_one(self, row: r.Row, at: r.Stamp) -> bool:
        """Store a plain row in a way of its own. False: nothing is stored, as it is not plain, its queue is new or has
        rules, or its id is stored already."""
        if self._confined or not shapes.is_alone(row) or row.queue in self._detours:
            return False
        topic = f"queue:{row.queue}"
        hint = self._notifier.along(topic)
        try:
            told = await self._value("insert_one", shapes.one_params(row, at, hint), shapes.weight(row))
        except BackendError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
            return False
        if told == _LEFT:
            self._notifier.count(topic, 1)
        elif told == _NOT_PLAIN:
            self._detours.add(row.queue)
        return told != _NOT_PLAIN

    async def _value(self, name: str, params: Sequence[bytes | None], sent: int) -> bytes | None:
        return await self._served_by(name, self._connections.value(self._one[name], params, sent))

    async def _insert(self, at: r.Stamp, params: tuple[Any, ...]) -> list[Any]:
        """Ids are new, as a rule: to be ready for one that is not costs a transaction within the transaction."""
        try:
            return await self._call("insert_new", at, *params)
        except BackendError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
        return await self._call("insert", at, *params)

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        return await self._claim_parts.claim(req, lambda some: self._claim(some, at))

    async def _claim(self, req: r.Claim, at: r.Stamp) -> r.Claimed:
        began, marks = self._set_out()
        notes = self._crowd.looks(req.queues)
        rows = await self._go_on("claim", at, *self._claim_params(req), *marks)
        notices = shapes.notices(rows)
        self._tell(notices)
        return self._hushed(req, notes, self._claimed(req, rows, notices, marks, began))

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        if not batch:
            return [], await self.claim(req, at)
        plain = shapes.are_plain(batch)
        if not plain and len(portions := self._portions.of_settlements(batch)) > 1:
            first = [state for some in portions[:-1] for state in await self.finish(some, at)]
            last, claimed = await self.finish_and_claim(portions[-1], req, at)
            return first + last, claimed
        req, *others = self._claim_parts.of(req)
        began, marks = self._set_out()
        claim = (*self._claim_params(req), *marks)
        notes = self._crowd.looks(req.queues)
        if plain:
            ordered = sorted(batch, key=_ID)
            call: tuple[Any, ...] = ("complete_and_claim", at, *shapes.complete_params(ordered), *claim)
        else:
            ordered = []
            call = ("finish_and_claim", at, *shapes.finish_params(batch), at, *claim)
        try:
            rows = await self._call(*call)
        except BackendError as error:
            if not isinstance(error.__cause__, DataError | IntegrityError):
                raise
            return await self.finish(batch, at), await self._claim(req, at)  # one of the two is at fault, by itself
        notices = shapes.notices(rows)
        self._tell(notices, batch)
        states = shapes.completed(batch, ordered, notices) if ordered else shapes.settled(batch, notices)
        claimed = self._hushed(req, notes, self._claimed(req, rows, notices, marks, began))
        return states, await self._claim_parts.go_on(claimed, others, lambda some: self._claim(some, at))

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        if not batch:
            return []
        if shapes.are_plain(batch):
            ordered = sorted(batch, key=_ID)
            notices = shapes.notices(await self._call("complete", at, *shapes.complete_params(ordered)))
            self._tell(notices)
            return shapes.completed(batch, ordered, notices)
        if len(portions := self._portions.of_settlements(batch)) > 1:
            return [state for some in portions for state in await self.finish(some, at)]
        notices = shapes.notices(await self._call("finish", at, *shapes.finish_params(batch)))
        self._tell(notices, batch)
        return shapes.settled(batch, notices)

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        [[lost, busy, cancels, paused, held, epochs, begun, overdue]] = await self._call(
            "renew", at, beat.holder, beat.worker, texts(list(beat.queues)), beat.lease_for,
            uuids([job_id for job_id, _ in beat.leases]), bigints([epoch for _, epoch in beat.leases]),
            beat.ttl, beat.slots, beat.busy, beat.leaving, beat.gap, beat.at_work,
            r.CENSUS if beat.census else 0,
            byteas([beat.progress.get(job_id) for job_id, _ in beat.leases]) if beat.progress else None,
        )  # fmt: skip
        lost, busy = ([beat.leases[ord_ - 1] for ord_ in ords or ()] for ords in (lost, busy))
        mine = list(zip(held or (), epochs or (), begun or (), strict=True))
        return r.Renewed(lost, cancels or (), paused or (), busy, mine, bool(overdue))

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        return await step_by_step(req.limit, _CHANGED, lambda limit, _: self._reap(replace(req, limit=limit), at))

    async def _reap(self, req: r.Reap, at: r.Stamp) -> list[r.Reaped]:
        rows = await self._go_on("reap", at, req.limit, req.max_lost, req.spread, req.holder, req.gap, req.steady)
        notices = shapes.notices(rows)
        self._tell(notices)
        return shapes.reaped(notices)

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        if sel.ids is not None or sel.keys is not None:
            return [one for some in of_selection(sel, _CHANGED) for one in await self._alter(some, change, at)]

        async def alter(limit: int, before: list[r.Altered]) -> list[r.Altered]:
            above = before[-1].id if before else sel.above
            return await self._alter(replace(sel, above=above, limit=limit), change, at)

        return await step_by_step(sel.limit, _CHANGED, alter)

    async def _alter(self, sel: r.Selector, change: r.Change, at: r.Stamp) -> list[r.Altered]:
        kind, text, number = arguments(change)
        named = sel.ids is not None or sel.keys is not None
        meant = _selection(
            sel, at, None if named else change.applies, limit=sel.limit, unasked=isinstance(change, r.Cancel)
        )  # fmt: skip
        if isinstance(change, r.Cancel | r.Watch):
            rows = await self._call("ask", *meant[:-1], kind, text, sel.reason)
            if self._confined and isinstance(change, r.Watch):  # who did not see the watch has ended the job after this
                rows = await self._call("ask", *meant[:-1], kind, text, sel.reason)
        else:
            states = None if sel.states is None else _codes(sel.states)
            rows = await self._call(
                "alter", at, *meant, kind, text, number, _codes(change.applies), not named, sel.queue, states,
                sel.reason,
            )  # fmt: skip
        notices = shapes.notices(rows)
        self._tell(notices)
        return shapes.altered(notices)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        if clause.target is r.SweepTarget.TICKS:
            return await self.ticks.sweep(clause, at)
        if clause.target is r.SweepTarget.KEYS:
            [found] = await self._call("sweep_keys", at, clause.max_count, clause.limit, clause.dry_run)
        elif clause.target is r.SweepTarget.TENANTS:
            [found] = await self._call("sweep_tenants", at, clause.limit, clause.dry_run)
        elif clause.target is r.SweepTarget.RESULTS:
            [found] = await self._call("sweep_results", at, clause.limit, clause.dry_run)
        else:
            found = await self._sweep_ended(clause, CODES[JobState(clause.target.value)], at)
        return r.Swept(*found)

    async def _sweep_ended(self, clause: r.SweepClause, state: int, at: r.Stamp) -> Any:
        if clause.jobs is None:
            [found] = await self._call(
                "sweep", at, state, clause.older_than, clause.max_count, clause.max_bytes, clause.limit, clause.dry_run,
                clause.spare, clause.ended_by,
            )  # fmt: skip
        else:
            ids, epochs = uuids([job_id for job_id, _ in clause.jobs]), bigints([epoch for _, epoch in clause.jobs])
            [found] = await self._call(
                "sweep_named", at, state, ids, epochs, clause.older_than, clause.dry_run, clause.spare, clause.ended_by
            )
        return found

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        if not names:
            return []
        ids = [name for name in names if not isinstance(name, r.JobKey)]
        keys = [name for name in names if isinstance(name, r.JobKey)]
        found = await self._call(
            "fetch", at, uuids(ids), texts([key.queue for key in keys]), texts([key.key for key in keys]),
            mask(want), "error" in want, "result" in want,
        )  # fmt: skip
        records = {row[0]: shapes.record(row) for row in found}
        by_id, by_key = count(1), count(len(ids) + 1)
        return [records.get(next(by_key if isinstance(name, r.JobKey) else by_id)) for name in names]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        below = None if after is None else bytes.fromhex(after)
        found = await self._call("scan", at, *_selection(sel, at, None, limit=limit + 1, below=below, newest=True))
        records = [shapes.record(row) for row in found[:limit]]
        return r.Page(records, records[-1].id.hex() if len(found) > limit else None)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        found = await self._queue_stats(queues, at)
        workers = await self._call("workers", at)
        kept = await self._call("places") if queues is None else ()
        return r.Stats(
            [r.QueueStats(*row) for row in sorted(found)],
            claiming_from(queues, (r.WorkerStats(row[0], tuple(row[1]), *row[2:]) for row in workers)),
            [r.KeptStats(_TARGETS[state], count, size) for state, count, size in kept],
        )

    async def _queue_stats(self, queues: Sequence[str] | None, at: r.Stamp) -> list[Any]:
        """Some at a time."""
        cap, found = self.limits.count_cap, []
        if queues is not None:
            names = list(dict.fromkeys(queues))
            for start in range(0, len(names), _NAMED):
                found += await self._call("stats", at, cap, texts(names[start : start + _NAMED]), None)
            return [row[:-1] for row in found]
        above: int | None = None
        while True:
            rows = await self._call("stats", at, cap, None, above)
            found += [row[:-1] for row in rows if row[0] is not None]
            if not rows or (above := rows[-1][-1]) is None:
                return found

    async def usage(self) -> Usage:
        [[used, *numbers]] = await self._call("usage")
        parts = "dead_tuples", "wal", "reserve", "free", "commits", "archive_failures"
        return Usage(used, None, dict(zip(parts, numbers, strict=True)))

    async def reserve(self, bytes: int) -> int:
        """See :class:`headrace.seam.usage.KeepReserve`."""
        [[kept]] = await self._call("reserve", bytes)
        return int(kept)

    # -- inside

    def _claim_params(self, req: r.Claim) -> tuple[Any, ...]:
        want = ALL_SECTIONS if req.want is None else mask(req.want)
        return req.holder, texts(list(req.queues)), req.limit, req.lease_for, want, req.lost_below, req.max_bytes

    def _hushed(self, req: r.Claim, notes: Mapping[str, Mapping[str, int]], claimed: r.Claimed) -> r.Claimed:
        """Tell the others where nothing is left for them."""
        if notes and claimed.next_in != 0 and not claimed.passed_over:
            told = sum(jobs for tokens in notes.values() for jobs in tokens.values())
            if len(claimed.jobs) < req.limit or len(claimed.jobs) >= told:
                self._notifier.hush(notes, claimed.next_in)
        return claimed

    async def _ranks(self, holder: str, queues: Sequence[str]) -> list[tuple[str, int, int]]:
        return await self._call("ranks", holder, texts(list(queues)))

    def _set_out(self) -> tuple[float, Marks]:
        now = asyncio.get_running_loop().time()
        return now, self._way.marks(now)

    def _claimed(
        self, req: r.Claim, rows: Sequence[Any], notices: Sequence[shapes.Notice], marks: Marks, began: float
    ) -> r.Claimed:
        rest = shapes.rest(rows)
        now = asyncio.get_running_loop().time()
        next_in = self._way.patience(rest.next_in, now)
        claimed = r.Claimed(
            shapes.leased(rows, req.want), next_in, shapes.reaped(notices), rest.passed_over > 0, rest.passed_over > 1
        )
        self._way.walked(rest.walked, claimed, rest.due, marks, began, now)
        self._crowd.took(now - began)
        return claimed


def _seals(seal: bytes) -> dict[str, Then]:
    """By call, how to wait until the disk has what its rows tell, where the claim did not: by waiting while it has the
    turns of tenants, it would keep all others from their claims."""

    def claimed(rows: Sequence[Any]) -> bytes | None:
        return seal if len(rows) > 1 and shapes.rest(rows).unsealed else None

    def settled(rows: Sequence[Any]) -> bytes | None:
        return seal if shapes.rest(rows).unsealed else None

    return {"claim": claimed, "complete_and_claim": settled, "finish_and_claim": settled}


def _statements(schema: str, *, confined: bool = False) -> dict[str, str]:
    """What is sent, by name."""
    sent = calls()
    if confined:
        sent = {name: _UNCONFINED.sub(r"{schema}.own_\1", call) for name, call in sent.items()}
    quoted = sql.Identifier(schema).as_string(None).replace("%", "%%")
    return {name: call.replace("{columns}", COLUMNS).replace("{schema}", quoted) for name, call in sent.items()}


def _codes(states: Iterable[JobState]) -> Array:
    return smallints(sorted(CODES[state] for state in states))


def _selection(
    sel: r.Selector,
    at: r.Stamp,
    applies: frozenset[JobState] | None,
    *,
    limit: int,
    below: r.JobId | None = None,
    newest: bool = False,
    unasked: bool = False,
) -> tuple[Any, ...]:
    """The parameters of ``matching_v1``."""
    states = sel.states
    if applies is not None:
        states = applies if states is None else states & applies
    keys = sel.keys or ()
    return (
        at,
        sel.ids is not None or sel.keys is not None,
        uuids(list(sel.ids or ())),
        texts([key.queue for key in keys]),
        texts([key.key for key in keys]),
        sel.queue,
        sel.tenant,
        sel.task,
        None if states is None else _codes(states),
        sel.older_than,
        None if sel.above is None else UUID(bytes=sel.above),
        None if below is None else UUID(bytes=below),
        limit,
        newest,
        unasked,
        sel.reason,
    )
