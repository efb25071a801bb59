"""Where a claim finds the tenants of a governed queue in a file.

All is written when a claim is done with the queue. Until then it remembers the tenants that it has visited, and how far
it has read their lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from headrace.backends.sqlite import governing
from headrace.backends.sqlite.delayed import PROMOTED_AT_ONCE, promote
from headrace.backends.sqlite.governed_queue import GovernedQueue, read_tasks
from headrace.backends.sqlite.lease_writer import LeaseWriter, SqliteTaken
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.tenant_jobs import Lane, TenantJobs, first_of
from headrace.backends.sqlite.transaction import Transaction
from headrace.backends.turns import Tenant
from headrace.seam.policy import FOREVER, TENANT_BATCH, Policy, Rate

_SQL = load("turn")
_TENANT = load("tenant")

_WOKEN = 50
"""A claim wakes all tenants whose time has come, up to this many …"""
_WOKEN_OF_MANY = 4
"""… and this many, or one per job that it has room for, if they are more. The next claim goes on."""
_LANES = 1_000
"""A visit looks at most at this many lanes; more are left to later visits."""

Key = tuple[int, int, str]
"""count, since, name: the order of turns."""
_LOWEST: Key = (-1, -(2**62), "")


def wake_passed(tx: Transaction, taken: SqliteTaken) -> None:
    """The tenants of jobs that were passed over wake up for them."""
    if taken.passed:
        tx.executemany(_TENANT["expect"], list(taken.passed.values()))


class SqliteTenant(Tenant):
    """A tenant that takes part in a claim."""

    __slots__ = ("done", "jobs", "lanes", "saved", "taken", "tasks", "tid")

    def __init__(self, row: Any, policy: Policy) -> None:
        (
            self.count, self.since, self.name, self.tid, self.running, full_at, every, burst,
            cap, own_every, own_burst, paused_until, self.tasks,
        ) = row  # fmt: skip
        self.cap = policy.tenant_running if cap is None else cap
        self.rate = policy.tenant_rate if own_every is None else Rate(own_every, own_burst)
        rate = self.rate
        self.full_at = full_at if rate is not None and rate.every == every and rate.burst == burst else 0
        self.saved = (full_at, every, burst)
        self.paused_until = paused_until or 0
        self.awake = True
        self.full = False
        self.wake_at = None
        self.done = False
        """Whether it has nothing more to give to this claim."""
        self.taken = 0
        self.lanes: list[Lane] = []
        """One for each of its ``tasks``; if these are very many, some of them, each time others."""
        self.jobs: TenantJobs | None = None

    @property
    def key(self) -> Key:
        return self.count, self.since, self.name

    @property
    def spent(self) -> tuple[int, int | None, int | None]:
        """How far its rate is used up, and which rate it is."""
        return (0, None, None) if self.rate is None else (self.full_at, self.rate.every, self.rate.burst)


class SqliteVisits:
    """The :class:`~headrace.backends.turns.Visits` of one claim."""

    def __init__(self, tx: Transaction, qid: int, taken: SqliteTaken, now: int) -> None:
        self._tx = tx
        self._qid = qid
        self._holder = taken.req.holder
        self._taken = taken
        self._now = now
        queue = GovernedQueue.load(tx, qid)
        if queue.under_way:
            governing.bring_in(tx, qid, now)
            queue = GovernedQueue.load(tx, qid)
        self._wakes = queue.wake_at is not None and queue.wake_at <= now
        self.turns = turns = queue.turns
        read_tasks(tx, qid, turns)
        turns.begin(now)
        self._before = (turns.round, turns.full_at)
        self._tasks_before = dict(turns.task_full_at)
        self._batch = turns.policy.tenant_batch or TENANT_BATCH
        self._heap: list[tuple[Key, SqliteTenant]] = []
        self._last = _LOWEST
        """The last tenant that was read."""
        self._all_read = False
        self._visited: dict[int, SqliteTenant] = {}
        self._promotes = PROMOTED_AT_ONCE
        self._leases = LeaseWriter(tx, qid, queue.queue, taken, now)

    # -- the steps of a visit

    def wake(self, most: int) -> None:
        if self._wakes:
            many = self._tx.first(_SQL["wakes_more"], (self._qid, self._now, _WOKEN)) is not None
            self._tx.execute(
                _SQL["wake"], (self._qid, self._now, self.turns.round, max(_WOKEN_OF_MANY if many else _WOKEN, most))
            )
        if self.turns.policy.tenant_workers is not None:
            self._meet(self._tx.rows(_SQL["mine"], (self._qid, self._holder, None, None, None, _LANES)))

    def next_tenant(self, room: int) -> SqliteTenant | None:
        while not self._all_read and (not self._heap or self._heap[0][0] > self._last):
            wanted = min(-(-room // self._batch) + 1, 200)
            met = self._meet(self._tx.rows(_SQL["awake"], (self._qid, *self._last, wanted, _LANES)))
            self._all_read = len(met) < wanted
            if met:
                self._last = max([tenant.key for tenant in met])
                self._read_ahead(met[: wanted - 1], room)
        if not self._heap:
            return None
        _, tenant = heappop(self._heap)
        self._visited[tenant.tid] = tenant
        return tenant

    def take(self, tenant: SqliteTenant, most: int) -> int:
        if tenant.jobs is None:
            self._promote(tenant)
            tenant.jobs = TenantJobs(self._tx, tenant.lanes, self.turns.policy.ageing, self._now)
        turns = self.turns
        taken = 0
        while taken < most and self._taken.visits > 0 and (not taken or self._taken.left):
            run = tenant.jobs.draw(turns, most - taken)
            if run is None:
                break
            if leased := self._leases.lease(tenant.tid, tenant.name, run):
                turns.running += leased
                tenant.running += leased
                tenant.taken += leased
                turns.spend(tenant, run.lane.task, leased, self._now)
                taken += leased
            self._taken.work()
        return taken

    def wakes_at(self, tenant: SqliteTenant) -> int:
        assert tenant.jobs is not None
        wakes_at = tenant.jobs.wakes_at(self.turns.closed)
        if tenant.tasks > _LANES and wakes_at > self._now:  # not all of its lanes were looked at
            [first] = self._tx.one(_SQL["first_of_all"], (tenant.tid,))
            return FOREVER if first is None else max(self._now, first)
        return wakes_at

    def visited(self, tenant: SqliteTenant, again: bool) -> None:
        tenant.done = not again
        if again and tenant.awake:
            heappush(self._heap, (tenant.key, tenant))

    # -- what is read

    def _meet(self, rows: Iterable[Any]) -> list[SqliteTenant]:
        """Tenants, a row for each of their lanes, take part."""
        met: dict[int, SqliteTenant] = {}
        for *row, lane, task, next_due in rows:
            tenant = met.get(row[3])
            if tenant is None:
                tenant = met[row[3]] = SqliteTenant(row, self.turns.policy)
            if lane is not None:
                tenant.lanes.append(Lane(lane, task, next_due))
            elif tenant.tasks > _LANES:
                start = self._now % (tenant.tasks - _LANES + 1)
                some = self._tx.rows(_SQL["some_lanes"], (tenant.tid, _LANES, start))
                tenant.lanes = [Lane._make(one) for one in some]
        for tenant in met.values():
            heappush(self._heap, (tenant.key, tenant))
        return list(met.values())

    def _read_ahead(self, tenants: Sequence[SqliteTenant], room: int) -> None:
        """Read the first jobs of tenants that no rule holds back and that have only one lane."""
        if self.turns.policy.ageing is not None:
            return
        free = {
            tenant.lanes[0].number: tenant
            for tenant in tenants
            if len(tenant.lanes) == 1 and tenant.cap is None and tenant.rate is None
            and tenant.paused_until <= self._now and tenant.lanes[0].task not in self.turns.closed
        }  # fmt: skip
        if len(free) > 1:
            for tenant in free.values():
                self._promote(tenant)
            number = min(self._batch, room) + 1
            for lane, rows in first_of(self._tx, free, number).items():
                free[lane].jobs = TenantJobs(self._tx, free[lane].lanes, None, self._now, (rows, number))

    def _promote(self, tenant: SqliteTenant) -> None:
        """Make jobs of the tenant claimable that have become due, a bounded number."""
        for index, lane in enumerate(tenant.lanes):
            if lane.next_due is not None and lane.next_due <= self._now and self._promotes > 0:
                moved, next_due = promote(self._tx, lane.number, self._promotes, self._now)
                self._promotes -= moved
                tenant.lanes[index] = lane._replace(next_due=next_due)

    # -- what is written in the end

    def write(self) -> None:
        """The claim is done with the queue."""
        tx, qid, turns = self._tx, self._qid, self.turns
        self._leases.write()
        if (turns.round, turns.full_at) != self._before:
            tx.execute(_SQL["went_on"], (qid, turns.round, turns.full_at))
        if turns.task_full_at != self._tasks_before:
            changed = turns.task_full_at.items() - self._tasks_before.items()
            tx.executemany(_SQL["spent"], [(qid, task, full_at) for task, full_at in changed])
        self._write_tenants()
        if turns.policy.tenant_workers is not None:
            holders = [(one.tid, self._holder, one.taken) for one in self._visited.values() if one.taken]
            tx.executemany(_TENANT["hold"], holders)
            tx.executemany(_TENANT["take"], [(tid, turns.policy.tenant_workers) for tid, _, _ in holders])
        self._leases.expire()

    def _write_tenants(self) -> None:
        tx = self._tx
        empty: list[tuple[int]] = []
        for tenant in self._visited.values():
            if tenant.jobs is not None:
                empty += [(lane,) for lane in tenant.jobs.emptied()]
        gone: dict[int, int] = {}
        for [tid] in tx.executemany(_TENANT["forget_lane"], empty) if empty else ():
            gone[tid] = gone.get(tid, 0) + 1
        rows = []
        idle = []
        served = []
        for tenant in self._visited.values():
            if tenant.awake and tenant.tid not in gone and tenant.spent == tenant.saved:
                served.append((tenant.tid, tenant.taken))
                continue
            since = tenant.since if tenant.awake else None
            rows.append((
                tenant.tid, tenant.count, since, tenant.wake_at, int(tenant.full), tenant.taken,
                gone.get(tenant.tid, 0), *tenant.spent,
            ))  # fmt: skip
            if tenant.done and not tenant.running:
                idle.append((tenant.tid, self._now))
        if served:
            tx.executemany(_SQL["served"], served)
        if rows:
            tx.executemany(_SQL["visited"], rows)
        if idle:
            tx.executemany(_TENANT["forget"], idle)
