"""The exchange between a consumer of jobs and the store: claims, settlements and beats."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial

from headrace.core.listener import listen
from headrace.keeping.hard_bounds import HardBounds
from headrace.seam.records import Hint
from headrace.worker.claimer import Claimer
from headrace.worker.consumer import Consumer
from headrace.worker.kit import Kit
from headrace.worker.loader import Loader, Sections
from headrace.worker.orders import Orders
from headrace.worker.renewer import Renewer, RenewerThread
from headrace.worker.settler import Settler
from headrace.worker.trips import Refuse, Trips

log = logging.getLogger("headrace")

_TIME_TO_GIVE_BACK = 2.0
"""Seconds that a cancelled consumer has to give its jobs back."""
_ALL = sys.maxsize
_STALLED = 3.0
"""Seconds after which a trip counts as stalled: without an answer, or without a look at what there is to carry."""


class Exchange(Kit):
    """Everything that workers and pulls do alike: they hold leases, renew them from a thread of its own, and carry
    settlements to the store and jobs back. What happens to a job in between is up to the consumer.

    It is made in two steps, as the consumer needs the first half: the kit, and ``attach`` with the consumer and its
    claimer.
    """

    started = 0.0
    """When it was started, by the loop's clock."""
    _thread: RenewerThread | None = None
    _beat: asyncio.Task[None] | None = None
    _carrying: Sequence[asyncio.Task[None]] = ()
    _nudged: float | None = None
    """The first nudge that has not moved all trips, or the last one, by the loop's clock."""

    # -- putting it together

    def loader(self, consumer: Consumer, sections: Sections, *, together: bool = False) -> Loader | None:
        """The stage before the consumer that loads sections, if there is an object store. ``sections``: which of them
        jobs of a task come with. ``together``: jobs of one claim stay together."""
        if self.stowage is None:
            return None
        return Loader(self, self.stowage, consumer, sections, together=together)

    def attach(
        self,
        consumer: Consumer,
        claimer: Claimer,
        *,
        trips: int | None = None,
        refuse: Refuse,
        room: HardBounds | None = None,
    ) -> None:
        """The consumer and its claimer. ``trips``: how many at once at most, if that matters. ``refuse``: what follows
        when the store rejects a settlement. ``room``: keeps what has ended within its bounds."""
        self.claimer = claimer
        self._orders = Orders(self, consumer, claimer)
        self.renewer = Renewer(self, consumer, self._orders)
        self._room = room
        self.trips = self._make_trips(self.backend.limits.trips if trips is None else trips, refuse, room)

    def _make_trips(self, count: int, refuse: Refuse, room: HardBounds | None) -> list[Trips]:
        pairs: list[tuple[Settler | None, Claimer | None]]
        if self.backend.finish_and_claim is not None:
            pairs = [(self.settler, self.claimer)] * count
        else:
            pairs = [(self.settler, None), (None, self.claimer)]
        stowage = self.stowage
        stow = None if stowage is None else partial(stowage.stow_settlements, leased=self.leases.job)
        make = partial(Trips, self, refuse=refuse, renewer=self.renewer, stow=stow, room=room)
        trips = [make(settler=settler, claimer=claimer) for settler, claimer in pairs]
        if self.backend.tx is not None:
            trips.append(make(settler=self.settler, claimer=None, apart=True, room=None))
        return trips

    # -- running

    def start(self) -> None:
        """Beat, from a thread if there is to be one. Called on the consumer's loop."""
        self.started = asyncio.get_running_loop().time()
        self._orders.start()
        self.sender.start()
        self._thread = RenewerThread(self.renewer, self.backend) if self.heartbeat_thread else None
        if self._thread:
            self._thread.start()

    def carry(self, group: asyncio.TaskGroup) -> None:
        """Make trips, until ``rest``."""
        if self._thread is None:
            self._beat = group.create_task(self.renewer.run(self.backend), name="headrace-heartbeat")
        self._carrying = [group.create_task(one.run(), name="headrace-trips") for one in self.trips]

    async def rest(self) -> None:
        """No more trips."""
        for one in self._carrying:
            one.cancel()
        if self._beat is not None:
            self.renewer.stop()
            await self._beat
        if self._room is not None:
            await self._room.note()

    async def close(self) -> None:
        """Carry out no more orders, and send no more parts."""
        await self._orders.close()
        await self.sender.close()

    async def sign_off(self) -> None:
        """Take the holder off the list, and end the thread."""
        if self._thread is not None:
            await self._thread.stop()

    async def hear(self, more: Sequence[str], heard: Callable[[Hint], None], ready: Callable[[], None]) -> None:
        """Listen for hints until cancelled, also to ``more`` topics: the consumer hears of those."""
        if self.backend.hints is None:
            return

        def hear(hint: Hint) -> None:
            if hint.topic.startswith("queue:"):
                self.claimer.wake()
            elif hint.topic.startswith("holder:"):
                self.renewer.hurry()
            else:
                heard(hint)

        def look() -> None:
            """Hints are heard from now on. Earlier ones were missed, so look for everything."""
            self.claimer.wake()
            self.renewer.hurry()
            ready()

        topics = [*(f"queue:{queue}" for queue in self.queues), f"holder:{self.holder}", *more]
        await listen(self.backend.hints, topics, hear, self.rng, look)

    # -- health

    @property
    def claims(self) -> float:
        """When a trip last got through, by the loop's clock."""
        return max(self.started, *(trips.beat for trips in self.trips))

    def stalled(self, now: float) -> bool:
        """Whether the store has owed an answer for long, or a nudge moved nobody. What waits for handlers' own
        transactions does not count."""
        asking = [one.asking_since for one in self.trips if one.asking_since is not None and not one.apart]
        return any(now - since > _STALLED for since in asking) or self._stand_still(now)

    def nudge(self) -> None:
        """Trips are to show that they still turn. Called on the consumer's loop, again and again while somebody asks
        for health."""
        if self._nudged is None or not self._unmoved(self._nudged):
            self._nudged = asyncio.get_running_loop().time()
        self.bell.ring()

    def _stand_still(self, now: float) -> bool:
        return self._nudged is not None and now - self._nudged > _STALLED and self._unmoved(self._nudged)

    def _unmoved(self, nudged: float) -> bool:
        """Whether a trip to which the store owes nothing has not turned since then."""
        return any(one.turned < nudged and one.asking_since is None and not one.apart for one in self.trips)

    def beating(self, now: float) -> bool:
        """Whether beats get through."""
        beats = max(self.started, self.renewer.beat)
        return not self.renewer.away and now - beats <= self.renewer.longest

    @property
    def silence(self) -> str:
        """Why no beat gets through, in words."""
        return f"no heartbeat got through: {self.renewer.away}" if self.renewer.away else "no heartbeat"

    # -- the end

    async def all_claimed(self, seconds: float) -> None:
        """Return when all claims that are under way were answered, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self.claimer.all_answered()
        except TimeoutError:
            log.warning("a claim was not answered before the stop; its jobs run again when their leases have run out")

    async def all_settled(self) -> None:
        """Return when the store has answered all settlements, or their leases are over."""
        self.bell.ring()
        try:
            async with asyncio.timeout(self.leases.lease):
                await self.settler.quiet.wait()
        except TimeoutError:
            log.error("%d outcomes could not be stored before their leases ran out", len(self.settler))

    async def write_notes(self) -> None:
        """Write down what schedules are still to learn of their jobs."""
        try:
            async with asyncio.timeout(_TIME_TO_GIVE_BACK):
                await self.notes.write()
        except TimeoutError:
            log.info("how some jobs of schedules ended could not be noted in time")

    async def give_everything_back(self) -> None:
        """The consumer was cancelled: store the outcomes that are there, and give back all other jobs. What cannot be
        stored in time runs again when its lease has run out. What waits for handlers' own transactions comes last."""
        outcomes, apart = self.settler.take(_ALL), self.settler.take_apart(_ALL)
        done = {(settlement.id, settlement.epoch) for settlement in outcomes}
        for lease in self.leases.held():
            if lease not in done and lease not in self.leases.entrusted:
                self.settler.add(self.judge.release(*lease))
        outcomes += self.settler.take(_ALL)
        most = self.backend.limits.max_batch
        try:
            async with asyncio.timeout(_TIME_TO_GIVE_BACK):
                for left in (outcomes, apart):
                    while batch := left[:most]:
                        self.settler.answered(batch, await self.backend.finish(batch, self.clock.stamp()))
                        del left[:most]
        except Exception as error:
            lost = len(outcomes) + len(apart)
            log.warning(
                "%d jobs could not be given back; they run again when their leases have run out: %s",
                lost,
                str(error) or "no answer",
            )


def cause(error: BaseException) -> BaseException:
    """The error itself, if it is alone in its group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
