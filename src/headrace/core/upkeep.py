"""Counts what happens beside the jobs themselves: leases, slots of schedules, sweeps, requests to object stores."""

from __future__ import annotations

from collections import Counter

from headrace.core.histogram import Histogram

MOST = 200
"""Names that are counted apart, of each kind; the rest are counted together."""
OTHER = "other"
SHARES = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
VAULT, OBJECTS = "vault", "objects"


class Upkeep:
    """Belongs to one thread; another may read."""

    def __init__(self) -> None:
        self.leases: dict[str, Histogram] = {}
        """By queue: the share of a lease that had passed when it was renewed, or its job ended."""
        self.expired: Counter[str] = Counter()
        """By queue: leases that ran out."""
        self.reclaimed: Counter[str] = Counter()
        """By queue: those whose jobs wait again."""
        self.ticks: Counter[tuple[str, str]] = Counter()
        """By schedule and outcome: slots."""
        self._schedules: set[str] = set()
        self.delays = Histogram()
        """How long after their slots jobs of schedules started."""
        self.sweeps: dict[str, Histogram] = {}
        """By class: how long sweeps took that succeeded."""
        self.swept_at: dict[str, float] = {}
        """By class: when one last did, in seconds since 1970."""
        self.requests: dict[tuple[str, str], Histogram] = {}
        """By place and operation: how long requests to object stores took."""
        self.archived = 0
        """Bytes written to the vault."""

    def used(self, queue: str, share: float) -> None:
        """This share of a lease had passed."""
        name = capped(self.leases, queue)
        found = self.leases.get(name)
        if found is None:
            found = self.leases[name] = Histogram(SHARES)
            self.expired[name] += 0  # so that Prometheus sees the first that runs out
        found.add(share)

    def ran_out(self, queue: str, *, waits_again: bool) -> None:
        """A lease did."""
        self.expired[capped(self.expired, queue)] += 1
        if waits_again:
            self.reclaimed[capped(self.reclaimed, queue)] += 1

    def ticked(self, schedule: str, outcome: str, count: int) -> None:
        """This many slots of a schedule came to this."""
        if schedule not in self._schedules:
            if len(self._schedules) >= MOST:
                schedule = OTHER
            self._schedules.add(schedule)
        self.ticks[schedule, outcome] += count

    def swept(self, name: str, seconds: float, at: float) -> None:
        """A sweep of one class succeeded."""
        self.sweeps.setdefault(name, Histogram()).add(seconds)
        self.swept_at[name] = at

    def requested(self, place: str, operation: str, seconds: float, written: int) -> None:
        """A request to an object store was made, and wrote this many bytes."""
        self.requests.setdefault((place, operation), Histogram()).add(seconds)
        if place == VAULT and operation == "create":
            self.archived += written


def capped(known: dict[str, Histogram] | Counter[str], name: str) -> str:
    """The name under which something is counted: few have one of their own."""
    return name if name in known or len(known) < MOST else OTHER
