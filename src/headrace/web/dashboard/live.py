"""What pages share: the store in numbers, not older than a second, what happened lately, and the alerts that are on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from headrace.admin.admin import Admin
from headrace.admin.firing import Firing
from headrace.admin.history import STEP, History
from headrace.admin.views import Overview
from headrace.admin.watch import Watch
from headrace.errors import HeadraceError
from headrace.limits.policies import TenantInfo

log = logging.getLogger("headrace.http")

_FRESH = 1.0
_IDLE = 600.0
"""Seconds without a visit after which nothing is listened to any more."""
_TENANTS = 5_000
"""Tenants of a queue that are looked at."""
_TENANTS_FRESH = 10.0
_PATIENCE = 10.0
"""Seconds that the store has to answer before an alert says that it does not."""


class Live:
    """Listens and looks while somebody uses the dashboard or asks for alerts, or for ever."""

    def __init__(self, admin: Admin, watch: Watch) -> None:
        self._admin = admin
        self.watch = watch
        self.history = History()
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._visited = 0.0
        self._for_ever = False
        self._overview: tuple[float, Overview] | None = None
        self._tenants: dict[str, tuple[float, Sequence[TenantInfo]]] = {}
        self._asking = asyncio.Lock()

    def visit(self, *, for_ever: bool = False) -> None:
        """Somebody looks at a page."""
        loop = asyncio.get_running_loop()
        self._visited = loop.time()
        self._for_ever = self._for_ever or for_ever
        if self._task is None or self._task.done():
            self._looked.clear()
            self._task = loop.create_task(self._run(), name="headrace-dashboard")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.watch.hooks.close()

    async def firing(self) -> list[Firing]:
        """The alerts that are on, worst first. Who asks first waits for the first look."""
        self.visit()
        await self._looked.wait()
        return self.watch.firing

    async def overview(self) -> Overview:
        """The store in numbers. However many ask, the store is asked once a second."""
        async with self._asking:
            now = self.now()
            if self._overview is None or now - self._overview[0] > _FRESH:
                self._overview = now, await self._admin.overview()
                self.history.see(self._overview[1], now)
            return self._overview[1]

    async def tenants(self, queue: str) -> Sequence[TenantInfo]:
        """The tenants of a queue, noisiest first. Of very many, only the first by name are looked at. However many ask,
        the store is asked every ten seconds."""
        async with self._asking:
            now = self.now()
            self._tenants = {name: one for name, one in self._tenants.items() if now - one[0] <= _TENANTS_FRESH}
            if queue not in self._tenants:
                found = await self._admin.upkeep.policies.tenants(queue, limit=_TENANTS)
                self._tenants[queue] = now, sorted(found, key=lambda one: (-(one.waiting + one.running), one.tenant))
            return self._tenants[queue][1]

    def changed(self) -> None:
        """Somebody changed something here: the next page must show it."""
        self._overview = None
        self._tenants.clear()

    def now(self) -> float:
        """The clock of the history and of the watch."""
        return asyncio.get_running_loop().time()

    async def _run(self) -> None:
        while self._attended():
            try:
                await self._attend()
            except Exception:
                log.exception("what the dashboard shows is no longer kept up to date; it is tried again")
                await asyncio.sleep(STEP)

    def _attended(self) -> bool:
        return self._for_ever or self.now() - self._visited < _IDLE

    async def _attend(self) -> None:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._hear()), group.create_task(self._look())]
            while self._attended():
                with suppress(HeadraceError, OSError):
                    await self.overview()
                await asyncio.sleep(STEP)
            for task in beside:
                task.cancel()

    async def _hear(self) -> None:
        async with self._admin.listening.listen() as digests:
            async for digest in digests:
                self.history.hear(digest, self.now())
                self.watch.hear(digest, self.now())

    async def _look(self) -> None:
        """Look for alerts, in the store itself: a replica may lag, or be away."""
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    overview = await self._admin.primary.overview()
            except (HeadraceError, OSError, TimeoutError):
                overview = None
            self.watch.look(overview, self.now())
            self._looked.set()
            await asyncio.sleep(self.watch.every)
