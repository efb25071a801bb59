"""Health, metrics and pages against the truth, while the store is killed, hangs and takes no writes, and a worker is
killed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

import psycopg

from chaos.hang_store import stopped
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, Store, ValkeyStore, opened
from headrace import App
from headrace.core.config import Settings
from headrace.errors import HeadraceError
from headrace.seam.records import Stats

SLOWEST = 5.0
"""Seconds until everybody says that something is wrong, or that all is well again."""
_GIVEN_UP = 120.0
_BEHIND = 30.0
"""Seconds by which numbers may be behind at worst: they are asked every few, and of a busy machine."""
_LEASE = 3.0
_WORK = """
from headrace import App

app = App({url!r}, patience="1s", worker={{"lease": "{lease}s"}})

@app.task(queue="q", name="work")
async def work() -> None: ...
"""

Trouble = Callable[[], AbstractAsyncContextManager[None]]


class Observer:
    """A process that tells how things are."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._socket = folder / f"{name}.sock"
        self._log = folder / f"{name}.log"
        given = [one.replace("SOCKET", f"unix:{self._socket}") for one in arguments]
        with self._log.open("wb") as log:
            self.process = Popen(
                [sys.executable, "-m", "headrace.cli", *given], cwd=folder, stdin=DEVNULL, stdout=log, stderr=STDOUT
            )

    async def ask(self, path: str) -> tuple[int, str]:
        """The status and the body; 0 if nobody answers."""
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                writer.close()
                return int(head.split()[1]), body.decode()
        except (OSError, TimeoutError, ValueError, IndexError):
            return 0, ""

    async def turns(self, status: int, since: float) -> float:
        """Seconds until ``/readyz`` says so."""
        while (found := await self.ask("/readyz"))[0] != status:
            if time.monotonic() - since > _GIVEN_UP:
                raise TimeoutError(f"{self.name}: expected {status}, got {found}; {self._log.read_text()[-2_000:]}")
            await asyncio.sleep(0.05)
        return time.monotonic() - since


