"""litequeue: a bare table in a SQLite file, no worker of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.systems.system import Loop, LoopSystem, stdlib_sqlite


class LiteQueue(LoopSystem):
    """One process that pops a message, does nothing with it and marks it done."""

    packages = ("litequeue",)
    distributions = ("litequeue",)

    def __init__(self, name: str, durability: str | None) -> None:
        level = "synchronous=NORMAL (its default)" if durability is None else f"synchronous={durability.upper()}"
        super().__init__(name, "sqlite", f"WAL, {level}; 1 ms poll when idle")
        self._durability = durability
        if durability is not None:
            # Another durability than its own is there for one comparison only.
            self.roles = frozenset({"enqueue"})

    def connect(self, path: Path) -> Loop:
        return _Loop(path, self._durability)

    def left(self, path: Path) -> Callable[[], bool]:
        connection = sqlite3.connect(path, isolation_level=None)
        query = "SELECT EXISTS (SELECT 1 FROM Queue WHERE status IN (0, 1))"
        return lambda: bool(connection.execute(query).fetchone()[0])

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()


class _Loop(Loop):
    def __init__(self, path: Path, durability: str | None) -> None:
        from litequeue import LiteQueue as Queue

        self._queue = Queue(path)
        if durability is not None:
            self._queue.conn.execute(f"PRAGMA synchronous = {durability}")

    def put(self, text: str) -> None:
        self._queue.put(text)

    def take(self) -> tuple[Any, str] | None:
        message = self._queue.pop()
        return None if message is None else (message.message_id, message.data)

    def done(self, taken: Any) -> None:
        self._queue.done(taken)
