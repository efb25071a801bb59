"""Runs coroutines that never wait: those on a store whose calls block."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def drive(call: Coroutine[Any, Any, R]) -> R:
    """The value of a coroutine, which runs to its end here and now.

    >>> async def double(n: int) -> int:
    ...     return 2 * n
    >>> drive(double(21))
    42
    """
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    call.close()
    raise RuntimeError("a call that was to block came upon something that waits for an event loop")
