"""The study of sections in an object store, on a few jobs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.studies.offload import WAYS, Bytes, Jobs, Pace, Requests, measure, missed, table
from benchmarks.systems.load import Load


def test_what_leaves_the_store_is_asked_for_in_batches(tmp_path: Path) -> None:
    """For 1,000 jobs of 4.5 KB: one object for a bulk, and one request for each claim of 100."""
    found = measure(["sqlite"], tmp_path, 1_000, [])
    [asked] = [line for line in found["sqlite"] if isinstance(line, Requests)]
    assert asked.enqueue + asked.work <= 20
    assert missed(found) == []
    assert "worked off/s" in table(found)


def test_the_verdict_is_about_the_log_and_the_requests() -> None:
    inline, much = (Bytes(way, "json", 1, 1, 1, 1, share=0.4) for way in ("inline", "everything"))
    little = Bytes("everything", "random", 1, 1, 1, 1, share=0.15)
    assert missed({"postgres": [inline, little, Requests(1, 10)]}) == []
    assert missed({"postgres": [much, Requests(10, 10.1)]}) == [
        "postgres, json: 40.0% of the wide table's log, expected 15%",
        "postgres: 20.1 requests for 1,000 jobs, expected 20",
    ]


@pytest.mark.parametrize("store", ["memory", "streams"])
def test_the_pace_of_every_way_is_measured_on_every_store(store: str) -> None:
    found = measure([store], None, 100, [])
    assert [line.way for line in found[store] if isinstance(line, Pace)] == [*WAYS]


def test_payloads_are_made_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is Headrace, not the generator."""
    made: list[str] = []
    monkeypatch.setattr(Load, "sections", _noted(Load.sections, made))
    monkeypatch.setattr(Load, "retried", _noted(Load.retried, made))
    jobs = Jobs("memory://", None, "inline", "json", 50)  # type: ignore[arg-type]

    async def run() -> None:
        async with jobs.app:
            count = len(made)
            await jobs.insert()
            await jobs.work()
            assert len(made) == count > 50

    asyncio.run(run())


def _noted(method: Callable[..., Any], made: list[str]) -> Callable[..., Any]:
    def noted(self: Load, number: int) -> Any:
        made.append(method.__name__)
        return method(self, number)

    return noted
