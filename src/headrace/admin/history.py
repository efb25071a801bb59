"""History: what happened lately, as far as this process has heard: counts, and how long jobs waited and ran."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from headrace.admin.views import Overview
from headrace.core.feed import Digest
from headrace.core.histogram import BOUNDS

STEP = 5.0
"""Seconds that one point of a line stands for."""
KEPT = 720
"""Points: an hour."""
_QUEUES = 200
"""Queues that are told apart; the others are added up."""
OTHER = "other"
_LAG_KEPT = 10.0
_SIZE = len(BOUNDS) + 1


class Depth(Struct, frozen=True):
    """A queue at one instant."""

    due: int
    running: int


class Bucket(Struct):
    """What happened within one step."""

    number: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By queue, and what happened to its jobs."""
    ran: dict[str, list[int]] = field(default_factory=dict)
    waited: dict[str, list[int]] = field(default_factory=dict)
    depths: dict[str, Depth] = field(default_factory=dict)


class History:
    """The last hour in steps of five seconds. Time is seconds of any clock that goes forward.

    >>> history = History()
    >>> history.per_second("completed", 60.0, points=2)
    [0.0, 0.0]
    """

    def __init__(self) -> None:
        self._buckets: deque[Bucket] = deque(maxlen=KEPT)
        self._names: set[str] = set()
        self._lags: dict[str, tuple[float, float]] = {}

    def hear(self, digest: Digest, now: float) -> None:
        """What another process told."""
        bucket = self._at(now)
        for tally in digest.tallies:
            bucket.counts[self._name(tally.queue), tally.what] += tally.count
        for timing in digest.timings:
            name = self._name(timing.queue)
            _add(bucket.ran, name, timing.ran)
            _add(bucket.waited, name, timing.waited)
        if digest.worker:
            at, lag = self._lags.pop(digest.worker, (now, 0.0))
            worst = max(lag, digest.lag) if now - at < STEP else digest.lag
            self._lags[digest.worker] = (at if worst == lag else now), worst
            while len(self._lags) > _QUEUES:
                self._lags.pop(next(iter(self._lags)))

    def see(self, overview: Overview, now: float) -> None:
        """The store as it is now."""
        seen: dict[str, Depth] = {}
        for queue in overview.queues:
            name = self._name(queue.name)
            before = seen.get(name, Depth(0, 0))
            seen[name] = Depth(before.due + queue.due, before.running + queue.running)
        self._at(now).depths = seen

    def lag(self, worker: str, now: float) -> float | None:
        """By how many seconds the worker's event loop was late lately; None: it has not told."""
        at, lag = self._lags.get(worker, (0.0, None))
        return lag if lag is not None and now - at < _LAG_KEPT else None

    def per_second(self, what: str, now: float, queue: str | None = None, points: int = 120) -> list[float]:
        """How many jobs this happened to, per second: one number for each of the last steps that are over."""
        found = []
        for bucket in self._last(now, points):
            counts = bucket.counts if bucket is not None else Counter()
            found.append(sum(n for (name, kind), n in counts.items() if kind == what and queue in (None, name)) / STEP)
        return found

    def depths(self, now: float, queue: str | None = None, points: int = 120) -> list[float | None]:
        """How many due jobs waited; None: nobody looked."""
        found: list[float | None] = []
        for bucket in self._last(now, points):
            seen = [] if bucket is None else [one for name, one in bucket.depths.items() if queue in (None, name)]
            found.append(float(sum(one.due for one in seen)) if seen else None)
        return _filled(found)

    def quantiles(
        self, which: str, share: float, now: float, queue: str | None = None, points: int = 120, width: int = 6
    ) -> list[float | None]:
        """Below what this share of waits (``waited``) or runs (``ran``) was, in seconds, over ``width`` steps; None: no
        job ended."""
        buckets = self._last(now, points + width - 1)
        counts = [_sum(() if one is None else _of(getattr(one, which), queue)) for one in buckets]
        return [quantile(_sum(counts[at : at + width]), share) for at in range(points)]

    def quantile(self, which: str, share: float, now: float, queue: str | None = None) -> float | None:
        """The same over the last minute."""
        return self.quantiles(which, share, now, queue, 1, 12)[0]

    def _at(self, now: float) -> Bucket:
        number = int(now // STEP)
        if not self._buckets or self._buckets[-1].number < number:
            self._buckets.append(Bucket(number))
        return self._buckets[-1]

    def _last(self, now: float, points: int) -> list[Bucket | None]:
        until = int(now // STEP)
        known = {bucket.number: bucket for bucket in self._buckets if bucket.number >= until - points}
        return [known.get(number) for number in range(until - points, until)]

    def _name(self, queue: str) -> str:
        if queue not in self._names:
            if len(self._names) >= _QUEUES:
                return OTHER
            self._names.add(queue)
        return queue


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Below what this share of the values is, drawn as a straight line within a bound.

    >>> quantile([0, 0, 100] + [0] * (_SIZE - 3), 0.5)
    0.0075
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen = share * total, 0
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[place] if place < len(BOUNDS) else 2 * BOUNDS[-1]
            return low + (high - low) * (wanted - seen) / count
        seen += count
    return BOUNDS[-1]


def _of(kept: dict[str, list[int]], queue: str | None) -> Iterable[list[int]]:
    return kept.values() if queue is None else [kept[queue]] if queue in kept else []


def _sum(many: Iterable[Sequence[int]]) -> list[int]:
    return [sum(values) for values in zip(*many, strict=True)] or [0] * _SIZE


def _add(kept: dict[str, list[int]], name: str, counts: Sequence[int]) -> None:
    if len(counts) == _SIZE:
        kept[name] = _sum([kept.get(name, [0] * _SIZE), counts])


def _filled(line: list[float | None]) -> list[float | None]:
    """Short gaps take the value before them: not every step has a look at the store."""
    last: float | None = None
    missing = 0
    found: list[float | None] = []
    for value in line:
        missing = 0 if value is not None else missing + 1
        last = value if value is not None else last if missing <= 6 else None
        found.append(last)
    return found
