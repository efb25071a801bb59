"""The flat records that cross the waist (:mod:`headrace.seam.protocol`), in the order in which a job meets them.

Conventions, the same on every backend:

* an id is 16 raw bytes (a UUID's ``bytes``);
* an instant is an int, microseconds since 1970 UTC, on the *store's* clock;
* a duration is an int, microseconds;
* a cell is opaque bytes under a section's name; an empty cell (``b""``) is not an absent one;
* text is any str without NUL and lone surrogates, at most 1,024 bytes in UTF-8. It is data: a backend never builds an
  identifier, a statement or a file name from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import Any, ClassVar, get_args

from msgspec import Struct
from msgspec.structs import fields

from headrace.types import JobState

JobId = bytes
Cells = dict[str, bytes]
Names = Sequence[str] | None
"""Those that are meant; None: all there are."""
Stamp = int | None
"""An instant that overrides the store's clock (tests, simulation), or None: use your own clock."""


CORRUPT = "corrupt"
"""The reason of a FAILED job that the store could not read."""


class Carried(Struct, frozen=True, kw_only=True, gc=False):
    """Options that a store keeps with a job and returns as they came: it decides nothing by them. Each is an int, a str
    or None."""

    max_attempts: int | None = None
    timeout: int | None = None
    result_ttl: int | None = None


CARRIED = Carried.__struct_fields__
CARRIED_TEXTS = frozenset(field.name for field in fields(Carried) if str in get_args(field.type))
CarriedValues = tuple[int | None, int | None, int | None]
carried: Callable[[Carried | Leased | Record], CarriedValues] = attrgetter(*CARRIED)


def carried_by_name(values: CarriedValues) -> dict[str, Any]:
    """Values of ``carried`` as arguments by name."""
    return dict(zip(CARRIED, values, strict=True))


class KeyUntil(IntEnum):
    """Until when a key is taken, as a new row sees it; see ``Backend.insert``."""

    KEPT = 0
    """The job lives, or has completed and is still held."""
    ENDED = 1
    """The job lives."""
    STARTED = 2
    """The job waits."""


class Replaces(IntEnum):
    """What a new row replaces of the waiting job that has its key; see ``Backend.insert``."""

    NOTHING = 0
    CELLS = 1
    TIME = 2
    BOTH = 3


class Row(Carried, frozen=True, gc=False):
    """A job on its way into the store."""

    id: JobId
    queue: str
    task: str
    cells: Cells
    tenant: str = ""
    key: str | None = None
    priority: int = 0
    delay: int = 0
    """Due this long after the insert …"""
    run_at: int | None = None
    """… or at this instant; it overrides ``delay`` and may lie in the past."""
    expires: int | None = None
    """Never started later than this long after the insert."""
    headers: bytes | None = None
    reply_to: str | None = None
    """Inbox that gets a hint when the job ends."""
    hold_failed: bool = False
    """Whether a FAILED job under this key makes the row a duplicate; otherwise the key is free again."""
    key_until: KeyUntil = KeyUntil.KEPT
    """Until when another job that has the key makes the row a duplicate."""
    group: str | None = None
    """At most some jobs of a group run at a time; see ``Backend.claim``."""
    replaces: Replaces = Replaces.NOTHING
    """What a waiting job that has the key takes on of the row."""


class InsertStatus(StrEnum):
    NEW = "new"
    SAME = "same"
    """A job with this id is stored already: an earlier try of the same insert succeeded."""
    DUPLICATE = "duplicate"
    REPLACED = "replaced"
    """The key's job waits, and has taken on what the row replaces."""
    DONE = "done"
    """The key's job completed and its result is still held; the result comes along."""
    FULL = "full"
    """The queue, or the store, has as many waiting jobs as it takes: this one is not stored."""


class Room(Struct, frozen=True):
    """How many jobs may wait in a queue, or in all queues together, and how many do; or how many bytes they may take
    up, and how many they do."""

    queue: str
    """Its name, or :data:`~headrace.seam.policy.STORE` for all queues together."""
    depth: int
    waiting: int
    bytes: bool = False

    def __str__(self) -> str:
        return f"{self.waiting:,} of {self.depth:,} {'bytes are taken up' if self.bytes else 'jobs wait'}"


