"""The rules about governing queues: policies, limits of tenants, pauses."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from headrace.seam.policy import STORE, GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import Backend, PolicyStore
from headrace.seam.records import Claim, Row, Settlement, SweepClause, SweepTarget
from headrace.testing.machine import draws, pools
from headrace.testing.machine.working import WorkingRules


class RulingRules(WorkingRules):
    """Queues get rules, and are asked about them."""

    @precondition(lambda self: self.ruled)
    @rule(change=draws.rulings())
    def govern(self, change: draws.Ruling) -> None:
        self.begin_rule("govern")
        match change:
            case Policy():
                self._save(change)
            case TenantLimit():
                self.note("rules: a tenant has a limit")
                self.twins.ask(lambda backend: _policies(backend).limit(change, self.now))
                self.world.governed.add(change.queue)
            case QueuePause():
                self._pause(change)
        self.ask_rules()

    @precondition(lambda self: self.ruled)
    @rule(pause=draws.queue_pauses())
    def pause_queue(self, pause: QueuePause) -> None:
        self.begin_rule("pause_queue")
        self.note(f"rules: a queue {'paused' if pause.paused else 'resumed'}")
        if pause.lasts is not None:
            self.note("rules: a queue paused for a while")
            self.world.instants.add(self.now + pause.lasts)
        self.twins.ask(lambda backend: _policies(backend).pause(pause, self.now))

    @precondition(lambda self: self.world.governed)
    @rule(after=draws.pauses)
    def sweep_tenants(self, after: int) -> None:
        """A store may have forgotten idle tenants before, so how many go is up to the store."""
        self.begin_rule("sweep_tenants", after)
        clause = SweepClause(target=SweepTarget.TENANTS)
        swept = self.twins.ask(lambda backend: backend.sweep(clause, self.now), lambda swept: swept.more)
        if swept.removed:
            self.note("sweep: tenants")

    def _pause(self, pause: QueuePause) -> None:
        self.twins.ask(lambda backend: _policies(backend).pause(pause, self.now))
        self.world.governed.add(pause.queue)
        self.world.instants.add(self.now + (pause.lasts or 0))
        self.note(f"rules: a {'task' if pause.tenant is None else 'tenant'} {'paused' if pause.paused else 'resumed'}")

    @precondition(lambda self: self.world.governed)
    @rule(
        rows=st.lists(draws.rows(), min_size=3, max_size=6),
        first=draws.claims(),
        second=draws.claims(),
        outcomes=st.lists(draws.outcomes(), max_size=3),
        after=draws.pauses,
    )
    def crowd(self, rows: list[Row], first: Claim, second: Claim, outcomes: list[Settlement], after: int) -> None:
        self.begin_rule("crowd")
        queue = min(self.world.governed)
        self._insert([replace(row, queue=queue, tenant=pools.TENANTS[i % 2], key=None) for i, row in enumerate(rows)])
        self.look()
        self.take(replace(first, queues=(queue,)))
        self.look()
        self.wait(after)
        self.take_and_settle(replace(second, queues=(queue,)), outcomes)
        self.look()
        self.ask_rules()

    def _save(self, policy: Policy) -> None:
        if policy.queue == STORE and "store_depth" in self.without:
            return
        world = self.world
        saved = self.twins.ask(lambda backend: _policies(backend).save(policy, self.now))
        assert saved == (policy.version == world.versions[policy.queue]), "a policy goes by its version"
        self.note("rules: saved" if saved else "rules: saved by another")
        if saved:
            world.versions[policy.queue] += 1
            world.turns[policy.queue] = policy.group_running
            if policy.governs:
                self.note("rules: a queue is governed")
                world.governed.add(policy.queue)

    def ask_rules(self) -> None:
        """The two stores say the same of rules, tenants and groups."""
        groups = sorted(self.world.groups())

        async def told(backend: Backend) -> Any:
            policies = _policies(backend)
            states: list[PolicyState] = await policies.find(at=self.now)
            tenants = [await policies.tenants(queue, at=self.now) for queue in pools.GOVERNED]
            lines: list[GroupState] = [await policies.group(queue, group) for queue, group in groups]
            return states, tenants, lines

        states, tenants, _ = self.twins.ask(told, lambda seen: (seen[0], [*map(_listed, seen[1])], seen[2]))
        self.note(
            *("rules: a rate is shut" for state in states if state.opens_at),
            *("rules: a tenant's rate is shut" for queue in tenants for tenant in queue if tenant.opens_at),
            *("rules: a tenant's jobs run" for queue in tenants for tenant in queue if tenant.running),
        )


def _policies(backend: Backend) -> PolicyStore:
    assert backend.policies is not None
    return backend.policies


def _listed(tenants: list[TenantState]) -> list[TenantState]:
    """Without those that a store may forget."""
    return [one for one in tenants if one.waiting or one.running or one.limit or one.paused_until is not None]
