"""The memory backend keeps the contract, and the suite finds what does not."""

from pathlib import Path

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.seam.records import Watch
from headrace.testing.conformance import BackendConformance
from tests.backends.planted import SEEN_BY_SUITE


class TestMemory(BackendConformance):
    capabilities = (
        "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
        "finish_and_claim", "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> MemoryBackend:
        return MemoryBackend()


@pytest.mark.parametrize("faulty", SEEN_BY_SUITE)
async def test_a_planted_fault_is_found(faulty: type[MemoryBackend]) -> None:
    with pytest.raises(AssertionError):
        await TestMemory().test_going_on_above_the_last_meets_each_job_once(faulty(), Watch("inbox"))
