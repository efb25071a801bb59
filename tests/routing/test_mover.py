"""A mover may die at any call, and another goes on: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.core.documents import change_document
from headrace.core.tasks import Tasks
from headrace.errors import ConfigError, Unavailable
from headrace.routing import moving, parity, passage
from headrace.routing.gates import close_to_new_jobs, open_to_new_jobs
from headrace.routing.mover import Mover, Progress, Stopped
from headrace.routing.moving import Moving
from headrace.routing.passage import Phase
from headrace.seam import records as r
from headrace.seam.policy import STORE, Policy, QueuePause, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.ticks import NewTick, Plan, Save, Schedule, ScheduleSelector, Tick
from headrace.seam.transfers import HeldKey
from headrace.types import SECTIONS, JobState
from tests.routing.dying import Death, Died, Dying

ALL = frozenset((*SECTIONS, "error", "result"))
UID = b"u" * 16


def job_id(number: int) -> bytes:
    return b"\x01\x90" + number.to_bytes(14)


def row(number: int, **options: Any) -> r.Row:
    return r.Row(id=job_id(number), queue="q", task="t", cells={"parameters": b"%d" % number}, **options)


async def fill(store: MemoryBackend) -> None:
    """Jobs in every state but RUNNING, a schedule with a history, rules, a document and a held key."""
    await store.insert([row(n, key=f"k{n}", tenant=f"t{n % 2}") for n in range(8)])
    await store.insert([replace(row(n, group="g"), queue="ordered") for n in range(8, 11)])
    jobs = (await store.claim(r.Claim("w", ("q",), 4, 10**9))).jobs
    for job, state in zip(
        jobs, (JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE, JobState.PAUSED), strict=True
    ):
        await store.finish([r.Settlement(job.id, job.epoch, "w", state, result=b"r", result_ttl=10**12, error=b"e")])
    await store.alter(r.Selector(ids=[job_id(7)]), r.Cancel())
    assert await store.policies.save(Policy(queue="q", tenant_running=3))
    await store.policies.limit(TenantLimit("q", "t1", running=2))
    await store.policies.pause(QueuePause("asleep"))
    assert await store.policies.save(Policy(queue=STORE, depth=1_000))
    assert await store.documents.put("retention/rules", b"rules", 0)
    for number in range(3):
        await store.journal.write(b"entry %d" % number, 10**15 + number)
    await store.transfers.hold_keys([HeldKey("q", "held", job_id(99), 10**17)])
    schedule = Schedule(name="s", uid=UID, queue="q", definition=b"d", slot=5, look_at=10**17)
    assert await store.ticks.save([Save(schedule, 0)])
    plan = Plan("s", UID, 1, [NewTick(5, 5, row(50)), NewTick(6, 6)], slot=7, look_at=10**17)
    assert await store.ticks.plan([plan]) != [None]


async def contents(store: Backend) -> dict[str, Any]:
    """All that moves."""
    names = [job_id(n) for n in [*range(11), 50]]
    assert store.ticks is not None
    assert store.policies is not None
    schedules = await store.ticks.find(ScheduleSelector())
    return {
        "jobs": await store.fetch(names, ALL),
        "schedules": [replace(one, version=0, created_at=0, updated_at=0) for one in schedules],
        "ticks": await store.ticks.history(UID),
        "policies": [replace(one.policy, version=0) for one in await store.policies.find(["q"])],
        "limits": [one.limit for one in await store.policies.tenants("q", ["t1"])],
        "held": await store.transfers.held_keys() if store.transfers else [],
        "documents": await documents(store),
        "journal": [(one.at, one.text) for one in await store.journal.read(limit=100_000)] if store.journal else [],
    }


async def documents(store: Backend) -> dict[str, bytes]:
    """All but those of transfers."""
    assert store.documents is not None
    found = await store.documents.find("", limit=100_000)
    return {one.name: one.body for one in found if not one.name.startswith(passage.DOCUMENT)}


async def opened(old: Backend, new: Backend) -> Moving:
    store = Moving(old, new)
    await store.open()
    return store


async def there(store: Moving) -> None:
    mover = Mover(store, seen=0)
    if await passage.read(store.old) is None:
        await mover.start()
    await mover.cutover()


async def back(store: Moving) -> None:
    if await passage.read(store.old) is not None:
        await Mover(store, seen=0).rollback()


async def calls_of(journey: Any, old: MemoryBackend, new: MemoryBackend) -> int:
    """How many calls it makes."""
    death = Death()
    store = await opened(cast(Backend, Dying(old, death)), cast(Backend, Dying(new, death)))
    await journey(store)
    return death.calls


async def die_and_go_on(journey: Any, old: MemoryBackend, new: MemoryBackend, death: Death) -> Moving:
    with suppress(Died):
        await journey(await opened(cast(Backend, Dying(old, death)), cast(Backend, Dying(new, death))))
    store = await opened(old.sibling(), new.sibling())
    await journey(store)
    return store


async def test_a_mover_may_die_at_every_call_of_a_cutover() -> None:
    model = MemoryBackend()
    await fill(model)
    expected = await contents(model)
    last = await calls_of(there, model, MemoryBackend())
    assert last > 60
    for at in range(1, last + 1):
        for after in (False, True):
            old, new = MemoryBackend(), MemoryBackend()
            await fill(old)
            store = await die_and_go_on(there, old, new, Death(at, after=after))
            assert_alike(await contents(new), expected)
            assert (await old.scan(r.Selector())).records == []
            assert await old.ticks.find(ScheduleSelector()) == []
            verdict = await parity.verify(store, await transfer_of(store))
            assert (verdict.lost, verdict.doubled, verdict.in_transit) == (0, 0, 0)
            assert verdict.departed == verdict.arrived == 12
            [paused] = [queue for queue in (await new.stats()).queues if queue.paused]
            assert paused.queue == "asleep"


async def test_a_mover_may_die_at_every_call_of_a_rollback() -> None:
    model, other = MemoryBackend(), MemoryBackend()
    await fill(model)
    expected = await contents(model)
    await there(await opened(model, other))
    last = await calls_of(back, model, other)
    assert last > 60
    for at in range(1, last + 1):
        for after in (False, True):
            old, new = MemoryBackend(), MemoryBackend()
            await fill(old)
            await there(await opened(old, new))
            await die_and_go_on(back, old, new, Death(at, after=after))
            assert_alike(await contents(old), expected)
            assert (await new.scan(r.Selector())).records == []
            assert await new.ticks.find(ScheduleSelector()) == []
            [state] = await old.policies.find([STORE])
            assert state.policy.depth == 1_000
            assert [one.status for one in await old.insert([row(70)])] == [r.InsertStatus.NEW]


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same but for the instants at which the stores were filled."""
    for name in ("schedules", "policies", "limits", "held", "documents", "journal"):
        assert found[name] == expected[name], name
    assert [_plain(tick) for tick in found["ticks"]] == [_plain(tick) for tick in expected["ticks"]]
    for one, other in zip(found["jobs"], expected["jobs"], strict=True):
        assert one is not None
        assert _timeless(one) == _timeless(other)


