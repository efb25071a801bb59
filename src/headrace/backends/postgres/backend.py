"""The ten operations on PostgreSQL: each is one call of a function on the server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

from psycopg import DataError, IntegrityError, sql
from psycopg.errors import DatatypeMismatch, UniqueViolation

from headrace.backends.listing import claiming_from
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.arrays import Smallints, bigints, smallints, texts, uuids
from headrace.backends.postgres.bind import PostgresTransactions
from headrace.backends.postgres.bulk import Bulk
from headrace.backends.postgres.composites import ALL_SECTIONS, mask
from headrace.backends.postgres.connections import Connections, Then
from headrace.backends.postgres.crowd import Crowd
from headrace.backends.postgres.days import Days
from headrace.backends.postgres.hints import Listener, Notifier
from headrace.backends.postgres.marks import Marks, Way
from headrace.backends.postgres.policies import PostgresPolicies
from headrace.backends.postgres.schema import Migrator
from headrace.backends.postgres.ticks import PostgresTicks
from headrace.backends.refusal import NotLetIn, NotThere
from headrace.backends.statements import read
from headrace.backends.states import CODES, STATES
from headrace.errors import BackendError, ConfigError, SchemaMismatch
from headrace.seam import records as r
from headrace.types import JobState

log = logging.getLogger("headrace")

_ID = attrgetter("id")
_CLAIM_ORDER = attrgetter("priority", "run_at", "id")
_PLACE = itemgetter(0)
_COUNT_CAP = r.Limits().count_cap
_STATUSES = {1: r.InsertStatus.SAME, 2: r.InsertStatus.DUPLICATE, 3: r.InsertStatus.DONE}
_FULL = 4
_KINDS: dict[type[r.Change], int] = {
    r.Cancel: 1, r.Pause: 2, r.Resume: 3, r.Requeue: 4, r.Move: 5, r.Reprioritise: 6, r.Watch: 7, r.Hold: 8,
    r.Delete: 9, r.Reschedule: 10,
}  # fmt: skip
_PUT_AT = 11
"""The kind of a Reschedule to an instant."""
_PLACES = {CODES[JobState(place)]: place.value for place in (r.Place.COMPLETED, r.Place.CANCELLED, r.Place.FAILED)} | {
    6: r.Place.TICKS.value,
    7: r.Place.KEYS.value,
}
_UNCONFINED = re.compile(r"\{schema\}\.(insert_v1|fetch_v1|matching_v1|save_v1|find_v1|due_v1|plan_v1|history_v1)\b")
"""What a role that is confined to tenants calls by another name."""


class PostgresBackend:
    """Jobs in one schema of a PostgreSQL database, shared by any number of machines."""

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
    ) -> None:
        self._url = url
        self._where = where
        self._schema = schema
        self._size = size
        self._listen = listen
        self._prepare = prepare
        self._migrate = migrate
        self._connections = Connections(url, where, size=size, prepare=prepare)
        self._notifier = Notifier(self._connections, schema)
        self._crowd = Crowd()
        self._listener = Listener(self._connections, schema, self._crowd, self._ranks) if listen else None
        self.tx = PostgresTransactions(schema, where)
        self.ticks = PostgresTicks(self._call, lambda topics: self._notifier.send(topics))
        self.policies = PostgresPolicies(self._call, lambda topics: self._notifier.send(topics), _COUNT_CAP)
        self.tidy = Days(lambda: self._connections, self._call, lambda: self._sql).tidy
        self._way = Way()
        self.migrator = Migrator(self._connections, schema)
        self._opened = False
        self._confined = False
        self._served: set[str] = set()
        """Calls that went through once, here or on a sibling: what the server refuses of these was there before, and
        may be there again."""
        self._sql = _statements(schema)
        self._bulk = Bulk(self._connections, self._sql)
        self._seals = _seals(self._sql["seal"].encode())
        self.limits = r.Limits(
            max_batch=1_000,
            count_cap=_COUNT_CAP,
            trips=2,
            durable="what was acknowledged survives what the server's synchronous_commit says",
        )

    @property
    def hints(self) -> Listener | None:
        return self._listener

    def sibling(self) -> PostgresBackend:
        other = type(self)(
            self._url,
            where=self._where,
            schema=self._schema,
            size=self._size,
            listen=self._listen,
            prepare=self._prepare,
            migrate=self._migrate,
        )
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

    async def checks(self, kept: int = 0) -> list[tuple[str, str, str, str]]:
        """What is worth knowing of the way to the server, for those who look after it."""
        if mode := self._connections.in_clear:
            what = f"sslmode={mode}: what is sent to another machine may go in clear, the password too"
            return [("warn", "transport", what, "leave sslmode out of the URL, if the server speaks TLS")]
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
        try:
            rows = await self._sent(name, params)
        except NotLetIn as error:
            raise error if name in self._served else ConfigError(str(error)) from error.__cause__
        except SchemaMismatch as error:
            raise NotThere(str(error)) if name in self._served else error from error.__cause__
        self._served.add(name)
        return rows

    async def _sent(self, name: str, params: Sequence[Any]) -> list[Any]:
        try:
            return await self._connections.rows(self._sql[name], params, self._seals.get(name))
        except BackendError as error:
            if not isinstance(error.__cause__, DatatypeMismatch):
                raise
        await self.migrator.ready(migrate=False)  # the store was made anew, and its types have other numbers
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
        self._notifier.send((f"inbox:{inbox}", job_id) for job_id, inbox in aside if inbox is not None)
        return await self._call(name, at, *params)

    def _tell(self, rows: Sequence[Sequence[Any]], batch: Sequence[r.Settlement] = ()) -> None:
        told = shapes.hints(rows) + [(f"queue:{row.queue}", None) for s in batch for row in s.spawn]
        jobs = Counter(topic for topic, job_id in told if topic.startswith("queue:"))
        for topic, number in jobs.items():
            self._notifier.count(topic, number)
        if len(told) > jobs.total():
            self._notifier.send(hint for hint in told if hint[0] not in jobs)

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        if not rows:
            return []
        answers = [r.Inserted(r.InsertStatus.NEW, row.id) for row in rows]
        if not (self._bulk.takes(rows) and await self._bulk.insert(rows, at)):
            found = await self._insert(at, shapes.insert_params(rows))
            for ord_, status, job_id, state, attempt, result, packed in found:
                if status == _FULL:
                    room = shapes.room(rows[ord_ - 1].queue, packed)
                    answers[ord_ - 1] = r.Inserted(r.InsertStatus.FULL, job_id, room=room)
                else:
                    answers[ord_ - 1] = r.Inserted(_STATUSES[status], job_id, STATES[state], result, attempt)
        new = Counter(
            row.queue for row, answer in zip(rows, answers, strict=True) if answer.status is r.InsertStatus.NEW
        )
        for queue, jobs in new.items():
            self._notifier.count(f"queue:{queue}", jobs)
        return answers

    async def _insert(self, at: r.Stamp, params: tuple[Any, ...]) -> list[Any]:
        """Ids are new, as a rule: to be ready for one that is not costs a transaction within the transaction."""
        try:
            return await self._call("insert_new", at, *params)
        except BackendError as error:
            if not isinstance(error.__cause__, UniqueViolation):
                raise
        return await self._call("insert", at, *params)

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        began, marks = self._set_out()
        notes = self._crowd.looks(req.queues)
        rows = await self._go_on("claim", at, *self._claim_params(req), *marks)
        self._tell(rows)
        return self._hushed(req, notes, self._claimed(rows, marks, began))

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        if not batch:
            return [], await self.claim(req, at)
        began, marks = self._set_out()
        claim = (*self._claim_params(req), *marks)
        notes = self._crowd.looks(req.queues)
        if shapes.are_plain(batch):
            ordered = sorted(batch, key=_ID)
            call: tuple[Any, ...] = ("turn", at, *shapes.complete_params(ordered), *claim)
        else:
            ordered = []
            call = ("finish_and_claim", at, *shapes.finish_params(batch), at, *claim)
        try:
            rows = await self._call(*call)
        except BackendError as error:
            if not isinstance(error.__cause__, DataError | IntegrityError):
                raise
            return await self.finish(batch, at), await self.claim(req, at)  # one of the two is at fault, by itself
        self._tell(rows, batch)
        states = _completed(batch, ordered, rows) if ordered else _settled(batch, rows)
        return states, self._hushed(req, notes, self._claimed(rows, marks, began))

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        if not batch:
            return []
        if shapes.are_plain(batch):
            ordered = sorted(batch, key=_ID)
            rows = await self._call("complete", at, *shapes.complete_params(ordered))
            self._tell(rows)
            return _completed(batch, ordered, rows)
        rows = await self._call("finish", at, *shapes.finish_params(batch))
        self._tell(rows, batch)
        return _settled(batch, rows)

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        [[lost, busy, cancels, paused, held, epochs, begun, overdue]] = await self._call(
            "renew", at, beat.holder, beat.worker, texts(list(beat.queues)), beat.lease_for,
            uuids([job_id for job_id, _ in beat.leases]), bigints([epoch for _, epoch in beat.leases]),
            beat.ttl, beat.slots, beat.busy, beat.leaving, beat.gap, beat.at_work,
            r.CENSUS if beat.census else 0,
        )  # fmt: skip
        lost, busy = ([beat.leases[ord_ - 1] for ord_ in ords or ()] for ords in (lost, busy))
        mine = list(zip(held or (), epochs or (), begun or (), strict=True))
        return r.Renewed(lost, cancels or (), paused or (), busy, mine, bool(overdue))

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        rows = await self._go_on("reap", at, req.limit, req.max_lost, req.spread, req.holder, req.gap, req.steady)
        self._tell(rows)
        return [shapes.reaped(row) for row in rows if row[0] == 2]

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        text, number = _arguments(change)
        named = sel.ids is not None or sel.keys is not None
        meant = _selection(
            sel, at, None if named else change.applies, limit=sel.limit, unasked=isinstance(change, r.Cancel)
        )  # fmt: skip
        at_instant = isinstance(change, r.Reschedule) and change.run_at is not None
        kind = _PUT_AT if at_instant else _KINDS[type(change)]
        if isinstance(change, r.Cancel | r.Watch):
            rows = await self._call("ask", *meant[:-1], kind, text, sel.reason)
            if self._confined and isinstance(change, r.Watch):  # who did not see the watch has ended the job after this
                rows = await self._call("ask", *meant[:-1], kind, text, sel.reason)
        else:
            states = None if sel.states is None else _codes(sel.states)
            rows = await self._call(
                "alter",
                at,
                *meant,
                kind,
                text,
                number,
                _codes(change.applies),
                not named,
                sel.queue,
                states,
                sel.reason,
            )
        self._tell(rows)
        return [
            r.Altered(row[1], STATES[row[6]], None if row[7] is None else STATES[row[7]], bool(row[8]), row[2], row[5])
            for row in rows
            if row[0] == 6
        ]

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        if clause.place is r.Place.TICKS:
            return await self.ticks.sweep(clause, at)
        if clause.place is r.Place.KEYS:
            [found] = await self._call("sweep_keys", at, clause.max_count, clause.limit, clause.dry_run)
        elif clause.place is r.Place.TENANTS:
            [found] = await self._call("sweep_tenants", at, clause.limit, clause.dry_run)
        elif clause.place is r.Place.RESULTS:
            [found] = await self._call("sweep_results", at, clause.limit, clause.dry_run)
        else:
            state = CODES[JobState(clause.place.value)]
            [found] = await self._call(
                "sweep", at, state, clause.older_than, clause.max_count, clause.max_bytes, clause.limit, clause.dry_run,
                clause.spare,
            )  # fmt: skip
        return r.Swept(*found)

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
        records = {row[0]: shapes.record(row[2:], row[1]) for row in found}
        by_id, by_key = count(1), count(len(ids) + 1)
        return [records.get(next(by_key if isinstance(name, r.JobKey) else by_id)) for name in names]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        below = None if after is None else bytes.fromhex(after)
        found = await self._call("scan", at, *_selection(sel, at, None, limit=limit + 1, below=below, newest=True))
        records = [shapes.record(row[2:], row[1]) for row in found[:limit]]
        return r.Page(records, records[-1].id.hex() if len(found) > limit else None)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        names = None if queues is None else texts(list(queues))
        found = await self._call("stats", at, self.limits.count_cap, names)
        workers = await self._call("workers", at)
        places = await self._call("places") if queues is None else ()
        return r.Stats(
            [r.QueueStats(*row) for row in sorted(found)],
            claiming_from(queues, (r.WorkerStats(row[0], tuple(row[1]), *row[2:]) for row in workers)),
            [r.PlaceStats(_PLACES[state], count, size) for state, count, size in places],
        )

    # -- inside

    def _claim_params(self, req: r.Claim) -> tuple[Any, ...]:
        want = ALL_SECTIONS if req.want is None else mask(req.want)
        return req.holder, texts(list(req.queues)), req.limit, req.lease_for, want, req.lost_below, req.max_bytes

    def _hushed(self, req: r.Claim, notes: Mapping[str, Mapping[str, int]], claimed: r.Claimed) -> r.Claimed:
        """Tell the others where nothing is left for them."""
        if notes and claimed.next_in != 0:
            told = sum(jobs for tokens in notes.values() for jobs in tokens.values())
            if len(claimed.jobs) < req.limit or len(claimed.jobs) >= told:
                self._notifier.hush(notes, claimed.next_in)
        return claimed

    async def _ranks(self, holder: str, queues: Sequence[str]) -> list[tuple[str, int, int]]:
        return await self._call("ranks", holder, texts(list(queues)))

    def _set_out(self) -> tuple[float, Marks]:
        now = asyncio.get_running_loop().time()
        return now, self._way.marks(now)

    def _claimed(self, rows: Sequence[Any], marks: Marks, began: float) -> r.Claimed:
        jobs: list[r.Leased] = []
        expired: list[r.Reaped] = []
        places: list[int] = []
        for row in rows:
            match row[0]:
                case 1:
                    jobs.append(shapes.leased(row))
                    places.append(row[22])
                case 2:
                    expired.append(shapes.reaped(row))
        _, *_, walked, passed_over, _, next_in, due = rows[-1][:12]
        if places and places[0] is not None:
            jobs = [job for _, job in sorted(zip(places, jobs, strict=True), key=_PLACE)]
        else:
            jobs.sort(key=_CLAIM_ORDER)
        now = asyncio.get_running_loop().time()
        claimed = r.Claimed(jobs, self._way.patience(next_in, now), expired, passed_over > 0, passed_over > 1)
        self._way.walked(walked, claimed, due, marks, began, now)
        self._crowd.took(now - began)
        return claimed


def _seals(seal: bytes) -> dict[str, Then]:
    """By call, how to wait until the disk has what its rows tell, where the claim did not: by waiting while it has the
    turns of tenants, it would keep all others from their claims."""

    def claimed(rows: Sequence[Any]) -> bytes | None:
        return seal if len(rows) > 1 and rows[-1][-1] else None

    def settled(rows: Sequence[Any]) -> bytes | None:
        return seal if rows[-1][-1] else None

    return {"claim": claimed, "turn": settled, "finish_and_claim": settled}


def _statements(schema: str, *, confined: bool = False) -> dict[str, str]:
    """What is sent, by name."""
    calls = read(__package__, "calls")
    if confined:
        calls = {name: _UNCONFINED.sub(r"{schema}.own_\1", call) for name, call in calls.items()}
    quoted = sql.Identifier(schema).as_string(None).replace("%", "%%")
    return {name: call.replace("{schema}", quoted) for name, call in calls.items()}


def _codes(states: Iterable[JobState]) -> Smallints:
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


def _arguments(change: r.Change) -> tuple[str | None, int | None]:
    match change:
        case r.Cancel(reason):
            return reason, None
        case r.Move(queue):
            return queue, None
        case r.Watch(inbox):
            return inbox, None
        case r.Reprioritise(priority):
            return None, priority
        case r.Reschedule(delay, run_at):
            return None, delay if run_at is None else run_at
        case r.Hold(result_ttl):
            return None, result_ttl
    return None, None


def _completed(
    batch: Sequence[r.Settlement], ordered: list[r.Settlement], rows: Sequence[Any]
) -> list[JobState | None]:
    """The answers in the order of the batch. It travels by id, so that no two batches wait for each other."""
    states = _settled(ordered, rows)
    if ordered == batch:
        return states
    found = {s.id: state for s, state in zip(ordered, states, strict=True)}
    return [found[s.id] for s in batch]


def _settled(batch: Sequence[r.Settlement], rows: Sequence[Any]) -> list[JobState | None]:
    states: list[JobState | None] = [s.state for s in batch]
    for row in rows:
        if row[0] == 0:
            states[row[6] - 1] = None if row[7] is None else STATES[row[7]]
    return states
