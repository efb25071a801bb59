"""Stores that hang: a call ends when patience does, though the store goes on only after that."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from servers.postgres import Postgres
from servers.valkey import Valkey

from headrace import App, Client, Every, JobInfo, NewJob, Settings, SyncApp
from headrace.backends.postgres import connections
from headrace.backends.redis import blocking
from headrace.backends.sqlite import SqliteBackend, connection_thread
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Inserted, Pause, Requeue, Selector
from tests import postgres, valkey
from tests.backends.networks import OverPostgres, OverValkey
from tests.facades.harness import Tapped

NEVER = 300.0
"""Seconds after which a store would give up a call by itself."""
LONG = 60
"""Seconds for what should take two."""
JOB = NewJob(task="t", queue="q")


class Stand(ABC):
    """A store that can be made to stand still."""

    reads: bool
    """Whether it answers questions all the while."""

    @abstractmethod
    def patient(self, patch: pytest.MonkeyPatch) -> None:
        """The store gives up no call by itself."""

    @abstractmethod
    def backend(self, place: Path) -> Backend:
        """The store, blank."""

    @abstractmethod
    def hanging(self, place: Path) -> AbstractContextManager[None]:
        """It stands still."""


@contextmanager
def frozen(server: Postgres | Valkey) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


class StandingPostgres(Stand):
    reads = False

    def patient(self, patch: pytest.MonkeyPatch) -> None:
        OverPostgres().limit(patch, NEVER)
        patch.setitem(connections._DEFAULTS, "connect_timeout", int(NEVER))

    def backend(self, place: Path) -> Backend:
        return postgres.stores.connect(place)

    def hanging(self, place: Path) -> AbstractContextManager[None]:
        return frozen(postgres.server())


class StandingValkey(Stand):
    reads = False

    def patient(self, patch: pytest.MonkeyPatch) -> None:
        OverValkey().limit(patch, NEVER)
        patch.setattr(blocking, "CONNECT", NEVER)

    def backend(self, place: Path) -> Backend:
        return valkey.stores.connect(place)

    def hanging(self, place: Path) -> AbstractContextManager[None]:
        return frozen(valkey.server())


class LockedSqlite(Stand):
    """Another process writes, and does not end."""

    reads = True

    def patient(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(connection_thread, "PATIENCE", NEVER)

    def backend(self, place: Path) -> Backend:
        return SqliteBackend(str(place / "store.db"))

    @contextmanager
    def hanging(self, place: Path) -> Iterator[None]:
        code = """
            import sqlite3, sys
            store = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
            store.execute("BEGIN IMMEDIATE")
            print("locked", flush=True)
            sys.stdin.read()
        """
        program = "\n".join(map(str.strip, code.splitlines()))
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(place / "store.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            yield
            with suppress(BrokenPipeError):
                other.communicate()


@pytest.fixture(params=[StandingPostgres(), StandingValkey(), LockedSqlite()], ids=["postgres", "valkey", "sqlite"])
def stand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stand:
    found: Stand = request.param
    found.patient(monkeypatch)
    return found


@pytest_asyncio.fixture
async def app(stand: Stand, tmp_path: Path) -> AsyncIterator[App]:
    app = make_app(stand.backend(tmp_path))
    yield app
    await app.close()


def make_app(backend: Backend) -> App:
    app = App(Client(backend, Settings(patience="1s")))
    app.task(name="t", queue="q")(lambda: None)
    return app


KEPT = Selector(queue="q")
CHANGES: dict[str, Callable[[App, bytes], Awaitable[Any]]] = {
    "enqueue": lambda app, job: app.client.enqueue(JOB),
    "enqueue to wait": lambda app, job: app.client.enqueue(JOB, reply=True),
    "call": lambda app, job: app.client.call(JOB, None),
    "enqueue_many": lambda app, job: app.enqueue_many([JOB, JOB]),
    "cancel": lambda app, job: app.cancel(job),
    "reschedule": lambda app, job: app.reschedule(job),
    "pause_job": lambda app, job: app.pause_job(job),
    "retry": lambda app, job: app.client.alter(Selector(ids=[job]), Requeue()),
    "alter_all": lambda app, job: app.client.alter_all(KEPT, Pause()),
    "pause": lambda app, job: app.policies.pause("q"),
    "resume": lambda app, job: app.policies.resume("q"),
    "policies.set": lambda app, job: app.policies.set("q", running=1),
    "policies.limit_store": lambda app, job: app.policies.limit_store(10),
    "policies.limit_tenant": lambda app, job: app.policies.limit_tenant("q", "a", running=1),
    "schedules.put": lambda app, job: app.schedules.put(Every("1h", JOB, name="new")),
    "schedules.update": lambda app, job: app.schedules.update("s", every="2h"),
    "schedules.disable": lambda app, job: app.schedules.disable("s"),
    "schedules.run": lambda app, job: app.schedules.run("s"),
    "schedules.delete": lambda app, job: app.schedules.delete("s"),
    "wait": lambda app, job: app.client.wait(job, None),
}
QUESTIONS: dict[str, Callable[[App, bytes], Awaitable[Any]]] = {
    "get": lambda app, job: app.get(job),
    "why": lambda app, job: app.why(job),
    "list": lambda app, job: app.client.list_jobs(KEPT),
    "stats": lambda app, job: app.client.stats(),
    "policies.get": lambda app, job: app.policies.get("q"),
    "policies.list": lambda app, job: app.policies.list(),
    "policies.tenants": lambda app, job: app.policies.tenants("q"),
    "schedules.get": lambda app, job: app.schedules.get("s"),
    "schedules.list": lambda app, job: app.schedules.list(),
    "schedules.next": lambda app, job: app.schedules.next("s"),
    "schedules.history": lambda app, job: app.schedules.history("s"),
    "schedules.stale": lambda app, job: app.schedules.stale(),
    "schedules.health": lambda app, job: app.schedules.health("s"),
}
"""A wait changes something too: it leaves word where it waits."""


async def prepared(app: App) -> bytes:
    """A job, in a store with a schedule and rules. Calls that hang do not wait for what is made on first use."""
    await app.policies.set("q", tenant_running=5)
    await app.schedules.put(Every("1h", JOB, name="s"))
    return (await app.client.enqueue(JOB)).id


def all_given_up(stand: Stand, answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        if name in QUESTIONS and stand.reads:
            assert not isinstance(answer, BaseException), (name, answer)
        else:
            assert isinstance(answer, Unavailable), (name, answer)
            assert "expected an answer from the store within 1 s, got none in" in str(answer), (name, answer)
    for name in ("enqueue", "enqueue_many"):
        assert "may be stored all the same: enqueue the same NewJob again" in str(answers[name])


async def test_no_call_outlasts_patience(stand: Stand, app: App, tmp_path: Path) -> None:
    """And after that, the same app is served again."""
    job = await prepared(app)
    calls = CHANGES | QUESTIONS
    with stand.hanging(tmp_path):
        async with asyncio.timeout(LONG):
            answers = await asyncio.gather(*(call(app, job) for call in calls.values()), return_exceptions=True)
    all_given_up(stand, dict(zip(calls, answers, strict=True)))
    async with asyncio.timeout(LONG):
        while True:
            with suppress(Unavailable):
                await asyncio.gather(app.client.enqueue(JOB), app.get(job), app.schedules.get("s"))
                break


def test_nor_does_a_call_from_a_thread(stand: Stand, tmp_path: Path) -> None:
    app = make_app(stand.backend(tmp_path))
    calls = CHANGES | QUESTIONS

    async def call(name: str) -> Any:
        return await calls[name](app, job)

    def ask(name: str) -> Any:
        try:
            return jobs.wait_for(call(name))
        except Exception as error:
            return error

    with SyncApp(app) as jobs, ThreadPoolExecutor(len(calls)) as threads:
        job = jobs.wait_for(prepared(app))
        with stand.hanging(tmp_path):
            asked = {name: threads.submit(ask, name) for name in calls}
            answers = {name: one.result(LONG) for name, one in asked.items()}
        all_given_up(stand, answers)


def test_nor_does_one_that_goes_straight_to_the_store(stand: Stand, tmp_path: Path) -> None:
    """Neither those that have a connection, nor those that need one, nor those for whom there is none."""
    app = make_app(stand.backend(tmp_path))
    calls: dict[str, Callable[[SyncApp, UUID], Any]] = {
        "enqueue": lambda jobs, job: app.tasks["t"].enqueue_sync(),  # type: ignore[attr-defined]
        "cancel": lambda jobs, job: jobs.cancel(job),
        "get": lambda jobs, job: jobs.get(job),
    }

    def ask(name: str) -> Any:
        try:
            return calls[name](jobs, job)
        except Exception as error:
            return error

    with SyncApp(app) as jobs, ThreadPoolExecutor(12) as threads:
        job = app.tasks["t"].enqueue_sync().id  # type: ignore[attr-defined]
        with stand.hanging(tmp_path):
            asked = [(name, threads.submit(ask, name)) for name in [*calls] * 4]
            for name, one in asked:
                answer = one.result(LONG)
                assert isinstance(answer, Unavailable) or (name == "get" and stand.reads), (name, answer)
        while not isinstance(ask("get"), JobInfo):
            pass
        assert app.tasks["t"].enqueue_sync().id != job  # type: ignore[attr-defined]


async def test_a_wait_that_has_begun_ends_too(stand: Stand, app: App, tmp_path: Path) -> None:
    """Unless the store can be read: then it goes on."""
    job = await prepared(app)
    waiting = asyncio.ensure_future(app.client.wait(job, None))
    waiter = app.client._waiter
    for step in (waiter._watches, waiter._fetches):
        while not step._crowd:
            await asyncio.sleep(0.01)
        await step.flush()
    with stand.hanging(tmp_path):
        if stand.reads:
            await asyncio.wait([waiting], timeout=3)
            assert not waiting.done()
            waiting.cancel()
        else:
            async with asyncio.timeout(LONG):
                with pytest.raises(Unavailable, match="expected an answer from the store within 1 s"):
                    await waiting


async def test_many_jobs_without_an_answer_say_which_may_be_stored(stand: Stand, tmp_path: Path) -> None:
    hanging = stand.hanging(tmp_path)

    class Hangs(Tapped):
        inserts = 0

        async def insert(self, *given: Any) -> list[Inserted]:
            self.inserts += 1
            if self.inserts == 2:
                hanging.__enter__()
            return await self.inner.insert(*given)  # type: ignore[no-any-return]

    app = make_app(Hangs(stand.backend(tmp_path)))
    most = app.client.limits.max_batch
    jobs = [NewJob(task="t", queue="q") for _ in range(2 * most + 1)]
    async with asyncio.timeout(LONG):
        with pytest.raises(Unavailable) as raised:
            await app.enqueue_many(jobs)
    hanging.__exit__(None, None, None)
    assert f"Of {len(jobs):,} jobs, the first {most:,} are stored, and the next {most:,} may be: " in str(raised.value)
    await app.close()
