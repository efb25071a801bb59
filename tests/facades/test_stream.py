"""Parts of results: what a job sends is read while it runs, from the first part on, by whoever comes whenever."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from headrace import App, Job, Part, Retry, SyncApp, immediate
from headrace.errors import ConfigError, JobFailed, PayloadTooLarge
from headrace.seam.parts import KEPT
from headrace.worker.job import CancelToken
from tests.facades.harness import Gate, Store, World, simulate, within


async def values(parts: Any) -> list[Any]:
    return [part.value async for part in parts]


async def test_parts_come_while_the_job_runs(store: Store) -> None:
    """To one who listens from the start, to one who comes later, and to one who comes when it is all over."""
    app, gate = store.app(), Gate()

    @app.task
    async def tell(job: Job[None], words: list[str]) -> int:
        for number, word in enumerate(words):
            await job.send({"word": word, "number": number})
            if number == 1:
                await gate.pass_through()
        return len(words)

    async with app:
        work = asyncio.ensure_future(app.work())
        handle = await tell.enqueue(["once", "upon", "a", "time"])
        early = aiter(handle.stream())
        first = await within(anext(early))
        assert (first.value, first.number) == ({"word": "once", "number": 0}, 1)
        await gate.reached()
        late = asyncio.ensure_future(values(app.stream(handle.id)))
        assert (await within(anext(early))).value["word"] == "upon"
        gate.open()
        rest = await within(values(early))
        assert [one["word"] for one in rest] == ["a", "time"]
        assert [one["word"] for one in await within(late)] == ["once", "upon", "a", "time"]
        assert await within(handle.result()) == 4
        assert len(await within(values(handle.stream()))) == 4
        app.stop()
        await within(work)


async def test_a_plain_handler_and_a_blocking_reader(tmp_path: Any) -> None:
    """Threads at both ends."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def spell(job: Job[None], text: str) -> str:
        for letter in text:
            job.send_sync(letter)
        return text

    def read() -> list[str]:
        return [part.value for part in spell.enqueue_sync("abc").stream()]

    async with app:
        work = asyncio.ensure_future(app.work())
        assert await within(asyncio.to_thread(read)) == ["a", "b", "c"]
        app.stop()
        await within(work)


def test_blocking_code_without_a_loop() -> None:
    app = App("memory://")

    @app.task
    async def spell(job: Job[None], text: str) -> None:
        for letter in text:
            await job.send(letter)

    with SyncApp(app) as jobs:
        handle = jobs.enqueue(spell, "x" * 250)
        jobs.drain()
        assert [part.number for part in handle.stream()] == list(range(1, 251))


async def test_a_job_that_runs_again_begins_again(store: Store) -> None:
    app = store.app()

    @app.task(retry=immediate(2))
    async def flaky(job: Job[None]) -> Retry | str:
        for number in range(job.attempt + 2):
            await job.send(f"{job.attempt}.{number}")
        return Retry(error="once more") if job.attempt == 0 else "done"

    async with app:
        handle = await flaky.enqueue()
        await app.drain()
        parts = [part async for part in handle.stream()]
        assert [(part.value, part.number) for part in parts] == [("1.0", 1), ("1.1", 2), ("1.2", 3)]
        assert len({part.run for part in parts}) == 1


async def test_a_job_that_fails_ends_its_stream(memory: Store) -> None:
    app = memory.app()

    @app.task(retry=immediate(1))
    async def fail(job: Job[None]) -> None:
        await job.send("before")
        raise RuntimeError("no more")

    async with app:
        handle = await fail.enqueue()
        await app.drain()
        assert await within(values(handle.stream())) == ["before"]
        with pytest.raises(JobFailed):
            await handle.result()


async def test_more_than_is_kept(memory: Store) -> None:
    """The latest are kept; a reader who keeps up misses none, and one who does not sees by the numbers."""
    app = memory.app()

    @app.task
    async def count(job: Job[None]) -> None:
        await asyncio.gather(*(job.send(number) for number in range(KEPT + 50)))

    async with app:
        handle = await count.enqueue()
        await app.drain()
        parts = [part async for part in handle.stream()]
    assert [part.value for part in parts] == list(range(50, KEPT + 50))
    assert parts[0] == Part(50, 51, parts[0].run)


def test_in_virtual_time_nothing_polls_fast() -> None:
    """A stream of a job that is silent for a day costs a look every second at most."""

    async def main(world: World) -> None:
        app = world.app()

        @app.task
        async def slow(job: Job[None]) -> None:
            for hour in range(3):
                await job.send(hour)
                await asyncio.sleep(3_600)

        async with app:
            handle = await slow.enqueue()
            work = asyncio.ensure_future(app.work())
            assert await values(handle.stream()) == [0, 1, 2]
            app.stop()
            await work

    simulate(main)


async def test_sealed_parts(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_KEYS", f"a:{bytes(range(32)).hex()}")
    app = memory.app(payloads={"sealing": {"keys": "env:JOB_KEYS"}})

    @app.task
    async def whisper(job: Job[None]) -> None:
        await job.send("canary")

    async with app:
        handle = await whisper.enqueue()
        await app.drain()
        assert await values(handle.stream()) == ["canary"]
        backend = await app.client.backend()
        assert backend.parts is not None
        [part] = await backend.parts.read(handle.id.bytes, (0, 0))
        assert b"canary" not in part.body


async def test_what_cannot_be_sent(memory: Store) -> None:
    app, said = memory.app(), list[str]()

    @app.task
    async def send(job: Job[None]) -> None:
        for value in (os.urandom(20_000).hex(), object()):
            try:
                await job.send(value)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        try:
            job.send_sync("here")
        except ConfigError as error:
            said.append(str(error))

    async with app:
        await send.enqueue()
        await app.drain()
    assert said[0].startswith(f"{PayloadTooLarge.__name__}: part: expected at most 16,384 bytes")
    assert said[1].startswith("CodecError: cannot encode object")
    assert "await job.send" in said[2]


async def test_a_job_of_ones_own_making_cannot_send() -> None:
    from headrace.seam.records import Leased

    job = Job(Leased(bytes(16), "q", "t", {}, epoch=1), None, "h", CancelToken(), {})
    with pytest.raises(ConfigError, match="expected a job that a worker runs"):
        await job.send(1)
