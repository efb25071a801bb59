"""Large payloads and results are packed and unpacked beside the event loop, small ones on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from headrace import App, Client, Done, Handle, Job, JobState, Queue, Sections, Settings
from headrace.api.info import DETAILS
from headrace.payloads import codec
from headrace.payloads.keyring import Keyring
from headrace.payloads.offload import LARGE as FROM_THIS_SIZE
from headrace.payloads.sealing import is_sealed
from headrace.seam.protocol import Backend
from headrace.types import NewJob
from tests.worker.conftest import FAST, Told, working


def text(size: int) -> str:
    """It can be compressed, and is large all the same."""
    return "".join(Random(1).choices("abcdefgh", k=size))


LARGE, SMALL = text(1_000_000), text(5_000)


class Zstd:
    """The module, and which threads it packed and unpacked in."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.packed: list[threading.Thread] = []
        self.unpacked: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def compress(self, body: bytes) -> bytes:
        self.packed.append(threading.current_thread())
        packed: bytes = self._real.compress(body)
        return packed

    def ZstdDecompressor(self) -> Any:
        self.unpacked.append(threading.current_thread())
        return self._real.ZstdDecompressor()

    def on_loop(self) -> tuple[int, int]:
        here = threading.current_thread()
        return self.packed.count(here), self.unpacked.count(here)


@pytest.fixture
def zstd(monkeypatch: pytest.MonkeyPatch) -> Zstd:
    zstd = Zstd(codec.zstd)
    monkeypatch.setattr(codec, "zstd", zstd)
    return zstd


async def stored_result(app: App, handle: Handle[Any]) -> bytes:
    backend = await app.client.backend()
    [record] = await backend.fetch([handle.id.bytes], DETAILS, app.client.clock.stamp())
    assert record is not None
    assert record.result is not None
    return record.result