class Inserted(Struct, frozen=True, gc=False):
    """The store's answer to one row."""

    status: InsertStatus
    id: JobId
    """The stored job's id: the row's own when NEW, SAME or FULL, else the one that holds the key."""
    state: JobState = JobState.AVAILABLE
    result: bytes | None = None
    attempt: int = 0
    room: Room | None = None
    """FULL: the limit that was reached, as it was at that moment; the store's, if that is reached, else that of the
    row's queue."""


class Claim(Struct, frozen=True):
    """A holder's request for work."""

    holder: str
    queues: tuple[str, ...]
    limit: int
    lease_for: int
    want: frozenset[str] | None = None
    """Sections to bring along; None: all of them. Of the others, a job only tells that it has them."""
    lost_below: int | None = None
    """Pass over jobs whose ``lost`` is not below this. A job that may be killing its workers is claimed alone."""
    max_bytes: int = 4 * 1024 * 1024
    """No further job is taken once those taken weigh this much, so that an answer can be carried and kept however large
    the jobs are. A job weighs what retention counts, without the sections that are not wanted. A store that has to read
    or carry those too, because it keeps a job as a whole, may count them."""


class Leased(Struct, frozen=True, gc=False):
    """A job under a lease: its row, its counters and the epoch that fences it.

    Every claim makes many of these, by position, which is fastest. So the fields of ``Carried`` are written out here,
    in the same order, from ``max_attempts`` to ``headers``.
    """

    id: JobId
    queue: str
    task: str
    cells: Cells
    epoch: int
    tenant: str = ""
    key: str | None = None
    priority: int = 0
    run_at: int = 0
    enqueued_at: int = 0
    attempt: int = 0
    lost: int = 0
    max_attempts: int | None = None
    timeout: int | None = None
    result_ttl: int | None = None
    headers: bytes | None = None
    error: bytes | None = None
    """What earlier attempts left behind, as the core wrote it."""
    group: str | None = None
    begun: bool = False
    """Whether a handler may have been called for it under an earlier lease."""
    left: tuple[str, ...] = ()
    """Sections that it has, in their usual order, and that were left in the store because the claim did not want
    them."""


class Claimed(Struct, frozen=True):
    """What a claim brought."""

    jobs: list[Leased]
    next_in: int | None = None
    """When ``jobs`` is short of the limit: how long until the next job of these queues is due, or the pause of one of
    them ends; None if there is neither. Jobs that ``lost_below`` passes over do not count. 0 means look again in a
    moment: ``max_bytes`` cut the answer short; another step holds a due job; more became due than one claim promotes;
    or more queues and tenants have jobs than the store visits at a time."""
    expired: Sequence[Reaped] = ()
    """Jobs that this claim cancelled because they had expired."""
    passed_over: bool = False
    """Whether a job was passed over because of ``lost_below``. It counts only if it came before the last one in
    ``jobs``, or anywhere if nothing cut ``jobs`` short."""
    chosen: bool = False
    """With ``passed_over``: whether this holder is the one to make room for the job; see ``Backend.claim``."""
    doubtful: bool = False
    """Whether a part of the store that gave no answer may have leased jobs that are not in ``jobs``. The holder asks
    for them (``Beat.census``)."""


class Settlement(Struct, frozen=True, gc=False):
    """The fenced end of one lease: everything that changes with it, in one flat record."""

    id: JobId
    epoch: int
    holder: str
    state: JobState
    """One of ``SETTLED``."""
    delay: int | None = 0
    """AVAILABLE, PAUSED: due this long from now; None keeps ``run_at``, and so the job's place."""
    failed_attempt: bool = False
    """Adds one to ``attempt``."""
    keep_lost: bool = False
    """Leaves ``lost`` as it is. Otherwise a settlement resets it: only *consecutive* losses count."""
    unbegun: bool = False
    """AVAILABLE, PAUSED: no handler was called, neither under this lease nor, as ``Leased.begun`` said, before it."""
    queue: str | None = None
    priority: int | None = None
    cells: dict[str, bytes | None] | None = None
    """Sections to replace (bytes) or clear (None); those not named stay."""
    error: bytes | None = None
    """Replaces the stored error; None keeps it."""
    reason: str = ""
    result: bytes | None = None
    """COMPLETED only. None: there is no result, which is not the same as an empty one."""
    result_ttl: int = 0
    """COMPLETED: how long the result can be fetched, while its record is kept. The key stays taken for that long in any
    case."""
    keep: bool = True
    """False: leave no record of a COMPLETED job, and free its key."""
    spawn: Sequence[Row] = ()
    """Rows to insert with it. A row that meets a taken key or a known id changes nothing and is no error. At most
    ``SPAWNED`` rows, of at most ``SPAWNED_NAMES`` queues and as many groups: they are stored in one step."""
    run_at: int | None = None
    """AVAILABLE, PAUSED: due at this instant; it overrides ``delay`` and may lie in the past."""


