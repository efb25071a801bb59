"""The budget: how many bytes the store may take up. New jobs are refused before there is no room for the others."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from random import Random

from msgspec import Struct

from headrace.core.alerts import Alert, moment
from headrace.core.clock import Clock
from headrace.core.documents import TypedDocument
from headrace.core.events import Observers
from headrace.core.tasks import Tasks
from headrace.errors import ConfigError, HeadraceError, StoreFull
from headrace.keeping.queue_budgets import QueueBudgets
from headrace.keeping.reserve import Reserve
from headrace.seam.documents import DocumentStore
from headrace.seam.protocol import Backend
from headrace.seam.usage import Usage

log = logging.getLogger("headrace")

_FRESH = 5.0
"""Seconds for which a measurement counts while jobs are enqueued."""
_NEAR = 0.7
_FRESH_NEAR = 0.5
"""The same once this part of the bytes is used, or while nobody knows yet how fast the store fills up."""
_SOONEST, _STEPS = 0.1, 8
"""The same at least, and how often the store is measured at least before new jobs are refused."""
_SELDOM = 25.0
"""Seconds more if there is no budget."""
_EVERY = 10.0
"""Seconds between two looks of a worker."""
_PAUSE = 0.5
"""Seconds between two tries to make room."""
_ASIDE = 64 * 1024 * 1024


class Budget(Struct, frozen=True, kw_only=True):
    """What the store may take up."""

    bytes: int | None = None
    """None: what the store itself says that it has."""
    alert: float = 0.8
    refuse: float = 0.85
    reserve: int | None = None
    """Bytes to keep aside, besides, in a store that can; None: a twentieth, at most 64 MiB."""

    @property
    def aside(self) -> int:
        """The bytes to keep aside."""
        return min((self.bytes or 0) // 20, _ASIDE) if self.reserve is None else self.reserve


_BUDGET = TypedDocument[Budget | None]("budget", Budget, None)


class Measured(Struct, frozen=True):
    """The store against its budget."""

    usage: Usage
    budget: Budget | None
    """None: there is none, so nothing is refused."""

    @property
    def limit(self) -> int | None:
        """The bytes that there may be; None: nobody knows."""
        given = None if self.budget is None else self.budget.bytes
        return self.usage.capacity if given is None else given

    @property
    def share(self) -> float:
        """Which part of them is used."""
        return self.usage.used / self.limit if self.limit else 0.0

    @property
    def refuses(self) -> bool:
        """Whether new jobs are refused."""
        return self.budget is not None and self.share >= self.budget.refuse

    @property
    def alarming(self) -> bool:
        """Whether somebody should look."""
        return self.share >= (self.budget or Budget()).alert

    def __str__(self) -> str:
        most = "" if self.limit is None else f" of {self.limit:,} ({self.share:.0%})"
        return f"the store takes up {self.usage.used:,} bytes{most}"


class BudgetWatch:
    """Measures the store now and then: for a worker, which alerts, and for a client, which refuses new jobs."""

    def __init__(self, backend: Backend, observers: Observers, clock: Clock) -> None:
        self._backend = backend
        self._observers = observers
        self._measured: Measured | None = None
        self._measured_at = 0.0
        self._looked = -_FRESH
        self._fresh_for = _FRESH_NEAR
        documents = backend.documents
        self.queues = None if documents is None else QueueBudgets(backend, documents, clock, observers)
        self._reserve = None if documents is None else Reserve(backend, documents, clock)

    async def look(self) -> None:
        """Measure the store and the queues that have budgets, and keep room aside if there is some."""
        measured = await self.measure()
        if self.queues is not None:
            await self.queues.measure()
        if self._reserve is not None and measured is not None and measured.budget is not None and not measured.refuses:
            await self._reserve.keep(measured.budget.aside)

    async def make_room(self) -> None:
        """The store has no room left: give up what is kept aside."""
        if self._reserve is not None:
            await self._reserve.give_up()

    async def measure(self) -> Measured | None:
        """The store against its budget now; None if it cannot be measured."""
        if self._backend.usage is None or self._backend.documents is None:
            return None
        budget = await read_budget(self._backend.documents)
        before, looked = self._measured, self._measured_at
        self._measured = measured = Measured(await self._backend.usage(), budget)
        self._measured_at = moment()
        self._fresh_for = _fresh_for(before, measured, self._measured_at - looked)
        if measured.alarming:
            consequence = "new jobs are refused" if measured.refuses else "make room, or raise the budget"
            self._observers.alert(Alert.BUDGET_NEARLY_USED, "", f"{measured}: {consequence}")
        return measured

    def refusal(self, tasks: Tasks) -> StoreFull | None:
        """Why new jobs are refused now; None: they are not. A measurement that is too old is made again, for the next
        that ask."""
        now = moment()
        age = now - self._looked
        if (
            age >= _SOONEST
            and age >= self._fresh
            and self._backend.usage is not None
            and self._backend.documents is not None
        ):
            self._looked = now
            tasks.start(self._look_for_clients(), "headrace-budget")
        measured = self._measured
        if measured is None or not measured.refuses or measured.budget is None:
            return None
        return StoreFull(
            f"{measured}, and new jobs are refused from {measured.budget.refuse:.0%} on: they were not stored. Work "
            "and cleaning up go on. Keep less, or raise the budget: headrace janitor budget"
        )

    @property
    def _fresh(self) -> float:
        nearly = self.queues is not None and self.queues.nearly_full
        return min(self._fresh_for, _FRESH_NEAR) if nearly else self._fresh_for

    async def _look_for_clients(self) -> None:
        """Measure for those who enqueue, if there are budgets; otherwise there is no hurry to look again."""
        assert self._backend.documents is not None
        assert self.queues is not None
        try:
            bounded = await read_budget(self._backend.documents) is not None
            if bounded:
                await self.measure()
            else:
                self._measured = None
                self._fresh_for = _FRESH_NEAR
            if await self.queues.measure() or bounded:
                return
        except HeadraceError as error:
            log.debug("the budget could not be read: %s", error)
        self._looked += _SELDOM

    async def run(self, rng: Random, out_of_room: asyncio.Event) -> None:
        """Look until cancelled, and make room at once when the store has none left."""
        while self._backend.usage is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(out_of_room.wait(), _EVERY * (0.75 + rng.random() / 2))
            try:
                if out_of_room.is_set():
                    await asyncio.sleep(_PAUSE)
                    out_of_room.clear()
                    await self.make_room()
                else:
                    await self.look()
            except HeadraceError as error:
                log.debug("the store could not be measured: %s", error)


def _fresh_for(before: Measured | None, now: Measured, seconds: float) -> float:
    """How long a measurement counts: a part of the time after which new jobs would be refused, if the store went on to
    fill up as fast as since the one before."""
    if before is None or now.budget is None or now.limit is None:
        return _FRESH_NEAR
    most = _FRESH_NEAR if now.share >= _NEAR else _FRESH
    grown, left = now.usage.used - before.usage.used, now.limit * now.budget.refuse - now.usage.used
    return most if grown <= 0 else min(max(seconds * left / grown / _STEPS, _SOONEST), most)


async def usage_of(backend: Backend) -> Usage:
    """What a store takes up; nothing where it cannot tell, or may not tell this process."""
    try:
        return Usage(0) if backend.usage is None else await backend.usage()
    except ConfigError:
        return Usage(0)


async def read_budget(documents: DocumentStore) -> Budget | None:
    """The budget in the store, if there is one."""
    return await _BUDGET.read(documents)


async def save_budget(documents: DocumentStore, budget: Budget | None) -> None:
    """Replace the budget in the store; the last one to do so counts."""
    await _BUDGET.change(documents, lambda _: budget)
