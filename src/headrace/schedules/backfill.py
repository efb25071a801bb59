"""Backfill among missed slots: consecutive missed slots are one tick, which is split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition
from headrace.seam.ticks import NewTick


class Stretch(NamedTuple):
    """Consecutive slots: the first one, and how many."""

    first: int
    length: int


def split(
    stretches: Iterable[Stretch], slots: Sequence[int], definition: Definition
) -> tuple[list[Stretch], list[NewTick]]:
    """What is left of stretches without these consecutive slots, and their new ticks.

    >>> from headrace.schedules.plan import Template
    >>> hour = 3_600_000_000
    >>> hourly = Definition(rule=EveryRule(interval=hour, anchor=0), template=Template("t", {}))
    >>> left, ticks = split([Stretch(1 * hour, 10)], [3 * hour, 4 * hour], hourly)
    >>> [(one.first // hour, one.length) for one in left], [(tick.slot // hour, tick.count) for tick in ticks]
    ([(1, 2), (5, 6)], [(1, 2), (5, 6)])
    """
    left: list[Stretch] = []
    changed: list[Stretch] = []
    for stretch in stretches:
        parts = _without(stretch, slots, definition)
        left += parts
        changed += () if parts == [stretch] else parts
    return left, [NewTick(one.first, one.first, count=one.length) for one in changed]


def _without(stretch: Stretch, slots: Sequence[int], definition: Definition) -> list[Stretch]:
    first = next((slot for slot in slots if slot >= stretch.first), None)
    if first is None:
        return [stretch]
    ahead = _slots_between(stretch.first, first, stretch.length, definition)
    gone = min(stretch.length - ahead, sum(slot >= first for slot in slots))
    if gone <= 0:
        return [stretch]
    behind = stretch.length - ahead - gone
    coming = definition.following([slot for slot in slots if slot >= first][gone - 1]) if behind else None
    parts = [Stretch(stretch.first, ahead)] if ahead else []
    return parts if coming is None else [*parts, Stretch(coming, behind)]


def _slots_between(slot: int, before: int, most: int, definition: Definition) -> int:
    """How many slots there are from one on before another."""
    if isinstance(definition.rule, EveryRule):
        return min(most, definition.rule.count(slot, before))
    count = 0
    coming: int | None = slot
    while count < most and coming is not None and coming < before:
        count, coming = count + 1, definition.following(coming)
    return count
