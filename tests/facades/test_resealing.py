"""Keys change while jobs run: what an old key has sealed is sealed again, and can be read throughout."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Every, Fail, Job, JobState, NewJob, Patch, Retry, Sections, immediate
from headrace.core.clock import SystemClock
from headrace.errors import SealError, UnknownKey
from headrace.keeping.resealer import Resealer
from headrace.keeping.share import Share
from headrace.payloads.sealing import SealingPacker
from headrace.schedules.template_seals import TemplateSeals
from headrace.seam.records import Requeue, Selector
from headrace.seam.references import Swap, is_reference
from headrace.types import SECTIONS
from tests.facades.harness import WITH_STREAMS, Store, within, working

KEYS = {"spring": bytes(range(32)), "autumn-2": bytes(range(32, 64))}
STATE = os.urandom(2_000)
LARGE = os.urandom(100_000)


@pytest.fixture(params=WITH_STREAMS)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, order in (("OLD", ["spring"]), ("BOTH", ["autumn-2", "spring"]), ("NEW", ["autumn-2"])):
        monkeypatch.setenv(name, ",".join(f"{key}:{b64encode(KEYS[key]).decode()}" for key in order))


def app_with(store: Store, keys: str, tmp_path: Path, **more: Any) -> App:
    """An app whose blobs lie in an object store."""
    objects = {"url": f"file://{tmp_path}/objects", "blob": {"over": 0}}
    sealing = {"keys": f"env:{keys}", **more}
    app = store.app(payloads={"sealing": sealing}, objects=objects, worker={"concurrency": 4, "poll": "100ms"})

    @app.task(name="work", retry=immediate(3))
    async def work(job: Job[Any], n: int) -> Any:
        state = job.sections.get("vm_state")
        assert state in (STATE, STATE[::-1])
        assert job.sections.get("blob") in (None, LARGE)
        if n % 5 == 4 and job.attempt == 2:
            return Fail("no")
        if n % 5 >= 3:
            return Retry(0, patch=Patch(sections=Sections(vm_state=STATE[::-1])))
        return {"n": n, "large": LARGE.hex() if n % 10 == 0 else ""}

    return app


def jobs(first: int, count: int, **more: Any) -> list[NewJob]:
    return [
        NewJob(
            task="work",
            args={"n": n},
            sections=Sections(vm_state=STATE, blob=LARGE if n % 4 == 0 else None),
            tenant=f"t{n % 3}",
            **more,
        )
        for n in range(first, first + count)
    ]


async def resealer(app: App, **more: Any) -> tuple[Resealer, TemplateSeals]:
    backend, packer = await app.client.backend(), app.client.packer
    assert isinstance(packer, SealingPacker)
    assert backend.ticks is not None
    return (
        Resealer(backend, packer.keyring, app.client.stowage, app.client.clock, **more),
        TemplateSeals(backend.ticks, packer.keyring, app.client.clock, **more),
    )


async def survey(app: App) -> Counter[str]:
    cells, templates = await resealer(app)
    return await cells.survey() + await templates.survey()


async def check_all(app: App, waiting: int) -> None:
    """Every section and every result can be read with the keys of this app, and has what was stored."""
    found = await app.client.list_jobs(Selector(), limit=1_000)
    states = Counter(job.state for job in found)
    assert states[JobState.AVAILABLE] == waiting
    for job in found:
        record = await app.get(job.id)
        assert record.args["n"] >= 0
        assert record.result is None or record.result["n"] == record.args["n"]


async def test_rotation_under_load(store: Store, tmp_path: Path) -> None:
    old, both, new = (app_with(store, keys, tmp_path) for keys in ("OLD", "BOTH", "NEW"))
    await old.schedules.put(Every("1h", NewJob(task="work", args={"n": 1}, tenant="t1"), name="hourly"))
    await old.client.insert(jobs(0, 40))
    await within(old.drain())
    await old.client.insert([*jobs(40, 30), *jobs(70, 10, delay="1h")])
    before = await survey(both)
    assert set(before) == {"spring"}
    cells, templates = await resealer(both)
    async with working(both):
        walks = [cells.reseal(Share(number, 2)) for number in range(2)]
        first, second, _ = await within(asyncio.gather(*walks, both.client.insert(jobs(80, 30))))
        assert not first.refused + second.refused
        assert (await templates.reseal())[1:] == (1, 0)
    await within(both.drain())
    await cells.reseal()
    assert set(await survey(both)) == {"autumn-2"}
    await check_all(new, waiting=10)
    assert (await new.schedules.get("hourly")).args == {"n": 1}
    [last] = await new.client.insert(jobs(200, 1))
    await new.client.alter_all(Selector(states=frozenset({JobState.FAILED})), Requeue())
    await within(new.drain())
    assert (await new.get(last.id)).state is JobState.COMPLETED
    assert (await cells.reseal()).resealed == 0


async def test_what_was_sealed_before_cannot_be_put_back(store: Store, tmp_path: Path) -> None:
    old, both, new = (app_with(store, keys, tmp_path) for keys in ("OLD", "BOTH", "NEW"))
    [made] = await old.client.insert(jobs(1, 1))
    backend = await old.client.backend()
    assert backend.references is not None
    [before] = await backend.fetch([made.id], frozenset(SECTIONS), old.client.clock.stamp())
    cells, _ = await resealer(both)
    assert (await cells.reseal()).resealed == len(before.cells if before else ())
    [after] = await backend.fetch([made.id], frozenset(SECTIONS), old.client.clock.stamp())
    assert before is not None
    assert after is not None
    assert not set(before.cells.values()) & set(after.cells.values())
    assert await backend.references.swap([Swap(made.id, after.cells, before.cells)], old.client.clock.stamp()) == [True]
    await within(new.drain())
    info = await new.get(made.id)
    assert (info.state, info.reason) == (JobState.FAILED, "payload cannot be used")
    assert info.failures[0].type == "UnknownKey"


async def test_a_cell_that_a_run_replaces_meanwhile_stays(store: Store, tmp_path: Path) -> None:
    old, both = app_with(store, "OLD", tmp_path), app_with(store, "BOTH", tmp_path)
    [made] = await old.client.insert(jobs(3, 1))
    backend = await both.client.backend()
    walk, _ = await resealer(both)
    load = walk._loaded

    async def loaded_long_ago(records: Any) -> Any:
        found = await load(records)
        await within(both.drain())
        return found

    walk._loaded = loaded_long_ago  # type: ignore[method-assign]
    assert (await walk.reseal()).resealed == 0
    [record] = await backend.fetch([made.id], frozenset(SECTIONS), both.client.clock.stamp())
    assert record is not None
    assert both.client.stowage is not None
    [cells] = await both.client.stowage.load([record.cells])
    assert isinstance(cells["vm_state"], bytes)
    found = both.client.packer.envelope.unwrap(cells["vm_state"], "vm_state", record.id, record.tenant)[1]
    assert found == STATE[::-1]


async def test_what_does_not_open_stays_and_is_counted(store: Store, tmp_path: Path) -> None:
    old, new = app_with(store, "OLD", tmp_path), app_with(store, "NEW", tmp_path)
    await old.client.insert(jobs(1, 2))
    await store.app().client.insert(jobs(5, 1))
    strict, _ = await resealer(new)
    before = await survey(new)
    assert before == {"spring": 4, "not sealed": 2}
    assert tuple(await strict.reseal()) == (6, 0, 6)
    assert await survey(new) == before
    lenient, _ = await resealer(app_with(store, "BOTH", tmp_path), unsealed=True)
    assert tuple(await lenient.reseal()) == (6, 6, 0)
    assert set(await survey(new)) == {"autumn-2"}


async def test_workers_do_it_by_themselves(store: Store, tmp_path: Path) -> None:
    old = app_with(store, "OLD", tmp_path)
    await old.client.insert(jobs(0, 60, delay="1h"))
    both = app_with(store, "BOTH", tmp_path, reseal="10ms")
    async with working(both):
        while set(await survey(both)) != {"autumn-2"}:
            await asyncio.sleep(0)
    await check_all(app_with(store, "NEW", tmp_path), waiting=60)


async def test_sections_in_objects_get_another_object(memory: Store, tmp_path: Path) -> None:
    old, both = app_with(memory, "OLD", tmp_path), app_with(memory, "BOTH", tmp_path)
    [made] = await old.client.insert(jobs(0, 1, delay="1h"))
    backend = await old.client.backend()
    [before] = await backend.fetch([made.id], frozenset(SECTIONS), SystemClock().now())
    await (await resealer(both))[0].reseal()
    [after] = await backend.fetch([made.id], frozenset(SECTIONS), SystemClock().now())
    assert before is not None
    assert after is not None
    assert is_reference(before.cells["blob"])
    assert is_reference(after.cells["blob"])
    assert before.cells["blob"] != after.cells["blob"]
    for app, error in ((old, UnknownKey), (app_with(memory, "NEW", tmp_path), None)):
        await app.client.backend()
        stowage = app.client.stowage
        assert stowage is not None
        [loaded] = await stowage.load([after.cells])
        cell = loaded["blob"]
        assert isinstance(cell, bytes)
        if error is None:
            assert app.client.packer.envelope.unwrap(cell, "blob", made.id, "t0")[1] == LARGE
        else:
            with pytest.raises(SealError):
                app.client.packer.envelope.unwrap(cell, "blob", made.id, "t0")
