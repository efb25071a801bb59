"""Recovery after a crash, and what must hold in the end."""

from __future__ import annotations

from collections import Counter

from headrace.seam.policy import Policy
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Delete, InsertStatus, JobId, JobKey, Record, Selector, Settlement
from headrace.testing.crashpoints.actor import HOUR, LEASE, QUEUES, Actor, row
from headrace.testing.crashpoints.flows import Flow
from headrace.testing.crashpoints.interrupted import Interrupted
from headrace.testing.crashpoints.ledger import Event, Ledger
from headrace.types import SECTIONS, JobState

_EVERYTHING = frozenset((*SECTIONS, "result", "error"))
_LIVE = frozenset((JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED))

Books = dict[JobId, Record]


async def check_recovery(flow: Flow, backend: Backend, ledger: Ledger, *, forgot: bool = False) -> None:
    """Another process finds the store as the crash left it, goes on as the contract says, and all is well. ``forgot``:
    leases that only a memory knew are gone with it. They end without a loss, and what was done under them is stale."""
    actor = Actor(Interrupted(backend, ledger), ledger, "w2", flow.handler, ledger.now)
    books = await _books(actor)
    if forgot:
        _void(books, ledger)
    _check_together(flow, books)
    await flow.after(actor)
    await _take_what_is_free(actor)
    await _work_off(actor, ledger)
    books = await _books(actor)
    _check_ends(flow, books, ledger)
    _check_leases(books, ledger)
    _check_line(flow, books, ledger)
    if flow.rules is not None:
        _check_limits(flow.rules, books, ledger)
    await _check_counts(actor, books)
    await _check_zombies(actor, ledger.of_kind("granted"))
    assert await _books(actor) == books, "a holder without a lease changed something"
    await flow.after(actor)
    assert await _books(actor) == books, "repeating what is done changed something"
    await _check_keys(actor, books)
    await _check_room(actor)


async def _books(actor: Actor) -> Books:
    ids: list[JobId] = []
    after = None
    while True:
        page = await actor.store.scan(Selector(), after, 100, actor.now)
        ids += [record.id for record in page.records]
        if (after := page.after) is None:
            break
    records = await actor.store.fetch(ids, _EVERYTHING, actor.now)
    assert None not in records, "a scan found a job that a fetch does not"
    return {record.id: record for record in records if record is not None}


def _void(books: Books, ledger: Ledger) -> None:
    """Leases that were neither settled nor lost, and that the store does not know any more, are over."""
    ended = ledger.count("settled") + ledger.count("lost")
    granted = ledger.of_kind("granted")
    for last in {event.id: event for event in granted}.values():
        record = books.get(last.id)
        is_open = sum(event.id == last.id for event in granted) > ended[last.id]
        if is_open and (record is None or record.state is not JobState.RUNNING or record.epoch != last.epoch):
            ledger.write(Event("voided", last.id, last.epoch, last.holder))


def _check_together(flow: Flow, books: Books) -> None:
    """I16: a batch is there whole, or not at all."""
    there = {record.task for record in books.values()} & set(flow.together)
    assert there in (set(), set(flow.together)), f"of one batch only {sorted(there)} are there"


async def _take_what_is_free(actor: Actor) -> None:
    """The dead process's leases are good until they expire: nobody gets these jobs."""
    before = await _books(actor)
    held = {i for i, record in before.items() if record.lease_until is not None and record.lease_until > actor.now}
    jobs = await actor.claim()
    assert not held & {job.id for job in jobs}, "a job went to a second holder while the first one's lease was good"
    if jobs:
        await actor.finish(jobs)


async def _work_off(actor: Actor, ledger: Ledger) -> None:
    """The leases expire, and everything left is worked off, while the old holders come back late."""
    for _ in range(20):
        actor.now += 2 * LEASE
        await actor.reap()
        if jobs := await actor.claim():
            current = {(job.id, job.epoch) for job in jobs}
            await _check_zombies(actor, [f for f in ledger.of_kind("granted") if (f.id, f.epoch) not in current])
            await actor.finish(jobs)
        if not (await actor.store.scan(Selector(states=_LIVE), None, 1, actor.now)).records:
            return
    raise AssertionError(f"jobs are stuck: {list((await _books(actor)).values())!r}")


def _check_ends(flow: Flow, books: Books, ledger: Ledger) -> None:
    """I1, I5: every job ended as it had to; none is lost, none is doubled."""
    found = Counter((record.task, record.state) for record in books.values())
    assert found == Counter(flow.ends.items()), f"the jobs ended as {dict(found)}, not as {flow.ends}"
    lost = {event.id for event in ledger.of_kind("acked")} - set(books)
    assert flow.removes or not lost, f"{len(lost)} jobs whose enqueue was acknowledged are gone"


def _check_leases(books: Books, ledger: Ledger) -> None:
    """I4, I6: each lease ended once, by its holder or by a reap; no run without a lease."""
    granted, settled = ledger.count("granted"), ledger.count("settled")
    lost = ledger.count("lost") + ledger.count("voided")
    voided = {(event.id, event.epoch) for event in ledger.of_kind("voided")}
    leases = Counter((event.id, event.epoch) for event in ledger.of_kind("granted"))
    assert not leases or max(leases.values()) == 1, "one epoch was given out twice"
    for job_id, record in books.items():
        last = max((epoch for leased, epoch in leases.keys() - voided if leased == job_id), default=0)
        assert record.epoch == last, f"last leased under epoch {last}, but has epoch {record.epoch}"
    for job_id in granted:
        assert granted[job_id] == settled[job_id] + lost[job_id], "a lease ended twice, or never"
        assert ledger.count("ran")[job_id] <= settled[job_id] + lost[job_id], "more runs than attempts and losses"


