"""The flat records of a queue's policy, as they cross the waist (:class:`headrace.seam.protocol.PolicyStore`).

A policy says how many jobs a queue takes in, and how fast, to whom and in which order it gives them out. Conventions as
in :mod:`headrace.seam.records`.
"""

from __future__ import annotations

from msgspec import Struct, field

from headrace.seam.records import JobId

STORE = ""
"""The name under which the store itself has a policy; of that, only ``depth`` counts."""
TENANT_BATCH = 10
"""What a tenant gets when it is its turn, where the policy does not say."""
FOREVER = 2**53 - 1
"""An instant that never comes: the pause of who is to be resumed by hand."""


class Rate(Struct, frozen=True):
    """One job per ``every``, on the store's clock; after a quiet time up to ``burst`` at once.

    A rate is kept by one number, the instant ``full_at`` at which the burst is saved up again. It costs nothing to be
    refused, and what is taken is exactly what is leased.
    """

    every: int
    burst: int = 1

    def allows(self, full_at: int, now: int) -> int:
        """How many jobs may be taken now."""
        return max(0, self.burst - -(-max(0, full_at - now) // self.every))

    def spend(self, full_at: int, now: int, jobs: int) -> int:
        """``full_at`` when so many have been taken."""
        return max(full_at, now) + jobs * self.every

    def opens_at(self, full_at: int) -> int:
        """When one may be taken again."""
        return full_at - (self.burst - 1) * self.every


class Policy(Struct, frozen=True, kw_only=True):
    """The rules of one queue. None: no such rule. ``name=`` is the name in stores."""

    queue: str
    version: int = 0
    """Rises with every save; whoever saves names the one that he has read."""
    running: int | None = None
    """At most so many of its jobs run at once …"""
    rate: Rate | None = None
    """… and no more than this are started."""
    tenant_running: int | None = None
    tenant_rate: Rate | None = None
    """The same for every single tenant that has no limit of its own."""
    task_rates: dict[str, Rate] = {}
    """The same for single tasks."""
    tenant_workers: int | None = field(default=None, name="holders")
    """At most this many workers have jobs of one tenant at once: its tokens. A token goes with the last of these jobs,
    and so with their leases."""
    tenant_batch: int | None = field(default=None, name="chunk")
    """How many jobs a tenant gets at most when it is its turn; None: ``TENANT_BATCH``, if another rule governs."""
    ageing: int | None = None
    """Waiting so long makes up for one step of priority; None: priority always comes first."""
    group_running: int = 1
    """At most so many jobs of a group at once; with 1 they go strictly one after the other, retries included."""
    depth: int | None = None
    """At most so many jobs wait in it, scheduled and paused ones included."""

    @property
    def governs(self) -> bool:
        """Whether there is a rule by which the jobs of a queue are given out."""
        rules = (
            self.running, self.rate, self.tenant_running, self.tenant_rate, self.tenant_workers, self.tenant_batch,
            self.ageing,
        )  # fmt: skip
        return bool(self.task_rates) or any(rule is not None for rule in rules)


class TenantLimit(Struct, frozen=True):
    """What one tenant may do in one queue, instead of what the policy says for each; None: what the policy says."""

    queue: str
    tenant: str
    running: int | None = None
    rate: Rate | None = None


class PolicyState(Struct, frozen=True):
    """A policy, and what it holds back just now."""

    policy: Policy
    governed: bool = False
    """Whether the queue's tenants take turns."""
    paused_tasks: dict[str, int] = {}
    """Tasks that are paused, and until when."""
    opens_at: dict[str, int] = {}
    """Tasks whose rate lets nothing through just now, and until when; ``""`` is the queue as a whole."""


class TenantState(Struct, frozen=True):
    """A tenant of a governed queue in numbers."""

    queue: str
    tenant: str
    waiting: int = 0
    """Counted up to ``Limits.count_cap``; those that wait for the turn of their group are not among them."""
    running: int = 0
    limit: TenantLimit | None = None
    """Its own, if it has one."""
    paused_until: int | None = None
    opens_at: int | None = None
    """Its rate lets nothing through until then."""
    workers: tuple[str, ...] = ()
    """The names of those who hold jobs of it, as far as they are listed, in order."""


class GroupState(Struct, frozen=True):
    """A group that has live jobs."""

    queue: str
    group: str
    called: tuple[JobId, ...] = ()
    """The jobs that have a turn, by id: running, or next to run."""
    waiting: int = 0
    """How many wait for one, counted up to ``Limits.count_cap``."""
