"""A crash at any point of any flow loses nothing and doubles nothing in the Valkey backend: kill -9 included, and
connections that break on the way to the server or on the way back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from servers.proxy import Proxy, _Link

from headrace.api.connection import open_backend
from headrace.backends.redis.scripts import SCRIPTS
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record, Selector, Stamp
from headrace.testing.crashpoints import CrashPoint, check_crash, check_kill, crash_points, kill_everywhere
from headrace.testing.crashpoints.actor import Actor
from headrace.testing.crashpoints.check import check_recovery
from headrace.testing.crashpoints.interrupted import Crash, Interrupted, Side
from headrace.testing.crashpoints.ledger import Event, Ledger
from headrace.testing.crashpoints.points import flow_of, run_flow
from headrace.testing.wrapped import Carry
from headrace.types import SECTIONS, JobState
from tests.valkey import server, stores

T = TypeVar("T")
Books = dict[JobId, Record]

SERVER = "TESTS_VALKEY"
"""Tells the processes that are to be killed where the server is, as it is not theirs."""
PARTS = 4


@pytest.mark.parametrize("point", crash_points(), ids=str)
async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
    await check_crash(stores.connect, tmp_path, point)


def connect(place: Path) -> Backend:
    """A backend on a store of this place's own, beside those of the others."""
    return open_backend(f"{os.environ[SERVER]}?prefix={place.parent.name}")


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_loses_and_doubles_nothing(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server().call("FLUSHALL")
    monkeypatch.setenv(SERVER, server().url())
    for point, place in kill_everywhere(f"{__name__}:connect", tmp_path, points=crash_points()[part::PARTS]):
        await check_kill(connect, place, point)


SHORT = SCRIPTS["insert_one"]


class Scissors(Proxy):
    """Breaks a connection at the next request: before the server gets it, or when it has done what was asked for."""

    _side: Side | None = None
    _short = False
    """Whether the last request was one of the script for a single row, which may do nothing."""

    def cut(self, side: Side) -> None:
        """At the next request."""
        self._thread.run(self._arm(side))

    async def _arm(self, side: Side) -> None:
        self._side = side

    async def _up(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            side, self._side = self._side, None
            if side is Side.BEFORE:
                self.swallowed += 1
                break
            link.swallowing = link.swallowing or side is Side.AFTER
            self._short = SHORT.digest.encode() in data or SHORT.text.encode() in data
            writer.write(data)
            await writer.drain()
        link.reset()

    async def _down(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            undone = data.startswith(b"-NOSCRIPT") or (self._short and data == b":1\r\n")
            if link.swallowing and not undone:
                self.swallowed += 1
                break
            writer.write(data)
            await writer.drain()
        link.reset()


@pytest.fixture(scope="module")
def line() -> Iterator[Scissors]:
    scissors = Scissors(server().port)
    yield scissors
    scissors.close()


async def books(store: Backend, at: Stamp) -> Books:
    """All that there is."""
    ids = [record.id for record in (await store.scan(Selector(), None, 100, at)).records]
    found = await store.fetch(ids, frozenset((*SECTIONS, "result", "error")), at)
    return {record.id: record for record in found if record is not None}


class Severed(Interrupted):
    """A backend at the end of a line that breaks at one call. What the server did is told to the ledger by what can be
    seen from elsewhere."""

    def __init__(self, far: Backend, near: Backend, ledger: Ledger, point: CrashPoint, line: Scissors) -> None:
        super().__init__(far, ledger)
        self._near = near
        self._point = point
        self._line = line
        self.seen: Books = {}

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        if len(self.calls) + 1 != self._point.call:
            return await super()._call(name, args, at, carry)
        self._ledger.write(Event("asked", at=at or 0))
        before, swallowed = await books(self._near, at), self._line.swallowed
        self._line.cut(self._point.side)
        with pytest.raises(Unavailable):
            await carry(at)
        assert self._line.swallowed == swallowed + 1
        self.seen = await books(self._near, at)
        if self._point.side is Side.BEFORE:
            assert self.seen == before
        else:
            self._tell_difference(before, self.seen, "lost" if name == "reap" else "settled")
        raise Crash

    def _tell_difference(self, before: Books, after: Books, end: str) -> None:
        """Ends first: in a turn, what they make way for is leased after them."""
        granted: list[tuple[JobId, int]] = []
        for job_id in before | after:
            was, now = before.get(job_id), after.get(job_id)
            again = now is not None and now.epoch > (0 if was is None else was.epoch)
            running = now is not None and now.state is JobState.RUNNING
            if was is not None and was.state is JobState.RUNNING and (again or not running):
                self._tell(end, job_id, was.epoch, "w1")
            if now is not None and again:
                granted.append((job_id, now.epoch))
        for job_id, epoch in granted:
            self._tell("granted", job_id, epoch, "w1")


@pytest.mark.parametrize("point", crash_points(), ids=str)
async def test_a_connection_that_breaks_loses_and_doubles_nothing(
    point: CrashPoint, line: Scissors, tmp_path: Path
) -> None:
    """And nothing is half done: what the server answered in vain is what an undisturbed call does."""
    flow, ledger = flow_of(point), Ledger()
    near = stores.connect(tmp_path)
    far = open_backend(f"redis://127.0.0.1:{line.port}/0")
    undisturbed = open_backend(f"{server().url()}?prefix=undisturbed")
    for backend in (near, far, undisturbed):
        await backend.open()
    try:
        first = Actor(Interrupted(far, ledger), ledger, "w1", flow.handler)
        await flow.before(first)
        store = Severed(far, near, ledger, point, line)
        with pytest.raises(Crash):
            await flow.act(Actor(store, ledger, "w1", flow.handler, first.now))
        told = Ledger()
        with pytest.raises(Crash):
            await run_flow(flow, undisturbed, told, point)
        assert store.seen == await books(undisturbed, told.now)
        await check_recovery(flow, near, ledger)
    finally:
        for backend in (near, far, undisturbed):
            await backend.close()
