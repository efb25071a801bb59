"""Jobs in your own transactions: enqueued or completed together with your writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from headrace.api.batch import BatchTask
from headrace.api.client import Client
from headrace.api.client_enqueue import chunks
from headrace.api.handle import Handle
from headrace.api.task import Task
from headrace.core.driving import drive
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob, LeaseLost
from headrace.limits.gate import Admission
from headrace.payloads.codec import JsonSerde
from headrace.seam.protocol import AsyncJoined, Joined
from headrace.seam.records import Row, Step
from headrace.text import shown
from headrace.types import NewJob
from headrace.worker.job import Completion, Job, completion

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AnyTask = Task[Any, Any] | BatchTask[Any]

_PLAIN: JsonSerde[Any] = JsonSerde()


class SyncConnection(Protocol):
    """A blocking connection: of psycopg, SQLAlchemy (a Session too) or Django."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """An async connection: of psycopg, asyncpg or SQLAlchemy (an AsyncSession too)."""

    @property
    def close(self) -> Callable[..., Awaitable[Any]]: ...


class Bound:
    """An app on a blocking connection: what is done here takes effect when you commit. ``app.bind`` makes it, and it
    needs no event loop.

    A job is stored in whatever transaction the connection is in at that moment. Workers see it, and are woken, when you
    commit; if you roll back, it never existed. There is no ``queued`` event, because it is not known here which of the
    two happens.

    >>> from headrace import App, Bound
    >>> app = App("memory://")
    >>> @app.task
    ... def extract(uid: str, revision: int) -> None: ...
    >>> def save(jobs: Bound, uid: str, revision: int) -> None:  # save(app.bind(connection), "a", 1)
    ...     jobs.enqueue(extract.options(key=f"{uid}:{revision}"), uid, revision)
    """

    def __init__(self, binding: Binding, joined: Joined) -> None:
        self._binding = binding
        self._joined = joined

    @overload
    def enqueue(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def enqueue(self, task: BatchTask[T], payload: T, /) -> Handle[Any]: ...
    def enqueue(self, task: Any, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Store a job of the task, or of ``task.options(…)``. You can wait on the handle once you have committed."""
        return self.enqueue_many([made(task, args, kwargs)])[0]

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Handle[Any]]:
        """Store many jobs, in as few trips as possible; handles come in the order of the jobs. All are checked before
        the first is sent. Raises ``QueueFull`` when a queue has no room for some, whatever their ``when_full``; the
        others are stored if you commit anyway."""
        return drive(self._binding.store(self._joined, jobs))

    def complete(self, job: Job[Any], result: Any = None) -> None:
        """Record in this transaction that the job that runs here is complete with this result. What its handler returns
        afterwards is not stored. Commit soon, and before the handler returns.

        Raises ``LeaseLost`` if another worker has the job by now: then this transaction can no longer commit.
        """
        drive(self._binding.complete(self._joined, job, result))


