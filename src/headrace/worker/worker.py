"""The worker: puts its parts together, and stops them in the right order."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.core.durations import micros
from headrace.core.events import Event, EventKind
from headrace.errors import Unavailable
from headrace.schedules.planner import IntervalFunction
from headrace.seam.records import Settlement
from headrace.tracking.planner import MakeRow
from headrace.worker.attempt import Attempts
from headrace.worker.claimer import Claimer
from headrace.worker.duties import Duties, retention_of
from headrace.worker.exchange import Exchange, cause
from headrace.worker.handler import Handler, sections_of, wanted
from headrace.worker.health import Health
from headrace.worker.helper import Helped, Helper
from headrace.worker.helper_claimer import HelperClaimer
from headrace.worker.job_fields import add_job_fields
from headrace.worker.runner import Runner
from headrace.worker.stray_watch import StrayWatch
from headrace.worker.strays import Strays

log = logging.getLogger("headrace")


class Worker:
    """Claims, runs and settles jobs of some queues until it is told to stop.

    ``run`` returns after a graceful stop. The worker claims nothing more, and gives buffered jobs back. Running jobs
    have the grace time to end; then they are cancelled and given back, and no attempt counts. Outcomes are stored, and
    the worker is taken off the list. If ``run`` is cancelled instead, handlers are cancelled at once, and the store has
    two seconds to take everything back."""

    def __init__(
        self,
        exchange: Exchange,
        handlers: Mapping[str, Handler],
        *,
        intervals: Mapping[str, IntervalFunction] | None = None,
        trackers: Mapping[str, MakeRow] | None = None,
        guest: bool = False,
        strays: Strays | None = None,
        helper: Helper | None = None,
        helped: Helped | None = None,
    ) -> None:
        self._exchange = exchange
        self.name = exchange.name
        self._settings = settings = exchange.settings
        self._observers = exchange.observers
        self._guest = guest
        """Whether it leaves the duties to other workers."""
        self._stop = asyncio.Event()
        self._burst = False
        self._runner = Runner(Attempts(handlers, exchange), exchange)
        self._strays = StrayWatch(Strays() if strays is None else strays, self._runner, exchange)
        self._loader = exchange.loader(self._runner, partial(sections_of, handlers))
        self._claimer = self._make_claimer(handlers, helper, helped)
        # Of two claims at once, either may get the earlier jobs. A single slot must run them strictly in order.
        retention = retention_of(exchange)
        exchange.attach(
            self._runner,
            self._claimer,
            trips=None if settings.worker.concurrency > 1 else 1,
            refuse=self._refused,
            room=retention.between(exchange.leases.job),
        )
        self._trips = exchange.trips
        self._duties = Duties(exchange, retention, guest=guest, intervals=intervals, trackers=trackers)

    def _make_claimer(self, handlers: Mapping[str, Handler], helper: Helper | None, helped: Helped | None) -> Claimer:
        make = Claimer if helped is None else partial(HelperClaimer, helped=helped)
        worker = self._settings.worker
        return make(
            self._exchange,
            wanted(handlers.values()),
            self._runner,
            slots=worker.concurrency,
            prefetch=worker.prefetch,
            strays=self._strays,
            companions=self._runner.companions,
            helper=helper,
            deliver=None if self._loader is None else self._loader.deliver,
            most=self._most,
        )

    def _most(self) -> int:
        """How many jobs a claim may ask for, for the sake of what their sections weigh."""
        if self._exchange.leases.full:
            return 0
        return sys.maxsize if self._loader is None else self._loader.most()

    def _refused(self, settlement: Settlement, error: Exception) -> Settlement:
        """The store rejects an outcome: the job fails instead."""
        failure = self._exchange.judge.refused(settlement, error)
        self._exchange.settler.refused(failure, error)
        return failure

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it claims from."""
        return self._exchange.queues

    def stop(self) -> None:
        """Ask for a graceful stop; ``run`` returns when it is done."""
        self._stop.set()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a handler is running in this task."""
        return self._runner.runs(task)

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to stop."""
        return self._stop.is_set()

    @property
    def running(self) -> bool:
        """Whether it has started, and a beat got through."""
        return bool(self._exchange.renewer.beat)

    @property
    def busy(self) -> int:
        """Jobs that run right now."""
        return self._runner.busy

    def quicken(self, seconds: float) -> None:
        """Beat at least this often, so that ``health`` tells of a store that cannot be written to within seconds."""
        self._exchange.renewer.quicken(seconds)

    def nudge(self) -> None:
        """Let the worker show that it still goes on claiming, so that ``health`` tells within seconds when it does not.
        Callable from any thread."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._exchange.nudge)

    def health(self, now: float | None = None) -> Health:
        """Whether claims and heartbeats get through to the store, and all slots are up. With ``now``, an instant of
        ``time.monotonic``, it can be asked from another thread, even while the worker's loop is blocked."""
        now, exchange = asyncio.get_running_loop().time() if now is None else now, self._exchange
        longest = max(3 * micros(self._settings.worker.poll) / 1e6, 5.0)
        full = self._runner.busy >= self._settings.worker.concurrency
        waits = full or self._claimer.holding_back or now - exchange.claims <= longest
        consuming = waits and not (exchange.stalled(now) or self._strays.stuck)
        beating = exchange.beating(now)
        slots, alive = self._settings.worker.concurrency, self._runner.alive
        problems = []
        if self._strays.stuck:
            problems.append(f"{self._strays}; nothing is claimed until some of them end")
        elif not consuming:
            problems.append("no claim got through")
        if not beating:
            problems.append(exchange.silence)
        if self._loader is not None and self._loader.away:
            problems.append(f"jobs wait for sections that cannot be loaded: {self._loader.away}")
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
        self._loop = asyncio.get_running_loop()
        self._burst = self._claimer.burst = burst
        exchange, planner = self._exchange, self._duties.planner
        add_job_fields()
        self._runner.start()
        self._observers.tell(Event(EventKind.WORKER_STARTED, worker=self.name, detail=", ".join(self.queues)))
        if burst and planner is not None:
            await planner.look()
        if burst and self._duties.tracks is not None:
            await self._duties.tracks.look()
        await self._duties.prepare()
        exchange.start()
        try:
            await self._duties.beside(self._until_stopped, self._wind_down, at_once=burst)
        except (Exception, asyncio.CancelledError) as error:
            await self._take_no_more()
            self._runner.give_back()
            await self._runner.close()
            await exchange.give_everything_back()
            raise cause(error) from None
        finally:
            await self._take_no_more()
            await exchange.close()
            await self._runner.close()
            await exchange.sign_off()
            self._observers.tell(Event(EventKind.WORKER_STOPPED, worker=self.name))

    async def _take_no_more(self) -> None:
        self._claimer.close()
        if self._loader is not None:
            await self._loader.close()

    async def _until_stopped(self) -> None:
        await self._until(self._claimer.empty if self._burst else None)
        if await self._duties.reaper.is_needed():
            await self._reap_the_rest()

    async def _until(self, event: asyncio.Event | None, seconds: float | None = None) -> None:
        """Wait until the worker is told to stop, the event is set, or the time is over."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._stop, event) if one is not None]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _reap_the_rest(self) -> None:
        """Nothing is due. If leases have run out and no other worker reaps them, stay until this worker may do so, for
        one lease at most, and run those jobs too."""
        exchange = self._exchange
        until = self._loop.time() + exchange.leases.lease
        pause = exchange.leases.lease / 12
        while not self._stop.is_set():
            try:
                over = (await exchange.backend.renew(exchange.renewer.census(), exchange.clock.stamp())).overdue
                taken = await self._duties.reaper.reap(at_once=True) if over else 0
            except Unavailable as error:
                log.warning("cannot look for leases that have run out; it is tried again: %s", error)
                over, taken = True, 0
            if taken or not self._claimer.empty.is_set():
                await self._until(self._claimer.empty)
            elif not over or self._loop.time() >= until:
                return
            else:
                await self._until(None, pause)

    async def _wind_down(self) -> None:
        """Claim nothing more, wait for claims that are under way, give back buffered jobs, let running jobs end."""
        self._claimer.close()
        grace = micros(self._settings.worker.grace) / 1e6
        deadline = self._loop.time() + grace
        await self._exchange.all_claimed(grace)
        await self._take_no_more()
        self._runner.give_back()
        await self._runner.drain(max(0.0, deadline - self._loop.time()))
        await self._exchange.all_settled()
        await self._exchange.write_notes()
