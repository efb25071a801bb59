"""The thread that writes: all waiting commands share one transaction, one sync and one wake-up of the loop."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from time import monotonic, perf_counter, sleep
from typing import Any

import apsw

from headrace.backends.sqlite import lock_guard, setting_aside
from headrace.backends.sqlite.connection_thread import Command, ConnectionThread, T
from headrace.backends.sqlite.disk_space import DiskSpace
from headrace.backends.sqlite.hints import SqliteHints
from headrace.backends.sqlite.latch import Latch
from headrace.backends.sqlite.schema import BUSY_TIMEOUT, CHECKPOINT_PAGES, connect, prepare
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.errors import StoreFull, Unavailable
from headrace.seam.records import JobId

_ROWS_AT_ONCE = 2_000
"""A transaction carries commands until they touch this many rows, because others wait for it."""

_PROMPT = 0.001
"""Seconds. While transactions take no longer, a caller may as well wait for its own."""
_SMOOTHING = 0.1
_GLANCE = 0.0005
"""Seconds between the looks of a caller that waits for the latch."""

Commands = list[Command[Transaction]]
Hints = dict[str, list[JobId]]


class Writer(ConnectionThread[Transaction]):
    """Group commit. A command that fails does not take its neighbours along: they are tried again, each on its own."""

    _connection: apsw.Connection
    _session: Session
    _latch: Latch
    _file: lock_guard.FileId

    def __init__(
        self, path: str, now: Callable[[], int], hints: SqliteHints | None, *, wal: bool, durability: str
    ) -> None:
        super().__init__(path, now)
        self._hints = hints
        self._wal = wal
        self._durability = durability
        self._disk = DiskSpace(os.path.dirname(path))
        self._log_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._in_use = threading.Lock()
        """Held by the thread that uses the connection."""
        self._pace = math.inf
        """How long a transaction took lately, in seconds."""

    def abandon(self) -> None:
        """This is a forked child: the connection is the parent's, and so is the latch."""
        lock_guard.keep(self._connection)
        self._latch.close()

    def _load(self) -> int:
        return _ROWS_AT_ONCE

    def _open(self, deadline: float | None = None) -> None:
        lock_guard.check(self.path)
        self._connection = connect(self.path)
        self._file = lock_guard.enter(self.path)
        self._session = Session(self._connection)
        self._latch = Latch(self.path)
        try:
            if deadline is None:
                self._latch.acquire()
            else:
                self._get_in(deadline)
            prepare(self._connection, self.path, wal=self._wal, durability=self._durability)
        except BaseException:
            self._shut()
            raise
        self._latch.release()
        self._connection.set_wal_hook(self._logged)

    def _shut(self) -> None:
        with self._in_use:
            self._connection.close(True)
            self._latch.close()
            lock_guard.leave(self._file)

    # -- on the caller's thread

    def begin(self, deadline: float) -> None:
        """Open the connection for callers that block; there is no thread then."""
        self._open(deadline)

    def end(self) -> None:
        """Close it."""
        self._shut()

    def serve_here(self, command: Command[Transaction]) -> bool:
        """Serve one command on the caller's thread, which saves two changes of threads. False: it is to be submitted,
        as commits take long, somebody else writes or waits to, or there is more to do than to write."""
        if self._pace > _PROMPT or not self._wal or self._queue.qsize() or not self._in_use.acquire(blocking=False):
            return False
        try:
            if self._log_pages >= self._checkpoint_at or self._disk.refusal(self._spare) is not None:
                return False
            return self._latch.acquire(wait=False) and self._serve_at_once(command)
        finally:
            self._in_use.release()

    def _serve_at_once(self, command: Command[Transaction]) -> bool:
        began = perf_counter()
        self._connection.set_busy_timeout(0)
        try:
            hints = self._run([command])
        finally:
            self._connection.set_busy_timeout(BUSY_TIMEOUT)
            self._latch.release()
            self._note(perf_counter() - began)
        if command.error is not None and isinstance(command.error.__cause__, apsw.BusyError):
            command.error = None
            return False
        if self._hints is not None:
            self._hints.send(hints)
        return True

    def serve_blocking(self, command: Command[Transaction], deadline: float) -> None:
        """Serve one command on the caller's thread, however long its own work takes, but begin that before the
        deadline."""
        with self._in_use:
            if command.grows and (refusal := self._disk.refusal(self._spare)) is not None:
                raise refusal
            self._get_in(deadline)
            try:
                hints = self._run([command])
            finally:
                self._latch.release()
            if self._hints is not None:
                self._hints.send(hints)
            if self._log_pages >= self._checkpoint_at and self._latch.acquire(wait=False):
                self._checkpoint()
                self._latch.release()

    def _get_in(self, deadline: float) -> None:
        """Wait for the latch until then, and have the connection wait no longer for others who write without it."""
        while not self._latch.acquire(wait=False):
            if monotonic() > deadline:
                raise self.too_late()
            sleep(_GLANCE)
        self._connection.set_busy_timeout(min(BUSY_TIMEOUT, max(0, int((deadline - monotonic()) * 1_000))))

    def look(self, work: Callable[[Session, int], T], at: int | None) -> T:
        """Read on the caller's thread, from one snapshot of the store."""
        with self._in_use:
            try:
                self._connection.execute("BEGIN")
                return work(self._session, self._now() if at is None else at)
            except apsw.Error as error:
                raised = self._translated(error, self._connection)
                raise raised from raised.__cause__
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _note(self, seconds: float) -> None:
        self._pace = seconds if self._pace == math.inf else self._pace + _SMOOTHING * (seconds - self._pace)

    # -- one transaction

    def _serve(self, commands: Commands) -> None:
        with self._in_use:
            self._serve_alone(commands)

    def _serve_alone(self, commands: Commands) -> None:
        commands = self._without_room(commands)
        if all(command.peek is not None for command in commands):
            commands = self._to_write(commands)
        if not commands:
            return
        self._latch.acquire()
        try:
            began = perf_counter()
            hints = self._run(commands)
            self._note(perf_counter() - began)
            checkpoint = self._log_pages >= self._checkpoint_at
            if not checkpoint:
                self._latch.release()
            if self._hints is not None:  # before the answer: a caller that listens has the hint when it gets the answer
                self._hints.send(hints)
            self._answer(commands)
            if checkpoint:
                self._checkpoint()
        finally:
            self._latch.release()

    def _without_room(self, commands: Commands) -> Commands:
        """The commands without those that nobody waits for and, on a full disk, those that bring in new jobs."""
        wanted = [command for command in commands if not command.abandoned]
        growing = [command for command in wanted if command.grows]
        refusal = self._disk.refusal(self._spare) if growing else None
        if refusal is None:
            return wanted
        for command in growing:
            command.error = refusal
        self._answer(growing)
        return [command for command in wanted if not command.grows]

    def _spare(self) -> int:
        """Bytes in pages of the file that hold nothing."""
        free: Any = self._connection.pragma("freelist_count")
        size: Any = self._connection.pragma("page_size")
        return int(free) * int(size)

    def _to_write(self, commands: Commands) -> Commands:
        """Look first: those of the commands that turn out to have something to write."""
        left: Commands = []
        answered: Commands = []
        for command in commands:
            assert command.peek is not None
            try:
                command.result = command.peek(self._session, self._instant(command))
            except Exception as error:
                command.error = self._translated(error, self._connection)
            (left if command.result is None and command.error is None else answered).append(command)
        self._answer(answered)
        return left

    def _run(self, commands: Commands) -> Hints:
        """All in one transaction, or, when that fails for one of them, each in its own."""
        try:
            return self._transact(commands)
        except Exception as error:
            hopeless = isinstance(error, Unavailable) and not isinstance(error, StoreFull)
            if len(commands) == 1 and self._set_aside(commands[0], error.__cause__ or error):
                return self._run(commands)
            if hopeless or len(commands) == 1:
                for command in commands:
                    command.error = error
                return {}
        hints: Hints = {}
        for command in commands:
            for topic, ids in self._run([command]).items():
                hints.setdefault(topic, []).extend(ids)
        return hints

    def _set_aside(self, command: Command[Transaction], error: BaseException) -> bool:
        """Whether a command may be tried again, as jobs that could not be read are out of its way now."""
        if command.grows or not setting_aside.suspects(error):
            return False
        mending = Command[Transaction](setting_aside.set_aside, command.at)
        self._transact([mending])
        return bool(mending.result)

    def _transact(self, commands: Commands) -> Hints:
        connection = self._connection
        try:
            lock_guard.check_in_place(self.path, self._file)
            connection.execute("BEGIN IMMEDIATE")
            tx = Transaction(connection)
            for command in commands:
                command.result = command.work(tx, self._instant(command))
            tx.flush()
            connection.execute("COMMIT")
        except BaseException as error:  # also an interrupt, on a caller's thread
            raised = self._translated(error, connection)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise raised from raised.__cause__
        return tx.hints

    # -- the write-ahead log

    def _logged(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._log_pages:  # it has started over
            self._checkpoint_at = CHECKPOINT_PAGES
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the file while nobody writes, so that the next transaction can start the log over.

        A reader that still needs the log, or a full disk, prevents that; then it is tried again later.
        """
        self._checkpoint_at = self._log_pages + CHECKPOINT_PAGES // 4
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            pass
