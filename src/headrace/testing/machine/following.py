"""A model that follows a store which orders jobs by bands: it takes the jobs that the store took, in that order."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from headrace.backends.memory.claiming import Claiming
from headrace.backends.memory.entry import Entry
from headrace.seam.records import JobId


class Following(Claiming):
    """Claims from memory that begin with given jobs."""

    first: Sequence[JobId] = ()

    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        rank = {job_id: number for number, job_id in enumerate(self.first)}
        found = sorted(super()._candidates(queues, now), key=lambda entry: rank.get(entry.id, len(rank)))
        try:
            while found:
                yield found.pop(0)
        finally:
            for entry in found:
                self._store.put_back(entry)
