"""Last chances: of all holders that pass a job over, one is chosen to make room for it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Reap
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, needs, row
from headrace.testing.conformance.governed import GovernedBase

NOW = T0 + LEASE


class ChanceTests(GovernedBase):
    async def lose(self, store: Backend, *numbers: int, queue: str = "q") -> None:
        """Jobs that were lost once, and are due."""
        await self.put(store, *(row(n, queue=queue) for n in numbers))
        await self.take(store, holder="gone", queues=(queue,))
        await store.reap(Reap(), NOW)

    async def chosen(
        self, store: Backend, holder: str, at: int = NOW, queues: tuple[str, ...] = ("q",), limit: int = 10
    ) -> bool:
        """Whether the holder is chosen when it has passed a job over."""
        claimed = await store.claim(Claim(holder, queues, limit, LEASE, lost_below=1), at)
        assert claimed.passed_over
        return claimed.chosen

    async def test_one_is_chosen_and_all_others_pass_on(self, store: Backend) -> None:
        await self.lose(store, 1)
        await self.put(store, row(2), row(3), at=NOW)
        claimed = await store.claim(Claim("w1", ("q",), 1, LEASE, lost_below=1), NOW)
        assert ([job.id for job in claimed.jobs], claimed.passed_over, claimed.chosen) == ([job_id(2)], True, True)
        claimed = await store.claim(Claim("w2", ("q",), 1, LEASE, lost_below=1), NOW)
        assert ([job.id for job in claimed.jobs], claimed.passed_over, claimed.chosen) == ([job_id(3)], True, False)
        assert await self.chosen(store, "w1", NOW + LEASE - 1)
        assert not await self.chosen(store, "w3", NOW + LEASE - 1)

    async def test_nobody_is_chosen_where_nothing_is_passed_over(self, store: Backend) -> None:
        await self.put(store, row(1))
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, lost_below=1), T0)
        assert (len(claimed.jobs), claimed.passed_over, claimed.chosen) == (1, False, False)
        await self.lose(store, 2)
        assert await self.chosen(store, "w2")

    async def test_who_did_not_manage_lets_others_go_first(self, store: Backend) -> None:
        await self.lose(store, 1)
        assert await self.chosen(store, "w1")
        assert not await self.chosen(store, "w1", NOW + LEASE)
        assert await self.chosen(store, "w2", NOW + LEASE)
        assert not await self.chosen(store, "w1", NOW + LEASE)
        assert await self.chosen(store, "w1", NOW + 2 * LEASE)
        assert await self.chosen(store, "w1", NOW + 4 * LEASE)

    @pytest.mark.parametrize("after", [1, LEASE - 1])
    async def test_who_claims_without_the_bound_stays_chosen_for_a_third_of_a_lease(
        self, store: Backend, after: int
    ) -> None:
        await self.lose(store, 1, 2)
        assert await self.chosen(store, "w1")
        claimed = await store.claim(Claim("w1", ("q",), 1, LEASE), NOW + after)
        assert ([job.lost for job in claimed.jobs], claimed.passed_over, claimed.chosen) == ([1], False, False)
        until = NOW + after + LEASE // 3
        assert not await self.chosen(store, "w2", until - 1)
        assert await self.chosen(store, "w1", until - 1)
        assert await self.chosen(store, "w2", until)

    async def test_others_take_it_all_the_same_when_they_are_alone(self, store: Backend) -> None:
        await self.lose(store, 1)
        assert await self.chosen(store, "w1")
        [job] = await self.take(store, 1, holder="w2", at=NOW)
        assert job.id == job_id(1)

    async def test_each_queue_has_its_own(self, store: Backend) -> None:
        await self.lose(store, 1)
        await self.lose(store, 2, queue="r")
        assert await self.chosen(store, "w1")
        assert await self.chosen(store, "w2", queues=("r",))
        assert not await self.chosen(store, "w1", queues=("r",))
        assert not await self.chosen(store, "w3", queues=("q", "r"))

    async def test_one_of_many_at_once_is_chosen(self, store: Backend) -> None:
        await self.lose(store, 1)
        await self.put(store, *(row(n) for n in range(2, 100)), at=NOW)
        asked = [self.chosen(store, f"w{n}", limit=3) for n in range(16)]
        assert sum(await asyncio.gather(*asked)) == 1

    async def next_in(self, store: Backend, at: int, *queues: str) -> int | None:
        """What a claim answers that passes a job over, and takes all others."""
        claimed = await store.claim(Claim("w1", queues or ("q",), 10, LEASE, lost_below=1), at)
        assert claimed.passed_over
        return claimed.next_in

    @pytest.mark.parametrize("queues", [("q",), ("q", "r"), ("r", "q")])
    async def test_what_is_passed_over_does_not_hide_what_comes_next(
        self, store: Backend, queues: tuple[str, ...]
    ) -> None:
        await self.lose(store, 1, 2)
        assert await self.next_in(store, NOW, *queues) is None
        await self.put(store, row(3), row(4, delay=5 * SECOND), row(5, queue="r", delay=9 * SECOND), at=NOW)
        assert await self.next_in(store, NOW, *queues) == 5 * SECOND
        assert await self.next_in(store, NOW + SECOND, *queues) == 4 * SECOND
        then = {1: None, 2: 4 * SECOND}[len(queues)]
        assert await self.next_in(store, NOW + 5 * SECOND, *queues) == then

    @needs("policies")
    @pytest.mark.parametrize("queues", [("q",), ("q", "r"), ("r", "q")])
    async def test_nor_does_it_where_tenants_take_turns(self, store: Backend, queues: tuple[str, ...]) -> None:
        await self.govern(store)
        await self.lose(store, 1, 2)
        assert await self.next_in(store, NOW, *queues) is None
        await self.put(store, row(3), row(4, delay=5 * SECOND), row(5, tenant="b", delay=6 * SECOND), at=NOW)
        await self.put(store, row(6, queue="r", delay=9 * SECOND), at=NOW)
        assert await self.next_in(store, NOW, *queues) == 5 * SECOND
        assert await self.next_in(store, NOW + SECOND, *queues) == 4 * SECOND
        assert await self.next_in(store, NOW + 5 * SECOND, *queues) == SECOND
        then = {1: None, 2: 3 * SECOND}[len(queues)]
        assert await self.next_in(store, NOW + 6 * SECOND, *queues) == then
        assert len(await self.take(store, 10, at=NOW + 6 * SECOND)) == 2

    @needs("policies")
    async def test_tenants_do_not_change_that(self, store: Backend) -> None:
        await self.govern(store)
        await self.lose(store, 1)
        await self.lose(store, 2, queue="plain")
        await self.put(store, row(3, tenant="a"), row(4, tenant="b"), at=NOW)
        claimed = await self.claim(store, 10, NOW, "w1", lost_below=1)
        assert (len(claimed.jobs), claimed.passed_over, claimed.chosen) == (2, True, True)
        assert not await self.chosen(store, "w2")
        assert await self.chosen(store, "w2", queues=("plain",))
        assert not await self.chosen(store, "w3", queues=("q", "plain"))
        assert await self.chosen(store, "w1", queues=("plain", "q"))
        assert await self.chosen(store, "w3", NOW + LEASE)
