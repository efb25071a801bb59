"""A SQLite file for callers that block: what others hand to threads is done on the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from headrace.backends.sqlite import files, lock_guard
from headrace.backends.sqlite.backend import SqliteBackend
from headrace.backends.sqlite.connection_thread import PATIENCE, Command, Done, T
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.backends.sqlite.writer import Writer
from headrace.seam import records as r
from headrace.seam.protocol import Left


class BlockingSqlite(SqliteBackend):
    """One connection, to read and to write. Belongs to one thread at a time."""

    _pen: Writer | None = None
    left: Left

    @property
    def hints(self) -> None:
        """It tells others, and hears nothing."""

    def sibling(self) -> SqliteBackend:
        return self.blocking(self.left)

    async def open(self) -> None:
        if self._pen is not None and not self._forked:
            return
        files.refuse_planted_link(self._given)
        pen = Writer(self.path, self._now, self._hints, wal=self._wal, durability=self._durability)
        pen.begin(self._deadline())
        self._pen, self._forked = pen, False
        lock_guard.watch(self)

    async def close(self) -> None:
        pen, self._pen = self._pen, None
        if pen is not None and not self._forked:
            pen.end()
            self._fall_silent()

    def abandon(self) -> None:
        self._forked = True
        if self._pen is not None:
            self._pen.abandon()
        if self._hints is not None:
            self._hints.abandon()

    def _deadline(self) -> float:
        return monotonic() + min(PATIENCE, self.left())

    def _write(
        self, work: Callable[[Transaction, int], T], at: r.Stamp, *,
        peek: Callable[[Session, int], T | None] | None = None, weight: int = 1, grows: bool = False,
        here: bool = False,
    ) -> Done[T]:  # fmt: skip
        if self._pen is None or self._forked:
            raise self._not_open()
        command: Command[Transaction] = Command(work, at, weight=weight, grows=grows)
        self._pen.serve_blocking(command, self._deadline())
        return Done(command)

    def _read(self, work: Callable[[Session, int], T], at: r.Stamp) -> Done[T]:
        if self._pen is None or self._forked:
            raise self._not_open()
        command: Command[Session] = Command(work, at)
        command.result = self._pen.look(work, at)
        return Done(command)
