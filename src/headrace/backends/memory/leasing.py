"""Jobs in memory become RUNNING."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.backends.claims import Taken
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.store import MemoryStore
from headrace.seam.records import Claim, Leased, Reaped
from headrace.types import SECTIONS, JobState

_NOTHING: tuple[str, ...] = ()
_RUNNING = JobState.RUNNING


class MemoryTaken(Taken):
    """What a claim from memory has taken, and passed over."""

    def __init__(self, req: Claim) -> None:
        super().__init__(req)
        self.passed: list[Entry] = []


class Leasing:
    """Jobs of one store become RUNNING."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.find = store.jobs.__getitem__

    def lease(self, candidates: Iterator[Entry], taken: MemoryTaken, most: int, now: int) -> Iterator[Entry]:
        """Lease up to ``most`` jobs, and return each before the next is drawn."""
        req, most = taken.req, min(most, taken.left)
        while most > 0 and taken.bytes > 0 < taken.visits and (entry := next(candidates, None)) is not None:
            if entry.expires_at is not None and entry.expires_at <= now:
                self._store.end(entry, JobState.CANCELLED, "expired")
                taken.expired.append(reaped(entry))
            elif req.lost_below is not None and entry.lost >= req.lost_below:
                taken.passed.append(entry)
            else:
                taken.jobs.append(self._lease(entry, req, now))
                taken.bytes -= entry.measure() if req.want is None else entry.measure() - _spared(entry, req.want)
                most -= 1
                yield entry

    def _lease(self, entry: Entry, req: Claim, now: int) -> Leased:
        epoch = entry.epoch = entry.epoch + 1 if entry.epoch >= now else now
        begun, entry.begun = entry.begun, True
        entry.begun_before = begun
        max_attempts, timeout, result_ttl = entry.carried
        entry.holder = req.holder
        entry.lease_until = now + req.lease_for
        self._store.move(entry, _RUNNING)
        cells, left = dict(entry.cells), _NOTHING
        if req.want is not None:
            left = tuple([name for name in SECTIONS if name in cells and name not in req.want])
            cells = {name: cell for name, cell in cells.items() if name in req.want}
        return Leased(
            entry.id, entry.queue, entry.task, cells, epoch, entry.tenant, entry.key, entry.priority, entry.run_at,
            entry.enqueued_at, entry.attempt, entry.lost, max_attempts, timeout, result_ttl, entry.headers,
            entry.error, entry.group, begun, left,
        )  # fmt: skip


def _spared(entry: Entry, want: frozenset[str]) -> int:
    """Bytes of the cells that are not wanted."""
    return sum(len(cell) for name, cell in entry.cells.items() if name not in want)


def reaped(entry: Entry) -> Reaped:
    """The answer for a job that was taken back or has expired."""
    return Reaped(entry.id, entry.queue, entry.task, entry.state, entry.lost, entry.reason, entry.key)
