"""How soon a worker that somebody looks at says that it is not well: within five seconds, whatever the trouble is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import App
from headrace.errors import Unavailable
from headrace.web.vitals import BEATS
from headrace.worker.bell import Bell
from tests.facades.harness import Tapped, World, simulate, working

SOON = 5.0
TROUBLE: list[str] = []


class Troubled(Tapped):
    """A store that has the trouble of the moment."""

    async def _call(self, name: str, args: tuple[Any, ...], at: Any, carry: Any) -> Any:
        if TROUBLE == ["hangs"]:
            await asyncio.Event().wait()
        if TROUBLE == ["away"] or (TROUBLE == ["takes no writes"] and name not in ("stats", "fetch")):
            raise Unavailable("no")
        return await carry(at)


@pytest.fixture(autouse=True)
def well() -> None:
    TROUBLE.clear()


async def looked_at(app: App) -> None:
    """What HTTP beside a worker does."""
    while True:
        assert app.worker is not None
        app.worker.quicken(BEATS)
        app.worker.nudge()
        await asyncio.sleep(BEATS / 3)


async def until(app: App, ok: bool) -> float:
    """Virtual seconds until its health is that."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while app.worker is None or app.worker.health().ok is not ok:
        assert loop.time() - began < 60.0
        await asyncio.sleep(0.1)
    return loop.time() - began


@pytest.mark.parametrize("full", [False, True], ids=["idle", "all slots are busy"])
@pytest.mark.parametrize("trouble", ["away", "hangs", "takes no writes", "the claim loop stands still"])
def test_a_worker_in_trouble_says_so_within_five_seconds(
    trouble: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> float:
        app = world.app(worker={"concurrency": 1})
        taken, ends = asyncio.Event(), asyncio.Event()

        @app.task(queue="q", name="long")
        async def long() -> None:
            taken.set()
            await ends.wait()

        async with working(app, "q"), asyncio.TaskGroup() as group:
            if full:
                await long.enqueue()
                await taken.wait()
            looking = group.create_task(looked_at(app))
            await until(app, ok=True)
            await asyncio.sleep(20)
            assert await until(app, ok=True) == 0.0, "it is well, whatever it waits for"
            stands = trouble == "the claim loop stands still"
            with monkeypatch.context() as planted:
                if stands:
                    planted.setattr(Bell, "wait", _never)
                else:
                    TROUBLE.append(trouble)
                took = await until(app, ok=False)
            TROUBLE.clear()
            ends.set()
            looking.cancel()
            if stands:
                for task in asyncio.all_tasks():
                    if task.get_name() == "headrace-trips":
                        task.cancel()
        return took

    assert simulate(main, Troubled) <= SOON


async def _never(self: Bell, rung: int) -> None:
    await asyncio.Event().wait()
