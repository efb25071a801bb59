"""The effect ledger: what handlers really did, written by their own processes, outside of the system under test."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct


class Entry(Struct, frozen=True):
    """One thing that happened in a worker process; ``ns`` is the machine's monotonic clock."""

    kind: str
    id: str
    epoch: int
    pid: int
    ns: int


class LedgerWriter:
    """Appends with one write per line: whole lines survive kill -9, as the page cache does."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = os.getpid()

    def write(self, kind: str, job_id: str = "-", epoch: int = 0) -> None:
        os.write(self._file, f"{kind} {job_id} {epoch} {self._pid} {time.monotonic_ns()}\n".encode())


class Ledger:
    """All that every process wrote."""

    def __init__(self, folder: Path) -> None:
        self.entries: list[Entry] = []
        for path in sorted(folder.glob("*.log")):
            for line in path.read_text().splitlines():
                kind, job_id, epoch, pid, ns = line.split(" ")
                self.entries.append(Entry(kind, job_id, int(epoch), int(pid), int(ns)))

    def runs(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(entry.id for entry in self.entries if entry.kind == "start")

    def count(self, kind: str) -> int:
        return sum(entry.kind == kind for entry in self.entries)
