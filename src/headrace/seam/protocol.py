"""The waist: ten batch operations that every store offers, and what each of them guarantees.

A stranger should be able to write a backend from this file, :mod:`headrace.seam.records` and
``headrace.testing.conformance`` alone. What holds for all ten:

* **One trip where it counts.** ``insert``, ``claim``, ``finish``, ``renew``, ``reap`` and ``fetch`` are one round trip
  for a batch of up to ``limits.max_batch``. More are needed only where a batch is unusually large (megabytes of
  payload, thousands of leases, hundreds of queues, groups or retries), where a job cannot be read, and where a store
  has several servers. However large a batch is, no step of a store keeps others waiting for longer than about 50 ms:
  what would take longer is cut into several steps, each of which takes effect by itself. ``alter``
  without names, ``scan``, ``stats`` and ``sweep`` are for people and for upkeep: they may take several trips, each of
  which looks at a bounded number of jobs.
* **Atomic.** A row's effects (state, cells, key, result, counters, spawned rows, hint) happen together or not at all.
  Rows of one batch are independent: none fails because its neighbour did.
* **Durable.** When the call returns, its effects survive what ``limits.durable`` says. When it raises
  :class:`~headrace.errors.Unavailable`, they may or may not have happened: every operation is safe to repeat.
* **Honest about faults.** :class:`~headrace.errors.Rejected` and :class:`~headrace.errors.PayloadTooLarge` mean that
  the content is at fault, and always will be. Nothing was stored; a worker fails a job whose outcome is refused so.
  ``Unavailable`` means that the trouble may pass: connections, locks, time limits, and rights or tables that were there
  before. Any other :class:`~headrace.errors.BackendError` blames nobody, and is waited out as well.
* **Fenced.** A write by a lease holder names ``(id, epoch, holder)``. It takes effect only while the job is RUNNING
  under exactly these; otherwise it changes nothing, and the answer says so. A lease that has expired but was not reaped
  still belongs to its holder.
* **One clock.** With ``at=None`` the store reads its own clock, once per operation. On a server that is the server's
  clock; the clients' clocks decide nothing. A store without a server (a file, memory) reads the wall clock of the
  calling process. The processes of one machine share it, unless one of them is shown another (libfaketime, a time
  namespace); such a process is outside the contract, and sees leases end and jobs become due too early or too late.
  A clock that steps back makes leases, delays and retention last longer by the step, and harms nothing else.
* **One way.** A backend never calls the core. What it has to say is in the answer, or in a :class:`Hint`.
* **Policy only where it must be atomic.** Delays, retries, and what to delete come in as numbers. The rules of queues
  are the exception, as they must hold for all workers at once: a store with :class:`PolicyStore` keeps the limits and
  the turns of tenants in ``claim``, and the depth of queues in ``insert``.

States::

    insert ─► AVAILABLE ◄──── finish, reap ────┐
                │  ▲ pause/resume: PAUSED      │
                │  └─ requeue ◄── terminal     │
                └─ claim ─► RUNNING ───────────┤
                                               ▼
                      COMPLETED · CANCELLED · FAILED (the dead letters)

A job is *due* when it is AVAILABLE and ``run_at <= now``. It is *claimable* when it is due and has not expired, its
queue is not paused, and, if it has a group, it is *called* (see ``Backend.claim``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from headrace.seam import records as r
from headrace.seam import ticks as t
from headrace.seam.archive import ArchiveStore
from headrace.seam.documents import DocumentStore
from headrace.seam.events import Events
from headrace.seam.journal import Journal
from headrace.seam.parts import PartStore
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.references import ReferenceStore
from headrace.seam.tables import TableStore
from headrace.seam.tracks import TrackStore
from headrace.seam.transfers import TransferStore
from headrace.seam.usage import KeepReserve, MeasureUsage
from headrace.seam.windows import WindowStore
from headrace.types import JobState


class Hints(Protocol):
    """News from the store: look now. Hints may be lost, so every listener also polls, only less often."""

    def listen(self, topics: Collection[str]) -> AbstractAsyncContextManager[AsyncIterator[r.Hint]]:
        """Subscribe. Once the context is entered, hints about what happens from then on are delivered, unless they get
        lost.

        ``queue:NAME``: a job may have become claimable there. ``inbox:NAME``, with a job's id: a job with this
        ``reply_to`` ended. ``holder:NAME``: the next renew would bring a cancellation. ``schedules:all``: a schedule
        was saved. Several hints for one topic may arrive as one.
        """


class FinishAndClaim(Protocol):
    """``finish`` of the last batch and ``claim`` of the next, in one trip."""

    async def __call__(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        """Exactly ``finish(batch)`` then ``claim(req)``: what the one makes claimable, the other may return."""


class Tidy(Protocol):
    """Upkeep that a store needs besides sweeps, such as a partition for the jobs of days to come."""

    async def __call__(self, clauses: Sequence[r.SweepClause], at: r.Stamp = None) -> Mapping[r.SweepTarget, int]:
        """Do what is due, unless another process is doing it or did it lately. Every worker calls this on every beat.

        ``clauses`` are the ones that are swept. Where a whole day of jobs is past one of them, the day is dropped here.
        The answer says how many jobs went from which place. What is left, or cannot be done now, waits for a later
        call.
        """


class Joined(Protocol):
    """A transaction of the caller's own, on a blocking connection. What is done here takes effect when the caller
    commits, and not at all when the caller rolls back. Its coroutines never wait: see ``core.driving``."""

    @property
    def blocks(self) -> Literal[True]: ...

    async def insert(self, rows: Sequence[r.Row]) -> list[r.Inserted]:
        """As ``Backend.insert``; the queues' listeners get their hint when the transaction commits."""

    async def complete(self, settlement: r.Settlement) -> bool:
        """As ``Backend.finish`` of one COMPLETED settlement. False: fenced off. The transaction can no longer commit
        then, so nothing stays of what the caller wrote for a job that it has lost."""


