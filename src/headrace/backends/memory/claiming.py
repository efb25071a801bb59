"""claim: which holder gets which jobs."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from headrace.backends.claims import share_out
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.leasing import Leasing, MemoryTaken
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.visits import MemoryVisits
from headrace.backends.turns import serve
from headrace.seam.policy import FOREVER
from headrace.seam.records import Claim, Claimed


class Claiming:
    """The claims from one store."""

    def __init__(self, store: MemoryStore, leasing: Leasing | None = None) -> None:
        self._store = store
        self._leasing = Leasing(store) if leasing is None else leasing

    def claim(self, req: Claim, now: int) -> Claimed:
        """Lease jobs of each part of the queues."""
        taken = MemoryTaken(req)
        parts = self._parts(req.queues, now)

        def take(part: list[str], most: int) -> None:
            turns = self._store.turns.get(part[0])
            if turns is None:
                for _ in self._leasing.lease(self._candidates(part, now), taken, most, now):
                    pass
            else:
                turns.begin(now)
                visits = MemoryVisits(self._leasing, turns, taken, now, [])
                serve(turns, visits, taken, most, now)
                visits.close()

        share_out(taken, parts, take)
        next_in = None
        if len(taken.jobs) < req.limit:
            at_once = taken.unfinished or taken.bytes <= 0
            next_in = 0 if at_once else min(self._coming(req.queues, parts, now), default=None)
        for entry in taken.passed:
            self._store.put_back(entry)
        chosen = [self._chooses(queue, req, now) for queue in {entry.queue for entry in taken.passed}]
        if req.limit == 1 and req.lost_below is None:
            self._stays_chosen(req, now)
        return Claimed(taken.jobs, next_in, taken.expired, bool(chosen), any(chosen))

    def _chooses(self, queue: str, req: Claim, now: int) -> bool:
        """Whether the holder is the chosen one, which makes room for jobs that were passed over."""
        holder, until = self._store.chosen.get(queue, ("", 0))
        if until > now:
            return holder == req.holder
        if holder == req.holder and until + req.lease_for > now:
            return False
        self._store.chosen[queue] = (req.holder, now + req.lease_for)
        return True

    def _stays_chosen(self, req: Claim, now: int) -> None:
        for queue in req.queues:
            if self._store.chosen.get(queue, ("", 0))[0] == req.holder:
                self._store.chosen[queue] = (req.holder, now + req.lease_for // 3)

    def _parts(self, queues: Sequence[str], now: int) -> list[list[str]]:
        """Each governed queue, and the others together, in the order of the first that is named."""
        parts: dict[str | None, list[str]] = {}
        for queue in dict.fromkeys(queues):
            if not self._store.paused(queue, now):
                parts.setdefault(queue if queue in self._store.turns else None, []).append(queue)
        return list(parts.values())

    def _coming(self, queues: Sequence[str], parts: Sequence[list[str]], now: int) -> Iterator[int]:
        """How long until there may be something more to claim."""
        for part in parts:
            turns = self._store.turns.get(part[0])
            if turns is not None:
                next_in = turns.next_in(turns.first_wakes_at(), now)
                if next_in is not None:
                    yield next_in
            else:
                yield from (max(0, due - now) for queue in part if (due := self._store.next_due(queue)) is not None)
        for queue in queues:
            if now < self._store.paused_queues.get(queue, 0) < FOREVER:
                yield self._store.paused_queues[queue] - now

    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        """Due jobs in claim order; each leaves the index when it is returned."""
        self._store.promote(queues, now)
        heads = [(first, queue) for queue in queues if (first := self._store.first(queue)) is not None]
        heapify(heads)
        while len(heads) > 1:
            queue = heads[0][1]
            entry = self._store.draw(queue, now)
            if entry is not None:
                yield entry
            first = self._store.first(queue)
            if first is None:
                heappop(heads)
            else:
                heapreplace(heads, (first, queue))
        for _, queue in heads:
            while (entry := self._store.draw(queue, now)) is not None:
                yield entry
