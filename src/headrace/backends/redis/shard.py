"""The ten operations on one shard: each is one call of a script on the server."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from headrace.backends.archive import MARGIN, Archive, End
from headrace.backends.changes import arguments
from headrace.backends.claims import ClaimParts, both
from headrace.backends.detours import Detours
from headrace.backends.listed_workers import claiming_from
from headrace.backends.portions import slices
from headrace.backends.redis import marshalling
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.documents import RedisDocuments
from headrace.backends.redis.job_layout import encode
from headrace.backends.redis.marshalling import at_arg, or_false
from headrace.backends.redis.opening import read_info
from headrace.backends.redis.pieces import pieces
from headrace.backends.redis.policies import ShardPolicies
from headrace.backends.redis.references import RedisReferences
from headrace.backends.redis.removals import RedisRemovals
from headrace.backends.redis.schedule_layout import TICK_BYTES
from headrace.backends.redis.scripts import run
from headrace.backends.redis.ticks import ShardTicks
from headrace.backends.redis.tracks import RedisTracks
from headrace.backends.redis.transfers import RedisTransfers
from headrace.backends.redis.translate import refusals
from headrace.backends.states import CODES, STATES
from headrace.errors import BackendError, StoreFull
from headrace.seam import records as r
from headrace.seam.archive import Mark
from headrace.seam.policy import STORE
from headrace.seam.usage import Usage
from headrace.types import JobState

log = logging.getLogger("headrace")

_LOOK = 2_000
"""How many jobs one call looks at if many may not match."""
_NAMED = 2_000
"""How many queues one call claims from."""
_QUEUES = 200
"""How many queues one call counts."""
_NAMES = 1_000
"""How many jobs one call changes that are named."""
_LEASES = 1_000
"""How many leases one call renews."""
NO_BOUND = 2**31
"""More often than a job can be lost."""
LEFT = r.Inserted(r.InsertStatus.SAME, b"")
"""The answer for a row whose job has left for another shard."""
_STATUSES = {
    1: r.InsertStatus.SAME, 2: r.InsertStatus.DUPLICATE, 3: r.InsertStatus.DONE, 6: r.InsertStatus.REPLACED,
}  # fmt: skip
_STORE_FULL = 5
_FULL = (4, _STORE_FULL)
_ANY = 63
_SAVED = "rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"
"""What INFO says of the last time that the server wrote its memory down."""
_DURABLE = "in the server's memory; what survives a restart depends on its append-only file (appendonly, appendfsync)"
_worker = msgspec.msgpack.Decoder(tuple[str, tuple[str, ...], int, int, str, str, str]).decode


class _Alteration(NamedTuple):
    """A change as the script takes it."""

    at: int
    kind: int
    text: str
    number: int
    applies: int
    dry: bool


class Shard:
    """Jobs under keys that begin with ``base``, whose hash tag puts them into one slot. A store of its own."""

    limits = r.Limits(max_batch=1_000, durable=_DURABLE)
    tables = None

    def __init__(
        self, connections: Connections, base: str, where: str, away: marshalling.Away = marshalling.nowhere
    ) -> None:
        self._connections = connections
        self._base = base
        self._where = where
        self._away = away
        self._claim_parts = ClaimParts(_NAMED)
        self._detours = Detours()
        self.ticks = ShardTicks(self.run, away)
        self.policies = ShardPolicies(self.run, self.limits.count_cap)
        self.references = RedisReferences(self.run)
        self.documents = RedisDocuments(self.run)
        self.removals = RedisRemovals(self.run)
        self.archive = Archive(self.ends, self.fetch, self.removals)
        self.tracks = RedisTracks(lambda _: self.run)
        self.transfers = RedisTransfers(self.run)

    def run(self, name: str, *args: Any) -> Coroutine[Any, Any, Any]:
        """Run a script on the keys of the shard."""
        return run(self._connections, self._where, name, self._base, args)

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        """In several calls if it is much work for the server."""
        marshalling.checked(rows)
        if len(rows) == 1 and marshalling.is_alone(row := rows[0]) and row.queue not in self._detours:
            if not await self.run("insert_one", at_arg(at), *marshalling.one_args(row)):
                return [r.Inserted(r.InsertStatus.NEW, row.id)]
            self._detours.add(row.queue)
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
        found = await self.run("insert", at_arg(at), names, heads, *parts, *bodies)
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
        first, *others = self._claim_parts.of(req)
        answer = await self.run("claim", at_arg(at), *claim_args(first))
        return await self._claim_others(await self._claimed(answer, first, at), int(answer[-1]), req, others, at)

    async def _claim_others(
        self, claimed: r.Claimed, room: int, req: r.Claim, others: Sequence[r.Claim], at: r.Stamp
    ) -> r.Claimed:
        """Claim from the other parts while there is room."""
        for other in others:
            left = req.limit - len(claimed.jobs)
            if left <= 0 or room <= 0:
                break
            part = replace(other, limit=left, max_bytes=room)
            answer = await self.run("claim", at_arg(at), *claim_args(part))
            room = int(answer[-1])
            claimed = both(claimed, await self._claimed(answer, part, at))
        return claimed if len(claimed.jobs) < req.limit else replace(claimed, next_in=None)

    async def _claimed(self, answer: Sequence[Any], req: r.Claim, at: r.Stamp) -> r.Claimed:
        """Read the answer of a claim, and set jobs aside that cannot be read."""
        claimed, unreadable = marshalling.claimed(answer)
        if not unreadable:
            return claimed
        log.error("these jobs cannot be read and go to the dead letters: %s", [job.hex() for job in unreadable])
        try:
            await self.run("set_aside", at_arg(at), req.holder, b"".join(unreadable))
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
        first, *others = self._claim_parts.of(req)
        settled: list[JobState | None] = []
        answer: list[Any] = []
        while not answer:
            rest = marshalling.finish_args(batch[len(settled) :], self._away)
            answers, *answer = await self.run("finish_and_claim", at_arg(at), *claim_args(first), *rest)
            settled += _settled(answers)
        claimed = await self._claimed(answer[0], first, at)
        return settled, await self._claim_others(claimed, int(answer[0][-1]), req, others, at)

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        """In several calls if it is much work for the server."""
        settled: list[JobState | None] = []
        while len(settled) < len(batch):
            rest = marshalling.finish_args(batch[len(settled) :], self._away)
            settled += _settled(await self.run("finish", at_arg(at), *rest))
        return settled

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        """In several calls if there are very many leases."""
        first, *others = slices(beat.leases, _LEASES) or [()]
        found = await self._renew(replace(beat, leases=first), at)
        for other in others:
            more = await self._renew(replace(beat, leases=other, census=False), at)
            found = replace(found, lost=[*found.lost, *more.lost])
        return found

    async def _renew(self, beat: r.Beat, at: r.Stamp) -> r.Renewed:
        worker = encode((beat.worker, beat.queues, beat.slots, beat.busy))
        lost, cancels, paused, held, over = await self.run(
            "renew", at_arg(at), beat.holder, worker, beat.ttl, beat.lease_for, int(beat.leaving),
            marshalling.leases_arg(beat.leases), beat.gap, beat.at_work, r.CENSUS if beat.census else 0,
            marshalling.progress_arg(beat),
        )  # fmt: skip
        mine = [(job_id, int(epoch), begun == 1) for job_id, epoch, begun in marshalling.tuples(held, 3)]
        names = [name.decode() for name in paused]
        return r.Renewed([beat.leases[i - 1] for i in lost], cancels, names, held=mine, overdue=over > 0)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        return await self._reap(req, at, req.limit)

    async def _reap(self, req: r.Reap, at: r.Stamp, limit: int, *share: int) -> list[r.Reaped]:
        """In several calls if it is much work for the server. The share: how many leases at most, the position of the
        first in the spread, and how many jobs are spread."""
        found: list[r.Reaped] = []
        bounds: Sequence[int] = limit, *share
        while bounds:
            limit, *rest = bounds
            flat, queues, bounds = await self.run(
                "reap", at_arg(at), limit, req.max_lost, req.spread, *steady_args(req), *rest
            )
            found += marshalling.reaped(flat, marshalling.names(queues))
        return found

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await self._alter(sel, change, at, *arguments(change)[1:])

    async def _alter(
        self, sel: r.Selector, change: r.Change, at: r.Stamp, text: str, number: int, *, dry: bool = False
    ) -> list[r.Altered]:
        """In several calls if it is much work for the server."""
        at = await self.now(at)
        applies = sum(1 << CODES[state] for state in change.applies)
        given = _Alteration(at, arguments(change)[0], text, number, applies, dry)
        if sel.ids is not None or sel.keys is not None:
            return await self._alter_named(sel, given)
        found: list[r.Altered] = []
        while True:
            answers, upto, _ = await self._run_alter(replace(sel, limit=sel.limit - len(found)), given)
            found += answers
            if not upto or len(found) >= sel.limit:
                return found
            sel = replace(sel, above=upto)

    async def _alter_named(self, sel: r.Selector, given: _Alteration) -> list[r.Altered]:
        names: list[r.JobId | r.JobKey] = [*dict.fromkeys(sel.ids or ()), *dict.fromkeys(sel.keys or ())]
        found: list[r.Altered] = []
        while names:
            ids = [name for name in names[:_NAMES] if not isinstance(name, r.JobKey)]
            keys = [name for name in names[:_NAMES] if isinstance(name, r.JobKey)]
            answers, _, met = await self._run_alter(replace(sel, ids=ids, keys=keys), given)
            found += answers
            names = names[met:]
            if sel.ids and sel.keys:
                again = {r.JobKey(one.queue, one.key) for one in answers if one.key is not None}
                names = [name for name in names if name not in again]
        return found

    async def _run_alter(self, sel: r.Selector, given: _Alteration) -> tuple[list[r.Altered], r.JobId, int]:
        """Answers what became of jobs, the id up to which it looked, and how many of those named it met."""
        at, kind, text, number, applies, dry = given
        named, ids, keys, packed = _selection(sel, at, sel.above)
        answers, queues, upto, met = await self.run(
            "alter", at, named, ids, keys, packed, kind, text, number, applies, sel.limit, _LOOK, int(dry)
        )
        names = marshalling.names(queues)
        return [marshalling.altered(answer, names) for answer in answers], upto, met

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        if clause.target is r.SweepTarget.TICKS:
            return await self.ticks.sweep(clause, at)
        if clause.target is r.SweepTarget.KEYS:
            removed, kept, more, _ = await self._sweep_keys(clause, at)
            return r.Swept(removed, 0, kept, bool(more))
        if clause.target is r.SweepTarget.TENANTS:
            removed, more = await self.run("idle", at_arg(at), clause.limit, int(clause.dry_run))
            return r.Swept(removed, 0, 0, bool(more))
        state = 0 if clause.target is r.SweepTarget.RESULTS else CODES[JobState(clause.target.value)]
        if clause.jobs is not None:
            return await self._sweep_named(clause, clause.jobs, state, at)
        bounds = [-1 if bound is None else bound for bound in (clause.older_than, clause.max_count, clause.max_bytes)]
        last = clause.spare, at_arg(clause.ended_by)
        removed, freed, kept, more = await self.run(
            "sweep", at_arg(at), state, *bounds, clause.limit, int(clause.dry_run), *last
        )
        return r.Swept(removed, int(freed), kept, bool(more))

    async def _sweep_named(
        self, clause: r.SweepClause, jobs: Sequence[tuple[r.JobId, int]], state: int, at: r.Stamp
    ) -> r.Swept:
        age = -1 if clause.older_than is None else clause.older_than
        flat = [part for job in jobs for part in job]
        removed, freed, kept = await self.run(
            "sweep_named", at_arg(at), state, age, clause.spare, at_arg(clause.ended_by), int(clause.dry_run), *flat
        )
        return r.Swept(removed, int(freed), kept, False)

    async def ends(self, state: JobState, after: Mark | None, limit: int, at: r.Stamp) -> tuple[list[End], int]:
        """See :class:`headrace.backends.archive.ListEnds`."""
        mark = (-1, b"") if after is None else (after.ended_at, after.id)
        now, flat = await self.run("ends", at_arg(at), CODES[state], *mark, limit)
        return [End(int(end), job_id, size) for end, job_id, size in marshalling.tuples(flat, 3)], int(now) - MARGIN

    async def _sweep_keys(self, clause: r.SweepClause, at: r.Stamp) -> Any:
        most = -1 if clause.max_count is None else clause.max_count
        return await self.run("keys", at_arg(at), most, clause.limit, int(clause.dry_run))

    async def usage(self) -> Usage:
        """What the whole server takes up: a store does not know its own share."""
        with refusals(self._where):
            info = read_info(await self._connections.call(self._base, "INFO"))
        failed = any(info.get(name, "ok") != "ok" for name in _SAVED)
        parts = {"commands": int(info.get("total_commands_processed", 0)), "save_failed": int(failed)}
        return Usage(int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)) or None, parts)

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        if not names:
            return []
        keys = [(name.queue, name.key) for name in names if isinstance(name, r.JobKey)]
        ids = [name for name in names if not isinstance(name, r.JobKey)]
        wanted = [int("error" in want), int("result" in want), marshalling.wanted(want)]
        now, answers, flat = await self.run("fetch", at_arg(at), b"".join(ids), encode(keys), *wanted)
        queues = marshalling.names(flat)
        found = [None if answer is None else marshalling.record(answer, queues, int(now), want) for answer in answers]
        by_id, by_key = iter(found[: len(ids)]), iter(found[len(ids) :])
        return [next(by_key if isinstance(name, r.JobKey) else by_id) for name in names]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        at = await self.now(at)
        below = b"" if after is None else bytes.fromhex(after)
        named, ids, keys, packed = _selection(sel, at, sel.above)
        now, answers, flat, downto = await self.run("scan", at, named, ids, keys, packed, below, limit, _LOOK)
        queues = marshalling.names(flat)
        records = [marshalling.record(answer, queues, int(now), frozenset()) for answer in answers[:limit]]
        if len(answers) > limit:
            return r.Page(records, records[-1].id.hex())
        return r.Page(records, downto.hex() or None)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        found, workers, kept = await self.numbers(at, queues)
        return r.Stats(
            sorted(found, key=lambda queue: queue.queue),
            sorted(claiming_from(queues, workers.values()), key=lambda one: (one.started_at, one.worker)),
            kept if queues is None else [],
        )

    async def numbers(
        self, at: r.Stamp, names: Sequence[str] | None
    ) -> tuple[list[r.QueueStats], dict[bytes, r.WorkerStats], list[r.KeptStats]]:
        """Queues (these, or all), workers by holder, and kept; in several calls if there are many."""
        queues: dict[bytes, r.QueueStats] = {}
        workers: dict[bytes, r.WorkerStats] = {}
        pieces = slices(names or (), _QUEUES)
        cursor, worker = "0" if names is None else "", "0"
        while True:
            wanted = encode(pieces.pop()) if pieces else ""
            counted, found, listed, listed_upto, kept, ticks, keys = await self.run(
                "stats", at_arg(at), wanted, cursor, worker
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
                *(r.KeptStats(STATES[3 + i].value, kept[2 * i], kept[2 * i + 1]) for i in range(3)),
                r.KeptStats(r.SweepTarget.KEYS.value, keys, 0),
                r.KeptStats(r.SweepTarget.TICKS.value, ticks, ticks * TICK_BYTES),
            ],
        )

    async def _oldest(self, queue: bytes, level: bytes, at: r.Stamp) -> int:
        """How long the oldest job has been due, in the levels from this one on."""
        age = -1
        while level:
            found, level = await self.run("oldest", at_arg(at), queue, level)
            age = max(age, int(found))
        return age

    async def now(self, at: r.Stamp = None) -> int:
        if at is not None:
            return at
        with refusals(self._where, self._base):
            seconds, micros = await self._connections.call(self._base, "TIME")
        return int(seconds) * 1_000_000 + int(micros)


def steady_args(req: r.Reap) -> tuple[str | int, int, int]:
    """The holder whose beats are checked before a lease is taken back."""
    return "" if req.holder is None else req.holder, req.gap, req.steady


def claim_args(req: r.Claim) -> tuple[Any, ...]:
    """The arguments of a claim."""
    below = NO_BOUND if req.lost_below is None else req.lost_below
    return req.holder, encode(req.queues), req.limit, req.lease_for, below, req.max_bytes, wanted_bits(req)


def wanted_bits(req: r.Claim) -> int:
    """A bit for each section that a claim wants."""
    return marshalling.ALL_SECTIONS if req.want is None else marshalling.wanted(req.want)


def _settled(answers: Sequence[int]) -> list[JobState | None]:
    return [None if state < 0 else STATES[state] for state in answers]


def _selection(sel: r.Selector, at: int, above: r.JobId | None) -> tuple[int, bytes, bytes, bytes]:
    keys = [(key.queue, key.key) for key in sel.keys or ()]
    states = _ANY if sel.states is None else sum(1 << CODES[state] for state in sel.states)
    before = -1 if sel.older_than is None else at - sel.older_than
    narrowed = or_false(sel.queue), or_false(sel.tenant), or_false(sel.task)
    packed = encode((*narrowed, states, before, (above or b"").hex(), or_false(sel.reason)))
    return int(sel.ids is not None or sel.keys is not None), b"".join(sel.ids or ()), encode(keys), packed


def _queue_stats(queue: Sequence[Any], overdue: int) -> r.QueueStats:
    name, paused, available, scheduled, running, jobs_paused, completed, cancelled, failed, oldest, until, later = queue
    age, paused_until, next_due_in = max(overdue, int(oldest)), int(until), int(later)
    return r.QueueStats(
        name.decode(), bool(paused), available, scheduled, running, jobs_paused, completed, cancelled, failed,
        None if age < 0 else age, None if paused_until < 0 else paused_until, None if next_due_in < 0 else next_due_in,
    )  # fmt: skip


def _worker_stats(packed: bytes) -> r.WorkerStats:
    worker, queues, slots, busy, started, seen, _ = _worker(packed)
    return r.WorkerStats(worker, queues, slots, busy, int(started), int(seen))
