"""The loop, the nodes and the clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.testing.sim import Deadlock, Livelock, Node, SimClock, SimLoop, run

YEAR = 365 * 24 * 3600.0


def loop() -> SimLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, SimLoop)
    return running


def test_time_is_virtual_exact_and_free() -> None:
    async def main() -> int:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(_sleeps(number))
        return loop().micros

    async def _sleeps(number: int) -> None:
        for _ in range(100):
            await asyncio.sleep(YEAR / 100 + number / 1e6)

    assert run(main()) == int(YEAR * 1e6) + 900


def test_timeouts_of_the_standard_library_work() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(YEAR)
        return loop().time()

    assert run(main()) == 30


def test_a_deadlock_names_those_who_wait() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck(), name="philosopher")

    with pytest.raises(Deadlock, match=r"philosopher at .*stuck") as caught:
        run(main())
    assert len(caught.value.waiting) == 2


def test_going_round_in_circles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.sim.loop._STANDSTILL", 1_000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main())


def order(seed: int) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def step(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(step(number))
        return seen

    return run(main(), seed=seed)


def test_the_order_comes_from_the_seed() -> None:
    orders = [order(seed) for seed in range(10)]
    assert orders == [order(seed) for seed in range(10)]
    assert len({tuple(one) for one in orders}) == 10


def test_the_order_of_a_cancelled_group_does_not_depend_on_addresses() -> None:
    async def main(ballast: int) -> list[int]:
        seen: list[int] = []
        kept: list[Any] = [object() for _ in range(ballast)]

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(YEAR)
            finally:
                seen.append(number)

        async def group_that_fails() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    kept.append(bytearray(number * ballast))
                    group.create_task(wait(number))
                await asyncio.sleep(1)
                raise ValueError

        with pytest.raises(ExceptionGroup):
            await group_that_fails()
        return seen

    assert len({tuple(run(main(ballast), seed=3)) for ballast in (0, 7, 501)}) == 1


def test_executors_run_inline_and_other_threads_may_call_in() -> None:
    async def main() -> tuple[int, list[str]]:
        called: list[str] = []
        loop().call_soon_threadsafe(called.append, "hello")
        number = await asyncio.to_thread(lambda: 41 + 1)
        with pytest.raises(ZeroDivisionError):
            await loop().run_in_executor(None, lambda: 1 // 0)
        return number, called

    assert run(main()) == (42, ["hello"])


def test_an_error_that_nobody_sees_is_raised() -> None:
    async def main() -> None:
        loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_there_is_no_io() -> None:
    async def main() -> None:
        loop().add_reader(0, print)

    with pytest.raises(RuntimeError, match="no I/O"):
        run(main())


async def ticking(seen: list[float]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_tick(seen))


async def _tick(seen: list[float]) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            seen.append(loop().time())
    finally:
        seen.append(-1)


def test_a_frozen_node_stands_still_with_all_its_timers() -> None:
    async def main() -> list[float]:
        seen: list[float] = []
        node = Node(loop(), "n")
        task = node.start(ticking(seen))
        await asyncio.sleep(2.5)
        node.freeze()
        await asyncio.sleep(5)
        node.thaw()
        await asyncio.sleep(1.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return seen

    assert run(main()) == [1, 2, 7.5, 8.5, -1]


def test_a_killed_node_does_nothing_more_and_cleans_up_nothing() -> None:
    async def main() -> list[float]:
        seen: list[float] = []
        node = Node(loop(), "n")
        node.start(ticking(seen))
        await asyncio.sleep(2.5)
        node.kill()
        node.thaw()
        await asyncio.sleep(60)
        return list(seen)

    assert run(main()) == [1, 2]


def test_a_nodes_clock_may_be_wrong_and_may_jump() -> None:
    async def main() -> tuple[int, int, int | None, int | None]:
        node = Node(loop(), "n")
        store, skewed = SimClock(loop(), 1_000), SimClock(loop(), 1_000, node=node, stamps=True)
        node.skew = -500
        await asyncio.sleep(1)
        store.jump(7)
        return store.now(), skewed.now(), store.stamp(), skewed.stamp()

    assert run(main()) == (1_001_007, 1_000_500, None, 1_000_500)
