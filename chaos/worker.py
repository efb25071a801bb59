"""A worker process that keeps a ledger: ``python -m chaos.worker URL FOLDER SECONDS MAX_LOST LEASE AHEAD WITNESS
OBJECTS LINED``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

from chaos.ledger import LedgerWriter
from chaos.witness import Witness
from headrace import App, Event, EventKind, Job, connect
from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.seam.instants import from_datetime
from headrace.seam.protocol import Backend

LEASE = 3.0
"""Seconds."""
CONCURRENCY = 8
AHEAD = 60.0
"""Seconds that schedules are planned ahead."""
STEP = 0.05
"""Seconds of a step of ``walk``."""
_NOTED = (EventKind.STORE_AWAY, EventKind.STORE_BACK, EventKind.LEASE_LOST, EventKind.STALLED)
_ALL = {"age": "365d", "count": 10**9, "bytes": 2**50}
KEEP = {"completed": _ALL, "cancelled": _ALL, "failed": _ALL}
"""The scenarios look at every record in the end: one that retention took would look like a job that was lost."""


def make_app(
    url: str,
    folder: Path | None = None,
    seconds: float = 0.0,
    max_lost: int = 20,
    lease: float = LEASE,
    ahead: float = AHEAD,
    witness: bool = False,
    objects: str = "",
    patience: float = 30.0,
    lined: bool = False,
) -> App:
    """The app that producers and workers share. Results name the epoch that made them; with ``witness`` the ledger
    tells of leases too. ``objects`` is the URL of an object store for sections of more than a few hundred bytes.
    ``lined``: there is another queue, for jobs of groups: of a queue that has some, no window gives out any."""
    worker = {"lease": lease, "reap": lease / 3, "poll": lease / 3, "concurrency": CONCURRENCY, "name": "random"}
    client = connect(
        url,
        worker=worker | {"max_lost": max_lost},
        retention=KEEP,
        planner={"ahead": ahead, "every": ahead / 6},
        result_ttl="365d",
        patience=patience,
        objects={"url": objects, "parameters": {"over": 500}} if objects else {},
    )
    ledger = LedgerWriter(folder) if folder else None
    if ledger and witness:
        client = Client(cast(Backend, Witness(open_backend(url), ledger)), client.settings)
    app = App(client)

    @app.task(name="work", queue="chaos")
    async def work(job: Job[Any], number: int) -> int:
        epoch = job.lease.epoch
        if ledger:
            ledger.write("start", str(job.id), epoch)
        await asyncio.sleep(random.random() * 2 * seconds)
        if ledger:
            ledger.write("end", str(job.id), epoch)
        return epoch

    async def walk(job: Job[Any], steps: int) -> int:
        """Goes by its own steps, not by the clock: a process that is stopped in the middle is there when it goes on."""
        epoch = job.lease.epoch
        if ledger:
            ledger.write("start", str(job.id), epoch)
        try:
            for _ in range(steps):
                await asyncio.sleep(STEP)
        except asyncio.CancelledError:
            if ledger:
                ledger.write("told", str(job.id), epoch)
            raise
        if ledger:
            ledger.write("end", str(job.id), epoch)
        return epoch

    app.task(name="walk", queue="chaos")(walk)
    if lined:
        app.task(name="line", queue="lines")(walk)

    @app.task(name="carry", queue="chaos")
    async def carry(job: Job[Any], load: str) -> int:
        if ledger:
            ledger.write("start", str(job.id), job.lease.epoch)
        return job.lease.epoch

    @app.task(name="killer", queue="chaos")
    async def killer(job: Job[Any]) -> None:
        if ledger:
            ledger.write("start", str(job.id), job.lease.epoch)
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="tick", queue="chaos")
    async def tick(job: Job[Any]) -> None:
        if ledger:
            late = time.time_ns() // 1_000 - from_datetime(job.run_at)
            ledger.write("late", str(job.id), late)

    def note(event: Event) -> None:
        if ledger and event.kind in _NOTED:
            ledger.write(event.kind.value, event.id.hex() or "-")

    app.observe(note)
    return app


def main() -> None:
    url, folder, seconds, max_lost, lease, ahead, witness, objects, lined = sys.argv[1:]
    lengths = float(lease), float(ahead)
    app = make_app(
        url, Path(folder), float(seconds), int(max_lost), *lengths, witness == "True", objects, lined=lined == "True"
    )
    app.run()


if __name__ == "__main__":
    main()