class AsyncJoined(Protocol):
    """The same on a connection that is awaited."""

    @property
    def blocks(self) -> Literal[False]: ...

    async def insert(self, rows: Sequence[r.Row]) -> list[r.Inserted]:
        """See :class:`Joined`."""

    async def complete(self, settlement: r.Settlement) -> bool:
        """See :class:`Joined`."""

    async def sources(self, prefix: str = "") -> list[str]:
        """The sources outside that have positions, and whose names begin so."""

    async def positions(self, source: str) -> dict[str, int]:
        """How far a source outside has been read: for each of its parts, what is to be read next."""

    async def advance(self, source: str, steps: Sequence[r.Step]) -> bool:
        """Move positions of a source, each once. False: one of them is not where it was ``seen``, because another
        reader has moved it; the caller has to roll back. Of two readers that move one position at the same time, the
        second waits until the first commits or rolls back."""


class Transactions(Protocol):
    """Jobs in transactions that are not the store's own. Works on a backend that is not open."""

    def begin(self) -> AbstractAsyncContextManager[AsyncJoined]:
        """A transaction on a connection of the store's own, which has to be open. It commits at the end of the block,
        and rolls back if that raises; errors are told as those of the ten operations are."""

    def join(self, connection: object) -> Joined | AsyncJoined:
        """Join the transaction that the connection is in when ``insert`` or ``complete`` is called. No state of it is
        kept.

        Raises ``ConfigError`` if it is not a connection that the store knows. ``insert`` and ``complete`` raise
        ``ConfigError`` if the connection commits every statement by itself, and ``SchemaMismatch`` if it leads to no
        store of ours. The driver's own errors are left as they are: callers know how to treat them.
        """


