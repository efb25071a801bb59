"""Stow and load: cells leave for the object store before their rows are stored, and come back before their jobs run.

Object first, row second: a row never refers to an object that is not there. Where the object store is away, cells stay
in the row, so nobody who enqueues or settles a job waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.config import ObjectSettings
from headrace.core.durations import LONGEST, micros
from headrace.core.events import Observers
from headrace.errors import HeadraceError, ObjectsUnavailable
from headrace.payloads.codec import Unloaded
from headrace.payloads.object_owner import ObjectOwner
from headrace.payloads.objects import Objects
from headrace.payloads.reference import read_reference
from headrace.payloads.segments import Segments, ToStow
from headrace.seam.records import Cells, JobId, Leased, Record, Row, Settlement
from headrace.seam.references import SIZE, is_reference
from headrace.types import SECTIONS, JobState

_PATIENCE = 5.0
"""Seconds for which a batch waits for the object store, beside the time that its bytes take."""
_SLOWEST = 1024 * 1024
"""Bytes per second that it is given time for."""
_REMEMBERED = 60.0
"""Seconds for which a row that was stowed is remembered, in case that its insert is repeated."""
_REST = 5.0
"""Seconds for which an object store that is away is not asked again."""

Loaded = dict[str, bytes | HeadraceError]
"""Cells by section, and in the place of one that cannot be had, the reason."""


class Stowage:
    """Moves cells to the object store and back, as the settings say."""

    def __init__(
        self,
        objects: Objects,
        settings: ObjectSettings,
        clock: Clock,
        rng: Random,
        observers: Observers,
        owner: ObjectOwner | None = None,
    ) -> None:
        """``owner`` is checked before the first cell leaves."""
        self._unchecked = owner
        self.objects = objects
        self.segments = Segments(objects, clock, rng)
        self._clock = clock
        self._observers = observers
        self._rules = {name: getattr(settings, name) for name in SECTIONS}
        self._delays = {
            name: None if rule.delay is None else micros(rule.delay, f"objects.{name}.delay")
            for name, rule in self._rules.items()
        }
        self._away_until = 0.0
        self._unstored: dict[JobId, tuple[Row, Row, float]] = {}
        """Rows that were stowed, what became of them, and when; until the store has taken them."""

    async def open(self) -> None:
        """See whether the objects are this store's: raises ``ConfigError`` if they are another's. Where the object
        store is away, that is seen later."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._check_owner()
        except (ObjectsUnavailable, TimeoutError) as error:
            self._away(error)

    async def _check_owner(self) -> None:
        if self._unchecked is not None:
            await self._unchecked.check()
            self._unchecked = None

    async def stow_rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with references for the cells that were stowed."""
        now = self._clock.now()
        due = [now + row.delay if row.run_at is None else row.run_at for row in rows]
        known = [self._known(row) for row in rows]
        chosen = [
            {} if before else self._chosen(row.cells, at - now)
            for row, before, at in zip(rows, known, due, strict=True)
        ]
        stowed = await self._stow(chosen, due) if any(chosen) else chosen
        found = [
            before or (replace(row, cells=row.cells | cells) if cells else row)
            for row, before, cells in zip(rows, known, stowed, strict=True)
        ]
        self._remember(rows, found)
        return found

    def stored(self, rows: Iterable[Row]) -> None:
        """The store has taken these rows: they do not come again."""
        if self._unstored:
            for row in rows:
                self._unstored.pop(row.id, None)

    def _known(self, row: Row) -> Row | None:
        """The same row, if it was stowed lately and the store has not taken it. An insert that is repeated then leaves
        no second object behind."""
        before = self._unstored.get(row.id)
        return before[1] if before is not None and before[0] is row else None

    def _remember(self, rows: Sequence[Row], found: Sequence[Row]) -> None:
        now = asyncio.get_running_loop().time()
        while self._unstored and now - self._unstored[first := next(iter(self._unstored))][2] > _REMEMBERED:
            del self._unstored[first]
        for row, stowed in zip(rows, found, strict=True):
            if stowed is not row and self._known(row) is None:
                self._unstored[row.id] = row, stowed, now

    async def stow_settlements(
        self, batch: Sequence[Settlement], leased: Callable[[Settlement], Leased | None]
    ) -> list[Settlement]:
        """The settlements, with references for the cells that were stowed: those that are set, and, if the job waits
        for long or is a dead letter, those that it came with. ``leased`` finds the job."""
        if not any(one.state is not JobState.COMPLETED or one.spawn for one in batch):
            return list(batch)
        now = self._clock.now()
        due = [_due(one, now) for one in batch]
        chosen = [self._chosen_of(one, leased(one), at - now) for one, at in zip(batch, due, strict=True)]
        stowed = await self._stow(chosen, due) if any(chosen) else chosen
        found = []
        for one, cells in zip(batch, stowed, strict=True):
            if cells:
                one = replace(one, cells=(one.cells or {}) | cells)
            if one.spawn:
                one = replace(one, spawn=await self.stow_rows(one.spawn))
            found.append(one)
        return found

    async def stow_dead(self, jobs: Sequence[Cells]) -> list[Cells]:
        """References for those cells of dead letters that are to leave. Raises ``ObjectsUnavailable``."""
        chosen = [self._chosen(cells, 0, dead=True) for cells in jobs]
        await self._check_owner()
        cells = [ToStow(cell) for of in chosen for cell in of.values()]
        references = iter(await self.segments.stow(cells))
        return [{name: next(references).cell for name in of} for of in chosen]

    def may_leave(self, weight: int) -> bool:
        """Whether a dead letter of this weight can have a section that is to leave."""
        return any(rule.dead_letters and weight > max(rule.least, SIZE) for rule in self._rules.values())

    async def load(self, jobs: Sequence[Cells]) -> list[Loaded]:
        """The cells of each job, with what its references lead to. Those of all jobs are read together."""
        found: list[Loaded] = [dict(cells) for cells in jobs]
        places: list[tuple[Loaded, str]] = []
        references = []
        for cells in found:
            for name, cell in list(cells.items()):
                if isinstance(cell, bytes) and is_reference(cell):
                    try:
                        references.append(read_reference(cell, name))
                        places.append((cells, name))
                    except HeadraceError as error:
                        cells[name] = error
        for (cells, name), cell in zip(places, await self.segments.load(references), strict=True):
            cells[name] = cell
        return found

    async def load_records(self, records: Sequence[Record]) -> list[Record]:
        """The records with the cells that their references lead to; in the place of one that cannot be had, its
        reference as ``Unloaded``."""
        loaded = await self.load([record.cells for record in records])
        return [
            replace(record, cells={name: _read(cell, record.cells[name]) for name, cell in cells.items()})
            for record, cells in zip(records, loaded, strict=True)
        ]

    def stays(self, section: str, size: int) -> bool:
        """Whether a section of this size stays in the store if its job is due."""
        over = self._rules[section].over
        return over is None or size <= over

    def _chosen(self, cells: Mapping[str, bytes], wait: int, *, dead: bool = False) -> Cells:
        """The cells that are to leave, of a job that is due so much later."""
        return {name: cell for name, cell in cells.items() if self._leaves(name, cell, wait, dead=dead)}

    def _leaves(self, name: str, cell: bytes, wait: int, *, dead: bool) -> bool:
        rule, delay = self._rules[name], self._delays[name]
        if len(cell) <= max(rule.least, SIZE):
            return False
        return (
            (rule.over is not None and len(cell) > rule.over)
            or (delay is not None and wait > delay)
            or (dead and rule.dead_letters)
        )

    def _chosen_of(self, one: Settlement, job: Leased | None, wait: int) -> Cells:
        """The same of a job that is settled. One that has completed is not read again."""
        if one.state is JobState.COMPLETED:
            return {}
        cells = {name: cell for name, cell in ((job.cells if job else {}) | (one.cells or {})).items() if cell}
        if one.state is JobState.PAUSED:
            wait = LONGEST
        return self._chosen(cells, wait, dead=one.state is JobState.FAILED)

    async def _stow(self, chosen: Sequence[Cells], due: Sequence[int]) -> list[Cells]:
        """References in the place of cells; nothing where the object store is away."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until:
            return [{} for _ in chosen]
        cells = [ToStow(cell, at) for of, at in zip(chosen, due, strict=True) for cell in of.values()]
        size = sum(len(one.cell) for one in cells)
        try:
            async with asyncio.timeout(_PATIENCE + size / _SLOWEST):
                await self._check_owner()
                references = iter(await self.segments.stow(cells))
        except (ObjectsUnavailable, TimeoutError) as error:
            self._away(error)
            return [{} for _ in chosen]
        return [{name: next(references).cell for name in of} for of in chosen]

    def _away(self, error: Exception) -> None:
        """Ask the object store for nothing for a while."""
        self._away_until = asyncio.get_running_loop().time() + _REST
        told = str(error) or f"no answer in {_PATIENCE:g} s"
        sentence = f"cells stay in the store, because the object store is away: {told}"
        self._observers.alert(Alert.OBJECTS_AWAY, "stow", sentence, error=error)


def _read(cell: bytes | HeadraceError, reference: bytes) -> bytes:
    if isinstance(cell, bytes):
        return cell
    unloaded = Unloaded(reference)
    unloaded.error = cell
    return unloaded


def _due(one: Settlement, now: int) -> int:
    if one.state is not JobState.AVAILABLE:
        return now
    return now + (one.delay or 0) if one.run_at is None else one.run_at
