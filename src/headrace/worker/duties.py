"""The duties of a worker: upkeep that every worker, and every pull, does its share of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.durations import micros
from headrace.core.upkeep import VAULT
from headrace.errors import BackendError, ConfigError, Unavailable
from headrace.keeping.budget import BudgetWatch
from headrace.keeping.object_keeper import ObjectKeeper
from headrace.keeping.retention import Retention
from headrace.limits.tenant_pauses import TenantPauses
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.schedules.planner import IntervalFunction, Planner
from headrace.tracking.planner import MakeRow, TrackPlanner
from headrace.vault.archiver import Archiver
from headrace.worker.exchange import Exchange
from headrace.worker.reaper import Reaper

if TYPE_CHECKING:
    from headrace.worker.reseal_duty import ResealDuty

SCHEDULES = "schedules:all"
"""The topic of changes to schedules."""

log = logging.getLogger("headrace")

_Step = Callable[[], Coroutine[Any, Any, object]]


class _Duty(Protocol):
    async def run(self) -> None: ...


class Duties:
    """Reaping, retention, the vault, old objects, old seals, planning, the jobs of trackers; and listening for hints,
    which is no upkeep, but everybody does it.

    ``guest``: it leaves the upkeep to other workers. It reaps only if there are none: its own jobs must not wait for
    ever. (It makes room for its own dead letters all the same: see ``HardBounds``.)
    """

    def __init__(
        self,
        exchange: Exchange,
        retention: Retention,
        *,
        guest: bool = False,
        intervals: Mapping[str, IntervalFunction] | None = None,
        trackers: Mapping[str, MakeRow] | None = None,
    ) -> None:
        self._exchange = exchange
        self._guest = guest
        backend, settings = exchange.backend, exchange.settings
        shared = exchange.clock, exchange.rng, exchange.observers
        self.planner = (
            None if backend.ticks is None or guest else Planner(backend.ticks, *shared, settings.planner, intervals)
        )
        self.tracks = (
            None
            if backend.tracks is None or guest or not trackers
            else TrackPlanner(backend.tracks, backend, trackers, *shared, every=micros(settings.planner.every) / 1e6)
        )
        self.reaper = Reaper(
            exchange,
            exchange.claimer,
            gap=exchange.renewer.gap,
            guest_of=frozenset(exchange.queues) if guest else None,
            ended=retention.ended,
        )
        self._retention = retention
        self._object_keeper = (
            None if exchange.stowage is None else ObjectKeeper(backend, exchange.stowage, *shared, settings.objects)
        )
        self._reseal_duty = _reseal_duty(exchange)
        self._archiver = _archiver(exchange)
        self._pauses = TenantPauses(backend, exchange.clock)
        self._budget = BudgetWatch(backend, exchange.observers, exchange.clock)

    async def prepare(self) -> None:
        """What comes before the first claim: tenants that are paused everywhere are paused in the queues of this
        worker. If the store is away, no claim succeeds either, and it is done a little later."""
        await self._bring_pauses()

    async def _prepare_again(self) -> None:
        """Once this worker is listed: whoever pauses a tenant from now on sees its queues, and whoever did before has
        written it down."""
        while True:
            await asyncio.sleep(2 * self._exchange.leases.lease / 6)
            if await self._bring_pauses():
                return

    async def _bring_pauses(self) -> bool:
        """Whether it is done, or cannot be: a worker's role may lack the right to pause, and works all the same."""
        try:
            await self._pauses.bring_to(self._exchange.queues)
        except Unavailable:
            return False
        except (BackendError, ConfigError) as error:
            log.warning("tenants that are paused in all queues may run in those of this worker: %s", error)
        return True

    async def beside(self, work: _Step, wind_down: _Step, *, at_once: bool = False) -> None:
        """Do them while ``work`` goes on. Then end them, wind down, and rest. ``at_once``: what is reaped is due right
        away."""
        async with asyncio.TaskGroup() as group:
            self._exchange.carry(group)
            duties = self._start(group, at_once)
            await work()
            for duty in duties:
                duty.cancel()
            await wind_down()
            await self._exchange.rest()

    def _start(self, group: asyncio.TaskGroup, at_once: bool) -> list[asyncio.Task[None]]:
        exchange = self._exchange
        topics = [] if self.planner is None else [SCHEDULES]
        duties: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "notes": exchange.notes.run,
            "pauses": self._prepare_again,
            "reaper": partial(self.reaper.run, at_once=at_once),
            "listener": partial(exchange.hear, topics, lambda hint: self._look(), self._look),
        }
        others: dict[str, _Duty | None] = {"planner": self.planner, "tracks": self.tracks}
        if not self._guest:
            duties["retention"] = self._retention.run
            duties["budget"] = partial(self._budget.run, exchange.rng, exchange.outage.out_of_room)
            others |= {"objects": self._object_keeper, "archiver": self._archiver, "reseal": self._reseal_duty}
        duties |= {name: one.run for name, one in others.items() if one is not None}
        return [group.create_task(run(), name=f"headrace-{name}") for name, run in duties.items()]

    def _look(self) -> None:
        if self.planner is not None:
            self.planner.wake()


def retention_of(exchange: Exchange) -> Retention:
    """Keeps what has ended within its bounds."""
    settings = exchange.settings
    return Retention(
        exchange.backend,
        exchange.clock,
        exchange.rng,
        exchange.observers,
        settings.retention,
        spare=2 * micros(settings.patience),
        vault=settings.vault.url is not None,
        failed=exchange.outage.failed,
    )


def _archiver(exchange: Exchange) -> Archiver | None:
    settings = exchange.settings.vault
    if settings.url is None:
        return None
    return Archiver(
        exchange.backend,
        Objects(parse(settings.url), timed=partial(exchange.observers.requested, VAULT)),
        exchange.clock,
        exchange.rng,
        exchange.observers,
        settings,
        stowage=exchange.stowage,
    )


def _reseal_duty(exchange: Exchange) -> ResealDuty | None:
    sealing, packer = exchange.settings.payloads.sealing, exchange.packer
    if not packer.seals or sealing.reseal is None or exchange.backend.references is None:
        return None
    from headrace.payloads.sealing import SealingPacker
    from headrace.worker.reseal_duty import ResealDuty

    assert isinstance(packer, SealingPacker)
    if len(packer.keyring.opens) == 1 and not sealing.read_unsealed:
        return None
    every = micros(sealing.reseal) / 1e6
    return ResealDuty(exchange, packer.keyring, every=every, unsealed=sealing.read_unsealed)
