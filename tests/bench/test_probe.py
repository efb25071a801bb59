"""The probe counts what was completed, and nothing else, as drained."""

from typing import Any

from benchmarks.systems.probe import Probe

from headrace.types import JobState


class Store:
    """Answers each batch with what it is made of."""

    turn = None

    async def finish(self, batch: list[Any], at: Any = None) -> list[Any]:
        return batch


async def test_only_completed_jobs_are_drained() -> None:
    probe, reached = Probe(Store()), list[int]()
    probe.expect(2, reached.append)
    await probe.finish([JobState.COMPLETED, JobState.AVAILABLE, JobState.FAILED, None])
    assert not reached
    await probe.finish([JobState.COMPLETED])
    assert len(reached) == 1
    assert (probe.settled, probe.trips["finish"]) == (2, 2)
