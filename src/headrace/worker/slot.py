"""One place to run a job in."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any

from headrace.seam.records import Leased
from headrace.worker.job import CancelToken


class StopReason(StrEnum):
    """Why a handler is asked to end before it is done."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    STOPPING = "worker stopping"


class Slot:
    """What runs in one slot right now, and the way to stop it."""

    __slots__ = ("closing", "jobs", "pending", "reason", "started", "task", "token")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.jobs: list[Leased] = []
        self.token: CancelToken | None = None
        self.reason: StopReason | None = None
        self.started = 0.0
        self.closing = False
        """Whether the slot itself is being taken down."""
        self.pending = False
        """Whether the slot's task may still be cancelled by a stop that was meant for a job which has ended."""

    def begin(self, jobs: list[Leased], now: float) -> None:
        """These jobs run here from now on."""
        self.jobs, self.token, self.reason, self.started = jobs, None, None, now

    def end(self) -> None:
        """Nothing runs here any more. A stop that was asked for and not obeyed is forgotten; but where that came too
        late for the handler to notice, it is ``pending`` until the slot waits for something."""
        self.jobs = []
        while not self.closing and self.task is not None and self.task.cancelling():
            self.pending = True
            self.task.uncancel()

    @property
    def stopped(self) -> bool:
        """Whether a cancellation that the handler let through was ours. One of its own making is a failure like any
        other; one of the whole slot goes on its way."""
        if self.closing:
            raise asyncio.CancelledError
        return self.reason is not None

    @property
    def abandoned(self) -> bool:
        """Whether a ``GeneratorExit`` is that of the slot's own coroutine, which nobody runs any more. One that a
        handler raised is a failure like any other."""
        try:
            return asyncio.current_task() is not self.task
        except RuntimeError:  # no loop runs
            return True

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to end; the first reason stays."""
        if self.jobs and self.reason is None:
            self.reason = reason
            if self.token is not None:
                self.token.request(reason.value)
            if self.task is not None:
                self.task.cancel(reason.value)
