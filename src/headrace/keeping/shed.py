"""What a sweep by count or bytes would remove of dead letters: the oldest ends of those tenants that hold most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from headrace.seam.archive import EndedPage
from headrace.seam.dead_letter_shares import bound_of, condemn, goes_on
from headrace.seam.records import JobId, SweepClause


class _DeadLetter(NamedTuple):
    ended_at: int
    id: JobId
    weight: int


class DeadLetters:
    """The dead letters that are left once all that is too old is gone."""

    def __init__(self, past: set[JobId], latest: int) -> None:
        """``latest``: what ended later may not go."""
        self._past = past
        self._latest = latest
        self._of: dict[str, deque[_DeadLetter]] = {}
        """By tenant: oldest first."""
        self._held: dict[str, int] = {}

    def add(self, page: EndedPage) -> None:
        """The next page of them."""
        for record, weight in zip(page.records, page.weights, strict=True):
            if record.id not in self._past:
                of = self._of.setdefault(record.tenant, deque())
                of.append(_DeadLetter(record.finished_at or 0, record.id, weight))
                self._held[record.tenant] = self._held.get(record.tenant, 0) + weight

    def shed(self, clause: SweepClause) -> list[int]:
        """Remove what the clause condemns, in the steps of a sweep; what each weighs that went."""
        gone: list[int] = []
        more = True
        while more:
            jobs, size = sum(map(len, self._of.values())), sum(self._held.values())
            bound, excess = bound_of(clause, jobs, size)
            held = {name: len(of) for name, of in self._of.items()} if bound == "jobs" else self._held
            heaviest = sorted(held.items(), key=lambda one: (-one[1], one[0]))[: clause.limit + 1] if bound else []
            condemned = condemn(bound, excess, clause.limit, heaviest, self._oldest)
            for tenant, weight in condemned[: clause.limit]:
                self._of[tenant].popleft()
                self._held[tenant] -= weight
                gone.append(weight)
            left = size - sum(weight for _, weight in condemned)
            again = bool(condemned) and goes_on(clause, bound, jobs - len(condemned), left)
            more = again or len(condemned) > clause.limit
        return gone

    def _oldest(self, tenant: str | None) -> Iterator[tuple[str, int]]:
        """Whose they are and what they weigh: those of a tenant, or of all if nobody has more than one."""
        if tenant is None:
            mine = sorted((of[0], name) for name, of in self._of.items() if of)
        else:
            mine = [(one, tenant) for one in self._of[tenant]]
        return ((name, one.weight) for one, name in mine if one.ended_at <= self._latest)
