"""Timeouts on uvloop, whose timers are not like those of asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
import uvloop

from headrace import App, EventKind, Task, immediate
from headrace.worker.deadlines import Deadlines


def test_a_deadline_that_has_passed_when_it_is_set() -> None:
    """For an instant that has passed uvloop gives a handle that does not know its instant."""

    async def main() -> list[int]:
        deadlines, called = Deadlines(), []
        for number in range(3):
            deadlines.add(-1 + number, lambda: called.append(1))
        deadlines.add(-2, lambda: called.append(1))
        async with asyncio.timeout(30):
            while len(called) < 4:
                await asyncio.sleep(0.01)
        return called

    assert len(uvloop.run(main())) == 4


JOBS = 10_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_no_timeout_costs_a_slot(plain: bool) -> None:
    app = App("memory://", worker={"concurrency": 8})
    options: dict[str, Any] = {"timeout": "1ms", "retry": immediate(1), "name": "slow"}

    async def sleeps() -> None:
        await asyncio.sleep(30)

    def blocks() -> None:
        time.sleep(0.01)

    slow: Task[[], None] = app.task(**options)(blocks if plain else sleeps)

    ends: Counter[str] = Counter()
    app.observe(lambda event: ends.update([type(event.error).__name__] if event.kind is EventKind.FAILED else []))

    async def main() -> tuple[int, int, int]:
        async with app, asyncio.TaskGroup() as group:
            group.create_task(app.work())
            await app.enqueue_many(slow.job() for _ in range(JOBS))
            async with asyncio.timeout(600):
                while (await app.client.stats()).queues[0].failed < JOBS:
                    await asyncio.sleep(0.2)
            assert app.worker is not None
            health = app.worker.health()
            app.stop()
        return health.alive, health.slots, health.busy

    assert uvloop.run(main()) == (8, 8, 0)
    assert ends == {"TimeoutError": JOBS}