def _check_line(flow: Flow, books: Books, ledger: Ledger) -> None:
    """Jobs of a group run one at a time and in their order, whichever process died."""
    places = {job_id: flow.line.index(record.task) for job_id, record in books.items() if record.task in flow.line}
    last, running = 0, set[JobId]()
    for event in ledger.leases():
        if event.kind != "granted":
            running.discard(event.id)
        elif event.id in places:
            assert not running, f"{books[event.id].task} was started while another job of its group ran"
            assert places[event.id] >= last, f"{books[event.id].task} was started after its turn was over"
            last = places[event.id]
            running.add(event.id)


def _check_limits(rules: Policy, books: Books, ledger: Ledger) -> None:
    """No more jobs ran, and no more holders had jobs of a tenant, than the rules allow."""
    running: dict[JobId, Event] = {}
    for event in ledger.leases():
        if event.kind != "granted" or books[event.id].queue != rules.queue:
            running.pop(event.id, None)
            continue
        running[event.id] = event
        beside = [other for other in running.values() if books[other.id].tenant == books[event.id].tenant]
        assert rules.running is None or len(running) <= rules.running, f"{len(running)} jobs at once"
        assert rules.tenant_running is None or len(beside) <= rules.tenant_running, f"{len(beside)} of one tenant"
        holders = {other.holder for other in beside}
        assert rules.tenant_workers is None or len(holders) <= rules.tenant_workers, f"{holders} have jobs of a tenant"


async def _check_counts(actor: Actor, books: Books) -> None:
    """The stats agree with the records."""
    stats = await actor.store.stats(actor.now)
    told = {place.target: place.count for place in stats.kept if place.count}
    assert told == Counter(record.state.value for record in books.values()), f"stats tell {told}"
    assert not any(queue.available or queue.running or queue.jobs_paused for queue in stats.queues)


async def _check_zombies(actor: Actor, fences: list[Event]) -> None:
    """I4: a holder that comes back late is refused, whatever it brings, even under the name of the new holder."""
    fences = [Event("late", f.id, f.epoch, holder) for f in fences for holder in {f.holder: 0, actor.holder: 0}]
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.AVAILABLE, JobState.PAUSED):
        batch = [
            Settlement(
                f.id, f.epoch, f.holder, state, result=b"late", result_ttl=HOUR, error=b"late", failed_attempt=True,
                queue="other", cells={"blob": b"late"}, spawn=[row(999, "late")],
            )
            for f in fences
        ]  # fmt: skip
        answers = await actor.store.finish(batch, actor.now)
        assert answers == [None] * len(fences), f"a write without a lease was accepted: {answers}"
    for fence in fences:
        beat = Beat(fence.holder, "late", QUEUES, LEASE, [(fence.id, fence.epoch)], leaving=True)
        renewed = await actor.store.renew(beat, actor.now)
        assert list(renewed.lost) == [(fence.id, fence.epoch)], "a lease that is over was renewed"


async def _check_room(actor: Actor) -> None:
    """Nothing of what a rule counts was left behind: there is room for as much as on the first day."""
    policies = actor.store.policies
    for state in [] if policies is None else await policies.find(at=actor.now):
        assert policies is not None
        rules, limits = state.policy, {}
        for tenant in await policies.tenants(rules.queue, at=actor.now):
            left = (tenant.waiting, tenant.running, tenant.workers)
            assert left == (0, 0, ()), f"of a tenant without jobs there is left: {tenant!r}"
            limits[tenant.tenant] = tenant.limit
        rows = [row(2_000 + n, f"new {n}", queue=rules.queue, tenant="xy"[n % 2]) for n in range(8)]
        answers = await actor.insert(*rows)
        stored = [one for one, answer in zip(rows, answers, strict=True) if answer.status is InsertStatus.NEW]
        assert len(stored) == min(8, 8 if rules.depth is None else rules.depth), f"{len(stored)} jobs were taken in"
        waiting = Counter(one.tenant for one in stored)
        caps = {name: own.running for name, own in limits.items() if own is not None}
        runs = sum(min(count, caps.get(name) or rules.tenant_running or count) for name, count in waiting.items())
        jobs = await actor.claim(2 * len(rows))
        assert len(jobs) == min(runs, rules.running or runs), f"{len(jobs)} jobs could be had of {rules!r}"
        await actor.finish(jobs)


async def _check_keys(actor: Actor, books: Books) -> None:
    """I13: every key leads to a job that has it, and is free when its job's hold is over."""
    names = sorted({(record.queue, record.key) for record in books.values() if record.key is not None})
    found = await actor.store.fetch([JobKey(queue, key) for queue, key in names], frozenset(), actor.now)
    for (queue, key), record in zip(names, found, strict=True):
        assert record is not None, "a key without a job"
        assert (record.queue, record.key) == (queue, key), "a key that leads to another's job"
    actor.now += 1_000 * HOUR
    for queue, key in [*names, ("q", "k")]:
        rows = [row(1_000, "next", queue=queue, key=key), row(1_001, "next", queue=queue, key=key)]
        answers = await actor.store.insert(rows, actor.now)
        statuses = [answer.status for answer in answers]
        assert statuses == [InsertStatus.NEW, InsertStatus.DUPLICATE], f"an ended job's key answers {statuses}"
        await actor.work()
        await actor.store.alter(Selector(ids=[row(1_000, "next").id]), Delete(), actor.now)
