"""claim: which holder gets which jobs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from headrace.backends.memory.entry import Entry
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.turns import Turns
from headrace.seam.policy import FOREVER
from headrace.seam.records import Claim, Claimed, Leased, Reaped
from headrace.types import JobState

_WOKEN = 1_000
"""A claim wakes at most this many tenants, or one per job that it has room for; the next claim goes on."""


class _Basket:
    """What a claim has taken so far, and what it may still take."""

    def __init__(self, req: Claim) -> None:
        self.req = req
        self.jobs: list[Leased] = []
        self.expired: list[Reaped] = []
        self.passed: list[Entry] = []
        self.bytes = req.max_bytes

    @property
    def left(self) -> int:
        return self.req.limit - len(self.jobs) if self.bytes > 0 else 0


class Claiming:
    """The claims from one store."""

    def __init__(self, store: MemoryStore, end: Callable[[Entry, JobState, int, str], None]) -> None:
        self._store = store
        self._end = end

    def claim(self, req: Claim, now: int) -> Claimed:
        """Lease jobs of each part of the queues: first an even share, then what other parts left."""
        basket = _Basket(req)
        parts = self._parts(req.queues, now)
        plenty: list[list[str]] = []
        for i, part in enumerate(parts):
            share = -(-basket.left // (len(parts) - i))
            if share and self._take(part, basket, share, now) == share:
                plenty.append(part)
        for part in plenty:
            self._take(part, basket, basket.left, now)
        for entry in basket.passed:
            self._store.put_back(entry)
        next_in = None
        if len(basket.jobs) < req.limit:
            next_in = 0 if basket.bytes <= 0 else min(self._coming(req.queues, parts, now), default=None)
        chosen = [self._chooses(queue, req, now) for queue in {entry.queue for entry in basket.passed}]
        if req.limit == 1 and req.lost_below is None:
            self._stays_chosen(req, now)
        return Claimed(basket.jobs, next_in, basket.expired, bool(chosen), any(chosen))

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

    def _take(self, part: list[str], basket: _Basket, most: int, now: int) -> int:
        """Lease up to ``most`` jobs; return how many."""
        before = len(basket.jobs)
        turns = self._store.turns.get(part[0])
        if turns is None:
            self._fill(self._candidates(part, now), basket, most, now)
        else:
            self._take_turns(turns, basket, most, now)
        return len(basket.jobs) - before

    def _coming(self, queues: Sequence[str], parts: Sequence[list[str]], now: int) -> Iterator[int]:
        """How long until there may be something more to claim."""
        for part in parts:
            if (next_in := self._next_in(part, now)) is not None:
                yield next_in
        for queue in queues:
            if now < self._store.paused_queues.get(queue, 0) < FOREVER:
                yield self._store.paused_queues[queue] - now

    def _next_in(self, part: list[str], now: int) -> int | None:
        turns = self._store.turns.get(part[0])
        if turns is not None:
            return turns.next_in(now)
        upcoming = [due for queue in part if (due := self._store.next_due(queue)) is not None]
        return max(0, min(upcoming) - now) if upcoming else None

    def _take_turns(self, turns: Turns, basket: _Basket, most: int, now: int) -> None:
        turns.wake(now, max(_WOKEN, most))
        goal = len(basket.jobs) + most
        while basket.left and (room := _least(goal - len(basket.jobs), turns.room(now))) > 0:
            name = turns.next_tenant(basket.req.holder)
            if name is None:
                break
            allowed = min(turns.allowance(name, now), room)
            if allowed:
                jobs = turns.eligible(name, now, self._store.jobs.__getitem__)
                taken = self._fill(jobs, basket, allowed, now, turns)
                turns.given(name, taken)
                if taken < allowed and basket.left:
                    turns.rest(name, now)

    def _fill(
        self, candidates: Iterator[Entry], basket: _Basket, most: int, now: int, turns: Turns | None = None
    ) -> int:
        taken = 0
        req = basket.req
        while taken < most and basket.left and (entry := next(candidates, None)) is not None:
            if entry.expires_at is not None and entry.expires_at <= now:
                self._end(entry, JobState.CANCELLED, now, "expired")
                basket.expired.append(reaped(entry))
            elif req.lost_below is not None and entry.lost >= req.lost_below:
                basket.passed.append(entry)
            else:
                basket.jobs.append(self._lease(entry, req, now))
                basket.bytes -= entry.measure()
                taken += 1
                if turns is not None:
                    turns.spent(entry, now)
        return taken

    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        """Due jobs in claim order; each leaves the index when it is returned."""
        store = self._store
        store.promote(queues, now)
        heads = [(first, queue) for queue in queues if (first := store.first(queue)) is not None]
        heapify(heads)
        while heads:
            queue = heads[0][1]
            entry = store.draw(queue, now)
            if entry is not None:
                yield entry
            first = store.first(queue)
            if first is None:
                heappop(heads)
            else:
                heapreplace(heads, (first, queue))

    def _lease(self, entry: Entry, req: Claim, now: int) -> Leased:
        entry.epoch = max(entry.epoch + 1, now)
        begun, entry.begun = entry.begun, True
        entry.begun_before = begun
        entry.holder = req.holder
        entry.lease_until = now + req.lease_for
        self._store.move(entry, JobState.RUNNING)
        want = req.want
        return Leased(
            entry.id,
            entry.queue,
            entry.task,
            dict(entry.cells) if want is None else {k: v for k, v in entry.cells.items() if k in want},
            entry.epoch,
            entry.tenant,
            entry.key,
            entry.priority,
            entry.run_at,
            entry.enqueued_at,
            entry.attempt,
            entry.lost,
            entry.max_attempts,
            entry.timeout,
            entry.result_ttl,
            entry.headers,
            entry.error,
            entry.group,
            begun,
        )


def _least(room: int, other: int | None) -> int:
    return room if other is None else min(room, other)


def reaped(entry: Entry) -> Reaped:
    """The answer for a job that was taken back or has expired."""
    return Reaped(entry.id, entry.queue, entry.task, entry.state, entry.lost, entry.reason, entry.key)
