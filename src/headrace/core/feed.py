"""The feed: tells the processes that listen what happens in this one.

While nobody listens, all there is of it is one cheap question every few seconds, and only while jobs are stored or run.
While somebody does, counts are exact, and what is not routine is told event by event, as far as there is room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter, deque

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.histogram import BOUNDS, Histogram
from headrace.core.tasks import Tasks
from headrace.errors import HeadraceError
from headrace.seam.events import LONGEST, Events

log = logging.getLogger("headrace")

_ASK = 3.0
"""Seconds between two questions whether anybody listens."""
_FLUSH = 0.25
_TRIES = 5
_SIGN = 2.0
"""Seconds after which a process that has nothing to tell reports how late its loop is."""
_KEPT = 200
"""Events that wait to be told; of more, the latest are told and the others counted."""
_AT_ONCE = 20
"""Messages that are told in one trip."""
_DETAIL = 200
_SPEAKING = frozenset({
    EventKind.ALERT, EventKind.CANCELLED, EventKind.EXPIRED, EventKind.STORE_AWAY, EventKind.SWEPT,
    EventKind.TICK_FIRED, EventKind.TICK_MISSED, EventKind.TICK_SKIPPED, EventKind.WORKER_STARTED,
})  # fmt: skip
"""Kinds whose detail is ours. That of others may quote a handler, and whoever can reach the store can listen."""


class Happening(Struct, frozen=True, array_like=True):
    """One event, as other processes hear it: without arguments, results, keys and the texts of errors."""

    kind: str
    at: int
    """Microseconds since 1970, by the clock of the process that tells it."""
    id: bytes = b""
    queue: str = ""
    task: str = ""
    attempt: int = 0
    seconds: float = 0.0
    error: str = ""
    """The name of the exception's class."""
    detail: str = ""
    count: int = 0
    again_in: float = 0.0
    subject: str = ""
    """Alert: what it is about."""


class Tally(Struct, frozen=True, array_like=True):
    """How often something happened to jobs of one queue and task since the last digest."""

    queue: str
    task: str
    what: str
    """``completed``, ``retried``, ``dead``, ``cancelled``, ``snoozed``, ``enqueued``, ``deduplicated``."""
    count: int
    last: bytes = b""
    """Completed: one of the jobs."""


class Timing(Struct, frozen=True, array_like=True):
    """How long jobs of one queue ran, and waited before: how many were up to each bound of a histogram, and above."""

    queue: str
    ran: list[int]
    waited: list[int]


