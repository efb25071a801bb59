"""How many jobs a worker asks for, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.seam.records import Claim, Claimed, Leased
from headrace.worker.consumer import Consumer
from headrace.worker.helper import Helper
from headrace.worker.kit import Kit
from headrace.worker.stray_watch import StrayWatch

Deliver = Callable[[list[Leased]], None]
"""Takes what was claimed to the consumer."""

_HORIZON = 0.05
"""Seconds of work that may wait in the buffer: enough to last for a trip, too little to keep jobs from others."""
_SMOOTHING = 0.3
_INSTANT = 0.001
_RETRY_PAUSE = 0.005
"""Seconds until another claim when a due job was locked by another claim; doubled each time."""


class Claimer:
    """Asks for jobs while there is room for them, and sleeps while there are none.

    A worker may hold ``slots`` jobs, those that fill up the batches of its batch tasks, and as many more as it finishes
    in 50 ms: a fast worker claims hundreds at once, a slow one no more than it can run. After a claim that brought
    fewer jobs than asked for, it sleeps until a hint comes, the next job is due, or the poll interval ends. If a due
    job was locked by another claim, it sleeps only for a few milliseconds.

    A job on its last chance is claimed when this worker holds no other: if the worker dies again, it is certain which
    job did it. All other workers pass such a job over, and the store chooses one of them for it. The chosen worker
    starts its helper, a process for such jobs, and goes on. Without a helper it makes room: it claims nothing until it
    holds nothing. So does a worker that holds nothing anyway. While it has room, it takes all such jobs, one by one.
    """

    def __init__(
        self,
        kit: Kit,
        want: frozenset[str] | None,
        consumer: Consumer,
        *,
        slots: int,
        prefetch: int,
        strays: StrayWatch | None = None,
        companions: Callable[[], int] = int,
        helper: Helper | None = None,
        deliver: Deliver | None = None,
        most: Callable[[], int] | None = None,
    ) -> None:
        """``want``: the sections that jobs come with; None: all. ``most``: how many jobs a claim may ask for, for the
        sake of what their sections weigh once they are loaded."""
        self._request, self._poll = kit.request(want), kit.poll
        self._leases, self._settler, self._bell, self._rng = kit.leases, kit.settler, kit.bell, kit.rng
        self._slots = slots
        self._prefetch = prefetch
        self._consumer = consumer
        self._deliver = deliver or consumer.deliver
        self._most = most
        self._companions = companions
        self._strays = strays
        self._helper = helper
        self._per_second = 0.0
        self._last_count = 0
        self._last_time = 0.0
        self._first = 0
        self._hungry = True
        self._heard = False
        """Whether a wake-up came while a claim was under way. The claim may have looked too early."""
        self._timer: asyncio.TimerHandle | None = None
        self.open = True
        """False: nothing is claimed."""
        self.empty = asyncio.Event()
        """Set when a claim brought fewer jobs than asked for, and no job was held that could make another one due."""
        self._others_held = 0
        self._retry_pause = _RETRY_PAUSE
        self.asking = 0
        """Jobs asked for by claims that are under way."""
        self._under_way: set[asyncio.Future[None]] = set()
        self.burst = False
        """Whether to claim again when nothing is held any more: a settlement may have made another job due."""
        self._settled_before = 0
        """Settlements that the store had answered when the last claim was sent."""
        self._making_room = False
        """Whether it claims nothing until it holds nothing, and then one job on its last chance."""
        self._claims_alone = False
        """Whether a claim of that one job is under way."""
        self._room_timer: asyncio.TimerHandle | None = None
        self._no_room_before = 0.0

    @property
    def holding_back(self) -> bool:
        """Whether it claims nothing on purpose, for the sake of a job on its last chance."""
        return self._making_room or self._consumer.alone

    @property
    def _stuck(self) -> bool:
        return self._strays is not None and self._strays.stuck

    def want(self) -> int:
        """How many jobs to ask for right now. Jobs that are being settled no longer count, jobs asked for already
        do."""
        if self.burst and not (self._hungry or len(self._leases) or self._settler.settled == self._settled_before):
            self._hungry = True
            self._disarm()
        if not (self.open and self._hungry) or self._consumer.alone or self._stuck:
            return 0
        if self._making_room:
            return 0 if len(self._leases) or self.asking or self._consumer.busy else 1
        room = self._slots + min(self._prefetch, int(self._per_second * _HORIZON)) + self._companions()
        return self._bounded(max(0, room + self._settler.under_way - len(self._leases) - self.asking))

    def _bounded(self, wanted: int) -> int:
        return wanted if self._most is None else min(wanted, self._most())

    def depart(self, asked: int) -> asyncio.Future[None]:
        """A claim for ``asked`` jobs is under way, until ``arrive``."""
        claim: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(claim)
        self.asking += asked
        return claim

    def arrive(self, claim: asyncio.Future[None], asked: int) -> None:
        """The claim was answered, or has failed."""
        self.asking -= asked
        self._under_way.discard(claim)
        claim.set_result(None)

    async def all_answered(self) -> None:
        """Return when every claim that is under way now was answered."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def request(self, limit: int, settling: int) -> Claim:
        """The claim for ``limit`` jobs, on a trip that settles ``settling`` others."""
        given = self._request
        self._others_held = len(self._leases) - settling
        self._heard = False
        self._settled_before = self._settler.settled
        self._claims_alone = self._making_room
        if self._claims_alone:
            self._disarm_room()  # its answer decides; until then there is no other claim
        lost_below = None if self._claims_alone else given.lost_below
        return Claim(given.holder, self._rotated_queues(), limit, given.lease_for, given.want, lost_below)

    def _rotated_queues(self) -> tuple[str, ...]:
        """The queues, rotated by one each time, so that each of them comes first equally often."""
        queues = self._request.queues
        self._first = (self._first + 1) % len(queues)
        return queues[self._first :] + queues[: self._first]

    def wake(self) -> None:
        """There may be something to claim."""
        self._heard = True
        if not self._hungry:
            self._hungry = True
            self._disarm()
        self.empty.clear()
        self._bell.ring()

    def got(self, claimed: Claimed, asked: int, sent_at: float, since: float) -> None:
        """A claim was answered; its leases count from ``since``."""
        if claimed.jobs:
            self._retry_pause = _RETRY_PAUSE
            self._measure(asyncio.get_running_loop().time())
            self._leases.grant(claimed.jobs, since)
            self._deliver(claimed.jobs)
        if not self.open:
            return
        if self._claims_alone:
            self._claims_alone = False
            self._making_room = self._is_last_chance(claimed.jobs)  # if so, there is room for another
        elif claimed.passed_over:
            self._serve_last_chance(claimed, sent_at)
        if len(claimed.jobs) == asked:
            self._hungry = True
        elif not (claimed.expired or self._heard or self._making_room):
            self._hungry = False
            due = claimed.next_in == 0
            self._sleep(self._pause(claimed, due=due))
            if self._idle and not due:
                self.empty.set()

    def close(self) -> None:
        """Claim nothing more."""
        self.open = False
        self._disarm()
        self._stop_making_room()

    @property
    def _idle(self) -> bool:
        """Whether this worker holds nothing, and has asked for nothing."""
        return not (self._others_held or self.asking or len(self._leases))

    def _serve_last_chance(self, claimed: Claimed, sent_at: float) -> None:
        """A job on its last chance was passed over: start the helper, or make room for the job."""
        if self._helper is not None and self._helper.useful:
            if claimed.chosen:
                self._helper.start()
        elif self._idle or (claimed.chosen and sent_at >= self._no_room_before):
            self._make_room()

    def _make_room(self) -> None:
        """Claim nothing until all jobs that this worker holds have ended, for one lease at most: a long job must not
        keep all other slots idle."""
        if not self._making_room:
            self._making_room = True
            self._room_timer = asyncio.get_running_loop().call_later(self._leases.lease, self._give_up_room)

    def _is_last_chance(self, jobs: list[Leased]) -> bool:
        bound = self._request.lost_below
        return bool(jobs) and bound is not None and jobs[0].lost >= bound

    def _give_up_room(self) -> None:
        self._stop_making_room()
        self._no_room_before = asyncio.get_running_loop().time() + self._leases.lease
        self.wake()

    def _stop_making_room(self) -> None:
        self._making_room = False
        self._disarm_room()

    def _disarm_room(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None

    def _measure(self, now: float) -> None:
        """Measure how many jobs end per second. Several trips may be answered at once: too short an interval does not
        count."""
        ended = self._settler.settled + len(self._settler)
        if now >= self._last_time + _INSTANT:
            rate = (ended - self._last_count) / (now - self._last_time)
            self._per_second += _SMOOTHING * (rate - self._per_second)
            self._last_count, self._last_time = ended, now

    def _pause(self, claimed: Claimed, *, due: bool) -> float:
        """Seconds until the next look, if no hint comes first."""
        poll = self._poll * (0.75 + self._rng.random() / 2)
        if due and not claimed.jobs:
            pause, self._retry_pause = self._retry_pause, min(2 * self._retry_pause, self._poll)
            return min(poll, pause)
        self._retry_pause = _RETRY_PAUSE
        if claimed.next_in is None:
            return poll
        return min(poll, claimed.next_in / 1e6)

    def _sleep(self, pause: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(pause, self.wake)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
