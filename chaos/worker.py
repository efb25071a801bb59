"""A worker process that keeps a ledger: ``python -m chaos.worker URL FOLDER SECONDS MAX_LOST``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from chaos.ledger import LedgerWriter
from headrace import App, Event, EventKind, Job

LEASE = "3s"
CONCURRENCY = 8
_ALL = {"age": "365d", "count": 10**9, "bytes": 2**50}
KEEP = {"completed": _ALL, "cancelled": _ALL, "failed": _ALL}
"""The scenarios look at every record in the end: one that retention took would look like a job that was lost."""


def make_app(url: str, folder: Path | None = None, seconds: float = 0.0, max_lost: int = 20) -> App:
    """The app that producers and workers share. Results name the epoch that made them."""
    worker = {"lease": LEASE, "reap": "1s", "poll": "1s", "concurrency": CONCURRENCY, "name": "random"}
    app = App(url, worker=worker | {"max_lost": max_lost}, retention=KEEP, result_ttl="365d")
    ledger = LedgerWriter(folder) if folder else None

    @app.task(name="work", queue="chaos")
    async def work(job: Job[Any], number: int) -> int:
        epoch = job.lease.epoch
        if ledger:
            ledger.write("start", str(job.id), epoch)
        await asyncio.sleep(random.random() * 2 * seconds)
        if ledger:
            ledger.write("end", str(job.id), epoch)
        return epoch

    @app.task(name="killer", queue="chaos")
    async def killer(job: Job[Any]) -> None:
        if ledger:
            ledger.write("start", str(job.id), job.lease.epoch)
        os.kill(os.getpid(), signal.SIGKILL)

    def note(event: Event) -> None:
        if ledger and event.kind in (EventKind.STORE_AWAY, EventKind.LEASE_LOST, EventKind.STALLED):
            ledger.write(event.kind.value, event.id.hex() or "-")

    app.observe(note)
    return app


def main() -> None:
    url, folder, seconds, max_lost = sys.argv[1:]
    make_app(url, Path(folder), float(seconds), int(max_lost)).run()


if __name__ == "__main__":
    main()
