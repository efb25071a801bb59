"""Probes tell the truth: through every kind of trouble they turn red, and green again when it is over."""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
import redis
from servers.postgres import Postgres
from servers.valkey import Valkey

from headrace import App, Settings
from headrace.core.config import HttpSettings
from headrace.web.address import Address, parse_address
from headrace.web.server import serve_alone, serve_http
from tests.cli.conftest import Process
from tests.postgres import root
from tests.web_client import ask

LIMIT = 60.0
"""Seconds. A guard: on a machine that is not busy, five are enough."""
WORKER = """
import threading, time
from pathlib import Path
from headrace import App

app = App({url!r}, patience="1s")

@app.task(queue="q")
async def hog(seconds: float) -> None:
    Path("hogging").touch()
    time.sleep(seconds)

@app.task(queue="q")
async def waits() -> None:
    import asyncio
    Path("waiting").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.05)

@app.task(queue="q")
def kills_slots() -> None: ...
"""


class Probed:
    """A worker process, and what its probes say."""

    def __init__(self, directory: Path, url: str, *arguments: str) -> None:
        self.directory = directory
        (directory / "work.py").write_text(WORKER.format(url=url))
        self.process = Process("worker", "work:app", "--http", "127.0.0.1:0", *arguments, cwd=directory)
        line = self.process.text("http://")
        self.address: Address = parse_address(line.split("http://")[1].split(": health")[0])

    def status(self, probe: str) -> int:
        return ask(self.address, f"/{probe}").status

    def detail(self) -> str:
        return ask(self.address, "/readyz").text

    def turns(self, ready: bool, live: bool = True) -> float:
        """Wait until the probes say this; how many seconds it took."""
        began = time.monotonic()
        wanted = (200 if ready else 503, 200 if live else 503)
        while (found := (self.status("readyz"), self.status("livez"))) != wanted:
            assert time.monotonic() - began < LIMIT, f"expected {wanted}, got {found}: {self.detail()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def enqueue(self, task: str, *arguments: str) -> None:
        Process("enqueue", task, "--app", "work:app", *arguments, cwd=self.directory).ended()

    def seen(self, name: str) -> None:
        """Wait for a file that a handler makes."""
        began = time.monotonic()
        while not (self.directory / name).exists():
            assert time.monotonic() - began < LIMIT, f"no {name}"
            time.sleep(0.02)


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[Callable[..., Probed]]:
    made: list[Probed] = []

    def make(url: str, *arguments: str) -> Probed:
        made.append(Probed(tmp_path, url, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres(root(), {"fsync": "off", "shared_buffers": "32MB"})
    server.start()
    yield server
    server.close()


def test_a_store_that_is_killed(probed: Any, postgres: Postgres) -> None:
    worker = probed(postgres.url())
    worker.turns(ready=True)
    assert worker.status("startupz") == 200
    postgres.kill()
    worker.turns(ready=False)
    assert worker.status("startupz") == 200, "it has started, whatever came later"
    postgres.start()
    worker.turns(ready=True)


def test_a_store_that_hangs(probed: Any, postgres: Postgres) -> None:
    worker = probed(postgres.url())
    worker.turns(ready=True)
    postgres.freeze()
    worker.turns(ready=False)
    postgres.thaw()
    worker.turns(ready=True)


def test_a_store_that_is_read_only(probed: Any, postgres: Postgres) -> None:
    worker = probed(postgres.url())
    worker.turns(ready=True)
    for value, ready in (("on", False), ("off", True)):
        _make_read_only(postgres, value)
        worker.turns(ready=ready)


def test_a_valkey_that_is_killed_and_one_that_hangs(probed: Any) -> None:
    server = Valkey()
    server.start()
    try:
        worker = probed(server.url())
        worker.turns(ready=True)
        server.freeze()
        worker.turns(ready=False)
        server.thaw()
        worker.turns(ready=True)
        server.kill()
        worker.turns(ready=False)
    finally:
        server.close()


def test_a_valkey_that_takes_no_writes(probed: Any) -> None:
    """As one that has lost its replicas, or has become one."""
    server = Valkey()
    server.start()
    try:
        worker = probed(server.url())
        worker.turns(ready=True)
        with redis.Redis.from_url(server.url()) as client:
            client.config_set("min-replicas-to-write", 1)
            worker.turns(ready=False)
            client.config_set("min-replicas-to-write", 0)
            worker.turns(ready=True)
    finally:
        server.close()


def test_a_valkey_without_memory_is_worked_on(probed: Any, tmp_path: Path) -> None:
    """It takes no new jobs, but what it has is claimed and settled, so workers are well; a metric tells of the rest."""
    server = Valkey()
    server.start()
    try:
        worker = probed(server.url())
        worker.turns(ready=True)
        worker.enqueue("waits")
        worker.seen("waiting")
        with redis.Redis.from_url(server.url()) as client:
            client.config_set("maxmemory", "1mb")
            assert Process("enqueue", "waits", "--app", "work:app", cwd=tmp_path).ended() != 0
            (tmp_path / "open").touch()
            completed = 'headrace_jobs_finished_total{outcome="completed",queue="q",task="work.waits"} 1.0'
            began = time.monotonic()
            while completed not in (text := ask(worker.address, "/metrics").text):
                assert time.monotonic() - began < LIMIT, text
                assert worker.status("readyz") == 200, worker.detail()
                time.sleep(0.3)
            [used] = [line for line in text.splitlines() if line.startswith("headrace_budget_used_ratio ")]
            assert float(used.split()[1]) > 1
            client.config_set("maxmemory", 0)
        worker.turns(ready=True)
    finally:
        server.close()


def test_a_file_that_somebody_keeps_locked(probed: Any, tmp_path: Path) -> None:
    worker = probed(f"sqlite:///{tmp_path}/jobs.db")
    worker.turns(ready=True)
    other = apsw.Connection(str(tmp_path / "jobs.db"))
    other.execute("BEGIN IMMEDIATE")
    worker.turns(ready=False)
    other.execute("ROLLBACK")
    other.close()
    worker.turns(ready=True)


def test_a_disk_that_takes_no_more(probed: Any, tmp_path: Path) -> None:
    """The worker's files may not grow from some moment on: its writes fail as on a full disk."""
    worker = probed(f"sqlite:///{tmp_path}/jobs.db")
    worker.turns(ready=True)
    pid = worker.process.popen.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_024, hard))
    worker.turns(ready=False)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    worker.turns(ready=True)


