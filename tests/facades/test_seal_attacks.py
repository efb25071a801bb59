"""What somebody does who can write to a store and to its object store, but has no key: in every section, on every
store, in the store itself and through objects."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from msgspec.structs import replace

from headrace import App, Job, JobState, NewJob, Sections
from headrace.errors import CodecError, ObjectMissing, SealError
from headrace.payloads.codec import RAW, SEALED, Envelope
from headrace.payloads.keyring import Keyring
from headrace.payloads.segments import ToStow
from headrace.seam.records import Cells, Row
from headrace.seam.references import Swap, is_reference
from headrace.types import SECTIONS
from tests.facades.harness import WITH_STREAMS, Store, within

KEYS = {"spring": bytes(range(32)), "autumn": bytes(range(32, 64))}
ALWAYS = {name: {"over": 0, "least": 0} for name in SECTIONS}
PLAIN = Envelope(max_size=10_000, compress_over=None)
FORGED = b'{"forged":1}'


@pytest.fixture(params=WITH_STREAMS)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTUMN", f"autumn:{b64encode(KEYS['autumn']).decode()}")


def app_on(store: Store, place: str, tmp_path: Path) -> App:
    """An app all of whose sections stay, or all of which leave."""
    objects = {"objects": {"url": f"file://{tmp_path}/o", **ALWAYS}} if place == "objects" else {}
    return store.app(payloads={"sealing": {"keys": "env:AUTUMN"}}, **objects)


def packed(app: App, number: int, tenant: str = "acme") -> Row:
    """A job with a body of its own in every section."""
    bodies = {name: Random(f"{number} {name}").randbytes(700) for name in SECTIONS}
    return app.client.packer.pack(NewJob(task="note", sections=Sections(**bodies), tenant=tenant))


async def store_rows(app: App, rows: list[Row]) -> None:
    """As a client stores them."""
    backend, stowage = await app.client.backend(), app.client.stowage
    rows = rows if stowage is None else await stowage.stow_rows(rows)
    await backend.insert(rows, app.client.clock.stamp())


def checked(body: bytes) -> bytes:
    """A sealed cell whose checksum is right."""
    return bytes((SEALED,)) + crc32(body).to_bytes(4, "big") + body


def changed(cell: bytes, at: int, to: bytes) -> bytes:
    """The cell with other bytes there, and with a checksum that is right all the same."""
    return checked((cell[:at] + to + cell[at + len(to) :])[5:])


class Cast:
    """The cells of a job, of another one, and of one of another tenant; and the job's own by a key that is retired."""

    def __init__(self, app: App) -> None:
        self.row = packed(app, 1)
        self.mine: Cells = self.row.cells
        self.other: Cells = packed(app, 2).cells
        self.foreign: Cells = packed(app, 3, "rival").cells
        spring, plain = Keyring({"spring": KEYS["spring"]}), PLAIN.wrap(FORGED, RAW, "x")
        self.old = {name: spring.seal(plain, name, self.row.id, "acme") for name in SECTIONS}


def another(section: str) -> str:
    return SECTIONS[(SECTIONS.index(section) + 1) % len(SECTIONS)]


ATTACKS: dict[str, Callable[[Cast, str], bytes]] = {
    "of another section": lambda cast, name: cast.mine[another(name)],
    "of another job": lambda cast, name: cast.other[name],
    "of another tenant": lambda cast, name: cast.foreign[name],
    "by a retired key": lambda cast, name: cast.old[name],
    "by a retired key in the name of the new one": lambda cast, name: changed(cast.old[name], 7, b"autumn"),
    "as if for all jobs of the tenant": lambda cast, name: changed(cast.mine[name], 5, b"\x02"),
    "in a way that is not known": lambda cast, name: changed(cast.mine[name], 5, b"\x03"),
    "with another nonce": lambda cast, name: changed(cast.mine[name], 13, bytes(12)),
    "with another byte": lambda cast, name: changed(cast.mine[name], 99, bytes((cast.mine[name][99] ^ 1,))),
    "without its last byte": lambda cast, name: checked(cast.mine[name][5:-1]),
    "without its second half": lambda cast, name: cast.mine[name][:350],
    "without all but its head": lambda cast, name: cast.mine[name][:7],
    "empty": lambda cast, name: b"",
    "longer": lambda cast, name: checked(cast.mine[name][5:] + b"x"),
    "in plain": lambda cast, name: FORGED,
    "in plain, in an envelope": lambda cast, name: PLAIN.wrap(FORGED, RAW, "x"),
    "in plain, in an envelope, and long": lambda cast, name: PLAIN.wrap(FORGED * 50, RAW, "x"),
}


