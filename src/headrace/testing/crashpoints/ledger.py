"""What really happened to each job, as the store's answers say, whether or not anybody got to read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.seam.records import JobId


class Event(Struct, frozen=True):
    """One fact about one job.

    ``granted``, ``settled``, ``lost``: a lease and how it ended. ``acked``: the producer of the job got the answer.
    ``ran``: its handler was started. ``asked``: the store was called at ``at``, for anything.
    """

    kind: str
    id: JobId = b""
    epoch: int = 0
    holder: str = ""
    at: int = 0


class Ledger:
    """Facts in the order in which they happened; with a path, each is in that file before the next can happen."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.events: list[Event] = []

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """What a process wrote down before it was killed."""
        ledger = cls()
        if path.exists():
            ledger.events = [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]
        return ledger

    def write(self, event: Event) -> None:
        """One more fact."""
        self.events.append(event)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")

    @property
    def now(self) -> int:
        """The latest instant at which the store was called."""
        return max(event.at for event in self.events)

    def of_kind(self, kind: str) -> list[Event]:
        """The facts of one kind."""
        return [event for event in self.events if event.kind == kind]

    def leases(self) -> Iterator[Event]:
        """What became of leases, call by call; in one call, those that end do so before others are granted."""
        told: list[Event] = []
        for event in [*self.events, Event("asked")]:
            if event.kind == "asked":
                yield from sorted(told, key=lambda fact: fact.kind == "granted")
                told = []
            elif event.kind in ("granted", "settled", "lost", "voided"):
                told.append(event)

    def count(self, kind: str) -> Counter[JobId]:
        """How many facts of one kind there are, by job."""
        return Counter(event.id for event in self.of_kind(kind))
