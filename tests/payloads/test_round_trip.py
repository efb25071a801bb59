"""Sections of every size come back as they were, from every store, in it and through objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace import App, Job, NewJob, Streams
from headrace.types import SECTIONS, Sections
from tests import objects, postgres, valkey

MIB = 1024 * 1024
MOST = 64 * MIB - 128
STORES = ("memory", "sqlite", "postgres", "valkey", "streams")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    name = f"trip{abs(hash(tmp_path)) % 10**9}"
    match request.param:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{tmp_path}/jobs.db"
        case "postgres":
            yield f"{postgres.server().url()}?schema={name}"
        case "streams":
            pg = f"{postgres.server().url()}?schema={name}"
            yield Streams(pg=pg, valkey=f"{valkey.server().url()}?prefix={name}").url
        case _:
            yield f"{valkey.server().url()}?prefix={name}"


async def trip(url: str, where: dict[str, Any], size: int) -> None:
    """All sections at once; a run replaces each by the next one, and another sees that."""
    app = App(url, payloads={"max_size": 64 * MIB, "compress_over": None}, **where)
    bodies = {name: Random(n).randbytes(size) for n, name in enumerate(SECTIONS)}
    turned = dict(zip(SECTIONS, (bodies[name] for name in (*SECTIONS[1:], SECTIONS[0])), strict=True))
    async with app:
        await app.client.insert([NewJob(task="t", sections=Sections(**bodies))])
        seen = [await look(app, turned), await look(app, {})]
    assert seen == [{name: digest(of[name]) for name in SECTIONS} for of in (bodies, turned)]


async def look(app: App, instead: dict[str, bytes]) -> dict[str, str | None]:
    """What a run of the job finds; it leaves other sections."""
    async with app.pull("default") as pull:
        [job] = await pull.take(1, wait="60s")
        found = {name: None if (body := job.section(name)) is None else digest(body) for name in SECTIONS}
        for name, body in instead.items():
            getattr(job, f"set_{name}")(body)
        job.set_state("available")
        await job.release()
        return found


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


ALWAYS = {name: {"over": 0, "least": 0} for name in SECTIONS}


@pytest.mark.parametrize("size", [0, 1, 4_500, MIB])
@pytest.mark.parametrize("url", STORES, indirect=True)
@pytest.mark.parametrize("through", ["objects", "the store"])
async def test_sections_of_every_size(url: str, through: str, size: int, tmp_path: Path) -> None:
    where = {"url": objects.server().url(f"trips/{tmp_path.name}/{size}")} | ALWAYS
    await trip(url, {"objects": where} if through == "objects" else {}, size)


@pytest.mark.parametrize("url", STORES, indirect=True)
@pytest.mark.parametrize("through", ["objects", "the store"])
async def test_the_largest_section(url: str, through: str, tmp_path: Path) -> None:
    where: dict[str, Any] = {"objects": {"url": f"file://{tmp_path}/o"}} if through == "objects" else {}
    app = App(url, payloads={"max_size": 64 * MIB, "compress_over": None}, **where)
    body = Random(1).randbytes(MOST)
    seen: list[str] = []

    @app.task(name="t", queue="default")
    async def run(job: Job[None]) -> None:
        seen.append(hashlib.sha256(job.sections["blob"]).hexdigest())

    async with app:
        await app.client.insert([NewJob(task="t", sections=Sections(blob=body))])
        await app.drain()
    assert seen == [hashlib.sha256(body).hexdigest()]


@pytest.mark.parametrize("url", STORES, indirect=True)
async def test_replaced_sections_in_objects(url: str, tmp_path: Path) -> None:
    """A section that lies in an object is replaced by one that does, and by one that does not, and the other way."""
    app = App(url, payloads={"compress_over": None}, objects={"url": f"file://{tmp_path}/o", "blob": {"over": 1_000}})
    seen: list[bytes] = []

    @app.task(name="t", queue="default")
    async def run(job: Job[None]) -> None:
        seen.append(job.sections["blob"])

    async with app:
        references = (await app.client.backend()).references
        assert references is not None
        for size in (5_000, 6_000, 10, 8_000):
            job = NewJob(task="t", key="k", on_duplicate="replace", sections=Sections(blob=bytes(size)))
            await app.client.insert([job])
            assert len(await references.find(2**31 - 1)) == (size > 1_000)
        await app.drain()
    assert seen == [bytes(8_000)]
