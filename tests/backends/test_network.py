"""Servers over a bad network: replies that are lost, connections that are cut, hosts that say nothing any more."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from servers.proxy import Proxy

from headrace import App, Client, EventKind, JobState, NewJob, Settings
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, InsertStatus, Reap, Requeue, Selector, SweepClause, SweepTarget
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from tests.backends.networks import Network, OverPostgres, OverValkey
from tests.worker.conftest import FAST, Told, working

Lost = Callable[[Awaitable[Any]], Awaitable[None]]
BEAT = Beat("w1", "w1", ("q",), LEASE)
CLAIM = Claim("w1", ("q",), 10, LEASE)
SHORT = 1.0
"""Seconds that a call may take, or the server may leave it unanswered, where a test waits for that."""
FAULTS = 15
MEGABYTE = 1024 * 1024


@pytest.fixture(params=[OverPostgres(), OverValkey()], ids=["postgres", "valkey"])
def network(request: pytest.FixtureRequest) -> Network:
    found: Network = request.param
    return found


@pytest.fixture
def line(network: Network) -> Iterator[Proxy]:
    with Proxy(network.port()) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(network: Network, tmp_path: Path) -> AsyncIterator[Backend]:
    """The store without a network between."""
    backend = network.near(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@pytest_asyncio.fixture
async def far(network: Network, store: Backend, line: Proxy) -> AsyncIterator[Backend]:
    """The same store at the end of the line."""
    await network.prepare(store)
    backend = network.far(line, whole=True)
    await backend.open()
    yield backend
    await backend.close()


@pytest.fixture
def short(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are given up soon."""
    network.limit(monkeypatch, SHORT)


@pytest.fixture
def lost(network: Network, line: Proxy, short: None) -> Lost:
    """The server does what is asked, and nobody hears of it."""
    return partial(network.lost, line)


class TestLostReplies:
    """Whatever was done, its repetition says so and does nothing more."""

    async def test_insert(self, store: Backend, far: Backend, lost: Lost) -> None:
        rows = [row(1), row(2, key="k"), row(3, key="k")]
        await lost(far.insert(rows, T0))
        assert [answer.status for answer in await far.insert(rows, T0)] == [
            InsertStatus.SAME, InsertStatus.SAME, InsertStatus.DUPLICATE,
        ]  # fmt: skip
        [queue] = (await store.stats(T0)).queues
        assert queue.available == 2

    async def test_claim(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1)], T0)
        await lost(far.claim(CLAIM, T0))
        assert (await far.claim(CLAIM, T0)).jobs == []
        assert [job.state for job in await store.reap(Reap(), T0 + LEASE)] == [JobState.AVAILABLE]
        [job] = (await far.claim(CLAIM, T0 + LEASE)).jobs
        assert (job.epoch, job.lost, job.attempt) == (T0 + LEASE, 1, 0)

    async def test_finish(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1), row(2)], T0)
        [one, two] = (await far.claim(CLAIM, T0)).jobs
        batch = [settle(one, result=b"r", result_ttl=SECOND), settle(two, spawn=[row(3)])]
        await lost(far.finish(batch, T0))
        assert await far.finish(batch, T0) == [None, None]
        records = await store.fetch([job_id(n) for n in (1, 2, 3)], frozenset({"result"}), T0)
        assert [record.state for record in records if record] == [
            JobState.COMPLETED, JobState.COMPLETED, JobState.AVAILABLE,
        ]  # fmt: skip
        assert records[0] is not None
        assert records[0].result == b"r"

    async def test_turn(self, store: Backend, far: Backend, lost: Lost) -> None:
        assert far.finish_and_claim is not None
        await store.insert([row(1), row(2)], T0)
        [one] = (await far.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs
        await lost(far.finish_and_claim([settle(one)], CLAIM, T0))
        states, claimed = await far.finish_and_claim([settle(one)], CLAIM, T0)
        assert (states, claimed.jobs) == ([None], [])
        records = await store.fetch([job_id(1), job_id(2)], at=T0)
        assert [record.state for record in records if record] == [JobState.COMPLETED, JobState.RUNNING]

    async def test_renew(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1)], T0)
        [job] = (await far.claim(CLAIM, T0)).jobs
        beat = Beat("w1", "w1", ("q",), LEASE, [(job.id, job.epoch)])
        await lost(far.renew(beat, T0 + LEASE - 1))
        assert not (await far.renew(beat, T0 + LEASE - 1)).lost
        assert await store.reap(Reap(), T0 + LEASE) == []

    async def test_reap(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1)], T0)
        await store.claim(CLAIM, T0)
        await lost(far.reap(Reap(), T0 + LEASE))
        assert await far.reap(Reap(), T0 + LEASE) == []
        [record] = await store.fetch([job_id(1)], at=T0 + LEASE)
        assert record is not None
        assert (record.state, record.lost) == (JobState.AVAILABLE, 1)

    async def test_alter(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1)], T0)
        cancel = Selector(ids=[job_id(1)]), Cancel()
        await lost(far.alter(*cancel, T0))
        [altered] = await far.alter(*cancel, T0)
        assert (altered.before, altered.after, altered.changed) == (JobState.CANCELLED, JobState.CANCELLED, False)

    async def test_sweep(self, store: Backend, far: Backend, lost: Lost) -> None:
        await store.insert([row(1)], T0)
        await store.finish([settle((await store.claim(CLAIM, T0)).jobs[0])], T0)
        clause = SweepClause(target=SweepTarget.COMPLETED, older_than=0)
        await lost(far.sweep(clause, T0 + 1))
        assert (await far.sweep(clause, T0 + 1)).kept == 0
        assert (await far.sweep(clause, T0 + 1)).removed == 0
        assert await store.fetch([job_id(1)], at=T0 + 1) == [None]


