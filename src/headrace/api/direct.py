"""Doors for code that blocks: straight to the store, without an event loop.

A door is a client on a store whose calls block. What it does, it does by the code that other clients run; only what
needs an event loop (waiting for room or for a hint, objects, observers) is left to a loop in the background.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import WeakSet

from headrace.api.client import AnyId, Client
from headrace.api.job_errors import raise_unless_completed
from headrace.core.backoff import Backoff
from headrace.core.driving import drive
from headrace.core.patience import GRACE, SLOWEST, Patience
from headrace.errors import ConfigError, HeadraceError, SchemaMismatch, StoreFull, Unavailable
from headrace.keeping.budget import BudgetWatch
from headrace.limits.gate import Admission
from headrace.payloads.codec import Serde
from headrace.payloads.offload import LARGE
from headrace.seam import records as r
from headrace.seam.forks import in_child, look
from headrace.seam.protocol import Backend, Left
from headrace.types import JobState, NewJob

R = TypeVar("R")
T = TypeVar("T")

_MOST = 4
"""Doors of one client. They stay open while nobody uses them."""
_ASK = 3.0
"""Seconds after which it is asked again whether somebody watches."""
_RESULT = frozenset({"result"})
_BEFORE_FORK = 5.0
"""Seconds that a fork waits for calls to end."""


class NeedsLoop(Exception):
    """Only a loop can do this."""


class _Patience(Patience):
    """The same patience, of a thread: it is kept once for all that the call of a door asks of the store."""

    def begin(self) -> None:
        """A call begins."""
        self._began = monotonic()
        self._end = self._began + self.seconds + GRACE

    def left(self) -> float:
        """Seconds in which the store must have answered."""
        return self._end - monotonic()

    async def once(self, call: Awaitable[R]) -> R:
        return await call

    async def repeat(
        self,
        call: Callable[[], Awaitable[R]],
        items: Sequence[T] = (),
        weigh: Callable[[T], int] = lambda item: 0,
        *,
        final: type[Exception] = StoreFull,
    ) -> R:
        backoff = Backoff(self._rng)
        self._end = max(self._end, self._began + sum(map(weigh, items)) / SLOWEST)
        while True:
            try:
                return await call()
            except Unavailable as error:
                pause = backoff.pause()
                if isinstance(error, final) or monotonic() + pause > self._began + self.seconds:
                    raise
                _pause(pause)


def _pause(seconds: float) -> None:
    sleep(seconds)


class _Tasks:
    """Runs at once what others start in the background."""

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        drive(work)


class _Inserts:
    """Sends each row by itself."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def put(self, row: r.Row) -> r.Inserted:
        [answer] = await self._door._insert_patiently([row])
        return answer


class Door(Client):
    """A client of one thread at a time. Its coroutines never wait for a loop."""

    _patience: _Patience

    def __init__(self, main: Client, make: Callable[[Left], Backend]) -> None:
        super().__init__(make(lambda: self._patience.left()), main.settings, clock=main.clock, rng=main._given_rng)
        self._main, self.sending = main, main.sending
        self._opened = False

    def _prepare(self) -> None:
        super()._prepare()
        self._patience = _Patience(self._rng, self._patience.seconds)

    def begin(self) -> None:
        """A call begins."""
        self._patience.begin()

    async def open(self) -> None:
        if self._opened:
            return
        try:
            await self._backend.open()
        except (ConfigError, SchemaMismatch) as error:  # the loop may create what is missing, or says what is wrong
            raise NeedsLoop from error
        self._budget = BudgetWatch(self._backend, self.observers, self.clock)
        self._tasks = _Tasks()  # type: ignore[assignment]
        self._inserts = _Inserts(self)  # type: ignore[assignment]
        self._opened = True

    def _is_open(self) -> bool:
        return self._opened

    async def _open_patiently(self) -> None:
        if not self._opened:
            await self._patience.repeat(self.open, final=ConfigError)

    async def backend(self) -> Backend:
        await self.open()
        return self._backend

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._backend.close()

    async def heard(self) -> bool:
        """Whether somebody watches what happens, in whatever process. Then a loop is needed to tell of it."""
        await self._open_patiently()
        events = self._backend.events
        try:
            return events is not None and await events.heard()
        except HeadraceError:
            return False

    async def result_now(self, job_id: AnyId, serde_of: Callable[[r.Record], Serde[T]]) -> T:
        """The result of a job that has completed. For any other, somebody has to wait, or to tell why it failed."""
        record = await self.fetch(job_id, _RESULT)
        if record is None or record.state is not JobState.COMPLETED or len(record.result or b"") > LARGE:
            raise NeedsLoop
        raise_unless_completed(record, self.packer.envelope)
        return self.packer.envelope.decode(record.result, serde_of(record), "result", record.id)

    async def _seal(self, job: NewJob, inbox: str | None) -> r.Row:
        return self.packer.pack(job, inbox)

    async def _pack_all(self, jobs: list[NewJob]) -> list[r.Row]:
        return [self.packer.pack(job) for job in jobs]

    def _tell_inserted(self, row: r.Row, answer: r.Inserted) -> None:
        """Nobody listens; see ``Doors.usable``."""

    async def _admit(
        self, admission: Admission, before: Sequence[r.Row] = (), after: Sequence[r.Row] = ()
    ) -> list[r.Inserted]:
        raise NeedsLoop  # room may come; jobs that were stored are found by their ids


