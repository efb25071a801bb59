"""The slots that a schedule should have, worked out from its definition alone."""

from __future__ import annotations

from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Misfire


class Grid:
    """Where a schedule's slots are, how far its jobs may be from them, and how long they may be late."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._rule = definition.rule

    @property
    def patience(self) -> int:
        """How late a slot may be planned and still be in time."""
        late = self.definition.max_age if self.definition.misfire is Misfire.ALL else 0
        return max(late, self.definition.grace)

    def on(self, slot: int) -> bool:
        """Whether there is such a slot."""
        first, last = self.definition.start, self.definition.end
        if (first is not None and slot < first) or (last is not None and slot > last):
            return False
        rule = self._rule
        return (
            (slot - rule.anchor) % rule.interval == 0 if isinstance(rule, EveryRule) else rule.after(slot - 1) == slot
        )

    def step(self, slot: int | None, count: int) -> int | None:
        """The slot that is this many after this one."""
        rule, last = self._rule, self.definition.end
        if slot is not None and isinstance(rule, EveryRule):
            slot += count * rule.interval
        else:
            for _ in range(count):
                slot = None if slot is None else rule.after(slot)
        return None if slot is None or (last is not None and slot > last) else slot

    def spread(self, slot: int) -> int:
        """How far from its slot a job may be due."""
        return int(self.definition.jitter * self._rule.gap(slot)) if self.definition.jitter else 0