class Digest(Struct, frozen=True, array_like=True):
    """What happened in one process within a moment."""

    source: str
    """The machine and the process."""
    at: int
    tallies: list[Tally] = []
    happenings: list[Happening] = []
    dropped: int = 0
    """Events that are not among them: there were too many."""
    timings: list[Timing] = []
    worker: str = ""
    """The name of its worker, unless that is random."""
    lag: float = 0.0
    """Seconds by which its event loop was late, at worst."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Digest)


def read_digest(message: bytes) -> Digest | None:
    """What another process told; None if it is nothing of ours."""
    try:
        return _DECODER.decode(message)
    except (msgspec.DecodeError, ValueError):
        return None


class Feed:
    """Watches for listeners, and tells them."""

    def __init__(self, events: Events, observers: Observers, clock: Clock, tasks: Tasks, worker: str = "") -> None:
        self._events = events
        self._worker = worker
        self._observers = observers
        self._clock = clock
        self._tasks = tasks
        self._source = f"{socket.gethostname()}-{os.getpid()}"
        self._asked = -_ASK
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._told: Counter[tuple[str, str, str]] = Counter()
        self._waiting: deque[Happening] = deque(maxlen=_KEPT)
        self._came = 0
        self.news: deque[Happening] = deque(maxlen=_AT_ONCE)
        """Workers that have started since somebody was last known to listen, or nobody to."""
        self.telling = asyncio.Event()
        """Set while somebody listens, and is told."""
        self._timed: dict[str, tuple[list[int], list[int]]] = {}
        """What was counted of each queue's runs and waits when it was last told."""
        self._lag = 0.0
        self._said = 0.0

    def start(self) -> None:
        """Called when the store has been opened."""
        self._observers.add_feed(self)

    def poke(self) -> None:
        """Something was stored, run or settled; called for every trip. Another loop of this process may have made it:
        the store is asked where it is open."""
        if self._loop.time() - self._asked < _ASK:
            return
        if asyncio.get_running_loop() is self._loop:
            self._poke()
        else:
            try:
                self._loop.call_soon_threadsafe(self._poke)
            except RuntimeError:  # that loop has ended, and nobody has closed the store
                self._observers.remove_feed(self)

    def begun(self, event: Event) -> None:
        """A worker has started, on whichever loop. Nothing is told yet while nobody has done any work: so it waits, and
        the store is asked at once."""
        if not self.telling.is_set():
            self.news.append(self._happening(event))
            self._asked = -_ASK
            self.poke()

    def _poke(self) -> None:
        now = self._loop.time()
        if now - self._asked >= _ASK and (self._task is None or self._task.done()) and not self._closed:
            self._asked = now
            self._task = self._tasks.start(self._watch(), "headrace-feed")

    async def close(self) -> None:
        """Tell what is left."""
        self._closed = True
        self._observers.remove_feed(self)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        if not await self._wanted():
            return
        self._begin()
        loop = asyncio.get_running_loop()
        try:
            asked = loop.time()
            while True:
                due = loop.time() + _FLUSH
                await asyncio.sleep(_FLUSH)
                self._lag = max(self._lag, loop.time() - due)
                await self._flush()
                if loop.time() - asked >= _ASK:
                    if not await self._heard():
                        return
                    asked = loop.time()
        finally:
            self.telling.clear()
            self._observers.remove(self._hear)
            await self._flush()
            self._observers.stop_counting()
            self._asked = loop.time()

    async def _wanted(self) -> bool:
        """Whether anybody listens. While there is news, the store is asked some times: it may be a moment behind with
        those who listen."""
        for _ in range(_TRIES):
            if await self._heard():
                return True
            if not self.news:
                return False
            await asyncio.sleep(_FLUSH)
        self.news.clear()
        return False

    async def _heard(self) -> bool:
        try:
            return await self._events.heard()
        except HeadraceError:
            return False

    def _begin(self) -> None:
        self._observers.start_counting(self._clock)
        self._told = self._counts()
        self._timed = self._times()
        self._observers.add(self._hear, routine=False)
        self._came += len(self.news)
        self._waiting += self.news
        self.news.clear()
        self.telling.set()

    def _hear(self, event: Event) -> None:
        self._came += 1
        self._waiting.append(self._happening(event))

    def _happening(self, event: Event) -> Happening:
        detail = event.detail[:_DETAIL] if event.kind in _SPEAKING else ""
        return Happening(
            event.kind.value,
            self._clock.now(),
            event.id,
            event.queue,
            event.task,
            event.attempt,
            event.seconds,
            type(event.error).__name__ if event.error is not None else "",
            detail or event.worker,
            event.count,
            event.again_in,
            event.subject[:_DETAIL],
        )

    def _counts(self) -> Counter[tuple[str, str, str]]:
        meter = self._observers.meter
        found: Counter[tuple[str, str, str]] = Counter()
        for series in meter.series() if meter is not None else ():
            found[series.queue, series.task, "completed"] = series.completed
            for what, count in list(series.others.items()):
                found[series.queue, series.task, what] = count
        return found

    def _times(self) -> dict[str, tuple[list[int], list[int]]]:
        """How long jobs ran and waited, by queue, since the meter is there."""
        meter = self._observers.meter
        found: dict[str, tuple[list[int], list[int]]] = {}
        for series in meter.series() if meter is not None else ():
            ran, waited = found.setdefault(series.queue, ([0] * _BUCKETS, [0] * _BUCKETS))
            _add(ran, series.ran)
            _add(waited, series.waited)
        return found

    async def _flush(self) -> None:
        now, last, times = self._counts(), self._lasts(), self._times()
        changes = [
            Tally(*name, count - self._told[name], last.get(name[:2], b"") if name[2] == "completed" else b"")
            for name, count in now.items()
            if count > self._told[name]
        ]
        timings = [Timing(queue, *_since(pair, self._timed.get(queue))) for queue, pair in times.items()]
        self._told, self._timed = now, times
        happenings, dropped = list(self._waiting), self._came - len(self._waiting)
        self._waiting.clear()
        self._came = 0
        at = asyncio.get_running_loop().time()
        if changes or happenings or at - self._said >= _SIGN:
            told = [one for one in timings if any(one.ran)]
            digest = Digest(
                self._source, self._clock.now(), changes, happenings, dropped, told, self._worker, self._lag
            )
            self._said, self._lag = at, 0.0
            await self._events.tell(_messages(digest)[:_AT_ONCE])

    def _lasts(self) -> dict[tuple[str, str], bytes]:
        meter = self._observers.meter
        return {} if meter is None else {(one.queue, one.task): one.last for one in meter.series()}


_BUCKETS = len(BOUNDS) + 1


def _add(counts: list[int], histogram: Histogram) -> None:
    for place, count in enumerate(histogram.counts):
        counts[place] += count


def _since(now: tuple[list[int], list[int]], before: tuple[list[int], list[int]] | None) -> tuple[list[int], list[int]]:
    """What was counted since then, of runs and of waits."""
    if before is None:
        return now
    pairs = zip(now, before, strict=True)
    ran, waited = ([max(0, one - old) for one, old in zip(new, told, strict=True)] for new, told in pairs)
    return ran, waited


def _messages(digest: Digest) -> list[bytes]:
    """Digests that fit into messages. What does not fit into one goes into the next."""
    whole = _ENCODER.encode(digest)
    if len(whole) <= LONGEST:
        return [whole]
    parts: list[Tally | Happening | Timing] = [*digest.tallies, *digest.happenings, *digest.timings]
    if len(parts) <= 1:
        return []
    middle = len(parts) // 2
    first, rest = _with(digest, parts[:middle]), _with(digest, parts[middle:])
    return [*_messages(first), *_messages(replace(rest, dropped=0, lag=0.0))]


def _with(digest: Digest, parts: list[Tally | Happening | Timing]) -> Digest:
    return replace(
        digest,
        tallies=[one for one in parts if isinstance(one, Tally)],
        happenings=[one for one in parts if isinstance(one, Happening)],
        timings=[one for one in parts if isinstance(one, Timing)],
    )
