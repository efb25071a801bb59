"""The effect ledger: what handlers really did, written by their own processes, outside of the system under test."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

_TAIL = 16_384


class Entry(Struct, frozen=True):
    """One thing that happened in a worker process; ``ns`` is the machine's monotonic clock."""

    kind: str
    id: str
    epoch: int
    pid: int
    ns: int


class Run(Struct, frozen=True):
    """One run of a job: in which process, and when its handler was through, if it ever was."""

    id: str
    pid: int
    ended: int | None


class LedgerWriter:
    """Appends with one write per line: whole lines survive kill -9, as the page cache does."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = os.getpid()

    def write(self, kind: str, job_id: str = "-", epoch: int = 0, ns: int | None = None) -> None:
        at = time.monotonic_ns() if ns is None else ns
        os.write(self._file, f"{kind} {job_id} {epoch} {self._pid} {at}\n".encode())


def latest(folder: Path, kind: str) -> dict[int, int]:
    """When each process last wrote an entry of this kind, as far as its last few lines tell: for looking on while it
    still writes."""
    found: dict[int, int] = {}
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().rpartition(b"\n")[0].split(b"\n")
        for line in lines[1:]:
            parts = line.decode().split(" ")
            if parts[0] == kind:
                found[int(parts[3])] = int(parts[4])
    return found


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

    def doubled(self) -> int:
        """Leases under which a job was started more than once, in whatever process: none ever may be."""
        starts = Counter((entry.id, entry.epoch) for entry in self.entries if entry.kind == "start")
        return sum(count > 1 for count in starts.values())

    def repeated(self) -> list[Run]:
        """The runs that were not their job's last, but for jobs whose worker was told that the lease had lapsed."""
        lapsed = self.ids("lease_lost")
        last: Counter[str] = Counter()
        ends = {(entry.id, entry.epoch): entry.ns for entry in self.entries if entry.kind == "end"}
        starts = [entry for entry in self.entries if entry.kind == "start"]
        for entry in starts:
            last[entry.id] = max(last[entry.id], entry.epoch)
        return [
            Run(entry.id, entry.pid, ends.get((entry.id, entry.epoch)))
            for entry in starts
            if entry.epoch < last[entry.id] and entry.id.replace("-", "") not in lapsed
        ]

    def ids(self, kind: str) -> set[str]:
        """The jobs that this happened to."""
        return {entry.id for entry in self.entries if entry.kind == kind}

    def count(self, kind: str) -> int:
        return sum(entry.kind == kind for entry in self.entries)
