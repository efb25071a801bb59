"""Workers count each other. They ask for nothing else along with it, and no trip waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace import never
from headrace.seam.records import Stamp, Stats
from tests.facades.harness import Tapped, World, simulate

_LATE = 1_000.0


@pytest.mark.parametrize("answer", [0.0, _LATE], ids=["at once", "late"])
def test_a_worker_never_asks_for_all_statistics_and_no_dead_letter_waits_for_them(answer: float) -> None:
    asked: list[Sequence[str] | None] = []

    class Asked(Tapped):
        async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
            asked.append(queues)
            await asyncio.sleep(answer)
            return await self.inner.stats(at, queues=queues)

    async def main(world: World) -> float:
        app = world.app(retention={"failed": {"count": 100}}, worker={"concurrency": 10})
        ran = asyncio.Semaphore(0)

        @app.task(retry=never())
        async def fail() -> None:
            ran.release()
            raise ValueError("as always")

        async with app:
            working = asyncio.create_task(app.work())
            await asyncio.sleep(130)
            began = world.now()
            for _ in range(30):
                await app.enqueue_many([fail.job() for _ in range(10)])
                for _ in range(10):
                    await ran.acquire()
            took = world.now() - began
            await asyncio.sleep(130)
            app.stop()
            await working
        return took

    assert simulate(main, wrap=Asked) < _LATE / 2
    assert asked
    assert not [queues for queues in asked if queues is None]
