"""A store that takes long is told of."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.events import Event, Observers
from headrace.core.slow_calls import SLOW, timed, took


@pytest.fixture
def told() -> tuple[Observers, list[Event]]:
    observers, events = Observers(), list[Event]()
    observers.add(events.append)
    return observers, events


def test_a_call_that_took_long_is_told_of_once_a_minute(told: tuple[Observers, list[Event]]) -> None:
    observers, events = told
    for seconds in (SLOW, 2.5, 3.5):
        took(observers, "claim", seconds)
    took(observers, "insert", 4.0)
    assert [(event.alert, event.seconds) for event in events] == [("store_slow", 2.5), ("store_slow", 4.0)]
    assert events[0].detail.startswith("store_slow: claim took 2.5 s")
    assert "headrace doctor" in events[0].detail


async def test_an_answer_is_passed_on_and_a_failure_is_timed_too(
    told: tuple[Observers, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    observers, events = told

    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> int:
        raise OSError("gone")

    assert await timed(observers, "insert", answer()) == 7
    assert events == []
    monkeypatch.setattr("headrace.core.slow_calls.SLOW", -1.0)
    with pytest.raises(OSError, match="gone"):
        await timed(observers, "reap", fail())
    assert [event.alert for event in events] == ["store_slow"]