def test_a_handler_that_hogs_the_loop(probed: Any, tmp_path: Path) -> None:
    """The probes are answered all the while, and by themselves."""
    worker = probed(f"sqlite:///{tmp_path}/jobs.db")
    worker.turns(ready=True)
    worker.enqueue("hog", "--arg", "seconds=8")
    worker.seen("hogging")
    worker.turns(ready=False, live=False)
    assert "a handler hogs it" in worker.detail()
    worker.turns(ready=True)


def test_handlers_that_just_wait_are_no_trouble(probed: Any, tmp_path: Path) -> None:
    """Also when they fill all slots."""
    worker = probed(f"sqlite:///{tmp_path}/jobs.db", "--concurrency", "1")
    worker.enqueue("waits")
    worker.seen("waiting")
    for _ in range(20):
        worker.turns(ready=True)
        time.sleep(0.3)
    worker.process.send(signal.SIGTERM)
    worker.turns(ready=False)
    assert "stopping" in worker.detail()
    (tmp_path / "open").touch()
    assert worker.process.ended() == 0


async def test_slots_that_have_ended() -> None:
    app = App(Settings.load({"url": "memory://"}, env={}, toml={}))

    @app.task(queue="q", name="any")
    async def any() -> None: ...

    async with app, serve_http(app, HttpSettings(address="0")) as address, asyncio.TaskGroup() as group:

        async def until(status: int) -> str:
            async with asyncio.timeout(LIMIT):
                while (answer := await asyncio.to_thread(ask, address, "/readyz")).status != status:
                    await asyncio.sleep(0.02)
            return answer.text

        assert "no worker runs here" in await until(503)
        assert (await asyncio.to_thread(ask, address, "/startupz")).status == 503
        group.create_task(app.work())
        await until(200)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("headrace-slot"):
                task.cancel()
        assert "slots are down" in await until(503)
        await until(200)
        app.stop()


