"""Valkey over a bad network: replies that are lost, connections that are cut, hosts that say nothing any more."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from servers.proxy import Proxy
from servers.valkey import Valkey

from headrace import App, Client, EventKind, JobState, Settings
from headrace.api.connection import open_backend
from headrace.backends.redis import connections, hints
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, InsertStatus, Place, Reap, Selector, SweepClause
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from tests.valkey import every_operation, server, stores
from tests.worker.conftest import FAST, Told, working

BEAT = Beat("w1", "w1", ("q",), LEASE)
CLAIM = Claim("w1", ("q",), 10, LEASE)
SHORT = 1.0
"""Seconds that the server may leave a call unanswered, where a test waits for that."""
FAULTS = 15


@pytest.fixture
def line() -> Iterator[Proxy]:
    with Proxy(server().port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Backend]:
    """The store without a network between."""
    backend: Backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@pytest_asyncio.fixture
async def far(store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    """The same store at the end of the line; every script is known to the server."""
    await every_operation(store)
    server().call("FLUSHALL")
    monkeypatch.setattr(connections, "LIMIT", SHORT)
    backend = distant(line)
    await backend.open()
    yield backend
    await backend.close()


def distant(line: Proxy, *, listen: bool = False) -> Backend:
    return open_backend(f"redis://127.0.0.1:{line.port}/0?listen={'yes' if listen else 'no'}")


def ran() -> int:
    """Scripts that the server has run to their end."""
    found = server().info("commandstats")
    count = 0
    for name in ("eval", "evalsha", "fcall"):
        told = dict(part.split("=") for part in found.get(f"cmdstat_{name}", "calls=0,failed_calls=0").split(","))
        count += int(told["calls"]) - int(told["failed_calls"])
    return count


async def lost(line: Proxy, call: Awaitable[Any]) -> None:
    """The server does what is asked and nobody hears of it."""
    before = ran()
    line.blackhole(up=False, down=True)
    asking = asyncio.ensure_future(call)
    async with asyncio.timeout(60):
        while ran() == before:
            await asyncio.sleep(0.002)
    line.heal()
    with pytest.raises(Unavailable):
        await asking


async def cut(line: Proxy, call: Awaitable[Any]) -> None:
    """The request never gets there."""
    before, taken = ran(), line.taken
    line.blackhole(up=True, down=True)
    asking = asyncio.ensure_future(call)
    async with asyncio.timeout(60):
        while line.taken == taken:
            await asyncio.sleep(0.002)
    line.heal()
    with pytest.raises(Unavailable):
        await asking
    assert ran() == before


class TestLostReplies:
    """Whatever was done, its repetition says so and does nothing more."""

    async def test_insert(self, store: Backend, far: Backend, line: Proxy) -> None:
        rows = [row(1), row(2, key="k"), row(3, key="k")]
        await lost(line, far.insert(rows, T0))
        assert [answer.status for answer in await far.insert(rows, T0)] == [
            InsertStatus.SAME, InsertStatus.SAME, InsertStatus.DUPLICATE,
        ]  # fmt: skip
        [queue] = (await store.stats(T0)).queues
        assert queue.available == 2

    async def test_claim(self, store: Backend, far: Backend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await lost(line, far.claim(CLAIM, T0))
        assert (await far.claim(CLAIM, T0)).jobs == []
        assert [job.state for job in await store.reap(Reap(), T0 + LEASE)] == [JobState.AVAILABLE]
        [job] = (await far.claim(CLAIM, T0 + LEASE)).jobs
        assert (job.epoch, job.lost, job.attempt) == (T0 + LEASE, 1, 0)

    async def test_finish(self, store: Backend, far: Backend, line: Proxy) -> None:
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

    async def test_turn(self, store: Backend, far: Backend, line: Proxy) -> None:
        assert far.finish_and_claim is not None
        await store.insert([row(1), row(2)], T0)
        [one] = (await far.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs
        await lost(line, far.finish_and_claim([settle(one)], CLAIM, T0))
        states, claimed = await far.finish_and_claim([settle(one)], CLAIM, T0)
        assert (states, claimed.jobs) == ([None], [])
        records = await store.fetch([job_id(1), job_id(2)], at=T0)
        assert [record.state for record in records if record] == [JobState.COMPLETED, JobState.RUNNING]

    async def test_renew(self, store: Backend, far: Backend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        [job] = (await far.claim(CLAIM, T0)).jobs
        beat = Beat("w1", "w1", ("q",), LEASE, [(job.id, job.epoch)])
        await lost(line, far.renew(beat, T0 + LEASE - 1))
        assert not (await far.renew(beat, T0 + LEASE - 1)).lost
        assert await store.reap(Reap(), T0 + LEASE) == []

    async def test_reap(self, store: Backend, far: Backend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await store.claim(CLAIM, T0)
        await lost(line, far.reap(Reap(), T0 + LEASE))
        assert await far.reap(Reap(), T0 + LEASE) == []
        [record] = await store.fetch([job_id(1)], at=T0 + LEASE)
        assert record is not None
        assert (record.state, record.lost) == (JobState.AVAILABLE, 1)

    async def test_alter(self, store: Backend, far: Backend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        cancel = Selector(ids=[job_id(1)]), Cancel()
        await lost(line, far.alter(*cancel, T0))
        [altered] = await far.alter(*cancel, T0)
        assert (altered.before, altered.after, altered.changed) == (JobState.CANCELLED, JobState.CANCELLED, False)

    async def test_sweep(self, store: Backend, far: Backend, line: Proxy) -> None:
        await store.insert([row(1)], T0)
        await store.finish([settle((await store.claim(CLAIM, T0)).jobs[0])], T0)
        clause = SweepClause(place=Place.COMPLETED, older_than=0)
        await lost(line, far.sweep(clause, T0 + 1))
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


@pytest.mark.parametrize("name", CALLS)
async def test_what_never_got_there_was_never_done(name: str, store: Backend, far: Backend, line: Proxy) -> None:
    await cut(line, CALLS[name](far))
    assert (await store.stats(T0)).queues == []
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW


@pytest.mark.parametrize("ways", [{"up": True, "down": True}, {"up": True, "down": False}, {"up": False, "down": True}])
async def test_no_call_hangs(ways: dict[str, bool], far: Backend, line: Proxy) -> None:
    """C05: nor does one that would have to connect first."""
    other = far.sibling()
    line.blackhole(**ways)
    calls = [call(far) for call in CALLS.values()]
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    took = asyncio.get_running_loop().time() - began
    assert {type(answer) for answer in answers} == {Unavailable}, answers
    assert took < 8
    with pytest.raises(Unavailable):
        await other.open()
    line.heal()
    assert (await far.insert([row(2)], T0))[0].status is InsertStatus.NEW
    await other.close()


async def test_a_server_that_stands_still_is_given_up_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LIMIT", SHORT)
    valkey = Valkey()
    valkey.start()
    backend = open_backend(valkey.url())
    try:
        await backend.open()
        valkey.freeze()
        with pytest.raises(Unavailable, match="no answer for 1 seconds"):
            await backend.stats(T0)
        valkey.thaw()
        assert (await backend.insert([row(1)], T0))[0].status is InsertStatus.NEW
    finally:
        await backend.close()
        valkey.close()


async def test_a_call_that_is_broken_off_ends_at_once(far: Backend, line: Proxy) -> None:
    line.blackhole()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await far.stats(T0)
    assert loop.time() - began < 5
    line.heal()
    with suppress(Unavailable):  # the connection is there until its end is noticed
        await far.stats(T0)
    assert (await far.insert([row(1)], T0))[0].status is InsertStatus.NEW


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_gets_anothers_answer(seed: int, store: Backend, far: Backend, line: Proxy) -> None:
    """However many callers share the line and leave without waiting for theirs."""
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


async def test_nobody_gets_anothers_answer_when_the_line_breaks_meanwhile(
    store: Backend, far: Backend, line: Proxy
) -> None:
    await store.insert([row(n, cells={"parameters": str(n).encode()}) for n in range(100)], T0)
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
        asking = [group.create_task(ask(number)) for number in range(100)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0.02)
            line.reset()
    assert broken


async def test_connections_that_were_cut_while_nobody_used_them_trouble_nobody(far: Backend, line: Proxy) -> None:
    await asyncio.gather(*(far.stats(T0) for _ in range(8)))
    for number in range(5):
        line.reset()
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


async def test_a_large_batch_has_the_time_that_a_thin_line_takes(far: Backend, line: Proxy) -> None:
    """Longer than a server may say nothing: it is not silent, the bytes are still on their way."""
    line.throttle(2 * 1024 * 1024)
    blob = bytes(5 * 1024 * 1024)
    assert (await far.insert([row(1, cells={"blob": blob})], T0))[0].status is InsertStatus.NEW


async def test_an_answer_that_is_arriving_is_waited_for(store: Backend, far: Backend, line: Proxy) -> None:
    """What the claim did is done: to give it up now would lose the jobs to a lease that nobody knows of."""
    await store.insert([row(1, cells={"blob": bytes(5 * 1024 * 1024)})], T0)
    line.throttle(2 * 1024 * 1024)
    [job] = (await far.claim(CLAIM, T0)).jobs
    assert len(job.cells["blob"]) == 5 * 1024 * 1024


async def test_a_large_batch_does_not_keep_small_ones_from_their_answers_for_ever(far: Backend, line: Proxy) -> None:
    """They share the line, and its patience is for silence alone."""
    line.throttle(2 * 1024 * 1024)
    large = far.insert([row(1, cells={"blob": bytes(4 * 1024 * 1024)})], T0)
    answers = await asyncio.gather(large, *(far.stats(T0) for _ in range(5)))
    assert answers[0][0].status is InsertStatus.NEW


async def test_the_kernel_watches_over_connections(far: Backend, line: Proxy) -> None:
    """A machine that vanishes sends no goodbye: without these, the kernel would wait for hours."""
    raw = far._connections._kept.connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


async def test_a_restart_is_followed() -> None:
    """By the same backend, with an empty cache of scripts on the other side; what was acknowledged is there."""
    valkey = Valkey(None, {"appendonly": "yes", "appendfsync": "always"})
    valkey.start()
    backend = open_backend(valkey.url())
    try:
        await backend.open()
        for number in range(5):
            assert (await backend.insert([row(number)], T0))[0].status is InsertStatus.NEW
            valkey.kill()
            with pytest.raises(Unavailable):
                await backend.stats(T0)
            valkey.start()
            [queue] = (await backend.stats(T0)).queues
            assert queue.available == number + 1
        assert len((await backend.claim(CLAIM, T0)).jobs) == 5
    finally:
        await backend.close()
        valkey.close()


async def test_a_server_that_still_loads_its_file_is_waited_for() -> None:
    """It answers, and refuses everything for a while."""
    valkey = Valkey(
        None, {"appendonly": "yes", "key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    )
    valkey.start()
    try:
        valkey.call("CONFIG", "SET", "key-load-delay", 0)
        for number in range(2_000):
            valkey.call("SET", f"k{number}", "v" * 100)
        valkey.call("BGREWRITEAOF")
        async with asyncio.timeout(60):
            while valkey.info("persistence")["aof_rewrite_in_progress"] == "1":
                await asyncio.sleep(0.01)
        valkey.kill()
        starting = asyncio.ensure_future(asyncio.to_thread(valkey.start))
        backend = open_backend(valkey.url())
        refused = 0
        async with asyncio.timeout(60):
            while True:
                try:
                    await backend.open()
                    break
                except Unavailable as error:
                    refused += "LOADING" in str(error)
                    await asyncio.sleep(0.01)
        await starting
        await backend.close()
        assert refused
    finally:
        valkey.close()


def make_app(backend: Backend, **worker: Any) -> App:
    settings = Settings.load({"worker": FAST | {"name": "random"} | worker}, env={}, toml={})
    return App(Client(backend, settings))


@pytest.mark.parametrize("fault", ["reset", "lose", "stall"])
async def test_a_worker_on_a_bad_line_loses_nothing_and_doubles_nothing(
    fault: str, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C05: producer and worker at the end of a line that breaks again and again."""
    monkeypatch.setattr(connections, "LIMIT", SHORT)
    app = make_app(distant(line, listen=True), lease="2s", max_lost=FAULTS)
    runs: Counter[int] = Counter()
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work(number: int) -> int:
        runs[number] += 1
        await asyncio.sleep(0.002)
        return number

    async def trouble() -> None:
        if fault == "lose":
            line.blackhole(up=False, down=True)
            await asyncio.sleep(0.03)
            line.heal()
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


