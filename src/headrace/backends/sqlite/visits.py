"""Claims from a governed queue: its tenants are visited in turn.

All is written when a claim is done with the queue; until then it keeps in mind whom it has visited, and up to where it
has read their lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from headrace.backends.sqlite import governing
from headrace.backends.sqlite.apart import PROMOTED_AT_ONCE, promote
from headrace.backends.sqlite.basket import EXPIRED_AT_ONCE, Basket
from headrace.backends.sqlite.entry import read_cells
from headrace.backends.sqlite.line import Lane, Line, Run, first_of
from headrace.backends.sqlite.places import Dying, expire, next_epoch
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.transaction import Damaged, Session, Transaction
from headrace.seam.policy import FOREVER, TENANT_BATCH, Policy, Rate
from headrace.seam.records import JobId, Leased

_SQL = load("turn")
_TENANT = load("tenant")
_PLACE = load("place")
_decode = msgspec.json.Decoder(Policy).decode

_VISITS = 1_000
"""So many tenants that have nothing to give one claim visits at most; the next claim goes on."""
_WOKEN = 50
"""So many tenants one claim wakes, at most, or as many as it has room for jobs: the next claim goes on."""

Key = tuple[int, int, str]
"""count, since, name: the order of turns."""
_LOWEST: Key = (-1, -(2**62), "")


class Standing(NamedTuple):
    """How a governed queue stands as a whole."""

    queue: str
    governed: int
    round: int
    full_at: int
    running: int
    policy: Policy
    wake_at: int | None
    """When the first of those asleep wakes."""
    any_awake: int
    """Whether somebody is awake whom any holder may have."""

    @classmethod
    def load(cls, session: Session, qid: int) -> Standing:
        """Of this queue."""
        queue, governed, round_, full_at, running, policy, *tenants = session.one(_SQL["state"], (qid,))
        if isinstance(session, Transaction):
            running += session.pending(qid, RUNNING)
        decoded = _decode(policy) if policy else Policy(queue=queue)
        return cls(queue, governed, round_, full_at, running, decoded, *tenants)

    def room(self, now: int) -> int | None:
        """How many jobs the queue may still give out; None: any number."""
        cap, rate = self.policy.running, self.policy.rate
        free = None if rate is None else rate.allows(self.full_at, now)
        left = None if cap is None else max(0, cap - self.running)
        return free if left is None else left if free is None else min(left, free)


def coming(session: Session, qid: int, now: int) -> list[int]:
    """How long until there may be something to claim from a governed queue."""
    standing = Standing.load(session, qid)
    if standing.governed == governing.UNDER_WAY:
        return [0]
    rate, cap = standing.policy.rate, standing.policy.running
    if rate is not None and not rate.allows(standing.full_at, now):
        return [rate.opens_at(standing.full_at) - now]
    if cap is not None and standing.running >= cap:
        return []
    return [] if standing.wake_at is None else [max(0, standing.wake_at - now)]


def has_turn(session: Session, qid: int, holder: str, now: int) -> bool:
    """Whether a claim of the holder would find anything to do."""
    standing = Standing.load(session, qid)
    if standing.governed == governing.UNDER_WAY or (standing.wake_at is not None and standing.wake_at <= now):
        return True
    if standing.room(now) == 0:
        return False
    if standing.any_awake:
        return True
    return standing.policy.tenant_workers is not None and session.first(_SQL["any_mine"], (qid, holder)) is not None


def put_back(tx: Transaction, basket: Basket) -> None:
    """The tenants of jobs that were passed over wake up for them."""
    if basket.passed:
        tx.executemany(_TENANT["expect"], list(basket.passed.values()))


class Tenant:
    """A tenant that takes part."""

    __slots__ = (
        "awake", "cap", "count", "done", "full", "full_at", "lanes", "line", "name", "paused_until", "rate", "running",
        "saved", "since", "taken", "tid", "wake_at",
    )  # fmt: skip

    def __init__(self, row: Any, policy: Policy) -> None:
        (
            self.count, self.since, self.name, self.tid, self.running, full_at, every, burst,
            cap, own_every, own_burst, paused_until,
        ) = row  # fmt: skip
        self.cap: int | None = policy.tenant_running if cap is None else cap
        self.rate = policy.tenant_rate if own_every is None else Rate(own_every, own_burst)
        self.full_at: int = full_at if self.rate is not None and self.rate == _rate(every, burst) else 0
        self.saved = (full_at, every, burst)
        self.paused_until: int = paused_until or 0
        self.awake = True
        self.done = False
        """It had nothing more to give to this claim."""
        self.full = False
        self.wake_at: int | None = None
        self.taken = 0
        self.lanes: list[Lane] = []
        self.line: Line | None = None

    @property
    def key(self) -> Key:
        return self.count, self.since, self.name

    @property
    def spent(self) -> tuple[int, int | None, int | None]:
        """How its rate stands, which it is."""
        return (0, None, None) if self.rate is None else (self.full_at, self.rate.every, self.rate.burst)

    def sleep(self, until: int) -> None:
        self.awake = False
        self.wake_at = until if until < FOREVER else None


def _rate(every: int | None, burst: int | None) -> Rate | None:
    return None if every is None or burst is None else Rate(every, burst)


class Visits:
    """What one claim takes from one governed queue."""

    def __init__(self, tx: Transaction, qid: int, basket: Basket, now: int) -> None:
        self._tx = tx
        self._qid = qid
        self._basket = basket
        self._now = now
        standing = Standing.load(tx, qid)
        if standing.governed == governing.UNDER_WAY:
            governing.bring_in(tx, qid, now)
            standing = Standing.load(tx, qid)
        self._wakes = standing.wake_at is not None and standing.wake_at <= now
        self._queue = standing.queue
        self._policy = standing.policy
        self._chunk = standing.policy.tenant_batch or TENANT_BATCH
        self._round = standing.round
        self._full_at = standing.full_at
        self._running = standing.running
        self._before = (self._round, self._full_at)
        self._closed: dict[str, int] = {}
        """Tasks that are paused, or whose rate lets nothing through, and until when."""
        self._task_full_at: dict[str, int] = {}
        self._spent: set[str] = set()
        for task, paused_until, full_at in tx.rows(_SQL["tasks"], (qid,)):
            self._task_full_at[task] = full_at
            self._close(task, paused_until)
        self._heap: list[tuple[Key, Tenant]] = []
        self._last = _LOWEST
        """The last tenant that was read; None further."""
        self._all_read = False
        self._visited: dict[int, Tenant] = {}
        self._taken = 0
        self._promotes = PROMOTED_AT_ONCE
        self._heads: list[tuple[Any, ...]] = []
        self._head_places: list[tuple[Any, ...]] = []
        self._runs: list[tuple[Any, ...]] = []
        self._run_places: list[tuple[Any, ...]] = []
        self._leases: list[tuple[Any, ...]] = []
        self._places: list[tuple[Any, ...]] = []
        self._dying: list[Dying] = []

    def take(self, most: int) -> None:
        """Lease up to so many jobs."""
        basket, now = self._basket, self._now
        if self._wakes:
            self._tx.execute(_SQL["wake"], (self._qid, now, self._round, max(_WOKEN, most)))
        if self._policy.tenant_workers is not None:
            self._meet(self._tx.rows(_SQL["mine"], (self._qid, basket.req.holder)))
        goal = len(basket.jobs) + most
        visits = 0
        while basket.left and (room := self._room(goal - len(basket.jobs))) > 0 and visits < _VISITS:
            tenant = self._next(room)
            if tenant is None:
                break
            allowed = min(self._visit(tenant), room)
            taken = self._fill(tenant, allowed) if allowed else 0
            if allowed:
                tenant.count += taken
                if taken < allowed and basket.left:
                    self._rest(tenant)
            visits += not taken
            if tenant.awake and not tenant.done:
                heappush(self._heap, (tenant.key, tenant))
        basket.unfinished = basket.unfinished or visits >= _VISITS
        self._write()

    # -- whose turn it is

    def _room(self, wanted: int) -> int:
        cap, rate = self._policy.running, self._policy.rate
        if cap is not None:
            wanted = min(wanted, cap - self._running)
        return wanted if rate is None else min(wanted, rate.allows(self._full_at, self._now))

    def _next(self, room: int) -> Tenant | None:
        while not self._all_read and (not self._heap or self._heap[0][0] > self._last):
            wanted = min(-(-room // self._chunk) + 1, 200)
            met = self._meet(self._tx.rows(_SQL["awake"], (self._qid, *self._last, wanted)))
            self._all_read = len(met) < wanted
            if met:
                self._last = max([tenant.key for tenant in met])
                self._read_ahead(met[: wanted - 1], room)
        return heappop(self._heap)[1] if self._heap else None

    def _meet(self, rows: Iterable[Any]) -> list[Tenant]:
        """Tenants, a row for each of their lanes, take part."""
        met: dict[int, Tenant] = {}
        for *row, lane, task, later in rows:
            tenant = met.get(row[3])
            if tenant is None:
                tenant = met[row[3]] = Tenant(row, self._policy)
            if lane is not None:
                tenant.lanes.append(Lane(lane, task, later))
        for tenant in met.values():
            heappush(self._heap, (tenant.key, tenant))
        return list(met.values())

    def _read_ahead(self, tenants: Sequence[Tenant], room: int) -> None:
        """The first jobs of those tenants whom nothing holds back, and who have but one lane."""
        if self._policy.ageing is not None:
            return
        free = {
            tenant.lanes[0].number: tenant
            for tenant in tenants
            if len(tenant.lanes) == 1 and tenant.cap is None and tenant.rate is None
            and tenant.paused_until <= self._now and tenant.lanes[0].task not in self._closed
        }  # fmt: skip
        if len(free) > 1:
            for tenant in free.values():
                self._promote(tenant)
            number = min(self._chunk, room) + 1
            for lane, rows in first_of(self._tx, free, number).items():
                free[lane].line = Line(self._tx, free[lane].lanes, self._policy, self._now, (rows, number))

    def _visit(self, tenant: Tenant) -> int:
        """How many jobs the tenant may be given; 0 if none, and then it takes part no more."""
        self._visited[tenant.tid] = tenant
        self._round = max(self._round, tenant.count)
        allowed, cap, rate = self._chunk, tenant.cap, tenant.rate
        if cap is not None:
            if tenant.running >= cap:
                tenant.sleep(FOREVER)
                tenant.full = True
                return 0
            allowed = min(allowed, cap - tenant.running)
        free = None if rate is None else rate.allows(tenant.full_at, self._now)
        if tenant.paused_until > self._now or free == 0:
            opens_at = rate.opens_at(tenant.full_at) if rate is not None and free == 0 else 0
            tenant.sleep(max(tenant.paused_until, opens_at))
            return 0
        return allowed if free is None else min(allowed, free)

    # -- what he may have

    def _close(self, task: str, paused_until: int = 0) -> None:
        rate = self._policy.task_rates.get(task)
        until = paused_until if paused_until > self._now else 0
        if rate is not None and not rate.allows(self._task_full_at[task], self._now):
            until = max(until, rate.opens_at(self._task_full_at[task]))
        if until:
            self._closed[task] = until

    def _fill(self, tenant: Tenant, allowed: int) -> int:
        """Lease jobs of the tenant; how many it were."""
        if tenant.line is None:
            self._promote(tenant)
            tenant.line = Line(self._tx, tenant.lanes, self._policy, self._now)
        taken = 0
        while taken < allowed and (not taken or self._basket.left):
            run = tenant.line.draw(self._closed, self._task_room, allowed - taken)
            if run is None:
                break
            taken += self._lease(tenant, run)
        return taken

    def _promote(self, tenant: Tenant) -> None:
        """What has become due of the tenant may be claimed, a bounded number."""
        for index, lane in enumerate(tenant.lanes):
            if lane.later is not None and lane.later <= self._now and self._promotes > 0:
                moved, later = promote(self._tx, lane.number, self._promotes, self._now)
                self._promotes -= moved
                tenant.lanes[index] = lane._replace(later=later)

    def _task_room(self, task: str, wanted: int) -> int:
        """How many of so many jobs of a task its rate lets through."""
        rate = self._policy.task_rates.get(task)
        return wanted if rate is None else min(wanted, rate.allows(self._task_full_at.get(task, 0), self._now))

    def _lease(self, tenant: Tenant, run: Run) -> int:
        """Of jobs that follow each other, those that there is room for; how many were leased."""
        basket, now, tx = self._basket, self._now, self._tx
        want, jobs, bound, queue, name = basket.req.want, basket.jobs, basket.lost_bound, self._queue, tenant.name
        lane, task, _ = run.lane
        left = basket.bytes
        drawn = 0
        unsound: set[JobId] = set()
        for row in run.rows:
            (
                priority, run_at, job_id, _, epoch, attempt, lost, size, dies_at, _, key, enqueued_at, max_attempts,
                timeout, result_ttl, far, headers, error, parameters, vm_state, metadata, blob, group, _,
            ) = row  # fmt: skip
            if left <= 0:
                break
            drawn += 1
            if dies_at is not None and dies_at <= now:
                self._condemn(tenant, lane, task, row)
                unsound.add(job_id)
                continue
            if lost >= bound:
                basket.passed.setdefault(job_id, (tenant.tid, run_at))
                basket.passed_in.add(self._qid)
                unsound.add(job_id)
                continue
            if far or want is not None or vm_state is not None or metadata is not None or blob is not None:
                cells = read_cells(tx, (parameters, vm_state, metadata, blob), want)
                if far:
                    headers, error = tx.read(headers), tx.read(error)
            else:
                cells = {} if parameters is None else {"parameters": parameters}
            if far is None:  # there is no such job
                raise Damaged
            jobs.append(Leased(
                job_id, queue, task, cells, next_epoch(epoch, now), name, key, priority, run_at, enqueued_at, attempt,
                lost, max_attempts, timeout, result_ttl, headers, error, group, epoch > 0,
            ))  # fmt: skip
            left -= size
        basket.bytes = left
        sound = run.rows[:drawn]
        if unsound:
            sound = [row for row in sound if row[2] not in unsound]
        self._move(tenant, run, sound, drawn)
        run.close(drawn)
        self._spend(tenant, task, len(sound))
        return len(sound)

    def _move(self, tenant: Tenant, run: Run, rows: Sequence[Any], drawn: int) -> None:
        """Of jobs that were drawn, these are to become RUNNING."""
        req, lane = self._basket.req, run.lane.number
        until = self._now + req.lease_for
        if 1 < len(rows) == drawn and run.leads:
            last = rows[-1]
            place = (lane, last[0], last[1], last[2])
            self._heads.append((*place, self._qid, until, req.holder, tenant.tid, self._now))
            self._head_places.append(place)
        elif 1 < len(rows) == drawn:
            first, last = rows[0], rows[-1]
            bounds = (lane, first[0], first[1], first[2], last[1], last[2])
            self._runs.append((*bounds, self._qid, until, req.holder, tenant.tid, self._now))
            self._run_places.append(bounds)
        else:
            for priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, *_ in rows:
                self._leases.append((
                    seq, self._qid, next_epoch(epoch, self._now), attempt, lost, size, until, req.holder, gid,
                    tenant.tid, epoch > 0,
                ))  # fmt: skip
                self._places.append((lane, priority, run_at, job_id))

    def _spend(self, tenant: Tenant, task: str, jobs: int) -> None:
        """Every rate that so many jobs are under has less to give."""
        now = self._now
        self._taken += jobs
        self._running += jobs
        tenant.running += jobs
        tenant.taken += jobs
        if not jobs:
            return
        if self._policy.rate is not None:
            self._full_at = self._policy.rate.spend(self._full_at, now, jobs)
        if tenant.rate is not None:
            tenant.full_at = tenant.rate.spend(tenant.full_at, now, jobs)
        if (rate := self._policy.task_rates.get(task)) is not None:
            self._task_full_at[task] = rate.spend(self._task_full_at.get(task, 0), now, jobs)
            self._spent.add(task)
            self._close(task)

    def _condemn(self, tenant: Tenant, lane: int, task: str, row: Any) -> None:
        if len(self._dying) + len(self._basket.expired) < EXPIRED_AT_ONCE:
            priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, key, *_ = row
            self._dying.append(Dying(
                lane, priority, run_at, job_id, seq, epoch, attempt, lost, size, gid, self._qid, self._queue, task,
                tenant.name, key,
            ))  # fmt: skip

    def _rest(self, tenant: Tenant) -> None:
        """The tenant has nothing more to give now. One of which something due could not be promoted stays awake for the
        next claim."""
        assert tenant.line is not None
        tenant.done = True
        if (wakes_at := tenant.line.wakes_at(self._closed)) > self._now:
            tenant.sleep(wakes_at)
        else:
            self._basket.unfinished = True

    # -- what is written in the end

    def _write(self) -> None:
        tx, qid, policy = self._tx, self._qid, self._policy
        if self._heads:
            tx.executemany(_SQL["lease_head"], self._heads)
            tx.executemany(_SQL["leave_head"], self._head_places)
        if self._runs:
            tx.executemany(_SQL["lease_run"], self._runs)
            tx.executemany(_SQL["leave_run"], self._run_places)
        if self._leases:
            tx.executemany(_SQL["lease"], self._leases)
            tx.executemany(_PLACE["from_ready"], self._places)
        if self._taken:
            tx.count(qid, AVAILABLE, -self._taken)
            tx.count(qid, RUNNING, self._taken)
        if (self._round, self._full_at) != self._before:
            tx.execute(_SQL["went_on"], (qid, self._round, self._full_at))
        if self._spent:
            tx.executemany(_SQL["spent"], [(qid, task, self._task_full_at[task]) for task in self._spent])
        self._write_tenants()
        if policy.tenant_workers is not None:
            holders = [(one.tid, self._basket.req.holder, one.taken) for one in self._visited.values() if one.taken]
            tx.executemany(_TENANT["hold"], holders)
            tx.executemany(_TENANT["take"], [(tid, policy.tenant_workers) for tid, _, _ in holders])
        self._basket.expired += expire(tx, self._dying, self._now)

    def _write_tenants(self) -> None:
        tx = self._tx
        empty: list[tuple[int]] = []
        for tenant in self._visited.values():
            if tenant.line is not None:
                empty += [(lane,) for lane in tenant.line.emptied()]
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
