"""Schedules as users write and see them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

from msgspec import Struct, StructMeta

from headrace.core.durations import micros, spell_exactly
from headrace.core.headers import read_headers
from headrace.core.names import refuse_unknown
from headrace.core.numbers import check_whole
from headrace.core.view import View
from headrace.errors import ConfigError, InvalidJob
from headrace.payloads.codec import Envelope
from headrace.schedules.calendar import CronRule, EveryRule, Rule, cron_rule
from headrace.schedules.plan import SHORTEST, Definition, Delivery, Misfire, Template
from headrace.seam.instants import datetime_or_none, from_datetime, to_datetime
from headrace.seam.records import Row
from headrace.seam.ticks import Overlap, Schedule, Tick
from headrace.text import shown
from headrace.types import Duration, JobState, NewJob

QUEUE = "queue"
"""The value of ``overlap`` that stores do not know: it becomes a group."""


if TYPE_CHECKING:
    _Options = StructMeta
else:

    class _Options(StructMeta):
        """Refuses unknown options like everything else; type checkers know the valid ones."""

        def __call__(cls, *args: Any, **options: Any) -> Any:
            positional = {"interval", "expression", "job"} & {*cls.__struct_fields__}
            refuse_unknown(options.keys() - positional, sorted({*cls.__struct_fields__} - positional))
            return super().__call__(*args, **options)


class ScheduleOptions(Struct, frozen=True, kw_only=True, metaclass=_Options):
    """What intervals and cron expressions have in common."""

    name: str | None = None
    """Unique in the store; by default the name of the task."""
    jitter: float | None = None
    """Each job is due up to this share of the distance between slots before or after its slot; how much depends on
    schedule and slot alone. By default, 0.1 for intervals and 0 for cron expressions."""
    misfire: Literal["once", "skip", "all"] | None = None
    """Slots that nobody planned in time, as when no worker ran: the last of them fires for all (``once``, the default),
    none fires (``skip``), or each that is not older than ``max_age`` (``all``)."""
    max_age: Duration = "1d"
    grace: Duration = "1m"
    """How long after its instant a slot can still be planned in time."""
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    """While the job of the slot before is still alive: fire, skip the slot, fire and let the new job wait until the old
    one has ended, or cancel the old job and fire."""
    delivery: Literal["exactly_once", "at_most_once"] = "exactly_once"
    """``exactly_once``: one job for each slot, run like any other. ``at_most_once``: a slot that is late is missed, and
    its job is never started a second time, whatever became of the first."""
    start: datetime | None = None
    end: datetime | None = None
    """Only slots from ``start`` to ``end``; intervals are counted from ``start``."""
    max_runs: int | None = None
    """The schedule ends after this many slots have fired."""
    plan_priority: int = 0
    """When many schedules are behind, those with a lower number are planned first."""


class Every(ScheduleOptions, frozen=True):
    """A job at equal intervals.

    >>> from headrace import App, Every
    >>> app = App("memory://")
    >>> @app.task
    ... def check(site: str) -> None: ...
    >>> Every("30s", check.job("example.org"), name="check example.org").interval
    '30s'
    """

    interval: Duration
    job: NewJob


class Cron(ScheduleOptions, frozen=True):
    """A job by the clock: minute, hour, day, month and weekday (six fields: seconds first), or ``@daily`` and its like.

    >>> from headrace import App, Cron
    >>> app = App("memory://")
    >>> @app.task
    ... def report() -> None: ...
    >>> Cron("0 6 * * MON-FRI", report.job(), tz="Europe/Madrid").tz
    'Europe/Madrid'
    """

    expression: str
    job: NewJob
    tz: str = "UTC"


class SharedOptions(TypedDict, total=False):
    """Options of every schedule, which can be changed later; ``ScheduleOptions`` explains each."""

    jitter: float | None
    misfire: Literal["once", "skip", "all"] | None
    max_age: Duration
    grace: Duration
    overlap: Literal["allow", "skip", "queue", "cancel"]
    delivery: Literal["exactly_once", "at_most_once"]
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    plan_priority: int


class EveryOptions(SharedOptions, total=False):
    """What ``app.every`` takes."""

    name: str | None


class CronOptions(EveryOptions, total=False):
    """What ``app.cron`` takes."""

    tz: str


class ScheduleChanges(SharedOptions, total=False):
    """What ``schedules.update`` takes."""

    every: Duration
    cron: str
    tz: str
    dynamic_interval: bool


class ScheduleInfo(View, frozen=True, kw_only=True):
    """A stored schedule.

    >>> from headrace import App, Cron, SyncApp
    >>> app = App("memory://")
    >>> @app.task(name="report")
    ... def report(region: str) -> None: ...
    >>> with SyncApp(app) as jobs:
    ...     daily = Cron("0 6 * * *", report.job("north"), tz="Europe/Madrid")
    ...     info = jobs.wait_for(app.schedules.put(daily))
    >>> info.name, info.rule, info.tz, info.args, info.enabled, info.runs
    ('report', '0 6 * * *', 'Europe/Madrid', {'region': 'north'}, True, 0)
    >>> info.to_dict()["misfire"]
    'once'
    """

    name: str
    task: str
    args: Any
    """Of its jobs, as plain data."""
    queue: str
    tenant: str
    """Empty: it belongs to no tenant."""
    priority: int
    """Of its jobs."""
    enabled: bool
    rule: str
    """``every 30s``, or the cron expression; in angle brackets, why the stored schedule cannot be read."""
    tz: str
    """Empty for intervals."""
    next_slot: datetime | None
    """The next slot that is not planned yet."""
    last_slot: datetime | None
    last_job: UUID | None
    """The last slot that was planned, and its job."""
    runs: int
    """Slots whose jobs were stored, including those planned ahead, and runs out of turn."""
    jitter: float
    misfire: str
    max_age: float
    grace: float
    """In seconds."""
    overlap: str
    delivery: str
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    plan_priority: int
    dynamic_interval: bool
    """Whether a function sets its interval (``app.dynamic_interval``). Workers without it leave it to others."""
    created_at: datetime
    updated_at: datetime


def status(schedule: ScheduleInfo) -> str:
    """Whether it still fires."""
    if not schedule.enabled:
        return "paused"
    return "enabled" if schedule.next_slot is not None else "over"


class TickInfo(View, frozen=True, kw_only=True):
    """What became of a slot.

    >>> from headrace import App, Every, SyncApp
    >>> app = App("memory://")
    >>> @app.task(name="ping")
    ... def ping() -> None: ...
    >>> with SyncApp(app) as jobs:
    ...     schedule = jobs.wait_for(app.schedules.put(Every("1h", ping.job())))
    ...     job_id = jobs.wait_for(app.schedules.run("ping"))
    ...     [tick] = jobs.wait_for(app.schedules.history("ping"))
    >>> tick.outcome, tick.state, tick.waited
    ('fired', 'available', None)
    """

    slot: datetime
    run_at: datetime
    """With jitter."""
    planned_at: datetime
    """When it was entered in the history."""
    outcome: str
    """``fired``, ``skipped`` (the job before was still alive) or ``missed`` (nobody planned it in time)."""
    count: int
    """How many slots in a row, if they were missed."""
    job: UUID | None
    state: str
    """The job's state, as far as it is known."""
    waited: float | None
    """Seconds from ``run_at`` (in a backfill: from then) until the job was last started."""
    ran: float | None
    """Seconds for which it ran. Both are None while it has not ended, or if that was not noted."""


