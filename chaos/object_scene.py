"""What one process does with jobs whose sections lie in an object store, until it dies at a given call.

``python -m chaos.object_scene`` reads a scene per line, and forks a process for each: a new interpreter would take most
of the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.core.clock import ManualClock
from headrace.core.config import Settings
from headrace.errors import HeadraceError
from headrace.keeping.object_keeper import ObjectKeeper
from headrace.payloads.objects import Objects
from headrace.payloads.reference import FOLDER, read_reference
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Delete, JobId, Reap, Selector, Settlement
from headrace.seam.references import is_reference
from headrace.testing.wrapped import Carry, Wrapped
from headrace.types import SECTIONS, JobState, NewJob, Patch, Sections

T = TypeVar("T")

DIED = 17
"""The exit code of a process that died where it was told to."""
POINTS = tuple(f"{call}, {side}" for call in (
    "create", "insert", "claim", "finish", "archive.ended", "references.find", "references.swap", "documents.put",
    "delete",
) for side in ("before", "after"))  # fmt: skip
_RULES = {"vm_state": {"over": 0, "least": 0}, "metadata": {"over": None, "delay": None, "least": 0}}
"""A vm_state always leaves; metadata do once their job is a dead letter."""
_JOBS, _KEPT = 3, 12


class Scene(Struct):
    """What is to happen."""

    url: str
    objects: str
    folder: str
    seed: int
    point: str = ""
    """Where the process dies; empty: nowhere."""
    number: int = 1
    """The how manieth time it comes there."""


class Seen(Struct):
    """What a process found before it did anything; the last one, at the end."""

    jobs: int = 0
    dangling: int = 0
    orphans: int = 0


class Dying(Wrapped):
    """A store, and an object store, at whose calls the process dies."""

    def __init__(self, inner: Backend, scene: Scene) -> None:
        super().__init__(inner)
        self._point = scene.point
        self._left = scene.number

    async def _call(self, name: str, args: tuple[Any, ...], at: int | None, carry: Carry[T]) -> T:
        return await self.at(name, lambda: carry(at))

    async def at(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self._die(f"{name}, before")
        answer = await call()
        self._die(f"{name}, after")
        return answer

    def _die(self, where: str) -> None:
        if where == self._point:
            self._left -= 1
            if not self._left:
                os._exit(DIED)

    def watch(self, objects: Objects) -> None:
        """Die at calls of this object store too."""
        create, delete = objects.create, objects.delete
        objects.create = lambda key, body: self.at("create", lambda: create(key, body))  # type: ignore[method-assign]
        objects.delete = lambda keys: self.at("delete", lambda: delete(keys))  # type: ignore[method-assign]


class Process:
    """One process: it looks at what others left, then works, keeps order, and dies somewhere."""

    def __init__(self, scene: Scene) -> None:
        self._rng = Random(scene.seed)
        self._folder = Path(scene.folder)
        self._inner = open_backend(scene.url)
        self._backend = Dying(self._inner, scene)
        settings = Settings.load(
            {"objects": {"url": scene.objects, "keep": "1d", "grace": "1h"} | _RULES}, env={}, toml={}
        )
        self._clock = ManualClock(int((self._folder / "now").read_text()))
        self._client = Client(self._backend, settings, clock=self._clock, rng=self._rng)

    async def act(self, tell: Callable[[Seen], None]) -> None:
        await self._client.open()
        assert self._client.stowage is not None
        tell(await self._check())
        self._backend.watch(self._client.stowage.objects)
        await self._forget()
        await self._insert()
        await self._run()
        await self._poison()
        self._advance(self._rng.choice(("2d", "3d")))
        keeper = self._keeper()
        await keeper.offload()
        await keeper.keep()
        self._advance("2h")
        await keeper.keep()
        await keeper.sweep()
        await self._client.close()

    async def end(self, tell: Callable[[Seen], None]) -> None:
        """After the grace: what is left?"""
        await self._client.open()
        self._advance("2h")
        await self._keeper().sweep()
        tell(await self._check())
        await self._client.close()

    def _keeper(self) -> ObjectKeeper:
        client = self._client
        assert client.stowage is not None
        return ObjectKeeper(
            self._backend, client.stowage, self._clock, self._rng, client.observers, client.settings.objects
        )

    async def _insert(self) -> None:
        jobs = []
        for _ in range(_JOBS):
            body, job_id = self._rng.randbytes(600), self._client.packer.new_id()
            self._note(job_id, body)
            delay = self._rng.choice((None, "1h", "5d"))
            jobs.append(NewJob(task="t", id=job_id, sections=Sections(vm_state=body), delay=delay))  # type: ignore[arg-type]
        await self._client.insert(jobs)

    async def _run(self) -> None:
        """Give jobs another state, as a run would."""
        at, stowage = self._clock.stamp(), self._client.stowage
        assert stowage is not None
        await self._inner.reap(Reap(max_lost=1_000_000), at)
        jobs = {job.id: job for job in (await self._backend.claim(Claim("w", ("default",), 2, 1), at)).jobs}
        batch = []
        for job in jobs.values():
            body = self._rng.randbytes(600)
            self._note(job.id, body)
            cells = self._client.packer.patch(Patch(sections=Sections(vm_state=body)), job.id, "")
            batch.append(Settlement(job.id, job.epoch, "w", JobState.AVAILABLE, cells=cells))
        if batch:
            await self._backend.finish(await stowage.stow_settlements(batch, lambda one: jobs[one.id]), at)

    async def _poison(self) -> None:
        """A job becomes a dead letter without anybody who could send its section away."""
        body, job_id = self._rng.randbytes(600), self._client.packer.new_id()
        self._note(job_id, body)
        await self._client.insert([NewJob(task="t", id=job_id, queue="pills", sections=Sections(metadata=body))])
        await self._inner.claim(Claim("w", ("pills",), 9, 1), self._clock.stamp())
        self._advance("1h")
        await self._inner.reap(Reap(max_lost=0), self._clock.stamp())

    async def _forget(self) -> None:
        """Only the last jobs stay: the run is long."""
        page = await self._inner.scan(Selector(), None, 1_000, self._clock.stamp())
        old = [record.id for record in page.records[_KEPT:]]
        if old:
            await self._inner.alter(Selector(ids=old), Delete(), self._clock.stamp())

    async def _check(self) -> Seen:
        """What every job refers to, and what nobody does."""
        stowage, known = self._client.stowage, self._known()
        assert stowage is not None
        page = await self._inner.scan(Selector(), None, 1_000, self._clock.stamp())
        ids = [record.id for record in page.records]
        seen, referred = Seen(), set()
        for record in await self._inner.fetch(ids, frozenset(SECTIONS), self._clock.stamp()):
            assert record is not None
            seen.jobs += 1
            [cells] = await stowage.load([record.cells])
            assert len(cells) == 1
            for name, cell in cells.items():
                if is_reference(record.cells[name]):
                    referred.add(read_reference(record.cells[name], name).key)
                if isinstance(cell, HeadraceError):
                    seen.dangling += 1
                    continue
                body = self._client.packer.envelope.unwrap(cell, name, record.id)[1]
                seen.dangling += hashlib.sha256(body).hexdigest() not in known[record.id]
        there = {one.key async for found in stowage.objects.pages(FOLDER) for one in found}
        seen.orphans = len(there - referred)
        return seen

    def _note(self, job_id: JobId, body: bytes) -> None:
        """Before it is stored: it may be."""
        with (self._folder / "known").open("a") as file:
            file.write(f"{job_id.hex()} {hashlib.sha256(body).hexdigest()}\n")

    def _known(self) -> dict[JobId, set[str]]:
        found: dict[JobId, set[str]] = {}
        path = self._folder / "known"
        for line in path.read_text().splitlines() if path.exists() else ():
            job_id, digest = line.split()
            found.setdefault(bytes.fromhex(job_id), set()).add(digest)
        return found

    def _advance(self, length: str) -> None:
        self._clock.advance(length)
        (self._folder / "now").write_text(str(self._clock.now()))


def _tell(out: int, seen: Seen) -> None:
    os.write(out, msgspec.json.encode(seen))


def _child(scene: Scene, out: int, *, last: bool) -> None:
    code = 1
    try:
        process = Process(scene)
        act = process.end if last else process.act
        asyncio.run(act(partial(_tell, out)))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin.buffer:
        scene = msgspec.json.decode(line, type=Scene)
        open_backend(scene.url)  # imports what it takes, once for all
        told, out = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(told)
            _child(scene, out, last=scene.point == "the end")
        os.close(out)
        with os.fdopen(told, "rb") as file:
            seen = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.buffer.write(msgspec.json.encode({"code": code, "seen": msgspec.Raw(seen or b"null")}) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
