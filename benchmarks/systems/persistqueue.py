"""persist-queue: its SQLite queue with acknowledgements, no worker of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.systems.system import Loop, LoopSystem, stdlib_sqlite


class PersistQueue(LoopSystem):
    """One process that gets an item, does nothing with it and acknowledges it."""

    packages = ("persist-queue",)
    distributions = ("persist-queue",)

    def __init__(self, name: str) -> None:
        super().__init__(name, "sqlite", "WAL, synchronous=FULL (its default), SQLiteAckQueue; 1 ms poll when idle")

    def connect(self, path: Path) -> Loop:
        return _Loop(path)

    def left(self, path: Path) -> Callable[[], bool]:
        connection = sqlite3.connect(path / "data.db", isolation_level=None)
        (table,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'ack_queue%'").fetchone()
        # Acknowledged rows stay in the table, in the order of their ids: the last one tells.
        query = f"SELECT status FROM {table} ORDER BY _id DESC LIMIT 1"
        return lambda: int(connection.execute(query).fetchone()[0]) != 5

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()


class _Loop(Loop):
    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue = SQLiteAckQueue(str(path))

    def put(self, text: str) -> None:
        self._queue.put(text)

    def take(self) -> tuple[Any, str] | None:
        from persistqueue import Empty

        try:
            item = self._queue.get(block=False, raw=True)
        except Empty:
            return None
        return item["pqid"], item["data"]

    def done(self, taken: Any) -> None:
        self._queue.ack(id=taken)
