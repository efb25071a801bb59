"""What happened: every call at the waist from both ends, every run of a handler, every fault, in one order.

A call leaves up to four kinds of events: ``invoke`` when a node sends it; ``applied`` each time the store carries it
out (never, when the request is lost; twice, when it is delivered twice); then ``ok`` when its answer reaches the
node, ``fail`` when it certainly did nothing, or ``unknown`` when the node cannot tell. The order of ``applied`` events
is the order in which the store changed: the checker reads the store's story from them, and the nodes' from the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from headrace.seam.records import JobId, Record, Stats
from headrace.seam.ticks import Schedule, Tick

_encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=repr).encode


class Kind(StrEnum):
    INVOKE = "invoke"
    APPLIED = "applied"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"
    START = "start"
    """A handler begins."""
    END = "end"
    """A handler is through, or was stopped."""
    FAULT = "fault"
    SNAPSHOT = "snapshot"
    """An observer outside the system has read the whole store."""


class Event(Struct, frozen=True, gc=False):
    """One thing that happened. ``data`` depends on ``kind`` and ``op``."""

    seq: int
    at: int
    """The store's clock."""
    node: str
    kind: Kind
    op: str
    call: int
    data: Any


class Applied(Struct, frozen=True, gc=False):
    """The store carried a call out, at its instant ``now``."""

    now: int
    answer: Any
    audit: Any = None
    """What the observer saw that the answer does not tell: ids that a sweep removed, ``run_at`` of reaped jobs."""


class Run(Struct, frozen=True, gc=False):
    """One execution of a job's handler."""

    id: JobId
    epoch: int
    outcome: str = ""


class Snapshot(Struct, frozen=True, gc=False):
    """The whole store at one instant."""

    now: int
    records: list[Record]
    stats: Stats
    final: bool = False
    """Whether faults had stopped and work had had its time: whatever is not done now is stuck."""
    schedules: list[Schedule] = []
    ticks: list[tuple[bytes, Tick]] = []
    """Of each schedule by its uid."""


class Wait(Struct, frozen=True, gc=False):
    """Somebody's wish for the end of a job, within ``timeout``."""

    id: JobId
    timeout: int


class History:
    """An append-only list of events. ``clock`` gives the store's time."""

    def __init__(self, clock: Callable[[], int], seed: int | str = 0, replay: str = "") -> None:
        self.events: list[Event] = []
        self.seed = seed
        self.replay = replay
        """The command that makes this history again."""
        self.closed = False
        self.gate = asyncio.Lock()
        """Held while the store carries out a call and while that is recorded: so the order here is the order there."""
        self._clock = clock
        self._calls: dict[int, Event] = {}

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def now(self) -> int:
        """The store's clock."""
        return self._clock()

    def close(self) -> None:
        """The run is over: what happens from now on is clearing up."""
        self.closed = True

    # -- calls

    def invoke(self, node: str, op: str, args: Any) -> int:
        """A node sends a call; gives the number under which its further events are recorded."""
        event = self._add(node, Kind.INVOKE, op, len(self.events), args)
        self._calls[event.call] = event
        return event.call

    def applied(self, call: int, now: int, answer: Any, audit: Any = None) -> None:
        """The store has carried the call out."""
        self._reply(call, Kind.APPLIED, Applied(now, answer, audit))

    def ok(self, call: int, answer: Any) -> None:
        """The answer has reached the node."""
        self._reply(call, Kind.OK, answer)

    def fail(self, call: int, error: object) -> None:
        """The node knows that nothing was done."""
        self._reply(call, Kind.FAIL, repr(error))

    def unknown(self, call: int, error: object) -> None:
        """The node cannot tell whether it was done."""
        self._reply(call, Kind.UNKNOWN, repr(error))

    def invocation(self, call: int) -> Event:
        """The event with which a call began; its data are the arguments."""
        return self._calls[call]

    # -- everything else

    def start(self, node: str, run: Run) -> None:
        """A handler begins."""
        self._add(node, Kind.START, "run", -1, run)

    def end(self, node: str, run: Run) -> None:
        """A handler is through."""
        self._add(node, Kind.END, "run", -1, run)

    def fault(self, node: str, kind: str, detail: object = None) -> None:
        """Something was broken or mended on purpose."""
        self._add(node, Kind.FAULT, kind, -1, detail)

    def snapshot(self, snapshot: Snapshot) -> None:
        """The observer has looked."""
        self._add("observer", Kind.SNAPSHOT, "snapshot", -1, snapshot)

    def trace_hash(self) -> str:
        """A digest of everything: equal for equal seeds, in any process, on any machine."""
        digest = blake2b(digest_size=16)
        for event in self.events:
            digest.update(_encode(event))
        return digest.hexdigest()

    def _reply(self, call: int, kind: Kind, data: Any) -> None:
        begun = self._calls[call]
        self._add(begun.node, kind, begun.op, call, data)

    def _add(self, node: str, kind: Kind, op: str, call: int, data: Any) -> Event:
        event = Event(len(self.events), self._clock(), node, kind, op, call, data)
        if not self.closed:
            self.events.append(event)
        return event