CALLS: dict[str, Callable[[Backend], Awaitable[Any]]] = {
    "insert": lambda backend: backend.insert([row(1)], T0),
    "claim": lambda backend: backend.claim(CLAIM, T0),
    "renew": lambda backend: backend.renew(BEAT, T0),
    "reap": lambda backend: backend.reap(Reap(), T0),
    "fetch": lambda backend: backend.fetch([job_id(1)], at=T0),
    "stats": lambda backend: backend.stats(T0),
}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", CALLS)
async def test_a_request_that_never_got_there_did_nothing(
    name: str, network: Network, store: Backend, far: Backend, line: Proxy
) -> None:
    await network.cut(line, CALLS[name](far))
    assert (await store.stats(T0)).queues == []
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("ways", [{"up": True, "down": True}, {"up": True, "down": False}, {"up": False, "down": True}])
async def test_no_call_hangs(ways: dict[str, bool], network: Network, far: Backend, line: Proxy) -> None:
    """C05: nor one that would have to connect first. PostgreSQL has more calls than connections here."""
    other = far.sibling()
    line.blackhole(**ways)
    calls = [*(call(far) for call in CALLS.values()), other.open()]
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    took = asyncio.get_running_loop().time() - began
    assert {type(answer) for answer in answers} == {Unavailable}, answers
    assert took < 0.8 * network.default_limit
    line.heal()
    assert (await far.insert([row(2)], T0))[0].status is InsertStatus.NEW
    await other.close()


