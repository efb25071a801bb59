"""One shard of several: what the shards are asked so that they act as one store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headrace.backends.redis import marshalling
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.job_layout import encode
from headrace.backends.redis.marshalling import at_arg
from headrace.backends.redis.shard import NO_BOUND, Shard, claim_args, steady_args, wanted_bits
from headrace.backends.states import CODES
from headrace.seam import records as r
from headrace.types import JobState

_ENTRIES = 200
_ENTRY_BYTES = 4 * 1024 * 1024
"""How much is carried from shard to shard in one step."""

TO_CLAIM, EXPIRED, PASSED_OVER = range(3)
UNKNOWN, HERE, LEAVING = range(3)


class Met(NamedTuple):
    """A due job that a claim would find; sorted in the order of a claim."""

    priority: int
    run_at: int
    id: r.JobId
    size: int
    kind: int


class Peeked(NamedTuple):
    """What a claim would find."""

    met: list[Met]
    next_in: int | None
    more: bool
    """Whether there are due jobs after these."""
    quiet: bool
    """Whether a queue has due jobs but no signal."""
    governed: frozenset[str] = frozenset()
    """The governed queues; their jobs were not looked at."""
    paused: frozenset[str] = frozenset()
    resumes_in: int | None = None
    """How long until the first of these pauses ends."""


class Overdue(NamedTuple):
    """What a reap would find."""

    leases: list[tuple[int, r.JobId]]
    """The first leases that have expired, and when they did."""
    cancellable: int
    """Due jobs that have expired."""
    targets: list[int]
    """Shards for which something waits here."""
    others: int
    """What else there is to do: workers that are gone but still listed, and queues whose groups are to be called
    again."""


class Share(NamedTuple):
    """The part of a reap that one shard does."""

    leases: int
    cancellable: int
    first: int
    """The position of its first job among all that are taken back."""
    total: int
    """How many are taken back in all."""


class EndedJob(NamedTuple):
    """A job that a sweep may remove."""

    instant: int
    id: r.JobId
    size: int
    old: bool
    """Whether it goes for its age alone."""


class Ended(NamedTuple):
    """What a sweep would find."""

    total: int
    bytes: int
    jobs: list[EndedJob]
    more: bool
    """Whether it skipped many jobs, and there may be others after them."""


class Outlived(NamedTuple):
    """Keys that outlive the records of their jobs."""

    total: int
    instants: list[float]
    """Until when the first are held."""
    more: bool
    """Whether there are others that may go."""


class ClusterShard(Shard):
    """Shard ``number`` of several."""

    def __init__(self, connections: Connections, base: str, where: str, number: int, away: marshalling.Away) -> None:
        super().__init__(connections, base, where, away)
        self.number = number
        self.base = base

    # -- claim

    async def peek(self, req: r.Claim, queues: Sequence[str], at: r.Stamp) -> Peeked:
        """What a claim would find, in its order."""
        below = NO_BOUND if req.lost_below is None else req.lost_below
        ids, priorities, run_ats, sizes, kinds, next_in, more, quiet, governed, paused, ends = await self.run(
            "peek", at_arg(at), encode(queues), req.limit, below, req.max_bytes, wanted_bits(req)
        )
        met = [Met(*one) for one in zip(priorities, map(int, run_ats), ids, sizes, kinds, strict=True)]
        return Peeked(
            met, _time(next_in), bool(met) and bool(more), bool(quiet), _names(governed), _names(paused), _time(ends)
        )

    async def take(self, req: r.Claim, at: r.Stamp) -> tuple[r.Claimed, int]:
        """A claim, and how many bytes there is still room for."""
        answer = await self.run("claim", at_arg(at), *claim_args(req))
        return await self._claimed(answer, req, at), int(answer[-1])

    async def choose(self, holder: str, lease_for: int, ids: Sequence[r.JobId], at: r.Stamp) -> bool:
        """Whether the holder is to make room for one of these jobs, which it has passed over."""
        answer: int = await self.run("choose", at_arg(at), holder, lease_for, *ids)
        return answer > 1

    async def expire(self, ids: Sequence[r.JobId], at: r.Stamp) -> list[r.Reaped]:
        """Cancel those of these jobs that are due and have expired."""
        flat, queues = await self.run("expire", at_arg(at), b"".join(ids))
        return marshalling.reaped(flat, marshalling.names(queues))

    # -- reap, sweep

    async def overdue(self, req: r.Reap, at: r.Stamp) -> Overdue:
        """What a reap would find."""
        flat, *rest = await self.run("overdue", at_arg(at), req.limit, *steady_args(req))
        return Overdue([(int(end), job_id) for job_id, end in marshalling.tuples(flat, 2)], *rest)

    async def take_back(self, req: r.Reap, share: Share, at: r.Stamp) -> list[r.Reaped]:
        """Do one share of a reap."""
        limit = share.leases + share.cancellable
        return await self._reap(req, at, limit, share.leases, share.first, share.total)

    async def ended(self, clause: r.SweepClause, at: r.Stamp) -> Ended:
        """What a sweep would find."""
        age = -1 if clause.older_than is None else clause.older_than
        state = CODES[JobState(clause.target.value)]
        bounded = clause.max_count is not None or clause.max_bytes is not None
        count, size, flat, more = await self.run(
            "ended", at_arg(at), state, age, clause.limit + 1, int(bounded), int(clause.dry_run), clause.spare,
            at_arg(clause.ended_by),
        )  # fmt: skip
        jobs = [
            EndedJob(int(end), job_id, weight, bool(old)) for job_id, end, weight, old in marshalling.tuples(flat, 4)
        ]
        return Ended(count, int(size), jobs, bool(more))

    async def heaviest(self, bound: str, limit: int) -> list[tuple[bytes, int]]:
        """The tenants with most dead letters here, at most one more than the limit."""
        flat = await self.run("heaviest", bound, limit)
        return [(tenant, int(held)) for tenant, held in marshalling.tuples(flat, 2)]

    async def give(
        self, bound: str, gifts: Sequence[tuple[bytes, int]], clause: r.SweepClause, at: r.Stamp
    ) -> list[tuple[bytes, EndedJob]]:
        """The oldest dead letters of tenants that have too many; at most one more than the limit."""
        pairs = [part for gift in gifts for part in gift]
        flat = await self.run(
            "give", at_arg(at), clause.spare, clause.limit, bound, int(clause.dry_run), at_arg(clause.ended_by), *pairs
        )
        return [
            (gifts[index][0], EndedJob(int(end), job_id, size, False))
            for index, job_id, end, size in marshalling.tuples(flat, 4)
        ]

    async def remove(self, clause: r.SweepClause, jobs: Sequence[EndedJob], at: r.Stamp) -> tuple[int, int]:
        """Remove those of these jobs that have not changed. Returns how many, and their bytes."""
        flat = [part for job in jobs for part in (job.id, job.instant)]
        removed, freed = await self.run("remove", at_arg(at), CODES[JobState(clause.target.value)], *flat)
        return removed, int(freed)

    async def outlived(self, clause: r.SweepClause, at: r.Stamp) -> Outlived:
        """What a sweep of keys would find if this were the only shard."""
        removed, kept, more, instants = await self._sweep_keys(replace(clause, dry_run=True), at)
        return Outlived(removed + kept, [float(instant) for instant in instants], bool(more))

    # -- alter

    async def meet(self, sel: r.Selector, change: r.Change, at: r.Stamp) -> list[r.Altered]:
        """The jobs that the change would apply to; nothing changes."""
        return await self._alter(sel, change, at, "", 0, dry=True)

    async def move(self, sel: r.Selector, change: r.Move, to: int | None, at: r.Stamp) -> list[r.Altered]:
        """Move to a queue of shard ``to``; None: refuse."""
        target = -1 if to is None else 0 if to == self.number else to + 1
        return await self._alter(sel, change, at, change.queue, target)

    # -- where jobs are

    async def locate(self, ids: Sequence[r.JobId], keys: Sequence[r.JobKey]) -> tuple[list[int], list[r.JobId]]:
        """For each id: whether it is unknown, here or leaving, or when it left. For each key: the id that last took it,
        or ``b""``."""
        codes, jobs = await self.run("locate", b"".join(ids), encode([(key.queue, key.key) for key in keys]))
        return codes, jobs

    async def taken(self, keys: Sequence[r.JobKey], at: r.Stamp) -> list[bool]:
        """For each key whether it keeps a job from moving here."""
        answers = await self.run("taken", at_arg(at), encode([(key.queue, key.key) for key in keys]))
        return [bool(one) for one in answers]

    async def trace(self, ids: Sequence[r.JobId]) -> list[r.JobId]:
        """Leave traces of these jobs, which go to another shard. Returns those that are here after all."""
        return [ids[i - 1] for i in await self.run("trace", b"".join(ids))]

    async def untrace(self, ids: Sequence[r.JobId]) -> None:
        """Remove the traces of these jobs."""
        await self.run("untrace", b"".join(ids))

    # -- what goes from shard to shard

    async def outbox(self, target: int, upto: bytes = b"") -> list[bytes]:
        """Drop the entries for ``target`` up to that serial, which have arrived. Returns the next ones."""
        found: list[bytes] = await self.run("outbox", target, upto, _ENTRIES, _ENTRY_BYTES)
        return found

    async def receive(self, source: int, entries: Sequence[bytes]) -> bytes:
        """Take in entries of shard ``source``. Returns the serial of the last one."""
        serial: bytes = await self.run("receive", source, *entries)
        return serial


def _time(micros: bytes) -> int | None:
    return None if int(micros) < 0 else int(micros)


def _names(names: Sequence[bytes]) -> frozenset[str]:
    return frozenset(name.decode() for name in names)