class AsyncBound:
    """An app on an async connection: like :class:`Bound`, with ``await``.

    >>> from headrace import App, AsyncBound
    >>> app = App("memory://")
    >>> @app.task
    ... async def extract(uid: str, revision: int) -> None: ...
    >>> async def save(jobs: AsyncBound, uid: str, revision: int) -> None:  # await save(app.bind(session), "a", 1)
    ...     await jobs.enqueue(extract, uid, revision)
    """

    def __init__(self, binding: Binding, joined: AsyncJoined) -> None:
        self._binding = binding
        self._joined = joined

    @overload
    async def enqueue(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def enqueue(self, task: BatchTask[T], payload: T, /) -> Handle[Any]: ...
    async def enqueue(self, task: Any, *args: Any, **kwargs: Any) -> Handle[Any]:
        """See ``Bound.enqueue``."""
        return (await self.enqueue_many([made(task, args, kwargs)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Handle[Any]]:
        """See ``Bound.enqueue_many``."""
        return await self._binding.store(self._joined, jobs)

    async def complete(self, job: Job[Any], result: Any = None) -> None:
        """See ``Bound.complete``."""
        await self._binding.complete(self._joined, job, result)

    async def positions(self, source: str) -> dict[str, int]:
        """How far a source outside has been read, as stored with the jobs that were made of it."""
        return await self._joined.positions(source)

    async def advance(self, source: str, steps: Iterable[Step]) -> bool:
        """Store in this transaction how far a source has been read. False: another reader has moved on; then roll back,
        and look at ``positions`` again."""
        return await self._joined.advance(source, sorted(steps, key=lambda step: step.part))


class Binding:
    """What both have in common: jobs become rows, and answers become handles. On a blocking connection, nothing here
    waits for a loop: see ``core.driving``."""

    def __init__(self, client: Client, tasks: Mapping[str, AnyTask]) -> None:
        self._client = client
        self._tasks = tasks

    def join(self, connection: object) -> Bound | AsyncBound:
        """Bind to whatever transactions the connection is in from now on."""
        tx = self._client.tx
        if tx is None:
            raise ConfigError(
                f"jobs can be enqueued in a transaction of your own only on PostgreSQL; this app is on "
                f"{self._client.settings.url.partition(':')[0]}. Enqueue after you have committed"
            )
        joined = tx.join(connection)
        return Bound(self, joined) if joined.blocks else AsyncBound(self, joined)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncBound]:
        """A transaction on a connection of the app's own; it commits at the end of the block."""
        tx = (await self._client.backend()).tx
        if tx is None:
            raise ConfigError(
                "what is read and how far it was read can be stored in one step only on PostgreSQL; this app is on "
                f"{self._client.settings.url.partition(':')[0]}"
            )
        async with tx.begin() as joined:
            yield AsyncBound(self, joined)

    async def store(self, joined: Joined | AsyncJoined, jobs: Iterable[NewJob]) -> list[Handle[Any]]:
        """Store jobs in the transaction. All are checked before the first is sent."""
        given = check_jobs(jobs)
        rows = [self._client.packer.pack(job) for job in given]
        answers = [one for part in self._parts(rows) for one in await joined.insert(part)]
        admission = Admission(given, rows, answers)
        places = admission.detour()
        for part in self._parts([admission.rows[i] for i in places]):
            admission.take(places[: len(part)], await joined.insert(part))
            del places[: len(part)]
        if admission.refused:
            raise admission.error()
        return [
            Handle(self._client, answer, getattr(self._tasks.get(job.task), "results", _PLAIN))
            for job, answer in zip(given, admission.answers, strict=True)
        ]

    def _parts(self, rows: list[Row]) -> Iterator[list[Row]]:
        """As many rows at once as the store takes."""
        return chunks(rows, self._client.limits.max_batch)

    async def complete(self, joined: Joined | AsyncJoined, job: Job[Any], result: Any) -> None:
        """Complete in the transaction the job that runs here."""
        completion = completing(job)
        settlement = completion.settle(result)
        try:
            if settlement is None or not await joined.complete(settlement):
                raise lost(job)
        except BaseException:
            completion.disown()
            raise


def made(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
    """The job of a call."""
    if not isinstance(task, Task | BatchTask):
        raise InvalidJob(f"expected a task of the app and its arguments, got {shown(task)}; for jobs use enqueue_many")
    return task.job(*args, **kwargs)


def completing(job: Job[Any]) -> Completion:
    """What completes the job."""
    if not isinstance(job, Job):
        raise InvalidJob(f"expected the job that the handler was given, got {shown(job)}")
    return completion(job)


def lost(job: Job[Any]) -> LeaseLost:
    """The error for a job that this run no longer holds."""
    return LeaseLost(
        f"job {job.id} is no longer held under this run's lease: it has ended, was given up on, or another worker "
        "has it. What you wrote in this transaction is not committed: let it roll back"
    )