def define(spec: Every | Cron, template: Template, anchor: int) -> Definition:
    """The definition of a schedule with these jobs. Intervals without a start are counted from ``anchor``. Raises
    ``ConfigError``."""
    at_most_once = _one_of(Delivery, spec.delivery, "delivery") is Delivery.AT_MOST_ONCE
    start, end = _instant(spec.start, "start"), _instant(spec.end, "end")
    rule = _rule(spec, anchor if start is None else start)
    if (grace := micros(spec.grace, "grace")) < SHORTEST:
        raise ConfigError(f"grace: expected at least 1s, which a planner may need, got {shown(spec.grace)}")
    if start is not None and end is not None and end < start:
        raise ConfigError(f"end: expected an instant after start, got {spec.end} before {spec.start}")
    check_whole(spec.plan_priority, "plan_priority", -32_768, 32_767)
    return Definition(
        rule=rule,
        template=template,
        jitter=_jitter(spec),
        misfire=_one_of(Misfire, spec.misfire or ("skip" if at_most_once else "once"), "misfire"),
        max_age=micros(spec.max_age, "max_age"),
        grace=grace,
        overlap=Overlap.ALLOW if spec.overlap == QUEUE else _one_of(Overlap, spec.overlap, "overlap", QUEUE),
        queued=spec.overlap == QUEUE,
        delivery=Delivery(spec.delivery),
        start=start,
        end=end,
        max_runs=None if spec.max_runs is None else check_whole(spec.max_runs, "max_runs", 1, 2**31 - 1),
    )