SPAWNED = 500
SPAWNED_NAMES = 100


def overspawned(rows: Sequence[Row]) -> str | None:
    """What is too much for one settlement to spawn, in words; None: nothing is.

    >>> overspawned([Row(bytes(16), f"q{number}", "t", {}) for number in range(101)])
    'expected jobs of at most 100 queues, got jobs of 101'
    """
    if len(rows) > SPAWNED:
        return f"expected at most {SPAWNED:,} jobs, got {len(rows):,}"
    if len(rows) > SPAWNED_NAMES:
        queues = {row.queue for row in rows}
        groups = {(row.queue, row.group) for row in rows if row.group is not None}
        for what, names in (("queues", len(queues)), ("groups", len(groups))):
            if names > SPAWNED_NAMES:
                return f"expected jobs of at most {SPAWNED_NAMES} {what}, got jobs of {names:,}"
    return None


SETTLED = frozenset((JobState.AVAILABLE, JobState.PAUSED, JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED))
"""What a lease may end in."""


CENSUS = 2_000
"""A census looks for the holder's leases among this many of the store's, those that expire first."""


PROGRESS = 1_024
"""Bytes that the progress of a job may have."""


class Beat(Struct, frozen=True):
    """A worker process's sign of life, and the leases that it wants to keep."""

    holder: str
    worker: str
    """The name that people see."""
    queues: tuple[str, ...]
    lease_for: int
    leases: Sequence[tuple[JobId, int]] = ()
    """(id, epoch) of the leases to renew."""
    ttl: int = 60_000_000
    """How long the worker is listed without a further beat. Workers set it to one lease: a listed worker is alive."""
    slots: int = 0
    busy: int = 0
    leaving: bool = False
    """Take the worker off the list."""
    gap: int = 10_000_000
    """A worker is steady as long as its beats come no further apart than this; see ``Backend.renew``."""
    at_work: int = 300_000_000
    """How long a fleet must have been at work for its absence to be nobody's fault; see ``Backend.renew``."""
    progress: Mapping[JobId, bytes] = {}
    """Of the leases named: what to keep with them as their progress, up to ``PROGRESS`` bytes each."""
    census: bool = False
    """Ask for all leases of this holder, and whether any leases have expired. After a claim whose answer was lost, the
    holder has leases that it does not know."""


class Renewed(Struct, frozen=True):
    """The control channel back to the worker."""

    lost: Sequence[tuple[JobId, int]] = ()
    """Of the leases named: those that are no longer this holder's."""
    cancels: Sequence[JobId] = ()
    """Every job under a lease of this holder whose cancellation was requested."""
    paused: Sequence[str] = ()
    """Of the beat's queues: those that are paused."""
    busy: Sequence[tuple[JobId, int]] = ()
    """Of the leases named: those that another transaction holds, such as a handler's own that completes its job. They
    were neither extended nor lost; the next beat asks again."""
    held: Sequence[tuple[JobId, int, bool]] = ()
    """With ``census``: the leases of this holder, as far as they are among the first of all to expire: (id, epoch,
    whether the job had begun before)."""
    overdue: bool = False
    """With ``census``: whether any holder's lease has expired."""
    doubtful: bool = False
    """Whether a part of the store gave no answer. What it has is missing from ``held`` and ``cancels``."""