class TickStore(Protocol):
    """Schedules, and the history of their ticks. What holds for the ten operations holds here too.

    Planners need no leader. A planner that changes a schedule names the version that it has read, and of several
    planners one succeeds. A slot is in the history once, and its job is stored in the same atomic step: neither is ever
    there without the other.
    """

    async def save(self, batch: Sequence[t.Save | t.Drop], at: r.Stamp = None) -> list[bool]:
        """Make, change and remove schedules; answer for each, in order, whether it was done.

        It is done when the stored version is the expected one (0: there is no schedule of that name). A schedule is
        stored as given, but with the next version, ``updated_at`` now, and ``created_at`` now if it is new. Listeners
        to ``schedules:all`` get a hint.
        """

    async def find(self, sel: t.ScheduleSelector, after: str | None = None, limit: int = 100) -> list[t.Schedule]:
        """Matching schedules above ``after``, in the order of their names (by code points)."""

    async def due(self, req: t.Look, at: r.Stamp = None) -> t.Looked:
        """Up to ``limit`` enabled schedules whose ``look_at`` has come, by ``(plan_priority, look_at, name)``. Nothing
        changes. The cost depends on ``limit`` and on the number of priorities in use, not on the number of
        schedules."""

    async def plan(self, batch: Sequence[t.Plan], at: r.Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        """Carry out plans, each in one atomic step. Answer each plan, in order, with the outcomes of its ticks; None if
        the schedule is gone or has another version, and nothing was done. A plan that names a version may also be
        answered with None while another step holds the schedule, or holds the waiting job that the plan would
        cancel.

        For each tick, in order:

        * a slot that has FIRED stays as it is, and the answer is None; any other entry of the slot is replaced, so that
          missed slots can be made up for;
        * a tick without a row is MISSED;
        * a tick with ``overlap`` SKIP is SKIPPED while the schedule's ``last_job`` is live;
        * otherwise the tick is FIRED, and its row is inserted by the rules of ``Backend.insert`` (an id that is stored
          is not stored again). With ``overlap`` CANCEL, a live ``last_job`` is cancelled first, as by ``alter``, with
          the reason ``superseded``. It ends with this reason even if it is running (see ``Backend.finish``).

        ``runs`` counts what FIRED. A plan that names a version also moves the schedule on: ``slot`` and ``look_at``
        become the plan's, and each FIRED tick becomes ``last_slot`` and ``last_job``. Every plan that is carried out
        adds one to the version.
        """

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[t.Tick]:
        """Ticks of a schedule, latest slot first; with ``before``, only those of earlier slots."""

    async def note(self, batch: Sequence[t.TickNote], at: r.Stamp = None) -> None:
        """Keep with ticks how their jobs ended. Ticks that are not in the history are ignored."""


class PolicyStore(Protocol):
    """The policies of queues, and their pauses. They live in the store: a change holds for every worker from its next
    claim on.

    What the rules mean is said where they apply: ``claim`` (turns, limits, rates, pauses, groups) and ``insert``
    (depth).
    """

    async def save(self, policy: Policy, at: r.Stamp = None) -> bool:
        """Replace the policy of a queue and return True, if its version is the stored one (0: there is none yet). It is
        stored with the next version.

        A rate that is new or changed starts with its full burst. The first policy that ``governs``, the first
        ``TenantLimit`` or the first pause of a tenant or task makes the queue *governed*, for good. The jobs of groups
        are called by the new ``group_running``. Listeners to ``queue:NAME`` get a hint.
        """

    async def limit(self, limit: TenantLimit, at: r.Stamp = None) -> None:
        """Replace what one tenant may do in one queue. With neither bound, the tenant loses its own limit. Listeners to
        ``queue:NAME`` get a hint."""

    async def pause(self, pause: QueuePause, at: r.Stamp = None) -> None:
        """Pause a queue, or a tenant or a task in it, or resume it. No job changes; paused jobs are just not claimed.
        After a resume, listeners to ``queue:NAME`` get a hint."""

    async def find(self, queues: r.Names = None, at: r.Stamp = None) -> list[PolicyState]:
        """The policies of these queues, or of all, by name. A queue is listed if it has a policy or is governed."""

    async def tenants(
        self, queue: str, names: r.Names = None, after: str | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[TenantState]:
        """The tenants of a governed queue above ``after``, in the order of their names (by code points); only those in
        ``names``, if given. A tenant is listed if it has jobs that wait or run, has a limit of its own, or is
        paused; others may or may not be listed. Where very much has changed since the last claim, a store may tell how
        it was before a part of that."""

    async def group(self, queue: str, group: str) -> GroupState:
        """Which jobs of a group are called, and how many wait to be."""


Left = Callable[[], float]
"""How many seconds what is under way may still take."""


class Backend(Protocol):
    """A store of jobs. One instance belongs to one event loop; ``sibling`` makes another one for another loop."""

    @property
    def limits(self) -> r.Limits:
        """What this store can take."""

    @property
    def tx(self) -> Transactions | None:
        """Capability: jobs in the caller's own transactions."""

    @property
    def ticks(self) -> TickStore | None:
        """Capability: schedules. None: there can be none."""

    @property
    def policies(self) -> PolicyStore | None:
        """Capability: policies and pauses of queues. None: there are neither. Groups work all the same."""

    @property
    def references(self) -> ReferenceStore | None:
        """Capability: jobs are found by the objects that their cells refer to. None: no cell may be a reference."""

    @property
    def documents(self) -> DocumentStore | None:
        """Capability: documents of the core's own. None: rules of retention cannot be kept, nor what it did."""

    @property
    def archive(self) -> ArchiveStore | None:
        """Capability: ended jobs are read in the order of their ends. None: they cannot be archived, nor kept for
        different times by queue and task."""

    @property
    def tracks(self) -> TrackStore | None:
        """Capability: the sheets of trackers. None: there can be no trackers."""

    @property
    def windows(self) -> WindowStore | None:
        """Capability: windows of queues on another server. None: the store gives out its jobs itself."""

    @property
    def transfers(self) -> TransferStore | None:
        """Capability: whole jobs are given away and taken in. None: no store can be moved to or from here."""

    @property
    def tables(self) -> TableStore | None:
        """Capability: tables of the user's own in the same database. None: there is no SQL."""

    @property
    def journal(self) -> Journal | None:
        """Capability: a journal of what operators did; see :mod:`headrace.seam.journal`. None: nothing is noted."""

    @property
    def parts(self) -> PartStore | None:
        """Capability: parts that jobs send ahead of their result; see :mod:`headrace.seam.parts`. None: they cannot."""

    @property
    def events(self) -> Events | None:
        """Capability: events across processes; see :mod:`headrace.seam.events`. None: nobody hears of others."""

    @property
    def hints(self) -> Hints | None:
        """Capability: hints. None: the core polls."""

    @property
    def finish_and_claim(self) -> FinishAndClaim | None:
        """Capability: finish and claim in one trip. None: they are two."""

    @property
    def tidy(self) -> Tidy | None:
        """Capability: upkeep of the store's own. None: it needs none."""

    @property
    def usage(self) -> MeasureUsage | None:
        """Capability: how many bytes it takes up. None: it cannot tell, so it has no budget."""

    @property
    def reserve(self) -> KeepReserve | None:
        """Capability: it keeps room aside. None: it needs none, or takes care of that by itself."""

    @property
    def blocking(self) -> Callable[[Left], Backend] | None:
        """Capability: makes another, unopened backend on the same store, for callers without an event loop. Whatever
        its calls wait for, they block the thread meanwhile: a coroutine of it runs to its end in one step. So the same
        code serves both kinds of callers. It belongs to one thread at a time, and has no hints. None: such callers
        need a loop in the background.

        A call ends within the seconds that are left when it begins, whatever it takes: to connect, and to wait for its
        turn too. What it has given up is ended on the server, if that is possible, and such a backend never has more
        than one connection, also one whose call the server has not ended yet."""

    def sibling(self) -> Backend:
        """A second, unopened backend on the same store. It shares no connection with this one.

        The heartbeat runs on it, in a thread with its own loop. So neither a blocked loop nor an exhausted pool costs
        anybody a lease.
        """

    async def open(self) -> None:
        """Connect, and check that the schema is right and the store writable. Creates the schema in an empty store, if
        that is the store's habit. Opening twice is harmless.

        Raises ``Unavailable`` if the store cannot be reached, ``SchemaMismatch`` if it is not ours or too new,
        ``Corrupt`` if it is damaged, and ``ConfigError`` if it is set up in a way that would lose jobs.
        """

    async def close(self) -> None:
        """Release every connection and thread. Closing twice, or before opening, is harmless."""

    async def now(self, at: r.Stamp = None) -> int:
        """The store's clock: the instant that an operation would take for now. With ``at``, that is ``at``."""

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        """Store new jobs; answer each row, in order.

        A row whose ``id`` is stored already, in any state, changes nothing: SAME. So an insert can be repeated after a
        lost reply, as long as the job's record is kept. Once the record is gone the id is unknown: the row is a new
        job, with a new epoch 0. ``SweepClause.spare`` keeps retention from removing records too early for that.

        A row with a ``key`` looks at the job that last took ``(queue, key)``:

        * live (AVAILABLE, RUNNING, PAUSED), or FAILED when the row says ``hold_failed``: DUPLICATE, with its id, state
          and attempt. A live job also takes on the row's ``reply_to``, as by ``Watch``. The rest of the row is dropped:
          the first accepted enqueue decides.
        * COMPLETED and still held: DONE, with its id and result.
        * COMPLETED and still held, but its record is gone: DUPLICATE, with its id, the state COMPLETED and attempt 0.
        * otherwise the key is free and this row takes it: NEW.

        ``row.key_until`` may free the key earlier. ENDED: a COMPLETED job does not keep it, held or not. STARTED: nor
        does a RUNNING one. A job that has lost its key like that goes on without it: its end does not touch the key,
        and if it waits again, it may do so beside the new job. Its result stays held.

        ``row.replaces`` changes a waiting job instead of dropping the row. If the live job that keeps the row out is
        AVAILABLE or PAUSED, and has the row's task and tenant, it takes on what ``replaces`` names, in the same step:
        REPLACED, with its id, state and attempt. CELLS: its cells become the row's, and it has no others. TIME: its
        ``run_at`` and its expiry become those of the row, and it is ordered as after a ``Reschedule``. Everything else
        stays as it is. A job that runs or has ended is never changed, nor is one of another task or tenant: DUPLICATE,
        or DONE. The row's own id is not stored, so an insert that is repeated replaces again.

        Of two rows of one batch with the same key, the second is a duplicate of the first, or replaces what it stored.
        Of any number of concurrent inserts of one key, exactly one is NEW.

        A row that would be NEW is FULL, and not stored, while its queue has as many waiting jobs (AVAILABLE or PAUSED)
        as the policy's ``depth`` allows, or all queues together have as many as the depth of
        :data:`~headrace.seam.policy.STORE` allows. Rows are admitted in their order while there is room; concurrent
        inserts may be off by one in a hundred. A FULL answer says which limit was reached. Only ``insert`` is refused:
        spawned rows, ticks, retries and requeues never are. The depth of the store refuses no row of the queue
        :data:`~headrace.seam.policy.OPERATIONS`, unless it is 0.

        ``run_at`` becomes ``row.run_at``, or now + ``row.delay``. Listeners to ``queue:NAME`` get a hint.
        """

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        """Lease up to ``limit`` claimable jobs of ``queues`` to ``holder`` for ``lease_for``. A claim stops early once
        its jobs weigh ``max_bytes``, but always takes one.

        **Order.** The jobs returned are the first by ``(priority, run_at, id)`` among all claimable jobs of these
        queues, in this order, without those that ``lost_below`` passes over. Concurrent claims share them: no job goes
        to two. A claim may skip a job that another step is taking or changing; if that left it short, ``next_in`` is 0.

        **Lease and epoch.** Each job becomes RUNNING, leased until now + ``lease_for``, with the next *epoch*: the last
        one + 1, or now in microseconds if that is higher. So no job gets an epoch twice: not when its record was
        removed and it is enqueued again, and not when the store loses its last writes (a crash without a sync, a
        failover to a replica that lags), unless its clock is set back at the same time. A claim is as durable as an
        insert, as its jobs start as soon as it is answered.

        **Begun.** A job has *begun* once a handler may have been called for it: from its first lease on, unless every
        lease so far was settled with ``unbegun``. ``Leased.begun`` says how it was before this lease.

        **Expired jobs.** Due jobs past their ``expires`` become CANCELLED with the reason ``expired``. They are listed
        in ``expired``, and never returned. This concerns those that come before the last job returned, in the order
        above, or all if nothing cut the answer short. If there are very many, a claim may leave some to the next claim
        or reap.

        **Unreadable jobs.** A job that cannot be read, say after damage or an edit behind the store's back, holds up no
        other. The claim or reap that meets it sets it aside: it becomes FAILED with the reason ``corrupt``, with as
        much of it as can be kept, and the jobs behind it are taken. So does any other operation that would fail because
        of it. An ``epoch`` at the end of its range counts as unreadable. An entry that names no job at all is removed.
        Where nothing is wrong, this costs no trip.

        **Lost answers.** If the answer to a claim is lost, its jobs stay leased to a holder that does not know them.
        The holder can ask for its leases (``Beat.census``) and give them back as they were; otherwise a reap takes them
        back and counts a loss for each. If part of a store is away, a claim brings what the other parts have, and says
        whether that part may have leased something too (``Claimed.doubtful``). So does a beat (``Renewed.doubtful``).

        **Jobs that are not due wait apart**, by ``run_at``, where no claim walks over them. A claim first *promotes*
        what has become due in its queues, in the order of ``run_at``, up to a fixed number (1,000, say). Nothing else
        has to happen to a delayed job. The order above is the order among promoted jobs. It differs from the true one
        only when more than that number became due since the last claim; the rest is left to the claims that follow. A
        claim that is short of its limit while something due is not promoted answers 0 in ``next_in``, so nothing
        starves. A clock that is set back makes nothing claimable early.

        **Cost.** The cost of a claim depends on ``limit`` and, at most, on the number of queues named. It does not
        depend on how many jobs wait, are delayed, run or have ended, how many priorities they have, or how many queues
        there are. Priorities are an order, not levels: a million jobs of 60,000 priorities cost as much as a million
        jobs of one. A claim that would have to look at very many queues or tenants stops early; ``next_in`` is then 0,
        or a few milliseconds. The claims that follow look at the others first, if the names are rotated.

        **Last chances.** A job that ``lost_below`` passes over is to be claimed by a holder that holds nothing else.
        Among the holders that claim from a queue, one at a time is *chosen* to become that holder, or to have another
        holder ready that is; the others go on. If nobody is chosen, a claim that passes over such a job makes its
        holder the chosen one, for ``lease_for``, and says so (for several queues: if it is chosen in at least one).
        When the chosen holder claims a single job without the bound, it stays chosen for a third of ``lease_for`` from
        then on: long enough to serve one job after the other, and not much longer if a job kills it. A holder whose
        time has run out is not chosen again for ``lease_for``, so that others get their try. Being chosen binds nobody,
        and need not survive a crash: any claim without the bound gets the job. ``next_in`` is as if the jobs that are
        passed over were not there: they hide neither what is due later, nor that nothing else is.

        **Groups.** Of each group of a queue, up to ``group_running`` jobs are *called* (1, if no policy says
        otherwise), and only called jobs are claimable. A called job stays called until it is no longer AVAILABLE or
        RUNNING. Where several may be called, a job also loses its call when its lease ends. Where only one may be, it
        keeps the call, so that no other job of the group starts between its first run and its end. When a call is free,
        it goes to the first AVAILABLE job of the group by ``(run_at, id)``. A job that arrives or is rescheduled takes
        the call of a later one that is not RUNNING (and, where only one may be called, was never leased). While too
        many are called because ``group_running`` was lowered, those that do not run wait again. All this is part of the
        step that causes it, and no claim walks over jobs that are not called. A reap calls none of the expired jobs
        that it cancels, not even for a moment. If a claim cancels an expired job, the job that is called instead may be
        left to the next claim; ``next_in`` is then 0.

        **Governed queues.** In a queue that is *governed* (see :class:`PolicyStore`) the tenants take turns, and the
        order above holds only within a tenant. A tenant is *awake*, *asleep* or *full*, and has a *count* of the jobs
        it was given. The queue has a *round*, the highest count that was served. Every store names the steps in this
        way:

        1. **Wake.** Sleeping tenants whose time has come wake up. Their *since* is that time; their count becomes the
           round, or stays if it is higher.
        2. **Next tenant.** While the claim has room, the awake tenant with the lowest ``(count, since, name)`` is
           visited. ``tenant_workers`` may rule a tenant out: it must have jobs with this holder already, or with fewer
           holders than that. The round rises to the tenant's count.
        3. **Allowance.** The visit may take at most ``tenant_batch`` jobs, and no more than there is room for in the
           claim, in ``running`` and ``rate`` of the queue, and in those of the tenant. A tenant that has reached its
           ``running`` becomes full, until one of its jobs stops running. A tenant that is paused, or whose rate allows
           nothing, falls asleep until that ends.
        4. **Take.** The visit takes the tenant's first claimable jobs by ``(priority, run_at, id)``; with ``ageing``,
           by ``(run_at + priority * ageing, id)``, where a store may look at the first 1,000 priorities only. It leaves
           out tasks that are paused or whose rate allows nothing. The count rises by what was taken. If a tenant has
           jobs of more than 1,000 tasks, a store may look at 1,000 of them, each time others.
        5. **Rest.** A tenant with no eligible job left falls asleep: until its next job is due and the task of that job
           may run, or for good if there is none.

        A new job wakes a sleeping tenant when it is due. A change of the policy, or of the pause of a task, wakes all
        tenants of the queue at once, full ones too. A change of one tenant's limit or pause wakes that tenant only.

        So nobody waits behind a tenant or task that may not run, a heavy tenant is at most ``tenant_batch`` jobs ahead
        of a light one, and a newcomer gets neither more nor less than the others. ``next_in`` says when the first
        sleeping tenant wakes or the queue's rate opens. A job that stops running sends a hint to ``queue:NAME`` where
        somebody may wait for that: under ``running``, a running limit of its tenant, or ``tenant_workers``. Jobs that
        are not due wait apart here too: a visit promotes a bounded number of its tenant's jobs, and a tenant with
        something due left does not fall asleep. If very many jobs waited when the queue became governed, the claims
        that follow may bring them into turns bit by bit, in their order.

        **Several queues.** A claim takes from the queues in the order in which they are named. Each governed queue, and
        all others together, get an even share of the room (what is left, divided by the number of those still to come,
        rounded up), and then what others left over, in the same order. A worker that rotates the names starves none.
        """

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        """End leases. Answer each settlement, in order, with the state that the job is in now, or None: fenced off.

        Fenced off means that nothing changed, spawned rows included. A settlement that is repeated although the first
        try succeeded is fenced off too, as the lease is gone; the core does not take that for a loss.

        A batch with a state that is not in :data:`~headrace.seam.records.SETTLED`, or with a settlement that spawns too
        much (:func:`~headrace.seam.records.overspawned`), raises ``ValueError``, and none of it is stored. The same
        holds for ``finish_and_claim``.

        A cancellation that was requested meanwhile wins over AVAILABLE and PAUSED, which become CANCELLED (reason
        ``cancelled``), and loses against the terminal states. If a plan was the first to request it, the reason is
        ``superseded``, even where the settlement says CANCELLED with ``cancelled``. A reap does the same.

        COMPLETED with ``result_ttl`` > 0 holds result and key for that long; with 0 the key is free at once. The key is
        held whatever a sweep does to the record. A key whose record is gone *outlives* its job, until its time has come
        or a sweep of ``SweepTarget.KEYS`` takes it. It is as taken as any other for inserts, moves and requeues, but
        names no job any more: ``fetch`` and ``alter`` do not know it. CANCELLED and FAILED free the key at once.

        If part of a store is away, the others' leases are ended all the same. Where a lease is known to none of them,
        :class:`~headrace.errors.PartlyUnavailable` is raised, with the answers there are. ``insert``, ``fetch`` and
        ``alter`` of names do so too.

        ``queue`` moves the job and its key to another queue. If the key is taken there, the job goes without it.
        Spawned rows are inserted after all settlements of the batch, so a job that frees its key may spawn its
        successor under it. When the job ends, every inbox that waits for it gets a hint; when it becomes claimable, the
        queue's listeners do.
        """

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        """List the worker, and extend the leases named in ``beat`` to now + ``lease_for``.

        One call per heartbeat for a whole process. A lease that has expired but was not reaped is renewed all the same.
        Leases that are not this holder's at this epoch are answered in ``lost``, as they were named, and stay as they
        are. A beat waits for nobody: a lease that another transaction holds is answered in ``busy``.

        What ``progress`` names for a lease that is renewed is kept with that lease, and replaces what was kept before.
        It goes when the lease ends. Like a hint, it may be lost when the store crashes.

        The store remembers when the holder last beat, and since when it has been *steady*: since its first beat, or
        since the last one that came more than ``gap`` after the one before. The clock is read when the beat is carried
        out, not when it was sent.

        A beat that finds nobody listed ends an *absence* of the whole fleet. The store notes the last absence that was
        nobody's fault. It lasts from the last beat before it to this one, and counts if the two workers that were
        listed last had beaten within ``gap`` of each other, and somebody had been listed for ``at_work`` without a
        break. (A worker that its own job killed was alone, or was soon followed by others, or soon fell again.) Workers
        that signed off do not count.
        """

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        """Take back up to ``limit`` jobs whose lease has expired, oldest expiry first, each in one step.

        With a ``holder``, nothing is taken back unless that holder has beaten within ``gap`` and been steady for
        ``steady``. The reason: while a store stands still nobody can renew a lease. When it goes on, many leases of
        living workers have expired, and waiting calls are carried out in any order. A holder that was kept waiting
        itself gives the others time to bring their beats.

        A job whose cancellation was requested becomes CANCELLED. Otherwise ``lost`` rises by one. Above ``max_lost``
        the job becomes FAILED (reason ``lost``), else AVAILABLE, due within ``spread`` from now. ``attempt`` stays. A
        lease that expired in the absence that ``renew`` noted costs nothing: the job becomes AVAILABLE, and ``lost``
        stays as it is. Only a reap that may take leases back forgets workers that are no longer listed.

        What is left of ``limit`` goes to due jobs that have expired, as in queues that nobody claims from: they are
        cancelled. A job is answered once per call: one that is taken back and has expired too is left to the next claim
        or reap. Concurrent reaps share the work, and a renew or finish that came first wins.
        """

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        """Change jobs from outside, each in one atomic step; the changes are described in :mod:`headrace.seam.records`.

        With ``ids`` or ``keys``: one answer for each job that exists and matches, in the order named, whether the
        change applied or not. Unknown jobs are left out.

        Without: only jobs in a state that the change ``applies`` to are met, in the order of their ids, up to
        ``limit``. Fewer answers than ``limit`` mean that none is left above. To change all, call again with ``above``
        the last id answered: every job is then met once, whether it changed, was refused, or is still in such a state.
        A Cancel does not meet running jobs whose cancellation was requested already.

        A job that cannot be read can be deleted like any other. If a job ends, its waiters get a hint; if its
        cancellation is requested, its holder does.
        """

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        """The records of the jobs named by id or by key, in order; None for unknown ones.

        A key names the job that last took it, ended or not, until the record of that job goes. ``want`` names the
        sections to bring along, and ``result`` and ``error``. A result past its ttl is never returned. A job that
        cannot be read never makes the call fail: what can be read is returned, and text that is not UTF-8 with its
        bytes escaped.
        """

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        """Matching jobs, newest id first, without cells; ``after`` is the cursor of the last page.

        If part of a store is away, the others' jobs come first, and then ``PartlyUnavailable`` is raised.

        A job that exists and matches throughout appears exactly once; others may or may not. A call looks at a bounded
        number of jobs, so a page may be short, or even empty, and still have an ``after``. Jobs that cannot be read are
        returned as by ``fetch``.
        """

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        """The store in numbers, at a cost that does not depend on how many jobs there are. Exact when at rest.

        With ``queues``: only these, and the workers that claim from one of them, without ``kept``. The
        cost depends on these queues and workers, not on how many other queues there are. With no queues at all, ``()``:
        all workers that are listed, and nothing else.
        """

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        """Remove what the clause condemns, in a bounded step.

        Only ended jobs, expired results, keys that outlive their jobs, ticks, and the counts of tenants without jobs
        are removed; never a live job, a schedule or a rule. A sweep of COMPLETED removes records and results, and
        leaves the keys that are still held. A store may leave whole days to ``tidy``, for a day longer, unless the
        clause names its jobs. What is removed of ended jobs is counted (``ArchiveStore.removals``).

        ``dry_run`` removes nothing, and answers with what the same call would have removed.
        """
