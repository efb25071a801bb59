"""Events for observers: one flat struct for each thing that happened in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

from headrace.core.alerts import Alert, Throttle, moment
from headrace.core.callables import check_listener
from headrace.core.clock import Clock
from headrace.core.meter import Meter
from headrace.seam.records import Leased
from headrace.text import shown

log = logging.getLogger("headrace")


class EventKind(StrEnum):
    """Things that happen to jobs and workers.

    >>> from collections import Counter
    >>> from headrace import Event, EventKind
    >>> counts = Counter()
    >>> def count(event: Event) -> None:  # then: app.observe(count)
    ...     counts[event.kind] += 1
    >>> count(Event(EventKind.COMPLETED))
    >>> counts[EventKind.COMPLETED], counts["failed"]
    (1, 0)
    """

    QUEUED = "queued"
    DEDUPLICATED = "deduplicated"
    REFUSED = "refused"
    """Not stored: the queue, or the store, is full."""
    STARTED = "started"
    COMPLETED = "completed"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    PAUSED = "paused"
    """The handler returned ``Paused``."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    STALLED = "stalled"
    """A vanished worker's job was taken back."""
    LEASE_LOST = "lease_lost"
    RELEASED = "released"
    """In the queue again: given back before it ran, or cut short by a stop."""
    SWEPT = "swept"
    TICK_FIRED = "tick_fired"
    """A slot of a schedule was planned: its job is stored."""
    TICK_SKIPPED = "tick_skipped"
    """The job of the slot before was still alive."""
    TICK_MISSED = "tick_missed"
    """Nobody planned a slot in time, and it will not fire."""
    STORE_AWAY = "store_away"
    STORE_BACK = "store_back"
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    ALERT = "alert"
    """Somebody should look at something: ``event.alert`` names it, ``detail`` describes it."""
    ERROR = "error"
    """Something of yours (a hook, a job's outcome that cannot be stored) or the worker itself went wrong."""


_REFUSED = EventKind.REFUSED
ROUTINE = frozenset({EventKind.QUEUED, EventKind.DEDUPLICATED, EventKind.STARTED, EventKind.COMPLETED})
"""What happens to every job, even if all goes well."""


class Event(Struct, frozen=True):
    """One thing that happened. Fields that do not apply are empty.

    >>> from headrace import App, Event, EventKind
    >>> app = App("memory://")
    >>> @app.observe
    ... def alarm(event: Event) -> None:
    ...     if event.kind is EventKind.FAILED:
    ...         print(f"{event.task} failed: {event.error}")
    >>> alarm(Event(EventKind.FAILED, task="charge", error=ValueError("no card")))
    charge failed: no card
    """

    kind: EventKind
    id: bytes = b""
    queue: str = ""
    task: str = ""
    key: str | None = None
    attempt: int = 0
    worker: str = ""
    seconds: float = 0.0
    """STARTED: since it was due. COMPLETED, RETRYING, FAILED: that it ran. ALERT ``store_slow``: that the call took."""
    result: Any = None
    error: BaseException | None = None
    detail: str = ""
    count: int = 0
    """TICK_FIRED, TICK_SKIPPED, TICK_MISSED: how many slots. SWEPT: how many records."""
    again_in: float = 0.0
    """RETRYING, SNOOZED: seconds until the job is due again. ALERT: until it is raised again, if its cause lasts; 0:
    nobody knows, but not less than once in five minutes."""
    subject: str = ""
    """ALERT: what it is about, such as a queue, a schedule or a task."""
    tenant: str = ""
    """Of the job, where this process knows it."""

    @property
    def job_id(self) -> UUID | None:
        """The id as a UUID; None if the event is not about a job."""
        return UUID(bytes=self.id) if self.id else None

    @property
    def alert(self) -> str:
        """The name of the alert; empty for other events."""
        return self.detail.partition(":")[0] if self.kind is EventKind.ALERT else ""


Observer = Callable[[Event], None]
"""Called on the event loop, in order; must not block. One that raises is logged and otherwise ignored."""


class Travelled(Protocol):
    """Hears of a trip when it is over."""

    def __call__(self, settled: Sequence[Leased], claimed: Sequence[Leased], seconds: float) -> None:
        """Settlements of these jobs went there, and those came back."""


