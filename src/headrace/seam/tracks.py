"""Sheets: how the subjects of trackers lie in a store.

A tracker visits its subjects again and again, each as often as its *tier* says. There may be millions of them, so they
have no rows of their own: some hundred lie together on a *sheet*. Every subject has a *point*, a number that follows
from its name. The sheets of a tier share out the points: a sheet holds those from its ``low`` to the ``low`` of the
next one. So a subject is found without an index. What is on a sheet, and when it is due, only the core decides.

The conventions are those of :mod:`headrace.seam.records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.seam.records import Stamp

POINTS = 1 << 52
"""Points are 0 … POINTS-1."""
SHEET_BYTES = 1024 * 1024
"""No sheet has more content than this."""


class Sheet(Struct, frozen=True, kw_only=True):
    """Subjects of one tier."""

    tier: str
    low: int
    version: int
    """1 … POINTS-1: the writer chooses a number that nobody else does."""
    due_at: int
    """When its subjects are to be visited next."""
    run: int = 0
    """How often they were visited."""
    ran_at: int | None = None
    """When they were last visited."""
    subjects: int = 0
    content: bytes = b""
    """Everything that only the core reads."""


class Write(Struct, frozen=True):
    """The sheet as it should be from now on. ``expect`` is the version that is stored; 0: there is none."""

    sheet: Sheet
    expect: int


class Check(Struct, frozen=True):
    """A sheet that was read and must not have changed. With ``expect`` 0: it must not be there."""

    tier: str
    low: int
    expect: int


class Erase(Struct, frozen=True):
    """The sheet goes. What it reached over belongs to the one before it."""

    tier: str
    low: int
    expect: int


class Sheets(Struct, frozen=True):
    """Sheets that were looked for."""

    now: int
    """The store's clock: the core plans by no other."""
    sheets: list[Sheet]
    next_in: int | None = None
    """Of ``due``, when ``sheets`` is short of the limit: how long until the next one must be looked at; None if there
    is none."""


class Tally(Struct, frozen=True):
    """One tier of a tracker in numbers."""

    tracker: str
    tier: str
    sheets: int
    subjects: int
    bytes: int
    """Of their contents."""


class TrackStore(Protocol):
    """The sheets of trackers. What holds for the ten operations holds here too."""

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> Sheets:
        """The sheets that these points of these tiers lie on: each once, in the order of ``(tier, low)``. A point below
        the first sheet of its tier lies on none."""

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> Sheets:
        """The first sheets of a tier whose ``low`` is not below ``start``, in order."""

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: Stamp = None) -> bool:
        """Change sheets, all in one atomic step, and return True, if every one that the batch names has the version
        that is expected. Otherwise nothing changes. Each sheet is named once.

        Of two batches that name the same sheet, one is carried out after the other. So a batch that checks everything
        it was made from is carried out as if nobody else wrote. A sheet that is written must be looked at when it is
        due.
        """

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> Sheets:
        """Up to ``limit`` sheets that must be looked at, those first that have waited longest, without their contents.

        Each of them must be looked at again after ``hold``, unless it is written before. So of several planners one
        gets a sheet, and if that one dies, another gets it later. The versions stay. The cost depends on ``limit``, not
        on how many sheets there are.
        """

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        """The tiers that have sheets, of this tracker or of all, in the order of ``(tracker, tier)`` (by code
        points)."""
