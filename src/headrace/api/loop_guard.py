"""Refuses async calls where no event loop runs, and calls that run a loop of their own where one does."""

from __future__ import annotations

import asyncio
import inspect
import sys
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from headrace.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

Async = Callable[P, Coroutine[Any, Any, R]]


def needs_loop(instead: str = "") -> Callable[[Async[P, R]], Async[P, R]]:
    """Make an async function raise when it is called where no loop runs. ``instead`` says what to call there."""

    def decorate(function: Async[P, R]) -> Async[P, R]:
        advice = "await it in an async function" + (f", or call {instead} here" if instead else "")

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            if _get_running_loop() is None:
                raise ConfigError(f"{function.__name__}: no event loop runs here, so nothing was done; {advice}")
            return function(*args, **kwargs)

        return marked(checked)

    return decorate


def marked(function: Async[P, R]) -> Async[P, R]:
    """The plain function, marked as a coroutine function for mocks and web frameworks."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function


def no_loop(what: str, instead: str) -> None:
    """Refuse a call that runs its own event loop where one runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{what} runs its own event loop, but one already runs here; use: {instead}")
