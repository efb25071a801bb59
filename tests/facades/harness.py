"""What the tests of the facades share: stores, signals, bounded waits, and a world of virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from headrace import App, Client, Event, EventKind, Job, Queue, Settings, Streams
from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.store import MemoryStore
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import Clock
from headrace.seam.protocol import Backend
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.loop import SimLoop, run
from headrace.testing.wrapped import Wrapped
from tests import postgres, streams, valkey

T = TypeVar("T")

LIMIT = 60.0
"""Seconds after which a test gives up on something that should have happened: a guard, never a pace."""


STORES = ["memory", "sqlite", "postgres", "valkey"]
WITH_STREAMS = [*STORES, "streams"]
"""For what stores do with cells."""


def settings(**given: Any) -> Settings:
    """Settings that neither the environment nor a file of the working directory has a say in."""
    return Settings.load({"url": "memory://", **given}, env={}, toml={})


class Store:
    """One store, and any number of clients, apps and queues on it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._memory = MemoryStore()
        self._directory = directory
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        match self.kind:
            case "memory":
                return "memory://"
            case "sqlite":
                return f"sqlite:///{self._directory}/jobs.db?durability=normal"
            case "postgres":
                return f"{postgres.server().url()}?schema={postgres.SCHEMA}"
            case "streams":
                return Streams(
                    pg=f"{postgres.server().url()}?schema={postgres.SCHEMA}", valkey=valkey.server().url()
                ).url
        return valkey.server().url()

    def backend(self) -> Backend:
        match self.kind:
            case "memory":
                return MemoryBackend(self._memory)
            case "sqlite":
                return SqliteBackend(self._directory / "jobs.db", durability="normal")
            case "postgres":
                return postgres.stores.connect(self._directory)
            case "streams":
                return streams.stores.connect(self._directory)
        return valkey.stores.connect(self._directory)

    def client(self, *, clock: Clock | None = None, rng: Random | None = None, **given: Any) -> Client:
        client = Client(self.backend(), settings(url=self.url, **given), clock=clock, rng=rng)
        self._clients.append(client)
        return client

    def app(self, *, clock: Clock | None = None, **given: Any) -> App:
        return App(self.client(clock=clock, **given))

    def queue(self, name: str = "jobs", *, clock: Clock | None = None, **options: Any) -> Queue[Any, Any]:
        """An untyped queue with a client of its own."""
        return Queue[Any, Any](name, self.client(clock=clock), **options)

    async def count(self) -> int:
        """How many jobs are stored, in whatever state."""
        client = self.client()
        total = sum(
            q.available + q.running + q.jobs_paused + q.completed + q.cancelled + q.failed
            for q in (await client.stats()).queues
        )
        await client.close()
        return total

    async def close(self) -> None:
        for client in self._clients:
            await within(client.close())


async def within(work: Awaitable[T], seconds: float = LIMIT) -> T:
    """The answer of ``work``, which must come in time."""
    async with asyncio.timeout(seconds):
        return await work


@asynccontextmanager
async def serving(*queues: Queue[Any, Any]) -> AsyncIterator[None]:
    """The queues started, and stopped in bounded time whatever happens."""
    for queue in queues:
        await within(queue.start())
    try:
        yield
    finally:
        for queue in queues:
            await within(queue.stop())


async def fail_once(queue: Queue[Any, Any]) -> None:
    """Enqueue job ``a`` and stop after its first attempt, which fails. The queue's clock is to stand still."""
    failed = asyncio.Event()
    queue.on("failing", lambda id: failed.set())

    @queue.execute
    async def broken(job: Job[int]) -> None:
        raise ValueError("later perhaps")

    async with serving(queue):
        await queue.enqueue("a", 1)
        await within(failed.wait())


def alerts_of(events: Iterable[Event]) -> list[str]:
    """What was alerted to, but for the store's slowness: it is the machine's here."""
    alerts = [event.alert for event in events if event.kind is EventKind.ALERT]
    return [alert for alert in alerts if alert != "store_slow"]


@asynccontextmanager
async def working(app: App, *queues: str) -> AsyncIterator[None]:
    """A worker of the app in the background."""
    async with asyncio.TaskGroup() as group:
        started = asyncio.Event()

        def heard(event: Event) -> None:
            if event.kind is EventKind.WORKER_STARTED:
                started.set()

        app.observe(heard)
        task = group.create_task(app.work(queues or None))
        try:
            await within(_either(started, task))
            yield
        finally:
            app.stop()
            await within(task)


async def _either(started: asyncio.Event, task: asyncio.Task[None]) -> None:
    waiting = asyncio.ensure_future(started.wait())
    await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        await task


class Events:
    """An observer that remembers, and that can be waited on."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.seen.append(event)
        self._changed.set()

    def of(self, *kinds: EventKind) -> list[Event]:
        return [event for event in self.seen if event.kind in kinds]

    @property
    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.seen]

    async def until(self, kind: EventKind, count: int = 1) -> list[Event]:
        """Wait for ``count`` events of a kind."""
        async with asyncio.timeout(LIMIT):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(kind)


class Calls:
    """A listener that remembers what it was called with, and that can be waited on."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()

    def __call__(self, *given: Any) -> None:
        self.seen.append(given)
        self._changed.set()

    async def until(self, count: int = 1) -> list[tuple[Any, ...]]:
        async with asyncio.timeout(LIMIT):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.seen


class Gate:
    """A handler's doorstep: it says that it has come in, and stays until it is let through."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.inside = 0
        self.most = 0

    async def pass_through(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            await self.opened.wait()
        finally:
            self.inside -= 1

    async def reached(self) -> None:
        await within(self.entered.wait())

    def open(self) -> None:
        self.opened.set()


class World:
    """Virtual time on a memory store: a minute of waiting costs nothing."""

    def __init__(self, wrap: Callable[[MemoryBackend], Any] = lambda backend: backend) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, SimLoop)
        self.clock = SimClock(self.loop)
        self.memory = MemoryBackend(now=self.clock.now)
        self._wrap = wrap
        self._made = 0

    def client(self, **given: Any) -> Client:
        self._made += 1
        backend = self._wrap(MemoryBackend(self.memory.store, self.clock.now))
        return Client(
            backend, settings(**given), clock=self.clock, rng=Random(f"client {self._made}"), heartbeat_thread=False
        )

    def queue(self, name: str = "jobs", **options: Any) -> Queue[Any, Any]:
        return Queue[Any, Any](name, self.client(), **options)

    def app(self, **given: Any) -> App:
        return App(self.client(**given))

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time()


def simulate(main: Callable[[World], Coroutine[Any, Any, T]], wrap: Callable[[MemoryBackend], Any] | None = None) -> T:
    """Run ``main`` in virtual time."""

    async def begin() -> T:
        async with asyncio.timeout(100 * 24 * 3_600):
            return await main(World(wrap) if wrap else World())

    return run(begin())


class Tapped(Wrapped):
    """A memory backend that a test may override in places."""

    def sibling(self) -> Any:
        return type(self)(self.inner.sibling())


def script(code: str, *, seconds: float = 100) -> list[str]:
    """The words that a program of its own prints; for what would take a test process down with it."""
    program = [sys.executable, "-c", textwrap.dedent(code)]
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(program, cwd=root, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"not done in {seconds} s; it said:\n{late.stdout}\n{late.stderr}") from None
    assert done.returncode == 0, f"it ended with {done.returncode}; it said:\n{done.stdout}\n{done.stderr[-3_000:]}"
    return done.stdout.split()