async def test_a_process_without_a_worker_asks_its_store(postgres: Postgres) -> None:
    client = App(Settings.load({"url": postgres.url(), "patience": "1s"}, env={}, toml={})).client
    sock = f"unix:/tmp/headrace-{time.monotonic_ns()}.sock"
    ready = asyncio.Event()
    async with client, asyncio.TaskGroup() as group:
        serving = group.create_task(serve_alone(client, HttpSettings(address=sock), ready=ready))
        await ready.wait()
        address = parse_address(sock)

        async def until(status: int) -> None:
            async with asyncio.timeout(LIMIT):
                while await asyncio.to_thread(_status, address) != status:
                    await asyncio.sleep(0.05)

        await until(200)
        postgres.freeze()
        await until(503)
        postgres.thaw()
        await until(200)
        postgres.kill()
        await until(503)
        serving.cancel()
    Path(address.path).unlink(missing_ok=True)


async def test_a_process_without_a_worker_that_changes_things_must_be_able_to(postgres: Postgres) -> None:
    """One that only shows things goes on."""
    writing, reading = (f"unix:/tmp/headrace-{time.monotonic_ns()}.sock" for _ in range(2))
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        serving = []
        for sock in (writing, reading):
            client = App(Settings.load({"url": postgres.url(), "patience": "1s"}, env={}, toml={})).client
            await stack.enter_async_context(client)
            http, ready = HttpSettings(address=sock, writes=sock == writing), asyncio.Event()
            serving.append(group.create_task(serve_alone(client, http, ready=ready)))
            await ready.wait()

        async def until(sock: str, status: int) -> None:
            async with asyncio.timeout(LIMIT):
                while await asyncio.to_thread(_status, parse_address(sock)) != status:
                    await asyncio.sleep(0.05)

        for value, status in (("off", 200), ("on", 503), ("off", 200)):
            await asyncio.to_thread(_make_read_only, postgres, value)
            await until(writing, status)
            await until(reading, 200)
        for task in serving:
            task.cancel()
    for sock in (writing, reading):
        Path(parse_address(sock).path).unlink(missing_ok=True)


def _make_read_only(postgres: Postgres, value: str) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = '{value}'")
        connection.execute("SELECT pg_reload_conf()")


def _status(address: Address) -> int:
    try:
        return ask(address, "/readyz").status
    except OSError:
        return 0


def test_several_processes_behind_one_port(probed: Any, tmp_path: Path) -> None:
    worker = probed(f"sqlite:///{tmp_path}/jobs.db", "--processes", "2")
    worker.turns(ready=True)
    for _ in range(4):
        worker.enqueue("kills_slots")
    began = time.monotonic()
    while 'headrace_jobs_finished_total{outcome="completed",queue="q",task="work.kills_slots"} 4.0' not in (
        text := ask(worker.address, "/metrics").text
    ):
        assert time.monotonic() - began < LIMIT, text
        time.sleep(0.1)
    assert "headrace_workers 2.0" in text
    assert len(ask(worker.address, "/api/v1/workers").json) == 2
    assert ask(worker.address, "/livez", headers={"Host": "evil.example"}).status == 403
    worker.process.send(signal.SIGTERM)
    assert worker.process.ended() == 0
