"""What observers hear of a job: that it has started, how it ended, what went wrong."""

from __future__ import annotations

from typing import Any

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.schedules.tick_notes import is_first_of_slot, slot_of
from headrace.seam.records import Leased, Settlement
from headrace.types import Done, Fail, JobState, Retry
from headrace.worker.failures import failures
from headrace.worker.handler import Ended
from headrace.worker.judge import UNSTORABLE

_KINDS = {
    JobState.COMPLETED: EventKind.COMPLETED,
    JobState.FAILED: EventKind.FAILED,
    JobState.CANCELLED: EventKind.CANCELLED,
    JobState.PAUSED: EventKind.PAUSED,
}
"""By the state that follows. A job that runs again is ``RETRYING`` or ``SNOOZED``."""
_FAILURES = frozenset({EventKind.RETRYING, EventKind.FAILED, EventKind.ERROR})


class AttemptEvents:
    """Makes the events of attempts. Without observers, only those of failures: they are logged."""

    def __init__(self, observers: Observers, clock: Clock) -> None:
        self._observers = observers
        self._clock = clock

    def make(self, kind: EventKind, leased: Leased, **more: Any) -> Event | None:
        """The event, for a settlement: observers are told once the store has accepted that."""
        return _event(kind, leased, **more) if self._observers.wants(kind) or kind in _FAILURES else None

    def tell(self, kind: EventKind, leased: Leased, **more: Any) -> None:
        """Tell observers now."""
        if self._observers.wants(kind) or kind in _FAILURES:
            self._observers.tell(_event(kind, leased, **more))

    def started(self, leased: Leased) -> None:
        """The job starts now. The event says how long it waited since it was due, by this process's clock."""
        if self._observers.present:
            waited = max(0.0, (self._clock.now() - leased.run_at) / 1e6)
            self._observers.tell(_event(EventKind.STARTED, leased, seconds=waited, detail=slot_of(leased)))

    def ended(self, leased: Leased, settlement: Settlement, ended: Ended | None, seconds: float) -> Event | None:
        """The event for what came of an attempt that took this long; 0: it never ran."""
        if self._observers.meter is not None and seconds and is_first_of_slot(leased):
            late = (self._clock.now() - leased.run_at) / 1e6 - seconds
            self._observers.meter.upkeep.delays.add(max(0.0, late))
        again = EventKind.RETRYING if settlement.failed_attempt else EventKind.SNOOZED
        return self.make(
            _KINDS.get(settlement.state, again),
            leased,
            error=ended if isinstance(ended, BaseException) else None,
            detail=_detail(settlement, ended),
            result=ended.result if isinstance(ended, Done) else None,
            seconds=seconds,
            again_in=self._again_in(settlement),
        )

    def _again_in(self, settlement: Settlement) -> float:
        if settlement.run_at is not None:
            return max(0.0, (settlement.run_at - self._clock.now()) / 1e6)
        return (settlement.delay or 0) / 1e6


def _event(kind: EventKind, leased: Leased, **more: Any) -> Event:
    about = (leased.id, leased.queue, leased.task, leased.key, leased.attempt)
    return Event(kind, *about, tenant=leased.tenant, **more)


def _detail(settlement: Settlement, ended: Ended | None) -> str:
    if settlement.reason == UNSTORABLE and not isinstance(ended, BaseException):
        return f"{UNSTORABLE}: {failures(settlement.error)[-1].message}"
    return (ended.error if isinstance(ended, Fail | Retry) else "") or settlement.reason
