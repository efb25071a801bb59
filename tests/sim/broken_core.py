"""The real core with one bug each."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.seam.records import Leased, Settlement
from headrace.types import JobState
from headrace.worker.attempt import Attempts
from headrace.worker.claimer import Claimer
from headrace.worker.judge import Judge
from headrace.worker.reaper import Reaper
from headrace.worker.settler import Settler


def _never_sleeps(self: Claimer, next_in: int | None) -> None:
    """Relies on hints alone."""


async def _reaps_nothing(self: Reaper, *, at_once: bool = False) -> int:
    return 0


_attempt = Judge._attempt


def _tries_for_ever(self: Judge, leased: Any, retry: Any, failure: Any, after: int | None) -> Settlement:
    given = _attempt(self, leased, retry, failure, after)
    if given.state is not JobState.FAILED:
        return given
    return Settlement(leased.id, leased.epoch, given.holder, JobState.AVAILABLE, failed_attempt=True)


_run = Attempts.run


async def _acks_early(self: Attempts, slot: Any, handler: Any, leased: Leased) -> None:
    """Records the job as done, then does it."""
    self._settler.add(self._judge.done(leased, handler, b""))
    await asyncio.sleep(0.1)
    await _run(self, slot, handler, leased)


_answered = Settler.answered


def _keeps_leases(self: Settler, batch: Any, states: Any) -> None:
    """Never frees a slot: after a while it holds as much as it may, and asks for nothing more."""
    held = dict(self._leases._held)
    _answered(self, batch, states)
    self._leases._held.update(held)


_want = Claimer.want


def _takes_suspects_along(self: Claimer) -> int:
    """Claims a job on its last chance together with others."""
    making_room, self._making_room = self._making_room, False
    want = _want(self)
    self._making_room = making_room
    return want


PATCHES: list[tuple[str, str, tuple[type, str, Any]]] = [
    ("sleeps until woken", "I22", (Claimer, "_sleep", _never_sleeps)),
    ("reaps nothing", "I22", (Reaper, "reap", _reaps_nothing)),
    ("tries for ever", "I6", (Judge, "_attempt", _tries_for_ever)),
    ("acks early", "I7", (Attempts, "run", _acks_early)),
    ("takes suspects along", "I28", (Claimer, "want", _takes_suspects_along)),
    ("keeps leases", "I22", (Settler, "answered", _keeps_leases)),
]
