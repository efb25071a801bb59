"""Events for observers: one flat struct for each thing that happened in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from headrace.core.alerts import Alert, Throttle, moment
from headrace.core.callables import check_listener
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


class Observers:
    """All observers. Falsy when there are none, so that the hot path builds no events in vain."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self.present = False
        """Whether there are any; asked for every job."""
        self._throttle = Throttle()

    def __bool__(self) -> bool:
        return self.present

    def add(self, observer: Observer) -> None:
        check_listener(observer, "observer")
        self._observers.append(observer)
        self.present = True

    def remove(self, observer: Observer) -> None:
        self._observers.remove(observer)
        self.present = bool(self._observers)

    def tell(self, event: Event) -> None:
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception:
                log.exception("an observer raised on %s", event.kind.value)
        if event.kind is _REFUSED:
            self._tell_full(event)

    def alert(self, name: Alert, subject: str, sentence: str, **more: Any) -> None:
        """Alert observers to ``subject``, and log it; at most once a minute for each subject."""
        if self._throttle.allows(name, subject, moment()):
            detail = f"{name.value}: {sentence}"
            log.warning("%s", detail, extra={"alert": name.value})
            if self:
                self.tell(Event(EventKind.ALERT, detail=detail, **more))

    def _tell_full(self, event: Event) -> None:
        sentence = f"a job was refused: queue {shown(event.queue)}, or the store, is full; start workers or raise depth"
        self.alert(Alert.QUEUE_FULL, event.queue, sentence, queue=event.queue, task=event.task)
