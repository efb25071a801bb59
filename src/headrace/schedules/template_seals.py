"""Templates of schedules, whose cells are sealed with some key."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator

from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.errors import HeadraceError
from headrace.payloads.keyring import Keyring
from headrace.payloads.sealing import key_name, resealed
from headrace.schedules.plan import Definition, unpack
from headrace.seam.protocol import TickStore
from headrace.seam.records import Cells
from headrace.seam.ticks import Save, Schedule, ScheduleSelector

log = logging.getLogger("headrace")

_PAGE = 100


class TemplateSeals:
    """Seals the templates of all schedules again with the key that seals now."""

    def __init__(self, ticks: TickStore, keyring: Keyring, clock: Clock, *, unsealed: bool = False) -> None:
        self._ticks = ticks
        self._clock = clock
        self._keyring = keyring
        self._unsealed = unsealed

    async def reseal(self) -> tuple[int, int, int]:
        """How many cells were looked at, sealed again, and refused. A schedule that somebody changes meanwhile is left
        to the next walk."""
        looked = done = refused = 0
        async for schedule, definition in self._all():
            cells: Cells = {}
            for name, cell in definition.template.cells.items():
                looked += 1
                try:
                    new = resealed(self._keyring, cell, name, None, schedule.tenant, unsealed=self._unsealed)
                except HeadraceError:
                    refused += 1
                else:
                    cells |= {} if new is None else {name: new}
            if cells:
                template = replace(definition.template, cells=definition.template.cells | cells)
                packed = replace(definition, template=template).pack()
                save = Save(replace(schedule, definition=packed), schedule.version)
                [saved] = await self._ticks.save([save], self._clock.stamp())
                done += len(cells) if saved else 0
        return looked, done, refused

    async def survey(self) -> Counter[str]:
        """How many cells are sealed with which key."""
        cells = [item async for _, definition in self._all() for item in definition.template.cells.items()]
        return Counter(key_name(self._keyring, cell, name) for name, cell in cells)

    async def _all(self) -> AsyncIterator[tuple[Schedule, Definition]]:
        """All schedules that can be read."""
        after: str | None = None
        while page := await self._ticks.find(ScheduleSelector(), after, _PAGE):
            for schedule in page:
                try:
                    yield schedule, unpack(schedule.definition)
                except (HeadraceError, ValueError) as error:
                    log.warning("schedule %s cannot be read: %s", schedule.name, error)
            after = page[-1].name