async def run(folder: Path, *, seed: int, backend: str, rounds: int = 3, slowest: float = SLOWEST) -> Outcome:
    """``rounds`` times each trouble, and a worker that is killed."""
    began, reached, problems = time.monotonic(), dict[str, float](), list[str]()
    with opened(backend, folder) as store:
        (folder / "work.py").write_text(_WORK.format(url=store.url, lease=_LEASE))
        app = App(Settings.load({"url": store.url, "patience": "1s"}, env={}, toml={}))
        observers = [
            Observer(folder, "worker", "worker", "work:app", "--http", "SOCKET"),
            Observer(folder, "dashboard", "dashboard", "SOCKET", "--writes", "--url", store.url),
        ]
        victim = Observer(folder, "victim", "worker", "work:app", "--http", "SOCKET")
        try:
            async with app:
                shelf = app.task(queue="shelf", name="shelf")(_never)
                await app.enqueue_many([shelf.job() for _ in range(1_234)])
                for one in (*observers, victim):
                    await one.turns(200, time.monotonic())
                problems += await _lies(app, observers)
                before = len((await app.client.stats()).workers)
                victim.process.kill()
                victim.process.wait()
                reached["seconds until a killed worker is gone"] = await _gone(observers, before - 1)
                for _ in range(rounds):
                    for name, trouble in _troubles(store).items():
                        async with trouble():
                            red = await _all(observers, 503)
                            problems += await _not_down(observers, name)
                        green = await _all(observers, 200, await _recovered(app))
                        for colour, seconds in (("red", red), ("green", green)):
                            told = f"{name}: slowest {colour} s"
                            reached[told] = max(reached.get(told, 0.0), round(seconds, 1))
                        problems += [f"{name}: {text}" for text in await _lies(app, observers)]
        finally:
            for one in (*observers, victim):
                one.process.terminate()
                one.process.wait()
    late = {told: value for told, value in reached.items() if " slowest " in told and value > slowest}
    problems += [f"{told} {value}, not {slowest:g}" for told, value in late.items()]
    return Outcome(
        scenario="observers",
        backend=store.name,
        asked={"rounds": rounds, "slowest s": slowest},
        reached=reached | {"seconds": round(time.monotonic() - began, 1)},
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _never() -> None: ...


async def _all(observers: list[Observer], status: int, since: float | None = None) -> float:
    begun = time.monotonic() if since is None else since
    return max(await asyncio.gather(*(one.turns(status, begun) for one in observers)))


async def _recovered(app: App) -> float:
    """When the store took a write again, seen from here."""
    while True:
        try:
            await app.client.pause("nobody")
            await app.client.resume("nobody")
            return time.monotonic()
        except HeadraceError:
            await asyncio.sleep(0.05)


async def _not_down(observers: list[Observer], name: str) -> list[str]:
    """While a store is away, metrics say so, which they ask every few seconds. One that takes no writes still
    answers."""
    begun, wrong = time.monotonic(), [*observers]
    while wrong and name != "read-only" and time.monotonic() - begun < _BEHIND:
        texts = [(await one.ask("/metrics"))[1] for one in wrong]
        ups = [_value(text, "headrace_backend_up") for text in texts]
        wrong = [one for one, up in zip(wrong, ups, strict=True) if up != 0]
        await asyncio.sleep(0.2)
    return [] if name == "read-only" else [f"{name}: {one.name} has the store up" for one in wrong]


async def _gone(observers: list[Observer], left: int) -> float:
    begun = time.monotonic()
    for one in observers:
        while (found := _value((await one.ask("/metrics"))[1], "headrace_workers")) != left:
            if time.monotonic() - begun > _GIVEN_UP:
                raise TimeoutError(f"{one.name} still has {found} workers")
            await asyncio.sleep(0.1)
    return round(time.monotonic() - begun, 1)


async def _lies(app: App, observers: list[Observer]) -> list[str]:
    """What metrics and pages have otherwise than the store. They may be some seconds behind."""
    wrong: list[str] = []
    for one in observers:
        begun = time.monotonic()
        while wrong := [text async for text in _differences(one, await app.client.stats())]:
            if time.monotonic() - begun > _BEHIND:
                return wrong
            await asyncio.sleep(0.2)
    return wrong


async def _differences(one: Observer, truth: Stats) -> AsyncIterator[str]:
    due, workers = next(queue.due for queue in truth.queues if queue.queue == "shelf"), len(truth.workers)
    _, metrics = await one.ask("/metrics")
    if (found := _value(metrics, 'headrace_queue_jobs{queue="shelf",state="due"}')) != due:
        yield f"{one.name}: metrics have {found} due jobs, not {due}"
    if (found := _value(metrics, "headrace_workers")) != workers:
        yield f"{one.name}: metrics have {found} workers, not {workers}"
    status, page = await one.ask("/queues?name=shelf")
    if status != 200 or f"{due:,}" not in page:
        yield f"{one.name}: the page of queues ({status}) does not have {due:,}"


def _value(text: str, name: str) -> float | None:
    """Of a metric; with any labels, if none are named."""
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series == name or ("{" not in name and series.partition("{")[0] == name):
            return float(value)
    return None


def _troubles(store: Store) -> dict[str, Trouble]:
    assert isinstance(store, PostgresStore | ValkeyStore)
    return {
        "kill": lambda: _killed(store),
        "hang": lambda: stopped(store),
        "read-only": lambda: _read_only(store),
    }


@asynccontextmanager
async def _killed(store: PostgresStore | ValkeyStore) -> AsyncIterator[None]:
    store.server.kill()
    try:
        yield
    finally:
        await asyncio.to_thread(store.server.start)


@asynccontextmanager
async def _read_only(store: PostgresStore | ValkeyStore) -> AsyncIterator[None]:
    """As a standby is, and a server that has lost its replicas."""
    await asyncio.to_thread(_let_write, store, False)
    try:
        yield
    finally:
        await asyncio.to_thread(_let_write, store, True)


def _let_write(store: PostgresStore | ValkeyStore, may: bool) -> None:
    if isinstance(store, ValkeyStore):
        store.server.call("CONFIG", "SET", "min-replicas-to-write", "0" if may else "1")
        return
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = '{'off' if may else 'on'}'".encode())
        connection.execute("SELECT pg_reload_conf()")
