"""Progress: what handlers say is seen from outside while they run, at the cost of a beat."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest

from headrace import App, Job, JobState, NewJob, Progress, connect, progress
from headrace.core.clock import SystemClock
from headrace.core.progress import check_progress, pack_progress, unpack_progress
from headrace.seam.records import PROGRESS, Beat, Leased
from headrace.worker.leases import Leases
from tests.facades.harness import Gate, Store, Tapped, World, simulate, within
from tests.worker import handlers

SOON: dict[str, Any] = {"worker": {"lease": "2s", "name": "w"}}


async def seen(handle: Any, wanted: Progress) -> None:
    """Wait until the store knows this."""
    while await handle.progress() != wanted:
        await asyncio.sleep(0.02)


async def test_an_async_handler(store: Store) -> None:
    """Every store shows it while the job runs, and not afterwards."""
    app, gate = store.app(**SOON), Gate()

    @app.task
    async def export(job: Job[None], rows: int) -> int:
        await job.progress(0.1)
        job.progress(0.4, "rows read")
        await gate.pass_through()
        return rows

    async with app:
        work = asyncio.ensure_future(app.work())
        handle = await export.enqueue(7)
        await gate.reached()
        await within(seen(handle, Progress(0.4, "rows read")))
        [listed] = await app.client.list_jobs(_running())
        assert str(listed.progress) == "40 %, rows read"
        gate.open()
        assert await within(handle.result()) == 7
        assert await handle.progress() is None
        app.stop()
        await within(work)


def _running() -> Any:
    from headrace.seam.records import Selector

    return Selector(states=frozenset({JobState.RUNNING}))


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_plain_handler(executor: Any, tmp_path: Any) -> None:
    """``progress()`` finds its job in a thread, and in a child process."""
    app = App(f"sqlite:///{tmp_path}/jobs.db", **SOON)
    task = app.task(executor=executor)(handlers.advance)
    async with app:
        work = asyncio.ensure_future(app.work())
        handle = await task.enqueue(str(tmp_path / "go"))
        await within(seen(handle, Progress(0.5, "half")))
        (tmp_path / "go").touch()
        assert await within(handle.result()) == "done"
        app.stop()
        await within(work)


def test_thousands_of_words_cost_one_beat() -> None:
    """In virtual time: ten minutes, a word every 10 ms; the store hears some of them, and its calls do not grow."""

    class Counting(Tapped):
        beats: ClassVar[list[Beat]] = []

        async def renew(self, beat: Beat, at: int | None = None) -> Any:
            self.beats.append(beat)
            return await self.inner.renew(beat, at)

    async def main(world: World) -> None:
        app = world.app(worker={"lease": "30s"})

        @app.task
        async def export(job: Job[None]) -> None:
            for row in range(60_000):
                job.progress(row / 60_000)
                await asyncio.sleep(0.01)

        async with app:
            handle = await export.enqueue()
            work = asyncio.ensure_future(app.work())
            await asyncio.sleep(300)
            said = await handle.progress()
            assert said is not None
            assert 0.45 < (said.done or 0) < 0.5
            await handle.result(None)
            app.stop()
            await work

    simulate(main, wrap=Counting)
    said = [beat for beat in Counting.beats if beat.progress]
    assert 100 < len(said) <= len(Counting.beats) < 200


def test_the_last_word_is_not_lost_when_the_store_is_away() -> None:
    leases = Leases(30.0, SystemClock().elapsed)
    job = Leased(bytes(16), "q", "t", {}, epoch=5)
    leases.say(job, Progress(0.1))
    assert leases.said() == {}
    leases.grant([job], 0.0)
    leases.say(job, Progress(0.2))
    said = leases.said()
    assert said == {(job.id, 5): Progress(0.2)}
    assert leases.said() == {}
    leases.say_again(said)
    assert leases.said() == said
    leases.say(job, Progress(0.3))
    leases.say_again(said)
    assert leases.said() == {(job.id, 5): Progress(0.3)}
    leases.say(job, Progress(0.4))
    leases.drop(job.id, 5)
    assert leases.said() == {}


def test_said_from_many_threads() -> None:
    leases = Leases(30.0, SystemClock().elapsed)
    jobs = [Leased(bytes([n] * 16), "q", "t", {}, epoch=5) for n in range(8)]
    leases.grant(jobs, 0.0)
    heard: dict[bytes, list[float]] = {job.id: [] for job in jobs}

    def hear() -> None:
        for (job_id, _), one in leases.said().items():
            heard[job_id].append(one.done or 0)

    def talk(job: Leased) -> None:
        for n in range(1_000):
            leases.say(job, Progress(n / 1_000))

    threads = [threading.Thread(target=talk, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        hear()
    hear()
    assert all(words == sorted(words) and words[-1] == 0.999 for words in heard.values())


async def test_a_pulled_job() -> None:
    async with connect("memory://", worker={"lease": "1s"}) as client, client.pull("q") as pull:
        [inserted] = await client.insert([NewJob(task="t", queue="q")])
        [job] = await pull.take()
        await job.progress(None, "somewhere")
        while (await client.get(inserted.id)).progress != Progress(None, "somewhere"):
            await asyncio.sleep(0.02)
        with pytest.raises(ValueError, match="done: expected a number from 0 to 1"):
            job.progress(2)


def test_outside_of_a_job_it_does_nothing() -> None:
    progress(0.5, "nobody hears it")


@pytest.mark.parametrize("done", [-0.1, 1.1, float("nan"), True, "0.5", [], 10**400])
def test_bad_values(done: Any) -> None:
    with pytest.raises(ValueError, match="done: expected a number from 0 to 1, or None"):
        progress(done)
    with pytest.raises(ValueError, match="note: expected text"):
        progress(None, done if not isinstance(done, str) else 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("note", ["", "\U0001f642" * 500, "\udc80", "\0\n\x1b[2J"])
def test_every_note_fits(note: str) -> None:
    packed = pack_progress(check_progress(1 / 3, note))
    assert len(packed) <= PROGRESS
    found = unpack_progress(packed)
    assert found is not None
    assert found.done == 1 / 3


@pytest.mark.parametrize("packed", [b"", b"\xff", b"\x92\xc0", b"\x92\xcb\x40\x00\x00\x00\x00\x00\x00\x00\xa0"])
def test_what_cannot_be_read_is_not_shown(packed: bytes) -> None:
    assert unpack_progress(packed) is None
