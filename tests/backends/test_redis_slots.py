"""Shards on the primaries of a cluster: where they are, slots that move, primaries that fail."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
import pytest_asyncio
from servers.valkey import wait_until
from servers.valkey_cluster import ValkeyCluster

from headrace.api.connection import open_backend
from headrace.backends.redis import ClusterBackend, RedisBackend, parse
from headrace.backends.redis.connections import slot_of
from headrace.errors import ConfigError, Unavailable
from headrace.seam.records import Beat, Claim, InsertStatus, Reap, Selector, Settlement
from headrace.testing.conformance.base import row, settle
from headrace.types import JobState
from tests.valkey import server
from tests.valkey_cluster import cluster as shared

pytestmark = pytest.mark.asyncio

T = TypeVar("T")
MINUTE = 60_000_000
PATIENCE = 60.0
QUEUES = [f"queue {n}" for n in range(12)]


@pytest.fixture(scope="module")
def own() -> Iterator[ValkeyCluster]:
    """A cluster whose slots may move."""
    cluster = ValkeyCluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest_asyncio.fixture
async def store(own: ValkeyCluster) -> AsyncIterator[ClusterBackend]:
    own.flush()
    backend = ClusterBackend(parse(own.url(), {}, "valkey"))
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """As the core does: again, until the store can serve. There is no signal for that, so it looks every few ms."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.005)


# -- where the shards are


async def test_queues_are_spread_over_all_primaries_and_each_shard_is_in_one_slot(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    await store.insert([row(n, queue=queue, key="k") for n, queue in enumerate(QUEUES)])
    assert all(node.call("DBSIZE") > 3 for node in own.nodes)
    for queue in QUEUES:
        base = store.shards.shard_of(queue).base
        slot = own.nodes[0].call("CLUSTER", "KEYSLOT", base)
        assert slot == slot_of(base)
        keys = own.nodes[own.owner(slot)].call("CLUSTER", "GETKEYSINSLOT", slot, 1_000)
        assert keys
        assert all(key.startswith(base.encode()) for key in keys)


async def test_the_number_of_shards_is_decided_once(own: ValkeyCluster) -> None:
    own.flush()
    url = own.url()
    for option, given in (("?shards=5", 5), ("", 5), ("?shards=5", 5)):
        backend = open_backend(url + option)
        assert isinstance(backend, ClusterBackend)
        await backend.open()
        assert len(backend.shards.all) == given
        await backend.close()
    other = open_backend(url + "?shards=6")
    with pytest.raises(ConfigError, match="made with 5, got 6"):
        await other.open()
    await other.close()


@pytest.mark.parametrize("given", ["0", "-1", "x", "1.5", "", "2000", "٣"])
async def test_a_number_of_shards_that_cannot_be_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="expected a number from 1 to 1024"):
        open_backend(f"redis+cluster://localhost?shards={given}")


async def test_one_server_has_no_shards() -> None:
    with pytest.raises(ConfigError, match="unknown option 'shards'"):
        open_backend("redis://localhost?shards=3")


@pytest.mark.parametrize("number", range(3))
async def test_a_primary_that_throws_keys_away_is_refused_wherever_it_is(own: ValkeyCluster, number: int) -> None:
    backend = open_backend(own.url())
    own.nodes[number].call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="noeviction"):
            await backend.open()
    finally:
        own.nodes[number].call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await backend.close()


async def test_a_url_that_takes_one_server_for_a_cluster_or_a_cluster_for_one_is_refused() -> None:
    wrong = [
        ClusterBackend(parse(server().url().replace("redis://", "redis+cluster://"), {}, "valkey")),
        RedisBackend(parse(shared().nodes[0].url(), {}, "valkey")),
    ]
    for backend in wrong:
        with pytest.raises(ConfigError, match="expected"):
            await backend.open()
        await backend.close()


# -- slots that move


