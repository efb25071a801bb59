"""A hot table: rows of your own, beside the jobs, that go after a while."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from headrace.api.registered import TaskOwner
from headrace.api.task import Task
from headrace.core.actor import local_actor
from headrace.core.alerts import Alert
from headrace.core.durations import micros, spell_exactly
from headrace.core.names import check_name
from headrace.core.numbers import check_whole
from headrace.errors import ConfigError, SafetyStop, StoreFull
from headrace.hot.archived_pages import ArchivedPages
from headrace.hot.columns import columns_of, rows_of
from headrace.hot.last_sweeps import LastSweeps
from headrace.hot.sweeping import (
    Found,
    TableLimits,
    TableStats,
    TableSweep,
    approaching,
    look,
    sweep_pages,
    too_much,
)  # fmt: skip
from headrace.hot.table_budget import ALERT, REFUSE, TableBudget
from headrace.keeping.papers import WORKERS, Papers, Run, Step
from headrace.keeping.protection import Protection
from headrace.schedules.calendar import cron_rule
from headrace.seam.instants import from_datetime, to_datetime
from headrace.seam.tables import Cutoff, HotRule, TableInfo, TableName, TableStore
from headrace.text import shown
from headrace.tracking.sink import RowSink
from headrace.types import Duration

log = logging.getLogger("headrace")

T = TypeVar("T")
_MANY = 100_000
"""A sweep that deletes more is reported."""
_BATCH = 10_000


class Table(Generic[T]):
    """A table in the database of the store: yours, or made from a struct.

    >>> import asyncio, tempfile
    >>> from msgspec import Struct
    >>> from headrace import App
    >>> class Video(Struct):
    ...     id: str
    ...     found_at: str | None = None
    >>> async def main(folder: str) -> int:
    ...     async with App(f"sqlite:///{folder}/jobs.db") as app:
    ...         videos = app.table("videos", Video, keep="7d", age="found_at")
    ...         await videos.create()
    ...         await videos.put_many([Video("a"), Video("b")])
    ...         return (await videos.stats()).rows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    2
    """

    def __init__(
        self,
        owner: TaskOwner,
        name: str | tuple[str, str],
        row: type[T] | None,
        *,
        age: str,
        key: Sequence[str] | None,
        processed: str | None,
        archive: RowSink | None,
        limits: TableLimits | None,
        queue: str,
        budget: int | None = None,
    ) -> None:
        self.table: TableName = (name,) if isinstance(name, str) else tuple(name)
        for part in self.table:
            check_name(part, "table")
        self.name = ".".join(self.table)
        self._where = f"table {shown(self.name)}"
        self._owner = owner
        self._row = row
        self._columns = None if row is None else columns_of(row)
        self._age = check_name(age, f"{self._where}: age")
        self._key = None if key is None else tuple(key)
        self._processed = processed
        self._archive = archive
        self._limits = limits
        self._budget = None if budget is None else TableBudget(check_whole(budget, f"{self._where}: budget"))
        if row is not None and self._columns is not None:
            for column in (self._age, *(self._key or ()), *(() if processed is None else (processed,))):
                if column not in self._columns:
                    raise ConfigError(f"{self._where}: {row.__name__} has no field {shown(column)}")
        self.sweeping: Task[[], int] = Task(
            owner, self._sweep_as_job, f"table:{self.name}", {"queue": queue, "result_ttl": 0}
        )
        """The task that deletes old rows. Workers run it on the schedule ``table:NAME``."""

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    @property
    def is_swept(self) -> bool:
        """Whether old rows of it are deleted."""
        return self._limits is not None

    # -- the table

    async def create(self) -> None:
        """Make the table from its struct, with an index of the age, unless it is there. The key is ``key=``, or the
        first field."""
        if self._columns is None:
            raise ConfigError(f"{self._where}: expected a struct to make it from, got none; it is your own table")
        key = self._key or (next(iter(self._columns)),)
        await (await self._store()).create(self.table, self._columns, key, self._age)

    async def prepare(self) -> None:
        """Give a table of your own the column of the age and an index of it, unless it has them. Rows that are there
        have no age, and stay until :meth:`backfill` gives them one."""
        await self._info()
        await (await self._store()).prepare(self.table, self._age)

    async def backfill(self, source: str | None = None) -> int:
        """Give rows without an age that of another column, or now; returns how many. It goes in steps of 10,000."""
        info, client, done = await self._info(), self._owner.client, 0
        self._has(info, self._age)
        if source is not None:
            self._has(info, source)
        while step := await (await self._store()).backfill(self.table, self._age, source, _BATCH, client.clock.stamp()):
            done += step
        return done

    async def put_many(self, rows: Iterable[T]) -> int:
        """Insert rows, or replace those with the same key; returns how many. An age that is None is now."""
        given = [*rows]
        if not given:
            return 0
        columns, values = rows_of(given, self._where)
        info = await self._info()
        for column in columns:
            self._has(info, column)
        if self._age in columns:
            index, now = columns.index(self._age), to_datetime(await self._owner.client.store_now())
            values = [[*row[:index], now if row[index] is None else row[index], *row[index + 1 :]] for row in values]
        store, key = await self._store(), self._key_of(info)
        if self._budget is not None:
            await self._check_budget(self._budget, store)
        for start in range(0, len(values), _BATCH):
            await store.put(self.table, columns, values[start : start + _BATCH], key)
        return len(values)

    async def update_many(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Change columns of rows by their key, which each must name: ``{"id": …, "words": 7}``. Rows that are gone stay
        gone."""
        given = [*rows]
        if not given:
            return
        columns, values = rows_of(given, self._where)
        info = await self._info()
        key = self._key_of(info)
        for column in columns:
            self._has(info, column)
        if missing := [one for one in key if one not in columns] or (
            [] if len(columns) > len(key) else ["anything else"]
        ):
            raise ConfigError(f"{self._where}: expected rows with their key and other columns, got no {missing[0]}")
        store = await self._store()
        for start in range(0, len(values), _BATCH):
            await store.update(self.table, columns, values[start : start + _BATCH], key)

    async def put(self, row: T) -> None:
        """Insert a row, or replace the one with the same key."""
        await self.put_many([row])

    async def _check_budget(self, budget: TableBudget, store: TableStore) -> None:
        share = await budget.share(lambda: store.size(self.table))
        if share >= ALERT:
            told = f"{self._where} takes up {share:.0%} of its budget of {budget.bytes:,} bytes"
            self._owner.client.observers.alert(Alert.BUDGET_NEARLY_USED, self.name, f"{told}: keep fewer rows")
            if share >= REFUSE:
                raise StoreFull(f"{told}, and rows are refused from {REFUSE:.0%} on: they were not stored")

    # -- old rows

    async def stats(self) -> TableStats:
        """Rows, bytes, ages, and what is about to go. This reads the whole table."""
        limits, client, rule = self._limits, self._owner.client, await self._rule()
        cutoff = Cutoff(0) if limits is None else limits.cutoff(await client.store_now())
        survey = await (await self._store()).survey(rule, cutoff, client.clock.stamp())
        return TableStats(
            rows=survey.rows,
            bytes=survey.bytes,
            ages=survey.ages,
            approaching=0 if limits is None else approaching(survey, limits),
            expired=0 if limits is None else survey.condemned,
            waiting=0 if limits is None else survey.waiting,
        )

    async def preview(self) -> TableSweep:
        """What a sweep would delete now; nothing changes. ``stopped`` says if it would not, without force."""
        limits = self._kept()
        await self._may(self.table)
        _, found, cutoff, now = await self._look(limits)
        plan = self._plan(found, cutoff, limits)
        return replace(plan, stopped=too_much(found, limits, now, await self._last_sweep()))

    async def sweep(self, *, force: bool = False) -> TableSweep:
        """Delete what is too old, after it was archived. Raises ``SafetyStop`` before anything is deleted if it would
        be an unusual part of the table, or the clock may be wrong; ``force``: delete it all the same. The log of the
        janitor tells of it."""
        return await self._sweep(force=force, by=local_actor())

    async def _sweep(self, *, force: bool, by: str) -> TableSweep:
        limits = self._kept()
        await self._may(self.table)
        rule, found, cutoff, now = await self._look(limits, force=force)
        plan = self._plan(found, cutoff, limits)
        self._report(found)
        if not force and (stopped := too_much(found, limits, now, await self._last_sweep())):
            sentence = f"{self._where}: nothing was deleted: {stopped}. If it may go: await table.sweep(force=True)"
            self._owner.client.observers.alert(Alert.SAFETY_STOP, self.name, sentence)
            await self._log(Run(at=now, by=by, stopped=stopped))
            raise SafetyStop(sentence, replace(plan, stopped=stopped))
        await self._note_sweep(now)
        store = await self._store()
        deleted, archived = await sweep_pages(store, rule, cutoff, await self._pages(rule), self._may)
        log.info("%s: deleted %d rows from before %s", self._where, deleted, plan.cutoff.isoformat())
        if deleted > _MANY:
            sentence = f"a sweep of {self._where} deleted {deleted:,} rows"
            self._owner.client.observers.alert(Alert.MANY_DELETED, self.name, sentence)
        done = replace(plan, deleted=deleted, archived=archived, kept=found.kept(deleted))
        if deleted or by != WORKERS:
            await self._log(Run(at=now, by=by, forced=force, steps=(_step(done),)))
        return done

    async def planned(self) -> tuple[Step, str]:
        """A preview, as the janitor tells it. Of a protected table nothing goes."""
        if await self._is_protected():
            return Step(target=f"table {self.name}", deleted=0), ""
        plan = await self.preview()
        return _step(plan), plan.stopped

    async def swept(self, *, force: bool) -> Step:
        """A sweep, as the janitor tells it."""
        if await self._is_protected():
            return Step(target=f"table {self.name}", deleted=0)
        return _step(await self.sweep(force=force))

    async def _sweep_as_job(self) -> int:
        try:
            return (await self._sweep(force=False, by=WORKERS)).deleted
        except SafetyStop:
            return 0

    async def _log(self, run: Run) -> None:
        documents = (await self._owner.client.backend()).documents
        if documents is not None:
            await Papers(documents).log(run, add_up=run.by == WORKERS)

    async def _pages(self, rule: HotRule) -> ArchivedPages | None:
        if self._archive is None:
            return None
        backend = await self._owner.client.backend()
        if backend.documents is None:
            raise ConfigError(f"{self._where}: archive: this store cannot note what is being archived")
        return ArchivedPages(backend.documents, await self._store(), rule, self._archive, self.name)

    async def _last_sweep(self) -> int | None:
        documents = (await self._owner.client.backend()).documents
        return None if documents is None else await LastSweeps(documents).of(self.name)

    async def _note_sweep(self, at: int) -> None:
        documents = (await self._owner.client.backend()).documents
        if documents is not None:
            await LastSweeps(documents).note(self.name, at)

    async def _is_protected(self) -> bool:
        documents = (await self._owner.client.backend()).documents
        return documents is not None and await Protection(documents).has(self.table)

    async def _may(self, table: TableName) -> None:
        """Raise unless rows of it may be deleted."""
        documents = (await self._owner.client.backend()).documents
        if documents is not None:
            await Protection(documents).check(table)

    def _report(self, found: Found) -> None:
        if found.waiting:
            sentence = f"{self._where}: {found.waiting:,} rows are too old, but not processed yet, and stay"
            self._owner.client.observers.alert(Alert.ROWS_WAITING, self.name, sentence)

    def _plan(self, found: Found, cutoff: Cutoff, limits: TableLimits) -> TableSweep:
        return TableSweep(
            table=self.name,
            deleted=found.deleted,
            archived=found.deleted if self._archive is not None else 0,
            kept=found.kept(found.deleted),
            waiting=found.waiting,
            cutoff=to_datetime(cutoff.processed),
            retention=spell_exactly(limits.keep) or "0s",
        )

    async def _look(self, limits: TableLimits, *, force: bool = False) -> tuple[HotRule, Found, Cutoff, int]:
        rule, client = await self._rule(), self._owner.client
        now = await client.store_now()
        cutoff = limits.cutoff(now)
        found = await look(await self._store(), rule, cutoff, limits, client.clock.stamp(), force=force)
        return rule, found, cutoff, now

    async def _rule(self) -> HotRule:
        info = await self._info()
        for column in (self._age, *(() if self._processed is None else (self._processed,))):
            self._has(info, column)
        return HotRule(table=self.table, key=self._key_of(info), age=self._age, processed=self._processed)

    # -- checks

    def _kept(self) -> TableLimits:
        if self._limits is None:
            raise ConfigError(f"{self._where} is protected: no row of it is ever deleted")
        return self._limits

    async def _info(self) -> TableInfo:
        found = await (await self._store()).describe(self.table)
        if found is None:
            hint = "await table.create() makes it" if self._columns is not None else "make it first"
            raise ConfigError(f"{self._where} is not there; {hint}")
        return found

    def _has(self, info: TableInfo, column: str) -> None:
        if column not in info.columns:
            raise ConfigError(f"{self._where} has no column {shown(column)}; it has {', '.join(info.columns)}")

    def _key_of(self, info: TableInfo) -> tuple[str, ...]:
        key = self._key or info.key
        if not key:
            raise ConfigError(f"{self._where} has no primary key; say key=[…], columns that are unique")
        for column in key:
            self._has(info, column)
        return key

    async def _store(self) -> TableStore:
        backend = await self._owner.client.backend()
        if backend.tables is None:
            raise ConfigError(f"{self._where}: there are hot tables on SQLite and PostgreSQL only")
        return backend.tables


