"""The flat records of schedules and their ticks, as they cross the waist (:class:`headrace.seam.protocol.TickStore`).

A *slot* is an instant at which a schedule says that something should happen: its nominal time, without jitter. A *tick*
is what became of a slot; the history has at most one for each. The conventions are those of
:mod:`headrace.seam.records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from headrace.seam.records import JobId, Row

BUCKETS = 1_024
"""Schedules are spread over this many buckets, for planners that share them out."""


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule, and how far it is planned."""

    name: str
    uid: bytes
    """16 random bytes: a schedule that is removed and made again has another one."""
    queue: str
    """Where its jobs go."""
    definition: bytes
    """Everything that only the core reads."""
    tenant: str = ""
    plan_priority: int = 0
    """Of several schedules that must be looked at, those with a lower number come first."""
    bucket: int = 0
    """0 … BUCKETS-1."""
    enabled: bool = True
    slot: int | None = None
    """The next one to plan; None: there is none left."""
    look_at: int | None = None
    """When a planner must look at it; None: never."""
    runs: int = 0
    """Slots that have fired."""
    last_slot: int | None = None
    last_job: JobId | None = None
    """The last slot that fired by plan, and its job."""
    version: int = 0
    """Rises with every change; a write names the version that was read."""
    created_at: int = 0
    updated_at: int = 0
    """Set by the store: when it was first saved, and last saved. Planning is not saving."""


class Save(Struct, frozen=True):
    """A schedule as it should be from now on. ``expect`` is the version that is stored; 0: there is none yet."""

    schedule: Schedule
    expect: int


class Drop(Struct, frozen=True):
    """A schedule goes. Its ticks stay in the history until they are swept, and its jobs where they are."""

    name: str
    expect: int


class Look(Struct, frozen=True):
    """Which schedules must be looked at now?"""

    limit: int = 100
    share: int = 0
    shares: int = 1
    """Only those whose ``bucket % shares`` is ``share``."""


class Looked(Struct, frozen=True):
    """The schedules that must be looked at."""

    now: int
    """The store's clock: the core plans by no other."""
    schedules: list[Schedule]
    next_in: int | None = None
    """When ``schedules`` is short of the limit: how long until the next one must be looked at; None if there is
    none."""


class Overlap(StrEnum):
    """What happens to a slot while the job of the slot before it is live."""

    ALLOW = "allow"
    """It fires."""
    SKIP = "skip"
    """It is skipped."""
    CANCEL = "cancel"
    """The old job is cancelled, or asked to stop if it is running; then the slot fires."""


class TickOutcome(StrEnum):
    """What became of a slot."""

    FIRED = "fired"
    """Its job was stored."""
    SKIPPED = "skipped"
    """The job of the slot before was still live."""
    MISSED = "missed"
    """Nobody planned it in time, and it was not made up for."""


class NewTick(Struct, frozen=True):
    """A slot on its way to the history, with its job."""

    slot: int
    run_at: int
    """With jitter: when the job is due."""
    row: Row | None = None
    """None: the slot is MISSED."""
    count: int = 1
    """How many slots in a row this stands for, if they were missed."""
    overlap: Overlap = Overlap.ALLOW


class Plan(Struct, frozen=True):
    """What one schedule does next. It is carried out whole, or not at all."""

    name: str
    uid: bytes
    version: int | None
    """The version that the schedule must have. None: it only has to exist, and does not move on (for slots that are
    made up for, and for extra runs)."""
    ticks: Sequence[NewTick]
    slot: int | None = None
    look_at: int | None = None
    """Where the schedule stands afterwards."""


class Tick(Struct, frozen=True, kw_only=True):
    """One entry of the history."""

    slot: int
    run_at: int
    outcome: TickOutcome
    planned_at: int
    count: int = 1
    job: JobId | None = None
    state: str = ""
    """Noted by the worker that ended the job: the state that it ended in …"""
    waited: int | None = None
    """… how long after ``run_at`` it was started …"""
    ran: int | None = None
    """… and how long it ran."""


class TickNote(Struct, frozen=True):
    """What a worker says of a tick's job that ended."""

    uid: bytes
    slot: int
    state: str
    waited: int
    ran: int


class ScheduleSelector(Struct, frozen=True, kw_only=True):
    """Which schedules are meant: those named, or all. Every other field that is set narrows."""

    names: Sequence[str] | None = None
    tenant: str | None = None
    queue: str | None = None
