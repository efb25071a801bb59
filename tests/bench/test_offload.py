"""The study of sections in an object store, on a few jobs."""

from pathlib import Path

from benchmarks.studies.offload import Requests, measure, table


def test_what_leaves_the_store_is_asked_for_in_batches(tmp_path: Path) -> None:
    """For 1,000 jobs of 4.5 KB: one object for a bulk, and one request for each claim of 100."""
    found = measure(["sqlite"], tmp_path, 1_000, [])
    [asked] = [line for line in found["sqlite"] if isinstance(line, Requests)]
    assert asked.enqueue + asked.work <= 20
    assert "worked off/s" in table(found)
