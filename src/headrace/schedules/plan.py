"""What a schedule does next: a plan from its definition, how far it is planned, and the store's clock. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from hashlib import blake2b

import msgspec
from msgspec import Struct

from headrace.core.durations import LONGEST
from headrace.core.headers import SLOT
from headrace.core.names import check_name
from headrace.errors import ConfigError, HeadraceError
from headrace.schedules.calendar import EveryRule, Rule
from headrace.seam.records import Carried, Cells, JobId, Row, carried, carried_by_name
from headrace.seam.ticks import NewTick, Overlap, Plan, Schedule
from headrace.text import shown
from headrace.types import SECTIONS

SCHEDULE, DELIVERY = "headrace-schedule", "headrace-delivery"
"""Further headers that the job of a slot carries."""
SHORTEST = 1_000_000
"""The least distance between slots."""
LAST = 7_258_118_400_000_000
"""The year 2200: no slot comes later."""
_MOST_MISSED = 1_000
_LOOKS = 6
"""How often planners look during the time that slots are planned ahead."""
_NAMED = 900
"""Bytes of a schedule's name that fit into a group's name."""
_MOST_FIRED = 100
"""Slots that one plan looks at."""


class Misfire(StrEnum):
    """What happens to slots that nobody planned in time, as when no worker ran."""

    ONCE = "once"
    """The last of them fires for all."""
    SKIP = "skip"
    """None fires."""
    ALL = "all"
    """Each fires that is not older than ``max_age``, or is still in time."""


class Delivery(StrEnum):
    """How often the job of a slot may be run."""

    EXACTLY_ONCE = "exactly_once"
    """Slot and job are stored together: one job, which is then run like any other, with its retries."""
    AT_MOST_ONCE = "at_most_once"
    """A slot that is late is missed, and its job is never started twice."""


class Template(Carried, frozen=True, omit_defaults=True):
    """What all jobs of a schedule have in common."""

    task: str
    cells: Cells
    priority: int = 0
    expires: int | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    group: str | None = None

    def __post_init__(self) -> None:
        check_name(self.task, "task")
        if self.group is not None:
            check_name(self.group, "group", empty=True)
        _within("priority", self.priority, -32_768, 32_767)
        _within("max_attempts", self.max_attempts, 1, 2**31 - 1)
        for what in ("expires", "timeout", "result_ttl"):
            _within(what, getattr(self, what), 0, LONGEST)
        if not self.cells.keys() <= {*SECTIONS}:
            raise ConfigError(f"cells: expected some of {', '.join(SECTIONS)}, got {', '.join(self.cells)}")


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a schedule except its name, queue and tenant, and whether it is enabled."""

    rule: Rule
    template: Template
    jitter: float = 0.0
    misfire: Misfire = Misfire.ONCE
    max_age: int = 0
    grace: int = 60_000_000
    """How long after its instant a slot still counts as planned in time."""
    overlap: Overlap = Overlap.ALLOW
    queued: bool = False
    """Whether its jobs run one after the other, as a group of their own."""
    delivery: Delivery = Delivery.EXACTLY_ONCE
    start: int | None = None
    end: int | None = None
    max_runs: int | None = None
    dynamic_interval: bool = msgspec.field(default=False, name="paced")  # the name in stores
    """Whether a function says when the next slot comes: only workers that have it plan the schedule."""

    def __post_init__(self) -> None:
        """Each definition is checked: it may come from a store that others write to. Raises ``ConfigError``."""
        if isinstance(self.rule, EveryRule):
            _within("interval", self.rule.interval, SHORTEST, LONGEST)
            _within("anchor", self.rule.anchor, -LAST, LAST)
        if not 0 <= self.jitter <= 0.5:
            raise ConfigError(f"jitter: expected a share of the interval from 0 to 0.5, got {self.jitter}")
        _within("grace", self.grace, 0, LONGEST)
        _within("max_age", self.max_age, 0, LONGEST)
        _within("max_runs", self.max_runs, 1, 2**31 - 1)
        _within("start", self.start, 0, LAST)
        _within("end", self.end, self.start or 0, LAST)
        if self.delivery is Delivery.AT_MOST_ONCE and self.misfire is not Misfire.SKIP:
            raise ConfigError(f"misfire: expected 'skip' with delivery='at_most_once', got {self.misfire.value!r}")
        if self.queued and self.template.group is not None:
            raise ConfigError(
                f"overlap: 'queue' makes the jobs a group of their own; leave out group={shown(self.template.group)}"
            )

    def pack(self) -> bytes:
        return _ENCODER.encode(self)

    def first(self, now: int) -> int | None:
        """The first slot that is still to come."""
        return self.following(now if self.start is None else max(now, self.start - 1))

    def following(self, instant: int, rule: Rule | None = None) -> int | None:
        """The first slot later than this."""
        slot = (rule or self.rule).after(instant)
        return None if slot is None or (self.end is not None and slot > self.end) else slot


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Definition)


