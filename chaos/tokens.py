"""Who had jobs of which tenant, and when: from what workers wrote down of their leases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from chaos.ledger import Ledger

SLACK = 5_000_000
"""Nanoseconds by which the store's clock and the machine's may run apart during a lease."""


class Lease(Struct, frozen=True):
    """A time in which a process certainly had a job."""

    id: str
    pid: int
    since: int
    until: int


def leases_in(ledger: Ledger) -> list[Lease]:
    """From the answer to the claim until the job was given back or the lease could have run out, whichever came first.
    The death of the process ends nothing."""
    until: dict[tuple[str, int], int] = {}
    ending: dict[tuple[str, int], int] = {}
    for entry in ledger.entries:
        name = entry.id, entry.epoch
        if entry.kind == "until":
            until[name] = max(until.get(name, 0), entry.ns - SLACK)
        elif entry.kind == "ending":
            ending[name] = min(ending.get(name, entry.ns), entry.ns)
    found = []
    for entry in ledger.entries:
        if entry.kind == "leased":
            name = entry.id, entry.epoch
            end = min(until.get(name, entry.ns), ending.get(name, until.get(name, entry.ns)))
            found.append(Lease(entry.id, entry.pid, entry.ns, max(entry.ns, end)))
    return found


class Tokens:
    """The leases, tenant by tenant."""

    def __init__(self, ledger: Ledger, tenants: Mapping[str, str]) -> None:
        """``tenants``: of each job, by its id in hexadecimal digits."""
        self._leases: dict[str, list[Lease]] = defaultdict(list)
        for lease in leases_in(ledger):
            self._leases[tenants[lease.id]].append(lease)
        self.holders = {tenant: max(map(len, self._moments(tenant)), default=0) for tenant in self._leases}
        """How many processes had jobs of each tenant at once, at most."""
        self.running = {tenant: max(now.total() for now in self._moments(tenant)) for tenant in self._leases}
        """How many jobs of each tenant were out at once, at most."""

    @property
    def leases(self) -> int:
        return sum(map(len, self._leases.values()))

    @property
    def passed_on(self) -> int:
        """How often a tenant went from one process to another."""
        orders = (sorted(leases, key=lambda lease: lease.since) for leases in self._leases.values())
        return sum(len(list(groupby(leases, lambda lease: lease.pid))) - 1 for leases in orders)

    def overlaps(self, most: int) -> int:
        """How often one more than ``most`` processes had jobs of one tenant at once."""
        return sum(
            len(now) > most and len(before) <= most for tenant in self._leases for before, now in self._steps(tenant)
        )

    def _steps(self, tenant: str) -> Iterator[tuple[Counter[int], Counter[int]]]:
        before: Counter[int] = Counter()
        for now in self._moments(tenant):
            yield before, now
            before = now

    def _moments(self, tenant: str) -> Iterator[Counter[int]]:
        """How many leases each process had, after every change."""
        leases = self._leases[tenant]
        changes = [(lease.since, 1, lease.pid) for lease in leases] + [(lease.until, -1, lease.pid) for lease in leases]
        held: Counter[int] = Counter()
        for _, step, pid in sorted(changes, key=itemgetter(0, 1)):
            held[pid] += step
            yield +held
