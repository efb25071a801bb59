"""A flood of failures: dead letters keep to their bound at every moment, and nobody else's are pushed out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from headrace import App, Client, Event, EventKind, Settings, never
from headrace.keeping import hard_bounds, retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, Claim, Selector, Stamp
from headrace.testing.wrapped import Carry, Wrapped
from headrace.types import JobState
from tests.worker.conftest import FAST

T = TypeVar("T")
_MOST = 300
_JOBS = 1_500
_FEW = 40


class Counted(Wrapped):
    """Counts the dead letters whenever jobs have ended."""

    def __init__(self, inner: Backend, seen: list[tuple[int, int]]) -> None:
        super().__init__(inner)
        self._seen = seen

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        answer = await carry(at)
        if name.startswith("finish"):
            kept = (await self.inner.stats()).kept
            self._seen.append(next((one.count, one.bytes) for one in kept if one.target == "failed"))
        return answer


def failing(store: Backend, seen: list[tuple[int, int]], **keep: Any) -> App:
    """An app whose only task always fails."""
    given = {
        "worker": FAST | {"name": "random", "prefetch": 10},
        "retention": {"failed": keep},
        "payloads": {"compress_over": None},
    }
    settings = Settings.load(given, env={}, toml={})
    app = App(Client(Counted(store.sibling(), seen), settings))

    @app.task(name="fail", retry=never())
    async def fail(text: str) -> None:
        raise ValueError("as always")

    return app


@pytest.mark.parametrize("workers", [2, 12])
async def test_dead_letters_keep_to_their_bound_in_a_flood(store: Backend, workers: int) -> None:
    seen: list[tuple[int, int]] = []
    apps = [failing(store, seen, count=_MOST) for _ in range(workers)]
    alerts: list[Event] = []
    apps[0].observe(alerts.append)
    first = apps[0].tasks["fail"]
    async with AsyncExitStack() as open_apps, asyncio.timeout(240):
        for app in apps:
            await open_apps.enter_async_context(app)
        await apps[0].enqueue_many([first.options(tenant="quiet").job("x") for _ in range(20)])  # type: ignore[union-attr]
        await apps[0].drain()
        await apps[0].enqueue_many([first.options(tenant="noisy").job("x") for _ in range(_JOBS)])  # type: ignore[union-attr]
        async with asyncio.TaskGroup() as group:
            for app in apps:
                group.create_task(app.drain())
        quiet = await store_scan(apps[0].client)
    assert max(count for count, _ in seen) <= 1.1 * _MOST
    assert seen[-1][0] >= 0.8 * _MOST
    assert quiet == 20
    assert "dead_letters_full" in [event.alert for event in alerts if event.kind is EventKind.ALERT]


async def store_scan(client: Client) -> int:
    """How many dead letters the quiet tenant has."""
    backend = await client.backend()
    page = await backend.scan(Selector(tenant="quiet", states=frozenset((JobState.FAILED,))), limit=100)
    return len(page.records)


async def test_their_bytes_keep_to_their_bound_too(store: Backend) -> None:
    seen: list[tuple[int, int]] = []
    most = 1_000_000
    app = failing(store, seen, bytes=most)
    task: Callable[..., Any] = app.tasks["fail"].job  # type: ignore[assignment]
    async with app, asyncio.timeout(240):
        await app.enqueue_many([task("x" * 20_000) for _ in range(120)])
        await app.drain()
    assert max(size for _, size in seen) <= 1.1 * most
    assert seen[-1][1] >= 0.5 * most


async def test_what_goes_between_two_runs_is_in_the_log(store: Backend) -> None:
    app = failing(store, [], count=_FEW)
    task: Callable[..., Any] = app.tasks["fail"].job  # type: ignore[assignment]
    async with app, asyncio.timeout(240):
        await app.enqueue_many([task("x") for _ in range(10 * _FEW)])
        await app.drain()
        removed = sum(one.jobs for one in await app.janitor.removed())
        assert removed >= 8 * _FEW
        [logged] = await app.janitor.log()
        assert logged.by == "workers"
        assert [(step.target, step.deleted, step.cutoff) for step in logged.steps] == [("failed", removed, None)]
        assert logged.steps[0].kept is not None


class Sweeps(Wrapped):
    """Lets sweeps wait until they may go on, and tells of ends."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.may_sweep = asyncio.Event()
        self.asked = asyncio.Event()

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        if name == "sweep":
            self.asked.set()
            await self.may_sweep.wait()
        return await carry(at)


