"""ticks: one job per slot, whichever planner plans it and however often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import Cancel, Reap, Record, Selector, SweepClause, SweepTarget, Swept
from headrace.seam.ticks import (
    BUCKETS,
    Drop,
    Look,
    NewTick,
    Overlap,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    Tick,
    TickNote,
    TickOutcome,
)
from headrace.testing.conformance.base import (
    HOSTILE,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    T0,
    ConformanceBase,
    job_id,
    needs,
    row,
    settle,
)
from headrace.types import JobState

ALL = ScheduleSelector()
FIRED, SKIPPED, MISSED = TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED


def uid(number: int) -> bytes:
    """Of the schedule with that number."""
    return number.to_bytes(16, "big")


def schedule(number: int, **changes: Any) -> Schedule:
    """A schedule that must be looked at since T0."""
    given: dict[str, Any] = {
        "name": f"s{number:06d}",
        "uid": uid(number),
        "queue": "q",
        "definition": b"d",
        "slot": T0,
        "look_at": T0,
    }
    return Schedule(**(given | changes))


def fires(slot: int, number: int, overlap: Overlap = Overlap.ALLOW, **changes: Any) -> NewTick:
    """A slot with the job of that number."""
    return NewTick(slot, slot, row(number, run_at=slot, **changes), overlap=overlap)


def moved(stored: Schedule, *ticks: NewTick, slot: int | None = None) -> Plan:
    """A plan after which the schedule must be looked at for ``slot``."""
    return Plan(stored.name, stored.uid, stored.version, ticks, slot, slot)


class TickTests(ConformanceBase):
    def ticks(self, store: Backend) -> TickStore:
        """The capability under test."""
        assert store.ticks is not None
        return store.ticks

    async def keep(self, store: Backend, *schedules: Schedule, at: int = T0) -> list[Schedule]:
        """Save schedules that must all be new; as they are stored."""
        ticks = self.ticks(store)
        assert await ticks.save([Save(one, 0) for one in schedules], at) == [True] * len(schedules)
        return [await self.stored(store, one.name) for one in schedules]

    async def stored(self, store: Backend, name: str) -> Schedule:
        """A schedule that must exist."""
        [found] = await self.ticks(store).find(ScheduleSelector(names=[name]))
        return found

    async def jobs(self, store: Backend, *numbers: int) -> list[Record | None]:
        return await store.fetch([job_id(number) for number in numbers], at=T0)

    # -- save, find

    @needs("ticks")
    async def test_a_schedule_is_stored_as_it_is(self, store: Backend) -> None:
        given = schedule(
            1,
            queue="other",
            definition=bytes(range(256)) * 10,
            tenant="acme",
            plan_priority=-3,
            bucket=BUCKETS - 1,
            enabled=False,
            slot=T0 + 1,
            look_at=T0 + 2,
            runs=7,
            last_slot=T0 - 1,
            last_job=job_id(9),
        )
        [found] = await self.keep(store, given, at=T0 + 5)
        assert found == replace(given, version=1, created_at=T0 + 5, updated_at=T0 + 5)
        [empty] = await self.keep(store, schedule(2, definition=b"", slot=None, look_at=None))
        assert (empty.definition, empty.slot, empty.look_at, empty.last_slot, empty.last_job) == (
            b"",
            None,
            None,
            None,
            None,
        )

    @needs("ticks")
    async def test_a_save_names_the_version_that_was_read(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        assert await ticks.save([Save(schedule(1, definition=b"late"), 0)], T0) == [False]
        assert await ticks.save([Save(schedule(1, definition=b"new"), 1)], T0 + 9) == [True]
        assert await ticks.save([Save(schedule(1, definition=b"old"), 1)], T0) == [False]
        found = await self.stored(store, one.name)
        assert (found.definition, found.version) == (b"new", 2)
        assert (found.created_at, found.updated_at) == (T0, T0 + 9)
        assert await ticks.save([Save(schedule(5), 3)], T0) == [False]

    @needs("ticks")
    async def test_each_change_of_a_batch_stands_by_itself(self, store: Backend) -> None:
        ticks = self.ticks(store)
        await self.keep(store, schedule(1), schedule(2))
        changes: list[Save | Drop] = [
            Save(schedule(1), 9),
            Drop("s000002", 1),
            Save(schedule(3), 0),
            Drop("none", 1),
            Drop("s000001", 7),
        ]
        assert await ticks.save(changes, T0) == [False, True, True, False, False]
        assert [one.name for one in await ticks.find(ALL)] == ["s000001", "s000003"]

    @needs("ticks")
    async def test_one_of_several_that_save_at_once_succeeds(self, store: Backend) -> None:
        ticks = self.ticks(store)
        changes = [Save(schedule(1, plan_priority=n), 0) for n in range(8)]
        answers = await asyncio.gather(*(ticks.save([change], T0) for change in changes))
        assert sorted(answers) == [[False]] * 7 + [[True]]

    @needs("ticks")
    async def test_found_by_name_tenant_and_queue_in_the_order_of_names(self, store: Backend) -> None:
        ticks = self.ticks(store)
        await self.keep(
            store, schedule(3, tenant="a"), schedule(1, tenant="a", queue="x"), schedule(2, queue="x"), schedule(4)
        )

        async def names(sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[int]:
            return [int(one.name[1:]) for one in await ticks.find(sel, after, limit)]

        assert await names(ALL) == [1, 2, 3, 4]
        assert await names(ALL, None, 2) == [1, 2]
        assert await names(ALL, "s000002", 2) == [3, 4]
        assert await names(ScheduleSelector(tenant="a")) == [1, 3]
        assert await names(ScheduleSelector(tenant="")) == [2, 4]
        assert await names(ScheduleSelector(queue="x")) == [1, 2]
        assert await names(ScheduleSelector(tenant="a", queue="x")) == [1]
        assert await names(ScheduleSelector(names=["s000004", "none", "s000001", "s000004"])) == [1, 4]
        assert await names(ScheduleSelector(names=[])) == []
        assert await names(ScheduleSelector(names=["s000001"], tenant="b")) == []

    @needs("ticks")
    async def test_names_of_schedules_are_data(self, store: Backend) -> None:
        ticks = self.ticks(store)
        kept = [schedule(n, name=name, tenant=name, queue=name) for n, name in enumerate(HOSTILE)]
        await self.keep(store, *kept)
        assert [one.name for one in await ticks.find(ALL)] == sorted(HOSTILE)
        for number, name in enumerate(HOSTILE):
            [found] = await ticks.find(ScheduleSelector(tenant=name))
            assert found.uid == uid(number)
        looked = await ticks.due(Look(), T0)
        plans = [moved(one, fires(T0, one.uid[-1], queue=one.queue, tenant=one.tenant)) for one in looked.schedules]
        assert await ticks.plan(plans, T0) == [[FIRED]] * len(HOSTILE)
        for name in HOSTILE:
            assert len(await self.take(store, queues=(name,))) == 1

    # -- due

    @needs("ticks")
    async def test_due_are_those_that_must_be_looked_at(self, store: Backend) -> None:
        ticks = self.ticks(store)
        await self.keep(
            store,
            schedule(1, look_at=T0),
            schedule(2, look_at=T0 + 1),
            schedule(3, look_at=None),
            schedule(4, look_at=T0 - HOUR, enabled=False),
            schedule(5, look_at=T0 - HOUR),
        )
        looked = await ticks.due(Look(), T0)
        assert [one.name for one in looked.schedules] == ["s000005", "s000001"]
        assert looked.schedules[0] == await self.stored(store, "s000005")
        assert (looked.now, looked.next_in) == (T0, 1)
        assert (await ticks.due(Look(), T0 + 1)).next_in is None

    @needs("ticks")
    async def test_due_in_the_order_of_rank_then_instant_then_name(self, store: Backend) -> None:
        ticks = self.ticks(store)
        await self.keep(
            store,
            schedule(1, look_at=T0),
            schedule(2, look_at=T0 - 5, plan_priority=2),
            schedule(3, look_at=T0 - 3),
            schedule(4, look_at=T0 - 1, plan_priority=-1),
            schedule(5, look_at=T0),
            schedule(6, look_at=T0 + 7, plan_priority=-5),
        )
        looked = await ticks.due(Look(limit=3), T0)
        assert [one.name[-1] for one in looked.schedules] == ["4", "3", "1"]
        assert looked.next_in is None
        looked = await ticks.due(Look(limit=6), T0)
        assert [one.name[-1] for one in looked.schedules] == ["4", "3", "1", "5", "2"]
        assert looked.next_in == 7

    @needs("ticks")
    async def test_planners_may_share_the_buckets(self, store: Backend) -> None:
        ticks = self.ticks(store)
        await self.keep(store, *(schedule(n, bucket=n, look_at=T0 + (n == 8)) for n in range(9)))
        shares = [await ticks.due(Look(share=share, shares=3), T0) for share in range(3)]
        assert [[one.bucket for one in share.schedules] for share in shares] == [[0, 3, 6], [1, 4, 7], [2, 5]]
        assert [share.next_in for share in shares] == [None, None, 1]

    # -- plan

    @needs("ticks")
    async def test_a_slot_and_its_job_are_stored_together(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        slots = [T0, T0 + MINUTE]
        plan = moved(one, NewTick(T0, T0 + 5, row(1, run_at=T0 + 5)), fires(slots[1], 2), slot=T0 + 2 * MINUTE)
        assert await ticks.plan([plan], T0 + 1) == [[FIRED, FIRED]]
        after = await self.stored(store, one.name)
        assert after == replace(
            one,
            version=2,
            runs=2,
            slot=T0 + 2 * MINUTE,
            look_at=T0 + 2 * MINUTE,
            last_slot=slots[1],
            last_job=job_id(2),
        )
        history = await ticks.history(one.uid)
        assert history == [
            Tick(slot=slots[1], run_at=slots[1], outcome=FIRED, planned_at=T0 + 1, job=job_id(2)),
            Tick(slot=T0, run_at=T0 + 5, outcome=FIRED, planned_at=T0 + 1, job=job_id(1)),
        ]
        assert await self.take(store, at=T0 + 4) == []
        [job] = await self.take(store, at=T0 + 5)
        assert (job.id, job.run_at) == (job_id(1), T0 + 5)
        assert [job.id for job in await self.take(store, at=slots[1])] == [job_id(2)]

    @needs("ticks")
    async def test_a_plan_by_an_old_version_does_nothing(self, store: Backend) -> None:
        """So a repeated plan, and one of several made at once, is carried out once."""
        ticks = self.ticks(store)
        [one, other] = await self.keep(store, schedule(1), schedule(2))
        plan = moved(one, fires(T0, 1), slot=T0 + MINUTE)
        assert await ticks.plan([plan, plan], T0) == [[FIRED], None]
        late = moved(one, fires(T0 + MINUTE, 2), slot=None)
        assert await ticks.plan([late, moved(other, fires(T0, 3))], T0) == [None, [FIRED]]
        assert (await self.stored(store, one.name)).slot == T0 + MINUTE
        assert len(await ticks.history(one.uid)) == 1
        assert await self.jobs(store, 2) == [None]

    @needs("ticks")
    async def test_of_several_plans_at_once_one_is_carried_out(self, store: Backend) -> None:
        ticks = self.ticks(store)
        kept = await self.keep(store, *(schedule(n) for n in range(5)))

        async def plan(planner: int) -> list[Any]:
            order = kept if planner % 2 else kept[::-1]
            plans = [moved(one, fires(T0, 100 * planner + one.uid[-1]), slot=T0 + MINUTE) for one in order]
            answers = await ticks.plan(plans, T0)
            return answers if planner % 2 else answers[::-1]

        answers = await asyncio.gather(*(plan(planner) for planner in range(6)))
        for number, one in enumerate(kept):
            assert [answer[number] for answer in answers].count([FIRED]) == 1
            assert len(await ticks.history(one.uid)) == 1
        assert len(await self.take(store)) == 5

    @needs("ticks")
    async def test_a_plan_for_a_schedule_that_is_gone_or_another_by_now_does_nothing(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        assert await ticks.save([Drop(one.name, 1)], T0) == [True]
        plan = moved(one, fires(T0, 1))
        assert await ticks.plan([plan, replace(plan, version=None)], T0) == [None, None]
        await self.keep(store, schedule(1, uid=uid(77)))
        assert await ticks.plan([plan, replace(plan, version=None)], T0) == [None, None]
        assert await self.jobs(store, 1) == [None]

    @needs("ticks")
    async def test_a_slot_is_never_on_the_ledger_twice(self, store: Backend) -> None:
        """Extra runs too: what is known already is left as it is, and the rest of the plan is carried out."""
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1), slot=T0 + MINUTE)], T0)
        before = await self.stored(store, one.name)
        extra = Plan(one.name, one.uid, None, [fires(T0 - MINUTE, 2), fires(T0, 3), fires(T0 + HOUR, 4)])
        assert await ticks.plan([extra], T0 + 1) == [[FIRED, None, FIRED]]
        assert await ticks.plan([extra], T0 + 2) == [[None, None, None]]
        assert await self.stored(store, one.name) == replace(before, runs=3, version=before.version + 2)
        assert [tick.slot for tick in await ticks.history(one.uid)] == [T0 + HOUR, T0, T0 - MINUTE]
        assert [job is not None for job in await self.jobs(store, 1, 2, 3, 4)] == [True, True, False, True]

    @needs("ticks")
    async def test_missed_slots_are_on_the_ledger_and_have_no_job(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        missed = NewTick(T0 - HOUR, T0 - HOUR, count=59)
        assert await ticks.plan([moved(one, missed, fires(T0, 1), slot=T0 + MINUTE)], T0) == [[MISSED, FIRED]]
        [_, tick] = await ticks.history(one.uid)
        assert tick == Tick(slot=T0 - HOUR, run_at=T0 - HOUR, outcome=MISSED, planned_at=T0, count=59)
        assert (await self.stored(store, one.name)).runs == 1

    @needs("ticks")
    async def test_what_was_missed_or_skipped_can_be_made_up_for(self, store: Backend) -> None:
        """Its entry on the ledger is replaced; one that stood for several slots may be split."""
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        missed = NewTick(T0 - 5, T0 - 5, count=4)
        plan = moved(one, missed, fires(T0 - 1, 1), fires(T0, 2, Overlap.SKIP), slot=T0 + MINUTE)
        assert await ticks.plan([plan], T0) == [[MISSED, FIRED, SKIPPED]]
        made_up = [NewTick(T0 - 5, T0 - 5), fires(T0 - 4, 3), NewTick(T0 - 3, T0 - 3, count=2), fires(T0, 4)]
        assert await ticks.plan([Plan(one.name, one.uid, None, made_up)], T0 + 9) == [[MISSED, FIRED, MISSED, FIRED]]
        history = [(tick.slot - T0, tick.outcome, tick.count, tick.job) for tick in await ticks.history(one.uid)]
        assert history == [
            (0, FIRED, 1, job_id(4)),
            (-1, FIRED, 1, job_id(1)),
            (-3, MISSED, 2, None),
            (-4, FIRED, 1, job_id(3)),
            (-5, MISSED, 1, None),
        ]
        assert (await self.stored(store, one.name)).runs == 3
        places = {place.target: place.count for place in (await store.stats(T0)).kept}
        assert places["ticks"] == 5

    @needs("ticks")
    async def test_a_job_that_is_stored_already_is_not_stored_again(self, store: Backend) -> None:
        """Its id says that an earlier try succeeded."""
        ticks = self.ticks(store)
        await self.put(store, row(1))
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        [one] = await self.keep(store, schedule(1))
        assert await ticks.plan([moved(one, fires(T0, 1))], T0) == [[FIRED]]
        assert await self.state(store, 1) is JobState.CANCELLED

    @needs("ticks")
    @pytest.mark.parametrize("alive", ["waiting", "running", "paused"])
    async def test_skip_skips_while_the_last_job_is_alive(self, store: Backend, alive: str) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1, Overlap.SKIP), slot=T0 + 1)], T0)
        if alive != "waiting":
            job = await self.take_one(store)
            if alive == "paused":
                await store.finish([settle(job, JobState.PAUSED)], T0)
        one = await self.stored(store, one.name)
        assert await ticks.plan([moved(one, fires(T0 + 1, 2, Overlap.SKIP), slot=T0 + 2)], T0) == [[SKIPPED]]
        after = await self.stored(store, one.name)
        assert (after.runs, after.last_slot, after.last_job, after.slot) == (1, T0, job_id(1), T0 + 2)
        [tick, _] = await ticks.history(one.uid)
        assert (tick.outcome, tick.job) == (SKIPPED, None)
        assert await self.jobs(store, 2) == [None]

    @needs("ticks")
    @pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, None])
    async def test_skip_fires_when_the_last_job_has_ended(self, store: Backend, state: JobState | None) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1, Overlap.SKIP), slot=T0 + 1)], T0)
        job = await self.take_one(store)
        await store.finish([settle(job, state or JobState.COMPLETED)], T0)
        if state is None:
            await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0)
        one = await self.stored(store, one.name)
        assert await ticks.plan([moved(one, fires(T0 + 1, 2, Overlap.SKIP))], T0) == [[FIRED]]

    @needs("ticks")
    async def test_of_the_slots_of_one_plan_each_looks_at_the_one_before(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        plan = moved(one, *(fires(T0 + n, n, Overlap.SKIP) for n in range(3)))
        assert await ticks.plan([plan], T0) == [[FIRED, SKIPPED, SKIPPED]]
        [other] = await self.keep(store, schedule(2))
        plan = moved(other, *(fires(T0 + n, 10 + n, Overlap.CANCEL) for n in range(3)))
        assert await ticks.plan([plan], T0) == [[FIRED, FIRED, FIRED]]
        states = [job.state for job in await self.jobs(store, 10, 11, 12) if job is not None]
        assert states == [JobState.CANCELLED, JobState.CANCELLED, JobState.AVAILABLE]

    @needs("ticks")
    async def test_cancel_ends_a_waiting_job_and_asks_a_running_one(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1, Overlap.CANCEL), slot=T0)], T0)
        one = await self.stored(store, one.name)
        assert await ticks.plan([moved(one, fires(T0 + 1, 2, Overlap.CANCEL), slot=T0)], T0 + 1) == [[FIRED]]
        first = await self.get(store, 1)
        assert (first.state, first.reason) == (JobState.CANCELLED, "superseded")
        await self.take_one(store, at=T0 + 1)
        one = await self.stored(store, one.name)
        assert await ticks.plan([moved(one, fires(T0 + 2, 3, Overlap.CANCEL), slot=T0)], T0 + 2) == [[FIRED]]
        second = await self.get(store, 2)
        assert (second.state, second.cancel_requested) == (JobState.RUNNING, True)
        assert (await self.get(store, 3)).state is JobState.AVAILABLE

    @needs("ticks")
    @pytest.mark.parametrize("end", ["available", "paused", "cancelled", "its own word", "reap"])
    @pytest.mark.parametrize("first", ["plan", "client", "plan, then client"])
    async def test_a_running_job_that_a_plan_asked_to_end_is_superseded(
        self, store: Backend, first: str, end: str
    ) -> None:
        """Unless its cancellation was requested before, or it ends by itself."""
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1, Overlap.CANCEL), slot=T0)], T0)
        job = await self.take_one(store, at=T0)
        if first == "client":
            await store.alter(Selector(ids=[job.id]), Cancel(), T0)
        one = await self.stored(store, one.name)
        assert await ticks.plan([moved(one, fires(T0 + 1, 2, Overlap.CANCEL), slot=T0)], T0 + 1) == [[FIRED]]
        if first == "plan, then client":
            await store.alter(Selector(ids=[job.id]), Cancel(), T0 + 1)
        if end == "reap":
            [reaped] = await store.reap(Reap(), T0 + LEASE)
            assert (reaped.id, reaped.state) == (job.id, JobState.CANCELLED)
        else:
            reason = {"cancelled": "cancelled", "its own word": "enough"}.get(end, "")
            state = JobState(end) if end in ("available", "paused") else JobState.CANCELLED
            assert await store.finish([settle(job, state, reason=reason)], T0 + 2) == [JobState.CANCELLED]
        ended = await self.get(store, 1)
        right = "enough" if end == "its own word" else "cancelled" if first == "client" else "superseded"
        assert (ended.state, ended.reason) == (JobState.CANCELLED, right)

    @needs("ticks")
    async def test_many_plans_in_one_batch(self, store: Backend) -> None:
        ticks = self.ticks(store)
        kept = await self.keep(store, *(schedule(n) for n in range(200)))
        plans = [moved(one, *(fires(T0 + i, 10 * n + i) for i in range(10))) for n, one in enumerate(kept)]
        assert await ticks.plan(plans, T0) == [[FIRED] * 10] * 200
        found = {queue.queue: queue.available for queue in (await store.stats(T0)).queues}
        assert found == {"q": 2_000}
        assert await ticks.plan([], T0) == []
        assert await ticks.save([], T0) == []

    # -- history, note, sweep

    @needs("ticks")
    async def test_history_newest_slot_first_page_by_page(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one, other] = await self.keep(store, schedule(1), schedule(2))
        await ticks.plan([moved(one, *(fires(T0 + n, n) for n in range(5))), moved(other, fires(T0, 9))], T0)
        first = await ticks.history(one.uid, limit=2)
        assert [tick.slot - T0 for tick in first] == [4, 3]
        assert [tick.slot - T0 for tick in await ticks.history(one.uid, first[-1].slot, 2)] == [2, 1]
        assert await ticks.history(one.uid, T0) == []
        assert await ticks.history(uid(99)) == []

    @needs("ticks")
    async def test_what_a_worker_notes_of_a_tick_is_kept_with_it(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1))], T0)
        known, unknown = TickNote(one.uid, T0, "completed", 1_500, 2_000_000), TickNote(one.uid, T0 + 1, "failed", 0, 0)
        await ticks.note([unknown, known], T0)
        [tick] = await ticks.history(one.uid)
        assert (tick.state, tick.waited, tick.ran) == ("completed", 1_500, 2_000_000)
        assert (tick.outcome, tick.job) == (FIRED, job_id(1))

    @needs("ticks")
    async def test_old_ticks_are_swept_and_nothing_else(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        for n in range(5):
            one = await self.stored(store, one.name)
            await ticks.plan([moved(one, fires(T0 + HOUR - n, n), slot=T0)], T0 + n * SECOND)
        clause = SweepClause(target=SweepTarget.TICKS, older_than=HOUR)
        assert (await store.sweep(clause, T0 + HOUR - 1)).removed == 0
        now = T0 + HOUR + 2 * SECOND
        preview = await store.sweep(replace(clause, dry_run=True), now)
        assert await store.sweep(clause, now) == preview
        assert (preview.removed, preview.kept, preview.more) == (3, 2, False)
        assert [tick.slot - T0 - HOUR for tick in await ticks.history(one.uid)] == [-3, -4]
        assert await self.stored(store, one.name) is not None
        assert None not in await self.jobs(store, 0, 1, 2, 3, 4)

    @needs("ticks")
    async def test_ticks_are_bounded_by_number_in_bounded_steps(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, *(fires(T0 + n, n) for n in range(25)))], T0)
        places = {place.target: (place.count, place.bytes > 0) for place in (await store.stats(T0)).kept}
        assert places["ticks"] == (25, True)
        clause = SweepClause(target=SweepTarget.TICKS, max_count=3, limit=10)
        steps = [await store.sweep(clause, T0) for _ in range(4)]
        assert [(step.removed, step.more) for step in steps] == [(10, True), (10, True), (2, False), (0, False)]
        assert steps[-1] == Swept(0, 0, 3, more=False)
        assert len(await ticks.history(one.uid)) == 3
        assert (await store.sweep(SweepClause(target=SweepTarget.TICKS, max_bytes=0), T0)).removed == 3

    @needs("ticks")
    async def test_ticks_outlive_their_schedule_until_they_are_swept(self, store: Backend) -> None:
        ticks = self.ticks(store)
        [one] = await self.keep(store, schedule(1))
        await ticks.plan([moved(one, fires(T0, 1), slot=T0)], T0)
        assert await ticks.save([Drop(one.name, 2)], T0) == [True]
        assert len(await ticks.history(one.uid)) == 1
        assert (await self.get(store, 1)).state is JobState.AVAILABLE
        [again] = await self.keep(store, schedule(1, uid=uid(2)))
        assert await ticks.plan([moved(again, fires(T0, 2))], T0) == [[FIRED]]
