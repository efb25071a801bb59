"""Lanes of closed tasks on Valkey: what they cost, and that nothing of them is lost, whatever happens meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.seam.policy import Policy, QueuePause, Rate
from headrace.seam.records import Cancel, Claim, Delete, Leased, Pause, Reprioritise, Resume, Selector
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, number, row, settle
from tests.backends.test_redis_audit import problems
from tests.backends.test_redis_costs import Commands, commands
from tests.valkey import stores

SECONDS = 12


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


def words(asked: Commands) -> int:
    """The longest script, in words of its commands: what it changes together counts too."""
    return max(sum(map(len, script.all)) for script in asked.calls())


async def claim(store: RedisBackend, at: int) -> tuple[list[Leased], int | None, int]:
    """What a claim gets, the time until the next one, and what it costs."""
    with commands() as asked:
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), at)
    return claimed.jobs, claimed.next_in, words(asked)


async def costs_of_a_rated_task(store: RedisBackend, priorities: int) -> tuple[int, int]:
    """Until claims are at rest, and of the dearest claim when the task opens once a second."""
    await store._connections.call(store._base, "FLUSHALL")
    await store.policies.save(Policy(queue="q", task_rates={"u": Rate(SECOND)}), T0)
    for first in range(0, priorities, 1_000):
        numbers = range(first, min(priorities, first + 1_000))
        await store.insert([row(n, tenant="t", task="u", priority=n) for n in numbers], T0)
    at, closing, next_in = T0, 0, 0
    while next_in is not None and next_in < SECOND // 2:
        at += next_in
        _, next_in, cost = await claim(store, at)
        closing = max(closing, cost)
    assert at < T0 + SECOND
    opening = 0
    for second in range(1, SECONDS):
        jobs, next_in, cost = await claim(store, T0 + second * SECOND)
        assert ([job.id for job in jobs], next_in) == ([job_id(second)], SECOND)
        opening = max(opening, cost)
    assert problems() == []
    return closing, opening


async def test_what_a_claim_costs_does_not_depend_on_how_many_lanes_a_closed_task_has(store: RedisBackend) -> None:
    await costs_of_a_rated_task(store, 100)
    _, few = await costs_of_a_rated_task(store, 100)
    closing, many = await costs_of_a_rated_task(store, 4_000)
    assert many <= few + 30
    assert many < 1_000
    assert closing < 8_000


async def test_many_closed_tasks_open_one_after_the_other(store: RedisBackend) -> None:
    """Each has a time of its own, and more of them open at once than a visit looks at."""
    tasks = [f"u{n:03d}" for n in range(300)]
    for n, task in enumerate(tasks):
        await store.policies.pause(QueuePause("q", task=task, lasts=(1 + n // 100) * HOUR), T0)
    await store.insert([row(n, tenant="t", task=task) for n, task in enumerate(tasks)], T0)
    at, found = T0, defaultdict(list)
    while True:
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), at)
        found[(at - T0) // HOUR] += [job.id for job in claimed.jobs]
        if claimed.next_in is None and not claimed.jobs:
            break
        at += claimed.next_in or 0
    assert {hour: len(ids) for hour, ids in found.items()} == {0: 0, 1: 100, 2: 100, 3: 100}
    assert at < T0 + 3 * HOUR + SECOND
    assert problems() == []


class Closing:
    """Jobs of two tenants and three tasks in very many lanes, of which some are closed now and then."""

    def __init__(self, store: RedisBackend, chance: Random) -> None:
        self._store = store
        self._chance = chance
        self.at = T0
        self.rest: set[int] = set()
        """Those that were not claimed."""
        self._made = 0

    async def step(self) -> str:
        choice = self._chance.choice
        self.at += choice([0, 20_000, SECOND])
        step = choice([self.insert, self.claim, self.claim, self.claim, self.alter, self.pause, self.rate])
        await step()
        return step.__name__

    async def insert(self) -> None:
        chance = self._chance
        numbers = range(self._made, self._made + 200)
        rows = [
            row(n, tenant=chance.choice("ab"), task=chance.choice("tuv"), priority=chance.randrange(400))
            for n in numbers
        ]
        await self._store.insert(rows, self.at)
        self._made += len(numbers)
        self.rest.update(numbers)

    async def claim(self) -> None:
        claimed = await self._store.claim(Claim("w1", ("q",), self._chance.choice([1, 10, 50]), LEASE), self.at)
        await self.end(claimed.jobs)

    async def end(self, jobs: list[Leased]) -> None:
        self.rest -= set(map(number, jobs))
        await self._store.finish([settle(job) for job in jobs], self.at)

    async def alter(self) -> None:
        """Some are cancelled or deleted, others leave their lanes for a moment or for another one."""
        some = self._chance.sample(sorted(self.rest), min(len(self.rest), 30))
        change = self._chance.choice([Cancel(), Delete(), Reprioritise(self._chance.randrange(400)), Pause()])
        named = Selector(ids=[job_id(n) for n in some])
        await self._store.alter(named, change, self.at)
        await self._store.alter(named, Resume(), self.at)
        if isinstance(change, Cancel | Delete):
            self.rest -= set(some)

    async def pause(self) -> None:
        chance = self._chance
        pause = QueuePause(
            "q", task=chance.choice("tuv"), paused=chance.random() < 0.6, lasts=chance.choice([None, SECOND])
        )
        await self._store.policies.pause(pause, self.at)

    async def rate(self, rates: bool = True) -> None:
        [known] = await self._store.policies.find(["q"], self.at) or [None]
        some = {task: Rate(SECOND, self._chance.choice([1, 20])) for task in "tuv" if self._chance.random() < 0.5}
        version = 0 if known is None else known.policy.version
        ageing = self._chance.choice([None, None, SECOND])
        policy = Policy(queue="q", version=version, tenant_batch=7, task_rates=some if rates else {}, ageing=ageing)
        assert await self._store.policies.save(policy, self.at)


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_whatever_is_closed_and_opened(seed: int, store: RedisBackend) -> None:
    closing = Closing(store, Random(seed))
    await closing.rate()
    done, shut = [], False
    for _ in range(80):
        done.append(await closing.step())
        if len(done) % 10 == 9:
            assert problems() == [], done[-10:]
        shut = shut or await store._connections.call(store._base, "EXISTS", f"{store._base}:Gc:1") > 0
    assert shut
    for task in "tuv":
        await store.policies.pause(QueuePause("q", task=task, paused=False), closing.at)
    await closing.rate(rates=False)
    while (claimed := await store.claim(Claim("w1", ("q",), 100, LEASE), closing.at)).jobs or claimed.next_in == 0:
        await closing.end(claimed.jobs)
    assert closing.rest == set()
    assert problems() == []
