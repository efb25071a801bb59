"""Renews the leases of a worker, from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from functools import partial

from headrace.core.alerts import moment
from headrace.core.progress import pack_progress
from headrace.core.slow_calls import took
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, JobId, Renewed
from headrace.worker.consumer import Consumer
from headrace.worker.kit import Kit
from headrace.worker.orders import Orders

log = logging.getLogger("headrace")

NOTHING: Mapping[JobId, bytes] = {}
_BEATS_PER_LEASE = 6
_AT_WORK = 10
"""For how many leases the workers must have been at work, so that an absence of all of them is no loss of their
jobs."""
_SHORTEST_TIMEOUT = 1.0
"""Seconds that an answer may take, however short the lease is: with less, a slow store would never answer in time."""


class Renewer:
    """Beats six times per lease. Each beat renews the leases past half their life, so a quick job is never renewed.

    If the store is away, or does not answer in time, it is asked again. Only the store says that a lease is lost.
    """

    def __init__(self, kit: Kit, consumer: Consumer, orders: Orders) -> None:
        self._leases = kit.leases
        self._kit = kit
        self._consumer = consumer
        self._orders = orders
        self._doubtful: list[tuple[JobId, int]] = []
        self._every = kit.leases.lease / _BEATS_PER_LEASE
        self.timeout = max(self._every, _SHORTEST_TIMEOUT)
        """Seconds in which the store must answer."""
        self._soon: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.home: asyncio.AbstractEventLoop | None = None
        """The worker's loop, if the beats have another."""
        self.beat = 0.0
        """When the store last answered a beat, by the loop's clock."""
        self.away = ""
        """Why the last beat was not answered; empty if it was."""
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
    def longest(self) -> float:
        """Seconds after which a beat that got through is too long ago for a healthy worker."""
        return max(min(self._leases.lease / 2, 3 * self._every), _SHORTEST_TIMEOUT)

    def quicken(self, seconds: float) -> None:
        """Beat at least this often, so that others learn within seconds whether the store can be written to."""
        if seconds < self._every:
            self._every = seconds
            self.hurry()

    @property
    def gap(self) -> float:
        """With more seconds than this between two beats, the store may have stood still for other workers too. When a
        lease is renewed, at least a third of it is left."""
        return max(self._leases.lease / 4, _SHORTEST_TIMEOUT)

    def doubt(self) -> None:
        """A claim may have brought leases that this worker does not know of. Ask for them, until they have run out."""
        self._census_until = self._leases.now() + self._leases.lease + self._every

    def hurry(self) -> None:
        """Beat now. Can be called from any thread."""
        if self._loop is not None and self._soon is not None:
            try:
                self._loop.call_soon_threadsafe(self._soon.set)
            except RuntimeError:  # the loop of the beats has ended already
                return

    def stop(self) -> None:
        """Stop beating. Can be called from any thread."""
        self._stopping = True
        self.hurry()

    async def _renew(self, backend: Backend) -> None:
        now, since = asyncio.get_running_loop().time(), self._leases.now()
        said = self._leases.said()
        leases = list(dict.fromkeys([*self._leases.aging(since), *said]))
        beat = self._beat(leases, progress={job_id: pack_progress(one) for (job_id, _), one in said.items()})
        try:
            renewed = await self._ask(backend, beat)
        except (Unavailable, TimeoutError) as error:
            if beat.census:
                self.doubt()
            self._leases.say_again(said)
            self.missed(error)
            log.warning("the store did not answer a beat; it is asked again: %s", self.away)
            return
        if beat.census and renewed.doubtful:
            self.doubt()
        self.away, self.beat = "", now
        not_renewed = {*renewed.lost, *renewed.busy}
        kept = [lease for lease in leases if lease not in not_renewed]
        if (first := self._leases.first(kept, since)) is not None:
            self._call_home(partial(self._orders.renewed, *first))
        for job in self._leases.renewed(kept, since):
            self._call_home(partial(self._orders.warn, job))
        if self._doubtful:
            self._call_home(partial(self._consumer.doubt, kept, doubtful=False))
        busy, told = {*renewed.busy}, {*self._doubtful}
        self._doubtful = [lease for lease in self._leases.in_doubt(self._leases.now()) if lease in busy] if busy else []
        if new := [lease for lease in self._doubtful if lease not in told]:
            self._call_home(partial(self._consumer.doubt, new, doubtful=True))
        self._leases.say_again({lease: said[lease] for lease in renewed.busy if lease in said})
        self._orders.hear(renewed)

    async def renew_now(self, backend: Backend, lease: tuple[JobId, int]) -> bool:
        """Renew one lease, on the consumer's own loop; returns whether it is still this holder's. Raises
        ``Unavailable`` or ``TimeoutError``."""
        since = self._leases.now()
        renewed = await self._ask(backend, self._beat([lease]))
        if lease in renewed.lost:
            return False
        if lease not in renewed.busy:
            self._leases.renewed([lease], since)
        self._orders.hear(renewed)
        return True

    def missed(self, error: Exception) -> None:
        """A beat was not answered."""
        self.away = str(error) or f"no answer in {self.timeout:.3g} s"
        self._doubtful = self._leases.in_doubt(self._leases.now())
        self._call_home(partial(self._consumer.doubt, self._doubtful, doubtful=True))

    def _call_home(self, call: Callable[[], None]) -> None:
        """Run it on the worker's loop."""
        if self.home is None:
            call()
            return
        try:
            self.home.call_soon_threadsafe(call)
        except RuntimeError:  # the worker's loop has ended already
            return

    async def _leave(self, backend: Backend) -> None:
        beat = Beat(self._kit.holder, self._kit.name, self._kit.queues, self._lease_micros, leaving=True)
        try:
            await self._ask(backend, beat)
        except (Unavailable, TimeoutError):
            log.info("cannot remove the worker from the list of workers; its entry expires by itself")

    async def _ask(self, backend: Backend, beat: Beat) -> Renewed:
        began = moment()
        try:
            async with asyncio.timeout(self.timeout):
                return await backend.renew(beat, self._kit.clock.stamp())
        finally:
            self._call_home(partial(took, self._kit.observers, "renew", moment() - began))

    @property
    def _lease_micros(self) -> int:
        return int(self._leases.lease * 1e6)

    def census(self) -> Beat:
        """A beat that renews nothing, and asks what this worker holds."""
        return self._beat([], census=True)

    def _beat(
        self, leases: list[tuple[JobId, int]], *, census: bool = False, progress: Mapping[JobId, bytes] = NOTHING
    ) -> Beat:
        return Beat(
            self._kit.holder,
            self._kit.name,
            self._kit.queues,
            self._lease_micros,
            leases,
            ttl=self._lease_micros,
            slots=self._consumer.alive,
            busy=self._consumer.busy,
            gap=int(self.gap * 1e6),
            at_work=_AT_WORK * self._lease_micros,
            census=census or self._leases.now() < self._census_until,
            progress=progress,
        )


class RenewerThread:
    """Runs a renewer on its own thread, loop and connection. So no lease is lost when a handler blocks the worker's
    loop, or all pooled connections are in use."""

    def __init__(self, renewer: Renewer, backend: Backend) -> None:
        self._renewer = renewer
        self._backend = backend
        self._thread = threading.Thread(target=self._main, name="headrace-heartbeat", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Called on the worker's loop."""
        self._renewer.home = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Take the worker off the list, and end the thread."""
        self._stopping.set()
        self._renewer.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _main(self) -> None:
        """After an error the beats start again, on a new connection: without them every lease would run out."""
        while not self._stopping.is_set():
            try:
                asyncio.run(self._beat())
            except (Unavailable, TimeoutError) as error:
                self._renewer.missed(error)
                log.warning("the store cannot be reached for beats; it is tried again: %s", str(error) or "no answer")
                self._stopping.wait(1.0)
            except Exception as error:
                self._renewer.missed(error)
                log.exception("the beats of this worker failed; they start again")
                self._stopping.wait(1.0)

    async def _beat(self) -> None:
        backend = self._backend.sibling()
        try:
            async with asyncio.timeout(2 * self._renewer.timeout):
                await backend.open()
            await self._renewer.run(backend)
        finally:
            await backend.close()
