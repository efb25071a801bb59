"""fetch, scan and stats: what outsiders see."""

from __future__ import annotations

from headrace.seam.policy import Policy, QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, JobId, JobKey, Pause, Selector, Stats, SweepTarget
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import JobState


class ReadTests(ConformanceBase):
    async def test_fetch_answers_in_order_with_none_for_the_unknown(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, key="k"))
        names: list[JobId | JobKey] = [job_id(2), job_id(9), JobKey("q", "k"), JobKey("r", "k"), job_id(1)]
        found = await store.fetch(names, at=T0)
        assert [r and r.id for r in found] == [job_id(2), None, job_id(2), None, job_id(1)]
        assert await store.fetch([], at=T0) == []

    async def test_a_key_leads_to_the_job_that_took_it_last(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), JobState.FAILED)], T0)
        [failed] = await store.fetch([JobKey("q", "k")], at=T0)
        assert failed is not None
        assert (failed.id, failed.state) == (job_id(1), JobState.FAILED)
        await self.put(store, row(2, key="k"))
        [live] = await store.fetch([JobKey("q", "k")], at=T0)
        assert live is not None
        assert live.id == job_id(2)

    async def test_nothing_heavy_comes_unasked(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": b"b", "vm_state": b"v"}))
        job = await self.take_one(store)
        await store.finish([settle(job, result=b"r", result_ttl=HOUR, error=b"e")], T0)
        bare = await self.get(store, 1)
        assert (bare.cells, bare.result, bare.error) == ({}, None, None)
        some = await self.get(store, 1, "blob", "error")
        assert (some.cells, some.result, some.error) == ({"blob": b"b"}, None, b"e")

    async def test_a_record_says_since_when_its_job_runs(self, store: Backend) -> None:
        await self.put(store, row(1))
        assert (await self.get(store, 1)).started_at is None
        job = await self.take_one(store, at=T0 + SECOND)
        beat = Beat("w1", "one", ("q",), LEASE, [(job.id, job.epoch)])
        await store.renew(beat, T0 + 2 * SECOND)
        running = await self.get(store, 1, at=T0 + 2 * SECOND)
        assert (running.started_at, running.worker) == (T0 + SECOND, "one")
        await store.finish([settle(job, JobState.AVAILABLE)], T0 + 3 * SECOND)
        assert (await self.get(store, 1)).started_at is None
        await self.take_one(store, at=T0 + 4 * SECOND)
        assert (await self.get(store, 1)).started_at == T0 + 4 * SECOND

    async def test_a_record_counts_changes_of_state(self, store: Backend) -> None:
        await self.put(store, row(1))

        async def known(number: int) -> tuple[int, int]:
            record = await self.get(store, number, at=T0 + HOUR)
            return record.transitions, record.last_transition

        assert await known(1) == (0, T0)
        for failed in range(3):
            start = T0 + 10 * failed
            [job] = await self.take(store, 1, at=start)
            assert await known(1) == (2 * failed + 1, start)
            await store.finish([settle(job, JobState.AVAILABLE, failed_attempt=True)], start + 1)
            assert await known(1) == (2 * failed + 2, start)
        await self.put(store, row(2), row(3))
        first, second, third = await self.take(store, 3, at=T0 + 100)
        assert {first.id, second.id, third.id} == {job_id(1), job_id(2), job_id(3)}
        ends = {job_id(1): JobState.COMPLETED, job_id(2): JobState.FAILED, job_id(3): JobState.CANCELLED}
        await store.finish([settle(job, ends[job.id]) for job in (first, second, third)], T0 + 200)
        assert [await known(number) for number in (1, 2, 3)] == [(8, T0 + 200), (2, T0 + 200), (1, T0 + 200)]

    async def test_scan_walks_all_jobs_newest_first_in_pages(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(25)))
        seen, after = [], None
        for _ in range(100):
            page = await store.scan(Selector(), after, 10, T0)
            assert len(page.records) <= 10
            seen += [r.id for r in page.records]
            after = page.after
            if after is None:
                break
        assert seen == [job_id(n) for n in reversed(range(25))]

    async def test_scan_filters(self, store: Backend) -> None:
        await self.put(
            store, row(1, queue="a", tenant="x"), row(2, queue="a", task="u"), row(3, queue="b", tenant="x", key="k")
        )
        await self.put(store, row(4, queue="b"), at=T0 + HOUR)
        await self.take_one(store, queue="a")

        async def scan(**narrow: object) -> list[int]:
            found, after = [], None
            while True:
                page = await store.scan(Selector(**narrow), after, 2, T0 + HOUR)  # type: ignore[arg-type]
                found += [r.id for r in page.records]
                if (after := page.after) is None:
                    return [next(n for n in range(1, 5) if job_id(n) == i) for i in found]

        assert await scan(queue="a") == [2, 1]
        assert await scan(tenant="x") == [3, 1]
        assert await scan(task="u") == [2]
        assert await scan(states=frozenset({JobState.RUNNING})) == [1]
        assert await scan(states=frozenset({JobState.RUNNING, JobState.AVAILABLE})) == [4, 3, 2, 1]
        assert await scan(older_than=HOUR) == [3, 2, 1]
        assert await scan(queue="b", tenant="x", states=frozenset({JobState.AVAILABLE})) == [3]
        assert await scan(keys=[JobKey("b", "k")]) == [3]
        assert await scan(ids=[job_id(1), job_id(4), job_id(9)]) == [4, 1]
        assert await scan(queue="none") == []

    async def test_scan_finds_jobs_in_every_state(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(6)))
        ends = [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED]
        jobs = await self.take(store, 4)
        await store.finish([settle(job, end) for job, end in zip(jobs, ends, strict=False)], T0)
        await store.alter(Selector(ids=[job_id(5)]), Pause(), T0)
        page = await store.scan(Selector(), at=T0)
        assert {r.state for r in page.records} == set(JobState)
        for state in JobState:
            narrowed = await store.scan(Selector(states=frozenset({state})), at=T0)
            assert [r.state for r in narrowed.records] == [state]

    async def test_stats_are_exact_at_rest(self, store: Backend) -> None:
        assert (await store.stats(T0)).queues == []
        await self.put(store, *(row(n) for n in range(10)), row(20, queue="b"), row(21, queue="b", delay=HOUR))
        jobs = await self.take(store, 6, at=T0 + SECOND)
        outcomes = (
            JobState.COMPLETED, JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.PAUSED
        )  # fmt: skip
        batch = [settle(job, state) for job, state in zip(jobs, outcomes, strict=False)]
        await store.finish([*batch, settle(jobs[0], JobState.FAILED)], T0 + SECOND)
        stats = await store.stats(T0 + 2 * SECOND)
        q, b = ({s.queue: s for s in stats.queues}[name] for name in ("q", "b"))
        assert (q.available, q.scheduled, q.running, q.jobs_paused) == (4, 0, 1, 1)
        assert (q.completed, q.cancelled, q.failed, q.paused) == (2, 1, 1, False)
        assert q.oldest_due_age == 2 * SECOND
        assert (b.available, b.scheduled, b.oldest_due_age) == (2, 1, 2 * SECOND)
        places = {p.target: p for p in stats.kept if p.target not in (SweepTarget.KEYS, SweepTarget.TICKS)}
        assert {name: place.count for name, place in places.items()} == {"completed": 2, "cancelled": 1, "failed": 1}
        assert all(place.bytes > 0 for place in places.values())

    async def test_stats_tell_when_the_next_job_is_due(self, store: Backend) -> None:
        await self._due_now_and_in_one_and_two_hours(store)
        await self._next_due_in(store, T0 + SECOND, HOUR - SECOND)
        await self._next_due_in(store, T0 + HOUR, HOUR)
        await self.take(store, 2, at=T0 + HOUR)
        await self._next_due_in(store, T0 + HOUR, HOUR)
        await self._next_due_in(store, T0 + 2 * HOUR, None)

    @needs("policies")
    async def test_so_they_do_where_tenants_take_turns(self, store: Backend) -> None:
        assert store.policies is not None
        assert await store.policies.save(Policy(queue="q", tenant_batch=5), T0)
        await self._due_now_and_in_one_and_two_hours(store)
        await self._next_due_in(store, T0 + SECOND, HOUR - SECOND)
        await self.take(store, 1, at=T0 + SECOND)
        await self._next_due_in(store, T0 + HOUR, HOUR)
        await self._next_due_in(store, T0 + 2 * HOUR, None)

    async def _due_now_and_in_one_and_two_hours(self, store: Backend) -> None:
        later = [row(n, tenant=f"t{n}", delay=delay) for n, delay in ((2, 2 * HOUR), (3, HOUR), (4, 3 * HOUR))]
        await self.put(store, row(1, tenant="t1"), *later, row(5, queue="b"))
        await store.alter(Selector(ids=[job_id(4)]), Pause(), T0)

    async def _next_due_in(self, store: Backend, at: int, expected: int | None) -> None:
        told = {queue.queue: queue.next_due_in for queue in (await store.stats(at)).queues}
        assert told == {"q": expected, "b": None}
        [one] = (await store.stats(at, queues=["q"])).queues
        assert one.next_due_in == expected

    async def test_what_is_due_is_not_hidden_by_very_many_delayed_jobs(self, store: Backend) -> None:
        await self._delayed_beyond_the_cap(store)
        [queue] = (await store.stats(T0 + SECOND)).queues
        assert (queue.due, queue.scheduled) == (3, store.limits.count_cap + 50)
        [queue] = (await store.stats(T0 + SECOND, queues=["q"])).queues
        assert queue.due == 3
        [job] = await self.take(store, 1, at=T0 + SECOND)
        await store.finish([settle(job, JobState.COMPLETED)], T0 + SECOND)
        [queue] = (await store.stats(T0 + 2 * HOUR)).queues
        assert queue.due == store.limits.count_cap + 52

    @needs("policies")
    async def test_what_is_due_is_not_hidden_where_tenants_take_turns(self, store: Backend) -> None:
        assert store.policies is not None
        assert await store.policies.save(Policy(queue="q", tenant_batch=5), T0)
        await self._delayed_beyond_the_cap(store)
        [queue] = (await store.stats(T0 + SECOND)).queues
        assert (queue.due, queue.scheduled) == (3, store.limits.count_cap + 50)

    async def _delayed_beyond_the_cap(self, store: Backend) -> None:
        """Three jobs are due, and more than a store counts are not."""
        await self.put(store, *(row(n, tenant=f"t{n}") for n in range(3)))
        later = [row(n, tenant=f"t{n % 7}", delay=HOUR) for n in range(10, store.limits.count_cap + 60)]
        for start in range(0, len(later), store.limits.max_batch):
            await self.put(store, *later[start : start + store.limits.max_batch])

    @needs("policies")
    async def test_stats_of_some_queues_tell_of_these_and_their_workers_only(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, delay=HOUR), row(3, queue="b"), row(4, queue="c"))
        await self.take(store, queues=("c",))
        await self.policies(store).pause(QueuePause("paused"), T0)
        for name, queues in (("one", ("q", "b")), ("two", ("b", "c")), ("three", ("c",))):
            await store.renew(Beat(name, name, queues, LEASE), T0)
        everything = await store.stats(T0)
        for names in (["b"], ["c", "q", "none"], ["paused"]):
            found = await store.stats(T0, queues=names)
            assert found.queues == [queue for queue in everything.queues if queue.queue in names]
            assert [worker.worker for worker in found.workers] == [
                worker.worker for worker in everything.workers if set(worker.queues) & set(names)
            ]
            assert found.kept == []

    async def test_stats_of_no_queues_tell_of_all_workers_and_of_nothing_else(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, queue="b"))
        for name, queues in (("one", ("q",)), ("two", ("b", "c")), ("three", ())):
            await store.renew(Beat(name, name, queues, LEASE), T0)
        everything = await store.stats(T0)
        assert len(everything.workers) == 3
        assert await store.stats(T0, queues=()) == Stats([], everything.workers, [])

    async def test_stats_of_a_drained_queue_go_back_to_nothing(self, store: Backend) -> None:
        await self.put(store, row(1))
        await store.finish([settle(await self.take_one(store), keep=False)], T0)
        stats = await store.stats(T0)
        assert stats.queues == []
        assert {(p.count, p.bytes) for p in stats.kept} == {(0, 0)}