async def test_a_call_that_is_broken_off_ends_at_once_and_its_connection_is_not_used_again(
    network: Network, far: Backend, line: Proxy
) -> None:
    line.blackhole()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await far.stats(T0)
    assert loop.time() - began < network.default_limit / 2
    line.heal()
    if network.shared:  # it stays until its end is noticed
        with suppress(Unavailable):
            await far.stats(T0)
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_gets_another_caller_s_answer(seed: int, store: Backend, far: Backend, line: Proxy) -> None:
    """Though many callers leave without waiting for theirs."""
    chance = random.Random(seed)
    count = 300
    await store.insert([row(n, cells={"parameters": str(n).encode()}) for n in range(count)], T0)
    line.delay(0.005)

    async def ask(number: int) -> int:
        await asyncio.sleep(chance.uniform(0, 0.05))
        [record] = await far.fetch([job_id(number)], frozenset({"parameters"}), T0)
        assert record is not None
        assert (record.id, record.cells["parameters"]) == (job_id(number), str(number).encode())
        return number

    callers = [asyncio.ensure_future(ask(number)) for number in range(count)]
    left = set(chance.sample(range(count), count // 2))
    for number in left:
        asyncio.get_running_loop().call_later(chance.uniform(0, 0.08), callers[number].cancel)
    answers = await asyncio.gather(*callers, return_exceptions=True)
    for number, answer in enumerate(answers):
        assert answer == number or (number in left and isinstance(answer, asyncio.CancelledError)), answer
    assert any(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_nobody_gets_another_caller_s_answer_while_connections_are_cut(
    store: Backend, far: Backend, line: Proxy
) -> None:
    await store.insert([row(n, cells={"parameters": str(n).encode()}) for n in range(30)], T0)
    line.delay(0.002)
    broken = 0

    async def ask(number: int) -> None:
        nonlocal broken
        for _ in range(20):
            try:
                [record] = await far.fetch([job_id(number)], frozenset({"parameters"}), T0)
            except Unavailable:
                broken += 1
            else:
                assert record is not None
                assert record.cells["parameters"] == str(number).encode()

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(number)) for number in range(30)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0.02)
            line.reset()
    assert broken


async def test_connections_that_were_cut_while_nobody_used_them_trouble_nobody(
    network: Network, far: Backend, line: Proxy
) -> None:
    await asyncio.gather(*(far.stats(T0) for _ in range(8)))
    for number in range(5):
        line.reset()
        if network.shared:
            async with asyncio.timeout(60):
                while line.links:
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0.01)
        assert (await far.insert([row(number)], T0))[0].status is InsertStatus.NEW


async def test_a_slow_line_only_takes_time(far: Backend, line: Proxy) -> None:
    line.delay(0.2)
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW
    [job] = (await far.claim(CLAIM, T0)).jobs
    assert await far.finish([settle(job)], T0) == [JobState.COMPLETED]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_large_batch_has_the_time_that_a_thin_line_takes(
    key: str | None, network: Network, store: Backend, line: Proxy
) -> None:
    """Longer than a server may say nothing: it is not silent, the bytes are still on their way. PostgreSQL's server
    counts too while they arrive. It takes jobs without keys by COPY."""
    backend = network.far(line)
    await backend.open()
    line.throttle(2 * MEGABYTE)
    assert (await backend.insert([row(1, key=key, cells={"blob": bytes(5 * MEGABYTE)})], T0))[0].status is (
        InsertStatus.NEW
    )
    await backend.close()


@pytest.mark.usefixtures("short")
async def test_an_answer_that_is_arriving_is_waited_for(store: Backend, far: Backend, line: Proxy) -> None:
    """What the claim did is done: to give it up now would lose the jobs to a lease that nobody knows of."""
    await store.insert([row(1, cells={"blob": bytes(3 * MEGABYTE)})], T0)
    line.throttle(MEGABYTE)
    [job] = (await far.claim(CLAIM, T0)).jobs
    assert len(job.cells["blob"]) == 3 * MEGABYTE


@pytest.mark.usefixtures("short")
async def test_a_large_batch_does_not_keep_small_ones_from_their_answers_for_ever(far: Backend, line: Proxy) -> None:
    line.throttle(2 * MEGABYTE)
    large = far.insert([row(1, cells={"blob": bytes(4 * MEGABYTE)})], T0)
    answers = await asyncio.gather(large, *(far.stats(T0) for _ in range(5)))
    assert answers[0][0].status is InsertStatus.NEW


