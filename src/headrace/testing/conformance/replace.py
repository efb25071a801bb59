"""insert: a row that replaces the cells or the time of the waiting job that has its key."""

from __future__ import annotations

import asyncio

import pytest

from headrace.seam.policy import Policy
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    InsertStatus,
    JobKey,
    KeyUntil,
    Pause,
    Reap,
    Record,
    Replaces,
    Reschedule,
    Resume,
    Selector,
)
from headrace.testing.conformance.base import (
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
from headrace.types import SECTIONS, JobState

NEW, DUPLICATE, REPLACED, DONE = InsertStatus.NEW, InsertStatus.DUPLICATE, InsertStatus.REPLACED, InsertStatus.DONE
BOTH = Replaces.BOTH
_ALL = frozenset(SECTIONS)


class ReplaceTests(ConformanceBase):
    async def _record(self, store: Backend, number: int = 1, at: int = T0) -> Record:
        [record] = await store.fetch([job_id(number)], _ALL, at)
        assert record is not None
        return record

    @pytest.mark.parametrize("replaces", [Replaces.CELLS, Replaces.TIME, BOTH])
    async def test_a_waiting_job_takes_on_what_is_named(self, store: Backend, replaces: Replaces) -> None:
        """And nothing else: not the priority, not the options, and not the id."""
        old = {"parameters": b"old", "blob": b"o" * 5_000}
        await self.put(store, row(1, key="k", cells=old, delay=MINUTE, priority=3, max_attempts=5, headers=b"h"))
        new = {"parameters": b"new", "vm_state": b"n" * 3_000}
        later = T0 + SECOND
        given = row(2, key="k", cells=new, delay=HOUR, expires=2 * HOUR, priority=9, replaces=replaces)
        [answer] = await store.insert([given], later)
        assert (answer.status, answer.id, answer.state) == (REPLACED, job_id(1), JobState.AVAILABLE)
        record = await self._record(store, at=later)
        cells, timed = bool(replaces & Replaces.CELLS), bool(replaces & Replaces.TIME)
        assert record.cells == (new if cells else old)
        assert (record.run_at, record.expires_at) == (
            (later + HOUR, later + 2 * HOUR) if timed else (T0 + MINUTE, None)
        )
        assert (record.priority, record.max_attempts, record.headers, record.enqueued_at) == (3, 5, b"h", T0)
        assert await store.fetch([job_id(2)], _ALL, later) == [None]
        assert not await self.take(store, at=record.run_at - 1)
        [job] = await self.take(store, at=record.run_at)
        assert (job.id, job.cells) == (job_id(1), record.cells)

    async def test_a_job_becomes_due_earlier(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", delay=HOUR), row(2, delay=SECOND))
        [answer] = await store.insert([row(3, key="k", run_at=T0, replaces=BOTH)], T0)
        assert answer.status is REPLACED
        assert [job.id for job in await self.take(store)] == [job_id(1)]

    async def test_a_job_that_runs_is_kept(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        [answer] = await store.insert([row(2, key="k", cells={"parameters": b"new"}, replaces=BOTH)], T0)
        assert (answer.status, answer.state) == (DUPLICATE, JobState.RUNNING)
        assert (await self._record(store)).cells == job.cells
        [answer] = await store.insert([row(3, key="k", key_until=KeyUntil.STARTED, replaces=BOTH)], T0)
        assert (answer.status, answer.id) == (NEW, job_id(3))
        assert await store.finish([settle(job, result=b"r", result_ttl=HOUR)], T0) == [JobState.COMPLETED]

    async def test_a_job_that_has_ended_is_kept(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), result=b"r", result_ttl=HOUR)], T0)
        [answer] = await store.insert([row(2, key="k", replaces=BOTH)], T0)
        assert (answer.status, answer.id, answer.result) == (DONE, job_id(1), b"r")
        await self.put(store, row(3, key="m"))
        await store.finish([settle(await self.take_one(store), JobState.FAILED)], T0)
        [answer] = await store.insert([row(4, key="m", hold_failed=True, replaces=BOTH)], T0)
        assert (answer.status, answer.id, answer.state) == (DUPLICATE, job_id(3), JobState.FAILED)

    @pytest.mark.parametrize("other", [{"task": "u"}, {"tenant": "acme"}])
    async def test_a_job_of_another_task_or_tenant_is_kept(self, store: Backend, other: dict[str, str]) -> None:
        await self.put(store, row(1, key="k"))
        given = row(2, key="k", cells={"parameters": b"new"}, delay=HOUR, replaces=BOTH, **other)
        [answer] = await store.insert([given], T0)
        assert (answer.status, answer.id) == (DUPLICATE, job_id(1))
        assert (await self.take_one(store)).cells == {"parameters": b"{}"}

    async def test_a_job_that_waits_for_its_next_attempt(self, store: Backend) -> None:
        """Its attempts and its error stay; what a run has put into its cells goes."""
        await self.put(store, row(1, key="k", cells={"parameters": b"1", "vm_state": b"s"}))
        job = await self.take_one(store)
        changes = {"vm_state": b"t" * 4_000, "metadata": b"m"}
        again = settle(job, JobState.AVAILABLE, delay=MINUTE, failed_attempt=True, cells=changes, error=b"e")
        await store.finish([again], T0)
        [answer] = await store.insert([row(2, key="k", cells={"parameters": b"2"}, replaces=BOTH)], T0)
        assert (answer.status, answer.attempt) == (REPLACED, 1)
        next_job = await self.take_one(store)
        assert (next_job.cells, next_job.attempt, next_job.error) == ({"parameters": b"2"}, 1, b"e")
        assert next_job.epoch > job.epoch
        assert await store.finish([settle(job)], T0) == [None]

    async def test_a_paused_job_stays_paused(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        [answer] = await store.insert([row(2, key="k", cells={"blob": b"b"}, delay=HOUR, replaces=BOTH)], T0)
        assert (answer.status, answer.state) == (REPLACED, JobState.PAUSED)
        await store.alter(Selector(ids=[job_id(1)]), Resume(), T0)
        assert not await self.take(store)
        [job] = await self.take(store, at=T0 + HOUR)
        assert job.cells == {"blob": b"b"}

    async def test_an_expiry_is_replaced_with_the_time(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", expires=SECOND), row(2, key="m"))
        replaced = [
            row(3, key="k", delay=MINUTE, replaces=BOTH),
            row(4, key="m", expires=SECOND, replaces=Replaces.TIME),
        ]
        assert [a.status for a in await store.insert(replaced, T0)] == [REPLACED, REPLACED]
        [job] = await self.take(store, at=T0 + MINUTE)
        assert job.id == job_id(1)
        assert (await self._record(store, 2, T0 + MINUTE)).reason == "expired"

    async def test_rows_of_one_batch_replace_each_other(self, store: Backend) -> None:
        """The last one counts, whether the first of them is new or not."""
        await self.put(store, row(1, key="old", group="g"))
        rows = [
            row(n, key=key, group="g", cells={"parameters": b"%d" % n}, delay=n * SECOND, replaces=BOTH)
            for n, key in ((2, "k"), (3, "old"), (4, "k"), (5, "other"), (6, "k"), (7, "old"))
        ]
        answers = await store.insert(rows, T0)
        assert [(a.status, a.id) for a in answers] == [
            (NEW, job_id(2)), (REPLACED, job_id(1)), (REPLACED, job_id(2)), (NEW, job_id(5)), (REPLACED, job_id(2)),
            (REPLACED, job_id(1)),
        ]  # fmt: skip
        at = T0 + HOUR
        found = []
        while jobs := await self.take(store, at=at):
            found += [(job.id, job.cells["parameters"], job.run_at - T0) for job in jobs]
            await store.finish([settle(job) for job in jobs], at)
        assert found == [(job_id(n), b"%d" % of, of * SECOND) for n, of in ((5, 5), (2, 6), (1, 7))]

    async def test_a_called_job_that_is_put_off_lets_others_pass(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", group="g"), row(2, group="g", delay=1))
        await store.insert([row(3, key="k", delay=MINUTE, replaces=BOTH)], T0)
        [job] = await self.take(store, at=T0 + 1)
        assert job.id == job_id(2)
        await store.finish([settle(job)], T0 + 1)
        assert not await self.take(store, at=T0 + 2)
        assert [job.id for job in await self.take(store, at=T0 + MINUTE)] == [job_id(1)]

    async def test_the_next_of_its_group_is_called_in_the_same_step(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", group="g"), row(2, group="g"))
        await store.insert([row(3, key="k", delay=MINUTE, replaces=Replaces.TIME)], T0)
        [queue] = (await store.stats(T0)).queues
        assert (queue.available, queue.scheduled) == (2, 0)

    @needs("policies")
    async def test_jobs_of_governed_queues(self, store: Backend) -> None:
        """Their tenants expect them at their new time, and no depth keeps the row out."""
        await self.policies(store).save(Policy(queue="q", tenant_running=1, depth=2), T0)
        await self.put(store, row(1, key="k", tenant="a"), row(2, key="m", tenant="b", delay=HOUR))
        rows = [
            row(3, key="k", tenant="a", delay=MINUTE, replaces=BOTH),
            row(4, key="m", tenant="b", cells={"parameters": b"now"}, replaces=BOTH),
            row(5, key="m", tenant="b", cells={"parameters": b"still"}, replaces=Replaces.CELLS),
        ]
        assert [a.status for a in await store.insert(rows, T0)] == [REPLACED, REPLACED, REPLACED]
        [job] = await self.take(store)
        assert (job.id, job.cells) == (job_id(2), {"parameters": b"still"})
        assert [job.id for job in await self.take(store, at=T0 + MINUTE)] == [job_id(1)]

    async def test_numbers_stay_right(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", cells={"blob": b"b" * 10_000}, delay=HOUR))
        await store.insert([row(2, key="k", cells={"blob": b"b" * 100}, replaces=BOTH)], T0)
        [queue] = (await store.stats(T0)).queues
        assert (queue.available, queue.scheduled) == (1, 0)
        await store.finish([settle(await self.take_one(store))], T0)
        [kept] = [one for one in (await store.stats(T0)).kept if one.target == "completed"]
        assert kept.count == 1
        assert kept.bytes < 1_000

    async def test_spawned_rows_replace_too(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, key="k", delay=HOUR))
        job = await self.take_one(store)
        spawned = [row(3, key="k", cells={"parameters": b"spawned"}, replaces=BOTH)]
        await store.finish([settle(job, spawn=spawned)], T0)
        [next_job] = await self.take(store)
        assert (next_job.id, next_job.cells) == (job_id(2), {"parameters": b"spawned"})

    async def test_a_reply_address_comes_along(self, store: Backend) -> None:
        """The job that is replaced is the one that the caller waits for."""
        await self.put(store, row(1, key="k", delay=HOUR))
        [answer] = await store.insert([row(2, key="k", reply_to="me", replaces=BOTH)], T0)
        assert (answer.status, answer.id) == (REPLACED, job_id(1))
        assert await store.finish([settle(await self.take_one(store))], T0) == [JobState.COMPLETED]

    async def test_a_replaced_job_survives_a_loss(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.insert([row(2, key="k", cells={"parameters": b"new"}, replaces=BOTH)], T0)
        first = await self.take_one(store)
        await store.reap(Reap(), T0 + LEASE)
        [again] = await self.take(store, at=T0 + LEASE)
        assert (again.id, again.cells, again.lost) == (job_id(1), first.cells, 1)

    async def test_of_concurrent_replacements_one_stays(self, store: Backend) -> None:
        """Beside claims: what is claimed is what one of them brought, and no answer lies."""
        await self.put(store, row(1, key="k", cells={"parameters": b"1"}))
        sibling = store.sibling()
        await sibling.open()
        try:
            stores = store, sibling
            inserts = [
                stores[n % 2].insert([row(n, key="k", cells={"parameters": b"%d" % n}, replaces=BOTH)], T0)
                for n in range(2, 22)
            ]
            moves = [store.alter(Selector(keys=[JobKey("q", "k")]), Reschedule(), T0) for _ in range(5)]
            claims = [self.take(one, 1, holder=f"w{n}") for n, one in enumerate(stores)]
            answers, _, taken = await asyncio.gather(
                asyncio.gather(*inserts), asyncio.gather(*moves), asyncio.gather(*claims)
            )
        finally:
            await sibling.close()
        jobs = [job for some in taken for job in some] or await self.take(store)
        assert [job.id for job in jobs] == [job_id(1)]
        replaced = {b"%d" % n for n, [answer] in enumerate(answers, start=2) if answer.status is REPLACED}
        assert jobs[0].cells["parameters"] in replaced | {b"1"}
        assert {answer.status for [answer] in answers} <= {REPLACED, DUPLICATE}
