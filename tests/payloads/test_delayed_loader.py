"""Sections of delayed jobs come back into the store before the jobs are due."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Job, JobState, NewJob, Sections
from headrace.core.clock import ManualClock, SystemClock
from headrace.errors import ObjectsUnavailable
from headrace.keeping.delayed_loader import DelayedLoader
from headrace.keeping.share import Share
from headrace.payloads.reference import read_reference
from headrace.seam.records import JobId
from headrace.seam.references import is_reference
from headrace.types import SECTIONS
from tests.facades.harness import WITH_STREAMS, Store, within

HOUR, SECOND = 3_600_000_000, 1_000_000
STATE, LARGE = os.urandom(2_700), os.urandom(100_000)


@pytest.fixture(params=WITH_STREAMS)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


def app_on(store: Store, tmp_path: Path, clock: ManualClock) -> App:
    return store.app(clock=clock, objects={"url": f"file://{tmp_path}/objects"})


def noon() -> ManualClock:
    """At noon of today: a day later is another day, an hour later is not."""
    return ManualClock((SystemClock().now() // (24 * HOUR)) * 24 * HOUR + 12 * HOUR)


def job(delay: str, **more: Any) -> NewJob:
    return NewJob(task="work", args={}, sections=Sections(vm_state=STATE, blob=LARGE), delay=delay, **more)


async def loader_of(app: App, share: Share = Share(), ahead: int = 60 * SECOND) -> DelayedLoader:  # noqa: B008
    backend = await app.client.backend()
    assert backend.references is not None
    assert app.client.stowage is not None
    return DelayedLoader(backend, backend.references, app.client.stowage, app.client.clock, ahead=ahead, share=share)


async def away(app: App, ids: list[JobId]) -> list[list[str]]:
    """The sections of each job that lie in the object store."""
    records = await (await app.client.backend()).fetch(ids, frozenset(SECTIONS), app.client.clock.stamp())
    return [[name for name, cell in one.cells.items() if is_reference(cell)] for one in records if one is not None]


async def test_what_is_soon_due_is_loaded_and_the_rest_stays(store: Store, tmp_path: Path) -> None:
    clock = noon()
    app, ran = app_on(store, tmp_path, clock), []

    @app.task(name="work", queue="default")
    async def work(job: Job[Any]) -> None:
        ran.append((job.sections["vm_state"], job.sections["blob"]))

    answers = await app.client.insert([job("30s"), job("10m"), job("2d"), job("10m", key="k", tenant="t", group="g")])
    ids = [answer.id for answer in answers]
    assert await away(app, ids) == [["vm_state", "blob"]] * 4
    loader = await loader_of(app)
    assert await loader.look() == 1
    assert await away(app, ids) == [["blob"]] + [["vm_state", "blob"]] * 3
    [late] = await app.client.insert([job("45s")])
    assert await loader.look() == 1
    clock.advance("9m30s")
    assert (await loader.look(), await loader.look()) == (2, 0)
    assert await away(app, [*ids, late.id]) == [["blob"], ["blob"], ["vm_state", "blob"], ["blob"], ["blob"]]
    clock.advance("1m")
    await within(app.drain())
    assert ran == [(STATE, LARGE)] * 4


async def test_jobs_that_were_put_off_are_found_within_the_hour(store: Store, tmp_path: Path) -> None:
    clock = noon()
    app = app_on(store, tmp_path, clock)
    first, second = await app.client.insert([job("1h"), job("90m")])
    loader = await loader_of(app)
    assert await loader.look() == 0
    await app.reschedule(second.id, delay="30s")
    clock.advance("1h")
    assert await loader.look() == 2
    assert await away(app, [first.id, second.id]) == [["blob"]] * 2


async def test_processes_share_the_jobs_out(store: Store, tmp_path: Path) -> None:
    app = app_on(store, tmp_path, noon())
    ids = [answer.id for answer in await app.client.insert([job("30s") for _ in range(40)])]
    loaded = [await (await loader_of(app, Share(number, 3))).look() for number in range(3)]
    assert sum(loaded) == 40
    assert min(loaded) > 0
    assert await away(app, ids) == [["blob"]] * 40


async def test_an_object_that_is_gone_and_a_store_that_is_away(store: Store, tmp_path: Path) -> None:
    app = app_on(store, tmp_path, noon())

    @app.task(name="work", queue="default")
    async def work(job: Job[Any]) -> None: ...

    first, second = [(await app.client.insert([job("30s")]))[0] for _ in range(2)]
    backend = await app.client.backend()
    [record] = await backend.fetch([first.id], frozenset(SECTIONS), app.client.clock.stamp())
    assert record is not None
    (tmp_path / "objects" / read_reference(record.cells["vm_state"], "x").key).unlink()
    loader = await loader_of(app)
    objects = tmp_path / "objects"
    objects.rename(tmp_path / "elsewhere")
    objects.write_text("not a directory")
    with pytest.raises(ObjectsUnavailable):
        await loader.look()
    objects.unlink()
    (tmp_path / "elsewhere").rename(objects)
    assert await loader.look() == 1
    assert isinstance(app.client.clock, ManualClock)
    app.client.clock.advance("1m")
    await within(app.drain())
    assert [(await app.get(one.id)).state for one in (first, second)] == [JobState.FAILED, JobState.COMPLETED]


def started(url: str, objects: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "objects", "load", "--url", url, "--every", "100ms", *options],
        env={"PATH": "", "HEADRACE_OBJECTS__URL": objects},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("how", ["once", "until stopped"])
async def test_it_runs_as_a_process_of_its_own(how: str, tmp_path: Path) -> None:
    url, objects = f"sqlite:///{tmp_path}/jobs.db", f"file://{tmp_path}/objects"
    async with App(url, objects={"url": objects}) as app:
        ids = [answer.id for answer in await app.client.insert([job("50s") for _ in range(20)])]
        process = started(url, objects, *(["--once"] if how == "once" else []))
        try:
            while any("vm_state" in names for names in await away(app, ids)):
                assert how == "until stopped" or process.poll() in (None, 0)
            if how == "until stopped":
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stderr is not None
            told = process.stderr.read()
            assert "sections of 20 jobs loaded" in told or (how == "until stopped" and "loaded" in told)
        finally:
            process.kill()
            process.communicate()
