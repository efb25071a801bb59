"""Refuses calls of async functions where no event loop runs: they would do nothing, silently."""

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

Awaited = Callable[P, Coroutine[Any, Any, R]]


def awaited(instead: str = "") -> Callable[[Awaited[P, R]], Awaited[P, R]]:
    """Make an async function raise when it is called where no loop runs. ``instead`` says what to call there."""

    def decorate(function: Awaited[P, R]) -> Awaited[P, R]:
        advice = "await it in an async function" + (f", or call {instead} here" if instead else "")

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            if _get_running_loop() is None:
                raise ConfigError(f"{function.__name__}: no event loop runs here, so nothing was done; {advice}")
            return function(*args, **kwargs)

        return marked(checked)

    return decorate


def marked(function: Awaited[P, R]) -> Awaited[P, R]:
    """The plain function, marked as a coroutine function for mocks and web frameworks."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function
