"""The store has no room left. With a budget, new jobs are refused before that; without one, nothing that was
acknowledged is lost, and work goes on by itself once there is room."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from servers.postgres import Postgres
from servers.valkey import Valkey
from servers.volume import Volume, mounted

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.kill_server import at_work
from chaos.ledger import Ledger
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, SqliteStore, Store, ValkeyStore
from chaos.worker import make_app
from headrace import App
from headrace.errors import StoreFull, Unavailable
from headrace.keeping.budget import BudgetWatch
from headrace.seam.records import Cancel, JobId, Selector

MEGABYTE = 1024 * 1024
WEIGHT = 16_384
"""Bytes of a job, before it is written as text."""
BATCH = 20
FULL_FOR = 10.0
"""Seconds for which nothing is done about it."""
_SMALL_POSTGRES = {
    "shared_buffers": "32MB", "max_wal_size": "64MB", "min_wal_size": "32MB", "autovacuum_naptime": "1s",
    "max_connections": "60",
}  # fmt: skip


RESERVE = 32 * MEGABYTE
Way = Literal["budget", "none", "reserve"]
WAYS: dict[str, tuple[Way, ...]] = {
    "sqlite": ("budget", "none"), "postgres": ("budget", "none", "reserve"), "valkey": ("budget", "none"),
}  # fmt: skip
OLD = 200
"""Jobs that have ended before, and are to be removed while the disk is full."""
_LATE = 0.9
"""The part of a budget that may be used at most when new jobs are refused."""
_EARLY = ("new jobs are refused from", "are kept for jobs that are under way")
"""What a client says, and what SQLite says, before there is no room."""


class Site(Struct, frozen=True):
    """A store that can get full."""

    store: Store
    budget: int | None
    """None: what the store says that it has."""
    fill: Callable[[], None]
    enlarge: Callable[[], None]
    mind: Callable[[], bool] = lambda: False
    """What a service manager does: start the server if it has ended; whether it had."""


class Producer:
    """Enqueues heavy jobs, and remembers what it was told."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.asked: set[JobId] = set()
        self.acknowledged: list[JobId] = []
        self.refused = 0
        self.first: StoreFull | None = None
        self.stored_at = 0.0

    async def enqueue(self, delay: str | None = None) -> bool:
        """One batch; False: it was refused."""
        carry: Any = self._app.tasks["carry"]
        carry = carry if delay is None else carry.options(delay=delay)
        batch = [carry.job(random.randbytes(WEIGHT).hex()) for _ in range(BATCH)]
        self.asked |= {job.id for job in batch}
        try:
            self.acknowledged += [answer.id for answer in await self._app.client.insert(batch)]
            self.stored_at = time.monotonic()
            return True
        except StoreFull as error:
            self.refused += 1
            self.first = self.first or error
        except Unavailable:
            self.refused += 1
        return False

    async def until(self, seconds: float) -> None:
        """Go on for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not await self.enqueue():
                await asyncio.sleep(0.1)


async def run(
    folder: Path, *, seed: int, backend: str, way: Way, processes: int = 2, full_for: float = FULL_FOR,
    budget: float = 600.0,
) -> Outcome:  # fmt: skip
    """Fill the store until it refuses (``budget``), or to the last byte: then enlarge it (``none``), or see whether
    what is stored can be done without that (``reserve``)."""
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    problems: list[str] = []
    with _site(backend, folder) as site:
        app = make_app(site.store.url, lease=5.0)
        async with app:
            if way == "budget":
                await app.janitor.set_budget(site.budget)
            producer, began = Producer(app), time.monotonic()
            scene = _Scene(app, site, producer, full_for)
            early = await scene.refused_early() if way == "budget" else {}
            rng = random.Random(seed)
            fleet = Fleet(site.store.url, ledger_folder, size=processes, seconds=0.0, rng=rng, lease=5.0)
            try:
                match way:
                    case "budget":
                        figures = early
                    case "reserve":
                        figures = await scene.done_on_a_full_disk(ledger_folder, fleet.pids)
                    case "none":
                        figures = await scene.full_to_the_last_byte(ledger_folder, fleet.pids)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, producer.acknowledged)
        integrity = site.store.integrity()
    found = Findings(producer.acknowledged, records, Ledger(ledger_folder), asked=producer.asked)
    problems += found.problems() + scene.problems
    said = (
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (integrity != "ok", f"the store's own check says {integrity}"),
    )
    problems += [text for bad, text in said if bad]
    return Outcome(
        scenario=f"disk_full_{way}",
        backend=backend,
        asked={"processes": processes, "bytes of a job": 2 * WEIGHT, "seconds full": full_for},
        reached=found.figures()
        | figures
        | {"integrity": integrity, "drained": drained, "exit codes": sorted(set(codes))}
        | {"seconds": round(time.monotonic() - began, 1)},
        ok=not problems,
        seed=seed,
        problems=problems,
    )


class _Scene:
    """What happens to the store."""

    def __init__(self, app: App, site: Site, producer: Producer, full_for: float) -> None:
        self._app = app
        self._site = site
        self._producer = producer
        self._full_for = full_for
        self._restarts = 0
        self.problems: list[str] = []

    async def refused_early(self) -> dict[str, object]:
        """Enqueue while nobody works, until clients refuse; those who come now find enough room to work."""
        deadline = time.monotonic() + 300
        while self._producer.refused == 0 and time.monotonic() < deadline:
            await self._producer.enqueue()
        told = str(self._producer.first)
        if not any(sign in told for sign in _EARLY):
            self.problems.append(f"the store was full before anybody refused: {told}")
        usage = await self._app.janitor.usage()
        if usage.share > _LATE:
            self.problems.append(f"nobody refused before {usage.share:.0%} of the budget were used")
        return {
            "jobs when it refused": len(self._producer.acknowledged),
            "share when it refused": round(usage.share, 3),
            "refused by": "a client" if _EARLY[0] in told else "the store",
        }

    async def done_on_a_full_disk(self, ledger: Path, pids: Sequence[int]) -> dict[str, object]:
        """Take all room away before jobs are due; they are done with what was kept aside."""
        while not at_work(ledger, pids, 0):
            await self._producer.until(0.5)
        client = self._app.client
        await self._app.janitor.set_budget(1 << 40, reserve=RESERVE)
        await BudgetWatch(await client.backend(), client.observers, client.clock).look()
        kept = (await self._app.janitor.usage()).parts["reserve"]
        await self._cancel_some()
        for _ in range(20):
            await self._producer.enqueue("10s")
        await asyncio.to_thread(self._site.fill)
        began = time.monotonic()
        if not await until_done(self._app, began + 120):
            self.problems.append("what was stored was not done while the disk was full")
        seconds = time.monotonic() - began
        left = (await self._app.janitor.usage()).parts["reserve"]
        if left:
            self.problems.append("what was kept aside was not given up: the disk was not full")
        await self._app.janitor.keep("0s", states="cancelled", count=0)
        await self._app.janitor.run(force=True)
        removed = sum(one.jobs for one in await self._app.janitor.removed() if one.state == "cancelled")
        if removed != OLD:
            self.problems.append(f"expected {OLD} old jobs to be removed while the disk was full, got {removed}")
        return {
            "bytes kept aside": kept,
            "seconds until all was done": round(seconds, 1),
            "old jobs removed on the full disk": removed,
        }

    async def _cancel_some(self) -> None:
        carry: Any = self._app.tasks["carry"]
        jobs = [carry.options(delay="1h").job(random.randbytes(WEIGHT).hex()) for _ in range(OLD)]
        ids = [answer.id for answer in await self._app.client.insert(jobs)]
        await self._app.client.alter(Selector(ids=ids), Cancel())

    async def full_to_the_last_byte(self, ledger: Path, pids: Sequence[int]) -> dict[str, object]:
        """Take all room away under load, wait, and give it more."""
        while not at_work(ledger, pids, 0):
            await self._producer.until(0.5)
        stored = len(self._producer.acknowledged)
        await asyncio.to_thread(self._site.fill)
        minding = asyncio.create_task(self._mind())
        await self._producer.until(self._full_for)
        refused = self._producer.refused
        await asyncio.to_thread(self._site.enlarge)
        enlarged = time.monotonic()
        while self._producer.stored_at < enlarged and time.monotonic() < enlarged + 120:
            await self._producer.until(0.5)
        back = self._producer.stored_at - enlarged
        minding.cancel()
        with suppress(asyncio.CancelledError):
            await minding
        if back < 0:
            self.problems.append("no job was taken within two minutes after there was room again")
        if not refused:
            self.problems.append("nothing was refused: the store was not full")
        return {
            "jobs before it was full": stored,
            "batches refused": self._producer.refused,
            "seconds until jobs were taken again": round(back, 2),
            "servers started again": self._restarts,
        }

    async def _mind(self) -> None:
        while True:
            self._restarts += await asyncio.to_thread(self._site.mind)
            await asyncio.sleep(1.0)


@contextmanager
def _site(backend: str, folder: Path) -> Iterator[Site]:
    if backend == "valkey":
        with _valkey(folder) as site:
            yield site
        return
    most = (240 if backend == "postgres" else 48) * MEGABYTE
    with mounted(most) as volume:
        if backend == "sqlite":
            yield Site(SqliteStore(volume.path / "jobs.db"), None, volume.fill, lambda: volume.enlarge(4 * most))
        else:
            with _postgres(volume, most) as site:
                yield site


@contextmanager
def _valkey(folder: Path) -> Iterator[Site]:
    most = 24 * MEGABYTE
    settings = {"appendonly": "yes", "appendfsync": "always", "maxmemory": str(most), "maxmemory-policy": "noeviction"}
    server = Valkey(folder, settings | {"enable-debug-command": "local"})

    def fill() -> None:
        """Somebody else takes what is left, piece by piece."""
        piece = MEGABYTE
        number = 0
        while piece >= 64:
            try:
                server.call("SET", f"ballast:{number}", bytes(piece))
                number += 1
            except Exception:
                piece //= 2

    try:
        server.start()
        yield Site(ValkeyStore(server), None, fill, lambda: server.call("CONFIG", "SET", "maxmemory", str(8 * most)))
    finally:
        server.close()


@contextmanager
def _postgres(volume: Volume, most: int) -> Iterator[Site]:
    server = Postgres(volume.path, _SMALL_POSTGRES)

    def mind() -> bool:
        process = server._process
        if process is None or process.poll() is None:
            return False
        with suppress(RuntimeError):
            server.start()
        return True

    try:
        server.start()
        yield Site(PostgresStore(server), most // 3, volume.fill, lambda: volume.enlarge(4 * most), mind)
    finally:
        server.close()
