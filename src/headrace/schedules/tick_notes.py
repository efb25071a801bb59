"""Notes for the history of schedules: what became of the jobs of slots."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from headrace.core.backoff import Backoff
from headrace.core.clock import Clock
from headrace.core.headers import SLOT, read_headers
from headrace.errors import ConfigError, Unavailable
from headrace.schedules.plan import DELIVERY, LAST, SCHEDULE, Delivery
from headrace.seam.instants import to_datetime
from headrace.seam.protocol import TickStore
from headrace.seam.records import JobId, Leased, Settlement
from headrace.seam.ticks import TickNote
from headrace.text import shown
from headrace.types import JobState

log = logging.getLogger("headrace")

_BATCH = 500
_KEPT = 10_000
"""Notes that wait while the store is away. Further ones are lost; the history then knows only the jobs."""


def at_most_once(leased: Leased) -> bool:
    """Whether the job must not be started a second time."""
    if not _names(leased, DELIVERY):
        return False
    return read_headers(leased.headers).get(DELIVERY) == Delivery.AT_MOST_ONCE


def slot_of(leased: Leased) -> str:
    """The schedule and the slot of a job, as events name them; empty for all other jobs."""
    if not _names(leased, SLOT):
        return ""
    headers = read_headers(leased.headers)
    try:
        slot = to_datetime(int(headers.get(SLOT, "").partition(":")[2]))
    except (ValueError, OverflowError):
        return ""
    return f"{headers.get(SCHEDULE, '')} {slot.isoformat()}"


def is_first_of_slot(leased: Leased) -> bool:
    """Whether it is the first attempt at a job of a schedule."""
    return not (leased.attempt or leased.lost) and _names(leased, SLOT)


def _names(leased: Leased, header: str) -> bool:
    """Whether the job has the header; a quick look that does not decode them."""
    return isinstance(leased.headers, bytes) and header.encode() in leased.headers


class Notes:
    """Notes of jobs that came from slots. They are for people: if a worker dies, some are lost."""

    def __init__(self, ticks: TickStore | None, clock: Clock, rng: Random) -> None:
        self._ticks = ticks
        self._clock = clock
        self._rng = rng
        self.expected: dict[tuple[JobId, int], TickNote] = {}
        """Notes of settlements that the store has not answered yet."""
        self._ready: list[TickNote] = []
        self._woken = asyncio.Event()
        self._forbidden = False
        """Whether the store said that this worker is not allowed to write notes."""
        self._apart = 0
        """How many of the next ones are written one by one."""

    def ended(self, leased: Leased, settlement: Settlement, ran: float) -> None:
        """A run of the job is over."""
        if self._ticks is None or leased.headers is None or not settlement.state.terminal:
            return
        uid, _, instant = read_headers(leased.headers).get(SLOT, "").partition(":")
        try:
            schedule, slot = bytes.fromhex(uid), int(instant)
        except ValueError:
            return
        if len(schedule) != 16 or not 0 <= slot <= LAST:
            return
        started = self._clock.now() - int(ran * 1e6)
        note = TickNote(schedule, slot, settlement.state.value, max(0, started - leased.run_at), int(ran * 1e6))
        self.expected[settlement.id, settlement.epoch] = note
        if log.isEnabledFor(logging.DEBUG):
            waited, took = note.waited / 1e6, note.ran / 1e6
            log.debug("%s: %s, started %.3f s late, ran %.3f s", shown(slot_of(leased)), note.state, waited, took)

    def answered(self, settlement: Settlement, state: JobState | None) -> None:
        """The store has answered; what it refused is not noted."""
        note = self.expected.pop((settlement.id, settlement.epoch), None)
        if note is not None and state is settlement.state and len(self._ready) < _KEPT:
            self._ready.append(note)
            self._woken.set()

    async def run(self) -> None:
        """Write notes until cancelled."""
        backoff = Backoff(self._rng)
        while self._ticks is not None:
            await self._woken.wait()
            if await self.write():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.pause())

    async def write(self) -> bool:
        """Write the notes that there are; False: the store is away."""
        try:
            while self._ticks is not None and self._ready:
                await self._write(self._ticks)
                self._forbidden = False
        except Unavailable:
            return False
        except ConfigError as error:
            if not self._forbidden:
                log.warning("this worker is not allowed to record how jobs of schedules ended: %s", error)
            self._forbidden = True
            self._ready.clear()
        self._woken.clear()
        return True

    async def _write(self, ticks: TickStore) -> None:
        """Write the next ones together; or, if the store cannot take them, one, which is lost if it is the reason."""
        batch = self._ready[: 1 if self._apart else _BATCH]
        try:
            await ticks.note(batch, self._clock.stamp())
        except (Unavailable, ConfigError):
            raise
        except Exception:
            if len(batch) > 1:
                self._apart = len(batch)
                return
            log.exception("could not record how a job of a schedule ended")
        self._apart = max(0, self._apart - len(batch))
        del self._ready[: len(batch)]
