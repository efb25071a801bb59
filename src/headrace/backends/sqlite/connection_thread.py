"""A thread with a connection of its own: commands go in from the event loop, answers come back to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import apsw

from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.backends.sqlite.translate import translate
from headrace.errors import Unavailable

S = TypeVar("S")
T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a caller is told that the store is not available. Its command may still be carried out."""


class Read(Protocol):
    """How to have something looked up by the reader."""

    def __call__(self, work: Callable[[Session, int], T], at: int | None) -> Awaitable[T]: ...


class Write(Protocol):
    """How to have something done by the writer; the options are those of a :class:`Command`."""

    def __call__(
        self, work: Callable[[Transaction, int], T], at: int | None, *,
        peek: Callable[[Session, int], T | None] | None = None, weight: int = 1, grows: bool = False,
    ) -> Awaitable[T]: ...  # fmt: skip


class Capability:
    """Something beside the ten operations that the store can do, by way of its threads."""

    def __init__(self, read: Read, write: Write) -> None:
        self._read = read
        self._write = write


class Command(Generic[S]):
    """One call of one operation."""

    __slots__ = ("answered", "at", "error", "future", "grows", "peek", "result", "since", "weight", "work")

    def __init__(
        self,
        work: Callable[[S, int], Any],
        at: int | None,
        *,
        peek: Callable[[Any, int], Any] | None = None,
        weight: int = 1,
        grows: bool = False,
    ) -> None:
        self.work = work
        self.at = at
        self.peek = peek
        """Looks without a lock: the answer if there is nothing to write, else None."""
        self.weight = weight
        """About how many rows it touches."""
        self.grows = grows
        """Whether it brings in new jobs."""
        self.future: asyncio.Future[Any]
        self.since = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.answered = False

    def answer(self) -> Any:
        """Its result, or its error."""
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.future.done()


class Done(Generic[T]):
    """The answer to a command that was served already."""

    __slots__ = ("_command",)

    def __init__(self, command: Command[Any]) -> None:
        self._command = command

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        answer: T = self._command.answer()
        return answer


class ConnectionThread(Generic[S]):
    """The thread, and how commands and answers pass between it and the loop.

    Subclasses say how to open, how to serve a batch of commands, and how to shut, all on the thread.
    """

    def __init__(self, path: str, now: Callable[[], int]) -> None:
        self.path = path
        self._now = now
        self._queue: SimpleQueue[Command[S] | None] = SimpleQueue()
        self._waiting: dict[Command[S], None] = {}
        self._watchdog: asyncio.TimerHandle | None = None

    # -- on the loop

    async def start(self) -> None:
        """Open the connection."""
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, name=f"headrace-{type(self).__name__.lower()}", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._opened)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._queue.put(None)  # should it get through after all, it has nothing to do
            raise self.too_late() if isinstance(error, TimeoutError) else error from None
        except BaseException:
            self._thread.join()
            raise

    def submit(self, command: Command[S]) -> asyncio.Future[Any]:
        """Have a command served; the future gets its result."""
        loop = self._loop
        command.future = loop.create_future()
        command.since = loop.time()
        self._waiting[command] = None
        if self._watchdog is None:
            self._watchdog = loop.call_later(PATIENCE, self._look)
        self._queue.put(command)
        return command.future

    async def stop(self) -> None:
        """Serve what is queued, then shut."""
        self._queue.put(None)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # its own loop is gone, and nobody waits
            await loop.run_in_executor(None, self._thread.join, PATIENCE)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._closed)
            self._thread.join()
        except TimeoutError:  # another process holds the lock; the thread ends when it gets it
            self._look()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _look(self) -> None:
        """Fail the commands that have waited for too long."""
        self._watchdog = None
        now = self._loop.time()
        for command in list(self._waiting):
            left = command.since + PATIENCE - now
            if left > 0:
                self._watchdog = self._loop.call_later(left, self._look)
                break
            del self._waiting[command]
            _resolve(command.future, self.too_late())

    def too_late(self) -> Unavailable:
        """What a caller is told that has waited for too long."""
        return Unavailable(
            f"{self.path} did not answer in time: another process holds {self.path}-latch or the "
            f"database itself. Look for a process that is stopped in the middle of a write."
        )

    def _deliver(self, commands: Sequence[Command[S]]) -> None:
        for command in commands:
            self._waiting.pop(command, None)
            if command.future.done():
                continue
            if command.error is not None:
                command.future.set_exception(command.error)
            else:
                command.future.set_result(command.result)

    # -- on the thread

    def _main(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self._call(_resolve, self._opened, error)
            return
        self._call(_resolve, self._opened)
        while commands := self._take():
            try:
                self._serve(commands)
            except BaseException as error:
                left = [command for command in commands if not command.answered]
                for command in left:
                    command.error = error
                self._answer(left)
        try:
            self._shut()
        finally:
            self._call(_resolve, self._closed)

    def _take(self) -> list[Command[S]]:
        """The commands that wait, as many as may be served together; none when it is time to stop."""
        commands: list[Command[S]] = []
        weight = 0
        while weight < self._load() and (not commands or self._queue.qsize()):
            command = self._queue.get()
            if command is None:
                if commands:
                    self._queue.put(None)
                break
            commands.append(command)
            weight += command.weight
        return commands

    def _answer(self, commands: Sequence[Command[S]]) -> None:
        """Wake the loop once for all of them."""
        for command in commands:
            command.answered = True
        if commands:
            self._call(self._deliver, commands)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody waits
            pass

    def _instant(self, command: Command[S]) -> int:
        return self._now() if command.at is None else command.at

    def _translated(self, error: BaseException, connection: apsw.Connection) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        raised = translate(error, self.path, connection.system_errno)
        raised.__cause__ = error
        return raised

    def _load(self) -> int:
        """About how many rows commands that are served together may touch."""
        return 1

    def _open(self) -> None:
        raise NotImplementedError

    def _serve(self, commands: list[Command[S]]) -> None:
        raise NotImplementedError

    def _shut(self) -> None:
        raise NotImplementedError


def _resolve(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if not future.done():
        future.set_result(None) if error is None else future.set_exception(error)
