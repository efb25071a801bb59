"""The waist: ten batch operations that every store offers, and the guarantees behind each.

A stranger should be able to write a backend from this file, :mod:`headrace.seam.records` and
``headrace.testing.conformance`` alone. What holds for all ten:

* **One trip.** An operation is one round trip, whatever the size of its batch (at most ``limits.max_batch``).
* **Atomic.** A row's effects (state, cells, key, result, counters, spawned rows, hint) happen together or not at all.
  Rows of one batch are independent of each other: none fails because its neighbour did.
* **Durable.** When the call returns, its effects survive what ``limits.durable`` says they survive. When it raises
  :class:`~headrace.errors.Unavailable`, they may or may not have happened: every operation is safe to repeat.
* **Honest about faults.** What only the content can cause, and always will, is :class:`~headrace.errors.Rejected` or
  :class:`~headrace.errors.PayloadTooLarge`: nothing was stored, and a worker fails a job whose outcome is refused
  so. Whatever may pass is ``Unavailable``: connections, locks, limits of time, rights and tables that were there
  before. Any other :class:`~headrace.errors.BackendError` blames nobody, and is waited out as well.
* **Fenced.** A write by a lease holder names ``(id, epoch, holder)``. It takes effect only while the job is RUNNING
  under exactly these; otherwise it changes nothing, and the answer says so. An expired lease that nobody has reaped
  yet is still the holder's.
* **One clock.** With ``at=None`` the store reads its own clock, once per operation. On a server that is the server's,
  and clients' clocks decide nothing. A store without a server (a file, memory) reads the wall clock of the process that
  asks: the processes of one machine have the same one, unless one of them is made to see another (libfaketime, a time
  namespace); such a process is outside the contract, and sees leases end, and jobs due, too early or too late.
  A clock that steps back makes leases, delays and retention last longer by the step, and harms nothing else.
* **One way.** A backend never calls the core. What it has to say is in the answer, or in a :class:`Hint`.
* **No policy.** Delays, retries, limits and what to delete come in as numbers.

States::

    insert ─► AVAILABLE ◄──── finish, reap ────┐
                │  ▲ pause/resume: PAUSED      │
                │  └─ requeue ◄── terminal     │
                └─ claim ─► RUNNING ───────────┤
                                               ▼
                      COMPLETED · CANCELLED · FAILED (the dead letters)

A job is *due* when it is AVAILABLE and ``run_at <= now``. It is *claimable* when it is due, its queue is not paused,
it has not expired, and it is *called*, as every job is that has no group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from headrace.seam.policy import GroupState, Policy, PolicyState, TenantLimit, TenantState
from headrace.seam.records import (
    Altered,
    Beat,
    Change,
    Claim,
    Claimed,
    Hint,
    Inserted,
    JobId,
    JobKey,
    Limits,
    Page,
    Place,
    Reap,
    Reaped,
    Record,
    Renewed,
    Row,
    Selector,
    Settlement,
    Stamp,
    Stats,
    SweepClause,
    Swept,
)
from headrace.seam.ticks import (
    Drop,
    Look,
    Looked,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    Tick,
    TickNote,
    TickOutcome,
)
from headrace.types import JobState


class Hints(Protocol):
    """Wake-ups from the store. Lossy by contract: whoever listens also polls, only more slowly."""

    def listen(self, topics: Collection[str]) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Subscribe. Once the context is entered, hints caused from then on are delivered (as far as any are).

        Topics: ``queue:NAME`` when a job may have become claimable there, ``inbox:NAME`` with a job's id when a job
        with that ``reply_to`` ended, ``holder:NAME`` when the next renew would bring a cancellation, ``schedules:all``
        when a schedule was saved. Several hints for one topic may arrive as one.
        """
        ...


