"""Patience: what is given up, when, and what that costs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from headrace.api.direct import _Patience as ThreadPatience
from headrace.backends.memory import MemoryBackend
from headrace.core.batcher import Batcher
from headrace.core.driving import drive
from headrace.core.patience import GRACE, SLOWEST, Patience
from headrace.core.tasks import Tasks
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.ticks import ScheduleSelector
from headrace.testing.sim.loop import run


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def patience(seconds: float = 10) -> Patience:
    return Patience(Random(1), seconds)


def test_a_call_without_an_answer_is_given_up() -> None:
    async def main() -> tuple[float, int]:
        with pytest.raises(Unavailable, match=r"expected an answer from the store within 10 s, got none in 11 s: it"):
            await patience().once(never())
        task = asyncio.current_task()
        assert task is not None
        return asyncio.get_running_loop().time(), task.cancelling()

    assert run(main()) == (11.0, 0)


def test_so_is_a_repeated_one_in_the_same_time() -> None:
    async def main() -> tuple[float, int]:
        tries = 0

        async def call() -> None:
            nonlocal tries
            tries += 1
            await (never() if tries > 3 else asyncio.sleep(1))
            raise Unavailable("away")

        with pytest.raises(Unavailable, match="got none in 11 s"):
            await patience().repeat(call)
        return asyncio.get_running_loop().time(), tries

    assert run(main()) == (11.0, 4)


def test_a_thread_keeps_it_once_for_all_that_a_call_asks() -> None:
    kept, left = ThreadPatience(Random(1), 0.1), list[float]()

    async def away() -> None:
        left.append(kept.left())
        raise Unavailable("away")

    async def call() -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match="away"):
                await kept.repeat(away)

    kept.begin()
    drive(call())
    assert len(left) > 1
    assert left == sorted(left, reverse=True)
    assert left[0] <= 0.1 + GRACE
    kept.begin()
    with pytest.raises(Unavailable):
        drive(kept.repeat(away, [10 * SLOWEST], lambda size: size))
    assert 9 < left[-1] <= 10


def test_whoever_ends_the_task_ends_it() -> None:
    """Though the call is given up while it still clears up."""

    async def main() -> None:
        async def slow_to_end() -> None:
            try:
                await never()
            finally:
                await asyncio.sleep(5)

        task = asyncio.ensure_future(patience().once(slow_to_end()))
        await asyncio.sleep(9)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_an_error_that_came_of_giving_up_is_told_as_it_is() -> None:
    async def main() -> int:
        async def call() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                raise ValueError from None

        with pytest.raises(ValueError, match=r"^$"):
            await patience().once(call())
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert run(main()) == 0


def test_a_batcher_sets_one_timer_for_all_its_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        loop, timers = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(when: float, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += callback.__name__ == "_look"
            return call_at(when, callback, *args, **options)

        monkeypatch.setattr(loop, "call_at", counted)

        async def send(items: list[int]) -> list[int]:
            return items

        tasks = Tasks()
        batcher = Batcher(send, tasks, Random(1), max_batch=10, patience=10)
        for number in range(100):
            await batcher.put(number)
        await asyncio.gather(*map(batcher.put, range(100)))
        await tasks.close()
        return timers

    assert run(main()) == 1


def test_a_store_whose_calls_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of all its capabilities; a change that may have been made says so."""

    async def hang(*given: Any) -> None:
        await never()

    async def main() -> None:
        backend = MemoryBackend()
        await backend.open()
        for name in ("save", "find"):
            monkeypatch.setattr(backend.ticks, name, hang)
        store = patience().kept(backend)
        assert (await store.now(5), store.limits) == (5, backend.limits)
        assert store.ticks is not None
        with pytest.raises(Unavailable, match=r"then try again\. The change may have been made all the same: look"):
            await store.ticks.save([])
        with pytest.raises(Unavailable, match=r"then try again$"):
            await store.ticks.find(ScheduleSelector())
        await backend.close()

    run(main())


BARE = {"limits", "tx", "events", "hints", "blocking"}
"""What is no call that ends with an answer."""
CALLS = [
    (name, call)
    for name, capability in vars(Backend).items()
    if isinstance(capability, property) and name not in BARE
    for kind in get_args(get_type_hints(capability.fget)["return"])
    for call, found in vars(kind).items()
    if inspect.iscoroutinefunction(found)
]
ASKS = {
    "ended", "removals", "get", "find", "due", "history", "describe", "size", "survey", "oldest", "read", "walk",
    "tally", "parcels", "ledger", "held_keys", "settle", "all", "tenants", "look", "count", "group", "__call__",
}  # fmt: skip


@pytest.mark.parametrize(("capability", "call"), CALLS)
def test_no_call_of_a_capability_outlasts_patience(capability: str, call: str) -> None:
    async def hang(*given: Any) -> None:
        await never()

    async def main() -> None:
        single = call == "__call__"
        store = SimpleNamespace(**{capability: hang if single else SimpleNamespace(**{call: hang})})
        found = getattr(patience().kept(store), capability)  # type: ignore[arg-type]
        with pytest.raises(Unavailable) as raised:
            await (found() if single else getattr(found, call)())
        assert ("may have been made" in str(raised.value)) == (call not in ASKS)

    run(main())
