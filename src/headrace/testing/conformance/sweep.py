"""sweep: bounds on what has ended, and on nothing else."""

from __future__ import annotations

import pytest

from headrace.protocol import Backend
from headrace.records import JobKey, Place, Reap, SweepClause, Swept
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, ConformanceBase, job_id, row, settle
from headrace.types import JobState

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
        clause = SweepClause(place=Place(state.value), older_than=HOUR)
        assert (await store.sweep(clause, T0 + HOUR - 1)).removed == 0
        swept = await store.sweep(clause, T0 + HOUR + 2 * SECOND)
        assert (swept.removed, swept.kept, swept.more) == (3, 2, False)
        assert swept.bytes > 0
        assert await self._left(store, 5, T0 + HOUR) == [3, 4]
        assert await store.fetch([JobKey("q", "k0")], at=T0 + HOUR) == [None]

    @pytest.mark.parametrize("state", ENDED)
    async def test_count(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state, ttl=HOUR)
        swept = await store.sweep(SweepClause(place=Place(state.value), max_count=2), T0 + 9 * SECOND)
        assert (swept.removed, swept.kept) == (3, 2)
        assert await self._left(store, 5, T0 + 9 * SECOND) == [3, 4]
        places = {p.place: p.count for p in (await store.stats(T0)).places}
        assert places[state.value] == 2

    @pytest.mark.parametrize("state", ENDED)
    async def test_bytes(self, store: Backend, state: JobState) -> None:
        await self._ended(store, 5, state, blob=b"x" * 10_000)
        swept = await store.sweep(SweepClause(place=Place(state.value), max_bytes=25_000), T0 + 9 * SECOND)
        assert (swept.removed, swept.kept) == (3, 2)
        assert swept.bytes >= 30_000
        assert await self._left(store, 5, T0 + 9 * SECOND) == [3, 4]
        assert next(p.bytes for p in (await store.stats(T0)).places if p.place == state.value) <= 25_000

    async def test_a_held_result_outlives_the_age_bound(self, store: Backend) -> None:
        await self._ended(store, 3, JobState.COMPLETED, ttl=2 * HOUR)
        clause = SweepClause(place=Place.COMPLETED, older_than=HOUR)
        assert (await store.sweep(clause, T0 + HOUR + 9 * SECOND)).removed == 0
        assert (await store.sweep(clause, T0 + 2 * HOUR + 9 * SECOND)).removed == 3

    async def test_bounded_steps(self, store: Backend) -> None:
        await self._ended(store, 25, JobState.FAILED)
        clause = SweepClause(place=Place.FAILED, older_than=0, limit=10)
        steps = [await store.sweep(clause, T0 + HOUR) for _ in range(4)]
        assert [(s.removed, s.more) for s in steps] == [(10, True), (10, True), (5, False), (0, False)]

    @pytest.mark.parametrize(
        "clause",
        [
            SweepClause(place=Place.COMPLETED, older_than=HOUR, dry_run=True),
            SweepClause(place=Place.COMPLETED, max_count=3, dry_run=True),
            SweepClause(place=Place.COMPLETED, max_bytes=1_000, dry_run=True),
            SweepClause(place=Place.COMPLETED, older_than=0, limit=2, dry_run=True),
            SweepClause(place=Place.RESULTS, dry_run=True),
        ],
    )
    async def test_a_dry_run_tells_exactly_what_the_run_does(self, store: Backend, clause: SweepClause) -> None:
        await self._ended(store, 6, JobState.COMPLETED, blob=b"x" * 200, ttl=SECOND)
        now = T0 + HOUR + 2 * SECOND
        preview = await store.sweep(clause, now)
        assert preview.removed > 0
        assert await self._left(store, 6, now) == [0, 1, 2, 3, 4, 5]
        real = SweepClause(
            place=clause.place,
            older_than=clause.older_than,
            max_count=clause.max_count,
            max_bytes=clause.max_bytes,
            limit=clause.limit,
        )
        assert await store.sweep(real, now) == preview

    @pytest.mark.parametrize("place", list(Place))
    async def test_nothing_alive_is_ever_swept(self, store: Backend, place: Place) -> None:
        await self.put(store, row(1), row(2), row(3, delay=HOUR), row(4, key="k"))
        await self.take(store, 1)
        paused = await self.take_one(store)
        await store.finish([settle(paused, JobState.PAUSED)], T0)
        far = T0 + 100 * 365 * 24 * HOUR
        clause = SweepClause(place=place, older_than=0, max_count=0, max_bytes=0)
        assert await store.sweep(clause, far) == Swept(0, 0, 0, more=False)
        assert len(await store.fetch([job_id(n) for n in (1, 2, 3, 4)], at=far)) == 4
        assert None not in await store.fetch([job_id(n) for n in (1, 2, 3, 4)], at=far)

    async def test_results_past_their_ttl_go_and_their_records_stay(self, store: Backend) -> None:
        await self._ended(store, 3, JobState.COMPLETED, ttl=10 * SECOND)
        now = T0 + 11 * SECOND
        swept = await store.sweep(SweepClause(place=Place.RESULTS), now)
        assert (swept.removed, swept.bytes) == (2, 2)
        assert (await store.sweep(SweepClause(place=Place.RESULTS), now)).removed == 0
        assert await self._left(store, 3, now) == [0, 1, 2]
        assert (await self.get(store, 2, "result", at=now)).result == b"r"

    async def test_a_swept_id_and_key_are_unknown_again(self, store: Backend) -> None:
        await self._ended(store, 1, JobState.COMPLETED, ttl=SECOND)
        await store.sweep(SweepClause(place=Place.COMPLETED, older_than=0), T0 + HOUR)
        await self.put(store, row(0, key="k0"), at=T0 + HOUR)

    async def test_the_key_of_a_newer_job_survives_the_older_ones_sweep(self, store: Backend) -> None:
        await self._ended(store, 1, JobState.FAILED)
        await self.put(store, row(7, key="k0"))
        await store.sweep(SweepClause(place=Place.FAILED, older_than=0), T0 + HOUR)
        [live] = await store.fetch([JobKey("q", "k0")], at=T0 + HOUR)
        assert live is not None
        assert live.id == job_id(7)

    async def test_dead_letters_of_the_reaper_are_bounded_too(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(5)))
        await self.take(store)
        await store.reap(Reap(max_lost=0), T0 + LEASE)
        assert (await store.sweep(SweepClause(place=Place.FAILED, max_count=1), T0 + LEASE)).removed == 4