async def test_the_kernel_watches_over_connections(network: Network, far: Backend) -> None:
    """A machine that vanishes sends no goodbye: without these, the kernel would wait for hours."""
    async with network.raw(far) as raw:
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def make_app(backend: Backend, **worker: Any) -> App:
    settings = Settings.load({"worker": FAST | {"name": "random"} | worker}, env={}, toml={})
    return App(Client(backend, settings))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", ["reset", "lose replies", "stall"])
async def test_a_worker_on_a_bad_line_loses_nothing_and_doubles_nothing(
    fault: str, network: Network, store: Backend, line: Proxy
) -> None:
    """C05: producer and worker at the end of a line that breaks again and again."""
    app = make_app(network.far(line, listen=True), lease="2s", max_lost=FAULTS)
    runs: Counter[int] = Counter()
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work(number: int) -> int:
        runs[number] += 1
        await asyncio.sleep(0.002)
        return number

    async def trouble() -> None:
        if fault == "lose replies":
            await network.lose_replies(line)
        else:
            getattr(line, fault)()

    faults = FAULTS if fault != "stall" else 3
    ids: list[bytes] = []
    async with working(app):
        for number in range(10 * faults):
            if number % 10 == 0:
                await trouble()
            ids += [answer.id for answer in await app.client.insert([work.job(number)])]
        line.heal()
        await told.wait_for(EventKind.COMPLETED, 10 * faults)
    records = [record for record in await store.fetch(ids) if record]
    assert Counter(record.state for record in records) == {JobState.COMPLETED: 10 * faults}
    assert {record.attempt for record in records} == {0}
    assert [number for number in range(10 * faults) if not runs[number]] == []
    [queue] = (await store.stats()).queues
    assert (queue.completed, queue.available, queue.running, queue.failed) == (10 * faults, 0, 0, 0)


