"""The client: what every facade holds. Enqueue, look, wait, change; and start workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

from headrace.api import client_connection
from headrace.api.background import runs_here
from headrace.api.client_changes import ClientChanges
from headrace.api.client_enqueue import ClientEnqueue
from headrace.api.job_calls import JobCalls
from headrace.core import validation
from headrace.core.config import Settings
from headrace.core.durations import micros
from headrace.core.validation import AnyId as AnyId
from headrace.errors import ConfigError, WaitTimeout
from headrace.limits.gate import Admission
from headrace.schedules.planner import IntervalFunction
from headrace.seam import records as r
from headrace.tracking.planner import MakeRow
from headrace.types import Duration, NewJob
from headrace.worker.exchange import Exchange
from headrace.worker.handler import Handler
from headrace.worker.helper import Helped, Helper
from headrace.worker.pull import Pull
from headrace.worker.strays import Strays
from headrace.worker.worker import Worker


class Client(JobCalls, ClientEnqueue, ClientChanges):
    """A connection to one store. Usable from one event loop at a time; opens itself on first use.

    >>> import asyncio
    >>> from headrace import NewJob, connect
    >>> async def main():
    ...     async with connect("memory://") as client:
    ...         [answer] = await client.insert([NewJob(task="mail", args={"to": "a@b.c"})])
    ...         return answer.status.value
    >>> asyncio.run(main())
    'new'
    """

    guest = False
    """Whether its workers leave the duties to other workers and their settings."""
    helper: Helper | None = None
    """Runs jobs on their last chance for its workers."""
    helped: Helped | None = None
    """The worker that this process is a helper of."""
    doors: Any = None
    """Its doors for code that blocks; False: there are none. See ``headrace.api.direct``."""
    runner: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any] | None = None
    """Runs what code that blocks calls; None: the loop does that has the client open, or else one in the background.
    Tests may have a runner that has handlers called in the thread that waits."""
    _main: Client | None = None
    _behind: Client | None = None

    @property
    def main(self) -> Client:
        """The client that this one stands in for in the background; any other is its own."""
        return self._main or self

    def _begin(self) -> None:
        super()._begin()
        self._pulls: WeakSet[Pull] = WeakSet()

    async def _end(self) -> None:
        for pull in list(self._pulls):
            await pull.close()
        await super()._end()

    def _access(self) -> Client:
        return self

    @property
    def here(self) -> Client:
        """The client to use on the loop that runs here. The loop in the background, which works for threads without
        one, has a client of its own: this one may be open elsewhere."""
        return self.behind if runs_here() else self

    @property
    def behind(self) -> Client:
        """The client of the same store for the loop in the background."""
        if self.main is not self:
            return self
        if self._behind is None:
            with client_connection.settling:
                if self._behind is None:
                    behind = self.sibling()
                    behind._main, behind.observers = self, self.observers
                    self._behind = behind
        return self._behind

    def sibling(self) -> Client:
        """Another client of the same store, which shares no connection with this one: for another event loop."""
        return Client(
            self._backend.sibling(),
            self.settings,
            clock=self.clock,
            rng=self._given_rng,
            heartbeat_thread=self._heartbeat_thread,
        )

    async def call(self, job: NewJob, timeout: Duration | None = "30s") -> tuple[r.JobId, bytes | None]:
        """Store a job, or join the one that has its key, and wait for its result; returns the job's id and the result's
        cell. One timeout bounds both. Raises what ``wait`` raises."""
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        loop = asyncio.get_running_loop()
        began = loop.time()
        at_gate: list[Admission] = []
        try:
            async with asyncio.timeout(seconds):
                inserted = await self._enqueue(job, reply=True, at_gate=at_gate)
        except TimeoutError:
            raise WaitTimeout(_no_answer(seconds, at_gate)) from None
        if inserted.status is r.InsertStatus.DONE:
            return inserted.id, inserted.result
        left = None if seconds is None else max(0.0, seconds - (loop.time() - began))
        record = await self.wait(inserted.id, left, watch=inserted.status is not r.InsertStatus.NEW)
        return inserted.id, record.result

    def worker(
        self,
        handlers: Mapping[str, Handler],
        queues: Sequence[str],
        settings: Settings | None = None,
        intervals: Mapping[str, IntervalFunction] | None = None,
        strays: Strays | None = None,
        trackers: Mapping[str, MakeRow] | None = None,
    ) -> Worker:
        """A worker on this store; the client must be open."""
        if self._loop is None:
            raise ConfigError("open the client before starting a worker")
        return Worker(
            self._exchange(queues, settings or self.settings),
            handlers,
            intervals=intervals,
            trackers=trackers,
            guest=self.guest,
            strays=strays,
            helper=self.helper,
            helped=self.helped,
        )

    def pull(
        self,
        queues: str | Iterable[str],
        *,
        batch: int = 100,
        want: Iterable[str] | None = None,
        lease: Duration | None = None,
        name: str | None = None,
        upkeep: bool = True,
    ) -> Pull:
        """Leased jobs in a loop of your own: ``async for jobs in client.pull("queue")``; see :class:`Pull`.

        ``batch``: at most this many at a time. ``want``: the sections that jobs come with; all of them if it is left
        out. ``lease`` and ``name``: instead of ``worker.lease`` and ``worker.name``. Like every worker, a pull does its
        share of upkeep, unless ``upkeep`` says no.
        """
        names = validation.check_queues([queues] if isinstance(queues, str) else queues)
        settings = self.settings.worker
        settings = replace(settings, lease=settings.lease if lease is None else lease, name=name or settings.name)

        async def start() -> Exchange:
            await self.open()
            self._pulls.add(pull)
            return self._exchange(names, replace(self.settings, worker=settings))

        if want is not None:
            want = frozenset([want] if isinstance(want, str) else want)
        pull = Pull(start, batch=batch, want=want, guest=self.guest or not upkeep, patience=self._patience.seconds)
        return pull

    def _exchange(self, queues: Sequence[str], settings: Settings) -> Exchange:
        return Exchange(
            self._backend,
            queues,
            settings,
            self.packer,
            clock=self.clock,
            rng=self._rng,
            observers=self.observers,
            heartbeat_thread=self._heartbeat_thread,
            stowage=self._stowage,
        )


def _no_answer(seconds: float | None, at_gate: list[Admission]) -> str:
    """What is known about a job that was not stored in time. If it was at the gate, there was no room for it."""
    if not at_gate:
        return f"the store did not answer in {seconds} s; whether the job was stored is unknown"
    full = " and ".join(map(repr, at_gate[0].full))
    if at_gate[0].under_way:
        asked = "the store was asked again and has not answered: whether the job was stored is unknown"
        return f"queue {full}, or the store, was full for {seconds} s; {asked}"
    return f"queue {full}, or the store, was full for {seconds} s: the job was not stored"
