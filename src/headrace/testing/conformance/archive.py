"""archive: what has ended, in the order of the ends; sweeps that name their jobs, or leave what is not archived; and
counts of what sweeps have removed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.seam.archive import ArchiveStore, EndedPage, Mark, Removal
from headrace.seam.protocol import Backend
from headrace.seam.records import InsertStatus, JobKey, Record, Requeue, Selector, SweepClause, SweepTarget
from headrace.testing.conformance.base import HOUR, SECOND, T0, ConformanceBase, job_id, number, row, settle
from headrace.testing.conformance.base import needs as _needs
from headrace.types import SECTIONS, JobState

ENDED = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
ALL = frozenset((*SECTIONS, "error", "result"))
LATER = T0 + HOUR


def numbers(records: list[Record]) -> list[int]:
    """Which jobs they are."""
    return [int.from_bytes(record.id[2:8]) for record in records]


class ArchiveTests(ConformanceBase):
    def archive(self, store: Backend) -> ArchiveStore:
        """The capability, in tests that need it."""
        assert store.archive is not None
        return store.archive

    async def _end(self, store: Backend, ends: list[int], state: JobState, *, ttl: int = 0, size: int = 2) -> None:
        """Jobs 0 … that end so many seconds after T0."""
        rows = [row(n, key=f"k{n}", cells={"blob": b"x" * size}, queue=f"q{n % 3}") for n in range(len(ends))]
        await self.put(store, *rows)
        jobs = {number(job): job for job in await self.take(store, len(ends), queues=("q0", "q1", "q2"))}
        for n, end in sorted(enumerate(ends), key=lambda one: one[1]):
            done = settle(jobs[n], state, error=b"e%d" % n, result=b"r%d" % n, result_ttl=ttl)
            assert await store.finish([done], T0 + end * SECOND) == [state]

    async def _read(self, store: Backend, state: JobState, limit: int) -> list[EndedPage]:
        pages: list[EndedPage] = []
        after: Mark | None = None
        while (page := await self.archive(store).ended(state, after, limit, at=LATER)).last is not None:
            pages.append(page)
            after = page.last
        assert page.records == []
        return pages

    @_needs("archive")
    @pytest.mark.parametrize("state", ENDED)
    async def test_pages_come_in_the_order_of_the_ends(self, store: Backend, state: JobState) -> None:
        ends = [9, 1, 5, 5, 5, 7, 5, 2, 2, 0]
        await self._end(store, ends, state)
        expected = sorted(range(len(ends)), key=lambda n: (ends[n], n))
        for limit in (1, 3, 4, 100):
            pages = await self._read(store, state, limit)
            assert [n for page in pages for n in numbers(page.records)] == expected
            assert all(len(page.records) == limit for page in pages[:-1])
            assert all(weight > 0 for page in pages for weight in page.weights)
            assert sum(weight for page in pages for weight in page.weights) == await self._weight(store, state)
            assert all(page.last == Mark(page.records[-1].finished_at or 0, page.records[-1].id) for page in pages)
        for other in set(ENDED) - {state}:
            assert (await self.archive(store).ended(other, at=LATER)).last is None

    @_needs("archive")
    @pytest.mark.parametrize("state", ENDED)
    async def test_a_page_has_what_is_wanted_and_no_more(self, store: Backend, state: JobState) -> None:
        await self._end(store, [1, 2], state, ttl=9 * HOUR)
        plain = (await self.archive(store).ended(state, at=LATER)).records
        whole = (await self.archive(store).ended(state, want=ALL, at=LATER)).records
        assert plain == await store.fetch([job_id(0), job_id(1)], at=LATER)
        assert whole == await store.fetch([job_id(0), job_id(1)], ALL, at=LATER)
        assert [record.cells for record in whole] == [{"blob": b"xx"}] * 2
        assert [record.error for record in whole] == [b"e0", b"e1"]
        assert [record.result for record in whole] == [b"r0", b"r1"] if state is JobState.COMPLETED else [None, None]

    @_needs("archive")
    async def test_a_page_of_large_jobs_ends_early(self, store: Backend) -> None:
        await self._end(store, [1, 2, 3, 4, 5], JobState.COMPLETED, size=10_000)
        archive = self.archive(store)
        page = await archive.ended(JobState.COMPLETED, want=ALL, max_bytes=25_000, at=LATER)
        assert numbers(page.records) == [0, 1, 2]
        page = await archive.ended(JobState.COMPLETED, page.last, want=ALL, max_bytes=1, at=LATER)
        assert numbers(page.records) == [3]
        page = await archive.ended(JobState.COMPLETED, max_bytes=1, at=LATER)
        assert numbers(page.records) == [0, 1, 2, 3, 4], "no cells were wanted"

    @_needs("archive")
    async def test_what_has_ended_long_ago_is_final(self, store: Backend) -> None:
        await self._end(store, [1], JobState.COMPLETED)
        archive = self.archive(store)
        assert (await archive.ended(JobState.COMPLETED, at=T0 + SECOND)).final < T0 + SECOND
        assert (await archive.ended(JobState.COMPLETED, at=LATER)).final > T0 + SECOND

    @_needs("archive")
    async def test_a_job_that_runs_again_ends_again(self, store: Backend) -> None:
        await self._end(store, [1, 2], JobState.FAILED)
        first = (await self.archive(store).ended(JobState.FAILED, at=LATER)).records[0]
        await store.alter(Selector(ids=[job_id(0)]), Requeue(), T0 + 9 * SECOND)
        assert numbers((await self.archive(store).ended(JobState.FAILED, at=LATER)).records) == [1]
        [job] = await self.take(store, 1, queues=("q0",), at=T0 + 10 * SECOND)
        await store.finish([settle(job, JobState.FAILED)], T0 + 11 * SECOND)
        page = await self.archive(store).ended(JobState.FAILED, at=LATER)
        assert numbers(page.records) == [1, 0]
        assert page.records[1].epoch > first.epoch

    @_needs("archive")
    @pytest.mark.parametrize("state", ENDED)
    async def test_a_sweep_removes_the_jobs_that_it_names(self, store: Backend, state: JobState) -> None:
        await self._end(store, [1, 2, 3, 4, 5], state)
        epochs = {record.id: record.epoch for record in (await self.archive(store).ended(state, at=LATER)).records}
        named = [(job_id(n), epochs[job_id(n)]) for n in (4, 1, 3)]
        others = [(job_id(0), epochs[job_id(0)] + 1), (job_id(77), 1)]
        clause = SweepClause(target=SweepTarget(state.value), jobs=[*named, *others])
        dry = await store.sweep(replace(clause, dry_run=True), LATER)
        assert (dry.removed, dry.kept, dry.more) == (3, 2, False)
        assert await store.sweep(clause, LATER) == dry
        assert (await store.sweep(clause, LATER)).removed == 0
        assert numbers((await self.archive(store).ended(state, at=LATER)).records) == [0, 2]
        kept = {one.target: one.count for one in (await store.stats(LATER)).kept}
        assert kept[state.value] == 2
        [again] = await store.insert([row(1, key="k1", queue="q1")], LATER)
        assert again.status is InsertStatus.NEW
        wrong = next(other for other in ENDED if other is not state)
        left = [(job_id(0), epochs[job_id(0)])]
        assert (await store.sweep(SweepClause(target=SweepTarget(wrong.value), jobs=left), LATER)).removed == 0

    @_needs("archive")
    async def test_bounds_hold_for_jobs_that_are_named(self, store: Backend) -> None:
        await self._end(store, [1, 2, 3], JobState.COMPLETED, ttl=2 * HOUR)
        epochs = {record.id: record.epoch for record in await self._all(store)}
        clause = SweepClause(target=SweepTarget.COMPLETED, jobs=list(epochs.items()))
        assert (await store.sweep(clause, LATER)).removed == 0, "their results are held"
        late = T0 + 3 * HOUR
        assert (await store.sweep(replace(clause, older_than=3 * HOUR), late)).removed == 0
        assert (await store.sweep(replace(clause, spare=3 * HOUR), late)).removed == 0
        assert (await store.sweep(replace(clause, ended_by=T0), late)).removed == 0
        assert (await store.sweep(replace(clause, older_than=3 * HOUR - 2 * SECOND), late)).removed == 2
        assert (await store.sweep(replace(clause, ended_by=T0 + 3 * SECOND), late)).removed == 1
        assert await store.fetch([JobKey("q0", "k0")], at=late) == [None]

    async def _weight(self, store: Backend, state: JobState) -> int:
        return next(one.bytes for one in (await store.stats(LATER)).kept if one.target == state.value)

    async def _all(self, store: Backend) -> list[Record]:
        return (await self.archive(store).ended(JobState.COMPLETED, at=LATER)).records

    @_needs("archive")
    @pytest.mark.parametrize("bound", ["older_than", "max_count", "max_bytes"])
    @pytest.mark.parametrize("state", ENDED)
    async def test_what_is_not_archived_stays(self, store: Backend, state: JobState, bound: str) -> None:
        await self._end(store, [1, 2, 3, 4, 5], state)
        clause = replace(SweepClause(target=SweepTarget(state.value), ended_by=T0 + 3 * SECOND), **{bound: 0})
        dry = await store.sweep(replace(clause, dry_run=True), LATER)
        swept = await store.sweep(clause, LATER)
        assert (swept.removed, swept.kept) == (dry.removed, dry.kept) == (3, 2)
        assert (await store.sweep(clause, LATER)).removed == 0
        assert numbers((await self.archive(store).ended(state, at=LATER)).records) == [3, 4]

    @_needs("archive")
    @pytest.mark.parametrize("named", [False, True])
    @pytest.mark.parametrize("state", ENDED)
    async def test_sweeps_count_what_they_remove(self, store: Backend, state: JobState, named: bool) -> None:
        first, hour = 2 * HOUR, T0 // HOUR
        jobs = [("a", "x", 0), ("a", "x", 1), ("b", "x", 0), ("a", "y", 0), ("a", "x", first), ("b", "", first)]
        await self.put(store, *[row(n, task=task, tenant=tenant) for n, (task, tenant, _) in enumerate(jobs)])
        leased = {number(job): job for job in await self.take(store, len(jobs))}
        for n, (_, _, end) in enumerate(jobs):
            await store.finish([settle(leased[n], state)], T0 + end)
        late, weight = T0 + first + HOUR, await self._weight(store, state)
        epochs = [(job.id, job.epoch) for job in leased.values()]
        clause = SweepClause(target=SweepTarget(state.value), older_than=0, jobs=epochs if named else None)
        assert (await store.sweep(replace(clause, dry_run=True), late)).removed == len(jobs)
        assert await self._removals(store) == []
        assert (await store.sweep(clause, late)).removed == len(jobs)
        found = await self._removals(store)
        assert [(one.hour - hour, one.state, one.task, one.tenant, one.jobs) for one in found] == [
            (0, state.value, "a", "x", 2), (0, state.value, "a", "y", 1), (0, state.value, "b", "x", 1),
            (2, state.value, "a", "x", 1), (2, state.value, "b", "", 1),
        ]  # fmt: skip
        assert sum(one.bytes for one in found) == weight
        await store.sweep(clause, late)
        assert sum(one.jobs for one in await self._removals(store)) == len(jobs)

    @_needs("archive")
    async def test_counts_of_the_same_hour_add_up_and_the_oldest_are_forgotten(self, store: Backend) -> None:
        sizes = []
        for n in range(4):
            at = T0 + n // 2 * HOUR
            await self.put(store, row(n, task=f"t{n % 2}"), at=at)
            [job] = await self.take(store, 1, at=at)
            await store.finish([settle(job, JobState.FAILED)], at)
            await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=0), at)
            sizes.append(sum(one.jobs for one in await self._removals(store)))
        assert sizes == [1, 2, 3, 4]
        archive = self.archive(store)
        assert await archive.forget_removals(4) == 0
        assert await archive.forget_removals(2, 1) == 1
        assert await archive.forget_removals(2, 5) == 1
        assert [(one.hour - T0 // HOUR, one.task) for one in await self._removals(store)] == [(1, "t0"), (1, "t1")]
        assert await archive.forget_removals(0) == 2
        assert await self._removals(store) == []

    async def _removals(self, store: Backend) -> list[Removal]:
        """All counts, hour by hour."""
        found: list[Removal] = []
        after = -1
        while page := await self.archive(store).removals(after):
            assert {one.hour for one in page} == {page[0].hour}
            assert page[0].hour > after
            assert page == sorted(page)
            after = page[0].hour
            found += page
        return found