@pytest.mark.parametrize("place", ["the store", "objects"])
async def test_what_was_not_sealed_for_its_place_is_refused(store: Store, place: str, tmp_path: Path) -> None:
    """By whoever pulls it, section by section; the others of the job can be read."""
    app = app_on(store, place, tmp_path)
    bad: dict[bytes, tuple[str, str]] = {}
    rows = []
    for attack, forge in ATTACKS.items():
        for name in SECTIONS:
            cast = Cast(app)
            rows.append(replace(cast.row, cells=cast.mine | {name: forge(cast, name)}))
            bad[cast.row.id] = attack, name
    async with app:
        await store_rows(app, rows)
        async with app.pull("default", batch=20) as pull:
            for _ in rows:
                [job] = await within(pull.take(1))
                attack, name = bad[job.id.bytes]
                with pytest.raises(SealError, match=f"^{name}: "):
                    job.section(name)
                assert all(job.section(one) for one in SECTIONS if one != name), attack
                job.set_state("available")
                job.set_queue("later")
                await job.release()
        async with app.pull("later", want=()) as pull:
            for _ in rows:
                [job] = await within(pull.take(1))
                attack, name = bad.pop(job.id.bytes)
                with pytest.raises(SealError, match=f"^{name}: "):
                    await job.load(name)
                job.set_state("completed")
                await job.release()
    assert not bad


@pytest.mark.parametrize("place", ["the store", "objects"])
async def test_no_handler_runs_with_it(store: Store, place: str, tmp_path: Path) -> None:
    """The job is a dead letter at once, and says why. ``test_sealing.py`` does the same to parameters."""
    app, seen = app_on(store, place, tmp_path), list[dict[str, bytes]]()

    @app.task(name="note", queue="default")
    async def note(job: Job[Any]) -> None:
        seen.append(job.sections)

    sections = [name for name in SECTIONS if name != "parameters"]
    bad, good = {}, packed(app, 9)
    for attack, forge in ATTACKS.items():
        for name in sections:
            cast = Cast(app)
            cells = {one: cast.mine[one] for one in sections}
            bad[attack, name] = replace(cast.row, cells=cells | {name: forge(cast, name)})
    good = replace(good, cells={name: good.cells[name] for name in sections})
    async with app:
        await store_rows(app, [*bad.values(), good])
        await within(app.drain())
        assert [set(one) for one in seen] == [set(sections)]
        for (attack, name), row in bad.items():
            info = await app.get(row.id)
            assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 1, "payload cannot be used"), attack
            assert info.failures[0].type in ("SealError", "UnknownKey"), attack
            assert info.failures[0].message.startswith(f"{name}: "), attack
            assert "forged" not in str(info.failures), attack


async def test_references_lead_nobody_astray(store: Store, tmp_path: Path) -> None:
    """Swapped between sections, jobs and tenants; to an object that is not sealed; to one that an old key sealed."""
    app = app_on(store, "objects", tmp_path)
    async with app:
        backend, stowage = await app.client.backend(), app.client.stowage
        assert stowage is not None
        assert backend.references is not None
        casts = {how: Cast(app) for how in ("section", "job", "tenant", "plain", "old key")}
        rows = [cast.row for cast in casts.values()]
        foreign = packed(app, 3, "rival")
        await store_rows(app, [*rows, foreign])
        fetched = await backend.fetch(
            [*(row.id for row in rows), foreign.id], frozenset(SECTIONS), app.client.clock.stamp()
        )
        cells = dict(zip([*casts, "foreign"], [record.cells for record in fetched if record is not None], strict=True))
        assert all(is_reference(cell) for of in cells.values() for cell in of.values())
        plain, old = await stowage.segments.stow(
            [ToStow(PLAIN.wrap(FORGED * 50, RAW, "x")), ToStow(casts["old key"].old["vm_state"])]
        )
        instead = {
            "section": cells["section"]["blob"],
            "job": cells["plain"]["vm_state"],
            "tenant": cells["foreign"]["vm_state"],
            "plain": plain.cell,
            "old key": old.cell,
        }
        swaps = [
            Swap(casts[how].row.id, {"vm_state": cells[how]["vm_state"]}, {"vm_state": cell})
            for how, cell in instead.items()
        ]
        assert all(await backend.references.swap(swaps, app.client.clock.stamp()))
        async with app.pull("default") as pull:
            jobs = await within(pull.take())
            assert len(jobs) == len(rows) + 1
            for job in jobs:
                if job.id.bytes == foreign.id:
                    assert job.section("vm_state") is not None
                    continue
                with pytest.raises(SealError, match=r"^vm_state: "):
                    job.section("vm_state")
                assert job.section("blob") is not None


async def test_a_section_whose_object_is_gone_is_not_said_to_be_unsealed(memory: Store, tmp_path: Path) -> None:
    app = app_on(memory, "objects", tmp_path)
    row = packed(app, 1)
    async with app:
        await store_rows(app, [row])
        for segment in (tmp_path / "o" / "segments").glob("*/*/*"):
            segment.unlink()
        record = await app.client.fetch(UUID(bytes=row.id), frozenset(SECTIONS))
        assert record is not None
        with pytest.raises(ObjectMissing):
            app.client.packer.envelope.unwrap(record.cells["blob"], "blob", row.id, "acme")


async def test_nor_is_one_that_this_process_cannot_load(memory: Store, tmp_path: Path) -> None:
    app, without = app_on(memory, "objects", tmp_path), app_on(memory, "the store", tmp_path)
    row = packed(app, 1)
    async with app, without:
        await store_rows(app, [row])
        record = await without.client.fetch(UUID(bytes=row.id), frozenset(SECTIONS))
        assert record is not None
        with pytest.raises(CodecError, match="load it from the object store"):
            without.client.packer.envelope.unwrap(record.cells["blob"], "blob", row.id, "acme")
