"""Stow and load: which cells leave, and what comes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from servers.seaweedfs import SeaweedFS

from headrace import NewJob, connect
from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.core.clock import ManualClock
from headrace.core.config import ObjectSettings, Offload
from headrace.core.events import Event, Observers
from headrace.errors import ConfigError, ObjectMissing, PayloadTooLarge, Unavailable
from headrace.payloads.object_url import Location, parse
from headrace.payloads.objects import Objects
from headrace.payloads.reference import read_reference
from headrace.payloads.stowage import Stowage
from headrace.seam.records import Leased, Row, Settlement
from headrace.seam.references import is_reference
from headrace.testing.wrapped import Carry, Wrapped
from headrace.types import JobState, Sections
from tests.objects import server

SECOND = 1_000_000
DAY = 86_400 * SECOND
LARGE, SMALL = os.urandom(2_000), os.urandom(200)
RULES = ObjectSettings(
    parameters=Offload(over=1_000, delay=None, dead_letters=False),
    vm_state=Offload(over=None),
    blob=Offload(over=None, delay=None),
)


def stowage_of(objects: Objects, clock: ManualClock, settings: ObjectSettings = RULES) -> Stowage:
    return Stowage(objects, settings, clock, Random(), Observers())


@pytest.fixture
async def stowage(objects: Objects, clock: ManualClock) -> Stowage:
    return stowage_of(objects, clock)


def row(cells: dict[str, bytes], **more: Any) -> Row:
    return Row(id=os.urandom(16), queue="q", task="t", cells=cells, **more)


def left(cells: dict[str, bytes | None] | None) -> set[str]:
    """The sections that left for the object store."""
    return {name for name, cell in (cells or {}).items() if cell is not None and is_reference(cell)}


async def test_what_leaves_at_an_enqueue(stowage: Stowage, clock: ManualClock) -> None:
    all_large = dict.fromkeys(("parameters", "vm_state", "blob"), LARGE)
    rows = await stowage.stow_rows([
        row(all_large),
        row(all_large, delay=10 * SECOND),
        row(all_large, delay=10 * SECOND + 1),
        row(all_large, run_at=clock.now() + 11 * SECOND),
        row(dict.fromkeys(all_large, SMALL), delay=DAY),
    ])  # fmt: skip
    assert [left(one.cells) for one in rows] == [
        {"parameters"}, {"parameters"}, {"parameters", "vm_state"}, {"parameters", "vm_state"}, set(),
    ]  # fmt: skip
    assert await stowage.load([one.cells for one in rows[:4]]) == [all_large] * 4


async def test_a_delayed_job_lies_in_the_segment_of_its_day(stowage: Stowage, clock: ManualClock) -> None:
    due = [0, 20 * DAY, 20 * DAY, 40 * DAY]
    rows = await stowage.stow_rows([row({"vm_state": LARGE}, delay=delay + 11 * SECOND) for delay in due])
    found = [read_reference(one.cells["vm_state"], "vm_state") for one in rows]
    assert [one.day.toordinal() - found[0].day.toordinal() for one in found] == [0, 20, 20, 40]
    assert stowage.objects.requests["create"] == 3


def settlement(state: JobState, **more: Any) -> Settlement:
    return Settlement(b"1" * 16, 1, "w", state, **more)


async def test_what_leaves_when_a_run_ends(stowage: Stowage) -> None:
    job = Leased(b"1" * 16, "q", "t", {"parameters": SMALL, "vm_state": LARGE, "blob": LARGE}, 1)
    batch = [
        settlement(JobState.COMPLETED, cells={"vm_state": LARGE}),
        settlement(JobState.AVAILABLE, cells={"parameters": LARGE, "vm_state": None}),
        settlement(JobState.AVAILABLE, delay=60 * SECOND),
        settlement(JobState.AVAILABLE, delay=60 * SECOND, cells={"vm_state": None}),
        settlement(JobState.PAUSED),
        settlement(JobState.FAILED),
        settlement(JobState.COMPLETED, spawn=[row({"parameters": LARGE})]),
    ]
    found = await stowage.stow_settlements(batch, lambda _: job)
    assert [left(one.cells) for one in found] == [
        set(), {"parameters"}, {"vm_state"}, set(), {"vm_state"}, {"vm_state", "blob"}, set(),
    ]  # fmt: skip
    assert found[1].cells is not None
    assert found[1].cells["vm_state"] is None
    assert found[0] is batch[0]
    assert left({**found[6].spawn[0].cells}) == {"parameters"}


async def test_what_is_gone_and_what_is_damaged(stowage: Stowage) -> None:
    [gone, kept] = await stowage.stow_rows([row({"parameters": LARGE}, delay=DAY), row({"parameters": LARGE})])
    await stowage.objects.delete([read_reference(gone.cells["parameters"], "").key])
    damaged = kept.cells["parameters"][:-1] + b"?"
    cells = [gone.cells | {"blob": SMALL}, kept.cells, {"vm_state": damaged}]
    [one, two, three] = await stowage.load(cells)
    assert isinstance(one["parameters"], ObjectMissing)
    assert (one["blob"], two["parameters"]) == (SMALL, LARGE)
    assert "damaged" in str(three["vm_state"])


async def test_while_the_object_store_is_away_cells_stay(own_server: SeaweedFS, clock: ManualClock) -> None:
    told: list[Event] = []
    observers = Observers()
    observers.add(told.append)
    objects = Objects(parse(own_server.url(timeout="2s")))
    stowage = Stowage(objects, RULES, clock, Random(), observers)
    own_server.kill()
    rows = [row({"parameters": LARGE})]
    assert await stowage.stow_rows(rows) == rows
    asked = objects.requests["create"]
    assert await stowage.stow_rows(rows) == rows
    assert objects.requests["create"] == asked
    assert [event.detail.partition(":")[0] for event in told] == ["objects_away"]


# -- through a client


def client_of(location_url: str, url: str = "memory://", **more: Any) -> Client:
    always = {"over": 0, "least": 0}
    rules = dict.fromkeys(("parameters", "vm_state", "metadata", "blob"), always)
    return connect(url, objects={"url": location_url, **rules, **more})


def job(number: int = 0, **more: Any) -> NewJob:
    body = bytes(random_bytes(number, 4_000))
    return NewJob(task="t", sections=Sections(vm_state=body, parameters=b"p" * 300, metadata=b"m" * 120), **more)


def random_bytes(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


async def test_a_client_stows_what_it_enqueues(location: Location, tmp_path: Path) -> None:
    url = server().url(f"tests/{tmp_path.name}") if location.scheme == "s3" else f"file://{tmp_path}/o"
    async with client_of(url) as client:
        [answer] = await client.insert([job(1)])
        raw = await (await client.backend()).fetch([answer.id], frozenset({"vm_state", "parameters"}))
        assert raw[0] is not None
        assert left({**raw[0].cells}) == {"vm_state", "parameters"}
        loaded = await client.fetch(answer.id, frozenset({"vm_state", "parameters"}))
        assert loaded is not None
        assert client.packer.envelope.unwrap(loaded.cells["vm_state"], "vm_state")[1] == random_bytes(1, 4_000)
        assert (await client.get(UUID(bytes=answer.id))).id == UUID(bytes=answer.id)


async def test_requests_for_a_thousand_jobs() -> None:
    async with client_of(server().url("thousand")) as client:
        before = server().requests()
        answers = await client.insert([job(n) for n in range(1_000)])
        assert server().requests() - before <= 2
        assert len(answers) == 1_000
        many = await asyncio.gather(*[client.enqueue(job(n)) for n in range(1_000)])
        assert len(many) == 1_000
        assert server().requests() - before <= 20
        backend = await client.backend()
        assert client.stowage is not None
        records = await backend.fetch([one.id for one in answers], frozenset({"vm_state", "parameters", "metadata"}))
        before = server().requests()
        for at in range(0, 1_000, 100):
            loaded = await client.stowage.load([one.cells for one in records[at : at + 100] if one is not None])
            assert all(isinstance(cell, bytes) for cells in loaded for cell in cells.values())
        assert server().requests() - before <= 10


class Stumbling(Wrapped):
    """A store that does not answer the first inserts."""

    failures = 3

    async def _call(self, name: str, args: tuple[Any, ...], at: int | None, carry: Carry[Any]) -> Any:
        if name == "insert" and self.failures:
            self.failures -= 1
            raise Unavailable
        return await carry(at)


async def test_an_insert_that_is_repeated_leaves_no_second_object(tmp_path: Path) -> None:
    store = Stumbling(open_backend("memory://"))
    async with Client(store, client_of(f"file://{tmp_path}").settings) as client:
        assert len(await client.insert([job(1), job(2)])) == 2
        await client.enqueue(job(3))
        assert not store.failures
        assert client.stowage is not None
        assert client.stowage.objects.requests["create"] == 3  # with the marker of the owner
        assert not client.stowage._unstored


async def test_limits_hold_for_what_leaves(tmp_path: Path) -> None:
    async with client_of(f"file://{tmp_path}") as client:
        with pytest.raises(PayloadTooLarge):
            await client.insert([NewJob(task="t", sections=Sections(blob=bytes(17 * 1024 * 1024)))])
        assert client.stowage is not None
        assert client.stowage.objects.requests["create"] == 1  # the marker of the owner


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match=r"objects\.url"):
        connect("memory://", objects={"url": "bucket"})
    with pytest.raises(ConfigError, match="object store URL"):
        connect("memory://", objects={"url": "ftp://bucket"})
    with pytest.raises(ConfigError, match=r"objects\.blob\.over"):
        connect("memory://", objects={"url": "memory://", "blob": {"over": -1}})
    settings = connect("memory://", objects={"url": "s3://b?secret_access_key=hunter2"}).settings
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(settings.objects)
