"""A backend that counts its calls and crashes at one of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from headrace.seam.protocol import Backend, Hints, PolicyStore, TickStore, Transactions, Turn
from headrace.seam.records import (
    Altered,
    Beat,
    Change,
    Claim,
    Claimed,
    Inserted,
    JobId,
    JobKey,
    Limits,
    Page,
    Reap,
    Reaped,
    Record,
    Renewed,
    Row,
    Selector,
    Settlement,
    Stamp,
    Stats,
    SweepClause,
    Swept,
)
from headrace.testing.crashpoints.ledger import Event, Ledger
from headrace.testing.crashpoints.policies import InterruptedPolicies
from headrace.types import JobState

T = TypeVar("T")


class Side(StrEnum):
    BEFORE = "before"
    AFTER = "after"
    """The store has done it; its reply is lost."""


class CrashPoint(Struct, frozen=True):
    """One place in one flow at which its process may die."""

    flow: str
    call: int
    side: Side
    operation: str

    def __str__(self) -> str:
        return f"{self.flow}: {self.side} call {self.call} ({self.operation})"


class Crash(Exception):
    """The process is gone."""


def raise_crash() -> None:
    """The crash of a process that shares ours: its flow goes no further."""
    raise Crash


class Interrupted:
    """Any backend; it tells the ledger what each call did, and calls ``crash`` at the given point."""

    def __init__(
        self,
        inner: Backend,
        ledger: Ledger,
        point: CrashPoint | None = None,
        crash: Callable[[], None] = raise_crash,
    ) -> None:
        self._inner = inner
        self._ledger = ledger
        self._stop = None if point is None else (point.call, point.side)
        self._crash = crash
        self.calls: list[str] = []

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    @property
    def tx(self) -> Transactions | None:
        return self._inner.tx

    @property
    def ticks(self) -> TickStore | None:
        return self._inner.ticks

    @property
    def policies(self) -> PolicyStore | None:
        return None if self._inner.policies is None else InterruptedPolicies(self._inner.policies, self._call)

    @property
    def hints(self) -> Hints | None:
        return self._inner.hints

    @property
    def turn(self) -> Turn | None:
        return None if self._inner.turn is None else self._turn

    def sibling(self) -> Backend:
        return self._inner.sibling()

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def _call(
        self, name: str, at: Stamp, call: Coroutine[Any, Any, T], tell: Callable[[T], None] = lambda answer: None
    ) -> T:
        """Carry out one operation, or crash on one side of it."""
        self.calls.append(name)
        self._ledger.write(Event("asked", at=at or 0))
        number = len(self.calls)
        if self._stop == (number, Side.BEFORE):
            call.close()
            self._crash()
        answer = await call
        tell(answer)
        if self._stop == (number, Side.AFTER):
            self._crash()
        return answer

    def _tell(self, kind: str, job_id: JobId, epoch: int = 0, holder: str = "") -> None:
        self._ledger.write(Event(kind, job_id, epoch, holder))

    def _tell_settled(self, batch: Sequence[Settlement], answers: Sequence[JobState | None]) -> None:
        for settlement, state in zip(batch, answers, strict=True):
            if state is not None:
                self._tell("settled", settlement.id, settlement.epoch, settlement.holder)

    def _tell_claimed(self, req: Claim, claimed: Claimed) -> None:
        for job in claimed.jobs:
            self._tell("granted", job.id, job.epoch, req.holder)

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        return await self._call("insert", at, self._inner.insert(rows, at))

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        return await self._call(
            "claim", at, self._inner.claim(req, at), lambda claimed: self._tell_claimed(req, claimed)
        )

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        return await self._call(
            "finish", at, self._inner.finish(batch, at), lambda answers: self._tell_settled(batch, answers)
        )

    async def _turn(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        def tell(answer: tuple[list[JobState | None], Claimed]) -> None:
            self._tell_settled(batch, answer[0])
            self._tell_claimed(req, answer[1])

        assert self._inner.turn is not None
        return await self._call("turn", at, self._inner.turn(batch, req, at), tell)

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        return await self._call("renew", at, self._inner.renew(beat, at))

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        def tell(reaped: list[Reaped]) -> None:
            for answer in reaped:
                if answer.reason != "expired":
                    self._tell("lost", answer.id)

        return await self._call("reap", at, self._inner.reap(req, at), tell)

    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        return await self._call(f"alter {type(change).__name__}", at, self._inner.alter(sel, change, at))

    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        return await self._call("fetch", at, self._inner.fetch(names, want, at))

    async def scan(self, sel: Selector, after: str | None = None, limit: int = 100, at: Stamp = None) -> Page:
        return await self._call("scan", at, self._inner.scan(sel, after, limit, at))

    async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
        return await self._call("stats", at, self._inner.stats(at, queues=queues))

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await self._call("sweep", at, self._inner.sweep(clause, at))