def _plain(tick: Tick) -> Tick:
    return replace(tick, planned_at=0)


def _timeless(job: r.Record) -> r.Record:
    ended = None if job.finished_at is None else 1
    return replace(job, run_at=0, enqueued_at=0, finished_at=ended, epoch=int(job.epoch > 0))


class Beside(Death):
    """Lets another process write a document and an entry of the journal beside each call."""

    def __init__(self, other: Moving) -> None:
        super().__init__()
        self.other = other
        self.written: set[str] = set()
        self.writing: list[asyncio.Task[None]] = []

    async def call(self, work: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        for at in ("before", "after"):
            self.writing.append(asyncio.create_task(self._write(f"{at} {self.calls}")))
            for _ in range(self.calls % 7):
                await asyncio.sleep(0)
            if at == "before":
                answer = await super().call(work, args, options)
        return answer

    async def _write(self, name: str) -> None:
        assert self.other.documents is not None
        assert self.other.journal is not None
        await change_document(self.other.documents, name, lambda _: b"x")
        await self.other.journal.write(name.encode())
        self.written.add(name)


@pytest.mark.parametrize("journey", [there, back])
async def test_what_others_write_meanwhile_is_not_left_behind(journey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not hear of the cutover in time: their looks count for ever."""
    old, new = MemoryBackend(), MemoryBackend()
    await fill(old)
    if journey is back:
        await there(await opened(old, new))
    monkeypatch.setattr(moving, "FRESH", 10**9)
    beside = Beside(await opened(old.sibling(), new.sibling()))
    async with asyncio.timeout(120):
        await journey(await opened(cast(Backend, Dying(old, beside)), cast(Backend, Dying(new, beside))))
        await asyncio.gather(*beside.writing)
    home = old if journey is back else new
    assert len(beside.written) > 120
    assert beside.written - (await documents(home)).keys() == set()
    assert {name.encode() for name in beside.written} - {
        one.text for one in await home.journal.read(limit=100_000)
    } == set()


async def test_a_document_that_was_removed_stays_away() -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await fill(old)
    store = await opened(old, new)
    await there(store)
    assert store.documents is not None
    await change_document(store.documents, "retention/rules", lambda _: None)
    await back(store)
    assert await documents(old) == {}
    await there(store)
    assert await documents(new) == {}


async def test_nobody_writes_a_document_while_a_mover_that_died_was_taking_them_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, "TURN", 0.1)
    old = MemoryBackend()
    store = await opened(old, MemoryBackend())
    await Mover(store, seen=0).start()
    await passage.write(old, lambda known: known and replace(known, phase=Phase.READY, turning=True))
    assert store.documents is not None
    with pytest.raises(Unavailable, match="headrace transfer resume"):
        await store.documents.put("a", b"x", 0)


async def transfer_of(store: Moving) -> passage.Transfer:
    transfer = await passage.read(store.old)
    assert transfer is not None
    return transfer


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.DUAL, Phase.READY, Phase.FORWARD, Phase.MOVED])
async def test_there_is_a_way_back_from_every_phase(phase: Phase) -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await fill(old)
    expected = await contents(old)
    store = await opened(old, new)
    mover = Mover(store, seen=0)
    await mover.start(dual=phase is Phase.DUAL)
    await store.insert([row(60)])
    if phase is Phase.READY:
        await passage.write(old, lambda known: known and replace(known, phase=phase, depths=(1_000, None)))
        await close_to_new_jobs(old)
    elif phase in (Phase.FORWARD, Phase.MOVED):
        await mover.cutover()
        await passage.write(old, lambda known: known and replace(known, phase=phase))
    await Mover(store, seen=0).rollback()
    assert await passage.read(old) is None
    assert await contents(old) == expected
    assert [one.status for one in await store.insert([row(60), row(61)])] == [r.InsertStatus.SAME, r.InsertStatus.NEW]
    assert (await new.scan(r.Selector())).records == []


async def test_a_paused_transfer_waits_and_goes_on() -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await fill(old)
    store = await opened(old, new)
    mover = Mover(store, seen=0)
    await mover.start()
    await passage.write(old, lambda known: known and replace(known, paused=True))
    with pytest.raises(Stopped, match="headrace transfer resume"):
        await mover.cutover()
    assert [one.status for one in await store.insert([row(60)])] == [r.InsertStatus.NEW]
    await passage.write(old, lambda known: known and replace(known, paused=False))
    assert (await mover.cutover()).phase is Phase.MOVED
    assert (await new.fetch([job_id(60)]))[0] is not None


async def test_a_rate_that_changes_holds_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that had moved faster before are not made up for."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    old = MemoryBackend()
    await old.insert([row(n) for n in range(1_000)])
    store = await opened(old, MemoryBackend())

    async def slow(progress: Progress) -> None:
        await passage.write(old, lambda known: known and replace(known, rate=50))
        await store.look()

    tasks = Tasks()

    def tell(progress: Progress) -> None:
        if progress.moved == 500:
            tasks.start(slow(progress), "slow")

    mover = Mover(store, tell=tell, seen=0)
    await mover.start(rate=1_000_000)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await mover.cutover()
    assert 4 < max(slept) <= 11, "a page of 250 jobs at 50 a second"


async def test_a_running_job_moves_when_its_lease_has_ended() -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await old.insert([row(1), row(2)])
    store = await opened(old, new)
    jobs = (await store.claim(r.Claim("w", ("q",), 1, 10**9))).jobs
    seen: list[int] = []

    async def ends() -> None:
        [state] = await store.finish([r.Settlement(jobs[0].id, jobs[0].epoch, "w", JobState.COMPLETED)])
        assert state is JobState.COMPLETED

    tasks = Tasks()

    def tell(progress: Progress) -> None:
        if progress.running and not seen:
            seen.append(progress.running)
            tasks.start(ends(), "ends")

    mover = Mover(store, tell=tell, seen=0)
    await mover.start()
    await mover.cutover()
    assert seen == [1]
    [record] = await new.fetch([jobs[0].id])
    assert record is not None
    assert (record.state, record.epoch) == (JobState.COMPLETED, jobs[0].epoch)


async def test_a_parcel_of_a_mover_that_was_given_up_is_delivered_too() -> None:
    """Its last call may reach the store when the next mover is at work."""
    old, new = MemoryBackend(), MemoryBackend()
    store = await opened(old, new)
    await old.insert([row(1)])
    [job] = (await old.claim(r.Claim("w", ("q",), 1, 10**9))).jobs
    tasks = Tasks()

    async def late() -> None:
        await old.finish([r.Settlement(job.id, job.epoch, "w", JobState.AVAILABLE)])
        await old.transfers.depart((await transfer_of(store)).leg(1), [job.id])

    def tell(progress: Progress) -> None:
        if progress.running:
            tasks.start(late(), "late")

    await Mover(store, seen=0).start()
    async with asyncio.timeout(60):
        await Mover(store, seen=0, tell=tell).cutover()
    assert [record and record.state for record in await new.fetch([job.id])] == [JobState.AVAILABLE]


async def test_a_store_in_use_is_refused() -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await new.insert([row(1)])
    with pytest.raises(ConfigError, match="got one in use"):
        await Mover(await opened(old, new), seen=0).start()
    with pytest.raises(ConfigError, match="there is none"):
        await Mover(await opened(old, new), seen=0).cutover()


@pytest.mark.parametrize("end", ["finish", "rollback"])
async def test_a_transfer_with_a_lost_job_ends_only_if_somebody_insists(end: str) -> None:
    """Its ledgers are the only trace of that job."""
    old = MemoryBackend()
    await old.insert([row(n) for n in range(3)])
    store = await opened(old, MemoryBackend())
    await there(store)
    leg = (await transfer_of(store)).leg()
    await open_to_new_jobs(old, None)
    await old.insert([row(9)])
    await close_to_new_jobs(old)
    await old.transfers.depart(leg, [job_id(9)])
    await old.transfers.confirm(leg, [job_id(9)])
    for _ in range(2):
        with pytest.raises(ConfigError, match="1 lost, 0 doubled"):
            await getattr(Mover(store, seen=0), end)()
        assert (await parity.verify(store, await transfer_of(store))).examples == (job_id(9).hex(),)
    mover = Mover(store, seen=0, insist=True)
    await getattr(mover, end)()
    assert mover.verdict is not None
    assert mover.verdict.lost == 1


async def test_a_transfer_ends_for_good() -> None:
    old, new = MemoryBackend(), MemoryBackend()
    await fill(old)
    store = await opened(old, new)
    mover = Mover(store, seen=0)
    await mover.start()
    await mover.cutover()
    await mover.finish()
    await mover.finish()
    verdict = await parity.verify(store, await transfer_of(store))
    assert (verdict.legs, verdict.departed, verdict.arrived, verdict.lost) == (1, 12, 12, 0), "it is kept"
    with pytest.raises(ConfigError, match="phase done"):
        await mover.rollback()
    assert [one.room for one in await old.insert([row(90)])] == [r.Room(STORE, 0, 0)]
    assert await store.insert([row(1)]) == [r.Inserted(r.InsertStatus.SAME, job_id(1), JobState.FAILED, None, 0)]
    assert (await store.view()).alone is new
