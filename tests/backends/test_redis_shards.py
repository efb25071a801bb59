"""Shards act as one store: whoever works with several of them is kept up by none, and overlooks nothing."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from servers.valkey_cluster import ValkeyCluster

from headrace.backends.redis import ClusterBackend, parse
from headrace.backends.redis.cluster import renewing
from headrace.backends.redis.cluster.shard import ClusterShard
from headrace.backends.redis.cluster.shards import tags
from headrace.backends.redis.connections import SLOTS, slot_of
from headrace.backends.redis.schedule_layout import Alteration
from headrace.errors import StoreFull, Unavailable
from headrace.seam.policy import Policy
from headrace.seam.records import (
    Beat,
    Cancel,
    Claim,
    Delete,
    Hint,
    InsertStatus,
    JobKey,
    Move,
    Reap,
    Renewed,
    Selector,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.seam.ticks import Look, Plan, Save, ScheduleSelector, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, MINUTE, SECOND, T0, job_id, row, settle
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from headrace.types import JobState

pytestmark = pytest.mark.asyncio

PATIENCE = 60.0
QUEUES = [f"queue {n}" for n in range(40)]
HERE, THERE = "q", "other"
"""Queues of two shards."""


@pytest.fixture(scope="module")
def own() -> Iterator[ValkeyCluster]:
    """A cluster with replicas, whose servers may be frozen or full."""
    cluster = ValkeyCluster(replicas=1)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest_asyncio.fixture
async def store(own: ValkeyCluster) -> AsyncIterator[ClusterBackend]:
    own.flush()
    async with opened(own) as backend:
        yield backend


@asynccontextmanager
async def opened(cluster: ValkeyCluster) -> AsyncIterator[ClusterBackend]:
    backend = ClusterBackend(parse(cluster.url(), {}, "valkey"))
    try:
        await backend.open()
        yield backend
    finally:
        await backend.close()


@pytest_asyncio.fixture
async def stranger(own: ValkeyCluster, store: ClusterBackend) -> AsyncIterator[ClusterBackend]:
    """Another process: it has seen none of the jobs."""
    async with opened(own) as backend:
        yield backend


def parts(store: ClusterBackend) -> tuple[ClusterShard, ClusterShard]:
    return store.shards.shard_of(HERE), store.shards.shard_of(THERE)


def owner(own: ValkeyCluster, store: ClusterBackend, queue: str) -> int:
    """The number of the server that has a queue."""
    return own.owner(slot_of(store.shards.shard_of(queue).base))


def two_servers(own: ValkeyCluster, store: ClusterBackend) -> tuple[str, str]:
    """Queues of two of them."""
    first = QUEUES[0]
    return first, next(queue for queue in QUEUES if owner(own, store, queue) != owner(own, store, first))


async def depart(store: ClusterBackend, queue: str = THERE) -> None:
    """Job 1 is on its way; nobody has carried it."""
    source, target = store.shards.shard_of(HERE), store.shards.shard_of(queue)
    [moved] = await source.move(Selector(ids=[job_id(1)]), Move(queue), target.number, T0)
    assert moved.changed


@asynccontextmanager
async def frozen(own: ValkeyCluster, number: int) -> AsyncIterator[None]:
    own.nodes[number].freeze()
    try:
        yield
    finally:
        own.nodes[number].thaw()
        await asyncio.to_thread(own.wait)


@asynccontextmanager
async def moving(own: ValkeyCluster, part: ClusterShard) -> AsyncIterator[None]:
    """Its slot moves all the while."""
    slot = slot_of(part.base)
    primaries = [i for i, node in enumerate(own.nodes) if node.info("replication")["role"] == "master"]
    to = next(number for number in primaries if number != own.owner(slot))
    own.begin_move(slot, to)
    try:
        yield
    finally:
        await asyncio.to_thread(own.move_keys, slot, to)
        await asyncio.to_thread(own.end_move, slot, to)


def after(part: ClusterShard, name: str, first: Callable[[], Awaitable[Any]]) -> None:
    """This shard answers such a call only after something else is done."""
    call = getattr(part, name)

    async def late(*args: Any) -> Any:
        await first()
        return await call(*args)

    setattr(part, name, late)


# -- where shards are


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 100, 1024])
async def test_each_shard_has_its_slot_in_its_own_part_of_the_slots(count: int) -> None:
    assert [slot_of(f"{{{tag}}}") * count // SLOTS for tag in tags(count)] == list(range(count))


async def test_primaries_with_as_many_slots_have_as_many_shards(own: ValkeyCluster, store: ClusterBackend) -> None:
    counts = Counter(slot_of(part.base) * 3 // SLOTS for part in store.shards.all)
    assert sorted(counts.values()) == [5, 5, 6]


# -- a server that says nothing


async def test_a_server_that_hangs_costs_only_its_own_leases_and_these_only_until_its_replica_has_taken_over(
    own: ValkeyCluster, store: ClusterBackend, stranger: ClusterBackend
) -> None:
    sick, fine = two_servers(own, store)
    await store.insert([row(1, queue=sick), row(2, queue=fine)])
    jobs = (await store.claim(Claim("w1", (sick, fine), 10, MINUTE))).jobs
    leases = [(job.id, job.epoch) for job in jobs]
    beat = Beat("w1", "pod", (sick, fine), 6 * SECOND, leases)

    async def renew() -> Renewed:
        async with asyncio.timeout(5.0):
            return await stranger.renew(beat)

    assert 2 * max(renewing._LEAST, 6 / renewing._PART) < 1, "a beat is over before the next, a sixth of a lease later"
    assert (await renew()).busy == []
    async with frozen(own, owner(own, store, sick)):
        renewed = await renew()
        assert (list(renewed.lost), list(renewed.busy)) == ([], [lease for lease in leases if lease[0] == job_id(1)])
        async with asyncio.timeout(PATIENCE):
            while renewed.busy:
                with suppress(Unavailable):  # a beat without any answer is repeated, as by a worker
                    renewed = await renew()
                assert renewed.lost == []


async def test_a_server_that_hangs_delays_no_call_to_the_others(own: ValkeyCluster, store: ClusterBackend) -> None:
    sick, fine = two_servers(own, store)
    async with frozen(own, owner(own, store, sick)):
        stuck = asyncio.ensure_future(store.insert([row(1, queue=sick)]))
        for number in range(2, 6):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.insert([row(1, queue=sick)]), 0.05)
            async with asyncio.timeout(5.0):
                await store.insert([row(number, queue=fine)])
        stuck.cancel()
        await asyncio.wait([stuck])


async def test_a_server_that_is_away_is_no_outage_for_workers_that_have_other_servers(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    """A claim from queues of several servers brings what those have that are there, and says to look again soon."""
    sick, fine = two_servers(own, store)
    async with frozen(own, owner(own, store, sick)):
        claimed = await store.claim(Claim("w1", (sick, fine), 10, MINUTE))
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        await store.insert([row(1, queue=fine)])
        claimed = await store.claim(Claim("w1", (sick, fine), 10, MINUTE))
        assert [job.id for job in claimed.jobs] == [job_id(1)]


async def test_an_end_that_is_stored_does_not_wait_for_a_server_that_hangs(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    sick, fine = two_servers(own, store)
    await store.insert([row(1, queue=fine)])
    [job] = (await store.claim(Claim("w1", (fine,), 1, MINUTE))).jobs
    async with frozen(own, owner(own, store, sick)), asyncio.timeout(8.0):
        assert await store.finish([settle(job, spawn=[row(2, queue=sick)])]) == [JobState.COMPLETED]
    await persist(lambda: store.reap(Reap()))
    [spawned] = (await persist(lambda: store.claim(Claim("w1", (sick,), 10, MINUTE)))).jobs
    assert spawned.id == job_id(2)


async def persist(call: Callable[[], Awaitable[Any]]) -> Any:
    """As the core does: again, until the store can serve. There is no signal for that, so it looks every few ms."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.01)