def _rule(spec: Every | Cron, anchor: int) -> Rule:
    if isinstance(spec, Cron):
        return cron_rule(spec.expression, spec.tz)
    given = spec.interval
    negative = given < timedelta() if isinstance(given, timedelta) else isinstance(given, int | float) and given < 0
    if negative or (interval := micros(given, "interval")) < SHORTEST:
        raise ConfigError(f"interval: expected at least 1s, got {shown(given)}")
    return EveryRule(interval, anchor)


def template_of(row: Row) -> Template:
    """What all jobs of a schedule have in common, from the row of one."""
    same: dict[str, Any] = {name: getattr(row, name) for name in Template.__struct_fields__}
    return Template(**same | {"headers": read_headers(row.headers)})


def _jitter(spec: Every | Cron) -> float:
    given = spec.jitter
    if given is None:
        return _default_jitter(spec)
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given <= 0.5:
        raise ConfigError(f"jitter: expected a share of the interval from 0 to 0.5, got {shown(given)}")
    return float(given)


def _default_jitter(spec: Every | Cron) -> float:
    return 0.1 if isinstance(spec, Every) else 0.0


def _one_of(kind: Any, given: object, what: str, *more: str) -> Any:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(map(repr, (*(one.value for one in kind), *more)))
        raise ConfigError(f"{what}: expected one of {known}, got {shown(given)}") from None


def _instant(given: datetime | None, what: str) -> int | None:
    if given is None:
        return None
    instant = aware(given, what)
    if not 1970 <= given.year < 2200:
        raise ConfigError(f"{what}: expected a date from 1970 to 2199, got {shown(given)}")
    return instant


def aware(given: object, what: str) -> int:
    """The instant that a datetime names. Raises ``ConfigError``."""
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise ConfigError(f"{what}: expected a datetime with a time zone, got {shown(given)}")
    return from_datetime(given)


def spec_of(definition: Definition, plan_priority: int) -> Every | Cron:
    """What a user would have written; of its job, only the task."""
    rule = definition.rule
    options = _options(definition) | {
        "max_age": timedelta(microseconds=definition.max_age),
        "grace": timedelta(microseconds=definition.grace),
        "plan_priority": plan_priority,
    }
    job = NewJob(task=definition.template.task)
    if isinstance(rule, CronRule):
        return Cron(rule.expression, job, tz=rule.zone, **options)
    return Every(timedelta(microseconds=rule.interval), job, **options)


def changed(spec: Every | Cron, changes: Mapping[str, Any]) -> Every | Cron:
    """The same with changes: options, and ``every`` or ``cron`` and ``tz``. Raises ``ConfigError``."""
    options = {*ScheduleOptions.__struct_fields__} - {"name"}
    refuse_unknown(changes.keys(), sorted(options | {"every", "cron", "tz", "dynamic_interval"}))
    if "every" in changes and changes.keys() & {"cron", "tz"}:
        raise ConfigError("expected every=, or cron= and tz=, got both")
    kept = {name: getattr(spec, name) for name in options} | {k: v for k, v in changes.items() if k in options}
    if ("every" if isinstance(spec, Cron) else "cron") in changes:
        # The old kind's default jitter is not one that somebody asked for.
        kept["jitter"] = changes.get("jitter", None if spec.jitter == _default_jitter(spec) else spec.jitter)
    if "every" in changes or (isinstance(spec, Every) and "cron" not in changes):
        if "tz" in changes:
            raise ConfigError("tz: an interval has no time zone; give cron= too")
        return Every(changes.get("every", getattr(spec, "interval", None)), spec.job, **kept)
    expression = changes.get("cron", getattr(spec, "expression", None))
    return Cron(expression, spec.job, tz=changes.get("tz", getattr(spec, "tz", "UTC")), **kept)


