"""A power cut of a Valkey server that syncs once a second: what is gone is what it had not synced, and nothing else.

A killed process loses what it had in its own memory alone: what it has written stays with the system. A power cut takes
that too, up to the last sync. So the server is killed, and its file is cut where its last sync found it (see
:mod:`chaos.syncs`), or at any byte behind that, as a disk may have got to some of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaos.books import disagreements
from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.kill_server import at_work
from chaos.ledger import Ledger, Run
from chaos.load import Load
from chaos.outcome import Outcome
from chaos.stores import ValkeyStore, valkey
from chaos.syncs import Sync, Syncs, journal
from chaos.worker import LEASE, make_app
from headrace import App
from headrace.seam.records import JobId

WINDOW = 2.0
"""Seconds: what a server with ``appendfsync everysec`` may lose by its own account; mostly it is one."""
ACKNOWLEDGED = 1.0
"""Seconds after its end within which a run is acknowledged."""
MAX_LOST = 20
LATE = 800_000_000
"""Nanoseconds after its last sync that the server is killed where most is to be lost: the next comes after a second."""
OVERDUE = 1_300_000_000
"""Nanoseconds after its last sync: the machine has stood still, and the server has not had its turn."""
_ID = re.compile(rb"\$16\r\n(.{16})\r\n", re.DOTALL)
_WHOLE = b"*1\r\n$4\r\nEXEC\r\n"


class Cut(Struct, frozen=True):
    """One power cut, by the machine's monotonic clock, in nanoseconds."""

    synced: int
    """When the last sync before it began."""
    killed: int
    back: int
    """When the server was there again."""
    bytes: int
    """That were cut off."""
    told: dict[JobId, int]
    """When the enqueues since the cut before were acknowledged."""
    kept: frozenset[JobId]
    """Those jobs of which the rest of the file tells."""
    gone: frozenset[JobId]
    """Those of ``told`` that the server does not know any more."""

    @property
    def ages(self) -> list[float]:
        """How many seconds before the cut those that are gone were acknowledged."""
        return [(self.killed - self.told[name]) / 1e9 for name in self.gone]

    @property
    def leads(self) -> list[float]:
        """How many seconds before the sync that they missed. A server that waits for a sync answers before it writes:
        for up to two seconds."""
        return [(self.synced - self.told[name]) / 1e9 for name in self.gone]


async def run(
    folder: Path,
    *,
    cuts: int,
    processes: int,
    seed: int,
    rate: int = 1_500,
    seconds: float = 0.01,
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run and the power goes ``cuts`` times."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with valkey(folder, appendfsync="everysec") as store:
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(
                store.url, ledger_folder, size=processes, seconds=seconds, rng=rng, max_lost=MAX_LOST, lease=lease
            )  # fmt: skip
            load = Load(app, rate)
            scene = _Scene(store, app, ledger_folder, fleet.pids, load)
            try:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    producers = load.start(group)
                    made = [await scene.cut(rng, worst=number % 2 == 0) for number in range(cuts)]
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            gone = {name for cut in made for name in cut.gone}
            ids = [name for name in load.acknowledged if name not in gone]
            records = await records_of(app, ids)
            books = await disagreements(app)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger, asked=load.asked)
    ages = [age for each in made for age in each.ages]
    again = ledger.repeated()
    reached: dict[str, Any] = found.figures() | {
        "power cuts": len(made),
        "acknowledged enqueues lost in the window": len(ages),
        "oldest of these s": round(max(ages, default=0.0), 2),
        "window s": WINDOW,
        "longest without a sync s": round(scene.longest, 2),
        "most bytes cut off": max(each.bytes for each in made),
        "runs again": len(again),
        "integrity": integrity,
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "workers that ended by themselves": crashed,
        "exit codes": sorted(set(codes)),
    }
    said = (
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (not ages, "no power cut took anything: the scenario shows nothing"),
    )
    wrong = found.problems() + problems(made, again) + books + [text for bad, text in said if bad]
    return Outcome(
        scenario="fsync_window",
        backend=store.name,
        asked={"cuts": cuts, "processes": processes, "jobs a second": rate, "appendfsync": "everysec"},
        reached=reached,
        ok=not wrong,
        seed=seed,
        problems=wrong,
    )


