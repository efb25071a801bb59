"""What may be a handler, and how to call it: checked when it is registered, not when its first job runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.errors import ConfigError
from headrace.text import shown


def check_handler(function: Any, what: str) -> None:
    """Refuse what can be called but would not do its work. The message begins with ``what``."""
    if isinstance(function, type):
        raise ConfigError(f"{what}: expected a function, got the class {function.__qualname__}")
    source = written(function)
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        raise ConfigError(
            f"{what}: expected a function that returns, got a generator, whose body would never run; "
            "return a list, or enqueue a job for each item"
        )
    if _is_method(function):
        raise ConfigError(
            f"{what}: expected a function, got the method {function.__qualname__}; a job has no object to call it on: "
            "define it outside of the class, or as a staticmethod without the first parameter"
        )


def _is_method(function: Any) -> bool:
    """Whether it is defined in a class and must be called on an object."""
    parent = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    if not inspect.isfunction(function) or not parent or parent.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def written(function: Any) -> Any:
    """The function that holds a handler's code and annotations: inside partials; for an object, its ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, staticmethod):
        return function.__func__
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    call = type(function).__call__
    return call if inspect.isfunction(call) else function


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine."""
    return inspect.iscoroutinefunction(written(function))


def check_listener(listener: Any, what: str) -> None:
    """Refuse a listener that would have to be awaited."""
    if not callable(listener):
        raise ConfigError(f"{what}: expected a function, got {shown(listener)}")
    source = written(listener)
    if inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source) or inspect.isgeneratorfunction(source):
        raise ConfigError(
            f"{what}: expected a plain function, because it is not awaited, got {shown(listener)}; "
            "let it put events into a queue, or start a task"
        )