async def test_completed_jobs_over_their_bound_go_before_the_next_run_and_no_end_waits_for_that(store: Backend) -> None:
    given = {
        "worker": FAST | {"name": "random"},
        "patience": "1ms",
        "retention": {"completed": {"count": _MOST}, "every": "1h"},
    }
    sweeps = Sweeps(store.sibling())
    app = App(Client(sweeps, Settings.load(given, env={}, toml={})))

    @app.task(name="fine")
    async def fine() -> None:
        pass

    async with app, asyncio.timeout(240):
        work = asyncio.create_task(app.work())
        await app.enqueue_many([fine.job() for _ in range(_JOBS)])
        while (await app.client.stats()).queues[0].available or (await app.client.stats()).queues[0].running:
            await asyncio.sleep(0.02)
        await sweeps.asked.wait()
        sweeps.may_sweep.set()
        await app.enqueue_many([fine.job() for _ in range(_MOST // 10)])
        while _completed(await app.client.stats()) > 1.2 * _MOST:
            await asyncio.sleep(0.02)
        app.stop()
        await work


async def test_a_drain_does_not_ask_again_and_again_for_what_no_sweep_may_remove_yet(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_bounds, "_SOON", 60.0)
    given = {
        "worker": FAST | {"name": "random"},
        "patience": "30m",
        "retention": {"completed": {"count": _MOST}, "every": "1h"},
    }
    sweeps = Sweeps(store.sibling())
    sweeps.may_sweep.set()
    app = App(Client(sweeps, Settings.load(given, env={}, toml={})))

    @app.task(name="fine")
    async def fine() -> None:
        pass

    async with app, asyncio.timeout(50):  # less than a sixtieth of the time for which they are spared
        await app.enqueue_many([fine.job() for _ in range(_JOBS)])
        await app.drain()
        assert not sweeps.asked.is_set()
        assert _completed(await app.client.stats()) == _JOBS


async def test_jobs_that_no_trip_ends_keep_to_their_bounds_too(store: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies with its workers, what expires and what people cancel."""
    monkeypatch.setattr(retention, "_LOOK", 0.2)
    given = {
        "worker": FAST | {"name": "random", "max_lost": 0},
        "patience": "1ms",
        "retention": {state: {"count": _FEW} for state in ("failed", "cancelled")} | {"every": "1h"},
    }
    app = App(Client(store.sibling(), Settings.load(given, env={}, toml={})))

    @app.task(name="wait", queue="work")
    async def wait() -> None:
        pass

    async with app, asyncio.timeout(240):
        backend = await app.client.backend()
        for _ in range(5):
            await app.enqueue_many([wait.job() for _ in range(_FEW)])
            await backend.claim(Claim("gone", ("work",), _FEW, 1))
        worker = asyncio.create_task(app.work())
        while (await app.client.stats()).queues[0].running:
            await asyncio.sleep(0.02)
        await kept_at_most(app.client, "failed", _FEW)
        await app.enqueue_many([wait.options(delay="1h").job() for _ in range(5 * _FEW)])
        await app.client.alter(Selector(queue="work", states=frozenset((JobState.AVAILABLE,))), Cancel())
        await kept_at_most(app.client, "cancelled", _FEW)
        app.stop()
        await worker


async def kept_at_most(client: Client, target: str, most: int) -> None:
    """Wait until no more jobs are kept of a state than that, of at least one."""
    while not 0 < next(one.count for one in (await client.stats()).kept if one.target == target) <= most:
        await asyncio.sleep(0.02)


def _completed(stats: Any) -> int:
    return next(one.count for one in stats.kept if one.target == "completed")
