"""sweep: bounds on what has ended, and on nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Delete,
    Inserted,
    InsertStatus,
    JobKey,
    Move,
    Reap,
    Requeue,
    Selector,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, ConformanceBase, job_id, row, settle
from headrace.types import JobState

MINUTE = 60 * SECOND
ENDED = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


class SweepTests(ConformanceBase):
    async def _ended(self, store: Backend, count: int, state: JobState, *, blob: bytes = b"", ttl: int = 0) -> None:
        """Jobs 0 … count-1, ended one second apart."""
        await self.put(store, *(row(n, key=f"k{n}", cells={"blob": blob}) for n in range(count)))
        for n, job in enumerate(await self.take(store, count)):
            await store.finish([settle(job, state, result=b"r", result_ttl=ttl)], T0 + n * SECOND)

    async def _left(self, store: Backend, count: int, at: int) -> list[int]:
        found = await store.fetch([job_id(n) for n in range(count)], at=at)
        return [n for n, record in enumerate(found) if record is not None]

    @pytest.mark.parametrize("state", ENDED)
    async def test_age(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state)
        clause = SweepClause(target=SweepTarget(state.value), older_than=HOUR)
        assert (await store.sweep(clause, T0 + HOUR - 1)).removed == 0
        swept = await store.sweep(clause, T0 + HOUR + 2 * SECOND)
        assert (swept.removed, swept.kept, swept.more) == (3, 2, False)
        assert swept.bytes > 0
        assert await self._left(store, 5, T0 + HOUR) == [3, 4]
        assert await store.fetch([JobKey("q", "k0")], at=T0 + HOUR) == [None]

    @pytest.mark.parametrize("state", ENDED)
    async def test_count(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state, ttl=HOUR)
        swept = await store.sweep(SweepClause(target=SweepTarget(state.value), max_count=2), T0 + 9 * SECOND)
        assert (swept.removed, swept.kept) == (3, 2)
        assert await self._left(store, 5, T0 + 9 * SECOND) == [3, 4]
        places = {p.target: p.count for p in (await store.stats(T0)).kept}
        assert places[state.value] == 2

    @pytest.mark.parametrize("state", ENDED)
    async def test_bytes(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state, blob=b"x" * 10_000)
        swept = await store.sweep(SweepClause(target=SweepTarget(state.value), max_bytes=25_000), T0 + 9 * SECOND)
        assert (swept.removed, swept.kept) == (3, 2)
        assert swept.bytes >= 30_000
        assert await self._left(store, 5, T0 + 9 * SECOND) == [3, 4]
        assert next(p.bytes for p in (await store.stats(T0)).kept if p.target == state.value) <= 25_000

    async def test_a_held_result_outlives_the_age_bound(self, store: Backend) -> None:
        await self._ended(store, 3, JobState.COMPLETED, ttl=2 * HOUR)
        clause = SweepClause(target=SweepTarget.COMPLETED, older_than=HOUR)
        assert (await store.sweep(clause, T0 + HOUR + 9 * SECOND)).removed == 0
        assert (await store.sweep(clause, T0 + 2 * HOUR + 9 * SECOND)).removed == 3

    async def test_bounded_steps(self, store: Backend) -> None:
        await self._ended(store, 25, JobState.FAILED)
        clause = SweepClause(target=SweepTarget.FAILED, older_than=0, limit=10)
        steps = [await store.sweep(clause, T0 + HOUR) for _ in range(4)]
        assert [(s.removed, s.more) for s in steps] == [(10, True), (10, True), (5, False), (0, False)]

    @pytest.mark.parametrize(
        "clause",
        [
            SweepClause(target=SweepTarget.COMPLETED, older_than=HOUR, dry_run=True),
            SweepClause(target=SweepTarget.COMPLETED, max_count=3, dry_run=True),
            SweepClause(target=SweepTarget.COMPLETED, max_bytes=1_000, dry_run=True),
            SweepClause(target=SweepTarget.COMPLETED, older_than=0, limit=2, dry_run=True),
            SweepClause(target=SweepTarget.RESULTS, dry_run=True),
        ],
    )
    async def test_a_dry_run_tells_exactly_what_the_run_does(self, store: Backend, clause: SweepClause) -> None:
        await self._ended(store, 6, JobState.COMPLETED, blob=b"x" * 200, ttl=SECOND)
        now = T0 + HOUR + 2 * SECOND
        preview = await store.sweep(clause, now)
        assert preview.removed > 0
        assert await self._left(store, 6, now) == [0, 1, 2, 3, 4, 5]
        real = SweepClause(
            target=clause.target,
            older_than=clause.older_than,
            max_count=clause.max_count,
            max_bytes=clause.max_bytes,
            limit=clause.limit,
        )
        assert await store.sweep(real, now) == preview

    @pytest.mark.parametrize("place", list(SweepTarget))
    async def test_nothing_alive_is_ever_swept(self, store: Backend, place: SweepTarget) -> None:
        await self.put(store, row(1), row(2), row(3, delay=HOUR), row(4, key="k"))
        await self.take(store, 1)
        paused = await self.take_one(store)
        await store.finish([settle(paused, JobState.PAUSED)], T0)
        far = T0 + 100 * 365 * 24 * HOUR
        clause = SweepClause(target=place, older_than=0, max_count=0, max_bytes=0)
        assert await store.sweep(clause, far) == Swept(0, 0, 0, more=False)
        assert len(await store.fetch([job_id(n) for n in (1, 2, 3, 4)], at=far)) == 4
        assert None not in await store.fetch([job_id(n) for n in (1, 2, 3, 4)], at=far)

    async def test_results_past_their_ttl_go_and_their_records_stay(self, store: Backend) -> None:
        await self._ended(store, 3, JobState.COMPLETED, ttl=10 * SECOND)
        now = T0 + 11 * SECOND
        swept = await store.sweep(SweepClause(target=SweepTarget.RESULTS), now)
        assert (swept.removed, swept.bytes) == (2, 2)
        assert (await store.sweep(SweepClause(target=SweepTarget.RESULTS), now)).removed == 0
        assert await self._left(store, 3, now) == [0, 1, 2]
        assert (await self.get(store, 2, "result", at=now)).result == b"r"

    async def test_a_swept_id_and_key_are_unknown_again(self, store: Backend) -> None:
        await self._ended(store, 1, JobState.COMPLETED, ttl=SECOND)
        await store.sweep(SweepClause(target=SweepTarget.COMPLETED, older_than=0), T0 + HOUR)
        await self.put(store, row(0, key="k0"), at=T0 + HOUR)

    async def _outlive(self, store: Backend, *ttls: int) -> None:
        """Jobs 0 …, with keys k0 …, completed at ``T0`` with these ttls, and swept at once; their keys outlive them."""
        await self.put(store, *(row(n, key=f"k{n}") for n in range(len(ttls))))
        for n, job in enumerate(await self.take(store, len(ttls))):
            await store.finish([settle(job, JobState.COMPLETED, result=b"r", result_ttl=ttls[n])], T0)
        swept = await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0)
        assert (swept.removed, swept.kept) == (len(ttls), 0)

    async def _keys_kept(self, store: Backend) -> int:
        return next(p.count for p in (await store.stats(T0)).kept if p.target == SweepTarget.KEYS)

    @pytest.mark.parametrize("bound", ["max_count", "max_bytes"])
    async def test_a_key_is_held_for_its_ttl_whatever_becomes_of_the_record(self, store: Backend, bound: str) -> None:
        await self.put(store, row(1, key="charge:42"))
        done = await self.take_one(store)
        await store.finish([settle(done, JobState.COMPLETED, result=b"r", result_ttl=HOUR)], T0)
        clause = SweepClause(target=SweepTarget.COMPLETED, max_count=10, max_bytes=10_000)
        for n in range(100, 200, 20):
            await self.put(store, *(row(n + i, cells={"blob": b"x" * 1_000}) for i in range(20)))
            others = await self.take(store, 20)
            await store.finish([settle(job, JobState.COMPLETED, result_ttl=HOUR) for job in others], T0 + SECOND)
            one = SweepClause(target=SweepTarget.COMPLETED, **{bound: getattr(clause, bound)})
            while (await store.sweep(one, T0 + SECOND)).more:
                pass
        assert await store.fetch([job_id(1)], at=T0 + SECOND) == [None]
        for at in (T0 + SECOND, T0 + HOUR - 1):
            [answer] = await store.insert([row(2, key="charge:42")], at)
            assert answer == Inserted(InsertStatus.DUPLICATE, job_id(1), JobState.COMPLETED)
        await self.put(store, row(2, key="charge:42"), at=T0 + HOUR)

    async def test_a_key_that_outlives_its_job_names_none(self, store: Backend) -> None:
        await self._outlive(store, HOUR)
        assert await store.fetch([JobKey("q", "k0"), job_id(0)], at=T0) == [None, None]
        assert await store.alter(Selector(keys=[JobKey("q", "k0")]), Delete(), T0) == []
        [answer] = await store.insert([row(0, key="k0", reply_to="inbox")], T0)
        assert answer == Inserted(InsertStatus.DUPLICATE, job_id(0), JobState.COMPLETED)
        assert [one.status for one in await store.insert([row(0)], T0)] == [InsertStatus.NEW]
        assert await store.fetch([JobKey("q", "k0")], at=T0) == [None]
        [answer] = await store.insert([row(1, key="k0")], T0)
        assert answer == Inserted(InsertStatus.DUPLICATE, job_id(0), JobState.COMPLETED)

    async def test_one_batch_meets_keys_that_outlive_their_jobs_and_others(self, store: Backend) -> None:
        await self._outlive(store, HOUR, SECOND)
        rows = [row(10, key="k0"), row(11), row(12, key="k1"), row(13, key="k1"), row(14, key="k2")]
        answers = await store.insert(rows, T0 + 2 * SECOND)
        statuses = [(answer.status, answer.id) for answer in answers]
        new, duplicate = InsertStatus.NEW, InsertStatus.DUPLICATE
        assert statuses == [
            (duplicate, job_id(0)), (new, job_id(11)), (new, job_id(12)), (duplicate, job_id(12)), (new, job_id(14)),
        ]  # fmt: skip
        assert await self._keys_kept(store) == 1

    async def test_a_key_that_outlives_its_job_is_taken_for_moves_and_requeues(self, store: Backend) -> None:
        await self.put(store, row(0, key="k"))
        await store.finish([settle(await self.take_one(store), JobState.FAILED)], T0)
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), JobState.COMPLETED, result_ttl=HOUR)], T0)
        await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0)
        [answer] = await store.alter(Selector(ids=[job_id(0)]), Requeue(), T0)
        assert not answer.changed
        await self.put(store, row(2, queue="other", key="k"))
        [answer] = await store.alter(Selector(ids=[job_id(2)]), Move("q"), T0)
        assert not answer.changed
        later = T0 + HOUR
        assert [a.changed for a in await store.alter(Selector(ids=[job_id(0)]), Requeue(), later)] == [True]
        assert await self._keys_kept(store) == 0
        [answer] = await store.alter(Selector(ids=[job_id(2)]), Move("q"), later)
        assert not answer.changed

    async def test_a_job_moves_with_its_key_where_one_that_outlived_its_job_is_free(self, store: Backend) -> None:
        await self._outlive(store, SECOND)
        await self.put(store, row(2, queue="other", key="k0"), at=T0)
        [answer] = await store.alter(Selector(ids=[job_id(2)]), Move("q"), T0 + SECOND)
        assert answer.changed
        assert await self._keys_kept(store) == 0
        [inserted] = await store.insert([row(3, key="k0")], T0 + SECOND)
        assert (inserted.status, inserted.id) == (InsertStatus.DUPLICATE, job_id(2))

    async def test_keys_go_when_they_are_free(self, store: Backend) -> None:
        await self._outlive(store, HOUR, 3 * HOUR, 2 * HOUR)
        assert await self._keys_kept(store) == 3
        clause = SweepClause(target=SweepTarget.KEYS)
        assert await store.sweep(clause, T0 + HOUR - 1) == Swept(0, 0, 3, more=False)
        assert await store.sweep(clause, T0 + 2 * HOUR) == Swept(2, 0, 1, more=False)
        assert await self._keys_kept(store) == 1
        answers = await store.insert([row(10 + n, key=f"k{n}") for n in range(3)], T0 + 2 * HOUR)
        new, duplicate = InsertStatus.NEW, InsertStatus.DUPLICATE
        assert [answer.status for answer in answers] == [new, duplicate, new]

    async def test_too_many_keys_go_in_the_order_in_which_they_would_be_free(self, store: Backend) -> None:
        await self._outlive(store, 2 * HOUR, 5 * HOUR, HOUR, 4 * HOUR, 3 * HOUR)
        dry = SweepClause(target=SweepTarget.KEYS, max_count=2, limit=2, dry_run=True)
        assert await store.sweep(dry, T0) == Swept(2, 0, 3, more=True)
        clause = SweepClause(target=SweepTarget.KEYS, max_count=2, limit=2)
        assert await store.sweep(clause, T0) == Swept(2, 0, 3, more=True)
        assert await store.sweep(clause, T0) == Swept(1, 0, 2, more=False)
        answers = await store.insert([row(10 + n, key=f"k{n}") for n in range(5)], T0)
        new, duplicate = InsertStatus.NEW, InsertStatus.DUPLICATE
        assert [answer.status for answer in answers] == [new, duplicate, new, duplicate, new]

    async def test_a_queue_is_remembered_as_long_as_its_keys_are_held(self, store: Backend) -> None:
        await self._outlive(store, HOUR)
        for place in SweepTarget:
            await store.sweep(SweepClause(target=place, older_than=0), T0)
        [answer] = await store.insert([row(1, key="k0")], T0)
        assert answer.id == job_id(0)

    @pytest.mark.parametrize("state", ENDED)
    async def test_what_has_just_ended_is_spared(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state)
        clause = SweepClause(target=SweepTarget(state.value), older_than=0, max_count=0, max_bytes=0, spare=60 * SECOND)
        assert await store.sweep(clause, T0 + 60 * SECOND - 1) == Swept(0, 0, 5, more=False)
        swept = await store.sweep(clause, T0 + 61 * SECOND)
        assert (swept.removed, swept.kept, swept.more) == (2, 3, False)
        assert [a.status for a in await store.insert([row(n) for n in range(5)], T0 + 61 * SECOND)] == [
            InsertStatus.NEW, InsertStatus.NEW, InsertStatus.SAME, InsertStatus.SAME, InsertStatus.SAME,
        ]  # fmt: skip

    async def test_the_key_of_a_newer_job_survives_the_older_ones_sweep(self, store: Backend) -> None:
        await self._ended(store, 1, JobState.FAILED)
        await self.put(store, row(7, key="k0"))
        await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=0), T0 + HOUR)
        [live] = await store.fetch([JobKey("q", "k0")], at=T0 + HOUR)
        assert live is not None
        assert live.id == job_id(7)

    async def _fail(self, store: Backend, tenant: str, first: int, count: int, at: int, *, blob: bytes = b"") -> None:
        """Jobs of one tenant that fail, one second after the other."""
        for n in range(first, first + count):
            await self.put(store, row(n, tenant=tenant, cells={"blob": blob}))
            await store.finish([settle(await self.take_one(store), JobState.FAILED)], at + (n - first) * SECOND)

    async def test_a_tenants_failures_push_out_none_of_others(self, store: Backend) -> None:
        await self._fail(store, "small", 0, 3, T0)
        await self._fail(store, "", 10, 2, T0)
        await self._fail(store, "loud", 100, 20, T0 + HOUR)
        clause = SweepClause(target=SweepTarget.FAILED, max_count=12, limit=8)
        assert await store.sweep(replace(clause, dry_run=True), T0 + 2 * HOUR) == await store.sweep(
            clause, T0 + 2 * HOUR
        )
        swept = await store.sweep(clause, T0 + 2 * HOUR)
        assert (swept.removed, swept.kept, swept.more) == (5, 12, False)
        assert await self._left(store, 200, T0 + 2 * HOUR) == [0, 1, 2, 10, 11, *range(113, 120)]

    async def test_tenants_that_hold_most_are_left_with_as_much(self, store: Backend) -> None:
        await self._fail(store, "a", 0, 2, T0)
        await self._fail(store, "b", 10, 6, T0)
        await self._fail(store, "c", 20, 9, T0)
        clause = SweepClause(target=SweepTarget.FAILED, max_count=12)
        assert (await store.sweep(clause, T0 + HOUR)).removed == 5
        assert await self._left(store, 40, T0 + HOUR) == [0, 1, *range(11, 16), *range(24, 29)]
        clause = SweepClause(target=SweepTarget.FAILED, max_count=6)
        assert (await store.sweep(clause, T0 + HOUR)).removed == 6
        assert await self._left(store, 40, T0 + HOUR) == [0, 1, 14, 15, 27, 28]

    async def test_a_tenants_large_failures_push_out_none_of_others(self, store: Backend) -> None:
        await self._fail(store, "small", 0, 3, T0)
        await self._fail(store, "large", 10, 4, T0 + HOUR, blob=b"x" * 10_000)
        clause = SweepClause(target=SweepTarget.FAILED, max_bytes=25_000)
        assert (await store.sweep(clause, T0 + 2 * HOUR)).removed == 2
        assert await self._left(store, 20, T0 + 2 * HOUR) == [0, 1, 2, 12, 13]

    async def test_what_leaves_the_dead_letters_counts_for_nobody(self, store: Backend) -> None:
        await self._fail(store, "a", 0, 4, T0)
        await self._fail(store, "b", 10, 8, T0)
        ids = [job_id(n) for n in (10, 11, 12)]
        await store.alter(Selector(ids=ids[:2]), Delete(), T0)
        await store.alter(Selector(ids=ids[2:]), Requeue(), T0)
        await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=HOUR), T0 + HOUR)
        assert await self._left(store, 20, T0 + HOUR) == [1, 2, 3, 12, 13, 14, 15, 16, 17]
        assert (await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=6), T0 + HOUR)).removed == 2
        assert await self._left(store, 20, T0 + HOUR) == [1, 2, 3, 12, 15, 16, 17]

    async def test_dead_letters_that_are_too_old_go_before_others_are_too_many(self, store: Backend) -> None:
        await self._fail(store, "small", 0, 3, T0)
        await self._fail(store, "loud", 10, 9, T0 + HOUR)
        clause = SweepClause(target=SweepTarget.FAILED, max_count=8, older_than=HOUR)
        swept = await store.sweep(clause, T0 + HOUR + MINUTE)
        assert (swept.removed, swept.kept, swept.more) == (3, 9, True)
        assert (await store.sweep(clause, T0 + HOUR + MINUTE)).removed == 1
        assert await self._left(store, 20, T0 + HOUR) == [*range(11, 19)]

    async def test_dead_letters_keep_to_both_bounds(self, store: Backend) -> None:
        await self._fail(store, "small", 0, 3, T0)
        await self._fail(store, "many", 10, 8, T0 + HOUR)
        await self._fail(store, "large", 20, 4, T0 + HOUR, blob=b"x" * 10_000)
        clause = SweepClause(target=SweepTarget.FAILED, max_count=12, max_bytes=25_000)
        swept = await store.sweep(clause, T0 + 2 * HOUR)
        assert (swept.removed, swept.kept, swept.more) == (3, 12, True)
        swept = await store.sweep(clause, T0 + 2 * HOUR)
        assert (swept.removed, swept.kept, swept.more) == (2, 10, False)
        assert await self._left(store, 30, T0 + 2 * HOUR) == [0, 1, 2, *range(13, 18), 22, 23]

    async def test_failures_that_are_spared_push_out_none_of_others(self, store: Backend) -> None:
        await self._fail(store, "small", 0, 3, T0)
        await self._fail(store, "loud", 10, 9, T0 + HOUR)
        clause = SweepClause(target=SweepTarget.FAILED, max_count=6, spare=MINUTE)
        assert await store.sweep(clause, T0 + HOUR + MINUTE - SECOND) == Swept(0, 0, 12, False)
        assert (await store.sweep(clause, T0 + HOUR + MINUTE + 3 * SECOND)).removed == 4
        assert (await store.sweep(clause, T0 + 2 * HOUR)).removed == 2
        assert await self._left(store, 20, T0 + 2 * HOUR) == [0, 1, 2, 16, 17, 18]

    async def test_more_tenants_than_dead_letters_may_be(self, store: Backend) -> None:
        for n in range(5):
            await self._fail(store, f"t{n}", n, 1, T0 + n * SECOND)
        assert (await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=2), T0 + HOUR)).removed == 3
        assert await self._left(store, 5, T0 + HOUR) == [3, 4]

    async def test_dead_letters_of_the_reaper_are_bounded_too(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(5)))
        await self.take(store)
        await store.reap(Reap(max_lost=0), T0 + LEASE)
        assert (await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=1), T0 + LEASE)).removed == 4
