"""Workers on every store of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Client, Event, EventKind, Settings
from headrace.backends.memory import MemoryBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.seam.protocol import Backend
from tests import postgres, streams, valkey

FAST = {"lease": "10s", "reap": "50ms", "poll": "200ms", "poll_blind": "20ms", "grace": "5s"}


STORES = ["memory", "sqlite", "postgres", "valkey"]


def blank(kind: str, place: Path) -> Backend:
    """An unopened backend on a blank store; siblings of it share its jobs."""
    match kind:
        case "memory":
            return MemoryBackend()
        case "sqlite":
            return SqliteBackend(place / "jobs.db")
        case "postgres":
            return postgres.stores.connect(place)
        case "streams":
            return streams.stores.connect(place)
    return valkey.stores.connect(place)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return blank(request.param, tmp_path)


@pytest.fixture
def make_app(store: Backend) -> Callable[..., App]:
    """Apps on the same store that are quick to notice things."""

    def make(backend: Backend | None = None, **worker: Any) -> App:
        settings = Settings.load({"worker": FAST | {"name": "random"} | worker}, env={}, toml={})
        return App(Client(backend or store.sibling(), settings))

    return make


class Told:
    """An observer that remembers, and lets tests wait for what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    async def wait_for(self, kind: EventKind, count: int = 1) -> Event:
        async with asyncio.timeout(60):
            while self.kinds().count(kind) < count:
                self._changed.clear()
                await self._changed.wait()
        return [event for event in self.events if event.kind is kind][count - 1]


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[None]:
    """A worker of the app, for as long as the block lasts."""
    async with app, asyncio.TaskGroup() as group:
        work = group.create_task(app.work(**options))
        while app.worker is None and not work.done():
            await asyncio.sleep(0)
        try:
            yield
        finally:
            app.stop()
