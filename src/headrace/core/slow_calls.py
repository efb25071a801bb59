"""Slow stores: an alert for every call that took long, with what to do."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from headrace.core.alerts import Alert, moment
from headrace.core.events import Observers

R = TypeVar("R")

SLOW = 1.0
"""Seconds; a store normally answers within milliseconds."""
_FELT = frozenset({"insert", "claim", "finish", "finish_and_claim", "reap", "sweep", "plan"})
"""Operations after which ``Observers.called`` is told."""


def took(observers: Observers, operation: str, seconds: float) -> None:
    """Measure a call to the store, and alert if it took long."""
    if observers.meter is not None:
        observers.meter.called(operation, seconds)
    if observers.called is not None and operation in _FELT:
        observers.called()
    if seconds > SLOW:
        sentence = (
            f"{operation} took {seconds:.1f} s from request to answer. Either the store is slow: run headrace doctor, "
            "which reports long scripts and what blocks the store. Or the event loop of this process was blocked: then "
            "other coroutines were late too"
        )
        observers.alert(Alert.STORE_SLOW, operation, sentence, seconds=seconds)


async def timed(observers: Observers, operation: str, call: Awaitable[R]) -> R:
    """The answer to a call, with an alert if it takes long, even if it fails."""
    begun = moment()
    try:
        return await call
    finally:
        took(observers, operation, moment() - begun)
