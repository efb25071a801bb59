"""A client's connection to its store: which loop has it open, what is made when it opens, and what ends with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict

from headrace.api.waiter import Waiter
from headrace.core.clock import Clock, SystemClock
from headrace.core.config import PayloadSettings, Settings
from headrace.core.durations import micros
from headrace.core.event_log import log_event
from headrace.core.events import Observers
from headrace.core.feed import Feed
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.core.names import worker_name
from headrace.core.patience import Patience
from headrace.core.slow_calls import took
from headrace.core.tasks import Tasks
from headrace.core.upkeep import OBJECTS
from headrace.errors import ConfigError
from headrace.payloads.object_owner import ObjectOwner
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.payloads.pack import Packer
from headrace.payloads.stowage import Stowage
from headrace.seam import records as r
from headrace.seam.forks import in_child
from headrace.seam.protocol import Backend, Left, Transactions

_DAY = 86_400_000_000
settling = threading.Lock()
"""Held for a moment while a client finds its home. A child of a fork has another one."""


def _after_fork() -> None:
    """Another thread of the parent may have held it."""
    global settling
    settling = threading.Lock()


in_child(_after_fork)


class ClientConnection:
    """Opens and closes. Everything else that a client does is built on it."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        heartbeat_thread: bool = True,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.observers = Observers(log_event)
        self.alert_hooks: list[Callable[[Any], Any]] = []
        """Told when an alert of the store comes on or is over, by servers that look for alerts in this process."""
        self._given_rng = rng
        self._make_packer = _packer_maker(settings.payloads)
        self._location = None if settings.objects.url is None else parse(settings.objects.url)
        self._stowage: Stowage | None = None
        self._feed: Feed | None = None
        self._heartbeat_thread = heartbeat_thread
        self._backend = backend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._passing: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._inside = 0
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._opener: asyncio.Task[None] | None = None
        """Opens it for callers who may give up meanwhile."""
        self._prepare()

    def _prepare(self) -> None:
        self._rng = self._given_rng or seeded_by_system()
        self._patience = Patience(self._rng, micros(self.settings.patience) / 1e6, self._took)
        self.packer = self._make_packer(self._backend.limits, IdMaker(self.clock, self._rng))

    def _took(self, operation: str, seconds: float) -> None:
        took(self.observers, operation, seconds)

    @property
    def limits(self) -> r.Limits:
        """What the store can take."""
        return self._backend.limits

    @property
    def patience(self) -> float:
        """For how many seconds calls are repeated."""
        return self._patience.seconds

    @property
    def blocking(self) -> Callable[[Left], Backend] | None:
        """What makes stores whose calls block; None where calls need an event loop: in a simulation, with objects, and
        where the store cannot."""
        if self._given_rng is not None or self._location is not None or not self._heartbeat_thread:
            return None
        return self._backend.blocking

    @property
    def tx(self) -> Transactions | None:
        """Jobs in the caller's own transactions, if the store can do that."""
        return self._backend.tx

    # -- opening and closing

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The loop that has the client open, or is about to; it can be used only there. Callable from any thread."""
        found = self._home
        return None if found is None or found[0] != os.getpid() or found[1].is_closed() else found[1]

    @property
    def host(self) -> asyncio.AbstractEventLoop | None:
        """The home, if it runs and takes calls of other threads."""
        home = self.home
        return home if home is not None and home.is_running() and not self.passing else None

    @property
    def passing(self) -> bool:
        """Whether its home ends soon."""
        return self._passing is not None and self.home is self._passing

    def settle(self, loop: asyncio.AbstractEventLoop, *, passing: bool = False) -> asyncio.AbstractEventLoop:
        """Make this loop its home, unless it has one; returns its home. One that is ``passing`` ends soon, so it takes
        no calls of other threads. Callable from any thread."""
        with settling:
            home = self.home
            if home is None:
                self._home = (os.getpid(), loop)
                self._passing = loop if passing else None
            return home or loop

    def unsettle(self, loop: asyncio.AbstractEventLoop) -> None:
        """This loop is its home no longer."""
        with settling:
            if self.home is loop:
                self._home = self._passing = None

    async def open(self) -> None:
        """Connect now instead of on first use, to see at once whether the store is there."""
        loop = asyncio.get_running_loop()
        if self._is_open():
            return
        self._settle_here(loop)
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        async with self._opening[1]:
            if self._is_open():
                return
            self._settle_here(loop)
            try:
                await self._leave_old_loop()
                await self._backend.open()
                self._stowage = await self._open_objects()
            except BaseException:
                self.unsettle(loop)
                raise
            self._tasks = Tasks()
            self._closed = asyncio.Event()
            self._waiter = Waiter(self._backend, self.clock, self._rng, self._tasks, self._patience)
            self._begin()
            self._loop, self._pid, self._inside = loop, os.getpid(), 0
            self._feed = self._make_feed()

    def _begin(self) -> None:
        """Make what lives as long as the connection."""

    async def _end(self) -> None:
        """Finish what was submitted, before the connection is closed."""

    def _make_feed(self) -> Feed | None:
        """None in simulations, whose time is not ours."""
        if self._backend.events is None or not self._heartbeat_thread:
            return None
        strategy = self.settings.worker.name
        worker = "" if strategy == "random" else worker_name(strategy, self.rng)
        feed = Feed(self._backend.events, self.observers, self.clock, self._tasks, worker)
        feed.start()
        return feed

    async def _open_objects(self) -> Stowage | None:
        if self._location is None:
            return None
        if self._backend.references is None or self._backend.documents is None:
            raise ConfigError(
                "objects.url: this store cannot find jobs by their objects, or keeps no documents, so none may leave "
                "it; unset it"
            )
        settings = self.settings.objects
        told = partial(self.observers.requested, OBJECTS)
        objects = Objects(self._location, keep_days=-(-micros(settings.keep) // _DAY), timed=told)
        owner = ObjectOwner(objects, self._backend.documents)
        stowage = Stowage(objects, settings, self.clock, self._rng, self.observers, owner)
        await stowage.open()
        return stowage

    @property
    def stowage(self) -> Stowage | None:
        """What moves sections to the object store and back, if there is one; of an open client."""
        return self._stowage

    def copies(self) -> dict[str, dict[str, int]]:
        """What became of copies of new jobs, which go to another shard or to the store that jobs will move to: how many
        this process has written, dropped and failed to write, by the shard's name; ``second`` if the store moves."""
        found: dict[str, Struct] = getattr(self._backend, "copies", {})
        return {name: asdict(counts) for name, counts in found.items()}

    def payload_sizes(self) -> dict[str, Any]:
        """How large the sections and results were that this client has packed so far, as plain data that JSON can
        carry: of each how many, their bytes before and after compression, and the largest before it. ``objects``: how
        many requests it made to the object store, by kind."""
        return self.packer.sizes.plain() | {
            "objects": {} if self._stowage is None else dict(self._stowage.objects.requests)
        }

    def _settle_here(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.settle(loop) is not loop:
            raise ConfigError(
                "this client is in use on another event loop; make one client per loop, or close it there first: leave "
                "`async with app`. In threads, call task.enqueue_sync(…), or use SyncApp(app)"
            )

    def _is_open(self) -> bool:
        """Whether it is open where the caller is."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    async def _open_patiently(self) -> None:
        """Open for an enqueue, which waits while the store is away."""
        if not self._is_open():
            await self._patience.repeat(self._open_behind, final=ConfigError)

    async def _open_behind(self) -> None:
        """Open for callers who may give up. Opening goes on then, as it may take long: it may create the store."""
        if self._is_open():
            return
        loop = asyncio.get_running_loop()
        if self._opener is None or self._opener.done() or self._opener.get_loop() is not loop:
            self._opener = loop.create_task(self.open(), name="headrace-open")
            self._opener.add_done_callback(_seen)
        await asyncio.shield(self._opener)

    async def _leave_old_loop(self) -> None:
        if self._loop is None:
            return
        old, self._backend = self._backend, self._backend.sibling()
        if self._pid == os.getpid():
            await old.close()
        self._prepare()

    async def close(self) -> None:
        """Finish what was submitted and disconnect. The client opens itself again when it is used."""
        loop = asyncio.get_running_loop()
        if self._opener is not None and self._opener.get_loop() is loop and not self._opener.done():
            self._opener.cancel()
            await asyncio.wait([self._opener])
        if not self._is_open():
            return
        self._closed.set()
        await self._end()
        # From here on, calls open the client again: nothing may be submitted to what is about to end.
        old, self._backend = self._backend, self._backend.sibling()
        feed, waiter, tasks = self._feed, self._waiter, self._tasks
        self._loop = None
        self.unsettle(loop)
        if feed is not None:
            await feed.close()
        waiter.close()
        await tasks.close()
        await old.close()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.exit():
            await self.close()

    async def enter(self) -> bool:
        """Open it for a block; returns whether no other block has it open."""
        await self.open()
        self._inside += 1
        return self._inside == 1

    def exit(self) -> bool:
        """Leave a block; returns whether it was the last one, so that the client is to be closed."""
        self._inside -= 1
        return self._inside <= 0

    @property
    def rng(self) -> Random:
        """Where its chance comes from."""
        return self._rng

    async def backend(self) -> Backend:
        """The opened store, for tools that speak its protocol. A call that it does not answer within ``patience`` is
        given up."""
        if not self._is_open():
            await self._patience.once(self._open_behind())
        return self._patience.kept(self._backend)


def _packer_maker(settings: PayloadSettings) -> Callable[[r.Limits, IdMaker], Packer]:
    keys = settings.sealing.keys
    if keys is None:
        return partial(Packer, settings)
    try:
        from headrace.payloads.keyring import read_keyring
        from headrace.payloads.sealing import SealingPacker
    except ImportError as error:
        raise ConfigError(f"sealing needs cryptography ({error}); install: pip install 'headrace[sealing]'") from error
    return partial(SealingPacker, settings, read_keyring(keys))


def _seen(opener: asyncio.Task[None]) -> None:
    """Whoever still waits gets the error; if nobody does, the error is dropped."""
    if not opener.cancelled():
        opener.exception()
