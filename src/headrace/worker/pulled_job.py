"""A job that was pulled: held under a lease, with a draft of what is to change."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from headrace.core.durations import micros
from headrace.core.names import check_queue
from headrace.core.progress import NOTED, Noted, Progress, check_progress
from headrace.errors import LeaseLost
from headrace.payloads.pack import Packer
from headrace.seam.records import Leased
from headrace.text import shown
from headrace.types import SECTIONS, Duration, JobState, NewJob
from headrace.worker.draft import Draft
from headrace.worker.job import CancelToken, Lease
from headrace.worker.job_facts import JobFacts


class Flush:
    """A release on its way to the store. Await it to know that it is stored; if you do not, it is stored all the same.

    Awaiting it gives the state that the job is in now: the one asked for, or CANCELLED if its cancellation was
    requested meanwhile. It raises ``LeaseLost`` if the release came too late, and nothing was stored. Any other error
    says why the store rejected the changes: the job is still held, and can be released again.

    >>> import asyncio
    >>> from headrace import NewJob, connect
    >>> async def main():
    ...     async with connect("memory://") as client, client.pull("mail") as pull:
    ...         await client.insert([NewJob(task="send", queue="mail")])
    ...         [job] = await pull.take()
    ...         job.set_state("completed")
    ...         flush = job.release()
    ...         return (await flush).value, flush.done
    >>> asyncio.run(main())
    ('completed', True)
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[JobState] = asyncio.get_running_loop().create_future()
        self._future.add_done_callback(_seen)

    @property
    def done(self) -> bool:
        """Whether the store has answered."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, JobState]:
        return asyncio.shield(self._future).__await__()

    def answer(self, state: JobState | Exception) -> None:
        """The store has answered. Called by the pull."""
        if isinstance(state, Exception):
            self._future.set_exception(state)
        else:
            self._future.set_result(state)


def _seen(future: asyncio.Future[JobState]) -> None:
    """Nobody has to wait for a flush: observers hear of its error too."""
    if not future.cancelled():
        future.exception()


class Held:
    """One job that is held, as the pull and the job itself know it."""

    __slots__ = ("draft", "flush", "gone", "leased", "since", "token")

    def __init__(self, leased: Leased, since: float) -> None:
        self.leased = leased
        self.since = since
        """When it was handed out, by the loop's clock."""
        self.draft = Draft()
        self.flush: Flush | None = None
        """Its release, once there is one that the store has not rejected."""
        self.gone = ""
        """Why it is not held any more; empty: it is."""
        self.token = CancelToken()

    @property
    def refusal(self) -> LeaseLost:
        """The error for whoever still works on it."""
        why = self.gone or "it is being released"
        job_id = UUID(bytes=self.leased.id)
        return LeaseLost(f"job {job_id} is no longer held: {why}. Nothing was stored; roll back what you did for it")


class Holding(Protocol):
    """What a pulled job needs of the pull that holds it."""

    @property
    def packer(self) -> Packer: ...

    @property
    def holder(self) -> str: ...

    def release(self, held: Held) -> Flush:
        """Store its draft, and end its lease."""

    async def heartbeat(self, held: Held) -> None:
        """Renew its lease now."""

    async def load(self, leased: Leased, section: str) -> bytes | None:
        """Read a section of it."""

    def renewed(self, leased: Leased) -> datetime | None:
        """When its lease was last renewed."""

    def say(self, leased: Leased, progress: Progress) -> None:
        """Take note of its progress."""


