"""The tasks of ``headrace bench``."""

from __future__ import annotations

import time

from headrace import App, Task


def add_tasks(app: App) -> tuple[Task[[], None], Task[[], int]]:
    """Register them."""
    return app.task(name="bench.nothing")(nothing), app.task(name="bench.clock")(clock)


async def nothing() -> None:
    """Costs only what every job costs."""


async def clock() -> int:
    """When it was started, by the machine's clock: the same one in every process."""
    return time.monotonic_ns()