async def test_a_shard_whose_slot_is_moving_cannot_serve_and_the_others_can(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    await store.insert([row(n, queue=queue) for n, queue in enumerate(QUEUES)])
    moving = store.shards.shard_of(QUEUES[0])
    others = [queue for queue in QUEUES if store.shards.shard_of(queue) is not moving]
    slot = slot_of(moving.base)
    to = (own.owner(slot) + 1) % 3
    own.begin_move(slot, to)
    try:
        own.move_keys(slot, to, 2)
        with pytest.raises(Unavailable):
            await store.insert([row(100, queue=QUEUES[0])])
        with pytest.raises(Unavailable):
            await store.claim(Claim("w1", (QUEUES[0],), 10, MINUTE))
        found = (await store.claim(Claim("w1", tuple(QUEUES), 100, MINUTE))).jobs
        assert {job.queue for job in found} == set(others)
        leases = [(job.id, job.epoch) for job in found] + [(row(0).id, 1)]
        renewed = await store.renew(Beat("w1", "pod", tuple(QUEUES), MINUTE, leases))
        assert (list(renewed.lost), list(renewed.busy)) == ([], [(row(0).id, 1)])
        assert await store.finish([settle(job) for job in found]) == [JobState.COMPLETED] * len(found)
    finally:
        own.move_keys(slot, to)
        own.end_move(slot, to)
    rest = (await store.claim(Claim("w1", tuple(QUEUES), 100, MINUTE))).jobs
    assert {job.queue for job in rest}.isdisjoint(others)
    assert len(found) + len(rest) == len(QUEUES)


async def test_a_job_that_is_sent_to_a_shard_whose_slot_is_moving_arrives_later(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    source, target = "q", "other"
    await store.insert([row(1, queue=source), row(2, queue=source)])
    jobs = (await store.claim(Claim("w1", (source,), 2, MINUTE))).jobs
    slot = slot_of(store.shards.shard_of(target).base)
    to = (own.owner(slot) + 1) % 3
    own.begin_move(slot, to)
    try:
        assert await store.finish([settle(jobs[0], JobState.AVAILABLE, queue=target)]) == [JobState.AVAILABLE]
        assert await store.finish([settle(jobs[1], spawn=[row(3, queue=target)])]) == [JobState.COMPLETED]
    finally:
        own.move_keys(slot, to)
        own.end_move(slot, to)
    await persist(lambda: store.reap(Reap()))
    found = (await store.claim(Claim("w1", (target,), 10, MINUTE))).jobs
    assert sorted(job.id for job in found) == [row(1).id, row(3).id]


async def test_nothing_is_lost_or_done_twice_while_slots_move_under_load(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    """Producers, workers and a job that hops from queue to queue, while the slots of all shards go round."""
    total, jobs_each = 1_200, 20
    claimed: Counter[bytes] = Counter()
    settled: Counter[bytes] = Counter()
    runs: Counter[bytes] = Counter()
    moved: list[int] = []
    done = asyncio.Event()

    async def produce(number: int) -> None:
        for first in range(number * total // 2, (number + 1) * total // 2, jobs_each):
            rows = [row(n, queue=QUEUES[n % len(QUEUES)]) for n in range(first, first + jobs_each)]
            answers = await persist(lambda rows=rows: store.insert(rows))  # type: ignore[misc]
            assert {one.status for one in answers} <= {InsertStatus.NEW, InsertStatus.SAME}

    async def work(holder: str) -> None:
        mine = ClusterBackend(parse(own.url(), {}, "valkey"))
        await persist(mine.open)
        try:
            while not done.is_set():
                got = (await persist(lambda: mine.claim(Claim(holder, tuple(QUEUES), 10, 10 * MINUTE)))).jobs
                claimed.update(job.id for job in got if not job.begun)
                for job in got:
                    runs[job.id] += 1
                    hop = runs[job.id] < 3 and job.id[7] % 2
                    queue = QUEUES[(job.id[7] + runs[job.id]) % len(QUEUES)]
                    end = (
                        Settlement(job.id, job.epoch, holder, JobState.AVAILABLE, queue=queue)
                        if hop
                        else Settlement(job.id, job.epoch, holder, JobState.COMPLETED)
                    )
                    [state] = await persist(lambda end=end: mine.finish([end]))  # type: ignore[misc]
                    if state is JobState.COMPLETED:
                        settled[job.id] += 1
                if sum(settled.values()) >= total:
                    done.set()
                if not got:
                    await persist(lambda: mine.reap(Reap()))
        finally:
            await mine.close()

    async def move() -> None:
        slots = [slot_of(part.base) for part in store.shards.all]
        for slot in (*slots, *slots):
            if done.is_set():
                return
            await asyncio.to_thread(own.move_slot, slot, (own.owner(slot) + 1) % 3)
            moved.append(slot)

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(produce(number))
        for number in range(3):
            group.create_task(work(f"w{number}"))
        group.create_task(move())
    assert len(moved) >= 5
    everyone = {row(n).id: 1 for n in range(total)}
    assert settled == everyone
    assert claimed == everyone
    stats = await persist(store.stats)
    assert sum(queue.completed for queue in stats.queues) == total
    assert sum(queue.available + queue.running for queue in stats.queues) == 0


async def test_a_listener_hears_of_jobs_again_after_its_slot_has_moved(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    assert store.hints is not None
    slot = slot_of(store.shards.shard_of("q").base)
    async with asyncio.timeout(PATIENCE), store.hints.listen(["queue:q"]) as hints:
        first = asyncio.ensure_future(anext(hints))
        await asyncio.to_thread(own.move_slot, slot, (own.owner(slot) + 1) % 3)
        assert (await first).topic == "queue:q"
        await store.insert([row(1)])
        assert (await anext(hints)).topic == "queue:q"


# -- primaries that fail


def is_in_step(cluster: ValkeyCluster) -> bool:
    """Whether each primary has its answer from its replica for all that it wrote."""
    said = [node.info("replication") for node in cluster.nodes[:3]]
    return all(f"offset={info['master_repl_offset']}," in info["slave0"] for info in said)


async def claim_all(store: ClusterBackend, count: int) -> list[bytes]:
    """So many jobs, in as many claims as that takes: one brings what those shards have that can serve."""
    found: list[bytes] = []
    while len(found) < count:
        found += [job.id for job in (await persist(lambda: store.claim(Claim("w1", tuple(QUEUES), 100, MINUTE)))).jobs]
    return found


@pytest.mark.parametrize("kill", [True, False])
async def test_when_a_replica_takes_over_work_goes_on(kill: bool) -> None:
    """What the replica had is there; what it had not yet may be lost, so here it is waited for."""
    cluster = await asyncio.to_thread(ValkeyCluster, replicas=1)
    store = ClusterBackend(parse(cluster.url(), {}, "valkey"))
    try:
        await store.open()
        await store.insert([row(n, queue=queue) for n, queue in enumerate(QUEUES)])
        found = (await store.claim(Claim("w1", tuple(QUEUES), 5, MINUTE))).jobs
        await asyncio.to_thread(wait_until, lambda: is_in_step(cluster), PATIENCE, "the replicas have it all")
        await asyncio.to_thread(cluster.failover, 0, kill=kill)
        await persist(lambda: store.finish([settle(job) for job in found]))
        records = await persist(lambda: store.fetch([job.id for job in found]))
        assert [record and record.state for record in records] == [JobState.COMPLETED] * 5
        async with asyncio.timeout(PATIENCE):
            rest = await claim_all(store, len(QUEUES) - 5)
        assert len(set(rest)) == len(QUEUES) - 5
        more = [row(100 + n, queue=queue) for n, queue in enumerate(QUEUES)]
        await persist(lambda: store.insert(more))
        page = await persist(lambda: store.scan(Selector(states=frozenset({JobState.AVAILABLE}))))
        assert [record.id for record in page.records] == [one.id for one in reversed(more)]
    finally:
        await store.close()
        cluster.close()
