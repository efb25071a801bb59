"""What may be registered: refused when it is given, not when its first job runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Event, Job, JobState, Queue
from headrace.core.callables import is_async
from headrace.errors import ConfigError


class Thing: ...


class Adder:
    def __init__(self, more: int) -> None:
        self._more = more

    def __call__(self, n: int) -> int:
        return n + self._more

    async def later(self, n: int) -> int:
        return n + self._more


class Sleeper:
    async def __call__(self, n: int) -> int:
        return n


class Yielder:
    def __call__(self) -> Iterator[int]:
        yield 1


class Service:
    async def on_object(self, n: int) -> None: ...

    def on_class(cls, n: int) -> None: ...

    @staticmethod
    def on_nothing(n: int) -> int:
        return n


def rows() -> Iterator[int]:
    yield 1


async def async_rows() -> AsyncIterator[int]:
    yield 1


def add(a: int, b: int = 0) -> int:
    return a + b


def of_thing(thing: Thing) -> None: ...
def of_things(things: list[Thing]) -> None: ...
def of_a_dict(things: dict[str, tuple[int, Thing]]) -> None: ...
def of_path(path: Path) -> None: ...
def maybe_thing(n: int, thing: Thing | None) -> None: ...
def default_thing(n: int, thing: Thing = Thing()) -> None: ...  # noqa: B008
def anything(n: object) -> None: ...
def self_outside(self: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (rows, "got a generator, whose body would never run"),
        (async_rows, "got a generator"),
        (Yielder(), "got a generator"),
        (functools.partial(rows), "got a generator"),
        (Thing, "got the class Thing"),
        (Service.on_object, r"got the method Service\.on_object; a job has no object"),
        (Service.on_class, r"got the method Service\.on_class"),
        (max, "whose parameters can be read"),
        (of_thing, "thing: Thing cannot be stored; what can be stored is"),
        (of_things, "things: Thing cannot be stored"),
        (of_a_dict, "things: Thing cannot be stored"),
        (of_path, "path: Path cannot be stored"),
    ],
)
def test_what_is_no_task_is_refused_with_the_reason(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^task x: .*{message}"):
        App("memory://").task(name="x")(function)


@pytest.mark.parametrize("function", [maybe_thing, default_thing, anything, self_outside, len, Service.on_nothing])
def test_what_may_do_is_taken(function: Callable[..., Any]) -> None:
    assert App("memory://").task(name="x")(function).name == "x"


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (Adder(1), 8),
        (Adder(1).later, 8),
        (Sleeper(), 7),
        (functools.partial(add, 1), 8),
        (functools.partial(add, b=2), 9),
        (functools.partial(Sleeper()), 7),
    ],
)
async def test_whatever_can_be_called_may_be_a_task(function: Callable[..., Any], result: int) -> None:
    app = App("memory://")
    task = app.task(name="x")(function)
    async with app:
        handle = await task.enqueue(7)
        await app.drain()
        assert await handle.result("60s") == result
        with pytest.raises(ConfigError, match="a task needs a name"):
            app.task(functools.partial(add, 1))


def test_what_another_process_cannot_find() -> None:
    for function in (Adder(1), functools.partial(add, 1), Adder(1).later):
        with pytest.raises(ConfigError, match=r"executor=|cannot be imported by another process"):
            App("memory://").task(name="x", executor="process")(function)


def test_async() -> None:
    assert [is_async(one) for one in (Sleeper(), functools.partial(Sleeper()), Adder(1).later)] == [True] * 3
    assert [is_async(one) for one in (Adder(1), add, len, functools.partial(add))] == [False] * 4


@pytest.mark.parametrize("function", [rows, async_rows, Yielder(), Thing, Service.on_object])
def test_the_same_for_queues_and_batches(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"^queue q: expected a function"):
        Queue[int, int]("q", "memory://").execute(function)
    with pytest.raises(ConfigError, match=r"^batch task x: expected a"):
        App("memory://").batch(name="x")(function)


def test_a_batch_says_what_it_got() -> None:
    with pytest.raises(ConfigError, match="expected an async function, got <function add"):
        App("memory://").batch(name="x")(add)  # type: ignore[arg-type]


async def hears(*told: Any) -> None: ...
def hears_lazily(*told: Any) -> Iterator[int]:
    yield 1


class Listener:
    async def __call__(self, event: Event) -> None: ...


@pytest.mark.parametrize("listener", [hears, hears_lazily, Listener(), functools.partial(hears, 1)])
def test_observers_and_listeners_are_not_awaited(listener: Any) -> None:
    with pytest.raises(ConfigError, match=r"^observer: expected a plain function"):
        App("memory://").observe(listener)
    with pytest.raises(ConfigError, match=r"^listener: expected a plain function"):
        Queue[int, int]("q", "memory://").on("completed", listener)


@pytest.mark.parametrize("listener", [None, 7, "print"])
def test_observers_and_listeners_can_be_called(listener: Any) -> None:
    with pytest.raises(ConfigError, match=r"^observer: expected a function, got"):
        App("memory://").observe(listener)
    with pytest.raises(ConfigError, match=r"^listener: expected a function, got"):
        Queue[int, int]("q", "memory://").on("completed", listener)


async def test_a_generator_that_a_plain_function_returns_is_no_result() -> None:
    """Nothing of it has run, so the job is not done; whether its result is kept or not."""
    app = App("memory://")
    lazy = app.task(name="lazy", result_ttl=0)(lambda: rows())

    @app.task(name="later", result_ttl=0)
    async def later(job: Job[None]) -> Any:
        await asyncio.sleep(0)
        return async_rows()

    async with app:
        handles = [await lazy.enqueue(), await later.enqueue()]
        await app.drain()
        for handle in handles:
            info = await handle.info()
            assert (info.state, info.reason) == (JobState.FAILED, "outcome cannot be stored")
            assert "a generator, of which nothing has run" in info.failures[0].message