class Doors:
    """The doors of one client, a few. Callable from any thread: one that finds all of them in use needs a loop, where
    calls share connections."""

    def __init__(self, client: Client, make: Callable[[Left], Backend]) -> None:
        self._client = client
        self._make = make
        self._lock = threading.Condition()
        self._idle: list[Door] = []
        self._busy = 0
        self._forking = False
        self._asked = -_ASK
        self._heard = False
        """Whether somebody watched when that was last asked."""
        _all.add(self)

    def call(self, work: Callable[[Door], Coroutine[Any, Any, R]]) -> R:
        """Have a coroutine run on a door. Raises ``NeedsLoop`` if it cannot."""
        with self._lock:
            while self._forking:
                self._lock.wait()
            door = self._idle.pop() if self._idle else None
            if door is None and self._busy >= _MOST:
                raise NeedsLoop
            self._busy += 1
        try:
            door = door or Door(self._client, self._make)
            door.begin()
            return drive(self._unheard(door, work))
        finally:
            self._give(door)

    async def _unheard(self, door: Door, work: Callable[[Door], Coroutine[Any, Any, R]]) -> R:
        now = monotonic()
        if now - self._asked >= _ASK:
            self._asked = now
            self._heard = await door.heard()
        if self._heard:
            raise NeedsLoop
        return await work(door)

    def _give(self, door: Door | None) -> None:
        with self._lock:
            self._busy -= 1
            if door is not None:
                self._idle.append(door)
            self._lock.notify_all()

    def close(self) -> None:
        """Close those that nobody uses. What is used again opens itself."""
        with self._lock:
            idle, self._idle = self._idle, []
        for door in idle:
            with suppress(Exception):
                drive(door.close())

    def __del__(self) -> None:
        """Its client is gone."""
        self.close()

    def before_fork(self) -> None:
        """A child must inherit nothing that is open: most drivers do not survive a fork, nor do SQLite's locks."""
        self._lock.acquire()
        self._forking = True
        self._lock.wait_for(lambda: not self._busy, _BEFORE_FORK)
        for door in self._idle:
            with suppress(Exception):
                drive(door.close())

    def after_fork(self) -> None:
        """In the parent, go on."""
        self._forking = False
        self._lock.notify_all()
        self._lock.release()

    def forked(self) -> None:
        """In the child, start over. What another thread was using is the parent's."""
        self._lock = threading.Condition()
        _inherited.extend(self._idle)
        self._idle, self._busy, self._forking = [], 0, False


_making = threading.Lock()
"""Several threads may be the first."""
_all: WeakSet[Doors] = WeakSet()
_forking: list[Doors] = []
_inherited: list[Door] = []
"""Those of the parent: if they were collected here, their connections would be closed, which the parent still uses."""


def doors_of(client: Client) -> Doors | None:
    """The doors of a client; None if its calls need a loop."""
    look()
    main = client.main
    if main.observers or main.observers.meter is not None:
        return None  # observers are called on the loop
    if main.doors is None:
        with _making:
            if main.doors is None:
                make = main.blocking
                main.doors = Doors(main, make) if make is not None else False
    return main.doors or None


def close_doors(client: Client) -> None:
    """Disconnect the doors of a client."""
    if isinstance(client.main.doors, Doors):
        client.main.doors.close()


def _before_fork() -> None:
    _making.acquire()
    _forking[:] = list(_all)
    for doors in _forking:
        doors.before_fork()


def _after_in_parent() -> None:
    _making.release()
    while _forking:
        _forking.pop().after_fork()


def _after_in_child() -> None:
    global _making
    _making = threading.Lock()
    _forking.clear()
    for doors in list(_all):
        doors.forked()


def _end() -> None:
    for doors in list(_all):
        doors.close()


atexit.register(_end)
os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent)
in_child(_after_in_child)
