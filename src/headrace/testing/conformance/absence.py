"""reap after an absence of the whole fleet: which lost leases are charged, and which are not."""

from __future__ import annotations

from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Reap
from headrace.testing.conformance.base import LEASE, T0, ConformanceBase, job_id, row
from headrace.types import JobState

GAP = LEASE // 4
STEP = LEASE // 6
AT_WORK = 10 * LEASE
OUT = T0 + AT_WORK
"""The last beats of the fleet."""
BACK = OUT + LEASE
"""A worker that beats from then on finds nobody listed."""
LATE = BACK + 2 * LEASE


async def beat(store: Backend, holder: str, at: int, *, leaving: bool = False) -> None:
    """A sign of life, without any lease."""
    given = Beat(holder, f"host-{holder}", ("q",), LEASE, ttl=LEASE, gap=GAP, at_work=AT_WORK, leaving=leaving)
    await store.renew(given, at)


async def work(store: Backend, *holders: str, since: int = T0, until: int = OUT) -> None:
    """Beats of all of them, for so long."""
    for now in range(since, until + 1, STEP):
        for holder in holders:
            await beat(store, holder, now)


async def reap(store: Backend, at: int, max_lost: int = 0) -> dict[int, tuple[JobState, int]]:
    """What became of the jobs that were taken back."""
    reaped = await store.reap(Reap(max_lost=max_lost), at)
    return {int.from_bytes(one.id[2:8]): (one.state, one.lost) for one in reaped}


SPARED = (JobState.AVAILABLE, 0)
CHARGED = (JobState.FAILED, 1)


class AbsenceTests(ConformanceBase):
    async def test_a_fleet_that_was_away_costs_no_job_a_loss(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(4)))
        await work(store, "w1", "w2")
        await self.take(store, 2, holder="w1", at=OUT)
        await self.take(store, 2, holder="w2", at=OUT - LEASE + 1)
        await beat(store, "w3", BACK)
        assert await reap(store, LATE) == dict.fromkeys(range(4), SPARED)

    async def test_many_jobs_of_a_few_workers_that_are_gone_are_charged_while_others_work(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(12)))
        await work(store, "w1", "w2", "w3")
        for n in range(12):
            await self.take_one(store, holder=f"w{n % 2 + 1}", at=OUT)
        await work(store, "w3", since=OUT, until=LATE)
        assert await reap(store, LATE) == dict.fromkeys(range(12), CHARGED)

    async def test_a_job_that_kills_its_workers_is_charged_each_time(self, store: Backend) -> None:
        """Nobody lives long enough to take anything back: many leases expire, of many holders."""
        jobs = range(12)
        await self.put(store, *(row(n) for n in jobs))
        await work(store, "w1", "w2")
        await beat(store, "w1", OUT, leaving=True)
        await beat(store, "w2", OUT, leaving=True)
        now = OUT
        for lost in (1, 2, 3):
            for n in jobs:
                now += STEP
                await beat(store, f"life {lost}.{n}", now)
                await self.take_one(store, holder=f"life {lost}.{n}", at=now)
            now += LEASE
            state = JobState.FAILED if lost == 3 else JobState.AVAILABLE
            assert await reap(store, now, max_lost=2) == dict.fromkeys(jobs, (state, lost))

    async def test_the_only_worker_is_no_fleet(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1")
        await self.take_one(store, at=OUT)
        await beat(store, "w2", BACK)
        assert await reap(store, LATE) == {1: CHARGED}

    async def test_one_that_went_long_before_was_not_with_the_others(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1")
        await work(store, "w2", until=OUT - GAP - STEP)
        await self.take_one(store, at=OUT)
        await beat(store, "w3", BACK)
        assert await reap(store, LATE) == {1: CHARGED}

    async def test_who_is_still_listed_was_not_away(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1", "w2")
        await self.take_one(store, at=OUT)
        await beat(store, "w3", BACK - 1)
        assert await reap(store, LATE) == {1: CHARGED}

    async def test_a_fleet_that_falls_again_soon_is_charged(self, store: Backend) -> None:
        """As one that its own jobs bring down, and that is started again late."""
        await self.put(store, row(1), row(2))
        await work(store, "w1", "w2")
        await self.take_one(store, holder="w1", at=OUT)
        await self.take_one(store, holder="w2", at=OUT)
        again = BACK + AT_WORK - STEP
        await work(store, "w3", "w4", since=BACK, until=again)
        assert await reap(store, again) == dict.fromkeys((1, 2), SPARED)
        await self.take_one(store, holder="w3", at=again)
        await self.take_one(store, holder="w4", at=again)
        await beat(store, "w5", again + LEASE)
        assert await reap(store, again + 3 * LEASE) == dict.fromkeys((1, 2), CHARGED)

    async def test_a_fleet_that_has_just_begun_is_charged(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1", "w2", since=T0 + 1)
        await self.take_one(store, at=OUT)
        await beat(store, "w3", BACK)
        assert await reap(store, LATE) == {1: CHARGED}

    async def test_a_fleet_that_signed_off_starts_over(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1", "w2")
        await beat(store, "w1", OUT, leaving=True)
        await beat(store, "w2", OUT, leaving=True)
        await work(store, "w1", "w2", since=BACK, until=BACK + LEASE)
        await self.take_one(store, at=BACK + LEASE)
        await beat(store, "w3", BACK + 2 * LEASE)
        assert await reap(store, LATE + LEASE) == {1: CHARGED}

    async def test_only_leases_of_that_time_are_spared(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(4)))
        await work(store, "w1", "w2", until=OUT - STEP)
        await self.take_one(store, at=OUT - LEASE)
        await self.take_one(store, at=OUT - LEASE + 1)
        await work(store, "w1", "w2", since=OUT)
        await beat(store, "w3", BACK)
        await self.take_one(store, at=BACK - LEASE)
        await self.take_one(store, at=BACK - LEASE + 1)
        assert await reap(store, LATE) == {0: CHARGED, 1: SPARED, 2: SPARED, 3: CHARGED}

    async def test_a_worker_that_comes_back_has_been_away_too(self, store: Backend) -> None:
        """As after a store stood still; the other did not come back."""
        await self.put(store, row(1), row(2))
        await work(store, "w1", "w2")
        await self.take_one(store, holder="w1", at=OUT)
        kept = await self.take_one(store, holder="w2", at=OUT)
        given = Beat("w2", "w2", ("q",), 4 * LEASE, [(kept.id, kept.epoch)], ttl=LEASE, gap=GAP, at_work=AT_WORK)
        assert not (await store.renew(given, BACK)).lost
        assert await reap(store, LATE) == {1: SPARED}
        assert await self.state(store, 2) is JobState.RUNNING

    async def test_a_reap_before_the_first_beat_forgets_nobody(self, store: Backend) -> None:
        """A worker that starts may do either first."""
        await self.put(store, row(1))
        await work(store, "w1", "w2")
        await self.take_one(store, at=OUT)
        assert await store.reap(Reap(holder="w3"), BACK) == []
        await beat(store, "w3", BACK)
        assert await reap(store, LATE) == {1: SPARED}

    async def test_everybody_begins_again_at_once(self, store: Backend) -> None:
        await self.put(store, row(1))
        await work(store, "w1", "w2")
        await self.take_one(store, at=OUT)
        for n in range(3, 9):
            await beat(store, f"w{n}", BACK + n)
        assert await reap(store, LATE) == {1: SPARED}
        assert job_id(1) == (await self.take_one(store, at=LATE)).id
