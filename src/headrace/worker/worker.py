"""The worker: wires the stages together, and takes them down in the right order."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.config import Settings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.core.ids import secret_name
from headrace.core.listener import listen
from headrace.core.names import check_name, worker_name
from headrace.errors import ConfigError, Unavailable
from headrace.keeping.retention import Retention
from headrace.payloads.pack import Packer
from headrace.schedules.planner import IntervalFunction, Planner
from headrace.schedules.tick_notes import Notes
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Hint
from headrace.worker.attempt import Attempts
from headrace.worker.bell import Bell
from headrace.worker.claimer import Claimer
from headrace.worker.handler import Handler
from headrace.worker.helper import Helper
from headrace.worker.judge import Judge
from headrace.worker.leases import Leases
from headrace.worker.lone import LoneClaimer
from headrace.worker.orders import Orders
from headrace.worker.outage import Outage
from headrace.worker.reaper import Reaper
from headrace.worker.renewer import Renewer, RenewerThread
from headrace.worker.runner import Runner
from headrace.worker.settler import Settler
from headrace.worker.stray_watch import StrayWatch
from headrace.worker.strays import Strays
from headrace.worker.trips import Trips

log = logging.getLogger("headrace")

_PARTING = 2.0
"""Seconds that a cancelled worker has to give its jobs back to the store."""
_ALL = sys.maxsize
SCHEDULES = "schedules:all"
"""The topic of changes to schedules."""


class Health(Struct, frozen=True, kw_only=True):
    """Whether the worker does its work, not merely whether its process lives."""

    consuming: bool
    beating: bool
    busy: int
    slots: int
    alive: int
    """Slots that can run jobs: all of them, or some have ended and are about to be started again."""
    strays: int
    """Threads that go on although their jobs were given up on."""
    detail: str

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self.consuming and self.beating and self.alive >= self.slots


class Worker:
    """Claims, runs and settles jobs of some queues until it is told to stop.

    ``run`` returns after a graceful stop: no new claims, buffered jobs back to their place, running jobs finished or,
    past the grace, cancelled and returned without counting an attempt, outcomes stored, the worker off the list. When
    it is cancelled instead, handlers are cancelled at once, and the store has a moment to take everything back.
    """

    def __init__(
        self,
        backend: Backend,
        handlers: Mapping[str, Handler],
        queues: Sequence[str],
        settings: Settings,
        packer: Packer,
        *,
        clock: Clock,
        rng: Random,
        observers: Observers,
        heartbeat_thread: bool = True,
        intervals: Mapping[str, IntervalFunction] | None = None,
        guest: bool = False,
        strays: Strays | None = None,
        helper: Helper | None = None,
        lone: Callable[[], None] | None = None,
    ) -> None:
        if not queues:
            raise ConfigError("a worker needs at least one queue; register a task first, or name the queues")
        self.name = worker_name(settings.worker.name, rng)
        self._settings = settings
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._threaded = heartbeat_thread
        self._guest = guest
        """Whether the upkeep of the store is left to others: schedules, vanished workers, and what has ended."""
        self._helper = helper
        self._lone = lone
        """This worker is itself a helper: called with each job on its last chance that it meets."""
        self._queues = tuple(check_name(queue, "queue") for queue in dict.fromkeys(queues))
        self._stop = asyncio.Event()
        self._started = 0.0
        self._burst = False
        self._planner = (
            None
            if backend.ticks is None or guest
            else Planner(backend.ticks, clock, rng, observers, settings.planner, intervals)
        )
        self._build(handlers, packer, Strays() if strays is None else strays)

    def _build(self, handlers: Mapping[str, Handler], packer: Packer, strays: Strays) -> None:
        worker, holder = self._settings.worker, secret_name(self._rng)
        self._holder = holder
        last_chance = max(worker.max_lost, 1)
        self._leases = Leases(micros(worker.lease) / 1e6, self._clock.elapsed)
        self._notes = Notes(self._backend.ticks, self._clock, self._rng)
        self._bell = bell = Bell()
        self._settler = Settler(self._leases, self._observers, self._notes, bell)
        self._judge = judge = Judge(holder, packer, self._clock, self._rng)
        attempts = Attempts(
            handlers, judge, packer, self._settler, self._leases.entrusted, self._observers, self._clock, holder
        )
        self._runner = Runner(
            attempts, self._leases, self._settler, slots=worker.concurrency, last_chance=last_chance, bell=bell
        )
        self._strays = StrayWatch(
            strays, self._runner, self._observers, bell, worker=self.name, slots=worker.concurrency
        )
        poll = worker.poll_blind if self._backend.hints is None else worker.poll
        make = Claimer if self._lone is None else partial(LoneClaimer, met=self._lone)
        self._claimer = make(
            Claim(holder, self._queues, 0, micros(worker.lease), lost_below=last_chance),
            self._leases,
            self._settler,
            self._runner,
            self._strays,
            bell,
            self._rng,
            slots=worker.concurrency,
            prefetch=worker.prefetch,
            poll=micros(poll) / 1e6,
            helper=self._helper,
        )
        self._orders = Orders(self._leases, self._runner, self._claimer, self._settler, judge)
        self._renewer = Renewer(
            self._leases,
            self._clock,
            self._runner,
            self._orders,
            holder=holder,
            worker=self.name,
            queues=self._queues,
        )
        self._trips = self._make_trips()
        self._make_upkeep()

    def _make_upkeep(self) -> None:
        worker = self._settings.worker
        self._reaper = Reaper(
            self._backend,
            self._clock,
            self._rng,
            self._observers,
            every=micros(worker.reap) / 1e6,
            max_lost=worker.max_lost,
            lease=self._leases.lease,
            holder=self._holder,
            gap=self._renewer.gap,
            claimer=self._claimer,
        )
        self._retention = Retention(
            self._backend,
            self._clock,
            self._rng,
            self._observers,
            self._settings.retention,
            spare=2 * micros(self._settings.patience),
        )

    def _make_trips(self) -> list[Trips]:
        pairs: list[tuple[Settler | None, Claimer | None]]
        if self._backend.finish_and_claim is not None:
            # Of two claims at once, either may get the earlier jobs; a single slot runs them strictly in order.
            count = self._backend.limits.trips if self._settings.worker.concurrency > 1 else 1
            pairs = [(self._settler, self._claimer)] * count
        else:
            pairs = [(self._settler, None), (None, self._claimer)]
        make = partial(
            Trips,
            self._backend,
            self._clock,
            self._rng,
            self._observers,
            Outage(self._observers),
            judge=self._judge,
            renewer=self._renewer,
            bell=self._bell,
            lease=self._leases.lease,
        )
        trips = [make(settler=settler, claimer=claimer) for settler, claimer in pairs]
        if self._backend.tx is not None:
            trips.append(make(settler=self._settler, claimer=None, apart=True))
        return trips

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it claims from."""
        return self._queues

    def stop(self) -> None:
        """Ask for a graceful stop; ``run`` returns when it is done."""
        self._stop.set()

    def health(self) -> Health:
        """Whether claims and heartbeats get through to the store, and all slots are up."""
        now = asyncio.get_running_loop().time()
        patience = max(3 * micros(self._settings.worker.poll) / 1e6, 5.0)
        claims = max(self._started, *(trips.beat for trips in self._trips))
        beats = max(self._started, self._renewer.beat)
        full = self._runner.busy >= self._settings.worker.concurrency
        consuming = not self._strays.stuck and (full or self._claimer.holding_back or now - claims <= patience)
        away = self._renewer.away
        beating = not away and now - beats <= max(self._leases.lease / 2, 1.0)
        slots, alive = self._settings.worker.concurrency, self._runner.alive
        problems = []
        if self._strays.stuck:
            problems.append(f"{self._strays}; nothing is claimed until some of them end")
        elif not consuming:
            problems.append("no claim got through")
        if not beating:
            problems.append(f"no heartbeat got through: {away}" if away else "no heartbeat")
        if alive < slots:
            problems.append(f"{slots - alive} of {slots} slots are down, and will be started again")
        return Health(
            consuming=consuming,
            beating=beating,
            busy=self._runner.busy,
            slots=slots,
            alive=alive,
            strays=len(self._strays),
            detail="; ".join(problems) or (f"ok; {self._strays}" if len(self._strays) else "ok"),
        )

    async def run(self, *, burst: bool = False) -> None:
        """Work until ``stop``; with ``burst``, until nothing is due any more."""
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        self._loop = loop
        self._burst = self._claimer.burst = burst
        self._runner.start()
        self._orders.start()
        self._observers.tell(Event(EventKind.WORKER_STARTED, worker=self.name, detail=", ".join(self._queues)))
        if burst and self._planner is not None:
            await self._planner.look()
        thread = RenewerThread(self._renewer, self._backend) if self._threaded else None
        if thread:
            thread.start()
        try:
            async with asyncio.TaskGroup() as group:
                beat = (
                    None if thread else group.create_task(self._renewer.run(self._backend), name="headrace-heartbeat")
                )
                trips = [group.create_task(one.run(), name="headrace-trips") for one in self._trips]
                duties = [group.create_task(self._notes.run(), name="headrace-notes")]
                if not self._guest:
                    duties.append(group.create_task(self._reaper.run(at_once=burst), name="headrace-reaper"))
                    duties.append(group.create_task(self._retention.run(), name="headrace-retention"))
                if self._planner is not None:
                    duties.append(group.create_task(self._planner.run(), name="headrace-planner"))
                if self._backend.hints is not None:
                    topics = [*(f"queue:{queue}" for queue in self._queues), f"holder:{self._holder}"]
                    if self._planner is not None:
                        topics.append(SCHEDULES)
                    hearing = listen(self._backend.hints, topics, self._hear, self._rng, self._look)
                    duties.append(group.create_task(hearing, name="headrace-listener"))
                await self._until_stopped()
                for duty in duties:
                    duty.cancel()
                await self._wind_down()
                for one in trips:
                    one.cancel()
                if beat:
                    self._renewer.stop()
                    await beat
        except (Exception, asyncio.CancelledError) as error:
            self._claimer.close()
            self._runner.give_back()
            await self._runner.close()
            await self._leave_behind()
            raise _cause(error) from None
        finally:
            self._claimer.close()
            await self._orders.close()
            await self._runner.close()
            if thread:
                await thread.stop()
            self._observers.tell(Event(EventKind.WORKER_STOPPED, worker=self.name))

    async def _until_stopped(self) -> None:
        await self._until(self._claimer.empty if self._burst else None)
        if not self._guest:
            await self._inherit()

    async def _until(self, event: asyncio.Event | None, seconds: float | None = None) -> None:
        """Until it is told to stop, something has come about, or the time is over."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._stop, event) if one is not None]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _inherit(self) -> None:
        """Nothing is due. If leases have run out and no other worker takes those jobs back, stay until this worker may
        do so, for one lease at most, and run them too."""
        until = self._loop.time() + self._leases.lease
        pause = self._leases.lease / 12
        while not self._stop.is_set():
            try:
                over = (await self._backend.renew(self._renewer.census(), self._clock.stamp())).overdue
                taken = await self._reaper.reap(at_once=True) if over else 0
            except Unavailable as error:
                log.warning("looking for leases that have run out: %s", error)
                over, taken = True, 0
            if taken or not self._claimer.empty.is_set():
                await self._until(self._claimer.empty)
            elif not over or self._loop.time() >= until:
                return
            else:
                await self._until(None, pause)

    async def _wind_down(self) -> None:
        """Claim nothing more, wait for a claim that is under way, give back what waits, finish what runs."""
        self._claimer.close()
        grace = micros(self._settings.worker.grace) / 1e6
        deadline = self._loop.time() + grace
        try:
            async with asyncio.timeout(grace):
                await self._claimer.landed()
        except TimeoutError:
            log.warning("a claim is still under way; what it brings comes back when its lease runs out")
        self._runner.give_back()
        await self._runner.drain(max(0.0, deadline - self._loop.time()))
        self._bell.ring()
        try:
            async with asyncio.timeout(self._leases.lease):
                await self._settler.quiet.wait()
        except TimeoutError:
            log.error("%d outcomes could not be stored before their leases ran out", len(self._settler))
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                await self._notes.write()

    async def _leave_behind(self) -> None:
        """Broken off: store the outcomes that are there, give back everything else; or leave it to the leases' end.
        What waits for handlers' own transactions comes last."""
        outcomes, apart = self._settler.take(_ALL), self._settler.take_apart(_ALL)
        done = {(settlement.id, settlement.epoch) for settlement in outcomes}
        for lease in self._leases.held():
            if lease not in done and lease not in self._leases.entrusted:
                self._settler.add(self._judge.give_back(*lease))
        outcomes += self._settler.take(_ALL)
        most = self._backend.limits.max_batch
        try:
            async with asyncio.timeout(_PARTING):
                for left in (outcomes, apart):
                    while batch := left[:most]:
                        self._settler.answered(batch, await self._backend.finish(batch, self._clock.stamp()))
                        del left[:most]
        except Exception as error:
            lost = len(outcomes) + len(apart)
            log.warning("%d jobs come back when their leases run out: %s", lost, str(error) or "no answer")

    # -- hints

    def _look(self) -> None:
        """Hints are heard from now on; whatever was hinted at before is to be looked for."""
        self._claimer.wake()
        self._renewer.hurry()
        if self._planner is not None:
            self._planner.wake()

    def _hear(self, hint: Hint) -> None:
        if hint.topic.startswith("queue:"):
            self._claimer.wake()
        elif hint.topic == SCHEDULES and self._planner is not None:
            self._planner.wake()
        else:
            self._renewer.hurry()


def _cause(error: BaseException) -> BaseException:
    """The error by itself, where it comes alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
