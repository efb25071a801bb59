"""Jobs by the instant at which something becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from headrace.records import JobId


class Agenda:
    """Ids in the order of (instant, id), each at one instant.

    What is dropped or put elsewhere leaves its place in the heap behind. When such places are more than half of it,
    the heap is made anew: in about as many steps as calls have led to that, so on average each call pays for one.
    """

    __slots__ = ("_heap", "_instants")

    def __init__(self) -> None:
        self._instants: dict[JobId, int] = {}
        self._heap: list[tuple[int, JobId]] = []

    def __len__(self) -> int:
        return len(self._instants)

    @property
    def places(self) -> int:
        """How many places the heap has, those left behind included."""
        return len(self._heap)

    def put(self, job_id: JobId, instant: int) -> None:
        """Enter a job, or put it at another instant."""
        before = self._instants.get(job_id)
        if before != instant:
            self._instants[job_id] = instant
            heappush(self._heap, (instant, job_id))
            if before is not None:
                self._tidy()

    def drop(self, job_id: JobId) -> None:
        """Take a job out, if it is here."""
        if self._instants.pop(job_id, None) is not None:
            self._tidy()

    def first(self) -> int | None:
        """The earliest instant."""
        while self._heap:
            instant, job_id = self._heap[0]
            if self._instants.get(job_id) == instant:
                return instant
            heappop(self._heap)
        return None

    def take(self, now: int) -> Iterator[JobId]:
        """The jobs whose instant has come, first things first; each is out once it has been given out."""
        while (instant := self.first()) is not None and instant <= now:
            _, job_id = heappop(self._heap)
            del self._instants[job_id]
            self._tidy()
            yield job_id

    def peek(self, now: int, limit: int) -> list[JobId]:
        """The first jobs whose instant has come, which stay."""
        found: dict[JobId, int] = {}
        while len(found) < limit and (instant := self.first()) is not None and instant <= now:
            _, job_id = heappop(self._heap)
            found[job_id] = instant
        for job_id, instant in found.items():
            heappush(self._heap, (instant, job_id))
        return list(found)

    def later(self, now: int) -> int:
        """How many instants are still to come."""
        return sum(instant > now for instant in self._instants.values())

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._instants):
            self._heap = [(instant, job_id) for job_id, instant in self._instants.items()]
            heapify(self._heap)
