"""insert: new rows, idempotence by id, dedup by key, fidelity."""

from __future__ import annotations

import asyncio

import pytest

from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, InsertStatus, Record, Row, Selector
from headrace.testing.conformance.base import HOSTILE, HOUR, OPTIONS, SECOND, T0, ConformanceBase, job_id, row, settle
from headrace.types import JobState

NEW, SAME, DUPLICATE, DONE = InsertStatus.NEW, InsertStatus.SAME, InsertStatus.DUPLICATE, InsertStatus.DONE


class InsertTests(ConformanceBase):
    async def test_nothing_goes_in_and_nothing_comes_out(self, store: Backend) -> None:
        assert await store.insert([], T0) == []

    async def test_a_new_row_is_available_and_keeps_every_field(self, store: Backend) -> None:
        full = Row(
            id=job_id(1),
            queue="mail",
            task="send",
            cells={"parameters": b"{}", "vm_state": b"\x00\xff", "metadata": b"m", "blob": b""},
            tenant="acme",
            key="k",
            priority=-3,
            delay=5 * SECOND,
            expires=HOUR,
            headers=b"\x81\xa1a\xa1b",
            **OPTIONS,
        )
        await self.put(store, full)
        record = await self.get(store, 1, "parameters", "vm_state", "metadata", "blob")
        assert record == Record(
            id=full.id,
            queue="mail",
            task="send",
            state=JobState.AVAILABLE,
            tenant="acme",
            key="k",
            priority=-3,
            run_at=T0 + 5 * SECOND,
            enqueued_at=T0,
            expires_at=T0 + HOUR,
            headers=b"\x81\xa1a\xa1b",
            cells=full.cells,
            **OPTIONS,
        )

    async def test_run_at_overrides_delay_and_may_be_past(self, store: Backend) -> None:
        await self.put(store, row(1, run_at=T0 - HOUR, delay=HOUR))
        assert (await self.get(store, 1)).run_at == T0 - HOUR
        assert len(await self.take(store)) == 1

    async def test_answers_come_in_the_order_of_the_rows(self, store: Backend) -> None:
        await self.put(store, row(2))
        answers = await store.insert([row(3), row(2), row(1)], T0)
        assert [(a.status, a.id) for a in answers] == [(NEW, job_id(3)), (SAME, job_id(2)), (NEW, job_id(1))]

    @pytest.mark.parametrize("cell", [None, b"", b"\x00", b"\x00" * 3, bytes(range(256)), b"x" * 1_000_000])
    async def test_a_cell_comes_back_byte_for_byte_and_empty_is_not_absent(
        self, store: Backend, cell: bytes | None
    ) -> None:
        await self.put(store, row(1, cells={} if cell is None else {"blob": cell}))
        job = await self.take_one(store)
        assert job.cells == ({} if cell is None else {"blob": cell})

    @pytest.mark.parametrize("name", HOSTILE)
    async def test_names_are_data(self, store: Backend, name: str) -> None:
        mine = row(1, queue=name, key=name, task=name, tenant=name)
        other = row(2, queue=name[:-1] + "y", key=name)
        await self.put(store, mine, other)
        [again] = await store.insert([row(3, queue=name, key=name)], T0)
        assert (again.status, again.id) == (DUPLICATE, job_id(1))
        job = await self.take_one(store, queue=name)
        assert (job.id, job.queue, job.key, job.task, job.tenant) == (job_id(1), name, name, name, name)
        assert await store.finish([settle(job)], T0) == [JobState.COMPLETED]
        page = await store.scan(Selector(queue=name), at=T0)
        assert [r.id for r in page.records] == [job_id(1)]

    async def test_repeating_an_insert_changes_nothing(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", cells={"blob": b"first"}))
        [again] = await store.insert([row(1, key="k", cells={"blob": b"second"}, priority=9)], T0)
        assert (again.status, again.id, again.state) == (SAME, job_id(1), JobState.AVAILABLE)
        record = await self.get(store, 1, "blob")
        assert (record.cells, record.priority) == ({"blob": b"first"}, 0)
        assert len(await self.take(store)) == 1

    @pytest.mark.parametrize("end", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED])
    async def test_an_insert_repeated_after_the_job_ended_does_not_run_it_again(
        self, store: Backend, end: JobState
    ) -> None:
        await self.put(store, row(1))
        await store.finish([settle(await self.take_one(store), end)], T0)
        [again] = await store.insert([row(1)], T0 + 1)
        assert (again.status, again.state) == (SAME, end)
        assert await self.take(store, at=T0 + 1) == []

    async def test_one_id_twice_in_a_batch_is_one_job(self, store: Backend) -> None:
        answers = await store.insert([row(1), row(1)], T0)
        assert [a.status for a in answers] == [NEW, SAME]
        assert len(await self.take(store)) == 1

    async def test_a_key_is_taken_while_its_job_lives(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        for number, state in ((2, JobState.AVAILABLE), (3, JobState.RUNNING)):
            [answer] = await store.insert([row(number, key="k")], T0)
            assert (answer.status, answer.id, answer.state) == (DUPLICATE, job_id(1), state)
            if state is JobState.AVAILABLE:
                await self.take_one(store)
        assert await store.fetch([job_id(2), job_id(3)], at=T0) == [None, None]

    async def test_a_duplicate_tells_the_attempts_so_far(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        await store.finish([settle(job, JobState.AVAILABLE, failed_attempt=True)], T0)
        [answer] = await store.insert([row(2, key="k")], T0)
        assert (answer.status, answer.attempt) == (DUPLICATE, 1)

    async def test_keys_belong_to_their_queue(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2, key="k", queue="other"), row(3), row(4))

    async def test_an_empty_key_is_a_key(self, store: Backend) -> None:
        await self.put(store, row(1, key=""))
        [answer] = await store.insert([row(2, key="")], T0)
        assert answer.status is DUPLICATE

    async def test_one_key_twice_in_a_batch_is_won_by_the_first(self, store: Backend) -> None:
        answers = await store.insert([row(1, key="k"), row(2, key="k"), row(3)], T0)
        assert [(a.status, a.id) for a in answers] == [(NEW, job_id(1)), (DUPLICATE, job_id(1)), (NEW, job_id(3))]

    @pytest.mark.parametrize("result", [b"", b"null", b"\x00\xff", b"r" * 100_000])
    async def test_a_completed_key_answers_with_its_result_until_the_ttl_ends(
        self, store: Backend, result: bytes
    ) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), result=result, result_ttl=HOUR)], T0)
        [held] = await store.insert([row(2, key="k")], T0 + HOUR - 1)
        assert (held.status, held.id, held.state, held.result) == (DONE, job_id(1), JobState.COMPLETED, result)
        [free] = await store.insert([row(3, key="k")], T0 + HOUR)
        assert (free.status, free.id) == (NEW, job_id(3))

    async def test_a_key_completed_without_ttl_is_free_at_once(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), result=b"r", result_ttl=0)], T0)
        await self.put(store, row(2, key="k"))

    @pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.FAILED])
    async def test_cancelled_and_failed_free_the_key_at_once(self, store: Backend, end: JobState) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), end)], T0)
        await self.put(store, row(2, key="k"))

    async def test_hold_failed_answers_with_the_failed_job(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), JobState.FAILED)], T0)
        [answer] = await store.insert([row(2, key="k", hold_failed=True)], T0)
        assert (answer.status, answer.id, answer.state) == (DUPLICATE, job_id(1), JobState.FAILED)
        await self.put(store, row(3, key="k"))

    async def test_a_cancelled_key_enqueued_again_runs_once_with_the_new_payload(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", cells={"blob": b"old"}))
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        await self.put(store, row(2, key="k", cells={"blob": b"new"}))
        assert [(j.id, j.cells) for j in await self.take(store)] == [(job_id(2), {"blob": b"new"})]

    async def test_of_many_concurrent_inserts_of_one_key_exactly_one_is_new(self, store: Backend) -> None:
        siblings = [store.sibling() for _ in range(3)]
        for sibling in siblings:
            await sibling.open()
        try:
            stores = [store, *siblings]
            calls = [stores[n % 4].insert([row(n, key=f"k{n % 10}")], T0) for n in range(80)]
            answers = [a for [a] in await asyncio.gather(*calls)]
        finally:
            for sibling in siblings:
                await sibling.close()
        assert sum(a.status is NEW for a in answers) == 10
        assert len(await self.take(store)) == 10

    async def test_rows_of_hundreds_of_queues_groups_and_keys_are_answered_in_order(self, store: Backend) -> None:
        """However a store cuts such a batch."""
        rows = [row(n, queue=f"q{n}", group=f"g{n}", key=f"k{n % 300}") for n in range(300)]
        again = [row(1_000 + n, queue=f"q{n}", key=f"k{n}") for n in range(300)]
        assert [a.status for a in await store.insert(rows, T0)] == [NEW] * 300
        answers = await store.insert([*again, *rows], T0)
        assert [a.status for a in answers] == [DUPLICATE] * 300 + [SAME] * 300
        assert [a.id for a in answers] == [one.id for one in rows] * 2

    async def test_a_thousand_rows_in_one_call(self, store: Backend) -> None:
        rows = [row(n, key=f"k{n}" if n % 2 else None) for n in range(1_000)]
        await self.put(store, *rows)
        jobs = await self.take(store, 1_000)
        assert [j.id for j in jobs] == [r.id for r in rows]