class Reap(Struct, frozen=True):
    """How to take back what vanished holders left."""

    limit: int = 1_000
    holder: str | None = None
    """The holder that reaps. Nothing is taken back unless it has beaten within ``gap`` and been steady for ``steady``.
    None: anybody may."""
    gap: int = 10_000_000
    steady: int = 15_000_000
    max_lost: int = 2
    """A job whose ``lost`` would rise above this goes to the dead letters, with the reason ``lost``."""
    spread: int = 0
    """Jobs taken back become due at instants spread evenly over this long."""


class Reaped(Struct, frozen=True):
    """One job that a reap took back (AVAILABLE), dead-lettered (FAILED) or cancelled, or that expired (CANCELLED)."""

    id: JobId
    queue: str
    task: str
    state: JobState
    lost: int
    reason: str
    key: str | None = None


class Step(Struct, frozen=True):
    """How far a part of a source outside has been read: up to ``next``, if it is still where it was ``seen``."""

    part: str
    seen: int | None
    """None: nothing has been read of it yet."""
    next: int


class JobKey(Struct, frozen=True):
    """A job named by its queue and dedup key."""

    queue: str
    key: str


class Selector(Struct, frozen=True, kw_only=True):
    """Which jobs are meant: those that ``ids`` and ``keys`` name, or all if both are None. Every other field that is
    set narrows. A job that is named twice is met once, where it was named first."""

    ids: Sequence[JobId] | None = None
    keys: Sequence[JobKey] | None = None
    queue: str | None = None
    tenant: str | None = None
    task: str | None = None
    states: frozenset[JobState] | None = None
    older_than: int | None = None
    """Enqueued at least this long ago."""
    reason: str | None = None
    """Ended for exactly this reason; a job that has not ended has the reason ``""``."""
    above: JobId | None = None
    """The id is greater than this one. A change of many jobs goes on above the last id that it answered."""
    limit: int = 1_000
    """``alter`` without names: at most this many jobs are met in one call."""


_WAITING = frozenset((JobState.AVAILABLE, JobState.PAUSED))
_LIVE = _WAITING | {JobState.RUNNING}
_ENDED = frozenset(JobState) - _LIVE


class Cancel(Struct, frozen=True):
    """AVAILABLE, PAUSED → CANCELLED. RUNNING: a request that the holder gets with its next renew. Of the reasons, only
    ``superseded`` is kept with the request."""

    applies: ClassVar = _LIVE
    """The states that the change applies to. Every change has this."""
    reason: str = "cancelled"


class Pause(Struct, frozen=True):
    """AVAILABLE → PAUSED."""

    applies: ClassVar = frozenset((JobState.AVAILABLE,))


class Resume(Struct, frozen=True):
    """PAUSED → AVAILABLE, with the ``run_at`` that it had."""

    applies: ClassVar = frozenset((JobState.PAUSED,))


class Requeue(Struct, frozen=True):
    """COMPLETED, CANCELLED, FAILED → AVAILABLE now, with ``attempt``, ``lost``, expiry, error and result cleared.

    Refused (``after`` equals ``before``) when another job holds the key by now.
    """

    applies: ClassVar = _ENDED


class Move(Struct, frozen=True):
    """AVAILABLE, PAUSED: to another queue. Refused when the key is taken there."""

    applies: ClassVar = _WAITING
    queue: str


class Reprioritise(Struct, frozen=True):
    """AVAILABLE, PAUSED: to another priority."""

    applies: ClassVar = _WAITING
    priority: int


class Reschedule(Struct, frozen=True):
    """AVAILABLE, PAUSED: to another time. Its expiry stays. In a group, the job is ordered by its new time: a called
    job stays called unless another one now comes before it."""

    applies: ClassVar = _WAITING
    delay: int = 0
    """Due this long from now …"""
    run_at: int | None = None
    """… or at this instant; it overrides ``delay`` and may lie in the past."""


WATCHERS = 100
"""At most this many inboxes wait for the end of one job, ``Row.reply_to`` included: the latest ones. This bounds what a
job that never ends keeps of all that ever waited for it. An inbox that gets no hint polls."""


class Watch(Struct, frozen=True):
    """AVAILABLE, RUNNING, PAUSED: ``inbox`` gets a hint when the job ends, unless ``WATCHERS`` others come after it.
    Like a hint, a watch may be lost when the store crashes."""

    applies: ClassVar = _LIVE
    inbox: str