async def test_a_heartbeat_on_a_silent_connection_gets_through_on_another(
    store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the call's own limit."""
    monkeypatch.setattr(connections, "LIMIT", 300.0)
    app = make_app(distant(line, listen=True), lease="6s")
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


async def test_hints_come_again_after_the_listener_was_cut(store: Backend, line: Proxy) -> None:
    """C17: the poll beneath is an hour away, so whatever is found in time was hinted at."""
    app = make_app(distant(line, listen=True), poll="1h", lease="1s")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    near = make_app(store.sibling())
    async with near, working(app):
        await near.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        for times in range(10):
            line.reset()
            await near.client.insert([work.job()])
            await told.wait_for(EventKind.COMPLETED, times + 2)


@pytest.mark.parametrize("topic", ["queue:q", "inbox:me"])
async def test_a_listener_notices_that_its_connection_has_gone_silent(
    topic: str, store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_BLOCK": 1, "_PATIENCE": 1.5, "_QUIET": 0.2, "_ANSWER": 0.2}.items():
        monkeypatch.setattr(hints, name, value)
    backend = distant(line, listen=True)
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


async def test_nobody_can_end_a_worker_by_a_hint(store: Backend) -> None:
    """Whoever may write to the server can push and publish whatever he likes."""
    app, told = make_app(store.sibling(), poll="200ms"), Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    async with working(app):
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED)
        async with asyncio.timeout(60):
            while not (channels := server().call("PUBSUB", "CHANNELS", "headrace:*")):
                await asyncio.sleep(0.01)
        for payload in (b"zz", b"", b"x" * 7_000, bytes(16)):
            server().call("RPUSH", "headrace{jobs}:g:q", payload)
            for channel in channels:
                server().call("PUBLISH", channel, payload)
        await app.client.insert([work.job()])
        await told.wait_for(EventKind.COMPLETED, 2)


async def test_what_nobody_hinted_at_is_found_by_looking(
    store: Backend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: the listener's connection is silent, and it will not notice for an hour."""
    monkeypatch.setattr(connections, "LIMIT", SHORT)
    for name in ("_QUIET", "_PATIENCE"):
        monkeypatch.setattr(hints, name, 3_600.0)
    app = make_app(distant(line, listen=True), poll="300ms", lease="30s")
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