def check_job(job: object) -> NewJob:
    """A job that a schedule can make again and again. Raises ``InvalidJob``."""
    if not isinstance(job, NewJob):
        raise InvalidJob(f"expected a job made with task.job(…), got {shown(job)}")
    for what in ("run_at", "delay", "key"):
        if getattr(job, what) is not None:
            raise InvalidJob(f"{what}: leave it out; a schedule decides when its jobs are due, and they have no keys")
    return job


def tick_info(tick: Tick, state: str) -> TickInfo:
    """The rich view of a flat tick, with the state of its job."""
    never_started = tick.state == JobState.CANCELLED and not tick.ran
    return TickInfo(
        slot=to_datetime(tick.slot),
        run_at=to_datetime(tick.run_at),
        planned_at=to_datetime(tick.planned_at),
        outcome=tick.outcome.value,
        count=tick.count,
        job=None if tick.job is None else UUID(bytes=tick.job),
        state=state,
        waited=None if tick.waited is None or never_started else tick.waited / 1e6,
        ran=None if tick.ran is None or never_started else tick.ran / 1e6,
    )


def schedule_info(schedule: Schedule, definition: Definition, envelope: Envelope) -> ScheduleInfo:
    """The rich view of a flat schedule."""
    rule, template = definition.rule, definition.template
    return ScheduleInfo(
        **_stored(schedule),
        **_options(definition),
        task=template.task,
        args=envelope.readable(template.cells.get("parameters"), "parameters", None, schedule.tenant),
        priority=template.priority,
        rule=rule.expression if isinstance(rule, CronRule) else f"every {spell_exactly(rule.interval)}",
        tz=rule.zone if isinstance(rule, CronRule) else "",
        max_age=definition.max_age / 1e6,
        grace=definition.grace / 1e6,
        dynamic_interval=definition.dynamic_interval,
    )


def unreadable_info(schedule: Schedule, error: Exception) -> ScheduleInfo:
    """A schedule that cannot be read: only what the store knows of it; ``rule`` says why."""
    blank: dict[str, Any] = dict.fromkeys(("task", "tz", "misfire", "overlap", "delivery"), "")
    blank |= dict.fromkeys(("args", "start", "end", "max_runs")) | dict.fromkeys(("jitter", "max_age", "grace"), 0.0)
    return ScheduleInfo(**_stored(schedule), **blank, priority=0, rule=f"<{error}>", dynamic_interval=False)


def _stored(schedule: Schedule) -> dict[str, Any]:
    """What the store knows of a schedule."""
    same = ("name", "queue", "tenant", "enabled", "runs", "plan_priority")
    return {name: getattr(schedule, name) for name in same} | {
        "next_slot": datetime_or_none(schedule.slot),
        "last_slot": datetime_or_none(schedule.last_slot),
        "last_job": None if schedule.last_job is None else UUID(bytes=schedule.last_job),
        "created_at": to_datetime(schedule.created_at),
        "updated_at": to_datetime(schedule.updated_at),
    }


def _options(definition: Definition) -> dict[str, Any]:
    """The options that a user sees as they were written."""
    return {
        "jitter": definition.jitter,
        "misfire": definition.misfire.value,
        "overlap": QUEUE if definition.queued else definition.overlap.value,
        "delivery": definition.delivery.value,
        "start": datetime_or_none(definition.start),
        "end": datetime_or_none(definition.end),
        "max_runs": definition.max_runs,
    }
