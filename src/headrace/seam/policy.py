"""The flat records of a queue's policy, as they cross the waist (:class:`headrace.seam.protocol.PolicyStore`).

A policy says how many jobs a queue takes in, and how fast, to whom and in which order it gives them out. The
conventions are those of :mod:`headrace.seam.records`.
"""

from __future__ import annotations

from msgspec import Struct, field

from headrace.seam.records import JobId

STORE = ""
"""The name under which the store itself has a policy. Only its ``depth`` counts."""
OPERATIONS = "headrace.operations"
"""The queue of bulk operations. They make room, so they must not wait for room: see ``Backend.insert``."""
TENANT_BATCH = 10
"""How many jobs a tenant gets at its turn, if the policy does not say."""
FOREVER = 2**53 - 1
"""An instant that never comes: the end of a pause that is resumed by hand."""


class Rate(Struct, frozen=True):
    """One job per ``every``, on the store's clock; after a quiet time up to ``burst`` at once.

    The state of a rate is one number: ``full_at``, the instant at which the burst is saved up again. A refusal costs
    nothing, and what is spent is exactly what was leased.
    """

    every: int
    burst: int = 1

    def allows(self, full_at: int, now: int) -> int:
        """How many jobs may be taken now."""
        return max(0, self.burst - -(-max(0, full_at - now) // self.every))

    def spend(self, full_at: int, now: int, jobs: int) -> int:
        """``full_at`` after this many jobs were taken."""
        return max(full_at, now) + jobs * self.every

    def opens_at(self, full_at: int) -> int:
        """When the next job may be taken."""
        return full_at - (self.burst - 1) * self.every


class Policy(Struct, frozen=True, kw_only=True):
    """The rules of one queue. None: no such rule. ``name=`` is the name in stores."""

    queue: str
    version: int = 0
    """Rises with every save; a save names the version that was read."""
    running: int | None = None
    """At most this many of its jobs run at once …"""
    rate: Rate | None = None
    """… and no more than this are started."""
    tenant_running: int | None = None
    tenant_rate: Rate | None = None
    """The same for every tenant that has no limit of its own."""
    task_rates: dict[str, Rate] = {}
    """The same for single tasks."""
    tenant_workers: int | None = field(default=None, name="holders")
    """At most this many holders have jobs of one tenant at once. A holder counts until the lease on its last job of the
    tenant ends."""
    tenant_batch: int | None = field(default=None, name="chunk")
    """A tenant gets at most this many jobs at its turn; None: ``TENANT_BATCH``, if another rule governs the queue."""
    ageing: int | None = None
    """Waiting this long makes up for one step of priority; None: priority always comes first."""
    group_running: int = 1
    """At most this many jobs of a group at once; with 1 they run strictly one after the other, retries included."""
    depth: int | None = None
    """At most this many jobs wait in it, scheduled and paused ones included."""

    @property
    def governs(self) -> bool:
        """Whether one of the rules says how the jobs of the queue are given out."""
        rules = (
            self.running, self.rate, self.tenant_running, self.tenant_rate, self.tenant_workers, self.tenant_batch,
            self.ageing,
        )  # fmt: skip
        return bool(self.task_rates) or any(rule is not None for rule in rules)


class TenantLimit(Struct, frozen=True):
    """What one tenant may do in one queue, instead of what the policy says for all. None: what the policy says."""

    queue: str
    tenant: str
    running: int | None = None
    rate: Rate | None = None


class QueuePause(Struct, frozen=True):
    """A queue is paused or resumed; with a tenant or a task, only the jobs of that tenant or task in it."""

    queue: str
    tenant: str | None = None
    task: str | None = None
    """At most one of the two."""
    paused: bool = True
    lasts: int | None = None
    """How long the pause lasts; None: until it is resumed."""

    def __post_init__(self) -> None:
        if self.tenant is not None and self.task is not None:
            raise ValueError("a pause is of a tenant or of a task; this one names both: make two of it")

    def until(self, now: int) -> int:
        """When the pause ends, if it begins now; 0: there is none."""
        if not self.paused:
            return 0
        return FOREVER if self.lasts is None else now + self.lasts


class PolicyState(Struct, frozen=True):
    """A policy, and what it holds back now."""

    policy: Policy
    governed: bool = False
    """Whether the queue's tenants take turns."""
    paused_tasks: dict[str, int] = {}
    """Tasks that are paused, and until when."""
    opens_at: dict[str, int] = {}
    """Tasks whose rate allows nothing now, and until when; ``""`` is the queue as a whole."""


class TenantState(Struct, frozen=True):
    """A tenant of a governed queue in numbers."""

    queue: str
    tenant: str
    waiting: int = 0
    """Counted up to ``Limits.count_cap``, without jobs that wait to be called in their group."""
    running: int = 0
    limit: TenantLimit | None = None
    """Its own, if it has one."""
    paused_until: int | None = None
    opens_at: int | None = None
    """Its rate allows nothing until then."""
    workers: tuple[str, ...] = ()
    """The names of the workers that hold jobs of it, if they are listed, in order."""


class GroupState(Struct, frozen=True):
    """A group that has live jobs."""

    queue: str
    group: str
    called: tuple[JobId, ...] = ()
    """The jobs that are called, by id: running, or next to run."""
    waiting: int = 0
    """How many wait to be called, counted up to ``Limits.count_cap``."""
