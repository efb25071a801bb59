"""The janitor: rules of retention in the store, runs by hand, and what was deleted when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypedDict, Unpack

from msgspec.structs import replace

from headrace.core.actor import local_actor
from headrace.core.durations import micros, spell_exactly
from headrace.core.names import check_name
from headrace.core.numbers import check_whole
from headrace.core.store_access import Owner, StoreAccess
from headrace.core.validation import check_limit
from headrace.core.view import View
from headrace.errors import ConfigError, SafetyStop
from headrace.keeping.bounds import ENDED, Bounds, Rule, bounds_of, spell_age
from headrace.keeping.budget import Budget, BudgetWatch, save_budget
from headrace.keeping.papers import Papers, Run, Step
from headrace.keeping.protection import Protection
from headrace.keeping.queue_budgets import save_queue_budget
from headrace.keeping.safety import witness
from headrace.keeping.sweeper import Situation, Sweeper
from headrace.seam.archive import HOUR
from headrace.seam.instants import from_datetime, to_datetime
from headrace.text import shown
from headrace.types import Duration

FOREVER = "forever"


class KeepInfo(View, frozen=True, kw_only=True):
    """How long ended jobs are kept: those of a state, or of one of its queues or tasks.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> list[KeepInfo]:
    ...     async with App("memory://") as app:
    ...         return await app.janitor.rules()
    >>> for rule in asyncio.run(main()):
    ...     print(rule.state, rule.age, rule.count, rule.stored)
    cancelled 1d 100000 False
    completed 1d 100000 False
    failed 7d 100000 False
    """

    state: str
    queue: str | None
    task: str | None
    """None: those of all."""
    age: str
    """As ``"7d"``, or ``"for ever"``."""
    count: int | None
    bytes: int | None
    """Bounds of all jobs of the state together; None: no such bound."""
    stored: bool
    """Whether it is a rule in the store; otherwise it comes from the settings of this process."""


class RuleOptions(TypedDict, total=False):
    """Which ended jobs a rule is about, and its other bounds; see ``Janitor.keep``."""

    states: str | Iterable[str] | None
    queue: str | None
    task: str | None
    count: int | None
    bytes: int | None


class JanitorStep(View, frozen=True, kw_only=True):
    """What a run deleted of one target.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> list[JanitorStep]:
    ...     async with App("memory://") as app:
    ...         return (await app.janitor.run()).steps
    >>> [(step.target, step.deleted, step.retention) for step in asyncio.run(main())]
    [('completed', 0, '1d'), ('cancelled', 0, '1d'), ('failed', 0, '7d')]
    """

    target: str
    deleted: int
    bytes: int
    kept: int | None
    cutoff: datetime | None
    """What ended then or before was too old; None: it was deleted for other reasons."""
    retention: str | None
    """The age behind the cutoff; the shortest, if jobs are kept for different times."""


class JanitorRun(View, frozen=True, kw_only=True):
    """A run: what was deleted, or would be.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> list[JanitorRun]:
    ...     async with App("memory://") as app:
    ...         await app.janitor.run()
    ...         return await app.janitor.log()
    >>> [(run.deleted, run.forced, run.stopped) for run in asyncio.run(main())]
    [(0, False, '')]
    """

    at: datetime
    by: str
    runs: int
    """1; or how many runs of workers were added up."""
    forced: bool
    steps: list[JanitorStep]
    stopped: str
    """Why nothing was deleted because of its age; empty: it was."""

    @property
    def deleted(self) -> int:
        """All that was deleted."""
        return sum(step.deleted for step in self.steps)


class RemovedInfo(View, frozen=True, kw_only=True):
    """How many ended jobs retention has removed: those of one hour, state, task and tenant.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> list[RemovedInfo]:
    ...     async with App("memory://", patience=0) as app:
    ...         @app.task(name="charge")
    ...         async def charge() -> None: ...
    ...         await app.enqueue_many([charge.options(tenant="ada").job() for _ in range(3)])
    ...         await app.drain()
    ...         await app.janitor.keep("0s", count=0)
    ...         await app.janitor.run()
    ...         return await app.janitor.removed()
    >>> [(one.state, one.task, one.tenant, one.jobs) for one in asyncio.run(main())]
    [('completed', 'charge', 'ada', 3)]
    """

    hour: datetime
    """When the hour began in which they ended."""
    state: str
    task: str
    tenant: str
    jobs: int
    bytes: int


class UsageInfo(View, frozen=True, kw_only=True):
    """How many bytes a store takes up.

    >>> import asyncio, tempfile
    >>> from headrace import App
    >>> async def main(folder: str) -> UsageInfo:
    ...     async with App(f"sqlite:///{folder}/jobs.db") as app:
    ...         await app.janitor.set_budget(10 * 1024 * 1024)
    ...         return await app.janitor.usage()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     usage = asyncio.run(main(folder))
    >>> usage.limit, usage.budget, usage.refuses
    (10485760, True, False)
    """

    used: int
    limit: int | None
    """Its budget, or what it has; None: nobody knows."""
    share: float
    """Which part of that is used."""
    budget: bool
    """Whether it has a budget: only then are new jobs refused."""
    refuses: bool
    parts: dict[str, int]
    """More of it, such as ``free`` bytes, ``wal`` or the ``reserve``; which there are depends on the store."""
    queues: dict[str, float]
    """By queue with a budget: which part of that is used, roughly."""


class SweptTable(Protocol):
    """A hot table."""

    async def planned(self) -> tuple[Step, str]:
        """What a sweep would delete, and why it would not; empty: it would."""

    async def swept(self, *, force: bool) -> Step:
        """Delete it, and note it in the log."""


class Janitor:
    """Says how long ended jobs are kept, deletes what is past that, and knows what was deleted. Every worker does the
    same as a duty.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> None:
    ...     async with App("memory://") as app:
    ...         await app.janitor.keep("30d", states="failed")
    ...         await app.janitor.keep("forever", states="completed", task="charge")
    ...         for rule in await app.janitor.rules():
    ...             print(rule.state, rule.task, rule.age)
    ...         print((await app.janitor.preview()).deleted, (await app.janitor.run()).deleted)
    >>> asyncio.run(main())
    cancelled None 1d
    completed charge for ever
    completed None 1d
    failed None 30d
    0 0
    """

    def __init__(self, owner: Owner[StoreAccess], tables: Callable[[], Sequence[SweptTable]] = lambda: ()) -> None:
        """``tables``: the hot tables of the app."""
        self._owner = owner
        self._tables = tables

    async def keep(self, age: Duration, **options: Unpack[RuleOptions]) -> None:
        """Keep ended jobs for this long, or ``"forever"``. The rule is in the store, and counts for all workers.

        ``states``: ``"completed"``, ``"cancelled"``, ``"failed"``, or several; all three by default. ``queue`` and
        ``task``: only their jobs. A rule of a task counts before one of a queue. ``count`` and ``bytes``: how many jobs
        of a state are kept at most, whatever their age, and how large they may be together. They are bounds of a whole
        state. Without them those of the settings stay, or none with ``"forever"``: also that of a queue or a task lifts
        those of its state.
        """
        await self.put(make_rules(age, **options))

    async def put(self, rules: Sequence[Rule]) -> None:
        """Store rules; each replaces that of the same state, queue and task."""
        papers, settings = await self._papers(), self._owner.client.settings.retention
        defaults = bounds_of(settings, ())
        whole = [_filled(rule, defaults[rule.state]) for rule in rules]
        scopes = {rule.scope for rule in whole}
        given = [rule for rule in rules if rule.count is not None or rule.bytes is not None]

        def replaced(old: list[Rule]) -> list[Rule]:
            new = [*(one for one in old if one.scope not in scopes), *whole]
            _check_no_bound_on(given, new)
            return new

        await papers.change_rules(replaced)

    async def forget(
        self, *, states: str | Iterable[str] | None = None, queue: str | None = None, task: str | None = None
    ) -> int:
        """Remove rules from the store; returns how many. What the settings say counts again."""
        scopes = {rule.scope for rule in make_rules(FOREVER, states=states, queue=queue, task=task)}
        removed = 0

        def without(old: list[Rule]) -> list[Rule]:
            nonlocal removed
            left = [one for one in old if one.scope not in scopes]
            removed = len(old) - len(left)
            return left

        await (await self._papers()).change_rules(without)
        return removed

    async def rules(self) -> list[KeepInfo]:
        """All rules: those in the store, and what the settings of this process say where there is none."""
        stored, _, _ = await (await self._papers()).read()
        scopes = {rule.scope for rule in stored}
        bounds = bounds_of(self._owner.client.settings.retention, stored)
        found = [*(one for of in bounds.values() for one in of.scoped)]
        found += [Rule(state=b.state, age=b.age, count=b.count, bytes=b.bytes) for b in bounds.values()]
        return [
            KeepInfo(
                state=rule.state.value, queue=rule.queue, task=rule.task, age=spell_age(rule.age),
                count=rule.count, bytes=rule.bytes, stored=rule.scope in scopes,
            )
            for rule in sorted(found, key=lambda one: one.state.value)
        ]  # fmt: skip

    async def preview(self) -> JanitorRun:
        """What a run would delete now, of the app's hot tables too; nothing changes. ``stopped`` says if it would not,
        without force."""
        sweeper = await self._sweeper()
        return _shown(await self._plan(sweeper, await sweeper.look()))

    async def run(self, *, force: bool = False) -> JanitorRun:
        """Delete what is over its bounds, and old rows of the app's hot tables, and note it in the log.

        Raises ``SafetyStop`` before anything is deleted, if much would go by rules that are new, or the store's clock
        is far ahead of the last run. ``force``: delete it all the same. From then on workers do so too.
        """
        sweeper = await self._sweeper()
        situation = await sweeper.look()
        assert sweeper.papers is not None
        if not force and (stops := [*await _stops(sweeper, situation), *await self._table_stops()]):
            plan = await self._plan(sweeper, situation)
            await sweeper.papers.log(Run(at=situation.now, by=local_actor(), stopped=stops[0]), add_up=False)
            raise SafetyStop(f"nothing was deleted: {stops[0]}", _shown(plan))
        await sweeper.papers.save_last(witness(situation.now, situation.bounds.values(), situation.last))
        steps = tuple([await _swept(sweeper, bounds, situation) for bounds in situation.bounds.values()])
        run = Run(at=situation.now, by=local_actor(), forced=force, steps=steps)
        await sweeper.papers.log(run, add_up=False)
        swept = [await table.swept(force=force) for table in self._tables()]
        return _shown(replace(run, steps=(*run.steps, *swept)))

    async def _table_stops(self) -> list[str]:
        plans = [await table.planned() for table in self._tables()]
        return [f"{step.target}: {stopped}" for step, stopped in plans if stopped]

    async def protect(self, *tables: str | tuple[str, ...]) -> None:
        """Let no process delete rows of these tables, whatever its rules say. The names are in the store."""
        named = [(one,) if isinstance(one, str) else tuple(one) for one in tables]
        for part in (part for one in named for part in one):
            check_name(part, "table")
        await (await self._protection()).add(named)

    async def unprotect(self, table: str | tuple[str, ...]) -> bool:
        """Protect a table no longer; whether it was."""
        return await (await self._protection()).remove((table,) if isinstance(table, str) else tuple(table))

    async def protected(self) -> list[str]:
        """The names of the protected tables."""
        return [".".join(one) for one in await (await self._protection()).names()]

    async def _protection(self) -> Protection:
        documents = (await self._owner.client.backend()).documents
        if documents is None:
            raise ConfigError("this store keeps no names of protected tables")
        return Protection(documents)

    async def log(self, limit: int = 50) -> list[JanitorRun]:
        """The latest runs, latest first. Those of workers are added up by the hour."""
        return [_shown(run) for run in await (await self._papers()).runs(check_limit(limit))]

    async def removed(self, since: datetime | None = None, until: datetime | None = None) -> list[RemovedInfo]:
        """How many ended jobs were removed, by all runs and workers, of the hours from ``since`` to ``until`` in which
        they ended, oldest first. Jobs that are deleted in other ways are not counted. The settings say how many counts
        are kept (``retention.removals``)."""
        archive = (await self._owner.client.backend()).archive
        if archive is None:
            raise ConfigError("this store does not count what is removed")
        after = -1 if since is None else from_datetime(since) // HOUR - 1
        last = 1 << 62 if until is None else from_datetime(until) // HOUR
        found: list[RemovedInfo] = []
        while (page := await archive.removals(after)) and (after := page[0].hour) <= last:
            found += [
                RemovedInfo(
                    hour=to_datetime(one.hour * HOUR), state=one.state, task=one.task, tenant=one.tenant,
                    jobs=one.jobs, bytes=one.bytes,
                )
                for one in page
            ]  # fmt: skip
        return found

    async def set_budget(
        self, bytes: int | None = None, *, queue: str | None = None, reserve: int | None = None
    ) -> None:
        """Let the store take up this many bytes; None: as many as it says that it has (``maxmemory``, or the volume of
        a file). At 80 % there is an alert; from 85 % on, clients refuse new jobs with ``StoreFull`` while work and
        cleaning up go on.

        ``queue``: only its jobs that wait or run may take up this many, roughly. New ones are refused as by a depth.
        ``reserve``: how many bytes PostgreSQL keeps aside for a full disk; a twentieth by default, at most 64 MiB.
        """
        backend = await self._owner.client.backend()
        if backend.documents is None or backend.usage is None:
            raise ConfigError("this store does not know how many bytes it takes up, so it has no budget")
        for name, given, least in (("bytes", bytes, 1), ("reserve", reserve, 0)):
            if given is not None:
                check_whole(given, name, least)
        if queue is not None:
            if bytes is None or reserve is not None:
                raise ConfigError("expected a number of bytes, and no reserve, for the budget of a queue")
            await save_queue_budget(backend.documents, check_name(queue, "queue"), bytes)
            return
        if bytes is None and (await backend.usage()).capacity is None:
            raise ConfigError("bytes: expected a number, as this store does not say how many bytes it has")
        await save_budget(backend.documents, Budget(bytes=bytes, reserve=reserve))

    async def drop_budget(self, *, queue: str | None = None) -> None:
        """Let the store, or a queue, take up any number of bytes."""
        backend = await self._owner.client.backend()
        if backend.documents is None:
            return
        if queue is not None:
            await save_queue_budget(backend.documents, check_name(queue, "queue"), None)
            return
        await save_budget(backend.documents, None)
        if backend.reserve is not None:
            await backend.reserve(0)

    async def usage(self) -> UsageInfo:
        """How many bytes the store takes up, and how many it may."""
        client = self._owner.client
        watch = BudgetWatch(await client.backend(), client.observers, client.clock)
        measured = await watch.measure()
        if measured is None or watch.queues is None:
            raise ConfigError("this store does not know how many bytes it takes up")
        return UsageInfo(
            used=measured.usage.used, limit=measured.limit, share=measured.share, budget=measured.budget is not None,
            refuses=measured.refuses, parts=measured.usage.parts,
            queues={one.queue: one.share for one in await watch.queues.measure()},
        )  # fmt: skip

    async def _plan(self, sweeper: Sweeper, situation: Situation) -> Run:
        steps = [await sweeper.preview(bounds, situation) for bounds in situation.bounds.values()]
        steps += [(await table.planned())[0] for table in self._tables()]
        stops = [*await _stops(sweeper, situation), *await self._table_stops()]
        return Run(at=situation.now, by=local_actor(), steps=tuple(steps), stopped=stops[0] if stops else "")

    async def _sweeper(self) -> Sweeper:
        client = self._owner.client
        backend = await client.backend()
        if backend.documents is None or backend.archive is None:
            raise ConfigError("this store keeps no rules of retention, so its janitor cannot be run by hand")
        spare = 2 * micros(client.settings.patience)
        settings, vault = client.settings.retention, client.settings.vault.url is not None
        return Sweeper(backend, client.clock, client.observers, settings, spare, vault=vault)

    async def _papers(self) -> Papers:
        papers = (await self._sweeper()).papers
        assert papers is not None
        return papers


def make_rules(
    age: Duration,
    *,
    states: str | Iterable[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    count: int | None = None,
    bytes: int | None = None,
) -> list[Rule]:
    """Rules as people give them, checked; one for each state."""
    named = [states] if isinstance(states, str) else ENDED if states is None else list(states)
    known = {state.value: state for state in ENDED}
    for state in named:
        if state not in known:
            raise ConfigError(f"states: expected some of {', '.join(known)}, got {shown(state)}")
    if queue is not None:
        check_name(queue, "queue")
    if task is not None:
        check_name(task, "task")
    for name, bound in (("count", count), ("bytes", bytes)):
        if bound is not None:
            check_whole(bound, name, 0)
            if queue is not None or task is not None:
                raise ConfigError(f"{name}: expected none with queue or task: it is a bound of a whole state")
    length = None if age == FOREVER else _length(age)
    return [Rule(state=known[s], queue=queue, task=task, age=length, count=count, bytes=bytes) for s in named]


def _length(age: Duration) -> int:
    try:
        return micros(age, "age")
    except ConfigError as error:
        raise ConfigError(f'{error}; or "{FOREVER}"') from None


def _filled(rule: Rule, default: Bounds) -> Rule:
    """A rule of a whole state, with the bounds of the settings where it has none, unless it keeps for ever."""
    if rule.queue is not None or rule.task is not None or rule.age is None:
        return rule
    count = default.count if rule.count is None else rule.count
    return replace(rule, count=count, bytes=default.bytes if rule.bytes is None else rule.bytes)


def _check_no_bound_on(given: Sequence[Rule], rules: Sequence[Rule]) -> None:
    """Refuse a bound of a whole state, if some of its jobs are kept for ever."""
    for rule in given:
        for one in rules:
            if one.state is rule.state and one.age is None and (one.queue is not None or one.task is not None):
                raise ConfigError(
                    f"count, bytes: expected none for {rule.state.value} jobs, as there is a rule that keeps some of "
                    f"them for ever, and a bound could not spare those ({one}); forget that rule first"
                )


async def _stops(sweeper: Sweeper, situation: Situation) -> list[str]:
    found = [await sweeper.stop(bounds, situation) for bounds in situation.bounds.values()]
    return [stop for stop in found if stop]


async def _swept(sweeper: Sweeper, bounds: Bounds, situation: Situation) -> Step:
    """Delete what is over the bounds of one state."""
    hard = sweeper.clause(bounds, situation, by_age=False)
    if not bounds.ages:
        return await sweeper.sweep(hard)
    old, _ = await sweeper.sweep_past(bounds, situation)
    more = await sweeper.sweep(hard)
    return replace(old, deleted=old.deleted + more.deleted, bytes=old.bytes + more.bytes, kept=more.kept)


def _shown(run: Run) -> JanitorRun:
    steps = [
        JanitorStep(
            target=step.target, deleted=step.deleted, bytes=step.bytes, kept=step.kept,
            cutoff=None if step.cutoff is None else to_datetime(step.cutoff),
            retention=None if step.retention is None else spell_exactly(step.retention) or "0s",
        )
        for step in run.steps
    ]  # fmt: skip
    return JanitorRun(
        at=to_datetime(run.at), by=run.by, runs=run.runs, forced=run.forced, steps=steps, stopped=run.stopped
    )