def _step(swept: TableSweep) -> Step:
    return Step(
        target=f"table {swept.table}", deleted=swept.deleted, kept=swept.kept, cutoff=from_datetime(swept.cutoff),
        retention=micros(swept.retention),
    )  # fmt: skip


def make_limits(
    keep: Duration | None,
    keep_unprocessed: Duration | None,
    share: float,
    floor: int,
    gap: Duration,
    sweep: Duration | str,
    where: str,
) -> TableLimits | None:
    """The limits as people give them, checked; None: the table is protected."""
    if keep is None:
        return None
    length = micros(keep, f"{where}: keep")
    longest = None if keep_unprocessed is None else micros(keep_unprocessed, f"{where}: keep_unprocessed")
    if not length:
        raise ConfigError(f"{where}: keep: expected a length like '7d', got {shown(keep)}")
    if longest is not None and longest < length:
        raise ConfigError(
            f"{where}: keep_unprocessed: expected at least keep ({shown(keep)}), got {shown(keep_unprocessed)}"
        )
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigError(f"{where}: share: expected a number from 0 to 1, got {shown(share)}")
    if isinstance(floor, bool) or not isinstance(floor, int) or floor < 0:
        raise ConfigError(f"{where}: floor: expected a number of rows, got {shown(floor)}")
    return TableLimits(
        keep=length, keep_unprocessed=longest, share=float(share), floor=floor, gap=micros(gap, f"{where}: gap"),
        following=_following(sweep, where),
    )  # fmt: skip


def is_cron(sweep: Duration | str) -> bool:
    """Whether it is a cron expression."""
    return isinstance(sweep, str) and " " in sweep.strip()


def _following(sweep: Duration | str, where: str) -> Callable[[int], int]:
    if is_cron(sweep):
        rule = cron_rule(sweep, "UTC")
        return lambda at: rule.after(at) or at
    every = micros(sweep, f"{where}: sweep")
    return lambda at: at + every
