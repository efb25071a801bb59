"""Jobs by the instant at which something happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from headrace.seam.records import JobId


class Agenda:
    """Ids in the order of (instant, id), each at one instant.

    A job that is dropped or put elsewhere leaves a stale entry in the heap. When more than half of the entries are
    stale, the heap is rebuilt. That takes about as many steps as there were calls since the last time, so on average
    each call pays for one.
    """

    __slots__ = ("_heap", "instants")

    def __init__(self) -> None:
        self.instants: dict[JobId, int] = {}
        """The instant of each job; to be read, not written."""
        self._heap: list[tuple[int, JobId]] = []

    @property
    def places(self) -> int:
        """How many entries the heap has, stale ones included."""
        return len(self._heap)

    def put(self, job_id: JobId, instant: int) -> None:
        """Enter a job, or put it at another instant."""
        before = self.instants.get(job_id)
        if before != instant:
            self.instants[job_id] = instant
            heappush(self._heap, (instant, job_id))
            if before is not None and len(self._heap) > 2 * len(self.instants):
                self._tidy()

    def drop(self, job_id: JobId) -> None:
        """Take a job out, if it is here."""
        if self.instants.pop(job_id, None) is not None and len(self._heap) > 2 * len(self.instants):
            self._tidy()

    def first(self) -> int | None:
        """The earliest instant."""
        while self._heap:
            instant, job_id = self._heap[0]
            if self.instants.get(job_id) == instant:
                return instant
            heappop(self._heap)
        return None

    def head(self) -> tuple[int, JobId] | None:
        """The earliest instant and its job."""
        return None if self.first() is None else self._heap[0]

    def pop(self) -> JobId | None:
        """Remove and return the first job."""
        if (head := self.head()) is None:
            return None
        heappop(self._heap)
        self.drop(head[1])
        return head[1]

    def take(self, now: int) -> Iterator[JobId]:
        """The jobs whose instant has come, first things first; each is removed when it is returned."""
        while self._heap:
            instant, job_id = self._heap[0]
            left_behind = self.instants.get(job_id) != instant
            if instant > now and not left_behind:
                return
            heappop(self._heap)
            if not left_behind:
                del self.instants[job_id]
                if len(self._heap) > 2 * len(self.instants):
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
        if (first := self.first()) is None or first > now:
            return len(self.instants)
        return sum(instant > now for instant in self.instants.values())

    def _tidy(self) -> None:
        self._heap = [(instant, job_id) for job_id, instant in self.instants.items()]
        heapify(self._heap)
