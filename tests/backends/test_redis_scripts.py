"""Scripts on a Valkey server that forgets them, or is started again, in the middle of load; and data that might be
taken for a part of a script or of a key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from servers.valkey import Valkey

from headrace import App, Client, EventKind, JobState, Settings
from headrace.api.connection import open_backend
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, Delete, InsertStatus, JobKey, Selector
from headrace.testing.conformance.base import HOSTILE, LEASE, SECOND, T0, job_id, row, settle
from tests.valkey import server, stores
from tests.worker.conftest import FAST, Told, working

JOBS = 600
PRODUCERS = 3
WORKERS = 3


class Crowd:
    """Producers and workers on one store, each with connections of its own."""

    def __init__(self, url: str, **worker: Any) -> None:
        self._url = url
        self._worker = FAST | {"name": "random", "lease": "10s"} | worker
        self._told = Told()
        self.ran: Counter[int] = Counter()
        self.answers: Counter[InsertStatus] = Counter()
        self.results: dict[int, int] = {}

    def app(self) -> App:
        """One more that has the task."""
        app = App(Client(open_backend(self._url), Settings.load({"worker": self._worker}, env={}, toml={})))
        app.observe(self._told)

        @app.task(name="double", queue="q")
        async def double(number: int) -> int:
            self.ran[number] += 1
            await asyncio.sleep(0.002)
            return 2 * number

        return app

    @property
    def done(self) -> int:
        """Jobs that are known to have ended well."""
        return self._told.kinds().count(EventKind.COMPLETED)

    async def until(self, count: int) -> None:
        """Wait until so many jobs are done."""
        await self._told.wait_for(EventKind.COMPLETED, count)

    async def through(self, trouble: Callable[[], Awaitable[None]]) -> None:
        """Enqueue, work and wait, with the trouble over and over until all is done; then look at everything."""
        async with AsyncExitStack() as stack:
            for _ in range(WORKERS):
                await stack.enter_async_context(working(self.app()))
            async with asyncio.TaskGroup() as group:
                for first in range(PRODUCERS):
                    group.create_task(self._produce(first))
                while self.done < JOBS:
                    await trouble()
            await self._check(await stack.enter_async_context(self.app()))

    async def _produce(self, first: int) -> None:
        app = self.app()
        double: Any = app.tasks["double"]
        async with app:
            for number in range(first, JOBS, PRODUCERS):
                if number % 10 == 0:
                    self.results[number] = await double.options(key=f"k:{number}").call(number)
                else:
                    [answer] = await app.client.insert([double.options(key=f"k:{number}").job(number)])
                    self.answers[answer.status] += 1

    async def _check(self, app: App) -> None:
        """Nothing lost, nothing twice."""
        assert self.results == {number: 2 * number for number in range(0, JOBS, 10)}
        assert self.answers[InsertStatus.DUPLICATE] == self.answers[InsertStatus.DONE] == 0
        assert self.ran == Counter(range(JOBS))
        jobs = await app.client.list_jobs(Selector(), JOBS + 1)
        assert Counter((job.state, job.attempt) for job in jobs) == {(JobState.COMPLETED, 0): JOBS}
        [queue] = (await app.client.stats()).queues
        assert (queue.completed, queue.available, queue.running) == (JOBS, 0, 0)


def forgotten(valkey: Valkey) -> int:
    """How often the server was asked for a script that it does not know."""
    return int(valkey.info("errorstats").get("errorstat_NOSCRIPT", "count=0").removeprefix("count="))


@pytest.mark.parametrize("how", ["SYNC", "ASYNC"])
@pytest.mark.parametrize("what", ["SCRIPT", "FUNCTION"])
async def test_scripts_that_are_flushed_under_load_cost_nobody_anything(what: str, how: str, tmp_path: Path) -> None:
    stores.connect(tmp_path)
    server().call("CONFIG", "RESETSTAT")

    async def flush() -> None:
        await asyncio.to_thread(server().call, what, "FLUSH", how)

    await Crowd(server().url()).through(flush)
    assert what == "FUNCTION" or forgotten(server()) > 10


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Valkey]:
    """A server of the test's own that keeps all that it acknowledges."""
    valkey = Valkey(tmp_path, {"appendonly": "yes", "appendfsync": "always"})
    valkey.start()
    yield valkey
    valkey.close()


