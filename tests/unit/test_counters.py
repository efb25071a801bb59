"""Counters: sums, bounds, and how lengths are told apart."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from headrace import Counters, Event, EventKind
from headrace.testing.sim.loop import run


def test_nothing_was_counted() -> None:
    counted = Counters().snapshot()
    assert set(counted["events"]) == {kind.value for kind in EventKind}
    assert not any(counted["events"].values())
    assert (counted["queues"], counted["waited"], counted["ran"], counted["alerts"]) == ({}, {}, {}, {})
    assert counted["ticks"] == {"fired": 0, "skipped": 0, "missed": 0, "coverage": None, "per_second": 0.0}
    assert (counted["late"]["count"], counted["seconds"]) == (0, 0.0)


def test_events_are_counted_by_kind_and_queue() -> None:
    counters = Counters()
    for queue, kind in (("a", "queued"), ("a", "queued"), ("b", "queued"), ("b", "lease_lost"), ("", "store_away")):
        counters(Event(EventKind(kind), queue=queue))
    counted = counters.snapshot()
    assert {kind: n for kind, n in counted["events"].items() if n} == {"queued": 3, "lease_lost": 1, "store_away": 1}
    assert counted["queues"] == {"a": {"queued": 2}, "b": {"queued": 1, "lease_lost": 1}}


def test_a_snapshot_is_plain_data_and_stays_what_it_is() -> None:
    counters = Counters()
    counters(Event(EventKind.COMPLETED, queue="a", task="t", seconds=1.5))
    counted = counters.snapshot()
    before = json.dumps(counted)
    counters(Event(EventKind.COMPLETED, queue="a", task="t", seconds=1.5))
    counters(Event(EventKind.ALERT, detail="queue_full: no room"))
    assert json.dumps(counted) == before


def test_lengths_are_told_apart_by_fixed_bounds() -> None:
    counters = Counters()
    for seconds in (0.0, 0.001, 0.002, 1.0, 1.1, 59.0, 4_000.0):
        counters(Event(EventKind.STARTED, queue="a", task="t", seconds=seconds))
    waited = counters.snapshot()["waited"]["a"]
    assert (waited["count"], waited["sum"], waited["max"]) == (7, pytest.approx(4_061.103), 4_000.0)
    buckets = {name: n for name, n in waited["buckets"].items() if n}
    assert buckets == {"0.001": 2, "0.01": 1, "1": 1, "10": 1, "60": 1, "inf": 1}


@pytest.mark.parametrize(
    ("kind", "seconds", "ran"),
    [
        ("completed", 0.0, 1),
        ("snoozed", 0.0, 1),
        ("paused", 0.0, 1),
        ("failed", 0.5, 1),
        ("failed", 0.0, 0),
        ("cancelled", 0.5, 1),
        ("cancelled", 0.0, 0),
        ("retrying", 0.5, 1),
        ("started", 0.5, 0),
    ],
)
def test_what_has_not_run_has_no_length(kind: str, seconds: float, ran: int) -> None:
    """As a job that was cancelled while it waited, or that is given up because its workers vanished."""
    counters = Counters()
    counters(Event(EventKind(kind), queue="a", task="t", seconds=seconds))
    assert sum(lengths["count"] for lengths in counters.snapshot()["ran"].values()) == ran


def test_only_jobs_of_slots_are_late() -> None:
    counters = Counters()
    counters(Event(EventKind.STARTED, queue="a", task="t", seconds=3.0))
    counters(Event(EventKind.STARTED, queue="a", task="t", seconds=2.0, detail="hourly 2027-01-15T08:00:00+00:00"))
    counted = counters.snapshot()
    assert (counted["late"]["count"], counted["late"]["max"], counted["waited"]["a"]["count"]) == (1, 2.0, 2)


def test_ticks_are_slots_and_not_events() -> None:
    async def main() -> dict[str, float]:
        counters = Counters()
        for kind, count in (("tick_fired", 1), ("tick_fired", 1), ("tick_skipped", 1), ("tick_missed", 6)):
            counters(Event(EventKind(kind), count=count))
        await asyncio.sleep(8)
        ticks: dict[str, float] = counters.snapshot()["ticks"]
        return ticks

    assert run(main()) == {"fired": 2, "skipped": 1, "missed": 6, "coverage": 0.25, "per_second": 0.25}


def test_alerts_are_counted_by_name() -> None:
    counters = Counters()
    for detail in ("queue_full: no", "queue_full: no", "schedule_late: at last"):
        counters(Event(EventKind.ALERT, detail=detail))
    assert counters.snapshot()["alerts"] == {"queue_full": 2, "schedule_late": 1}


def test_of_very_many_queues_and_tasks_a_hundred_are_told_apart() -> None:
    counters = Counters()
    for number in range(1_000):
        for _ in range(2):
            counters(Event(EventKind.STARTED, queue=f"q{number}", task=f"t{number}", seconds=1))
            counters(Event(EventKind.COMPLETED, queue=f"q{number}", task=f"t{number}", seconds=1))
    counters(Event(EventKind.STORE_AWAY))
    counted = counters.snapshot()
    for what in ("queues", "waited", "ran"):
        assert len(counted[what]) == 101
    assert counted["queues"]["q7"] == {"started": 2, "completed": 2}
    assert counted["queues"]["other"] == {"started": 1_800, "completed": 1_800}
    assert counted["waited"]["other"]["count"] == counted["ran"]["other"]["count"] == 1_800
    assert (counted["events"]["started"], counted["events"]["store_away"]) == (2_000, 1)


def test_several_threads_may_tell_and_look() -> None:
    counters, done = Counters(), threading.Event()

    def tell() -> None:
        for number in range(2_000):
            counters(Event(EventKind.QUEUED, queue=f"q{number % 150}"))

    def look() -> None:
        while not done.is_set():
            json.dumps(counters.snapshot())

    tellers = [threading.Thread(target=tell) for _ in range(4)]
    looker = threading.Thread(target=look)
    for thread in (*tellers, looker):
        thread.start()
    for thread in tellers:
        thread.join()
    done.set()
    looker.join()
    assert counters.snapshot()["events"]["queued"] == 8_000
