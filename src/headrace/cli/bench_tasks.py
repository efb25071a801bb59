"""The tasks of ``headrace bench``."""

from __future__ import annotations

import time

from headrace import App, Task


def add_tasks(app: App) -> tuple[Task[[], None], Task[[], int]]:
    """Register them."""
    return app.task(name="bench.nothing")(nothing), app.task(name="bench.clock")(clock)


async def nothing() -> None:
    """Does nothing, so that only the overhead of a job is measured."""


async def clock() -> int:
    """When the job started, by the machine's monotonic clock, which all processes share."""
    return time.monotonic_ns()
