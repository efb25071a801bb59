"""An observer that counts: what metrics are made of."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from threading import Lock
from typing import Any

from headrace.core.alerts import moment
from headrace.core.events import Event, EventKind

BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0)
"""The bounds of the histograms, in seconds."""
OTHER = "other"
_MOST = 100

# Looked up once: on Python 3.11 finding an enum member costs more than everything else done here for an event.
_STARTED, _ALERT = EventKind.STARTED, EventKind.ALERT
_TICKS = {EventKind.TICK_FIRED: "fired", EventKind.TICK_SKIPPED: "skipped", EventKind.TICK_MISSED: "missed"}
_RAN = frozenset({EventKind.COMPLETED, EventKind.SNOOZED, EventKind.PAUSED})
_MAY_HAVE_RUN = frozenset({EventKind.RETRYING, EventKind.FAILED, EventKind.CANCELLED})


class Lengths:
    """A histogram of durations: count, sum, maximum, and the count up to each bound."""

    __slots__ = ("_counts", "_longest", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds
        if seconds > self._longest:
            self._longest = seconds

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        names = (*(f"{bound:g}" for bound in BOUNDS), "inf")
        return {
            "count": sum(self._counts),
            "sum": self._total,
            "max": self._longest,
            "buckets": dict(zip(names, self._counts, strict=True)),
        }


class Counters:
    """Counts the events of a process. A hundred queues and a hundred tasks are counted by name, the rest as ``other``.

    >>> import asyncio
    >>> from headrace import App, Counters
    >>> app, counters = App("memory://"), Counters()
    >>> @app.task(queue="mail", name="send")
    ... async def send(to: str) -> None: ...
    >>> async def main() -> None:
    ...     app.observe(counters)
    ...     async with app:
    ...         await send.enqueue("ada@example.org")
    ...         await app.drain()
    >>> asyncio.run(main())
    >>> counted = counters.snapshot()
    >>> counted["events"]["completed"], counted["events"]["refused"], counted["queues"]["mail"]["started"]
    (1, 0, 1)
    >>> counted["waited"]["mail"]["count"], counted["ran"]["send"]["count"], counted["alerts"]
    (1, 1, {})
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._since: float | None = None
        self._queues: dict[str, defaultdict[EventKind, int]] = {}
        self._waited: dict[str, Lengths] = {}
        self._ran: dict[str, Lengths] = {}
        self._late = Lengths()
        self._ticks = dict.fromkeys(_TICKS.values(), 0)
        self._alerts: defaultdict[str, int] = defaultdict(int)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        kind, queue = event.kind, event.queue
        with self._lock:
            if self._since is None:
                self._since = moment()
            counts = self._queues.get(queue)
            if counts is None:
                counts = self._queues.setdefault(_apart(self._queues, queue), defaultdict(int))
            counts[kind] += 1
            if kind is _STARTED:
                _of(self._waited, queue).add(event.seconds)
                if event.detail:
                    self._late.add(event.seconds)
            elif kind in _RAN or (kind in _MAY_HAVE_RUN and event.seconds):
                _of(self._ran, event.task).add(event.seconds)
            elif kind in _TICKS:
                self._ticks[_TICKS[kind]] += event.count
            elif kind is _ALERT:
                self._alerts[event.alert] += 1

    def snapshot(self) -> dict[str, Any]:
        """What was counted so far, as plain data that JSON can carry; callable from any thread.

        ``events``: by kind. ``queues``: events of queues, by queue and kind. ``ticks``: slots, with ``coverage`` (of
        the slots that fired or were missed, the share that fired; None: there were none) and ``per_second``. ``late``:
        how long after their due time the jobs of slots were started. ``waited``: the same for all jobs, by queue.
        ``ran``: how long jobs ran, by task. ``alerts``: by name. ``seconds``: since the first event.
        """
        with self._lock:
            seconds = 0.0 if self._since is None else max(0.0, moment() - self._since)
            queues = {queue: {kind.value: n for kind, n in counts.items()} for queue, counts in self._queues.items()}
            events = {kind.value: sum(counts.get(kind, 0) for counts in self._queues.values()) for kind in EventKind}
            fired, missed = self._ticks["fired"], self._ticks["missed"]
            rates = {
                "coverage": fired / (fired + missed) if fired + missed else None,
                "per_second": fired / seconds if seconds else 0.0,
            }
            return {
                "seconds": seconds,
                "events": events,
                "queues": {queue: counts for queue, counts in queues.items() if queue},
                "ticks": self._ticks | rates,
                "late": self._late.plain(),
                "waited": {queue: lengths.plain() for queue, lengths in self._waited.items()},
                "ran": {task: lengths.plain() for task, lengths in self._ran.items()},
                "alerts": dict(self._alerts),
            }


def _apart(known: dict[str, Any], name: str) -> str:
    """The name, or ``other`` if a hundred are known already. The empty name is always kept."""
    return name if name in known or not name or len(known) < _MOST else OTHER


def _of(known: dict[str, Lengths], name: str) -> Lengths:
    found = known.get(name)
    return known.setdefault(_apart(known, name), Lengths()) if found is None else found
