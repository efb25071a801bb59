"""The rules of a queue at one time, and the instants of the starts that its rates count."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.seam.policy import Policy, Rate, TenantLimit

Scope = tuple[str, str]
"""What a rate is for: the ``queue``, a ``tenant`` or a ``task``, and its name."""


class Rules(Struct, frozen=True):
    """A policy and the limits of single tenants, as they stood for a while."""

    policy: Policy
    limits: dict[str, TenantLimit] = {}

    def cap(self, tenant: str) -> int | None:
        """How many jobs of the tenant may run at once."""
        own = self.limits.get(tenant)
        return self.policy.tenant_running if own is None or own.running is None else own.running

    def rate(self, scope: Scope) -> Rate | None:
        """How fast jobs of the scope may be started."""
        kind, name = scope
        if kind == "queue":
            return self.policy.rate
        if kind == "task":
            return self.policy.task_rates.get(name)
        own = self.limits.get(name)
        return self.policy.tenant_rate if own is None or own.rate is None else own.rate


def opens_at(rate: Rate, starts: Sequence[int]) -> int:
    """When one more may be started: in any window that ends then, there are no more starts than the burst and one for
    each ``every`` that has passed since the window began."""
    instants = (start + rate.every * (len(starts) - i + 1 - rate.burst) for i, start in enumerate(starts))
    return max(instants, default=0)
