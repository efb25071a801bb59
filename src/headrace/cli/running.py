"""Running a worker in this process, and stopping it as the person or the platform wishes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from headrace import App
from headrace.cli.loading import shown_url
from headrace.cli.summary import Summary
from headrace.stopper import Stopper

T = TypeVar("T")

log = logging.getLogger("headrace.worker")


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if it is installed, else on asyncio's own loop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


class WorkerStopper(Stopper):
    """Stops the app's worker, and says so."""

    def __init__(self, app: App) -> None:
        super().__init__(app.stop)
        self._app = app

    def tether(self) -> None:
        """Stop, too, when stdin ends: the supervisor at its other end is gone."""
        self._loop.add_reader(0, self._hear_stdin)

    def ask(self, why: str) -> None:
        if not self.asked:
            grace = self._app.client.settings.worker.grace
            log.info("%s: running jobs may finish, %s at most; a second signal ends at once", why, grace)
        super().ask(why)

    def _hear_stdin(self) -> None:
        if not os.read(0, 4_096):
            self._loop.remove_reader(0)
            self.ask("stopping: the supervisor is gone")


def adjust(app: App, *, concurrency: int | None, name: str | None) -> None:
    """Let what was said on the command line win over the app's own settings."""
    changes = {key: value for key, value in (("concurrency", concurrency), ("name", name)) if value is not None}
    settings = app.client.settings
    app.client.settings = msgspec.structs.replace(
        settings, worker=msgspec.structs.replace(settings.worker, **changes)
    )  # fmt: skip


async def work(app: App, queues: Sequence[str], *, burst: bool, tethered: bool) -> None:
    """Run a worker until it is told to stop; with ``burst``, until nothing is due any more."""
    with WorkerStopper(app) as stopper:
        async with app:
            if tethered:
                stopper.tether()
            await _introduce(app, queues)
            if not stopper.asked:
                summary = Summary()
                app.observe(summary.observe)
                async with summary.told():
                    await app.work(list(queues) or None, burst=burst)


async def _introduce(app: App, queues: Sequence[str]) -> None:
    backend = await app.client.backend()
    url, durable = shown_url(app.client.settings.url), backend.limits.durable
    log.info("store %s: %s", url, durable, extra={"store": url, "durable": durable})
    log.info("tasks: %s", ", ".join(sorted(app.tasks)) or "none")
    for queue in sorted(set(queues) - set(app.queues)):
        log.warning("no task of this app belongs to queue %s; is that the right name?", queue)


def flush() -> None:
    """Let nothing that was logged get lost."""
    logging.shutdown()
    sys.stdout.flush()
