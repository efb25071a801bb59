"""The ten operations on one shard: each is one call of a script on the server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.backends.listing import claiming_from
from headrace.backends.redis import marshalling
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.job_layout import encode
from headrace.backends.redis.marshalling import at_arg, or_false
from headrace.backends.redis.pieces import pieces
from headrace.backends.redis.policies import ShardPolicies
from headrace.backends.redis.schedule_layout import TICK_BYTES
from headrace.backends.redis.scripts import run
from headrace.backends.redis.ticks import ShardTicks
from headrace.backends.redis.translate import Refused, translated
from headrace.backends.states import CODES, STATES
from headrace.errors import BackendError, StoreFull
from headrace.seam import records as r
from headrace.seam.policy import STORE
from headrace.types import SECTIONS, JobState

log = logging.getLogger("headrace")

_LOOK = 2_000
"""How many jobs one call looks at if many may not match."""
_NAMED = 2_000
"""How many queues one call claims from."""
_QUEUES = 200
"""How many queues one call counts."""
_LEASES = 1_000
"""How many leases one call renews."""
NO_BOUND = 2**31
"""More often than a job can be lost."""
LEFT = r.Inserted(r.InsertStatus.SAME, b"")
"""The answer for a row whose job has left for another shard."""
_STATUSES = {1: r.InsertStatus.SAME, 2: r.InsertStatus.DUPLICATE, 3: r.InsertStatus.DONE}
_STORE_FULL = 5
_FULL = (4, _STORE_FULL)
_KINDS: dict[type[r.Change], int] = {
    r.Cancel: 1, r.Pause: 2, r.Resume: 3, r.Requeue: 4, r.Move: 5, r.Reprioritise: 6, r.Watch: 7, r.Hold: 8,
    r.Delete: 9, r.Reschedule: 10,
}  # fmt: skip
_PUT_AT = 11
"""The kind of a Reschedule to an instant."""
_ANY = 63
_DURABLE = "in the server's memory; what survives a restart depends on its append-only file (appendonly, appendfsync)"
_worker = msgspec.msgpack.Decoder(tuple[str, tuple[str, ...], int, int, str, str, str]).decode


class Shard:
    """Jobs under keys that begin with ``base``, whose hash tag puts them into one slot. A store of its own."""

    limits = r.Limits(max_batch=1_000, durable=_DURABLE)

    def __init__(
        self, connections: Connections, base: str, where: str, away: marshalling.Away = marshalling.nowhere
    ) -> None:
        self._connections = connections
        self._base = base
        self._where = where
        self._away = away
        self._rotation = 0
        self.ticks = ShardTicks(self._run, away)
        self.policies = ShardPolicies(self._run, self.limits.count_cap)

    async def _run(self, name: str, *args: Any) -> Any:
        return await run(self._connections, self._where, name, self._base, args)

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        """In several calls if it is much work for the server."""
        marshalling.checked(rows)
        answers: list[r.Inserted] = []
        for piece in pieces(rows):
            try:
                answers += await self._insert(piece, at)
            except StoreFull as error:
                if not answers:
                    raise
                raise StoreFull(
                    f"{self._where} is full: the server has reached its maxmemory. The first {len(answers)} of "
                    f"{len(rows)} are stored; repeating all of it is safe, and work goes on by itself"
                ) from error
        return answers

    async def _insert(self, rows: Sequence[r.Row], at: r.Stamp) -> list[r.Inserted]:
        names, heads, *parts, bodies = marshalling.insert_args(rows)
        found = await self._run("insert", at_arg(at), names, heads, *parts, *bodies)
        answers = [r.Inserted(r.InsertStatus.NEW, row.id) for row in rows]
        for number, status, job_id, state, attempt, result in found:
            if status in _FULL:
                room = r.Room(STORE if status == _STORE_FULL else rows[number - 1].queue, int(result), attempt)
                answers[number - 1] = r.Inserted(r.InsertStatus.FULL, job_id, room=room)
            else:
                known = r.Inserted(_STATUSES[status], job_id, STATES[state], result, attempt)
                answers[number - 1] = LEFT if state < 0 else known
        return answers

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        first, *others = self._windows(req)
        answer = await self._run("claim", at_arg(at), *claim_args(first))
        return await self._claim_others(await self._claimed(answer, first, at), int(answer[-1]), req, others, at)

    def _windows(self, req: r.Claim) -> list[r.Claim]:
        """Split a claim that names more queues than one call looks at. Each time another part comes first."""
        if len(req.queues) <= _NAMED:
            return [req]
        self._rotation += 1
        pieces = [req.queues[first : first + _NAMED] for first in range(0, len(req.queues), _NAMED)]
        begin = self._rotation % len(pieces)
        return [replace(req, queues=piece) for piece in (*pieces[begin:], *pieces[:begin])]

    async def _claim_others(
        self, claimed: r.Claimed, room: int, req: r.Claim, others: Sequence[r.Claim], at: r.Stamp
    ) -> r.Claimed:
        """Claim from the other parts while there is room."""
        for other in others:
            left = req.limit - len(claimed.jobs)
            if left <= 0 or room <= 0:
                break
            part = replace(other, limit=left, max_bytes=room)
            answer = await self._run("claim", at_arg(at), *claim_args(part))
            room = int(answer[-1])
            more = await self._claimed(answer, part, at)
            times = [next_in for next_in in (claimed.next_in, more.next_in) if next_in is not None]
            claimed = replace(
                more,
                jobs=[*claimed.jobs, *more.jobs],
                next_in=min(times, default=None),
                expired=[*claimed.expired, *more.expired],
                passed_over=claimed.passed_over or more.passed_over,
                chosen=claimed.chosen or more.chosen,
            )
        return claimed if len(claimed.jobs) < req.limit else replace(claimed, next_in=None)

    async def _claimed(self, answer: Sequence[Any], req: r.Claim, at: r.Stamp) -> r.Claimed:
        """Read the answer of a claim, and set jobs aside that cannot be read."""
        claimed, unreadable = marshalling.claimed(answer, req.want)
        if not unreadable:
            return claimed
        log.error("these jobs cannot be read and go to the dead letters: %s", [job.hex() for job in unreadable])
        try:
            await self._run("set_aside", at_arg(at), req.holder, b"".join(unreadable))
        except BackendError as error:
            log.warning(
                "these jobs could not be set aside; that is tried again when their leases have expired: %s", error
            )
        return replace(claimed, next_in=0)

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        if not batch:
            return [], await self.claim(req, at)
        first, *others = self._windows(req)
        settled: list[JobState | None] = []
        answer: list[Any] = []
        while not answer:
            rest = marshalling.finish_args(batch[len(settled) :], self._away)
            answers, *answer = await self._run("finish_and_claim", at_arg(at), *claim_args(first), *rest)
            settled += _settled(answers)
        claimed = await self._claimed(answer[0], first, at)
        return settled, await self._claim_others(claimed, int(answer[0][-1]), req, others, at)

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        """In several calls if it is much work for the server."""
        settled: list[JobState | None] = []
        while len(settled) < len(batch):
            rest = marshalling.finish_args(batch[len(settled) :], self._away)
            settled += _settled(await self._run("finish", at_arg(at), *rest))
        return settled

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        """In several calls if there are very many leases."""
        found = await self._renew(replace(beat, leases=beat.leases[:_LEASES]), at)
        for first in range(_LEASES, len(beat.leases), _LEASES):
            more = await self._renew(replace(beat, leases=beat.leases[first : first + _LEASES], census=False), at)
            found = replace(found, lost=[*found.lost, *more.lost])
        return found

    async def _renew(self, beat: r.Beat, at: r.Stamp) -> r.Renewed:
        worker = encode((beat.worker, beat.queues, beat.slots, beat.busy))
        lost, cancels, paused, held, over = await self._run(
            "renew",
            at_arg(at),
            beat.holder,
            worker,
            beat.ttl,
            beat.lease_for,
            int(beat.leaving),
            marshalling.leases_arg(beat.leases),
            beat.gap,
            beat.at_work,
            r.CENSUS if beat.census else 0,
        )
        mine = [(held[i], int(held[i + 1]), held[i + 2] == 1) for i in range(0, len(held), 3)]
        names = [name.decode() for name in paused]
        return r.Renewed([beat.leases[i - 1] for i in lost], cancels, names, held=mine, overdue=over > 0)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        flat, queues = await self._run("reap", at_arg(at), req.limit, req.max_lost, req.spread, *steady_args(req))
        return marshalling.reaped(flat, marshalling.names(queues))

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await self._alter(sel, change, at, *_arguments(change))

    async def _alter(
        self, sel: r.Selector, change: r.Change, at: r.Stamp, text: str, number: int, *, dry: bool = False
    ) -> list[r.Altered]:
        at = await self.now(at)
        applies = sum(1 << CODES[state] for state in change.applies)
        found: list[r.Altered] = []
        above = sel.above
        while True:
            named, ids, keys, packed = _selection(sel, at, above)
            answers, queues, upto = await self._run(
                "alter", at, named, ids, keys, packed, _kind(change), text, number, applies,
                sel.limit - len(found), _LOOK, int(dry),
            )  # fmt: skip
            names = marshalling.names(queues)
            found += [marshalling.altered(answer, names) for answer in answers]
            if not upto or len(found) >= sel.limit:
                return found
            above = upto

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        if clause.place is r.Place.TICKS:
            return await self.ticks.sweep(clause, at)
        if clause.place is r.Place.KEYS:
            removed, kept, more, _ = await self._sweep_keys(clause, at)
            return r.Swept(removed, 0, kept, bool(more))
        if clause.place is r.Place.TENANTS:
            removed, more = await self._run("idle", at_arg(at), clause.limit, int(clause.dry_run))
            return r.Swept(removed, 0, 0, bool(more))
        state = 0 if clause.place is r.Place.RESULTS else CODES[JobState(clause.place.value)]
        bounds = [-1 if bound is None else bound for bound in (clause.older_than, clause.max_count, clause.max_bytes)]
        removed, freed, kept, more = await self._run(
            "sweep", at_arg(at), state, *bounds, clause.limit, int(clause.dry_run), clause.spare
        )
        return r.Swept(removed, int(freed), kept, bool(more))

    async def _sweep_keys(self, clause: r.SweepClause, at: r.Stamp) -> Any:
        most = -1 if clause.max_count is None else clause.max_count
        return await self._run("keys", at_arg(at), most, clause.limit, int(clause.dry_run))

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        if not names:
            return []
        ids = [name for name in names if not isinstance(name, r.JobKey)]
        keys = [(name.queue, name.key) for name in names if isinstance(name, r.JobKey)]
        now, answers, flat = await self._run(
            "fetch",
            at_arg(at),
            b"".join(ids),
            encode(keys),
            int("error" in want),
            int("result" in want),
            int(not want.isdisjoint(SECTIONS)),
        )
        queues = marshalling.names(flat)
        found = [None if answer is None else marshalling.record(answer, queues, int(now), want) for answer in answers]
        by_id, by_key = iter(found[: len(ids)]), iter(found[len(ids) :])
        return [next(by_key if isinstance(name, r.JobKey) else by_id) for name in names]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        at = await self.now(at)
        below = b"" if after is None else bytes.fromhex(after)
        named, ids, keys, packed = _selection(sel, at, sel.above)
        now, answers, flat, downto = await self._run("scan", at, named, ids, keys, packed, below, limit, _LOOK)
        queues = marshalling.names(flat)
        records = [marshalling.record(answer, queues, int(now), frozenset()) for answer in answers[:limit]]
        if len(answers) > limit:
            return r.Page(records, records[-1].id.hex())
        return r.Page(records, downto.hex() or None)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        found, workers, places = await self.numbers(at, queues)
        return r.Stats(
            sorted(found, key=lambda queue: queue.queue),
            sorted(claiming_from(queues, workers.values()), key=lambda one: (one.started_at, one.worker)),
            places if queues is None else [],
        )

    async def numbers(
        self, at: r.Stamp, names: Sequence[str] | None
    ) -> tuple[list[r.QueueStats], dict[bytes, r.WorkerStats], list[r.PlaceStats]]:
        """Queues (these, or all), workers by holder, and places; in several calls if there are many."""
        queues: dict[bytes, r.QueueStats] = {}
        workers: dict[bytes, r.WorkerStats] = {}
        pieces = [names[first : first + _QUEUES] for first in range(0, len(names), _QUEUES)] if names else []
        cursor, worker = "0" if names is None else "", "0"
        while True:
            wanted = encode(pieces.pop()) if pieces else ""
            counted, found, listed, listed_upto, places, ticks, keys = await self._run(
                "stats", at_arg(at), self.limits.count_cap, wanted, cursor, worker
            )
            for *queue, rest in counted:
                queues[queue[0]] = _queue_stats(queue, await self._oldest(queue[0], rest, at))
            workers |= {holder: _worker_stats(packed) for holder, packed in listed}
            cursor, worker = found.decode() if found != b"0" else "", str(listed_upto) if listed_upto >= 0 else ""
            if not (pieces or cursor or worker):
                break
        return (
            list(queues.values()),
            workers,
            [
                *(r.PlaceStats(STATES[3 + i].value, places[2 * i], places[2 * i + 1]) for i in range(3)),
                r.PlaceStats(r.Place.KEYS.value, keys, 0),
                r.PlaceStats(r.Place.TICKS.value, ticks, ticks * TICK_BYTES),
            ],
        )

    async def _oldest(self, queue: bytes, level: bytes, at: r.Stamp) -> int:
        """How long the oldest job has been due, in the levels from this one on."""
        age = -1
        while level:
            found, level = await self._run("oldest", at_arg(at), queue, level)
            age = max(age, int(found))
        return age

    async def now(self, at: r.Stamp = None) -> int:
        if at is not None:
            return at
        try:
            seconds, micros = await self._connections.call(self._base, "TIME")
        except Refused as error:
            raise translated(error, self._where, base=self._base) from error
        return int(seconds) * 1_000_000 + int(micros)


def steady_args(req: r.Reap) -> tuple[str | int, int, int]:
    """The holder whose beats are checked before a lease is taken back."""
    return "" if req.holder is None else req.holder, req.gap, req.steady


def claim_args(req: r.Claim) -> tuple[Any, ...]:
    """The arguments of a claim."""
    below = NO_BOUND if req.lost_below is None else req.lost_below
    return (
        req.holder, encode(req.queues), req.limit, req.lease_for, below, req.max_bytes,
    )  # fmt: skip


def _settled(answers: Sequence[int]) -> list[JobState | None]:
    return [None if state < 0 else STATES[state] for state in answers]


def _arguments(change: r.Change) -> tuple[str, int]:
    match change:
        case r.Cancel(reason):
            return reason, 0
        case r.Move(queue):
            return queue, 0
        case r.Watch(inbox):
            return inbox, 0
        case r.Reprioritise(priority):
            return "", priority
        case r.Reschedule(delay, run_at):
            return "", delay if run_at is None else max(0, run_at)
        case r.Hold(result_ttl):
            return "", result_ttl
    return "", 0


def _kind(change: r.Change) -> int:
    if isinstance(change, r.Reschedule) and change.run_at is not None:
        return _PUT_AT
    return _KINDS[type(change)]


def _selection(sel: r.Selector, at: int, above: r.JobId | None) -> tuple[int, bytes, bytes, bytes]:
    keys = [(key.queue, key.key) for key in sel.keys or ()]
    states = _ANY if sel.states is None else sum(1 << CODES[state] for state in sel.states)
    packed = encode(
        (
            or_false(sel.queue),
            or_false(sel.tenant),
            or_false(sel.task),
            states,
            -1 if sel.older_than is None else at - sel.older_than,
            (above or b"").hex(),
            or_false(sel.reason),
        )
    )
    return int(sel.ids is not None or sel.keys is not None), b"".join(sel.ids or ()), encode(keys), packed


def _queue_stats(queue: Sequence[Any], overdue: int) -> r.QueueStats:
    name, paused, available, scheduled, running, jobs_paused, completed, cancelled, failed, oldest, until = queue
    age, paused_until = max(overdue, int(oldest)), int(until)
    return r.QueueStats(
        name.decode(), bool(paused), available, scheduled, running, jobs_paused, completed, cancelled, failed,
        None if age < 0 else age, None if paused_until < 0 else paused_until,
    )  # fmt: skip


def _worker_stats(packed: bytes) -> r.WorkerStats:
    worker, queues, slots, busy, started, seen, _ = _worker(packed)
    return r.WorkerStats(worker, queues, slots, busy, int(started), int(seen))
