"""The pull: leased jobs in the caller's own loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import TypedDict

from headrace.core.durations import micros
from headrace.core.events import Event, EventKind
from headrace.core.numbers import check_whole
from headrace.core.progress import Progress
from headrace.core.tasks import Tasks
from headrace.errors import ConfigError, Unavailable
from headrace.payloads.offload import LARGE
from headrace.seam.instants import to_datetime
from headrace.seam.records import Leased, Settlement
from headrace.text import shown
from headrace.types import SECTIONS, Duration, Fail
from headrace.worker.duties import Duties, retention_of
from headrace.worker.exchange import Exchange, cause
from headrace.worker.health import Health
from headrace.worker.pull_claimer import PullClaimer
from headrace.worker.pulled_job import Flush, Held, PulledJob
from headrace.worker.takers import Taker, Takers

log = logging.getLogger("headrace")

_TIME_TO_END = 2.0
"""Seconds that a claim has to be answered when the pull is closed."""


class PullOptions(TypedDict, total=False):
    """How jobs are pulled; see ``Client.pull``."""

    batch: int
    want: Iterable[str] | None
    lease: Duration | None
    name: str | None
    upkeep: bool


class Pull:
    """Leased jobs for a loop of your own: ``async for jobs in client.pull("queue")``.

    Each round brings the jobs that are due, at most ``batch`` of them, and waits while there are none. You hold them
    until you release them; how many you hold at a time is up to you. Their leases are renewed from a thread of its own,
    however long you take. When the pull is closed, what you have not released goes back to the queue, in its old place.
    ``async for`` closes it when its loop is left; to keep it open for longer, or to take jobs in another way, use
    ``async with client.pull(…) as pull``.

    >>> import asyncio
    >>> from headrace import NewJob, connect
    >>> async def main():
    ...     async with connect("memory://") as client:
    ...         await client.insert([NewJob(task="mail", queue="out") for _ in range(3)])
    ...         async with client.pull("out", batch=2) as pull:
    ...             while jobs := await pull.take(wait=0):
    ...                 print(len(jobs))
    ...                 for job in jobs:
    ...                     job.set_state("completed")
    ...                     job.release()
    >>> asyncio.run(main())
    2
    1
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Exchange]],
        *,
        batch: int = 100,
        want: frozenset[str] | None = None,
        guest: bool = False,
        patience: float = 30.0,
    ) -> None:
        self._connect = connect
        self.batch = check_whole(batch, "batch", 1)
        if want is not None and (wrong := sorted(set(want) - {*SECTIONS})):
            raise ConfigError(f"want: expected some of {', '.join(SECTIONS)}, got {shown(wrong[0])}")
        self._want = want
        self._guest = guest
        self._patience = patience
        self._inside = 0
        self._opening = asyncio.Lock()
        self._closing = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._packing: set[asyncio.Task[None]] = set()

    # -- opening and closing

    async def open(self) -> None:
        """Connect, and start to beat."""
        if self._closing.is_set():
            raise ConfigError("this pull is closed; make another one with client.pull(…)")
        if self._run is None:
            async with self._opening:
                if self._run is None:
                    exchange = await self._connect()
                    if not self._closing.is_set():
                        self._start(exchange)

    def _start(self, exchange: Exchange) -> None:
        self._exchange, self.packer = exchange, exchange.packer
        self._takers = takers = Takers(exchange, self.batch)
        self._loader = loader = exchange.loader(takers, lambda task: self._want, together=True)
        self._claimer = PullClaimer(
            exchange,
            self._want,
            takers,
            takers=takers,
            loading=int if loader is None else loader.loading,
            deliver=None if loader is None else loader.deliver,
            most=None if loader is None else loader.most,
        )
        retention = retention_of(exchange)
        room = retention.between(exchange.leases.job)
        exchange.attach(takers, self._claimer, trips=1, refuse=self._refused, room=room)
        self._duties = Duties(exchange, retention, guest=self._guest)
        self._run = self._tasks.start(self._serve(), "headrace-pull")

    async def close(self) -> None:
        """Store what was released, give back what was not, and take the holder off the list. Closing twice is
        harmless."""
        self._closing.set()
        if self._run is not None:
            await asyncio.wait([self._run])

    async def __aenter__(self) -> Pull:
        await self.open()
        self._inside += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._inside -= 1
        if not self._inside:
            await self.close()

    async def __aiter__(self) -> AsyncIterator[list[PulledJob]]:
        async with self:
            while not self._closing.is_set():
                if jobs := await self.take():
                    yield jobs

    async def _serve(self) -> None:
        exchange, observers = self._exchange, self._exchange.observers
        observers.tell(Event(EventKind.WORKER_STARTED, worker=exchange.name, detail=", ".join(exchange.queues)))
        await self._duties.prepare()
        exchange.start()
        try:
            await self._duties.beside(self._closing.wait, self._wind_down)
        except (Exception, asyncio.CancelledError) as error:
            await self._take_no_more()
            self._takers.fail(cause(error))
            await exchange.give_everything_back()
            if isinstance(error, asyncio.CancelledError):
                raise
            log.error("a pull has ended: %s", cause(error))
        finally:
            self._closing.set()
            await self._take_no_more()
            self._takers.abandon()
            await exchange.close()
            await exchange.sign_off()
            observers.tell(Event(EventKind.WORKER_STOPPED, worker=exchange.name))

    async def _wind_down(self) -> None:
        """Claim nothing more; store what was released, and give back the rest."""
        self._claimer.close()
        self._takers.end()
        await self._exchange.all_claimed(_TIME_TO_END)
        await self._take_no_more()
        if self._packing:
            await asyncio.wait(self._packing)
        if forgotten := self._takers.forget():
            log.info("%d jobs that were pulled and not released go back to the queue", forgotten)
        await self._exchange.all_settled()
        await self._exchange.write_notes()

    async def _take_no_more(self) -> None:
        self._claimer.close()
        if self._loader is not None:
            await self._loader.close()

    # -- jobs

    async def take(self, limit: int | None = None, *, wait: Duration | None = None) -> list[PulledJob]:
        """The jobs that are due, at most ``limit`` of them (``batch``, if it is left out), in their order.

        Waits for at least one, for as long as it takes, even if the store is away meanwhile. With ``wait``, it waits
        only so long, and the list may be empty; 0 looks once, or a few times if the store says that it will have jobs
        in a moment. It then raises ``Unavailable`` if the store has not answered within ``patience``. If the pull is
        closed meanwhile, the list is empty too. A call that is cancelled takes nothing.
        """
        most = self.batch if limit is None else check_whole(limit, "limit", 1)
        seconds = None if wait is None else micros(wait, "wait") / 1e6
        await self.open()
        if self._run is None:
            return []  # it was closed before it was open
        taker = self._takers.add(most)
        self._claimer.wake()
        try:
            held = await self._wait(taker, seconds)
        except BaseException:
            self._takers.disown(taker)
            raise
        finally:
            self._takers.remove(taker)
        return [PulledJob(one, self) for one in held]

    async def _wait(self, taker: Taker, seconds: float | None) -> list[Held]:
        if seconds is None:
            return await taker.future
        await asyncio.wait([taker.future], timeout=seconds)
        if not taker.future.done():
            if self._claimer.holding_back or (taker.looked and not self._claimer.asking):
                return []
            taker.last_look = True
            await asyncio.wait([taker.future], timeout=self._patience)
        if not taker.future.done():
            raise Unavailable(f"expected an answer to a claim within {self._patience:g} s, got none; try again")
        return taker.future.result()

    async def flush(self) -> None:
        """Wait until the store has answered for everything that was released and is under way. Raises the first error
        when it has."""
        under_way = [] if self._run is None else [one.flush for one in self._takers.held.values()]
        answers = await asyncio.gather(*(one for one in under_way if one is not None), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def interrupt(self) -> None:
        """All who wait for jobs get none, and may ask again."""
        if self._run is not None:
            self._takers.end()

    @property
    def held(self) -> int:
        """How many jobs you hold: taken, and not yet released."""
        return self._takers.busy if self._run is not None else 0

    def health(self, *, idle: Duration = "30s") -> Health:
        """Whether jobs get through to you and their leases are kept. While you hold jobs you may take as long as you
        like. If you hold none and have not asked for any for ``idle``, you do not consume."""
        if self._run is None or self._closing.is_set():
            state = "not opened yet" if self._run is None else "closed"
            return Health(consuming=False, beating=False, busy=0, slots=self.batch, alive=0, strays=0, detail=state)
        now, exchange, takers = asyncio.get_running_loop().time(), self._exchange, self._takers
        problems = []
        if takers.demand:
            consuming = self._claimer.holding_back or now - max(exchange.claims, takers.active) <= max(
                3 * exchange.poll, 5.0
            )
            problems += [] if consuming else ["no claim got through"]
        else:
            consuming = bool(takers.busy) or now - takers.active <= micros(idle, "idle") / 1e6
            problems += [] if consuming else [f"nobody has asked for jobs for {now - takers.active:.0f} s"]
        beating = exchange.beating(now)
        problems += [] if beating else [exchange.silence]
        if self._loader is not None and self._loader.away:
            problems.append(f"jobs wait for sections that cannot be loaded: {self._loader.away}")
        return Health(
            consuming=consuming,
            beating=beating,
            busy=takers.busy,
            slots=self.batch,
            alive=self.batch,
            strays=0,
            detail="; ".join(problems) or "ok",
        )

    # -- for the jobs

    def release(self, held: Held) -> Flush:
        """Store the draft of a job, and end its lease. ``job.release()`` calls this."""
        held.draft.check()
        if any(body is not None and len(body) > LARGE for body in held.draft.sections.values()):
            flush = held.flush = Flush()
            packing = self._tasks.start(self._pack(held, flush), "headrace-pack")
            self._packing.add(packing)
            packing.add_done_callback(self._packing.discard)
            return flush
        settlement = self._settlement(held)
        flush = held.flush = Flush()
        self._settle(held, settlement)
        return flush

    async def _pack(self, held: Held, flush: Flush) -> None:
        """Pack large sections in a thread, beside the event loop."""
        try:
            settlement = await asyncio.to_thread(self._settlement, held)
        except Exception as error:
            held.flush = None
            flush.answer(error)
        else:
            self._settle(held, settlement)

    def _settlement(self, held: Held) -> Settlement:
        return held.draft.settlement(held.leased, self._exchange.holder, self.packer, self._exchange.judge)

    def _settle(self, held: Held, settlement: Settlement) -> None:
        leased, seconds = held.leased, asyncio.get_running_loop().time() - held.since
        if leased.headers is not None:
            self._exchange.settler.notes.ended(leased, settlement, seconds)
        told = Fail(held.draft.error or "") if settlement.failed_attempt else None
        self._takers.active = held.since + seconds
        self._exchange.settler.add(settlement, self._takers.events.ended(leased, settlement, told, seconds))

    def _refused(self, settlement: Settlement, error: Exception) -> None:
        """The store rejects a release: nothing takes its place, and the job is held on."""
        self._takers.rejected(settlement, error)

    async def heartbeat(self, held: Held) -> None:
        """Renew the lease of a job now. ``job.heartbeat()`` calls this."""
        lease = held.leased.id, held.leased.epoch
        try:
            kept = await self._exchange.renewer.renew_now(self._exchange.backend, lease)
        except TimeoutError:
            raise Unavailable("expected an answer to a heartbeat, got none; the lease may run out; try again") from None
        if not kept:
            self._takers.lose(*lease)
            raise held.refusal

    @property
    def holder(self) -> str:
        """The id under which it holds jobs. A secret: whoever knows it can release them."""
        return self._exchange.holder

    def renewed(self, leased: Leased) -> datetime | None:
        """When the lease of a job was last renewed. ``job.renewed_at`` calls this."""
        age = self._exchange.leases.age(leased.id, leased.epoch)
        return None if age is None else to_datetime(self._exchange.clock.now() - int(age * 1e6))

    def say(self, leased: Leased, progress: Progress) -> None:
        """Take note of the progress of a job. ``job.progress()`` calls this."""
        self._exchange.leases.say(leased, progress)

    async def load(self, leased: Leased, section: str) -> bytes | None:
        """Read a section of a job. ``job.load()`` calls this."""
        return await self._exchange.reader.read(leased, section)
