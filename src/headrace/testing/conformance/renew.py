"""renew: leases extended, losses reported, the worker list, the control channel."""

from __future__ import annotations

from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import PROGRESS, Beat, Cancel, Reap, Selector
from headrace.testing.conformance.base import LEASE, MINUTE, SECOND, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import JobState


def beat(*leases: tuple[bytes, int], holder: str = "w1", **changes: object) -> Beat:
    return Beat(holder, f"host-{holder}", ("q", "r"), LEASE, leases, **changes)  # type: ignore[arg-type]


class RenewTests(ConformanceBase):
    async def test_a_renewed_lease_runs_from_now(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        renewed = await store.renew(beat((one.id, one.epoch)), T0 + 20 * SECOND)
        assert list(renewed.lost) == []
        reaped = await store.reap(Reap(), T0 + LEASE)
        assert [r.id for r in reaped] == [two.id]
        assert (await self.get(store, 1)).lease_until == T0 + 20 * SECOND + LEASE

    async def test_a_job_much_longer_than_its_lease_runs_once(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        for step in range(1, 101):
            now = T0 + step * LEASE // 2
            assert list((await store.renew(beat((job.id, job.epoch)), now)).lost) == []
            assert await store.reap(Reap(), now) == []
        assert await store.finish([settle(job)], T0 + 50 * LEASE) == [JobState.COMPLETED]

    async def test_leases_of_others_are_lost_and_left_alone(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3))
        one, two = await self.take(store, 2)
        other = await self.take_one(store, holder="w2")
        await store.finish([settle(one)], T0)
        asked = [(one.id, one.epoch), (two.id, two.epoch + 1), (other.id, other.epoch), (job_id(9), 1)]
        renewed = await store.renew(beat(*asked), T0 + 10 * SECOND)
        assert list(renewed.lost) == asked
        assert (await self.get(store, 2)).lease_until == T0 + LEASE
        assert (await self.get(store, 3)).lease_until == T0 + LEASE

    async def test_an_older_lease_on_the_same_job_is_told_apart(self, store: Backend) -> None:
        await self.put(store, row(1))
        old = await self.take_one(store)
        await store.finish([settle(old, JobState.AVAILABLE)], T0)
        new = await self.take_one(store)
        renewed = await store.renew(beat((old.id, old.epoch), (new.id, new.epoch)), T0 + SECOND)
        assert list(renewed.lost) == [(old.id, old.epoch)]
        assert (await self.get(store, 1)).lease_until == T0 + SECOND + LEASE

    async def test_progress_is_kept_with_the_lease(self, store: Backend) -> None:
        """It is replaced by what comes later, and goes with the lease."""
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        leases = (one.id, one.epoch), (two.id, two.epoch)
        await store.renew(beat(*leases, progress={one.id: b"\x00a", two.id: b"b"}), T0)
        await store.renew(beat(*leases, progress={two.id: b"c" * PROGRESS}), T0)
        await store.renew(beat(*leases), T0 + SECOND)
        records = [await self.get(store, n) for n in (1, 2)]
        assert [record.progress for record in records] == [b"\x00a", b"c" * PROGRESS]
        page = await store.scan(Selector(states=frozenset({JobState.RUNNING})), at=T0 + SECOND)
        assert [record.progress for record in page.records] == [b"c" * PROGRESS, b"\x00a"]
        await store.finish([settle(one), settle(two, JobState.AVAILABLE)], T0 + SECOND)
        assert [(await self.get(store, n)).progress for n in (1, 2)] == [None, None]
        again = await self.take_one(store, at=T0 + SECOND)
        assert (again.id, (await self.get(store, 2)).progress) == (two.id, None)

    async def test_progress_of_a_lost_lease_is_not_kept(self, store: Backend) -> None:
        await self.put(store, row(1))
        old = await self.take_one(store)
        await store.renew(beat((old.id, old.epoch), progress={old.id: b"old"}), T0)
        await store.reap(Reap(), T0 + LEASE)
        assert (await self.get(store, 1)).progress is None
        new = await self.take_one(store, holder="w2", at=T0 + LEASE)
        await store.renew(beat((old.id, old.epoch), progress={old.id: b"late"}), T0 + LEASE)
        await store.renew(beat((new.id, new.epoch), progress={new.id: b"other"}), T0 + LEASE)
        assert (await self.get(store, 1)).progress is None
        mine = beat((old.id, old.epoch), (new.id, new.epoch), holder="w2", progress={new.id: b"new"})
        assert list((await store.renew(mine, T0 + LEASE)).lost) == [(old.id, old.epoch)]
        assert (await self.get(store, 1)).progress == b"new"

    async def test_progress_of_a_job_that_is_cancelled_while_it_runs(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.renew(beat((job.id, job.epoch), progress={job.id: b"half"}), T0)
        await store.alter(Selector(ids=[job.id]), Cancel(), T0)
        assert (await self.get(store, 1)).progress == b"half"
        await store.reap(Reap(), T0 + LEASE)
        record = await self.get(store, 1)
        assert (record.state, record.progress) == (JobState.CANCELLED, None)

    async def test_an_expired_lease_that_nobody_reaped_is_renewed(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert list((await store.renew(beat((job.id, job.epoch)), T0 + 9 * LEASE)).lost) == []
        assert await store.reap(Reap(), T0 + 9 * LEASE) == []

    async def test_cancel_requests_come_with_every_beat_until_the_lease_ends(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3))
        one, _ = await self.take(store, 2)
        await self.take_one(store, holder="w2")
        await store.alter(Selector(ids=[job_id(1), job_id(3)]), Cancel(), T0)
        assert list((await store.renew(beat(), T0)).cancels) == [job_id(1)]
        assert list((await store.renew(beat(), T0)).cancels) == [job_id(1)]
        assert list((await store.renew(beat(holder="w2"), T0)).cancels) == [job_id(3)]
        await store.finish([settle(one, JobState.CANCELLED)], T0)
        assert list((await store.renew(beat(), T0)).cancels) == []

    async def test_a_cancel_request_does_not_outlive_its_lease(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store)
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        [reaped] = await store.reap(Reap(), T0 + LEASE)
        assert (reaped.state, reaped.reason) == (JobState.CANCELLED, "cancelled")
        assert list((await store.renew(beat(), T0 + LEASE)).cancels) == []

    @needs("policies")
    async def test_paused_queues_of_the_beat_are_told(self, store: Backend) -> None:
        for queue in ("r", "s"):
            await self.policies(store).pause(QueuePause(queue), T0)
        assert list((await store.renew(beat(), T0)).paused) == ["r"]

    async def test_a_worker_is_listed_while_it_beats(self, store: Backend) -> None:
        await store.renew(beat(ttl=MINUTE, slots=8, busy=3), T0)
        await store.renew(beat(ttl=MINUTE, slots=8, busy=5), T0 + SECOND)
        [worker] = (await store.stats(T0 + SECOND)).workers
        assert (worker.worker, worker.queues, worker.slots, worker.busy) == ("host-w1", ("q", "r"), 8, 5)
        assert (worker.started_at, worker.seen_at) == (T0, T0 + SECOND)
        assert (await store.stats(T0 + SECOND + MINUTE)).workers == []

    async def test_a_worker_that_leaves_is_off_the_list(self, store: Backend) -> None:
        await store.renew(beat(), T0)
        await store.renew(beat(leaving=True), T0)
        assert (await store.stats(T0)).workers == []

    async def test_a_census_tells_all_leases_of_the_holder(self, store: Backend) -> None:
        """In this way a holder finds the jobs of a claim whose answer was lost."""
        await self.put(store, *(row(n) for n in range(5)), row(5, queue="r"))
        one, two, three = await self.take(store, 3)
        [other] = await self.take(store, 1, holder="w2")
        stray = await self.take_one(store, queue="r", at=T0 + SECOND)
        await store.finish([settle(two)], T0)
        now = T0 + 2 * SECOND
        renewed = await store.renew(beat((one.id, one.epoch), census=True), now)
        assert sorted(renewed.held) == sorted((job.id, job.epoch, False) for job in (three, stray, one))
        assert list((await store.renew(beat(holder="w2", census=True), now)).held) == [(other.id, other.epoch, False)]
        assert list((await store.renew(beat(), now)).held) == []
        assert list((await store.renew(beat(holder="w3", census=True), now)).held) == []

    async def test_a_census_tells_which_jobs_had_begun_before(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3))
        once, twice, back = await self.take(store, 3)
        again = [settle(job, JobState.AVAILABLE, delay=None, unbegun=job is back) for job in (twice, back)]
        await store.finish(again, T0)
        epochs = {job.id: job.epoch for job in [once, *await self.take(store, 2, at=T0 + 1)]}
        renewed = await store.renew(beat(census=True), T0 + 1)
        begun = {once.id: False, twice.id: True, back.id: False}
        assert sorted(renewed.held) == [(name, epochs[name], begun[name]) for name in sorted(epochs)]

    async def test_a_census_tells_whether_leases_have_run_out(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store, holder="w2")
        end = T0 + LEASE
        assert not (await store.renew(beat(census=True), end - 1)).overdue
        assert (await store.renew(beat(census=True), end)).overdue
        assert not (await store.renew(beat(), end)).overdue
        await store.finish([settle(job, holder="w2")], end)
        assert not (await store.renew(beat(census=True), end)).overdue

    async def test_a_record_names_the_worker_and_never_the_holder(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store, holder="secret")
        await store.renew(Beat("secret", "pod-7", ("q",), LEASE), T0)
        record = await self.get(store, 1)
        assert record.worker == "pod-7"
        assert "secret" not in repr(record)
