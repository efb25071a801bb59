"""Bounds: what the settings, and the rules in the store, keep of the jobs that ended in one state."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from headrace.core.config import Keep, RetentionSettings
from headrace.core.durations import micros, spell_exactly
from headrace.seam.records import Record, SweepClause, SweepTarget
from headrace.types import JobState

ENDED = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


class Rule(Struct, frozen=True, kw_only=True, order=True):
    """How long jobs that ended in one state stay: all of them, or those of a queue, of a task, or of both."""

    state: JobState
    queue: str | None = None
    task: str | None = None
    age: int | None = None
    """In microseconds; None: for ever."""
    count: int | None = None
    bytes: int | None = None
    """Bounds of all jobs of a state together; None: no such bound."""

    @property
    def scope(self) -> tuple[JobState, str | None, str | None]:
        """What it is about: the store has one rule for each."""
        return self.state, self.queue, self.task

    def __str__(self) -> str:
        whose = "".join(f" of {name} {value!r}" for name in ("queue", "task") if (value := getattr(self, name)))
        return f"{self.state.value} jobs{whose}: {spell_age(self.age)}"


class Bounds(Struct, frozen=True):
    """What is kept of one state."""

    state: JobState
    age: int | None
    count: int | None
    bytes: int | None
    scoped: tuple[Rule, ...] = ()
    """Rules of queues and tasks: the one that is met first counts."""

    def age_of(self, record: Record) -> int | None:
        """How long this job stays; None: for ever."""
        for rule in self.scoped:
            if rule.queue in (None, record.queue) and rule.task in (None, record.task):
                return rule.age
        return self.age

    @property
    def ages(self) -> list[int]:
        """All ages that any job may reach, youngest first."""
        given = (self.age, *(rule.age for rule in self.scoped))
        return sorted({age for age in given if age is not None})

    def clause(self, spare: int, ended_by: int | None, *, by_age: bool) -> SweepClause:
        """What all jobs of the state are swept by."""
        return SweepClause(
            target=SweepTarget(self.state.value),
            older_than=self.age if by_age and not self.scoped else None,
            max_count=self.count,
            max_bytes=self.bytes,
            spare=self.spare(spare),
            ended_by=ended_by,
        )

    def spare(self, spare: int) -> int:
        """How long ended jobs stay whatever the bounds say. Dead letters are not spared: in a flood of failures there
        would be many times their bound. With a count of 0 nothing is."""
        return 0 if self.count == 0 or self.state is JobState.FAILED else spare

    def whole_days(self) -> int | None:
        """The age at which all jobs of a day may go together; None: never."""
        if self.age is None or any(rule.age is None for rule in self.scoped):
            return None
        return max(self.ages)


def bounds_of(settings: RetentionSettings, rules: Iterable[Rule]) -> dict[JobState, Bounds]:
    """The bounds of every state. A rule in the store replaces the settings; of a queue and a task, the rule of the task
    counts, and that of both before either."""
    found = {state: _from_settings(state, getattr(settings, state.value)) for state in ENDED}
    scoped: dict[JobState, list[Rule]] = {state: [] for state in ENDED}
    for rule in rules:
        if rule.queue is None and rule.task is None:
            found[rule.state] = Bounds(rule.state, rule.age, rule.count, rule.bytes)
        else:
            scoped[rule.state].append(rule)
    return {state: _with_scopes(bounds, scoped[state]) for state, bounds in found.items()}


def _with_scopes(bounds: Bounds, rules: list[Rule]) -> Bounds:
    """Bounds of count and bytes cannot tell whose jobs they remove. So they do not hold where some stay for ever."""
    scoped = tuple(sorted(rules, key=_rank))
    if any(rule.age is None for rule in scoped):
        return Bounds(bounds.state, bounds.age, None, None, scoped)
    return Bounds(bounds.state, bounds.age, bounds.count, bounds.bytes, scoped)


def _from_settings(state: JobState, keep: Keep) -> Bounds:
    return Bounds(state, None if keep.age is None else micros(keep.age), keep.count, keep.bytes)


def _rank(rule: Rule) -> tuple[bool, bool, str, str]:
    return rule.task is None, rule.queue is None, rule.task or "", rule.queue or ""


def spell_age(age: int | None) -> str:
    """An age as people write it."""
    return "for ever" if age is None else spell_exactly(age) or "0s"
