"""What goes from shard to shard arrives once, whichever process carries it and wherever that stops."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.backends.redis import ClusterBackend
from headrace.backends.redis.cluster.shard import HERE as HERE_NOW
from headrace.backends.redis.cluster.shard import UNKNOWN, ClusterShard
from headrace.seam.policy import Policy
from headrace.seam.records import (
    Altered,
    Cancel,
    Claim,
    InsertStatus,
    JobKey,
    Leased,
    Move,
    Reap,
    Row,
    Selector,
    Settlement,
    Watch,
)
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from headrace.types import JobState
from tests.valkey_cluster import stores

pytestmark = pytest.mark.asyncio

HERE, THERE = "q", "other"
"""Queues of two shards."""


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[ClusterBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest_asyncio.fixture
async def stranger(store: ClusterBackend) -> AsyncIterator[ClusterBackend]:
    """Another process: it has seen none of the jobs."""
    backend = store.sibling()
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


def parts(store: ClusterBackend) -> tuple[ClusterShard, ClusterShard]:
    source, target = store.shards.shard_of(HERE), store.shards.shard_of(THERE)
    assert source.number != target.number
    return source, target


async def take(store: ClusterBackend, *queues: str, at: int = T0) -> list[Leased]:
    return (await store.claim(Claim("w1", queues, 100, LEASE), at)).jobs


async def send(store: ClusterBackend, **changes: object) -> Leased:
    """Job 1 has gone from HERE to THERE with all that it has, and job 2 is spawned there; nobody has carried them."""
    await store.insert([row(1, queue=HERE, key="k", reply_to="me", expires=100 * SECOND, priority=3)], T0)
    [job] = await take(store, HERE)
    given = {
        "queue": THERE,
        "delay": 0,
        "error": b"e",
        "cells": {"blob": b"b"},
        "spawn": [row(2, queue=THERE, key="s")],
    }
    source, _ = parts(store)
    sent = settle(job, JobState.AVAILABLE, **(given | changes))
    assert await source.finish([sent], T0) == [sent.state]
    return job


class Carrier:
    """The three steps of one who carries, each when it is told to."""

    def __init__(self, store: ClusterBackend) -> None:
        self._source, self._target = parts(store)
        self._entries: list[bytes] = []
        self._upto = b""
        self.steps: Iterator[Callable[[], Awaitable[None]]] = iter((self._read, self._hand_over, self._tell))

    async def _read(self) -> None:
        self._entries = await self._source.outbox(self._target.number)

    async def _hand_over(self) -> None:
        if self._entries:
            self._upto = await self._target.receive(self._source.number, self._entries)

    async def _tell(self) -> None:
        await self._source.outbox(self._target.number, self._upto)


async def check_arrived(store: ClusterBackend) -> None:
    """Both are there, once, and whole; nothing is left on the way."""
    source, target = parts(store)
    assert await source.outbox(target.number) == []
    assert HERE_NOW not in (await source.locate([job_id(1), job_id(2)], []))[0]
    [first, second] = await store.fetch([job_id(1), job_id(2)], frozenset({"blob", "parameters", "error"}), T0)
    assert first is not None
    assert second is not None
    assert (first.state, first.queue, first.key, first.priority) == (JobState.AVAILABLE, THERE, "k", 3)
    assert (first.cells, first.error, first.run_at) == ({"parameters": b"{}", "blob": b"b"}, b"e", T0)
    assert (first.epoch, first.enqueued_at, first.expires_at) == (T0, T0, T0 + 100 * SECOND)
    assert (second.queue, second.enqueued_at, second.run_at) == (THERE, T0, T0)
    [queue] = (await store.stats(T0)).queues
    assert (queue.queue, queue.available) == (THERE, 2)
    assert [(job.id, job.epoch) for job in await take(store, HERE, THERE)] == [(job_id(2), T0), (job_id(1), T0 + 1)]
    assert await take(store, HERE, THERE) == []
    assert (await store.insert([row(3, queue=HERE, key="k")], T0))[0].status is InsertStatus.NEW


# -- carriers that die


@pytest.mark.parametrize("done", range(4))
async def test_what_a_carrier_has_left_undone_the_next_reap_does(
    store: ClusterBackend, stranger: ClusterBackend, done: int
) -> None:
    await send(store)
    for step in itertools.islice(Carrier(store).steps, done):
        await step()
    await stranger.reap(Reap(), T0)
    await check_arrived(stranger)


@pytest.mark.parametrize("done", range(4))
async def test_a_step_that_is_repeated_changes_nothing(store: ClusterBackend, done: int) -> None:
    await send(store)
    for carrier in (Carrier(store), Carrier(store)):
        for step in itertools.islice(carrier.steps, done):
            await step()
            await step()
    await store.reap(Reap(), T0)
    await check_arrived(store)


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("AAABBB"))), ids="".join)
async def test_two_carriers_do_not_disturb_each_other(store: ClusterBackend, order: tuple[str, ...]) -> None:
    await send(store)
    carriers = {"A": Carrier(store), "B": Carrier(store)}
    for name in order:
        await next(carriers[name].steps)()
    await check_arrived(store)


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_carrier_that_comes_late_does_not_bring_back_what_is_done(store: ClusterBackend, steps: int) -> None:
    await send(store)
    late = Carrier(store)
    for step in itertools.islice(late.steps, steps):
        await step()
    await store.reap(Reap(), T0)
    done = await take(store, THERE)
    assert await store.finish([settle(job, keep=False) for job in done], T0) == [JobState.COMPLETED] * 2
    for step in late.steps:
        await step()
    assert await store.fetch([job_id(1), job_id(2)], at=T0) == [None, None]
    assert (await store.stats(T0)).queues == []


async def test_many_entries_are_carried_in_pieces_and_in_order(store: ClusterBackend) -> None:
    await store.insert([row(1, queue=HERE)], T0)
    [job] = await take(store, HERE)
    spawned = [row(n, queue=THERE) for n in range(2, 502)]
    await store.finish([settle(job, spawn=spawned)], T0)
    assert [job.id for job in (await store.claim(Claim("w1", (THERE,), 1_000, LEASE), T0)).jobs] == [
        one.id for one in spawned
    ]


async def test_a_carrier_that_comes_late_takes_nothing_away_from_a_job_that_came_back(store: ClusterBackend) -> None:
    """There and back, and there again, while the one who carried it first has yet to tell that it arrived."""
    await send(store, spawn=())
    late = Carrier(store)
    await next(late.steps)()
    await next(late.steps)()
    back = [await take(store, THERE)]
    await store.finish([settle(back[0][0], JobState.AVAILABLE, queue=HERE)], T0)
    again = await take(store, HERE)
    source, target = parts(store)
    assert await source.finish([settle(again[0], JobState.AVAILABLE, queue=THERE)], T0) == [JobState.AVAILABLE]
    await next(late.steps)()
    await store.reap(Reap(), T0)
    assert [(job.id, job.epoch, job.key, job.error) for job in await take(store, HERE, THERE)] == [
        (job_id(1), T0 + 3, "k", b"e")
    ]
    assert await source.outbox(target.number) == []


# -- what is seen on the way


async def test_a_job_on_its_way_is_seen_once(store: ClusterBackend, stranger: ClusterBackend) -> None:
    await send(store)
    for done in range(4):
        carrier = Carrier(store)
        for step in itertools.islice(carrier.steps, done):
            await step()
        for backend in (store, stranger):
            [record] = await backend.fetch([job_id(1)], at=T0)
            assert record is not None
            assert (record.queue, record.state, record.cancel_requested) == (THERE, JobState.AVAILABLE, False)
            seen = [record.id for record in (await backend.scan(Selector(), at=T0)).records]
            assert seen.count(job_id(1)) == 1
    assert await take(store, HERE) == []


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("known", [True, False])
async def test_a_change_to_a_job_first_finishes_its_move(
    store: ClusterBackend, stranger: ClusterBackend, done: int, known: bool
) -> None:
    await send(store)
    for step in itertools.islice(Carrier(store).steps, done):
        await step()
    [altered] = await (store if known else stranger).alter(Selector(ids=[job_id(1)]), Cancel(), T0)
    assert altered == Altered(job_id(1), JobState.AVAILABLE, JobState.CANCELLED, True, THERE, "k")
    [record] = await store.fetch([job_id(1)], at=T0)
    assert record is not None
    assert record.state is JobState.CANCELLED


async def test_a_lease_that_has_gone_cannot_be_settled_again(store: ClusterBackend, stranger: ClusterBackend) -> None:
    job = await send(store)
    for backend in (store, stranger):
        assert await backend.finish([settle(job)], T0) == [None]
    await check_arrived(store)


# -- what arrives


@pytest.mark.parametrize("end", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED])
async def test_a_job_may_move_as_it_ends(store: ClusterBackend, end: JobState) -> None:
    await store.insert([row(1, queue=HERE, key="k")], T0)
    [job] = await take(store, HERE)
    done = settle(job, end, queue=THERE, result=b"r", result_ttl=SECOND, error=b"e", reason="why")
    assert await store.finish([done], T0) == [end]
    [record] = await store.fetch([JobKey(THERE, "k")], frozenset({"result", "error"}), T0)
    assert record is not None
    assert (record.id, record.state, record.error) == (job_id(1), end, b"e")
    assert record.result == (b"r" if end is JobState.COMPLETED else None)
    [queue] = (await store.stats(T0)).queues
    assert queue.queue == THERE
    places = {place.target: place.count for place in (await store.stats(T0)).kept}
    nothing = {"completed": 0, "cancelled": 0, "failed": 0, "keys": 0, "ticks": 0}
    assert places == nothing | ({end.value: 1} if end.terminal else {})


async def test_the_waiters_of_a_job_go_with_it(store: ClusterBackend) -> None:
    assert store.hints is not None
    await store.insert([row(1, queue=HERE, reply_to="a")], T0)
    await store.alter(Selector(ids=[job_id(1)]), Move(THERE), T0)
    await store.alter(Selector(ids=[job_id(1)]), Watch("b"), T0)
    async with store.hints.listen(["inbox:a", "inbox:b"]) as hints:
        await store.finish([settle(job) for job in await take(store, THERE)], T0)
        assert {(await anext(hints)).topic for _ in range(2)} == {"inbox:a", "inbox:b"}


async def test_a_job_that_arrives_wakes_those_who_wait_for_its_queue(store: ClusterBackend) -> None:
    assert store.hints is not None
    await store.insert([row(1, queue=HERE)], T0)
    async with store.hints.listen([f"queue:{THERE}"]) as hints:
        await store.alter(Selector(queue=HERE), Move(THERE), T0)
        assert (await anext(hints)).topic == f"queue:{THERE}"


async def test_of_several_jobs_with_one_key_the_first_moves(store: ClusterBackend) -> None:
    queues = [HERE, "a", "b"]
    await store.insert([row(n, queue=queue, key="k") for n, queue in enumerate(queues)], T0)
    answers = await store.alter(Selector(), Move(THERE), T0)
    assert [(one.id, one.changed, one.queue) for one in answers] == [
        (job_id(0), True, THERE),
        (job_id(1), False, "a"),
        (job_id(2), False, "b"),
    ]


# -- inserts that are repeated


@pytest.mark.parametrize("known", [True, False])
async def test_an_insert_repeated_after_the_job_has_left_its_shard_is_known(
    store: ClusterBackend, stranger: ClusterBackend, known: bool
) -> None:
    first = row(1, queue=HERE)
    await store.insert([first], T0)
    [job] = await take(store, HERE)
    await store.finish([settle(job, JobState.FAILED, queue=THERE, failed_attempt=True)], T0)
    [again] = await (store if known else stranger).insert([first], T0)
    assert (again.status, again.id, again.state, again.attempt) == (InsertStatus.SAME, first.id, JobState.FAILED, 1)


async def test_once_its_record_is_gone_it_is_a_new_job(store: ClusterBackend, stranger: ClusterBackend) -> None:
    rows: list[Row] = [row(1, queue=HERE), row(2, queue=HERE)]
    await store.insert(rows, T0)
    moved = await store.alter(Selector(ids=[job_id(1)]), Move(THERE), T0)
    assert moved[0].changed
    done = [Settlement(job.id, job.epoch, "w1", JobState.COMPLETED, keep=False) for job in await take(store, THERE)]
    assert await store.finish(done, T0) == [JobState.COMPLETED]
    assert [one.status for one in await stranger.insert(rows, T0)] == [InsertStatus.NEW, InsertStatus.SAME]
    assert [job.id for job in await take(store, HERE)] == [job_id(1), job_id(2)]


# -- jobs that find no room, and go to another queue


async def fill_up(store: ClusterBackend, *queues: str) -> None:
    """One job waits in each of these, and no other may."""
    for n, queue in enumerate(queues, start=100):
        await store.policies.save(Policy(queue=queue, depth=1), T0)
        await store.insert([row(n, queue=queue)], T0)


async def make_room(store: ClusterBackend, queue: str) -> None:
    assert await store.policies.save(Policy(queue=queue, version=1), T0)


@pytest.mark.parametrize("known", [True, False])
async def test_a_job_that_went_to_another_queue_is_known_when_it_is_enqueued_again(
    store: ClusterBackend, stranger: ClusterBackend, known: bool
) -> None:
    await fill_up(store, HERE)
    [refused] = await store.insert([row(1, queue=HERE)], T0)
    [stored] = await store.insert([row(1, queue=THERE)], T0)
    assert (refused.status, stored.status) == (InsertStatus.FULL, InsertStatus.NEW)
    await make_room(store, HERE)
    rows = [row(1, queue=HERE), row(2, queue=HERE)]
    answers = await (store if known else stranger).insert(rows, T0)
    assert [one.status for one in answers] == [InsertStatus.SAME, InsertStatus.NEW]
    assert [job.id for job in await take(store, HERE, THERE)] == [job_id(1), job_id(2), job_id(100)]


async def test_a_job_that_no_queue_has_room_for_is_stored_when_one_has(store: ClusterBackend) -> None:
    await fill_up(store, HERE, THERE)
    for _ in range(3):
        for queue in (HERE, THERE):
            [refused] = await store.insert([row(1, queue=queue)], T0)
            assert refused.status is InsertStatus.FULL
    source, target = parts(store)
    assert [(await part.locate([job_id(1)], ()))[0] for part in (source, target)] == [[UNKNOWN], [UNKNOWN]]
    await make_room(store, HERE)
    assert [one.status for one in await store.insert([row(1, queue=HERE)], T0)] == [InsertStatus.NEW]
    assert [one.status for one in await store.insert([row(1, queue=HERE)], T0)] == [InsertStatus.SAME]


async def test_a_job_that_another_process_has_stored_meanwhile_takes_no_detour(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    await fill_up(store, HERE)
    [refused] = await store.insert([row(1, queue=HERE)], T0)
    await make_room(store, HERE)
    await stranger.insert([row(1, queue=HERE)], T0)
    [known] = await store.insert([row(1, queue=THERE)], T0)
    assert (refused.status, known.status) == (InsertStatus.FULL, InsertStatus.SAME)
    assert await take(store, THERE) == []


async def test_a_detour_that_was_begun_and_not_taken_holds_up_nothing(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    source, _ = parts(store)
    assert await source.trace([job_id(1)]) == []
    assert [one.status for one in await stranger.insert([row(1, queue=HERE)], T0)] == [InsertStatus.NEW]