class _Scene:
    """Everybody who has to do with the server."""

    def __init__(self, store: ValkeyStore, app: App, ledger: Path, pids: Sequence[int], load: Load) -> None:
        self._server = store.server
        self._app = app
        self._ledger = ledger
        self._pids = pids
        self._load = load
        self._since = 0
        self.longest = 0.0
        """Seconds from the beginning of a sync to the end of the next."""

    async def cut(self, rng: random.Random, *, worst: bool) -> Cut:
        """Cut the power in the middle of the work, at its worst shortly before a sync; return when the server is back
        and has been looked through."""
        syncs = Syncs(self._server)
        with syncs.watched():
            await self._in_full_swing(syncs, time.monotonic_ns())
            await asyncio.sleep(rng.random() * WINDOW)
            async with asyncio.timeout(60):
                while not (LATE if worst else 0) <= time.monotonic_ns() - syncs.seen[-1].began <= OVERDUE:
                    await asyncio.sleep(0.01)
            killed = time.monotonic_ns()
            await asyncio.to_thread(self._server.kill)
        self.longest = max(self.longest, *((b.over - a.began) / 1e9 for a, b in pairwise(syncs.seen)))
        path = journal(self._server)
        size = shorten(path, syncs.seen[-1], rng, worst=worst)
        kept = told_of(path.read_bytes())
        started = time.monotonic_ns()
        await asyncio.to_thread(self._server.start)
        back = time.monotonic_ns()
        told = {name: at for name, at in self._load.acknowledged.items() if self._since <= at < started}
        self._since = started
        records = await records_of(self._app, list(told))
        gone = frozenset(name for name, record in zip(told, records, strict=True) if record is None)
        return Cut(syncs.seen[-1].began, killed, back, size, told, kept, gone)

    async def _in_full_swing(self, syncs: Syncs, since: int) -> None:
        """Every worker works, and what is enqueued is acknowledged, and reaches the disk."""
        async with asyncio.timeout(120):
            while not (
                at_work(self._ledger, self._pids, since)
                and self._load.acknowledges_since(since)
                and len(syncs.seen) > 1
            ):
                await asyncio.sleep(0.05)


def shorten(path: Path, last: Sync, rng: random.Random, *, worst: bool) -> int:
    """Take from the server's file what no disk need have: all that its last sync did not find there, or a part of it.
    How many bytes that were."""
    size = path.stat().st_size
    end = last.bytes if worst else rng.randint(last.bytes, size)
    os.truncate(path, end)
    return size - end


def told_of(file: bytes) -> frozenset[JobId]:
    """The jobs that the server's file names, as far as what it tells of them is whole."""
    return frozenset(_ID.findall(file, 0, file.rfind(_WHOLE) + 1))


def problems(cuts: Sequence[Cut], again: Sequence[Run]) -> list[str]:
    """What cannot be explained by what was not on the disk yet."""
    early = sum(len(cut.gone & cut.kept) for cut in cuts)
    late = sum(len(cut.told.keys() - cut.gone - cut.kept) for cut in cuts)
    old = [lead for cut in cuts for lead in cut.leads if lead > WINDOW]
    since = [(cut.killed - (WINDOW + ACKNOWLEDGED) * 1e9, cut.back) for cut in cuts]
    unexplained = sum(run.ended is not None and not any(a <= run.ended <= b for a, b in since) for run in again)
    said = (
        (early, f"{early} enqueues are gone that were on the disk"),
        (late, f"{late} enqueues are there that were not on the disk"),
        (old, f"{len(old)} enqueues are gone that were acknowledged up to {max(old, default=0):.2f} s before a sync"),
        (unexplained, f"{unexplained} jobs ran again although they had ended long before the cut"),
    )
    return [text for bad, text in said if bad]