def unpack(packed: bytes) -> Definition:
    """The definition in its packed form. Raises ``ConfigError`` if it is not valid, and ``ValueError`` if it cannot be
    read at all, as when a newer version wrote it."""
    try:
        return _DECODER.decode(packed)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, HeadraceError):
            raise ConfigError(str(error.__cause__)) from None
        raise


def _within(what: str, number: int | None, least: int, most: int) -> None:
    if number is not None and not least <= number <= most:
        raise ConfigError(f"{what}: expected {least:,} to {most:,} (times in microseconds), got {number:,}")


def run_at(uid: bytes, slot: int, definition: Definition, nearest: int | None = None) -> int:
    """When the job of a slot is due. Jitter depends on schedule and slot alone, so that all planners agree.
    ``nearest``: the distance to the slot beside it, if that may be less than the rule says."""
    if not definition.jitter:
        return slot
    drawn = int.from_bytes(_digest(uid, slot)[:8], "big") / 2**63 - 1.0
    gap = definition.rule.gap(slot)
    return slot + int(drawn * definition.jitter * (gap if nearest is None else min(gap, nearest)))


def job_id(uid: bytes, slot: int, due: int) -> JobId:
    """The id of a slot's job: a UUIDv7 of the instant at which it is due, the same from every planner."""
    value = int.from_bytes((due // 1_000).to_bytes(6, "big") + _digest(uid, slot)[:10], "big")
    value = value & ~(0xF << 76) | (0x7 << 76)
    return (value & ~(0b11 << 62) | (0b10 << 62)).to_bytes(16, "big")


def _digest(uid: bytes, slot: int) -> bytes:
    return blake2b(uid + slot.to_bytes(8, "big", signed=True), digest_size=16).digest()


def look_at(schedule: Schedule, definition: Definition, slot: int | None, ahead: int) -> int | None:
    """When a planner must look at the schedule for this slot. Not ahead if it matters what the job before does, or if a
    function says when the next slot comes."""
    if slot is None:
        return None
    exact = definition.overlap is not Overlap.ALLOW or definition.dynamic_interval
    return _look_at(run_at(schedule.uid, slot, definition), 0 if exact else ahead)


def _look_at(due: int, ahead: int) -> int:
    """Ahead, at one of a few instants that all schedules share, so that a planner wakes for many at once."""
    step = max(1, ahead // _LOOKS)
    return -((ahead - due) // step) * step if ahead else due


def tick(schedule: Schedule, definition: Definition, slot: int, due: int, now: int) -> NewTick:
    """A slot that fires."""
    template, at_most_once = definition.template, definition.delivery is Delivery.AT_MOST_ONCE
    expires = template.expires
    if at_most_once:
        expires = definition.grace if expires is None else min(expires, definition.grace)
    headers = {**template.headers, SCHEDULE: schedule.name, SLOT: f"{schedule.uid.hex()}:{slot}"}
    options = carried_by_name(carried(template))
    if at_most_once:
        headers[DELIVERY] = Delivery.AT_MOST_ONCE.value
        options["max_attempts"] = 1
    row = Row(
        id=job_id(schedule.uid, slot, due),
        queue=schedule.queue,
        task=template.task,
        cells=template.cells,
        tenant=schedule.tenant,
        priority=template.priority,
        run_at=due,
        expires=None if expires is None else expires + max(0, due - now),
        headers=_ENCODER.encode(headers),
        group=_group(schedule) if definition.queued else template.group,
        **options,
    )
    return NewTick(slot, due, row, overlap=definition.overlap)


def _group(schedule: Schedule) -> str:
    """The group of all its jobs. People can read the schedule's name in it, and it is not too long for a name."""
    name = schedule.name.encode()[:_NAMED].decode(errors="ignore")
    return f"{SCHEDULE}:{name}:{schedule.uid.hex()}"


def make_plan(
    schedule: Schedule, definition: Definition, now: int, ahead: int, interval: Callable[[], int | None] | None = None
) -> Plan:
    """What to do now, and where the schedule stands afterwards. When a slot fires, ``interval`` says how long until the
    next; None: as the rule says. Such a schedule is not planned ahead."""
    return _Planning(schedule, definition, now, ahead, interval).plan()


class _Planning:
    """Makes one plan."""

    def __init__(
        self,
        schedule: Schedule,
        definition: Definition,
        now: int,
        ahead: int,
        interval: Callable[[], int | None] | None,
    ) -> None:
        self._schedule = schedule
        self._definition = definition
        self._now = now
        exact = definition.overlap is not Overlap.ALLOW or interval is not None
        self._ahead = 0 if exact else ahead
        self._slot = schedule.slot
        self._left = _MOST_FIRED
        if definition.max_runs is not None:
            self._left = min(self._left, definition.max_runs - schedule.runs)
        self._interval = interval
        late = max(definition.grace, definition.max_age if definition.misfire is Misfire.ALL else 0)
        self._deadline = now - late
        self._horizon = now + self._ahead
        self._before = schedule.last_slot
        self._next: tuple[int, int | None] | None = None

    def plan(self) -> Plan:
        schedule, definition = self._schedule, self._definition
        ticks = [*self._make_up(), *self._fire()] if self._left > 0 else []
        if definition.max_runs is not None and schedule.runs >= definition.max_runs:
            self._slot = None
        # One that is behind lines up again, so that it does not keep the planners from others.
        when = None if self._slot is None else max(self._now, _look_at(self._due(self._slot), self._ahead))
        return Plan(schedule.name, schedule.uid, schedule.version, ticks, self._slot, when)

    def _due(self, slot: int) -> int:
        dynamic = self._interval is not None and self._before is not None and self._before < slot
        return run_at(self._schedule.uid, slot, self._definition, slot - (self._before or 0) if dynamic else None)

    def _following(self, slot: int) -> int | None:
        if self._next is None or self._next[0] != slot:
            self._next = slot, self._definition.following(slot)
        return self._next[1]

    def _advance(self) -> None:
        if self._slot is not None:
            self._before, self._slot = self._slot, self._following(self._slot)

    def _late(self, slot: int) -> bool:
        """Whether a slot is past its deadline. Whatever its jitter, it is if the next slot is, too."""
        if self._definition.jitter and (following := self._following(slot)) is not None and following <= self._deadline:
            return True
        return self._due(slot) < self._deadline

    def _tick(self, slot: int, due: int) -> NewTick:
        self._left -= 1
        return tick(self._schedule, self._definition, slot, due, self._now)

    def _make_up(self) -> Iterator[NewTick]:
        """The ticks of slots that are past their deadline."""
        first = last = self._slot
        count = 0
        for _ in range(_MOST_MISSED):
            if (slot := self._slot) is None or not self._late(slot):
                break
            last, count = slot, count + 1
            self._advance()
            if isinstance(rule := self._definition.rule, EveryRule) and self._slot is not None:
                # Slots that are late whatever their jitter are not looked at one by one.
                sure = rule.count(self._slot, self._surely_late(rule))
                if sure > 1:
                    count += sure - 1
                    self._slot += (sure - 1) * rule.interval
                    self._before = self._slot - rule.interval
        if first is None or last is None or not count:
            return
        over = self._slot is None or not self._late(self._slot)
        fires = self._definition.misfire is Misfire.ONCE and over and self._left > 0
        if count > fires:
            yield NewTick(first, self._due(first), count=count - fires)
        if fires:
            yield self._tick(last, self._due(last))
        if not over:
            self._left = 0

    def _surely_late(self, rule: EveryRule) -> int:
        before = self._deadline - int(self._definition.jitter * rule.interval)
        return before if self._definition.end is None else min(before, self._definition.end + 1)

    def _fire(self) -> Iterator[NewTick]:
        """The ticks of slots whose time comes, and of late slots that are not missed."""
        while self._left > 0 and (slot := self._slot) is not None and (due := self._due(slot)) <= self._horizon:
            yield self._tick(slot, due)
            interval = None if self._interval is None else self._interval()
            if interval is None:
                self._advance()
            else:
                self._before, self._slot = slot, self._definition.following(slot, EveryRule(interval, slot))
