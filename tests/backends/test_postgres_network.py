"""PostgreSQL over a bad network: replies that are lost, connections that are cut, hosts that say nothing any more."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from servers.proxy import Proxy

from headrace import App, Client, EventKind, JobState, Settings
from headrace.backends.postgres import PostgresBackend, connections, hints
from headrace.errors import Unavailable
from headrace.seam.records import Beat, Cancel, Claim, InsertStatus, Place, Reap, Selector, SweepClause
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from tests.postgres import SCHEMA, server, stores
from tests.worker.conftest import FAST, Told, working

BEAT = Beat("w1", "w1", ("q",), LEASE)
CLAIM = Claim("w1", ("q",), 10, LEASE)
SHORT = 1.0
"""Seconds that a call may take, where a test waits for that."""
FAULTS = 15


@pytest.fixture
def line() -> Iterator[Proxy]:
    with Proxy(server().port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresBackend]:
    """The store without a network between."""
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@pytest_asyncio.fixture
async def far(store: PostgresBackend, line: Proxy) -> AsyncIterator[PostgresBackend]:
    """The same store at the end of the line; its statements go out whole, each in one packet."""
    backend = distant(line, listen=False, prepare=False)
    await backend.open()
    yield backend
    await backend.close()


def distant(line: Proxy, **options: Any) -> PostgresBackend:
    return PostgresBackend(f"postgresql://headrace@127.0.0.1:{line.port}/postgres", schema=SCHEMA, **options)


async def lost(line: Proxy, call: Awaitable[Any]) -> None:
    """The server does what is asked and nobody hears of it."""
    before = line.swallowed
    line.swallow_replies()
    with pytest.raises(Unavailable):
        await call
    assert line.swallowed == before + 1


class TestLostReplies:
    """Whatever was done, its repetition says so and does nothing more."""

    async def test_insert(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        rows = [row(1), row(2, key="k"), row(3, key="k")]
        await lost(line, far.insert(rows, T0))
        assert [answer.status for answer in await far.insert(rows, T0)] == [
            InsertStatus.SAME, InsertStatus.SAME, InsertStatus.DUPLICATE,
        ]  # fmt: skip
        [queue] = (await store.stats(T0)).queues
        assert queue.available == 2

    async def test_claim(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await lost(line, far.claim(CLAIM, T0))
        assert (await far.claim(CLAIM, T0)).jobs == []
        assert [job.state for job in await store.reap(Reap(), T0 + LEASE)] == [JobState.AVAILABLE]
        [job] = (await far.claim(CLAIM, T0 + LEASE)).jobs
        assert (job.epoch, job.lost, job.attempt) == (T0 + LEASE, 1, 0)

    async def test_finish(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1), row(2)], T0)
        [one, two] = (await far.claim(CLAIM, T0)).jobs
        batch = [settle(one, result=b"r", result_ttl=SECOND), settle(two, spawn=[row(3)])]
        await lost(line, far.finish(batch, T0))
        assert await far.finish(batch, T0) == [None, None]
        records = await store.fetch([job_id(n) for n in (1, 2, 3)], frozenset({"result"}), T0)
        assert [record.state for record in records if record] == [
            JobState.COMPLETED, JobState.COMPLETED, JobState.AVAILABLE,
        ]  # fmt: skip
        assert records[0] is not None
        assert records[0].result == b"r"

    async def test_turn(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1), row(2)], T0)
        [one] = (await far.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs
        await lost(line, far.finish_and_claim([settle(one)], CLAIM, T0))
        states, claimed = await far.finish_and_claim([settle(one)], CLAIM, T0)
        assert (states, claimed.jobs) == ([None], [])
        records = await store.fetch([job_id(1), job_id(2)], at=T0)
        assert [record.state for record in records if record] == [JobState.COMPLETED, JobState.RUNNING]

    async def test_renew(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        [job] = (await far.claim(CLAIM, T0)).jobs
        beat = Beat("w1", "w1", ("q",), LEASE, [(job.id, job.epoch)])
        await lost(line, far.renew(beat, T0 + LEASE - 1))
        assert not (await far.renew(beat, T0 + LEASE - 1)).lost
        assert await store.reap(Reap(), T0 + LEASE) == []

    async def test_reap(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await store.claim(CLAIM, T0)
        await lost(line, far.reap(Reap(), T0 + LEASE))
        assert await far.reap(Reap(), T0 + LEASE) == []
        [record] = await store.fetch([job_id(1)], at=T0 + LEASE)
        assert record is not None
        assert (record.state, record.lost) == (JobState.AVAILABLE, 1)

    async def test_alter(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        cancel = Selector(ids=[job_id(1)]), Cancel()
        await lost(line, far.alter(*cancel, T0))
        [altered] = await far.alter(*cancel, T0)
        assert (altered.before, altered.after, altered.changed) == (JobState.CANCELLED, JobState.CANCELLED, False)

    async def test_sweep(self, store: PostgresBackend, far: PostgresBackend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await store.finish([settle((await store.claim(CLAIM, T0)).jobs[0])], T0)
        clause = SweepClause(place=Place.COMPLETED, older_than=0)
        await lost(line, far.sweep(clause, T0 + 1))
        assert (await far.sweep(clause, T0 + 1)).kept == 0
        assert (await far.sweep(clause, T0 + 1)).removed == 0
        assert await store.fetch([job_id(1)], at=T0 + 1) == [None]


CALLS: dict[str, Callable[[PostgresBackend], Awaitable[Any]]] = {
    "insert": lambda backend: backend.insert([row(1)], T0),
    "claim": lambda backend: backend.claim(CLAIM, T0),
    "renew": lambda backend: backend.renew(BEAT, T0),
    "reap": lambda backend: backend.reap(Reap(), T0),
    "fetch": lambda backend: backend.fetch([job_id(1)], at=T0),
    "stats": lambda backend: backend.stats(T0),
    "open": lambda backend: backend.sibling().open(),
}


@pytest.mark.parametrize("ways", [{"up": True, "down": True}, {"up": True, "down": False}, {"up": False, "down": True}])
async def test_no_call_hangs(
    ways: dict[str, bool], far: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C05: there are more of them than connections, so some also wait for a place."""
    monkeypatch.setattr(connections, "_LIMIT", SHORT)
    monkeypatch.setattr(connections, "_GRACE", 0.0)
    line.blackhole(**ways)
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(call(far) for call in CALLS.values()), return_exceptions=True)
    took = asyncio.get_running_loop().time() - began
    assert {type(answer) for answer in answers} == {Unavailable}, answers
    assert took < 25
    line.heal()
    assert (await far.insert([row(2)], T0))[0].status is InsertStatus.NEW


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(
    store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a call that was given up is left behind on the server: here one that waits for a key of a transaction
    that does not end."""
    monkeypatch.setattr(connections, "_LIMIT", SHORT)
    monkeypatch.setattr(connections, "_GRACE", 10.0)
    backend = distant(line)
    await backend.open()
    async with store._connections.connection() as other, other.transaction():
        await other.execute(f"LOCK TABLE {SCHEMA}.jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="statement timeout"):
            await backend.insert([row(1)], T0)
        waiting = await (await other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")).fetchone()
    assert waiting == (0,)
    assert (await backend.insert([row(1)], T0))[0].status is InsertStatus.NEW
    await backend.close()


async def test_a_call_that_is_broken_off_ends_at_once_and_takes_its_connection_along(
    far: PostgresBackend, line: Proxy
) -> None:
    line.blackhole()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await far.stats(T0)
    assert loop.time() - began < 25
    line.heal()
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW


async def test_connections_that_were_cut_while_nobody_used_them_trouble_nobody(
    far: PostgresBackend, line: Proxy
) -> None:
    await asyncio.gather(*(far.stats(T0) for _ in range(8)))
    for number in range(5):
        line.reset()
        assert (await far.insert([row(number)], T0))[0].status is InsertStatus.NEW


async def test_a_slow_line_only_takes_time(far: PostgresBackend, line: Proxy) -> None:
    line.delay(0.2)
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW
    [job] = (await far.claim(CLAIM, T0)).jobs
    assert await far.finish([settle(job)], T0) == [JobState.COMPLETED]


@pytest.mark.parametrize("way", ["arrays", "copy"])
async def test_a_large_batch_has_the_time_that_a_thin_line_takes(
    store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """On the server too, which counts while the bytes arrive."""
    monkeypatch.setattr(connections, "_LIMIT", 1.0)
    monkeypatch.setattr(connections, "_SLOWEST", 1024 * 1024)
    backend = distant(line, listen=False)
    await backend.open()
    line.throttle(2 * 1024 * 1024)
    key = "k" if way == "arrays" else None
    assert (await backend.insert([row(1, key=key, cells={"blob": bytes(4 * 1024 * 1024)})], T0))[
        0
    ].status is InsertStatus.NEW
    await backend.close()


async def test_an_answer_that_is_arriving_is_waited_for(
    store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the claim did is done: to give it up now would lose the jobs to a lease that nobody knows of."""
    monkeypatch.setattr(connections, "_LIMIT", 0.5)
    monkeypatch.setattr(connections, "_GRACE", 0.5)
    await store.insert([row(1, cells={"blob": bytes(3 * 1024 * 1024)})], T0)
    backend = distant(line, listen=False, prepare=False)
    await backend.open()
    line.throttle(1024 * 1024)
    [job] = (await backend.claim(CLAIM, T0)).jobs
    assert len(job.cells["blob"]) == 3 * 1024 * 1024
    await backend.close()


async def test_the_kernel_watches_over_connections(far: PostgresBackend, line: Proxy) -> None:
    """A machine that vanishes sends no goodbye: without these, the kernel would wait for hours."""
    session = await far._connections._take(asyncio.get_running_loop().time() + 30)
    with socket.socket(fileno=socket.dup(session.pgconn.socket)) as raw:
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9_000
    far._connections._give(session)


def make_app(backend: PostgresBackend, **worker: Any) -> App:
    settings = Settings.load({"worker": FAST | {"name": "random"} | worker}, env={}, toml={})
    return App(Client(backend, settings))


@pytest.mark.parametrize("fault", ["reset", "swallow_replies", "stall"])
async def test_a_worker_on_a_bad_line_loses_nothing_and_doubles_nothing(
    fault: str, store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C05: producer and worker at the end of a line that breaks again and again."""
    monkeypatch.setattr(connections, "_LIMIT", SHORT)
    app = make_app(distant(line), lease="2s", max_lost=FAULTS)
    ran: Counter[int] = Counter()
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work(number: int) -> int:
        ran[number] += 1
        await asyncio.sleep(0.002)
        return number

    faults = FAULTS if fault != "stall" else 3
    ids = []
    async with working(app):
        for number in range(10 * faults):
            if number % 10 == 0:
                getattr(line, fault)()
            ids += [answer.id for answer in await app.client.insert([work.job(number)])]
        line.heal()
        await told.wait_for(EventKind.COMPLETED, 10 * faults)
    records = [record for record in await store.fetch(ids) if record]
    assert Counter(record.state for record in records) == {JobState.COMPLETED: 10 * faults}
    assert {record.attempt for record in records} == {0}
    assert [number for number in range(10 * faults) if not ran[number]] == []
    [queue] = (await store.stats()).queues
    assert (queue.completed, queue.available, queue.running, queue.failed) == (10 * faults, 0, 0, 0)


async def test_a_heartbeat_on_a_silent_connection_gets_through_on_another(store: PostgresBackend, line: Proxy) -> None:
    """Well before the leases that it keeps run out, and long before the call's own limit."""
    app = make_app(distant(line), lease="6s")
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
        line.stall()
        leases = {await lease_until(store, answer.id)}
        async with asyncio.timeout(60):
            while len(leases) < 4:
                leases.add(await lease_until(store, answer.id))
                await asyncio.sleep(0.05)
        line.reset()
        enough.set()
        await told.wait_for(EventKind.COMPLETED)
    assert EventKind.LEASE_LOST not in told.kinds()
    assert EventKind.STALLED not in told.kinds()


async def lease_until(store: PostgresBackend, name: bytes) -> int | None:
    [record] = await store.fetch([name])
    assert record is not None
    return record.lease_until


async def test_hints_come_again_after_the_listener_was_cut(store: PostgresBackend, line: Proxy) -> None:
    """C17: the poll beneath is an hour away, so whatever is found in time was hinted at."""
    app = make_app(distant(line), poll="1h", lease="1s")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    near = make_app(store.sibling())
    async with near, working(app):
        await near.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        for cut in range(10):
            line.reset()
            await near.client.insert([work.job()])
            await told.wait_for(EventKind.COMPLETED, cut + 2)


async def test_a_listener_notices_that_its_connection_has_gone_silent(
    store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_QUIET", 0.2)
    monkeypatch.setattr(hints, "_ANSWER", 0.2)
    backend = distant(line)
    await backend.open()
    listener = backend.hints
    assert listener is not None
    async with listener.listen(["queue:q"]) as stream:
        await store.insert([row(1)], T0)
        assert (await anext(stream)).topic == "queue:q"
        line.stall()
        with pytest.raises(Unavailable, match="no answer"):
            await anext(stream)
    async with listener.listen(["queue:q"]) as stream:
        await store.insert([row(2)], T0)
        assert (await anext(stream)).topic == "queue:q"
    await backend.close()


async def test_nobody_can_end_a_worker_by_a_hint(store: PostgresBackend) -> None:
    """Every role of the database may NOTIFY on every channel, whatever it likes."""
    app, told = make_app(store.sibling(), poll="1h"), Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    async with working(app):
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        for payload in ("zz", "00", "x" * 7_000, ""):
            await store._connections.rows("SELECT pg_notify(%s, %s)", (hints.channel(SCHEMA, "queue:q"), payload))
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED, 2)


async def test_what_nobody_hinted_at_is_found_by_looking(
    store: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: the listener's connection is silent, and it will not notice for an hour."""
    monkeypatch.setattr(connections, "_LIMIT", SHORT)
    monkeypatch.setattr(hints, "_QUIET", 3_600.0)
    app = make_app(distant(line), poll="300ms", lease="30s")
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