class Hold(Struct, frozen=True):
    """COMPLETED and still held: hold the key, and the result if there is one, for ``result_ttl`` from now instead."""

    applies: ClassVar = frozenset((JobState.COMPLETED,))
    result_ttl: int


class Delete(Struct, frozen=True):
    """Any state but RUNNING: the job and all that belongs to it are removed, and its key is free."""

    applies: ClassVar = frozenset(JobState) - {JobState.RUNNING}


Change = Cancel | Pause | Resume | Requeue | Move | Reprioritise | Reschedule | Watch | Hold | Delete


class Altered(Struct, frozen=True):
    """What became of one selected job. ``after`` equals ``before`` when the change did not apply to its state."""

    id: JobId
    before: JobState
    after: JobState | None
    """None: the job is gone."""
    changed: bool = True
    """Whether the change took effect. A cancel request to a running job counts."""
    queue: str = ""
    """The queue that the job is in, or was."""
    key: str | None = None


class Record(Struct, frozen=True):
    """Everything that the store knows of a job. Cells, error and result only if they were wanted. The fields of
    ``Carried`` have the same place as in ``Leased``."""

    id: JobId
    queue: str
    task: str
    state: JobState
    tenant: str = ""
    key: str | None = None
    priority: int = 0
    run_at: int = 0
    enqueued_at: int = 0
    expires_at: int | None = None
    finished_at: int | None = None
    epoch: int = 0
    attempt: int = 0
    lost: int = 0
    max_attempts: int | None = None
    timeout: int | None = None
    result_ttl: int | None = None
    headers: bytes | None = None
    worker: str = ""
    """RUNNING: the name of the worker, if it is still listed. Never the holder, which is a secret of the lease."""
    lease_until: int | None = None
    cancel_requested: bool = False
    reason: str = ""
    cells: Cells = {}
    error: bytes | None = None
    result: bytes | None = None
    held: bool = False
    """COMPLETED: result and key are still held."""
    group: str | None = None
    progress: bytes | None = None
    """RUNNING: what its holder last said of its progress, as it was written."""

    @property
    def started_at(self) -> int | None:
        """Of a job that runs or has ended: when its last lease began; None if it had none. An epoch is that instant,
        unless the store's clock has stepped back since the lease before."""
        waits = self.state in (JobState.AVAILABLE, JobState.PAUSED)
        return None if waits or self.epoch < max(1, self.enqueued_at) else self.epoch

    @property
    def last_transition(self) -> int:
        """The last change of state that the store has an instant of: the end, else the last claim, else the insert."""
        return self.finished_at or max(self.epoch, self.enqueued_at)

    @property
    def transitions(self) -> int:
        """How often the state has changed since the job was inserted or requeued: two for each attempt that failed and
        each loss that still counts, and those of the present run. Runs that were put off or given back, and pauses, are
        not counted."""
        past = 2 * (self.attempt + self.lost)
        match self.state:
            case JobState.AVAILABLE:
                return past
            case JobState.COMPLETED:
                return past + 2
            case JobState.FAILED:
                return max(past, 2 if self.epoch else 1)
            case _:
                return past + 1


class Page(Struct, frozen=True):
    """One page of a scan. ``after`` leads to the next page; None: this was the last."""

    records: list[Record]
    after: str | None = None


class QueueStats(Struct, frozen=True):
    """One queue in numbers."""

    queue: str
    paused: bool = False
    available: int = 0
    """Waiting for a worker, whether due or not."""
    scheduled: int = 0
    """Of these, not due yet, without jobs that wait to be called in their group. Where more than ``Limits.count_cap``
    are scheduled, a store may count those that are due instead, and all others as scheduled. Where there are more of
    both, it may answer any number from ``count_cap`` on."""
    running: int = 0
    jobs_paused: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    oldest_due_age: int | None = None
    """How long the longest-waiting due job has been due; jobs that wait to be called in their group do not count."""
    paused_until: int | None = None
    """When the pause ends by itself; None: it does not, or there is none."""
    next_due_in: int | None = None
    """How long until the first of those that are scheduled is due; None: none is."""

    @property
    def due(self) -> int:
        """How many are due and wait for a worker, or to be called in their group."""
        return max(0, self.available - self.scheduled)

    @property
    def counts(self) -> dict[str, int]:
        """Its numbers of jobs, by name; those that are scheduled are also available."""
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = ("available", "scheduled", "running", "jobs_paused", "completed", "cancelled", "failed")
"""The numbers of jobs of a queue."""