class Turn(Protocol):
    """``finish`` of the last batch and ``claim`` of the next, in one trip."""

    async def __call__(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        """Exactly ``finish(batch)`` then ``claim(req)``: what the one makes claimable, the other may return."""
        ...


class Tidy(Protocol):
    """What a store needs besides sweeps, such as a place for the jobs of days to come. A store that needs nothing has
    no attribute ``tidy``."""

    async def __call__(self, clauses: Sequence[SweepClause], at: Stamp = None) -> Mapping[Place, int]:
        """Do what is due, unless another process does, or did lately: every worker calls this on every beat.

        ``clauses`` are those that are swept. Where whole days of jobs are past one of them and go at once, this does
        it, and answers with how many jobs went from which place. What is still to be done, or cannot be done now,
        comes with a later call.
        """
        ...


class Joined(Protocol):
    """A transaction of the caller's own, on a connection that blocks. What is done here becomes true when the caller
    commits, and never was when he rolls back."""

    @property
    def blocks(self) -> Literal[True]: ...

    def insert(self, rows: Sequence[Row]) -> list[Inserted]:
        """As ``Backend.insert``; the queues' listeners get their hint when the transaction commits."""
        ...

    def complete(self, settlement: Settlement) -> bool:
        """As ``Backend.finish`` of one COMPLETED settlement. False: fenced off, and the transaction cannot commit any
        more, so that nothing that the caller wrote for a job that he has lost comes true."""
        ...


class AsyncJoined(Protocol):
    """The same on a connection that is awaited."""

    @property
    def blocks(self) -> Literal[False]: ...

    async def insert(self, rows: Sequence[Row]) -> list[Inserted]:
        """See :class:`Joined`."""
        ...

    async def complete(self, settlement: Settlement) -> bool:
        """See :class:`Joined`."""
        ...


class Transactions(Protocol):
    """Jobs in transactions that are not the store's own. Works on a backend that is not open."""

    def join(self, connection: object) -> Joined | AsyncJoined:
        """Join whatever transaction the connection is in when ``insert`` and ``complete`` are called, and keep none of
        its state.

        Raises ``ConfigError`` for what is no connection that the store knows. ``insert`` and ``complete`` raise
        ``ConfigError`` when the connection commits every statement by itself, ``SchemaMismatch`` when there is no
        store of ours where it leads, and leave the driver's own errors as they are: callers know how to treat those.
        """
        ...


class TickStore(Protocol):
    """Schedules, and the ledger of their ticks. What holds for the ten operations holds here too.

    No two planners are ever in step, so nothing here needs a leader: whoever changes a schedule names the version that
    he has read, and of several one succeeds. A slot is on the ledger once, and its job is stored in the same atomic
    step: there is no moment at which one of them is there without the other.
    """

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        """Make, change and remove schedules; answer each, in order: whether it was done.

        It is done when the stored version is the expected one (0: there is none of that name). A saved schedule is
        stored as given, but with the version after the expected one, ``updated_at`` now, and ``created_at`` now if it
        is new. Those who listen to ``schedules:all`` get a hint.
        """
        ...

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        """Matching schedules in the order of their names (by code points), those above ``after``."""
        ...

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        """Up to ``limit`` enabled schedules whose ``look_at`` has come, by ``(plan_priority, look_at, name)``. The cost
        depends on ``limit`` and the number of priorities in use, not on the number of schedules. Nothing changes."""
        ...

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> list[list[TickOutcome | None] | None]:
        """Carry out plans, each in one atomic step; answer each, in order, with what became of its ticks, or None: the
        schedule is not there any more, or not with that version, and nothing was done. A plan that names a version may
        also be answered so while another step has the schedule in hand, or the waiting job that the plan would cancel.

        For each tick, in order: a slot that has FIRED stays as it is (None); another entry of that slot on the ledger
        is replaced, so that what was missed can be made up for. One without a row is MISSED. One
        with ``overlap`` SKIP is SKIPPED while the schedule's ``last_job`` is live. Otherwise its row is inserted by the
        rules of ``Backend.insert`` (a stored id is not stored again), and it is FIRED; with ``overlap`` CANCEL a live
        ``last_job`` is cancelled first, as by ``alter`` with the reason ``superseded``, which it then ends with also if
        it runs (see ``Backend.finish``). ``runs`` counts what FIRED.

        A plan that names a version also moves the schedule on: ``slot`` and ``look_at`` become the plan's, and each
        FIRED tick becomes ``last_slot`` and ``last_job``. With every plan that is carried out the version rises by one.
        """
        ...

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        """Ticks of a schedule, latest slot first; those of slots earlier than ``before``."""
        ...

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        """Keep with ticks what became of their jobs; those that are not on the ledger are passed over."""
        ...


class PolicyStore(Protocol):
    """The policies of queues: they live in the store, so that every worker keeps to a change from its next claim on.

    What they mean is told where they count: ``claim`` (turns, limits, rates, pauses, groups) and ``insert`` (depth).
    """

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        """Replace the policy of a queue; whether that was done: only if its version is the stored one (0: there is
        none yet). It is then stored with the next version.

        A rate that is new or changed begins with its burst saved up. With the first policy that ``governs``, the first
        ``TenantLimit`` and the first pause of a tenant or task the queue becomes *governed*, and stays so. Groups are
        called anew by the new ``group_running``. Those who listen to ``queue:NAME`` get a hint.
        """
        ...

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        """Replace what one tenant may do in one queue; with neither bound it has no limit of its own any more."""
        ...

    async def find(self, queues: Sequence[str] | None = None, at: Stamp = None) -> list[PolicyState]:
        """The policies of these queues, or of all, that have one or are governed, by name."""
        ...

    async def tenants(
        self,
        queue: str,
        names: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        at: Stamp = None,
    ) -> list[TenantState]:
        """The tenants of a governed queue, in the order of their names (by code points), those above ``after``; only
        those in ``names``, if given. At least those with jobs that wait or run, with a limit of their own, or paused;
        others may or may not be listed."""
        ...

    async def group(self, queue: str, group: str) -> GroupState:
        """Who has the turns of a group, and how many wait for one."""
        ...


class Backend(Protocol):
    """A store of jobs. One instance belongs to one event loop; ``sibling`` makes another for another loop."""

    @property
    def limits(self) -> Limits:
        """What this store can take."""
        ...

    @property
    def tx(self) -> Transactions | None:
        """Capability: jobs in the caller's own transactions."""
        ...

    @property
    def ticks(self) -> TickStore | None:
        """Capability: schedules. None means that there can be none."""
        ...

    @property
    def policies(self) -> PolicyStore | None:
        """Capability: policies of queues. None means that there can be none; groups there are all the same."""
        ...

    @property
    def hints(self) -> Hints | None:
        """Capability: wake-ups. None means that the core polls."""
        ...

    @property
    def turn(self) -> Turn | None:
        """Capability: finish and claim in one trip. None means two trips."""
        ...

    def sibling(self) -> Backend:
        """A second, unopened backend on the same store, sharing no connection with this one.

        The heartbeat runs on it, in a thread with a loop of its own, so that a blocked loop or an exhausted pool
        costs nobody a lease.
        """
        ...

    async def open(self) -> None:
        """Connect and check: the right schema, writable, sane. Creates the schema in an empty store where that is
        the store's habit. Opening twice is harmless.

        Raises ``Unavailable`` when the store cannot be reached, ``SchemaMismatch`` when it is not ours or too new,
        ``Corrupt`` when it is damaged, ``ConfigError`` when it is set up in a way that would lose jobs.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection and thread. Closing twice, or before opening, is harmless."""
        ...

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        """Store new jobs; answer each row, in order.

        A row whose ``id`` is stored already, in whatever state, changes nothing: SAME. So repeating an insert after
        a lost reply is safe as long as the job's record is kept. Once the record is gone the id is unknown: the row is
        a new job, with a new epoch 0. ``SweepClause.spare`` keeps retention from removing it too early for that.

        A row with a ``key`` looks at the job that last took ``(queue, key)``:

        * live (AVAILABLE, RUNNING, PAUSED), or FAILED when the row says ``hold_failed``: DUPLICATE, with its id,
          state and attempt. A live job also takes on the row's ``reply_to``, as by ``Watch``. Everything else about
          the row is dropped: the first accepted enqueue decides.
        * COMPLETED and still held: DONE, with its id and result.
        * COMPLETED and still held, but its record is gone: DUPLICATE, with its id, the state COMPLETED and attempt 0.
        * otherwise the key is free and this row takes it: NEW.

        Two rows of one batch with the same key: the first wins, the second is its duplicate. Any number of
        concurrent inserts of one key: exactly one is NEW.

        A row that would be NEW is FULL, and not stored, while as many jobs wait (AVAILABLE or PAUSED) in its queue as
        the policy's ``depth`` says, or in all queues as that of :data:`~headrace.seam.policy.STORE` says. Rows are
        admitted in their order while there is room; concurrent inserts may be off by one in a hundred. The answer to
        one that is FULL tells who is, so that nobody has to ask. Only ``insert`` is refused: spawned rows, ticks,
        retries and requeues never are.

        ``run_at`` becomes ``row.run_at``, or now + ``row.delay``. Then those who listen to ``queue:NAME`` get a hint.
        """
        ...

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        """Lease up to ``limit`` claimable jobs of ``queues`` to ``holder`` for ``lease_for``; fewer, once they weigh
        ``max_bytes``, but never none for that.

        The jobs returned are, and are in the order of, the first by ``(priority, run_at, id)`` among all claimable
        jobs of these queues, less those that ``lost_below`` passes over. Concurrent claims share them out: no job
        goes to two, and a claim may then skip what another is just taking, or changing; ``next_in`` is 0 when that left
        it short. Each becomes RUNNING, leased until now + ``lease_for``, with the next *epoch*: the last one + 1, or
        now if that is higher. So a job never gets an epoch twice: not when its record went and it is enqueued again,
        and not when the store loses what it wrote last (a crash without a sync, a failover to a replica that lags), as
        long as its clock is not set back at the same time. A claim is as durable as an insert: its jobs are started as
        soon as it is answered.

        A job has *begun* once a handler may have been called for it: from its first lease on, unless every lease that
        it had was settled with ``unbegun``. ``Leased.begun`` tells how it was before this lease.

        Due jobs whose ``expires`` has passed and that come, in this order, before the last job returned (or anywhere,
        if nothing cut the answer short) become CANCELLED with the reason ``expired`` and are listed in
        ``expired``, never returned. A claim may leave some of a great many to the next claim or reap.

        A job that cannot be read, as after damage or an edit past these operations, holds up no other. The claim, turn
        or reap that meets it sets it aside: it becomes FAILED with the reason ``corrupt``, with as much of it as can be
        kept, and those behind it are taken. So does any operation that would fail for it. An ``epoch`` at the end of
        its range counts as such. What names no job at all is removed. Where nothing is wrong, this costs no trip.

        The answer to a claim may be lost: its jobs then stay leased to a holder that knows nothing of them, until it
        asks for its leases (``Beat.census``) and gives them back as they were, or a reap takes them back and counts a
        loss for each. Where a part of the store is away, a claim brings what the others have, and says whether that
        part may have leased something too (``Claimed.doubtful``); so does a beat (``Renewed.doubtful``).

        **What is not due waits apart**, by ``run_at``, where no claim walks over it. A claim first *promotes* what has
        become due in its queues, in the order of ``run_at``, a bounded number at a time (1,000, say): so the passing of
        time is all that a delayed job needs. The order above is that among what has been promoted; only when more than
        that number became due since the last claim does it leave some of them to the claims that follow. A claim that
        is short of its limit while something due is not promoted answers 0 in ``next_in``, so nothing starves. A clock
        that is set back makes nothing claimable early.

        The cost of a claim depends on ``limit`` and, at most, on the number of queues named. It does not depend on how
        many jobs wait, are not due, run or have ended, on how many priorities they have, nor on how many queues
        there are. Priorities are an order, not levels: a million jobs of 60,000 priorities cost what as many of one do.

        **Last chances.** A job that ``lost_below`` passes over is to be claimed by a holder that holds nothing else. Of
        those who claim from a queue, one at a time is *chosen* to become that, or to have another holder ready who is,
        and all others go on. A claim that has passed over a job of it makes its holder the one, for ``lease_for``, if
        nobody is; and tells whether he is (where the jobs are of several queues, in one of these at least). When he
        claims a single job without the bound, he stays it for a third of ``lease_for`` from then on: as long as he
        serves one after the other, and not much longer if he dies of one. Whose time has run out is not chosen again
        for ``lease_for``, so that others have their try. To be chosen binds nobody, and need not survive a crash: any
        claim without the bound gets the job.

        **Groups.** A group of a queue has ``group_running`` turns (1, if no policy says otherwise). A job of it is
        *called* while it has one: from when it is given one until it stops to be AVAILABLE or RUNNING. Where there are
        several turns, a job also gives its own back when its lease ends; where there is one, it keeps it, so that no
        other job of the group is started between its first run and its end. Turns go to the first AVAILABLE jobs of the
        group by ``(run_at, id)``: when one is free, and when a job that comes, or is rescheduled, is before one which
        is called but not RUNNING (and, where there is one turn, was never leased): that one waits again. While more are
        called than there are turns, as their number was lowered, those that do not run wait again whatever they were.
        All this is part of the step that brings it about, and no claim walks over jobs that are not called. A job that
        is called because a claim has met another that expired may be left to the next claim; ``next_in`` is 0 then.

        **Governed queues.** Of a queue that is *governed* (see :class:`PolicyStore`), the tenants take turns, and the
        order above counts only within a tenant. A tenant is *awake*, *asleep* or *full*, and has a count of what it was
        given:

        1. Tenants asleep whose time has come wake up, *since* that time, with the queue's *round* as their count, or
           their own if that is higher.
        2. While there is room, the awake tenant with the lowest ``(count, since, name)`` that ``tenant_workers`` leaves
           to this holder is visited: one that the holder has jobs of already, or that fewer than ``tenant_workers``
           have. Its count becomes the round, unless that is higher.
        3. The visit takes at most ``tenant_batch`` jobs, and what there is room for: of the claim, of ``running`` and
           ``rate`` of the queue, and of those of the tenant. They are the first claimable ones of the tenant by
           ``(priority, run_at, id)`` (with ``ageing``: by ``(run_at + priority * ageing, id)``), leaving out tasks that
           are paused or whose rate lets no more through. The count rises by what was taken.
        4. A tenant whose ``running`` is reached is *full*: it wakes when a job of it stops running, and for no other
           reason. One that is paused, whose rate lets nothing through, or that has nothing more of what a visit could
           have taken, falls asleep: until the pause ends or the rate opens; until the first job that is left is due and
           the rate and the pause of its task allow it; for good, if there is none. A job that comes wakes a tenant
           asleep when it is due. A change of the policy, or of the pause of a task, wakes all of the queue at once; a
           change of one tenant's limit or pause wakes that tenant, and touches no other.

        So nobody waits behind a tenant or a task that may not run, a heavy tenant is at most ``tenant_batch`` jobs
        ahead of a light one, and who comes anew gets neither more nor less than those who are there. ``next_in`` tells
        when the first of the tenants asleep wakes, or the queue's rate opens. A job that stops running gives those who
        listen to ``queue:NAME`` a hint where they may wait for that: under ``running``, a running limit of its tenant,
        or ``tenant_workers``. What is not due waits apart here too: a visit promotes what has become due of its tenant,
        a bounded number, and a tenant of which something due is left does not fall asleep. A great many jobs that
        waited when the queue became governed may be brought into turns bit by bit, by the claims that follow, in their
        order.

        A claim from several queues takes first from the one that is named first: each governed queue, and all others
        together, are given their even share of the room in this order (what is left, by the number of those to come,
        rounded up), then what others left, in the same order. So who names them in turn starves none.
        """
        ...

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        """End leases; answer each settlement, in order, with the state that the job is in now, or None: fenced off.

        Fenced off means that nothing changed, spawned rows included. A repeated settlement whose first try got
        through is fenced off too, as the lease is gone: the core does not take that for a loss.

        A batch with a state that is not in :data:`~headrace.seam.records.SETTLED` raises ``ValueError``, and nothing of
        it is stored; so it is with ``turn``.

        A cancellation asked for meanwhile wins over AVAILABLE and PAUSED, which become CANCELLED (reason
        ``cancelled``), and loses against the terminal states. Where the first who asked was a plan, the reason is
        ``superseded``, also instead of ``cancelled`` in a settlement that says CANCELLED; so it is in a reap.

        COMPLETED with ``result_ttl`` > 0 holds result and key for so long; with 0 the key is free at once. The key is
        held for so long whatever a sweep does to the record: one whose job's record is gone *outlives* it, until its
        own time has come or a sweep of ``Place.KEYS`` takes it. It is taken like any other that is held, for inserts,
        moves and requeues; but it names no job any more, so ``fetch`` and ``alter`` know nothing of it.
        CANCELLED and FAILED free it at once. ``queue`` moves the job (and its key) to another queue unless its key is
        taken there, in which case the job goes without its key. Spawned rows are inserted when all settlements of the
        batch are done, so a job that freed its key may spawn its successor under it. Every inbox that waits for the
        job gets a hint when the job ends; the queue's listeners get one when it becomes claimable.
        """
        ...

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        """List the worker, and extend its leases named in ``beat`` to now + ``lease_for``.

        One call per heartbeat for a whole process. A lease past its expiry that nobody reaped is renewed all the
        same. Leases that are not this holder's at this epoch are answered in ``lost``, as they were named, and stay as
        they are. A beat waits for nobody: a lease that another transaction has in hand is answered in ``busy``.

        The store remembers when the holder last beat, and since when it has been *steady*: since its first beat, or
        since the last one that came more than ``gap`` after the one before. Both are read when the beat is carried out,
        not when it was sent.

        A beat that finds nobody listed ends an *absence* of the whole fleet. The store notes the last absence that is
        nobody's fault: from the last beat before it to this one, provided that the two workers that were listed last
        had beaten within ``gap`` of each other, and that somebody had been listed for ``at_work`` without a break. A
        worker that its own job killed was alone, or was followed by others soon, or fell again soon after. Workers that
        signed off count for nothing.
        """
        ...

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        """Take back up to ``limit`` jobs whose lease has expired, oldest expiry first, each in one step.

        With a ``holder``, no lease is taken back unless that holder has beaten within ``gap`` and been steady for
        ``steady``. While a store stands still nobody can renew a lease; when it goes on, many have run out whose
        workers live, and what lay in its input is carried out in any order. A holder that had to wait so long for its
        own beats leaves the others the time to bring theirs.

        A job whose cancellation was asked for becomes CANCELLED. Otherwise ``lost`` rises by one; above ``max_lost``
        the job becomes FAILED (reason ``lost``), else AVAILABLE, due within ``spread`` from now. ``attempt`` stays.
        A lease that ran out in the absence that ``renew`` has noted costs nothing: the job becomes AVAILABLE, and
        ``lost`` stays as it is. Only a reap that may take leases back forgets workers that are not listed any more.

        With what is left of ``limit``, also cancels due jobs that have expired, as in queues that nobody claims from.
        One call answers once for a job: one that it takes back and that has expired is left to the next claim or
        reap. Concurrent reaps share the work, and a renew or finish that came first wins.
        """
        ...

    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        """Change jobs from outside, each in one atomic step; the changes are described in :mod:`headrace.seam.records`.

        With ``ids`` or ``keys``: one answer for each job that exists and matches, in the order named, whether the
        change applied or not; unknown ones are left out. Otherwise only jobs in a state to which the change applies
        are met, in the order of their ids, up to ``limit``; fewer answers than ``limit`` mean that none is left above.
        To change them all, call again with ``above`` the last id answered: so every job is met once, whether it then
        changed, was refused, or still is in such a state. A running job whose cancellation was asked for already is
        not met by a Cancel without names. A job that cannot be read can be deleted like any other. Waiters of a job
        that ends get a hint, holders of a job whose cancellation is asked for too.
        """
        ...

    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        """The records of the jobs named by id or by key, in order; None for those that are unknown.

        A key names the job that last took it, ended or not, until that job's record goes. ``want`` names the sections
        to bring along, and ``result`` and ``error``. A result past its ttl is never returned. Of a job that cannot be
        read, what can be is told, and text that is no UTF-8 with its bytes as escapes; it never makes the call fail.
        """
        ...

    async def scan(self, sel: Selector, after: str | None = None, limit: int = 100, at: Stamp = None) -> Page:
        """Matching jobs, newest id first, without cells; ``after`` is the last page's cursor.

        Jobs that exist throughout and match throughout appear exactly once; others may or may not. A page may be
        short, or even empty, and still have an ``after``: a call looks at a bounded number of jobs. Those that cannot
        be read are told as ``fetch`` tells them.
        """
        ...

    async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
        """The store in numbers, at a cost that does not depend on how many jobs there are. Exact when at rest.

        With ``queues``, only of these, and of the workers that claim from one of them; there are no ``places`` and no
        ``store_bytes`` then. It costs what these queues and the workers do, however many other queues there are.
        """
        ...

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        """Remove what the clause condemns, in a bounded step: only ended jobs, expired results, keys that outlive their
        jobs, ticks, and the places in turn of tenants without jobs; never a live job, a schedule or a rule. A sweep of
        COMPLETED removes records and results, and leaves the keys that are still held.
        A store may leave whole days to ``Tidy``, for a day more.

        ``dry_run`` removes nothing and answers with what the same call would have removed.
        """
        ...
