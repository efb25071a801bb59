"""A store that is slow: a call that took long is told of, with what to do."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from headrace.core.alerts import Alert, moment
from headrace.core.events import Observers

R = TypeVar("R")

SLOW = 1.0
"""Seconds; what a store does at once takes it some milliseconds."""


def took(observers: Observers, operation: str, seconds: float) -> None:
    """A call of the store has been answered after so long."""
    if seconds > SLOW:
        sentence = (
            f"{operation} took {seconds:.1f} s, from when it was sent until its answer was read. Either the store is "
            "slow: ask headrace doctor, which tells of long scripts and of what holds the store up. Or the event loop "
            "of this process was blocked: then other coroutines were late too"
        )
        observers.alert(Alert.STORE_SLOW, operation, sentence, seconds=seconds)


async def timed(observers: Observers, operation: str, call: Awaitable[R]) -> R:
    """The answer of one call, which is told of if it takes long; also if it fails."""
    begun = moment()
    try:
        return await call
    finally:
        took(observers, operation, moment() - begun)