class WorkerStats(Struct, frozen=True):
    """A worker that beat within its ttl."""

    worker: str
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_at: int
    seen_at: int


class KeptStats(Struct, frozen=True):
    """What one class of ended jobs, the ticks, or the keys that outlive their jobs (0 bytes) take up. Retention bounds
    it."""

    target: str
    count: int
    bytes: int


class Stats(Struct, frozen=True):
    """The store in numbers, or some of its queues. No table is counted for it."""

    queues: list[QueueStats]
    workers: list[WorkerStats]
    kept: list[KeptStats]


class SweepTarget(StrEnum):
    """What a sweep may clear."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    RESULTS = "results"
    """Results past their ttl; the records stay."""
    TICKS = "ticks"
    """What became of slots of schedules. Age counts from when they were planned; nothing holds them."""
    KEYS = "keys"
    """Keys that outlive the record of their job. Those that are free by now go. ``max_count`` also takes what is above
    it, those first that would be free first. No other bound counts."""
    TENANTS = "tenants"
    """Tenants of governed queues that have no jobs, and whose rate is saved up: nothing is lost with them. Their limits
    and pauses stay. ``limit`` is the only bound. ``more`` may be True after a sweep that removed none, if there are
    others to look at."""


class SweepClause(Struct, frozen=True, kw_only=True):
    """Bounds on one target. What any bound condemns goes, oldest end first (in any order among those that ended at one
    instant), at most ``limit`` of it."""

    target: SweepTarget
    older_than: int | None = None
    """Ended at least this long ago. A result that is still held protects its record from this bound. If it is a day or
    more, a store may keep the jobs of one day up to two days longer, to remove them together."""
    max_count: int | None = None
    max_bytes: int | None = None
    """Hard bounds: they hold even where a result is still held; only its key stays. What is too old goes first, then
    what is too many, then what is too large: each in a call of its own.

    FAILED jobs go from the tenants that hold most, of each its oldest ends, so that those are left with as much as each
    other: nobody's failures push out the few dead letters of others. If the bound is one of count and nobody holds more
    than one, the oldest of all go.
    """
    limit: int = 1_000
    dry_run: bool = False
    spare: int = 0
    """COMPLETED, CANCELLED, FAILED: what ended less than this long ago stays, whatever the bounds say. An insert that
    is repeated after a lost answer then still meets the job, and does not store it twice."""
    ended_by: int | None = None
    """COMPLETED, CANCELLED, FAILED: what ended after this instant stays, whatever the bounds say: it is still to be
    archived."""
    jobs: Sequence[tuple[JobId, int]] | None = None
    """COMPLETED, CANCELLED, FAILED: only these go, named by id and epoch, and only while they are ended under it. They
    may be ``limit`` at most. ``older_than``, ``spare`` and ``ended_by`` count for each of them; ``max_count`` and
    ``max_bytes`` do not count."""

    def latest(self, now: int) -> int:
        """The last instant at which a job may have ended that goes."""
        return now - self.spare if self.ended_by is None else min(now - self.spare, self.ended_by)


class Swept(Struct, frozen=True):
    """What a sweep removed, or would have removed, and what is left."""

    removed: int
    bytes: int
    kept: int
    """Records, or keys, left of the target; 0 for RESULTS."""
    more: bool
    """Whether the clause still condemns something: call again."""


class Hint(Struct, frozen=True):
    """News: look now. It carries no truth, and may be lost, doubled or late."""

    topic: str
    id: JobId | None = None


class Limits(Struct, frozen=True):
    """What this store can take. The core refuses what is over it before it is sent."""

    max_batch: int = 1_000
    max_cell: int = 64 * 1024 * 1024
    min_priority: int = -32_768
    max_priority: int = 32_767
    time_precision: int = 1
    """Microseconds."""
    count_cap: int = 10_000
    trips: int = 1
    """How many trips of one worker are best under way at once: two, if the store works while the worker does."""
    durable: str = "no"
    """One phrase for people: what survives what."""
