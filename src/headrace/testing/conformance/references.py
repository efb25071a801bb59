"""references: jobs by the hour of the oldest object that their cells refer to."""

from __future__ import annotations

from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, Delete, Pause, Requeue, Selector
from headrace.seam.references import HOUR_AT, HOUR_SIZE, KIND, SIZE, ReferenceStore, Referrer, Swap
from headrace.testing.conformance.base import HOUR, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import SECTIONS, JobState

HOURS = 480_000
ALL = 1 << 20


def ref(hour: int, name: int = 0) -> bytes:
    """A reference to an object of this hour."""
    head = bytes((KIND,)).ljust(HOUR_AT, b"\xff") + hour.to_bytes(HOUR_SIZE)
    return head + name.to_bytes(SIZE - len(head))


class ReferenceTests(ConformanceBase):
    def references(self, store: Backend) -> ReferenceStore:
        """The capability, in tests that need it."""
        assert store.references is not None
        return store.references

    async def hours(self, store: Backend, before: int = ALL) -> dict[int, int]:
        """By number of the job: the hour of its oldest reference."""
        found = await self.references(store).find(before, at=T0)
        assert [(one.hour, one.id) for one in found] == sorted((one.hour, one.id) for one in found)
        return {int.from_bytes(one.id[2:8]): one.hour for one in found}

    @needs("references")
    async def test_jobs_are_found_by_their_oldest_reference(self, store: Backend) -> None:
        young, old = ref(HOURS + 1), ref(HOURS)
        await self.put(
            store,
            row(1, cells={"parameters": young}),
            row(2, cells={"parameters": b"{}", "vm_state": old, "blob": young}, delay=HOUR, key="k"),
            row(3, cells={"parameters": b"{}", "blob": old + b"x"}, headers=old),
            row(4, cells={"metadata": ref(HOURS - 1), "vm_state": young}, group="g", reply_to="me"),
            row(5, cells={"parameters": b"\x04" + old[1:]}),
        )
        assert await self.references(store).find(HOURS + 2, at=T0) == [
            Referrer(job_id(4), HOURS - 1, {"metadata": ref(HOURS - 1), "vm_state": young}),
            Referrer(job_id(2), HOURS, {"vm_state": old, "blob": young}),
            Referrer(job_id(1), HOURS + 1, {"parameters": young}),
        ]
        assert await self.hours(store, HOURS + 1) == {4: HOURS - 1, 2: HOURS}
        assert await self.hours(store, HOURS - 1) == {}

    @needs("references")
    async def test_pages_of_jobs(self, store: Backend) -> None:
        await self.put(store, *[row(n, cells={"parameters": ref(HOURS + n % 3)}) for n in range(20)])
        found: list[Referrer] = []
        after = None
        while page := await self.references(store).find(HOURS + 2, after, 4):
            found += page
            after = page[-1].hour, page[-1].id
        assert [one.id for one in found] == [job_id(n) for d in (0, 1) for n in range(20) if n % 3 == d]

    @needs("references")
    async def test_a_large_batch(self, store: Backend) -> None:
        cells = {"parameters": ref(HOURS), "blob": bytes(20_000)}
        await self.put(store, *[row(n, cells=cells) for n in range(100)])
        assert await self.hours(store) == dict.fromkeys(range(100), HOURS)

    @needs("references")
    async def test_they_are_found_in_every_state_until_they_are_gone(self, store: Backend) -> None:
        await self.put(store, *[row(n, cells={"parameters": ref(HOURS)}, priority=n) for n in range(1, 8)])
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        await store.alter(Selector(ids=[job_id(2)]), Cancel(), T0)
        _, four, five, six = [await self.take_one(store) for _ in range(4)]
        ended = [settle(four), settle(five, JobState.FAILED), settle(six, keep=False)]
        await store.finish(ended, T0)
        assert await self.hours(store) == dict.fromkeys((1, 2, 3, 4, 5, 7), HOURS)
        await store.alter(Selector(ids=[job_id(2), job_id(5)]), Requeue(), T0)
        await store.alter(Selector(ids=[job_id(n) for n in (1, 2, 4)]), Delete(), T0)
        assert await self.hours(store) == dict.fromkeys((3, 5, 7), HOURS)

    @needs("references")
    async def test_a_run_that_replaces_a_cell(self, store: Backend) -> None:
        await self.put(
            store, row(1), row(2, cells={"vm_state": ref(HOURS + 5)}), row(3, cells={"vm_state": ref(HOURS)})
        )
        jobs = await self.take(store)
        patches = ({"blob": ref(HOURS)}, {"vm_state": ref(HOURS + 3), "metadata": b"m"}, {"vm_state": b"inline"})
        released = [
            settle(job, JobState.AVAILABLE, cells=dict(patch)) for job, patch in zip(jobs, patches, strict=True)
        ]
        await store.finish(released, T0)
        found = {one.id: one for one in await self.references(store).find(ALL, at=T0)}
        assert (found[job_id(1)].hour, found[job_id(1)].cells) == (HOURS, {"blob": ref(HOURS)})
        assert found[job_id(2)].hour <= HOURS + 3
        assert found[job_id(2)].cells == {"vm_state": ref(HOURS + 3)}
        if job_id(3) in found:
            assert found[job_id(3)].cells == {}
        swaps = [Swap(job_id(2), {"vm_state": ref(HOURS + 3)}, {}), Swap(job_id(3), {}, {})]
        assert await self.references(store).swap(swaps, T0) == [True, True]
        assert await self.hours(store) == {1: HOURS, 2: HOURS + 3}

    @needs("references")
    async def test_a_spawned_job(self, store: Backend) -> None:
        await self.put(store, row(1))
        spawn = [row(2, cells={"blob": ref(HOURS)})]
        await store.finish([settle(await self.take_one(store), spawn=spawn)], T0)
        assert await self.hours(store) == {2: HOURS}

    @needs("references")
    async def test_a_swap(self, store: Backend) -> None:
        one, two, copy = ref(HOURS, 1), ref(HOURS, 2), ref(HOURS + 9)
        cells = {"parameters": one, "vm_state": b"s", "metadata": two}
        await self.put(store, row(1, cells=cells, priority=-1), row(2, cells=cells, delay=HOUR))
        leased = await self.take_one(store)
        assert await self.references(store).swap(
            [
                Swap(job_id(1), {"parameters": one, "metadata": two}, {"parameters": copy}),
                Swap(
                    job_id(2),
                    {"parameters": one, "metadata": two},
                    {"parameters": copy, "metadata": ref(HOURS + 3)},
                ),
                Swap(job_id(3), {"parameters": one}, {"parameters": copy}),
            ],
            T0,
        ) == [True, True, False]
        assert await self.hours(store) == {1: HOURS, 2: HOURS + 3}
        assert (await self.get(store, 1, *cells)).cells == cells | {"parameters": copy}
        assert (await self.get(store, 2, *cells)).cells == cells | {"parameters": copy, "metadata": ref(HOURS + 3)}
        assert await store.finish([settle(leased, JobState.AVAILABLE)], T0) == [JobState.AVAILABLE]
        again = await self.take_one(store)
        assert again.cells == cells | {"parameters": copy}

    @needs("references")
    async def test_a_swap_of_what_has_changed(self, store: Backend) -> None:
        old, new, copy = ref(HOURS), ref(HOURS + 2), ref(HOURS + 9)
        await self.put(store, row(1, cells={"vm_state": old, "blob": old}))
        await store.finish([settle(await self.take_one(store), JobState.AVAILABLE, cells={"vm_state": new})], T0)
        stale = Swap(job_id(1), {"vm_state": old, "blob": old}, {"vm_state": copy, "blob": copy})
        cleared = Swap(job_id(1), {"metadata": old}, {"metadata": copy})
        assert await self.references(store).swap([stale, cleared], T0) == [False, False]
        assert (await self.get(store, 1, "vm_state", "blob", "metadata")).cells == {"vm_state": new, "blob": old}
        fresh = Swap(job_id(1), {"vm_state": new, "blob": old}, {"blob": copy})
        assert await self.references(store).swap([fresh], T0) == [True]
        assert await self.hours(store) == {1: HOURS + 2}
        assert (await self.take_one(store)).cells == {"vm_state": new, "blob": copy}

    @needs("references")
    async def test_a_swap_of_a_dead_letter(self, store: Backend) -> None:
        old, copy = ref(HOURS), ref(HOURS + 9)
        await self.put(store, row(1, cells={"parameters": old}))
        await store.finish([settle(await self.take_one(store), JobState.FAILED)], T0)
        assert await self.references(store).swap([Swap(job_id(1), {"parameters": old}, {"parameters": copy})], T0) == [
            True
        ]
        assert await self.hours(store, HOURS + 9) == {}
        await store.alter(Selector(ids=[job_id(1)]), Requeue(), T0)
        assert (await self.take_one(store)).cells == {"parameters": copy}

    @needs("references")
    async def test_a_swap_of_cells_that_are_no_references(self, store: Backend) -> None:
        large, larger = b"l" * 20_000, b"L" * 30_000
        await self.put(store, row(1, cells={"parameters": b"p", "vm_state": large, "blob": b""}, headers=b"h", key="k"))
        leased = await self.take_one(store)
        changed: dict[str, bytes | None] = {"metadata": large, "blob": None}
        await store.finish([settle(leased, JobState.AVAILABLE, cells=changed)], T0)
        seen = {"parameters": b"p", "vm_state": large, "metadata": large}
        new = {"parameters": b"longer than before", "vm_state": b"", "metadata": larger}
        assert await self.references(store).swap([Swap(job_id(1), seen, new)], T0) == [True]
        found = await self.get(store, 1, *SECTIONS)
        assert (found.cells, found.headers, found.key) == (new, b"h", "k")
        assert await self.references(store).swap([Swap(job_id(1), {"blob": b""}, {"blob": b"b"})], T0) == [False]
        again = await self.take_one(store)
        assert (again.cells, again.headers) == (new, b"h")
        back = {"parameters": b"p", "metadata": b"m"}
        assert await self.references(store).swap([Swap(job_id(1), new, back)], T0) == [True]

    @needs("references")
    async def test_a_swap_changes_what_a_live_job_weighs(self, store: Backend) -> None:
        large = b"l" * 20_000
        await self.put(store, *[row(n, cells={"blob": ref(HOURS, n)}, key=f"{n}") for n in range(1, 6)])
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        second = await self.take_one(store)
        third = await self.take_one(store)
        await store.finish([settle(third, JobState.AVAILABLE)], T0)
        before = await store.stats(T0)
        swaps = [Swap(job_id(n), {"blob": ref(HOURS, n)}, {"blob": large}) for n in (1, 2, 3, 4)]
        assert await self.references(store).swap(swaps, T0) == [True] * 4
        jobs = [second, *await self.take(store)]
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        await store.finish([settle(job) for job in jobs], T0)
        assert {job.id: len(job.cells["blob"]) for job in jobs[1:]} == {
            job_id(3): 20_000, job_id(4): 20_000, job_id(5): SIZE,
        }  # fmt: skip
        bytes_before = {one.target: one.bytes for one in before.kept}
        grown = {one.target: one.bytes - bytes_before[one.target] for one in (await store.stats(T0)).kept}
        assert grown["cancelled"] > 20_000
        assert 60_000 < grown["completed"] < 65_000
        page = await store.scan(Selector(), None, 10, T0)
        await store.alter(Selector(ids=[record.id for record in page.records]), Delete(), T0)
        after = {one.target: one.bytes for one in (await store.stats(T0)).kept}
        assert (after["completed"], after["cancelled"]) == (0, 0)

    @needs("references")
    async def test_a_swap_under_a_lease(self, store: Backend) -> None:
        large, new = b"l" * 20_000, {"parameters": b"p", "vm_state": b"v", "metadata": b"m"}
        await self.put(store, row(1, cells=new | {"metadata": large}))
        again = await self.take_one(store)
        back = {"parameters": b"q", "metadata": b"m"}
        assert await self.references(store).swap([Swap(job_id(1), new | {"metadata": large}, back)], T0) == [True]
        await store.finish([settle(again, JobState.FAILED)], T0)
        await store.alter(Selector(ids=[job_id(1)]), Requeue(), T0)
        assert (await self.take_one(store)).cells == new | back

    @needs("references")
    async def test_a_swap_of_a_result(self, store: Backend) -> None:
        large = b"r" * 20_000
        await self.put(store, row(1), row(2))
        first, second = await self.take(store)
        await store.finish([settle(first, result=large, result_ttl=HOUR), settle(second, result_ttl=HOUR)], T0)
        seen, new = {"parameters": first.cells["parameters"], "result": large}, {"result": b"s", "parameters": b"q"}
        stale = Swap(job_id(1), seen | {"result": b"other"}, new)
        none = Swap(job_id(2), {"result": b""}, {"result": b"s"})
        assert await self.references(store).swap([stale, none, Swap(job_id(1), seen, new)], T0) == [False, False, True]
        record = await self.get(store, 1, "parameters", "result")
        assert (record.result, record.cells, record.held) == (b"s", {"parameters": b"q"}, True)
        assert (await self.get(store, 2, "result")).result is None
        assert await self.references(store).swap([Swap(job_id(1), {"result": b"s"}, {"result": large})], T0) == [True]
        assert (await self.get(store, 1, "result")).result == large
        await store.alter(Selector(ids=[job_id(1)]), Delete(), T0)
        assert await self.references(store).swap([Swap(job_id(1), {"result": large}, {"result": b"s"})], T0) == [False]