class PulledJob(JobFacts):
    """A job that you hold: nobody else gets it until you release it, or your process dies.

    The ``set_…`` methods change a draft, and store nothing. ``release()`` stores the whole draft in one step and ends
    the lease; what you did not touch stays as it is. While you hold the job its lease is renewed for you.

    >>> import asyncio
    >>> from headrace import NewJob, Sections, connect
    >>> async def main():
    ...     async with connect("memory://") as client:
    ...         await client.insert([NewJob(task="step", queue="hog", sections=Sections(vm_state=b"1", blob=b"body"))])
    ...         async for jobs in client.pull("hog"):
    ...             for job in jobs:
    ...                 job.set_vm_state(job.section("vm_state") + b"+1")
    ...                 job.set_blob(None)
    ...                 job.set_state("completed")
    ...                 print(await job.release())
    ...             break
    >>> asyncio.run(main())
    completed
    """

    __slots__ = ("_held", "_holding")

    def __init__(self, held: Held, holding: Holding) -> None:
        super().__init__(held.leased)
        self._held = held
        self._holding = holding

    @property
    def cancel(self) -> CancelToken:
        """Tells that the job's cancellation was requested, or that its lease is lost."""
        return self._held.token

    # -- what it came with

    def section(self, name: str) -> bytes | None:
        """The bytes of a section as the job came with them, whatever the draft says; None if it has none.

        Raises ``ValueError`` if it has one that was not wanted (``await job.load(name)`` reads it), and
        ``PayloadError`` if it cannot be read.
        """
        _check(name)
        if name in self._leased.left:
            raise ValueError(f"section {name}: not among those wanted; pull with want={{{name!r}}}, or load it")
        cell = self._leased.cells.get(name)
        if cell is None:
            return None
        return self._holding.packer.envelope.unwrap(cell, name, self._leased.id, self._leased.tenant)[1]

    def has(self, name: str) -> bool:
        """Whether it came with this section: it has one, and it was wanted."""
        return name in self._leased.cells

    async def load(self, name: str) -> bytes | None:
        """The bytes of a section, read now unless the job came with it; None if it has none. Raises ``LeaseLost``,
        ``PayloadError``, and ``Unavailable`` while the store, or the object store, is away."""
        _check(name)
        if name not in self._leased.left:
            return self.section(name)
        if self._held.gone:
            raise self._held.refusal
        return await self._holding.load(self._leased, name)

    @property
    def renewed_at(self) -> datetime | None:
        """When its lease was given or last renewed, by this process's clock; None if it is not held any more."""
        return self._holding.renewed(self._leased)

    @property
    def lease(self) -> Lease:
        """The right to work on it; ``epoch`` rises with every claim, to fence your own writes."""
        return Lease(self.id, self._leased.epoch, self._holding.holder)

    def progress(self, done: float | None, note: str = "") -> Noted:
        """Say how far the job has come, as ``Job.progress`` does."""
        self._holding.say(self._leased, check_progress(done, note))
        return NOTED

    @property
    def held(self) -> bool:
        """Whether it is yours, as far as is known: neither released nor lost."""
        return not self._held.gone and self._held.flush is None

    # -- the draft

    def set_state(self, state: JobState | str, *, error: str | None = None) -> None:
        """``"completed"``, ``"failed"``, ``"available"`` (it runs again), ``"paused"`` or ``"cancelled"``. With
        ``error``, ``"failed"`` and ``"available"`` count a failed attempt and remember the error."""
        self._changing().set_state(state, error)

    def set_queue(self, queue: str) -> None:
        """Move it to another queue, and its key with it."""
        self._changing().queue = check_queue(queue, "queue")

    def set_priority(self, priority: int) -> None:
        """Lower numbers run first."""
        self._changing().priority = self._holding.packer.priority(priority)

    def set_scheduled(self, at: datetime) -> None:
        """When it is due; without this, it keeps its place in the queue."""
        draft = self._changing()
        draft.run_at, draft.delay = self._holding.packer.instant(at, "scheduled"), None

    def set_delay(self, delay: Duration) -> None:
        """How long after the release it is due, by the store's clock; instead of ``set_scheduled``."""
        draft = self._changing()
        draft.delay, draft.run_at = micros(delay, "delay"), None

    def set_parameters(self, body: bytes | None) -> None:
        """Replace the section, or clear it with None."""
        self._changing().set_section("parameters", body)

    def set_vm_state(self, body: bytes | None) -> None:
        """Replace the section, or clear it with None."""
        self._changing().set_section("vm_state", body)

    def set_metadata(self, body: bytes | None) -> None:
        """Replace the section, or clear it with None."""
        self._changing().set_section("metadata", body)

    def set_blob(self, body: bytes | None) -> None:
        """Replace the section, or clear it with None."""
        self._changing().set_section("blob", body)

    def reset(self) -> None:
        """Forget the draft."""
        self._changing()
        self._held.draft = Draft()

    def spawn(self, *jobs: NewJob) -> None:
        """Jobs that are enqueued together with the release, or not at all."""
        self._changing().spawn += [self._holding.packer.pack(job) for job in jobs]

    def _changing(self) -> Draft:
        if not self.held:
            raise self._held.refusal
        return self._held.draft

    # -- the lease

    def release(self) -> Flush:
        """Store the draft and end the lease, in one step. It is on its way when this returns; await the answer to know
        that it is stored. Releases that come together share a trip, and are repeated while the store is away.

        Raises ``InvalidJob`` if the draft has no state to end in, and ``LeaseLost`` if the job is not held any more.
        The draft is kept then. Calling it again while it is under way gives the same answer.
        """
        if self._held.flush is not None and not self._held.flush.done:
            return self._held.flush
        if not self.held:
            raise self._held.refusal
        return self._holding.release(self._held)

    async def heartbeat(self) -> None:
        """Renew the lease now. There is no need to, unless you want to know that the job is still yours. Raises
        ``LeaseLost`` if it is not, and ``Unavailable`` if the store does not answer."""
        if not self.held:
            raise self._held.refusal
        await self._holding.heartbeat(self._held)

    def __repr__(self) -> str:
        return f"PulledJob({self.id}, task={self.task!r}, queue={self.queue!r}, held={self.held})"


def _check(section: str) -> None:
    if section not in SECTIONS:
        raise ValueError(f"section: expected one of {', '.join(SECTIONS)}, got {shown(section)}")
