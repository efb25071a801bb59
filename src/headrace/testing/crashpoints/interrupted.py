"""A backend that counts its calls and crashes at one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, JobId, Settlement, Stamp
from headrace.testing.crashpoints.ledger import Event, Ledger
from headrace.testing.wrapped import Carry, Wrapped
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


class Interrupted(Wrapped):
    """Any backend; it tells the ledger what each call did, and calls ``crash`` at the given point."""

    def __init__(
        self,
        inner: Backend,
        ledger: Ledger,
        point: CrashPoint | None = None,
        crash: Callable[[], None] = raise_crash,
    ) -> None:
        super().__init__(inner)
        self._ledger = ledger
        self._stop = None if point is None else (point.call, point.side)
        self._crash = crash
        self.calls: list[str] = []

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        """Carry out one operation, or crash on one side of it."""
        self.calls.append(f"alter {type(args[1]).__name__}" if name == "alter" else name)
        self._ledger.write(Event("asked", at=at or 0))
        number = len(self.calls)
        if self._stop == (number, Side.BEFORE):
            self._crash()
        answer = await carry(at)
        self._tell_answer(name, args, answer)
        if self._stop == (number, Side.AFTER):
            self._crash()
        return answer

    def _tell_answer(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        match name:
            case "claim":
                self._tell_claimed(args[0], answer)
            case "finish":
                self._tell_settled(args[0], answer)
            case "finish_and_claim":
                states, claimed = answer
                self._tell_settled(args[0], states)
                self._tell_claimed(args[1], claimed)
            case "reap":
                for reaped in answer:
                    if reaped.reason != "expired":
                        self._tell("lost", reaped.id)

    def _tell(self, kind: str, job_id: JobId, epoch: int = 0, holder: str = "") -> None:
        self._ledger.write(Event(kind, job_id, epoch, holder))

    def _tell_settled(self, batch: Sequence[Settlement], answers: Sequence[JobState | None]) -> None:
        for settlement, state in zip(batch, answers, strict=True):
            if state is not None:
                self._tell("settled", settlement.id, settlement.epoch, settlement.holder)

    def _tell_claimed(self, req: Claim, claimed: Claimed) -> None:
        for job in claimed.jobs:
            self._tell("granted", job.id, job.epoch, req.holder)