@pytest.fixture
def sealing_app(store: Backend, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("JOB_KEYS", f"a:{bytes(range(32)).hex()}")
    payloads = {"sealing": {"keys": "env:JOB_KEYS"}}
    return App(Client(store, Settings.load({"worker": FAST, "payloads": payloads}, env={}, toml={})))


@pytest.fixture
def sealed_on_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sections of large cells that were sealed or opened in this thread."""
    here, found = threading.current_thread(), []

    def watch(name: str) -> None:
        real = getattr(Keyring, name)

        def watched(self: Keyring, cell: bytes, section: str, *place: Any) -> bytes:
            done: bytes = real(self, cell, section, *place)
            if len(cell) > FROM_THIS_SIZE and threading.current_thread() is here:
                found.append(section)
            return done

        monkeypatch.setattr(Keyring, name, watched)

    watch("seal")
    watch("open")
    return found


@pytest.mark.parametrize("observed", [False, True])
async def test_large_arguments_and_results_leave_the_loop_alone(
    make_app: Callable[..., App], zstd: Zstd, observed: bool
) -> None:
    app = make_app()
    if observed:
        app.observe(Told())

    @app.task
    async def echo(value: str) -> str:
        return value

    async with working(app):
        handle = await echo.enqueue(LARGE)
        assert await handle.result("30s") == LARGE
        assert await echo.call(LARGE) == LARGE
        assert (len(zstd.packed), len(zstd.unpacked)) == (4, 4)
        assert zstd.on_loop() == (0, 0)
        assert await echo.call(SMALL) == SMALL
        assert zstd.on_loop() == (2, 2)


async def test_the_same_for_batches_queues_and_sections(zstd: Zstd) -> None:
    app = App("memory://")
    seen: list[Any] = []

    @app.batch
    async def many(jobs: list[Job[str]]) -> list[str]:
        return [job.payload for job in jobs]

    @app.task(name="sections")
    async def sections(job: Job[Any]) -> Done:
        seen.append(job.sections["blob"])
        return Done(LARGE)

    async with working(app):
        cell = many.job(LARGE)
        assert zstd.on_loop() == (1, 0), "job() is no coroutine: it cannot wait for a thread"
        [handle] = await app.enqueue_many([cell])
        assert await handle.result("30s") == LARGE
        [handle] = await app.enqueue_many([NewJob(task="sections", sections=Sections(blob=LARGE.encode()))])
        assert await handle.result("30s") == LARGE
    assert seen == [LARGE.encode()]
    assert zstd.on_loop()[1] == 0
    queue = Queue[str, str]("echo", "memory://")

    @queue.execute
    async def echo(job: Job[str]) -> str:
        return job.payload

    before = zstd.on_loop()
    async with queue:
        assert await queue.enqueue_and_wait("1", LARGE) == LARGE
    assert zstd.on_loop() == before


@pytest.mark.parametrize("observed", [False, True])
async def test_what_is_large_is_sealed_and_opened_beside_the_loop(
    sealing_app: App, sealed_on_loop: list[str], observed: bool
) -> None:
    app = sealing_app
    if observed:
        app.observe(Told())

    @app.task
    async def echo(value: str) -> str:
        return value

    @app.task(name="blob")
    async def blob(job: Job[Any]) -> Done:
        return Done(job.sections["blob"].decode())

    @app.batch
    async def many(jobs: list[Job[str]]) -> list[str]:
        return [job.payload for job in jobs]

    async with working(app):
        assert await echo.call(LARGE) == LARGE
        assert await (await echo.enqueue(LARGE)).result("30s") == LARGE
        jobs = [many.job(LARGE), many.job(SMALL), NewJob(task="blob", sections=Sections(blob=LARGE.encode()))]
        handles = await app.enqueue_many(jobs)
        assert [await handle.result("30s") for handle in handles] == [LARGE, SMALL, LARGE]
    assert sealed_on_loop == []


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_results_about_as_large_as_what_counts_as_large_are_sealed_once(sealing_app: App) -> None:
    app = sealing_app

    @app.task
    async def make(size: int) -> bytes:
        return Random(1).randbytes(size)

    as_base64 = FROM_THIS_SIZE * 3 // 4
    async with app:
        handles = {size: await make.enqueue(size) for size in range(as_base64 - 100, as_base64 + 20)}
        await app.drain()
        assert {size: len(await handle.result()) for size, handle in handles.items()} == {
            size: size for size in handles
        }
        for handle in handles.values():
            assert is_sealed(await stored_result(app, handle))


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_stop_while_a_result_is_packed_costs_its_size_and_not_the_result(
    make_app: Callable[..., App], sealing_app: App, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """The handler is through: its timeout has nothing more to say. What is stored is sealed even so."""
    app = sealing_app if sealed else make_app(concurrency=1)
    packing, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    real = app.client.packer.compress

    def slowly(cell: bytes, job_id: bytes) -> bytes:
        loop.call_soon_threadsafe(packing.set)
        go_on.wait(30)
        return real(cell, job_id)

    monkeypatch.setattr(app.client.packer, "compress", slowly)

    @app.task(timeout="1h")
    async def make() -> str:
        return LARGE

    async with working(app):
        handle = await make.enqueue()
        await packing.wait()
        await handle.cancel()
        async with asyncio.timeout(30):
            while not (await handle.info()).state.terminal:
                await asyncio.sleep(0.01)
        go_on.set()
        assert (await handle.info()).state is JobState.COMPLETED
        assert await handle.result("60s") == LARGE
        assert is_sealed(await stored_result(app, handle)) == sealed


async def test_a_stop_while_a_payload_is_unpacked_gives_its_batch_back(
    make_app: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(concurrency=1, grace="10ms")
    opening, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    real = app.client.packer.sections

    def slowly(leased: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(opening.set)
            go_on.wait(30)
        return real(leased)

    monkeypatch.setattr(app.client.packer, "sections", slowly)
    ran: list[int] = []

    @app.batch(size=3)
    async def many(jobs: list[Job[str]]) -> None:
        ran.append(len(jobs))

    async with app:
        handles = await app.enqueue_many([many.job(SMALL), many.job(LARGE), many.job(SMALL)])
        async with working(app):
            await opening.wait()
        infos = [await handle.info() for handle in handles]
        assert [(info.state, info.attempt) for info in infos] == [(JobState.AVAILABLE, 0)] * 3
        go_on.set()
        await app.drain()
    assert sum(ran) == 3
