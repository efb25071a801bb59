"""What the checker found."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.seam.records import JobId


class Violation(Struct, frozen=True):
    """An invariant that does not hold, and the event at which that shows."""

    invariant: str
    """Its number, ``I1`` to ``I27``; see :mod:`headrace.testing.sim.invariants`."""
    message: str
    seq: int
    job: JobId | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """The outcome of a check. ``lost`` and ``unexpected`` come with a violation; the other two classes are lawful."""

    seed: int | str
    events: int
    violations: tuple[Violation, ...] = ()
    lost: tuple[JobId, ...] = ()
    """Acknowledged, and neither done nor lawfully waiting nor lawfully removed."""
    unexpected: tuple[JobId, ...] = ()
    """Ran or was stored, and nobody ever asked for it."""
    duplicated: tuple[JobId, ...] = ()
    """Ran again because the lease of an earlier run was lost."""
    recovered: tuple[JobId, ...] = ()
    """Its sender never got an answer, and it was stored all the same."""
    points: Mapping[str, int] = {}
    """How often each situation of :mod:`headrace.testing.sim.points` came up."""
    story: str = ""
    """The first violation, the part of the history that leads to it, and how to see it again."""

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations

    @property
    def broken(self) -> tuple[str, ...]:
        """The invariants that do not hold, each once, in the order in which they were found broken."""
        return tuple(dict.fromkeys(violation.invariant for violation in self.violations))