async def test_a_server_that_is_started_again_under_load_costs_nobody_anything(durable: Valkey) -> None:
    """Killed as the kernel would, four times; each time it has forgotten the scripts too."""
    crowd = Crowd(durable.url())

    async def restart() -> None:
        if crowd.done > JOBS * 4 // 5:
            await crowd.until(JOBS)
            return
        await crowd.until(crowd.done + JOBS // 6)
        await asyncio.to_thread(durable.kill)
        await asyncio.to_thread(durable.start)

    await crowd.through(restart)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Backend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


BYTES = [b"", b"\0", b"\r\n", b"$-1\r\n", b"*0\r\n", b"{jobs}", bytes(range(256)), b"\xff" * 70_000, "é".encode()]
IDS = [b"\0" * 16, b"\xff" * 16, b":/{}*?[]\\\r\n\0'\"-1", b"headrace{jobs}:j", b"0123456789abcdef", bytes(range(16))]
NAMES = list(
    dict.fromkeys(
        (*HOSTILE, "\u00e9", "e\u0301", "{", "}", "{}", "{jobs}", "a{b}c", ":", "::", "q:", ":q", "\r\n", "a\nb", "1:1",
         "1", "$1", "KEYS[1]", "']]")
    )
)  # fmt: skip


async def test_cells_errors_and_results_come_back_byte_by_byte(store: Backend) -> None:
    rows = [
        row(number, cells={"parameters": value, "blob": value}, headers=value) for number, value in enumerate(BYTES)
    ]
    await store.insert(rows, T0)
    jobs = (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).jobs
    assert [(job.cells, job.headers) for job in jobs] == [({"parameters": v, "blob": v}, v) for v in BYTES]
    again = [
        settle(job, JobState.AVAILABLE, error=value, cells={"blob": value[::-1], "parameters": None})
        for job, value in zip(jobs, BYTES, strict=True)
    ]
    await store.finish(again, T0)
    jobs = (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).jobs
    assert [(job.cells, job.error) for job in jobs] == [({"blob": value[::-1]}, value) for value in BYTES]
    done = [settle(job, result=value, result_ttl=SECOND) for job, value in zip(jobs, BYTES, strict=True)]
    await store.finish(done, T0)
    records = await store.fetch([job.id for job in jobs], frozenset({"blob", "result", "error"}), T0)
    found = [(record.cells, record.error, record.result) for record in records if record]
    assert found == [({"blob": value[::-1]}, value, value) for value in BYTES]


async def test_any_sixteen_bytes_are_an_id(store: Backend) -> None:
    await store.insert([replace(row(0), id=name) for name in IDS], T0)
    jobs = (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).jobs
    assert [job.id for job in jobs] == sorted(IDS)
    page = await store.scan(Selector(), None, 100, T0)
    assert [record.id for record in page.records] == sorted(IDS, reverse=True)
    assert await store.finish([settle(job) for job in jobs], T0) == [JobState.COMPLETED] * len(IDS)
    assert [altered.id for altered in await store.alter(Selector(ids=IDS), Delete(), T0)] == IDS
    assert await store.fetch(IDS, at=T0) == [None] * len(IDS)


async def test_any_text_is_a_queue_and_a_key(store: Backend) -> None:
    """Each pair is a job of its own, however the two would look when joined."""
    names = [JobKey(queue, key) for queue in NAMES for key in NAMES]
    rows = [row(number, queue=name.queue, key=name.key) for number, name in enumerate(names)]
    for first in range(0, len(rows), 1_000):
        await store.insert(rows[first : first + 1_000], T0)
    found = await store.fetch(names, at=T0)
    assert [record and (record.id, record.queue, record.key) for record in found] == [
        (each.id, each.queue, each.key) for each in rows
    ]
    head = rows[:1_000]
    again = await store.insert([replace(each, id=job_id(10_000 + i)) for i, each in enumerate(head)], T0)
    assert [(answer.status, answer.id) for answer in again] == [(InsertStatus.DUPLICATE, each.id) for each in head]
    counted = {queue.queue: queue.available for queue in (await store.stats(T0)).queues}
    assert counted == dict.fromkeys(NAMES, len(NAMES))
    for name in NAMES:
        jobs = (await store.claim(Claim("w1", (name,), 100, LEASE), T0)).jobs
        assert [(job.queue, job.key) for job in jobs] == [(name, key) for key in NAMES]
        assert await store.finish([settle(job) for job in jobs], T0) == [JobState.COMPLETED] * len(NAMES)


async def test_any_text_is_a_holder_a_worker_a_task_and_a_tenant(store: Backend) -> None:
    await store.insert([row(n, task=name, tenant=name, reply_to=name) for n, name in enumerate(NAMES)], T0)
    for number, name in enumerate(NAMES):
        [job] = (await store.claim(Claim(name, ("q",), 1, LEASE), T0)).jobs
        assert (job.id, job.task, job.tenant) == (job_id(number), name, name)
        await store.alter(Selector(tenant=name, task=name), Cancel(name), T0)
        renewed = await store.renew(Beat(name, name, ("q", name), LEASE, [(job.id, job.epoch)]), T0)
        assert (list(renewed.lost), list(renewed.cancels)) == ([], [job.id])
        [record] = await store.fetch([job.id], at=T0)
        assert record is not None
        assert (record.worker, record.cancel_requested) == (name, True)
        assert await store.finish([settle(job, JobState.FAILED, name, reason=name)], T0) == [JobState.FAILED]
    workers = (await store.stats(T0)).workers
    assert sorted(worker.worker for worker in workers) == sorted(NAMES)