JOB = job_id(1)
ASKED: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "enqueue": lambda client: client.enqueue(NewJob(task="t", queue="q")),
    "insert": lambda client: client.insert([NewJob(task="t", queue="q")]),
    "get": lambda client: client.get(JOB),
    "cancel": lambda client: client.cancel(JOB),
    "requeue": lambda client: client.alter(Selector(ids=[JOB]), Requeue()),
    "list": lambda client: client.list_jobs(Selector()),
    "stats": lambda client: client.stats(),
    "now": lambda client: client.store_now(),
    "pause": lambda client: client.pause("q"),
    "resume": lambda client: client.resume("q"),
    "wait": lambda client: client.wait(JOB, 0),
}


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "not opened"])
async def test_patience_is_kept_if_the_server_hangs(
    opened: bool, network: Network, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the limit of a call is; and after that, the same callers are served again."""
    network.limit(monkeypatch, 300.0)
    client = Client(network.far(line), Settings(patience="1s"))
    await store.insert([row(1)])
    if opened:
        await client.open()
    line.blackhole()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(ask(client) for ask in ASKED.values()), return_exceptions=True)
    assert dict(zip(ASKED, map(type, answers), strict=True)) == dict.fromkeys(ASKED, Unavailable), answers
    line.reset()
    line.heal()
    async with asyncio.timeout(60):
        while True:
            with suppress(Unavailable):
                await asyncio.gather(client.enqueue(NewJob(task="t", queue="q")), client.get(JOB))
                break
    await client.close()


async def test_an_enqueue_without_an_answer_says_that_the_job_may_be_stored(
    network: Network, store: Backend, line: Proxy
) -> None:
    client = Client(network.far(line), Settings(patience="1s"))
    jobs = [NewJob(task="t", queue="q", id=UUID(bytes=job_id(number))) for number in (1, 2)]
    await client.open()
    line.blackhole(up=False)
    said = r"may be stored all the same: enqueue the same NewJob again, or one with the same key, and nothing is stored"
    with pytest.raises(Unavailable, match=said):
        await client.enqueue(jobs[0])
    with pytest.raises(Unavailable, match=said):
        await client.insert([jobs[1]])
    line.reset()
    line.heal()
    async with asyncio.timeout(60):
        while True:
            with suppress(Unavailable):
                await client.insert(jobs)
                break
    [queue] = (await store.stats()).queues
    assert queue.available == 2
    await client.close()


async def test_a_heartbeat_on_a_silent_connection_gets_through_on_another(
    network: Network, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Well before the leases that it keeps run out, and long before the call's own limit."""
    network.limit(monkeypatch, 300.0)
    app = make_app(network.far(line, listen=True), lease="6s")
    told = Told()
    app.observe(told)
    started, enough = asyncio.Event(), asyncio.Event()

    @app.task(name="long", queue="q")
    async def long() -> None:
        started.set()
        await enough.wait()

    async with working(app):
        [answer] = await app.client.insert([long.job()])
        await started.wait()
        while not (await store.stats()).workers:
            await asyncio.sleep(0.01)
        line.stall()
        for _ in range(3):
            before = await lease_until(store, answer.id)
            async with asyncio.timeout(60):
                while await lease_until(store, answer.id) == before:
                    await asyncio.sleep(0.05)
        line.reset()
        enough.set()
        await told.wait_for(EventKind.COMPLETED)
    assert EventKind.LEASE_LOST not in told.kinds()
    assert EventKind.STALLED not in told.kinds()


async def lease_until(store: Backend, name: bytes) -> int | None:
    [record] = await store.fetch([name])
    assert record is not None
    return record.lease_until


async def test_hints_come_again_after_the_listener_was_cut(network: Network, store: Backend, line: Proxy) -> None:
    """C17: the poll beneath is an hour away, so whatever is found in time was hinted at."""
    app = make_app(network.far(line, listen=True), poll="1h", lease="1s")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    near = make_app(store.sibling())
    async with near, working(app):
        await near.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        for number in range(10):
            line.reset()
            await near.client.insert([work.job()])
            await told.wait_for(EventKind.COMPLETED, number + 2)


@pytest.mark.parametrize("topic", ["queue:q", "inbox:me"])
async def test_a_listener_notices_that_its_connection_has_gone_silent(
    topic: str, network: Network, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.listen_closely(monkeypatch)
    backend = network.far(line, listen=True)
    await backend.open()
    listener = backend.hints
    assert listener is not None
    async with listener.listen([topic]) as stream:
        await store.insert([row(1, reply_to="me")], T0)
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        assert (await anext(stream)).topic == topic
        line.stall()
        with pytest.raises(Unavailable, match="no answer"):
            await asyncio.wait_for(anext(stream), 60)
    async with listener.listen([topic]) as stream:
        await store.insert([row(2, reply_to="me")], T0)
        await store.alter(Selector(ids=[job_id(2)]), Cancel(), T0)
        assert (await anext(stream)).topic == topic
    await backend.close()


async def test_nobody_can_end_a_worker_by_a_hint(network: Network, store: Backend) -> None:
    """Nor make it deaf: the poll beneath is an hour away."""
    app, told = make_app(store.sibling(), poll="1h"), Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    async with working(app):
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        await network.send_junk_hints(store)
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED, 2)


@pytest.mark.usefixtures("short")
async def test_what_nobody_hinted_at_is_found_by_looking(
    network: Network, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: the listener's connection is silent, and it will not notice for an hour."""
    network.listen_for_ever(monkeypatch)
    app = make_app(network.far(line, listen=True), poll="300ms", lease="30s")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    near = make_app(store.sibling())
    async with near, working(app):
        await near.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        line.stall()
        for number in range(3):
            await near.client.insert([work.job()])
            await told.wait_for(EventKind.COMPLETED, number + 2)
