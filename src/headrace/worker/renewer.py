"""The stage that keeps leases: one heartbeat for the whole process, from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from functools import partial

from headrace.core.clock import Clock
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, JobId, Renewed
from headrace.worker.leases import Leases
from headrace.worker.orders import Orders
from headrace.worker.runner import Runner

log = logging.getLogger("headrace")

_BEATS_PER_LEASE = 6
_AT_WORK = 10
"""Leases that a fleet must have been at work before an absence of all of it is nobody's fault."""
_PATIENCE = 1.0
"""Seconds that an answer may take, however short the lease is: one that is given up too soon never comes."""


class Renewer:
    """Beats six times per lease, renewing leases past half their life; a quick job is never renewed at all.

    A store that is away, or has not answered when the next beat is due, is asked again:
    leases are judged by the store, never by ignorance.
    """

    def __init__(
        self,
        leases: Leases,
        clock: Clock,
        runner: Runner,
        orders: Orders,
        *,
        holder: str,
        worker: str,
        queues: tuple[str, ...],
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._holder = holder
        self._worker = worker
        self._queues = queues
        self._runner = runner
        self._orders = orders
        self._doubtful: list[tuple[JobId, int]] = []
        self._every = leases.lease / _BEATS_PER_LEASE
        self.patience = max(self._every, _PATIENCE)
        """Seconds that the store has to answer."""
        self._soon: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.home: asyncio.AbstractEventLoop | None = None
        """The worker's loop, if the heartbeat has another."""
        self.beat = 0.0
        """When the store last answered a heartbeat, by the loop's clock."""
        self.away = ""
        """Why the last heartbeat did not get through; empty if it did."""
        self._census_until = -math.inf
        """Until when every beat asks what this holder holds."""

    async def run(self, backend: Backend) -> None:
        """Beat until ``stop``; then take the worker off the list."""
        self._loop = asyncio.get_running_loop()
        self._soon = asyncio.Event()
        while not self._stopping:
            next_beat = self._loop.time() + self._every
            await self._renew(backend)
            try:
                async with asyncio.timeout_at(next_beat):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
        await self._leave(backend)

    @property
    def gap(self) -> float:
        """Seconds between two beats beyond which the store may have stood still for others too. A lease that is
        renewed lasts for at least a third of its length when it is."""
        return max(self._leases.lease / 4, _PATIENCE)

    def doubt(self) -> None:
        """A claim may have brought leases that nobody here knows of: ask for them, until they would have run out."""
        self._census_until = self._leases.now() + self._leases.lease + self._every

    def hurry(self) -> None:
        """Beat now; callable from any thread."""
        if self._loop is not None and self._soon is not None:
            try:
                self._loop.call_soon_threadsafe(self._soon.set)
            except RuntimeError:  # the heartbeat's loop has ended already
                return

    def stop(self) -> None:
        """Stop beating; callable from any thread."""
        self._stopping = True
        self.hurry()

    async def _renew(self, backend: Backend) -> None:
        now, since = asyncio.get_running_loop().time(), self._leases.now()
        leases = self._leases.aging(since)
        beat = self._beat(leases)
        try:
            renewed = await self._ask(backend, beat)
        except (Unavailable, TimeoutError) as error:
            if beat.census:
                self.doubt()
            self.missed(error)
            log.warning("heartbeat: %s", self.away)
            return
        if beat.census and renewed.doubtful:
            self.doubt()
        self.away, self.beat = "", now
        not_renewed = {*renewed.lost, *renewed.busy}
        kept = [lease for lease in leases if lease not in not_renewed]
        for job in self._leases.renewed(kept, since):
            self._call_home(partial(self._orders.warn, job))
        if self._doubtful:
            busy = {*renewed.busy}
            self._doubtful = [lease for lease in self._doubtful if lease in busy]
            self._call_home(partial(self._orders.doubt, kept, doubtful=False))
        self._orders.hear(renewed)

    def missed(self, error: Exception) -> None:
        """A beat did not get through."""
        self.away = str(error) or f"no answer in {self.patience:.3g} s"
        self._doubtful = self._leases.in_doubt(self._leases.now())
        self._call_home(partial(self._orders.doubt, self._doubtful, doubtful=True))

    def _call_home(self, call: Callable[[], None]) -> None:
        """Have it called on the worker's loop."""
        if self.home is None:
            call()
            return
        try:
            self.home.call_soon_threadsafe(call)
        except RuntimeError:  # the worker's loop has ended already
            return

    async def _leave(self, backend: Backend) -> None:
        beat = Beat(self._holder, self._worker, self._queues, self._lease_micros, leaving=True)
        try:
            await self._ask(backend, beat)
        except (Unavailable, TimeoutError):
            log.info("could not sign off; the worker's entry expires by itself")

    async def _ask(self, backend: Backend, beat: Beat) -> Renewed:
        async with asyncio.timeout(self.patience):
            return await backend.renew(beat, self._clock.stamp())

    @property
    def _lease_micros(self) -> int:
        return int(self._leases.lease * 1e6)

    def census(self) -> Beat:
        """A beat that renews nothing, and asks what there is."""
        return self._beat([], census=True)

    def _beat(self, leases: list[tuple[bytes, int]], *, census: bool = False) -> Beat:
        return Beat(
            self._holder,
            self._worker,
            self._queues,
            self._lease_micros,
            leases,
            ttl=self._lease_micros,
            slots=self._runner.alive,
            busy=self._runner.busy,
            gap=int(self.gap * 1e6),
            at_work=_AT_WORK * self._lease_micros,
            census=census or self._leases.now() < self._census_until,
        )


class RenewerThread:
    """Runs a renewer on its own thread, loop and connection, so that a handler that blocks the worker's loop, or holds
    every pooled connection, costs nobody a lease."""

    def __init__(self, renewer: Renewer, backend: Backend) -> None:
        self._renewer = renewer
        self._backend = backend
        self._thread = threading.Thread(target=self._main, name="headrace-heartbeat", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """From the worker's loop."""
        self._renewer.home = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Beat once more to sign off, and end the thread."""
        self._stopping.set()
        self._renewer.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _main(self) -> None:
        """A heartbeat that stumbles starts again, on a new connection: without it every lease would run out."""
        while not self._stopping.is_set():
            try:
                asyncio.run(self._beat())
            except (Unavailable, TimeoutError) as error:
                self._renewer.missed(error)
                log.warning("the heartbeat waits for the store: %s", str(error) or "no answer")
                self._stopping.wait(1.0)
            except Exception as error:
                self._renewer.missed(error)
                log.exception("the heartbeat stumbled; it starts again")
                self._stopping.wait(1.0)

    async def _beat(self) -> None:
        backend = self._backend.sibling()
        try:
            async with asyncio.timeout(2 * self._renewer.patience):
                await backend.open()
            await self._renewer.run(backend)
        finally:
            await backend.close()