async def test_when_a_server_is_full_it_is_said_that_the_others_have_stored_theirs(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    full, fine = two_servers(own, store)
    node = own.nodes[owner(own, store, full)]
    node.call("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(StoreFull, match="repeating all of it is safe"):
            await store.insert([row(1, queue=full), row(2, queue=fine)])
        with pytest.raises(StoreFull, match="Nothing was stored"):
            await store.insert([row(1, queue=full)])
    finally:
        node.call("CONFIG", "SET", "maxmemory", "0")
    repeated = await store.insert([row(1, queue=full), row(2, queue=fine)])
    assert [one.status for one in repeated] == [InsertStatus.NEW, InsertStatus.SAME]


# -- claims


async def test_a_claim_from_several_shards_brings_as_many_as_from_one(store: ClusterBackend) -> None:
    await store.insert([row(n, queue=HERE) for n in range(200)], T0)
    await store.insert([row(n, queue=THERE, priority=5) for n in range(200, 400)], T0)
    claimed = await store.claim(Claim("w1", (HERE, THERE), 100, LEASE), T0)
    assert [job.id for job in claimed.jobs] == [job_id(n) for n in range(100)]


async def test_a_claim_from_several_shards_is_cut_by_its_bytes_as_from_one(store: ClusterBackend) -> None:
    rows = [row(n, queue=(HERE, THERE)[n % 2], cells={"blob": b"x" * 1_000}) for n in range(6)]
    await store.insert(rows, T0)
    for brought in ([0, 1], [2, 3], [4, 5]):
        claimed = await store.claim(Claim("w1", (HERE, THERE), 10, LEASE, max_bytes=1_500), T0)
        assert [job.id for job in claimed.jobs] == [job_id(n) for n in brought]
        assert claimed.next_in == (None if brought == [4, 5] else 0)


async def test_one_large_job_is_not_all_there_is(store: ClusterBackend) -> None:
    await store.insert([row(n, queue=HERE, cells={"blob": b"x" * 1_000}) for n in range(3)], T0)
    claimed = await store.claim(Claim("w1", (HERE, THERE), 10, LEASE, max_bytes=500), T0)
    assert ([job.id for job in claimed.jobs], claimed.next_in) == ([job_id(0)], 0)


@pytest.mark.parametrize("governed", [(), (HERE,), (THERE,), (HERE, THERE)])
async def test_a_waiter_passes_on_the_signals_of_shards_that_it_does_not_follow(
    store: ClusterBackend, stranger: ClusterBackend, governed: tuple[str, ...]
) -> None:
    assert store.hints is not None
    assert stranger.hints is not None
    for queue in governed:
        part = store.shards.shard_of(queue)
        await part.policies.save(Policy(queue=queue, tenant_running=9))
        await part._connections.call(part.base, "DEL", f"{part.base}:g:{queue}")
    topics = [f"queue:{HERE}", f"queue:{THERE}"]
    async with asyncio.timeout(PATIENCE):
        async with store.hints.listen(topics) as hints:
            await store.insert([row(1, queue=HERE), row(2, queue=THERE)])
            assert {(await anext(hints)).topic for _ in range(2)} == set(topics)
        [job] = (await store.claim(Claim("w1", (HERE, THERE), 1, LEASE))).jobs
        async with stranger.hints.listen(topics) as hints:
            wanted = Hint(f"queue:{THERE if job.queue == HERE else HERE}")
            while await anext(hints) != wanted:
                pass


async def test_a_reap_calls_again_the_groups_of_a_shard_that_are_still_to_be_called(store: ClusterBackend) -> None:
    await store.insert([row(n, queue=HERE, group=f"g{n % 300}") for n in range(600)], T0)
    source, _ = parts(store)
    run = source.policies._run

    async def interrupted(name: str, *args: Any) -> Any:
        if name == "steps":
            raise Unavailable("away")
        return await run(name, *args)

    source.policies._run = interrupted
    with pytest.raises(Unavailable):
        await store.policies.save(Policy(queue=HERE, group_running=2), T0)
    await store.reap(Reap(), T0)
    claimed = await store.claim(Claim("w1", (HERE,), 1_000, LEASE), T0)
    assert len(claimed.jobs) == 600


async def test_what_has_expired_is_told_though_a_shard_is_away(store: ClusterBackend) -> None:
    plain, governed, away = list({store.shards.number_of(queue): queue for queue in QUEUES}.values())[:3]
    await store.policies.save(Policy(queue=governed, tenant_running=9), T0)
    await store.insert([row(1, queue=plain, expires=SECOND), row(2, queue=away)], T0)

    async def fail() -> None:
        raise Unavailable("away")

    after(store.shards.shard_of(away), "peek", fail)
    claimed = await store.claim(Claim("w1", (governed, plain, away), 10, LEASE), T0 + MINUTE)
    assert (claimed.jobs, [job.id for job in claimed.expired], claimed.next_in) == ([], [job_id(1)], 0)


@pytest.mark.parametrize("governed", [False, True])
async def test_a_claim_says_that_a_shard_may_have_leased_more_and_a_census_finds_it(
    store: ClusterBackend, governed: bool
) -> None:
    """The shard carries the claim out, and its answer is lost; then it is away for a while."""
    source, _ = parts(store)
    if governed:
        await store.policies.save(Policy(queue=THERE, tenant_running=9), T0)
    await store.insert([row(1, queue=HERE), row(2, queue=THERE)], T0)
    answers = {name: getattr(source, name) for name in ("claim", "take", "renew")}

    async def lost(*args: Any) -> Any:
        await answers["take" if governed else "claim"](*args)
        raise Unavailable("away")

    source.claim = source.take = lost  # type: ignore[method-assign]
    claimed = await store.claim(Claim("w1", (HERE, THERE), 10, LEASE), T0)
    assert ([job.id for job in claimed.jobs], claimed.next_in, claimed.doubtful) == ([job_id(2)], 0, True)
    [known] = claimed.jobs
    beat = Beat("w1", "pod", (HERE, THERE), LEASE, [(known.id, known.epoch)], census=True)

    async def fail(*_: Any) -> Renewed:
        raise Unavailable("away")

    source.renew = fail  # type: ignore[method-assign]
    renewed = await store.renew(beat, T0 + 1)
    assert ([held[0] for held in renewed.held], renewed.doubtful) == ([job_id(2)], True)
    source.renew = answers["renew"]  # type: ignore[method-assign]
    renewed = await store.renew(beat, T0 + 2)
    assert ({held[0] for held in renewed.held}, renewed.doubtful) == ({job_id(1), job_id(2)}, False)


async def test_a_claim_that_could_only_look_leaves_no_doubt(store: ClusterBackend) -> None:
    source, _ = parts(store)
    await store.insert([row(1, queue=HERE), row(2, queue=THERE)], T0)

    async def fail() -> None:
        raise Unavailable("away")

    after(source, "peek", fail)
    claimed = await store.claim(Claim("w1", (HERE, THERE), 10, LEASE), T0)
    assert ([job.id for job in claimed.jobs], claimed.doubtful) == ([job_id(2)], False)


async def test_a_turn_whose_claim_got_no_answer_says_so(store: ClusterBackend) -> None:
    await store.insert([row(1, queue=HERE), row(2, queue=THERE)], T0)
    [job] = (await store.claim(Claim("w1", (HERE,), 1, LEASE), T0)).jobs

    async def fail() -> None:
        raise Unavailable("away")

    after(store.shards.shard_of(THERE), "claim", fail)
    settled, claimed = await store.finish_and_claim([settle(job)], Claim("w1", (THERE,), 1, LEASE), T0)
    assert (settled, claimed.jobs, claimed.doubtful) == ([JobState.COMPLETED], [], True)


# -- hints


async def test_a_slot_that_moves_silences_no_other_queue_and_its_own_only_until_it_is_there(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    assert store.hints is not None
    _, target = parts(store)
    await store.insert([row(1, queue=THERE)])
    async with asyncio.timeout(PATIENCE), store.hints.listen([f"queue:{HERE}", f"queue:{THERE}"]) as hints:
        assert (await anext(hints)).topic == f"queue:{THERE}"
        heard = asyncio.ensure_future(anext(hints))
        async with moving(own, target):
            await store.insert([row(2, queue=HERE)])
            assert (await heard).topic == f"queue:{HERE}"
            heard = asyncio.ensure_future(anext(hints))
        assert (await heard).topic == f"queue:{THERE}"
        await store.insert([row(3, queue=THERE)])
        assert (await anext(hints)).topic == f"queue:{THERE}"


# -- jobs that go from shard to shard


async def test_what_is_sent_after_a_replica_has_taken_over_arrives_though_its_numbers_are_lower(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    """The last entries have arrived, but the replica lacks them."""
    source, _ = parts(store)
    for number in (1, 2, 3):
        await store.insert([row(number, queue=HERE)], T0)
        await store.alter(Selector(ids=[job_id(number)]), Move(THERE), T0)
    await asyncio.to_thread(own.failover, own.owner(slot_of(source.base)), kill=False)
    await persist(lambda: store._connections.call(source.base, "DEL", f"{source.base}:tn"))
    await persist(lambda: store.insert([row(4, queue=HERE)], T0))
    await persist(lambda: store.alter(Selector(ids=[job_id(4)]), Move(THERE), T0))
    jobs = (await persist(lambda: store.claim(Claim("w1", (THERE,), 10, LEASE), T0))).jobs
    assert [job.id for job in jobs] == [job_id(number) for number in (1, 2, 3, 4)]


async def test_a_carrier_of_what_a_replica_lacks_drops_nothing_that_came_since(store: ClusterBackend) -> None:
    source, target = parts(store)
    await store.insert([row(1, queue=HERE), row(2, queue=HERE)], T0)
    await depart(store)
    late = await target.receive(source.number, await source.outbox(target.number))
    await store._connections.call(source.base, "DEL", f"{source.base}:t:{target.number}")
    await source.move(Selector(ids=[job_id(2)]), Move(THERE), target.number, T0)
    await source.outbox(target.number, late)
    await store.reap(Reap(), T0)
    [job] = await store.fetch([job_id(2)], at=T0)
    assert job is not None
    assert (job.queue, store.shards.last_seen(job_id(2))) == (THERE, target.number)


async def test_a_job_that_goes_while_all_shards_are_asked_is_found(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    source, target = parts(store)
    await store.insert([row(1, queue=HERE)], T0)
    await depart(store)
    after(
        stranger.shards.all[source.number], "locate", lambda: store.shards.relay.carry([(source.number, target.number)])
    )
    [record] = await stranger.fetch([job_id(1)], at=T0)
    assert record is not None
    assert record.queue == THERE
    [altered] = await stranger.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
    assert altered.after is JobState.CANCELLED


async def test_whoever_asks_for_a_job_that_never_stays_is_told_so_in_the_end(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    """It leaves another mark between any two questions, and is never where it is looked for."""
    source, _ = parts(store)
    await store.insert([row(1, queue=HERE)], T0)
    asked = itertools.count(1)

    async def always_gone(names: Sequence[bytes], keys: Sequence[JobKey]) -> tuple[list[int], list[bytes]]:
        return [T0 + next(asked)] * len(names), []

    stranger.shards.all[source.number].locate = always_gone  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable, match="1 jobs keep moving between queues"):
        await stranger.fetch([job_id(1)], at=T0)


async def test_a_repeated_insert_of_a_job_that_goes_on_just_then_stores_nothing(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    source, target = parts(store)
    third = next(queue for queue in QUEUES if store.shards.shard_of(queue) not in (source, target))
    to = store.shards.number_of(third)
    await store.insert([row(1, queue=HERE)], T0)
    await store.alter(Selector(ids=[job_id(1)]), Move(THERE), T0)
    await target.move(Selector(ids=[job_id(1)]), Move(third), to, T0)
    after(stranger.shards.all[target.number], "locate", lambda: store.shards.relay.carry([(target.number, to)]))
    [again] = await stranger.insert([row(1, queue=HERE)], T0)
    assert (again.status, again.state) == (InsertStatus.SAME, JobState.AVAILABLE)
    assert (await store.claim(Claim("w1", (HERE,), 5, LEASE), T0)).jobs == []


@pytest.mark.parametrize(
    "sel", [Selector(keys=[JobKey(THERE, "k")]), Selector(ids=[job_id(1)], queue=THERE), Selector(ids=[job_id(1)])]
)
async def test_a_job_on_its_way_is_met_by_whatever_names_it(
    store: ClusterBackend, stranger: ClusterBackend, sel: Selector
) -> None:
    await store.insert([row(1, queue=HERE, key="k")], T0)
    await depart(store)
    [altered] = await stranger.alter(sel, Cancel(), T0)
    assert (altered.id, altered.after, altered.queue) == (job_id(1), JobState.CANCELLED, THERE)


async def test_the_key_of_a_job_on_its_way_leads_to_it(store: ClusterBackend) -> None:
    await store.insert([row(1, queue=HERE, key="k")], T0)
    await depart(store)
    [record] = await store.fetch([JobKey(THERE, "k")], at=T0)
    assert record is not None
    assert record.id == job_id(1)


@pytest.mark.parametrize("known", [True, False])
async def test_of_a_job_that_has_gone_no_shadow_is_left_where_it_was(
    store: ClusterBackend, stranger: ClusterBackend, known: bool
) -> None:
    """Its carrier has died before the source was told."""
    source, target = parts(store)
    await store.insert([row(1, queue=HERE)], T0)
    await depart(store)
    await target.receive(source.number, await source.outbox(target.number))
    await target.alter(Selector(ids=[job_id(1)]), Delete(), T0)
    backend = store if known else stranger
    assert await backend.fetch([job_id(1)], at=T0) == [None]
    assert (await backend.scan(Selector(), at=T0)).records == []


async def test_a_job_that_has_left_is_remembered_for_an_hour_and_seen_no_more(store: ClusterBackend) -> None:
    source, _ = parts(store)
    await store.insert([row(n, queue=HERE) for n in range(1, 4)], T0)
    await store.alter(Selector(queue=HERE), Move(THERE), T0)
    call, base = store._connections.call, source.base
    assert await call(base, "EXISTS", f"{base}:a", f"{base}:j", f"{base}:s") == 0
    assert await call(base, "ZCARD", f"{base}:m") == 3
    assert 3_500 < await call(base, "TTL", f"{base}:m") <= 3_600
    await call(base, "ZADD", f"{base}:m", 0, job_id(1), 0, job_id(2))
    await store.alter(Selector(ids=[job_id(3)]), Move(HERE), T0)
    await store.alter(Selector(ids=[job_id(3)]), Move(THERE), T0)
    assert await call(base, "ZRANGE", f"{base}:m", 0, -1) == [job_id(3)]


async def test_large_entries_are_carried_a_few_at_a_time(store: ClusterBackend) -> None:
    source, target = parts(store)
    await store.insert([row(1, queue=HERE)], T0)
    [job] = (await store.claim(Claim("w1", (HERE,), 1, LEASE), T0)).jobs
    spawned = [row(n, queue=THERE, cells={"blob": bytes(1 << 20)}) for n in range(2, 22)]
    assert await source.finish([settle(job, spawn=spawned)], T0) == [JobState.COMPLETED]
    assert len(await source.outbox(target.number)) == 4
    await store.reap(Reap(), T0)
    assert [queue.available for queue in (await store.stats(T0)).queues if queue.queue == THERE] == [20]


# -- leases


async def test_the_shard_that_gave_a_lease_is_believed_that_it_is_gone_whoever_else_is_away(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    _, target = parts(store)
    await store.insert([row(1, queue=HERE)])
    [job] = (await store.claim(Claim("w1", (HERE,), 1, LEASE))).jobs
    assert await store.finish([settle(job)]) == [JobState.COMPLETED]
    async with moving(own, target):
        assert await store.finish([settle(job)]) == [None]
        states, _ = await store.finish_and_claim([settle(job)], Claim("w1", (HERE,), 1, LEASE))
        assert states == [None]
        renewed = await store.renew(Beat("w1", "pod", (HERE,), LEASE, [(job.id, job.epoch)]))
        assert (list(renewed.lost), list(renewed.busy)) == ([(job.id, job.epoch)], [])


async def test_a_worker_is_listed_everywhere(store: ClusterBackend) -> None:
    """A shard lets it take back leases only if it has had its beats."""
    source, target = parts(store)
    await store.renew(Beat("w1", "pod", (HERE,), LEASE), T0)
    listed = {part.number: list((await part.numbers(T0, None))[1]) for part in (source, target)}
    assert listed == {source.number: [b"w1"], target.number: [b"w1"]}
    assert [worker.worker for worker in (await store.stats(T0)).workers] == ["pod"]
    await store.renew(Beat("w1", "pod", (HERE,), LEASE, leaving=True), T0)
    assert (await store.stats(T0)).workers == []


# -- what is swept


AGED = SweepClause(target=SweepTarget.COMPLETED, older_than=SECOND, limit=10)


async def done(store: ClusterBackend, first: int, count: int, *, ttl: int, at: int) -> None:
    """Jobs of two queues that have completed, with a result that is held for so long."""
    queues = (HERE, THERE)
    await store.insert([row(n, queue=queues[n % 2], run_at=at) for n in range(first, first + count)], at)
    for _ in range(0, count, 500):
        claimed = await store.claim(Claim("w1", queues, 500, LEASE), at)
        await store.finish([settle(job, result=b"r", result_ttl=ttl) for job in claimed.jobs], at)


@pytest.mark.parametrize("bounded", [False, True], ids=["by age", "and by count"])
async def test_a_sweep_gets_past_results_that_are_held(store: ClusterBackend, bounded: bool) -> None:
    """In bounded steps which say that there is more; whatever lies behind them goes, and they stay."""
    clause = replace(AGED, max_count=10_000) if bounded else AGED
    await done(store, 0, 5_000, ttl=HOUR, at=T0)
    await done(store, 5_000, 25, ttl=0, at=T0 + 1)
    assert (await store.sweep(replace(clause, dry_run=True), T0 + 2 * SECOND)).more is False
    removed, calls, more = 0, 0, True
    while more:
        swept = await store.sweep(clause, T0 + 2 * SECOND)
        removed, calls, more = removed + swept.removed, calls + 1, swept.more
        assert calls < 20
    assert removed == 25
    assert (await store.sweep(clause, T0 + 3 * SECOND)) == Swept(0, 0, 5_000, False)
    await done(store, 6_000, 5, ttl=0, at=T0 + 3 * SECOND)
    assert (await store.sweep(clause, T0 + 5 * SECOND)).removed == 5
    swept = await store.sweep(replace(clause, limit=100), T0 + 2 * HOUR)
    assert (swept.removed, swept.more) == (100, True)


def looks(own: ValkeyCluster) -> int:
    """How often the servers were asked for states of jobs."""
    said = [node.info("commandstats").get("cmdstat_hmget", "calls=0") for node in own.nodes]
    return sum(int(one.partition("calls=")[2].partition(",")[0]) for one in said)


async def test_what_is_held_is_not_walked_over_each_time(own: ValkeyCluster, store: ClusterBackend) -> None:
    await done(store, 0, 2_000, ttl=HOUR, at=T0)
    while (await store.sweep(AGED, T0 + 2 * SECOND)).more:
        pass
    before = looks(own)
    assert (await store.sweep(AGED, T0 + 3 * SECOND)).removed == 0
    assert looks(own) == before


async def test_what_lies_between_held_ones_goes_in_any_number_of_steps(store: ClusterBackend) -> None:
    queues = (HERE, THERE)
    await store.insert([row(n, queue=queues[n % 2]) for n in range(100)], T0)
    claimed = await store.claim(Claim("w1", queues, 100, LEASE), T0)
    await store.finish([settle(job, result_ttl=n // 2 % 2 * HOUR) for n, job in enumerate(claimed.jobs)], T0)
    swept = [await store.sweep(AGED, T0 + 2 * SECOND) for _ in range(6)]
    assert [one.removed for one in swept] == [10, 10, 10, 10, 10, 0]
    assert [one.more for one in swept] == [True, True, True, True, False, False]


# -- schedules


async def test_what_the_others_have_is_planned_while_a_shard_is_away(own: ValkeyCluster, store: ClusterBackend) -> None:
    """But nobody can say then that a name is free, or which schedules there are."""
    queues = (HERE, THERE)
    assert all(await store.ticks.save([Save(schedule(n, queue=queue), 0) for n, queue in enumerate(queues)], T0))
    async with moving(own, parts(store)[0]):
        [one] = (await store.ticks.due(Look(), T0)).schedules
        assert one.queue == THERE
        assert await store.ticks.plan([moved(one, fires(T0, 1, queue=THERE))], T0) == [[TickOutcome.FIRED]]
        with pytest.raises(Unavailable):
            await store.ticks.find(ScheduleSelector())
        with pytest.raises(Unavailable):
            await store.ticks.save([Save(schedule(3, queue=THERE), 0)], T0)
        with pytest.raises(Unavailable):
            await store.ticks.history(uid(0))
    assert [one.queue for one in (await store.ticks.due(Look(), T0)).schedules] == [HERE]


async def test_a_schedule_is_not_planned_while_the_shard_is_away_that_has_its_earlier_ticks(
    own: ValkeyCluster, store: ClusterBackend
) -> None:
    await store.ticks.save([Save(schedule(1, queue=HERE), 0)], T0)
    await store.ticks.plan([Plan("s000001", uid(1), 1, [fires(T0, 1)], T0, T0)], T0)
    await store.ticks.save([Save(schedule(1, queue=THERE), 2)], T0)
    async with moving(own, parts(store)[0]):
        [one] = (await store.ticks.due(Look(), T0)).schedules
        with pytest.raises(Unavailable):
            await store.ticks.plan([moved(one, fires(T0, 2, queue=THERE))], T0)
    assert await store.ticks.plan([moved(one, fires(T0, 2, queue=THERE))], T0) == [[None]]


async def test_a_schedule_for_a_shard_that_is_away_arrives_later(own: ValkeyCluster, store: ClusterBackend) -> None:
    """Where it was it is not planned any more, and nobody makes another one of its name meanwhile."""
    await store.ticks.save([Save(schedule(1, queue=HERE), 0)], T0)
    source, target = parts(store)
    gone = Alteration("s000001", 1, schedule(1, queue=THERE), (source.number,), target.number)
    async with moving(own, target):
        assert await source.ticks.change([gone], T0) == [True]
        assert (await store.ticks.due(Look(), T0)).schedules == []
        with pytest.raises(Unavailable):
            await store.ticks.save([Save(schedule(1, queue=HERE), 0)], T0)
    await store.reap(Reap(), T0)
    [one] = (await store.ticks.due(Look(), T0)).schedules
    assert (one.queue, one.version) == (THERE, 2)
