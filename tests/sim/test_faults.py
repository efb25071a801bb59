"""The faulty backend, one fault at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.errors import Unavailable
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Template
from headrace.seam.policy import Policy, QueuePause, TenantLimit
from headrace.seam.records import Beat, Cancel, Claim, Reap, Selector, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import Look, NewTick, Plan, Save, Schedule, ScheduleSelector, TickNote, TickOutcome
from headrace.testing.sim import FaultyBackend, History, Node, SimClock, SimLoop, check, run
from headrace.testing.sim import Plan as Network
from headrace.testing.sim.history import Kind
from headrace.types import JobState
from tests.sim.tale import SECOND, job, row


class Rig:
    """One node, one store, and the network between them."""

    def __init__(self, **plan: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.node = Node(loop, "n")
        self.store = MemoryBackend()
        self.history = History(SimClock(loop).now)
        self.seen = FaultyBackend(self.store, Random(1), Network(**plan), self.history, self.node)

    def kinds(self, op: str) -> list[str]:
        return [event.kind.value for event in self.history if event.op == op]

    def faults(self) -> list[str]:
        return [event.op for event in self.history if event.kind is Kind.FAULT]


def rigged(main: Callable[[Rig], Awaitable[None]], **plan: Any) -> Rig:
    async def play() -> Rig:
        rig = Rig(**plan)
        await main(rig)
        return rig

    return run(play())


async def _insert_in_vain(rig: Rig) -> None:
    with pytest.raises(Unavailable):
        await rig.seen.insert([row(1)])
    await asyncio.sleep(10)


def test_a_dropped_request_never_happened() -> None:
    rig = rigged(_insert_in_vain, drop=1.0)
    assert rig.kinds("insert") == ["invoke", "unknown"]
    assert (rig.faults(), list(rig.store.store.jobs)) == (["drop"], [])


def test_a_lost_reply_comes_after_the_deed() -> None:
    rig = rigged(_insert_in_vain, mute=1.0)
    assert rig.kinds("insert") == ["invoke", "applied", "unknown"]
    assert (rig.faults(), list(rig.store.store.jobs)) == (["mute"], [job(1)])
    assert check(rig.history).recovered == (job(1),)


def test_a_late_request_happens_after_its_caller_gave_up() -> None:
    rig = rigged(_insert_in_vain, late=1.0)
    assert rig.kinds("insert") == ["invoke", "unknown", "applied"]


def test_a_doubled_request_is_carried_out_twice() -> None:
    async def main(rig: Rig) -> None:
        await rig.seen.insert([row(1)])
        await asyncio.sleep(10)

    rig = rigged(main, double=1.0)
    assert rig.kinds("insert") == ["invoke", "applied", "ok", "applied"]
    assert check(rig.history).points["insert same"] == 1


def test_slow_requests_overtake_each_other() -> None:
    async def main(rig: Rig) -> None:
        await asyncio.gather(*(rig.seen.insert([row(n)]) for n in range(9)))

    rig = rigged(main, slow=0.5)
    assert list(rig.store.store.jobs) != [job(n) for n in range(9)]


def test_a_node_that_is_cut_off_reaches_nobody_until_it_is_joined() -> None:
    async def main(rig: Rig) -> None:
        rig.node.cut = True
        with pytest.raises(Unavailable):
            await rig.seen.open()
        await _insert_in_vain(rig)
        rig.node.cut = False
        await rig.seen.open()
        await rig.seen.insert([row(1)])
        await rig.seen.close()

    assert rigged(main).kinds("insert") == ["invoke", "unknown", "invoke", "applied", "ok"]


def test_calm_means_that_only_time_passes() -> None:
    async def main(rig: Rig) -> None:
        rig.node.calm = True
        await rig.seen.insert([row(1)])

    assert rigged(main, drop=1.0).kinds("insert") == ["invoke", "applied", "ok"]


def test_what_a_killed_node_has_sent_arrives() -> None:
    async def main(rig: Rig) -> None:
        rig.node.start(rig.seen.insert([row(1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rig.node.kill()
        await asyncio.sleep(10)
        rig.history.close()

    assert rigged(main, latency=(5, 5)).kinds("insert") == ["invoke", "applied"]


def test_a_frozen_node_gets_its_answer_when_it_thaws() -> None:
    async def main(rig: Rig) -> None:
        asked = rig.node.start(rig.seen.insert([row(1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rig.node.freeze()
        await asyncio.sleep(30)
        assert not asked.done()
        rig.node.thaw()
        await asked
        assert asyncio.get_running_loop().time() == 30

    assert rigged(main, latency=(5, 5)).kinds("insert") == ["invoke", "applied", "ok"]


def test_errors_of_the_store_pass_through() -> None:
    async def main(rig: Rig) -> None:
        lease = Settlement(job(1), 1, "h", JobState.RUNNING)
        with pytest.raises(ValueError, match="running"):
            await rig.seen.finish([lease])

    assert rigged(main).kinds("finish") == ["invoke", "fail"]


def test_every_operation_passes_and_is_recorded() -> None:
    async def main(rig: Rig) -> None:
        seen = rig.seen.sibling()
        assert await seen.now() <= rig.history.now()
        await seen.insert([row(n) for n in range(1, 6)])
        claim = Claim("h", ("q",), 1, SECOND)
        [one] = (await seen.claim(claim)).jobs
        assert await seen.finish([Settlement(one.id, one.epoch, "h", JobState.COMPLETED)]) == [JobState.COMPLETED]
        assert seen.finish_and_claim is not None
        [two] = (await seen.finish_and_claim([], claim))[1].jobs
        assert two.id == job(2)
        leases = [(two.id, two.epoch), (one.id, one.epoch)]
        assert list((await seen.renew(Beat("h", "w", ("q",), SECOND, leases))).lost) == leases[1:]
        await asyncio.sleep(2)
        assert [reaped.id for reaped in await seen.reap(Reap())] == [job(2)]
        assert [altered.id for altered in await seen.alter(Selector(ids=[job(3)]), Cancel())] == [job(3)]
        assert [r is not None for r in await seen.fetch([job(3), job(9)])] == [True, False]
        assert len((await seen.scan(Selector())).records) == 5
        assert (await seen.stats()).queues[0].available == 3
        assert (await seen.sweep(SweepClause(target=SweepTarget.COMPLETED, older_than=0))).removed == 1
        assert seen.limits == rig.store.limits

    rig = rigged(main)
    assert {event.op for event in rig.history} == {
        "now", "insert", "claim", "finish", "finish_and_claim", "renew", "reap", "alter", "fetch", "scan", "stats",
        "sweep",
    }  # fmt: skip
    assert check(rig.history).ok


def test_every_operation_on_schedules_passes_and_is_recorded() -> None:
    async def main(rig: Rig) -> None:
        ticks = rig.seen.ticks
        assert ticks is not None
        schedule = _schedule()
        assert await ticks.save([Save(schedule, 0)]) == [True]
        [one] = (await ticks.due(Look())).schedules
        assert await ticks.find(ScheduleSelector()) == [one]
        late = NewTick(5, 5, row(1))
        assert await ticks.plan([Plan("s", bytes(16), 1, [late], 7, 7)]) == [[TickOutcome.FIRED]]
        assert [(tick.slot, tick.job) for tick in await ticks.history(bytes(16))] == [(5, job(1))]
        await ticks.note([TickNote(bytes(16), 5, "completed", 1, 2)])

    rig = rigged(main)
    assert {event.op for event in rig.history} == {
        f"ticks.{name}" for name in ("save", "due", "find", "plan", "history", "note")
    }


def test_a_plan_whose_answer_is_lost_was_carried_out() -> None:
    async def main(rig: Rig) -> None:
        await rig.store.ticks.save([Save(_schedule(), 0)])
        ticks = rig.seen.ticks
        assert ticks is not None
        with pytest.raises(Unavailable):
            await ticks.plan([Plan("s", bytes(16), 1, [NewTick(5, 5, row(1))], 7, 7)])
        await asyncio.sleep(10)

    rig = rigged(main, mute=1.0)
    assert rig.kinds("ticks.plan") == ["invoke", "applied", "unknown"]
    assert list(rig.store.store.jobs) == [job(1)]


def test_every_operation_on_policies_passes_and_is_recorded() -> None:
    async def main(rig: Rig) -> None:
        policies = rig.seen.policies
        assert policies is not None
        assert await policies.save(Policy(queue="q", tenant_running=1))
        await policies.limit(TenantLimit("q", "a", 2))
        await policies.pause(QueuePause("q", task="t"))
        assert [one.governed for one in await policies.find(["q"])] == [True]
        await rig.seen.insert([row(1, tenant="a", group="g")])
        assert [one.waiting for one in await policies.tenants("q")] == [1]
        assert (await policies.group("q", "g")).called == (job(1),)

    rig = rigged(main)
    ruling = {f"policies.{name}" for name in ("save", "limit", "pause", "find", "tenants", "group")}
    assert {event.op for event in rig.history} == ruling | {"insert"}
    assert check(rig.history).ok


def test_a_policy_whose_answer_is_lost_was_saved() -> None:
    async def main(rig: Rig) -> None:
        policies = rig.seen.policies
        assert policies is not None
        with pytest.raises(Unavailable):
            await policies.save(Policy(queue="q", running=1))

    rig = rigged(main, mute=1.0)
    assert rig.store.store.policies["q"].version == 1


def test_a_store_without_schedules_has_none() -> None:
    async def main(rig: Rig) -> None:
        seen = FaultyBackend(rig.store, Random(1), Network(), rig.history, rig.node, schedules=False)
        assert seen.ticks is None
        assert seen.sibling().ticks is None

    rigged(main)


def _schedule() -> Schedule:
    definition = Definition(rule=EveryRule(2_000_000, 5), template=Template("t", {}))
    return Schedule(name="s", uid=bytes(16), queue="q", definition=definition.pack(), slot=5, look_at=5)


@pytest.mark.parametrize(
    ("plan", "arrivals"), [({}, 1), ({"hint_drop": 1.0}, 0), ({"hint_double": 1.0}, 2), ({"hint_delay": 1.0}, 1)]
)
def test_hints_are_lost_doubled_and_late(plan: dict[str, float], arrivals: int) -> None:
    heard: list[float] = []

    async def listen(rig: Rig) -> None:
        assert rig.seen.hints is not None
        async with rig.seen.hints.listen(["queue:q"]) as hints:
            async for hint in hints:
                assert hint.topic == "queue:q"
                heard.append(asyncio.get_running_loop().time())

    async def main(rig: Rig) -> None:
        listening = rig.node.start(listen(rig))
        await asyncio.sleep(1)
        await rig.store.insert([row(1)])
        await asyncio.sleep(10)
        listening.cancel()

    rigged(main, **plan)
    assert len(heard) == arrivals
    assert all((at > 1.01) == ("hint_delay" in plan) for at in heard)


def test_what_a_node_does_to_an_answer_does_not_change_the_history() -> None:
    async def main(rig: Rig) -> None:
        await rig.seen.insert([row(1)])
        (await rig.seen.claim(Claim("h", ("q",), 1, SECOND))).jobs.clear()

    rig = rigged(main)
    assert [len(e.data.jobs) for e in rig.history if (e.op, e.kind) == ("claim", Kind.OK)] == [1]
