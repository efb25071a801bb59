"""transfers: whole jobs leave one store and arrive in another, each once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headrace.errors import Rejected
from headrace.seam import records as r
from headrace.seam.policy import STORE, Policy, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.records import InsertStatus
from headrace.seam.ticks import Tick, TickOutcome
from headrace.seam.transfers import HeldKey, Parcel, Side, TransferStore
from headrace.testing.conformance.base import (
    HOSTILE,
    HOUR,
    MINUTE,
    OPTIONS,
    SECOND,
    T0,
    ConformanceBase,
    job_id,
    needs,
    row,
    settle,
)
from headrace.types import SECTIONS, JobState

ALL = frozenset((*SECTIONS, "error", "result"))
CELLS = {"parameters": b"p", "vm_state": bytes(range(256)) * 40, "metadata": b"", "blob": b"b"}


class TransferTests(ConformanceBase):
    def transfers(self, store: Backend) -> TransferStore:
        """The capability, in tests that need it."""
        assert store.transfers is not None
        return store.transfers

    async def whole(self, store: Backend, *numbers: int, at: int = T0) -> list[r.Record | None]:
        """All that can be read of these jobs."""
        return await store.fetch([job_id(number) for number in numbers], ALL, at)

    async def leave(self, store: Backend, *numbers: int, leg: str = "out", at: int = T0) -> list[Parcel]:
        """These jobs depart; only RUNNING ones stay."""
        transfers = self.transfers(store)
        await transfers.open_leg(leg, at)
        return await transfers.depart(leg, [job_id(number) for number in numbers], at)

    async def come_back(self, store: Backend, parcels: list[Parcel], *, leg: str = "back", at: int = T0) -> None:
        """Jobs arrive that all are new here."""
        transfers = self.transfers(store)
        await transfers.open_leg(leg, at)
        assert await transfers.arrive(leg, parcels, at) == [True] * len(parcels)

    async def jobs_of_every_state(self, store: Backend) -> None:
        """1 new, 2 delayed, 3 paused, 4 tried, 5 completed, 6 cancelled, 7 failed, 8 running, 9 completed and not
        held. They ended in the order 7, 5, 9, 6."""
        many = {"cells": CELLS, "headers": b"h", "tenant": "ü", "priority": -3, **OPTIONS}
        await self.put(store, *[row(n, queue=f"q{n}", key=f"k{n}", expires=HOUR, **many) for n in range(1, 10)])
        sel = r.Selector(ids=[job_id(2)])
        await store.alter(sel, r.Reschedule(run_at=T0 + MINUTE), T0)
        await store.alter(r.Selector(ids=[job_id(3)]), r.Pause(), T0)
        tried = await self.take_one(store, queue="q4", at=T0 + 1)
        change = settle(
            tried,
            JobState.AVAILABLE,
            failed_attempt=True,
            error=b"e",
            cells={"vm_state": b"2", "blob": None},
            delay=SECOND,
        )
        await store.finish([change], T0 + 2)
        for n, state in ((7, JobState.FAILED), (5, JobState.COMPLETED), (9, JobState.COMPLETED)):
            ttl = HOUR if n == 5 else 0
            job = await self.take_one(store, queue=f"q{n}", at=T0 + 10 - n)
            ended = settle(
                job, state, reason="r" if n == 7 else "", result=b"out", result_ttl=ttl, error=b"x" if n == 7 else None
            )
            await store.finish([ended], T0 + 20 - n)
        await store.alter(r.Selector(ids=[job_id(6)]), r.Cancel("why"), T0 + 30)
        await self.take_one(store, queue="q8", at=T0 + 40)

    @needs("transfers")
    async def test_a_job_of_any_state_arrives_as_it_was(self, store: Backend) -> None:
        await self.jobs_of_every_state(store)
        now = T0 + 50
        before = await self.whole(store, *range(1, 10), at=now)
        counted = await store.stats(now)
        parcels = await self.leave(store, *range(1, 10), at=now)
        assert [parcel.job for parcel in parcels] == [record for record in before if record and record.id != job_id(8)]
        assert [one is not None for one in await self.whole(store, *range(1, 10), at=now)] == [
            n == 8 for n in range(1, 10)
        ]
        left = await store.stats(now)
        assert [(one.queue, one.running) for one in left.queues] == [("q8", 1)]
        assert all(one.count == 0 for one in left.kept if one.target in {state.value for state in JobState})
        await self.come_back(store, parcels, at=now)
        assert await self.whole(store, *range(1, 10), at=now) == before
        again = await store.stats(now)
        assert again.queues == counted.queues
        assert [(one.target, one.count) for one in again.kept] == [(one.target, one.count) for one in counted.kept]

    @needs("transfers")
    async def test_jobs_that_arrived_go_on_where_they_were(self, store: Backend) -> None:
        await self.jobs_of_every_state(store)
        tried = await self.get(store, 4, at=T0 + 50)
        await self.come_back(store, await self.leave(store, *range(1, 10), at=T0 + 50), at=T0 + 50)
        [new] = await self.take(store, queues=("q1", "q2", "q3"), at=T0 + 60)
        assert (new.id, new.epoch, new.begun, new.cells, new.headers) == (job_id(1), T0 + 60, False, CELLS, b"h")
        claimed = await store.claim(r.Claim("w1", ("q1", "q2", "q4"), 9, MINUTE), T0 + 70)
        assert (claimed.jobs, claimed.next_in) == ([], tried.run_at - T0 - 70)
        job = await self.take_one(store, queue="q4", at=T0 + SECOND + 2)
        assert (job.epoch, job.attempt, job.begun, job.error) == (T0 + SECOND + 2, 1, True, b"e")
        assert job.cells == {"parameters": b"p", "vm_state": b"2", "metadata": b""}
        await store.alter(r.Selector(ids=[job_id(3)]), r.Resume(), T0 + SECOND + 2)
        assert (await self.take_one(store, queue="q3", at=T0 + SECOND + 2)).id == job_id(3)
        assert [one.id for one in await self.take(store, queues=("q2",), at=T0 + MINUTE)] == [job_id(2)]
        [requeued] = await store.alter(r.Selector(ids=[job_id(7)]), r.Requeue(), T0 + MINUTE)
        assert requeued.after is JobState.AVAILABLE
        assert (await self.take_one(store, queue="q7", at=T0 + MINUTE)).id == job_id(7)
        [expired] = (await self.put(store, row(20, queue="q9", key="k9"), at=T0 + MINUTE))[:1]
        assert expired.id == job_id(20)

    @needs("transfers")
    async def test_an_epoch_is_never_given_twice(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store, at=T0 + HOUR)
        await store.finish([settle(job, JobState.AVAILABLE)], T0 + HOUR)
        await self.come_back(store, await self.leave(store, 1))
        again = await self.take_one(store, at=T0 + HOUR)
        assert again.epoch == job.epoch + 1
        assert await store.finish([settle(job), settle(again)], T0 + HOUR) == [None, JobState.COMPLETED]

    @needs("transfers")
    async def test_a_job_that_has_not_begun_arrives_as_such(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        jobs = await self.take(store)
        back = [settle(job, JobState.AVAILABLE, unbegun=n == 0, delay=None) for n, job in enumerate(jobs)]
        await store.finish(back, T0 + 1)
        parcels = await self.leave(store, 1, 2)
        assert [parcel.begun for parcel in parcels] == [False, True]
        await self.come_back(store, parcels)
        assert [job.begun for job in await self.take(store, at=T0 + 2)] == [False, True]

    @needs("transfers")
    async def test_a_running_job_stays(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert await self.leave(store, 1, 2) == []
        assert await store.finish([settle(job)], T0) == [JobState.COMPLETED]
        assert [one.job.state for one in await self.leave(store, 1)] == [JobState.COMPLETED]

    @needs("transfers")
    async def test_a_parcel_stays_until_it_is_confirmed(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, *[row(n, key=f"k{n}") for n in range(1, 5)])
        parcels = await self.leave(store, 3, 1, 2)
        ordered = sorted(parcels, key=lambda one: one.job.id)
        assert await transfers.parcels("out") == ordered
        assert await transfers.parcels("out", limit=2) == ordered[:2]
        assert await transfers.parcels("out", [job_id(2), job_id(4)]) == ordered[1:2]
        assert await transfers.parcels("out", [r.JobKey("q", "k3"), r.JobKey("p", "k1")]) == ordered[2:]
        assert await transfers.parcels("other") == []
        assert await self.leave(store, 1, 2, 3) == []
        await transfers.confirm("out", [job_id(1), job_id(3), job_id(9)])
        await transfers.confirm("other", [job_id(2)])
        assert await transfers.parcels("out") == ordered[1:2]
        assert await transfers.parcels("out", [job_id(1), r.JobKey("q", "k3")]) == []

    @needs("transfers")
    async def test_a_parcel_arrives_once_even_if_its_job_is_gone(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, row(1), row(2))
        parcels = await self.leave(store, 1, 2)
        await self.come_back(store, parcels)
        assert await transfers.arrive("back", parcels, T0) == [False, False]
        job, _ = await self.take(store)
        assert await store.finish([settle(job, keep=False)], T0) == [JobState.COMPLETED]
        assert await transfers.arrive("back", parcels, T0) == [False, False]
        assert [one is None for one in await self.whole(store, 1, 2)] == [True, False]
        assert await transfers.ledger("back", Side.ARRIVED) == [job_id(1), job_id(2)]

    @needs("transfers")
    async def test_of_those_who_bring_a_parcel_at_once_one_stores_it(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, *[row(n) for n in range(20)])
        parcels = await self.leave(store, *range(20))
        await transfers.open_leg("back")
        done = await asyncio.gather(*(transfers.arrive("back", parcels, T0) for _ in range(4)))
        assert [sum(each) for each in zip(*done, strict=True)] == [1] * 20
        assert len(await self.take(store)) == 20

    @needs("transfers")
    async def test_of_those_who_want_a_job_at_once_one_gets_it(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await transfers.open_leg("out")
        await self.put(store, *[row(n) for n in range(40)])
        ids = [job_id(n) for n in range(40)]
        claims = asyncio.gather(*(store.claim(r.Claim("w1", ("q",), 5, MINUTE), T0) for _ in range(4)))
        departs = asyncio.gather(*(transfers.depart("out", ids[n::4], T0) for n in range(4)))
        taken = [job.id for claimed in await claims for job in claimed.jobs]
        gone = [parcel.job.id for parcels in await departs for parcel in parcels]
        there = [job.id for job in await self.take(store)]
        assert sorted(taken + gone + there) == ids
        assert await transfers.ledger("out", Side.DEPARTED) == sorted(gone)

    @needs("transfers")
    async def test_the_ledger_lists_what_departed_and_arrived(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, *[row(n) for n in range(5)])
        parcels = await self.leave(store, 4, 2, 0, 1)
        await transfers.confirm("out", [job_id(0), job_id(2)])
        assert await transfers.ledger("out", Side.DEPARTED) == [job_id(n) for n in (0, 1, 2, 4)]
        assert await transfers.ledger("out", Side.DEPARTED, job_id(1), 1) == [job_id(2)]
        assert await transfers.ledger("out", Side.ARRIVED) == []
        await self.come_back(store, parcels[:3])
        assert await transfers.ledger("back", Side.ARRIVED, job_id(0)) == [job_id(2), job_id(4)]
        assert await transfers.ledger("back", Side.DEPARTED) == []

    @needs("transfers")
    async def test_nothing_departs_or_arrives_on_a_leg_that_is_not_open(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, row(1), row(2))
        with pytest.raises(Rejected):
            await transfers.depart("out", [job_id(1)], T0)
        parcels = await self.leave(store, 1)
        with pytest.raises(Rejected):
            await transfers.close_leg("out")
        with pytest.raises(Rejected):
            await transfers.arrive("back", parcels, T0)
        await self.come_back(store, parcels)
        await transfers.confirm("out", [job_id(1)])
        for leg in ("out", "out", "back", "never"):
            await transfers.close_leg(leg)
        with pytest.raises(Rejected):
            await transfers.arrive("back", parcels, T0)
        with pytest.raises(Rejected):
            await transfers.depart("out", [job_id(2)], T0)
        assert await transfers.ledger("out", Side.DEPARTED) == await transfers.ledger("back", Side.ARRIVED) == []
        assert len(await self.take(store)) == 2

    @needs("transfers")
    async def test_an_id_names_one_job(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, row(1))
        [parcel] = await self.leave(store, 1)
        await self.put(store, row(1, task="other"))
        await transfers.open_leg("back")
        assert await transfers.arrive("back", [parcel], T0) == [False]
        assert (await self.get(store, 1)).task == "other"
        assert await transfers.ledger("back", Side.ARRIVED) == [job_id(1)]

    @needs("transfers")
    async def test_a_job_takes_its_key_along_unless_it_is_taken(self, store: Backend) -> None:
        await self.put(store, row(1, key="a"), row(2, key="b"))
        parcels = await self.leave(store, 1, 2)
        assert [parcel.keyed for parcel in parcels] == [True, True]
        await self.put(store, row(3, key="a"))
        await self.come_back(store, parcels)
        [first, second] = await store.insert([row(4, key="a"), row(5, key="b")], T0)
        assert (first.status, first.id) == (InsertStatus.DUPLICATE, job_id(3))
        assert (second.status, second.id) == (InsertStatus.DUPLICATE, job_id(2))
        assert {job.id for job in await self.take(store)} == {job_id(1), job_id(2), job_id(3)}

    @needs("transfers")
    async def test_a_result_and_its_key_stay_held(self, store: Backend) -> None:
        await self.put(store, row(1, key="a"))
        await store.finish([settle(await self.take_one(store), result=b"out", result_ttl=MINUTE)], T0)
        await self.come_back(store, await self.leave(store, 1, at=T0 + SECOND), at=T0 + SECOND)
        [done] = await store.insert([row(2, key="a")], T0 + MINUTE - 1)
        assert (done.status, done.id, done.result) == (InsertStatus.DONE, job_id(1), b"out")
        [new] = await store.insert([row(2, key="a")], T0 + MINUTE)
        assert new.status is InsertStatus.NEW

    @needs("transfers")
    async def test_a_key_that_was_lost_does_not_come_back(self, store: Backend) -> None:
        await self.put(store, row(1, key="a"))
        job = await self.take_one(store)
        await self.put(store, row(2, key="a", key_until=r.KeyUntil.STARTED))
        await store.finish([settle(job, JobState.AVAILABLE)], T0)
        parcels = await self.leave(store, 1, 2)
        assert [parcel.keyed for parcel in parcels] == [False, True]
        await self.come_back(store, parcels)
        [answer] = await store.insert([row(3, key="a")], T0)
        assert answer.id == job_id(2)

    @needs("transfers")
    async def test_keys_that_outlive_their_jobs_are_copied(self, store: Backend) -> None:
        transfers = self.transfers(store)
        await self.put(store, *[row(n, key=f"k{n}") for n in range(3)])
        for job in await self.take(store):
            await store.finish([settle(job, result_ttl=HOUR)], T0)
        await store.sweep(r.SweepClause(target=r.SweepTarget.COMPLETED, max_count=0), T0)
        held = await transfers.held_keys(at=T0)
        assert sorted(held, key=lambda one: one.id) == [HeldKey("q", f"k{n}", job_id(n), T0 + HOUR) for n in range(3)]
        [first] = await transfers.held_keys(limit=1, at=T0)
        assert len(await transfers.held_keys(r.JobKey(first.queue, first.key), at=T0)) == 2
        assert await transfers.held_keys(at=T0 + HOUR) == []
        other = [HeldKey("p", "x", job_id(9), T0 + HOUR), HeldKey("q", "k1", job_id(9), T0 + 2 * HOUR)]
        await self.put(store, row(20, queue="p", key="live"))
        for _ in range(2):
            await transfers.hold_keys([*other, HeldKey("p", "live", job_id(9), T0 + HOUR)], T0)
        rows = [row(30, queue="p", key="x"), row(31, key="k1"), row(32, queue="p", key="live")]
        answers = await store.insert(rows, T0)
        assert [one.id for one in answers] == [job_id(9), job_id(1), job_id(20)]
        assert {one.status for one in answers} == {InsertStatus.DUPLICATE}
        assert [one.status for one in await store.insert(rows[:2], T0 + HOUR)] == [InsertStatus.NEW] * 2

    @needs("transfers", "hints")
    async def test_those_that_wait_hear_of_the_end_and_not_of_the_journey(self, store: Backend) -> None:
        await self.put(store, row(1, reply_to="in"), row(2))
        await store.alter(r.Selector(ids=[job_id(1)]), r.Watch("other"), T0)
        assert store.hints is not None
        async with store.hints.listen(["inbox:in", "inbox:other"]) as hints:
            parcels = await self.leave(store, 1)
            assert parcels[0].inboxes == ("in", "other")
            await self.come_back(store, parcels)
            await store.alter(r.Selector(ids=[job_id(2)]), r.Watch("in"), T0)
            await store.alter(r.Selector(ids=[job_id(2)]), r.Cancel(), T0)
            first = await asyncio.wait_for(anext(hints), 30)
            assert first == r.Hint("inbox:in", job_id(2))
            await store.alter(r.Selector(ids=[job_id(1)]), r.Cancel(), T0)
            rest = {await asyncio.wait_for(anext(hints), 30), await asyncio.wait_for(anext(hints), 30)}
            assert rest == {r.Hint("inbox:in", job_id(1)), r.Hint("inbox:other", job_id(1))}

    @needs("transfers", "hints")
    async def test_a_job_that_arrives_is_told(self, store: Backend) -> None:
        await self.put(store, row(1))
        parcels = await self.leave(store, 1)
        assert store.hints is not None
        async with store.hints.listen(["queue:q"]) as hints:
            await self.come_back(store, parcels)
            assert (await asyncio.wait_for(anext(hints), 30)).topic == "queue:q"

    @needs("transfers")
    async def test_groups_keep_their_order(self, store: Backend) -> None:
        await self.put(store, *[row(n, group="g", run_at=T0 + n) for n in range(1, 6)])
        parcels = await self.leave(store, 1, 3, 4)
        assert [job.id for job in await self.take(store, at=T0 + 9)] == [job_id(2)]
        await self.come_back(store, [parcels[2], parcels[0], parcels[1]])
        running = r.Selector(states=frozenset((JobState.RUNNING,)))
        order = []
        while (page := await store.scan(running, at=T0 + 10)).records:
            [job] = page.records
            order.append(job.id)
            await store.finish([r.Settlement(job.id, job.epoch, "w1", JobState.COMPLETED)], T0 + 10)
            await self.take(store, at=T0 + 10)
        assert order == [job_id(n) for n in (2, 1, 3, 4, 5)]

    @needs("transfers", "policies")
    async def test_rules_hold_for_jobs_that_arrive(self, store: Backend) -> None:
        policies = self.policies(store)
        await self.put(store, *[row(n, tenant=f"t{n % 2}") for n in range(6)])
        parcels = await self.leave(store, *range(6))
        assert await policies.save(Policy(queue="q", tenant_running=1, depth=1), T0)
        await policies.limit(TenantLimit("q", "t1", running=2), T0)
        await self.come_back(store, parcels)
        assert sorted(job.tenant for job in await self.take(store)) == ["t0", "t1", "t1"]
        assert len(await self.leave(store, *range(6), leg="again")) == 3
        assert [(one.tenant, one.waiting, one.running) for one in await policies.tenants("q", at=T0)] == [
            ("t0", 0, 1), ("t1", 0, 2),
        ]  # fmt: skip

    @needs("transfers", "policies")
    async def test_a_store_with_a_depth_of_0_takes_no_new_job(self, store: Backend) -> None:
        policies, transfers = self.policies(store), self.transfers(store)
        await self.put(store, row(1, key="a"))
        assert await policies.save(Policy(queue=STORE, depth=0), T0)
        assert await transfers.settle(T0)
        answers = await store.insert([row(1), row(2, key="a"), row(3), row(4, queue="new", group="g")], T0)
        assert [one.status for one in answers] == [
            InsertStatus.SAME, InsertStatus.DUPLICATE, InsertStatus.FULL, InsertStatus.FULL,
        ]  # fmt: skip
        parcels = await self.leave(store, 1)
        [full] = await store.insert([row(5)], T0)
        assert (full.status, full.room) == (InsertStatus.FULL, r.Room(STORE, 0, 0))
        await self.come_back(store, parcels)
        [state] = await policies.find([STORE], T0)
        assert await policies.save(Policy(queue=STORE, version=state.policy.version), T0)
        await self.put(store, row(5), row(6, queue="new"))

    @needs("transfers", "ticks")
    async def test_ticks_are_added_to_a_history(self, store: Backend) -> None:
        transfers, ticks = self.transfers(store), store.ticks
        assert ticks is not None
        uid = b"u" * 16
        fired = Tick(
            slot=T0, run_at=T0 + 1, outcome=TickOutcome.FIRED, planned_at=T0 - 5, job=job_id(1), state="completed",
            waited=3, ran=4,
        )  # fmt: skip
        missed = Tick(slot=T0 + 10, run_at=T0 + 10, outcome=TickOutcome.MISSED, planned_at=T0, count=7)
        await transfers.add_ticks(uid, [missed, fired], T0)
        await transfers.add_ticks(uid, [replace(fired, outcome=TickOutcome.MISSED), replace(missed, slot=T0 + 20)], T0)
        await transfers.add_ticks(uid, [], T0)
        assert await ticks.history(uid) == [replace(missed, slot=T0 + 20), missed, fired]
        kept = {one.target: one.count for one in (await store.stats(T0)).kept}
        assert kept["ticks"] == 3
        swept = await store.sweep(r.SweepClause(target=r.SweepTarget.TICKS, older_than=0), T0)
        assert (swept.removed, swept.kept) == (3, 0)

    @needs("transfers")
    async def test_names_of_jobs_that_move_are_data(self, store: Backend) -> None:
        rows = [
            row(n, queue=name, task=name, tenant=name, key=name, group=name if n % 2 else None, reply_to=name)
            for n, name in enumerate(HOSTILE)
        ]
        await self.put(store, *rows)
        before = await self.whole(store, *range(len(HOSTILE)))
        parcels = await self.leave(store, *range(len(HOSTILE)), leg=HOSTILE[12])
        transfers = self.transfers(store)
        named = [r.JobKey(name, name) for name in HOSTILE]
        assert await transfers.parcels(HOSTILE[12], named) == sorted(parcels, key=lambda one: one.job.id)
        await self.come_back(store, parcels, leg=HOSTILE[-1])
        assert await self.whole(store, *range(len(HOSTILE))) == before

    @needs("transfers")
    async def test_those_that_arrive_are_swept_by_the_order_of_their_ends(self, store: Backend) -> None:
        await self.put(store, *[row(n) for n in range(4)])
        jobs = await self.take(store)
        for n, job in enumerate(jobs):
            await store.finish([settle(job, JobState.FAILED)], T0 + n)
        await self.come_back(store, await self.leave(store, 0, 2, at=T0 + 9), at=T0 + 9)
        await store.sweep(r.SweepClause(target=r.SweepTarget.FAILED, max_count=2), T0 + 10)
        assert [one is None for one in await self.whole(store, 0, 1, 2, 3, at=T0 + 10)] == [True, True, False, False]

    @needs("transfers", "durable")
    async def test_a_leg_survives_a_restart(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        [parcel] = await self.leave(store, 1)
        sibling = store.sibling()
        await sibling.open()
        try:
            transfers = self.transfers(sibling)
            assert await transfers.parcels("out") == [parcel]
            assert await transfers.ledger("out", Side.DEPARTED) == [job_id(1)]
            await self.come_back(sibling, [parcel])
            assert await self.transfers(store).arrive("back", [parcel], T0) == [False]
        finally:
            await sibling.close()
