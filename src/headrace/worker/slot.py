"""A slot of a worker: a place where one job, or one batch, runs at a time."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any

from headrace.seam.records import Leased
from headrace.worker.job import CancelToken


class StopReason(StrEnum):
    """Why a handler is asked to end early."""

    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    STOPPING = "worker stopping"


class Slot:
    """What runs in the slot right now, and how it is stopped."""

    __slots__ = ("began", "closing", "jobs", "pending", "reason", "started", "task", "token")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.jobs: list[Leased] = []
        self.token: CancelToken | None = None
        self.reason: StopReason | None = None
        self.started = 0.0
        """By the clock of the leases."""
        self.began = 0.0
        """By ``perf_counter``, if jobs are measured."""
        self.closing = False
        """Whether the slot itself is being taken down."""
        self.pending = False
        """Whether a stop that came too late for its job may still cancel the slot's task."""

    def begin(self, jobs: list[Leased], now: float) -> None:
        """These jobs run here from now on."""
        self.jobs, self.token, self.reason, self.started = jobs, None, None, now

    def end(self) -> None:
        """Nothing runs here any more. A stop that the handler did not obey is forgotten. If it came too late for the
        handler to notice, it is ``pending`` until the slot next waits."""
        self.jobs = []
        while not self.closing and self.task is not None and self.task.cancelling():
            self.pending = True
            self.task.uncancel()

    @property
    def stopped(self) -> bool:
        """Whether a ``CancelledError`` of the handler comes from ``stop``. One that the handler itself raised is a
        failure like any other. If the whole slot is cancelled, this raises."""
        if self.closing:
            raise asyncio.CancelledError
        return self.reason is not None

    @property
    def abandoned(self) -> bool:
        """Whether a ``GeneratorExit`` comes from the end of the slot's own coroutine. One that a handler raised is a
        failure like any other."""
        try:
            return asyncio.current_task() is not self.task
        except RuntimeError:  # no loop runs
            return True

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to end. The first reason stays."""
        if self.jobs and self.reason is None:
            self.reason = reason
            if self.token is not None:
                self.token.request(reason.value)
            if self.task is not None:
                self.task.cancel(reason.value)
