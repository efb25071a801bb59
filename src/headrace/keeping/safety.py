"""Safety: whether what is too old may be deleted without asking."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.config import SafetySettings
from headrace.core.durations import micros, spell
from headrace.keeping.bounds import Bounds
from headrace.keeping.papers import Last
from headrace.types import JobState

FORCE = "look at 'headrace janitor preview', then run 'headrace janitor run --force'"


class Safety:
    """What may be deleted, seen from the last run that found all in order.

    If the clock has not gone on by more than the gap since then, and no age has become shorter, what is too old now has
    become so since: all of it may go, however much it is. Otherwise the clock or the rules may be wrong: then at most a
    share, or a number, may go.
    """

    def __init__(self, settings: SafetySettings) -> None:
        self._share = settings.share
        self._floor = settings.floor
        self._gap = micros(settings.gap)

    def clock(self, now: int, last: Last) -> str:
        """What is odd about the clock; empty: nothing."""
        if last.at and now - last.at > self._gap:
            return (
                f"the store's clock is {spell(now - last.at)} ahead of the last run, and retention.safety.gap is "
                f"{spell(self._gap)}: it may be wrong. If it is right, {FORCE}"
            )
        return ""

    def trusts(self, bounds: Bounds, last: Last) -> bool:
        """Whether the last run went by these ages, or shorter ones."""
        if not last.at:
            return False
        return all(scope in last.ages and _longer(age, last.ages[scope]) for scope, age in _ages(bounds).items())

    def most(self, total: int) -> int:
        """How many jobs of a state may go if the last run is no witness."""
        return max(int(self._share * total), self._floor)

    def too_many(self, state: JobState, total: int) -> str:
        """Why more may not go."""
        return (
            f"more than {self.most(total):,} of {total:,} {state.value} jobs are too old by rules that are new: "
            f"retention.safety allows {self._share:.0%} or {self._floor:,} at once. If they may go, {FORCE}"
        )


def witness(now: int, bounds: Iterable[Bounds], last: Last) -> Last:
    """The run to remember: it found all in order with these. What the last one says of other states stays."""
    seen = {one.state.value: _ages(one) for one in bounds}
    others = {scope: age for scope, age in last.ages.items() if scope.partition(" ")[0] not in seen}
    return Last(at=now, ages=dict(sorted((others | {k: v for ages in seen.values() for k, v in ages.items()}).items())))


def _ages(bounds: Bounds) -> dict[str, int | None]:
    ages = {f"{bounds.state.value} {rule.queue!r} {rule.task!r}": rule.age for rule in bounds.scoped}
    return {bounds.state.value: bounds.age} | ages


def _longer(age: int | None, before: int | None) -> bool:
    return age is None or (before is not None and age >= before)