class Feeding(Protocol):
    """What tells other processes."""

    def poke(self) -> None:
        """Called for each answer of the store to an insert, a claim or a finish."""

    def begun(self, event: Event) -> None:
        """Called when a worker has started."""


class Observers:
    """All observers. Falsy when there are none, so that the hot path builds no events that nobody hears. ``log`` gets
    every event that is told, also without observers."""

    def __init__(self, log: Observer | None = None) -> None:
        self._observers: list[Observer] = []
        """Those that hear everything."""
        self._others: list[Observer] = []
        """Those that do not hear what is routine."""
        self._log = log
        self.present = False
        """Whether anybody hears what is routine; asked for every job."""
        self.meter: Meter | None = None
        """Counts jobs, if metrics are wanted."""
        self.travelled: Travelled | None = None
        """Called for each trip of a worker that the store has answered."""
        self.called: Callable[[], None] | None = None
        """Called for each answer of the store to an insert, a claim or a finish."""
        self._feeds: list[Feeding] = []
        self._throttle = Throttle()
        self._measured = False

    def __bool__(self) -> bool:
        return self.present or bool(self._others)

    def measure(self, clock: Clock) -> Meter:
        """Count from now on, for good."""
        self._measured = True
        return self.start_counting(clock)

    def start_counting(self, clock: Clock) -> Meter:
        """Count, at least until ``stop_counting``."""
        if self.meter is None:
            self.meter = Meter(clock)
        return self.meter

    def stop_counting(self) -> None:
        """Nobody needs the counts any more, unless they are for good."""
        if not self._measured:
            self.meter = None

    def add_feed(self, feed: Feeding) -> None:
        """Of several, which are those of different loops, the first is ``called``."""
        self._feeds.append(feed)
        self.called = self._feeds[0].poke

    def remove_feed(self, feed: Feeding) -> None:
        if feed in self._feeds:
            self._feeds.remove(feed)
        self.called = self._feeds[0].poke if self._feeds else None

    def add(self, observer: Observer, *, routine: bool = True) -> None:
        """Without ``routine``, it hears nothing of jobs that just run and complete, and costs them nothing."""
        check_listener(observer, "observer")
        (self._observers if routine else self._others).append(observer)
        self.present = bool(self._observers)

    def remove(self, observer: Observer) -> None:
        (self._observers if observer in self._observers else self._others).remove(observer)
        self.present = bool(self._observers)

    def wants(self, kind: EventKind) -> bool:
        """Whether somebody hears of such an event."""
        return self.present or (bool(self._others) and kind not in ROUTINE)

    def tell(self, event: Event) -> None:
        logged = () if self._log is None else (self._log,)
        others = () if event.kind in ROUTINE else self._others
        for observer in (*logged, *self._observers, *others):
            try:
                observer(event)
            except Exception:
                log.exception("an observer raised on %s", event.kind.value)
        if event.kind is _REFUSED:
            self._tell_full(event)
        elif event.kind is EventKind.WORKER_STARTED and self._feeds:
            self._feeds[0].begun(event)

    def tell_trip(self, settled: Sequence[Leased], claimed: Sequence[Leased], seconds: float) -> None:
        """Report a trip to whoever traces them."""
        try:
            if self.travelled is not None:
                self.travelled(settled, claimed, seconds)
        except Exception:
            log.exception("what traces trips raised")

    def requested(self, place: str, operation: str, seconds: float, written: int) -> None:
        """A request was made to an object store, and wrote this many bytes."""
        if self.meter is not None:
            self.meter.upkeep.requested(place, operation, seconds, written)

    def alert(self, name: Alert, subject: str, sentence: str, **more: Any) -> None:
        """Alert observers to ``subject``, and log it; at most once a minute for each subject."""
        if self._throttle.allows(name, subject, moment()):
            detail = f"{name.value}: {sentence}"
            log.warning("%s", detail, extra={"alert": name.value})
            if self:
                self.tell(Event(EventKind.ALERT, detail=detail, subject=subject, **more))

    def _tell_full(self, event: Event) -> None:
        sentence = f"a job was refused: queue {shown(event.queue)}, or the store, is full; start workers or raise depth"
        self.alert(Alert.QUEUE_FULL, event.queue, sentence, queue=event.queue, task=event.task)
