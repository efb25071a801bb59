"""Servers and pools that fork their workers from a process which has used the app already."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.facades.harness import Store
from tests.facades.test_everywhere import SHOP, _make, _python, _stored

DEADLINE = 120
REQUESTS, EACH = 100, 10
SITE = """
import os
from headrace import SyncApp
import shop

shop.remember("master", 1)  # straight to the store
SyncApp(shop.app).stats()  # on the loop in the background

def site(environ, start_response):
    place, _, first = environ["PATH_INFO"].strip("/").partition("/")
    for n in range(int(first), int(first) + {each}):
        shop.note.enqueue_sync(place, n)
    queues = SyncApp(shop.app).stats(["notes"]).queues
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{{os.getpid()}} {{len(queues)}}".encode()]
"""
POOL = """
import multiprocessing
from headrace import SyncApp
import shop

def work(part):
    for n in range(part, 1_000, 4):
        shop.note.enqueue_sync("pool", n)
    return SyncApp(shop.app).stats(["notes"]).queues[0].queue

shop.remember("parent", 1)
SyncApp(shop.app).stats()
with multiprocessing.get_context("fork").Pool(4) as pool:
    print(*pool.map(work, range(4), 1))
shop.remember("parent after", 1)
"""


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


@pytest.fixture
def environ(place: Store, tmp_path: Path) -> dict[str, str]:
    asyncio.run(_make(place))
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "site_.py").write_text(SITE.format(each=EACH))
    return os.environ | {"SHOP_URL": place.url, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}


GUNICORN = [
    "-m", "gunicorn", "--preload", "--workers", "2", "--max-requests", "20", "--bind", "unix:{path}",
    "--no-control-socket", "site_:site",
]  # fmt: skip
UWSGI = [
    "-c", "import pyuwsgi; pyuwsgi.run()", "--master", "--processes", "2", "--max-requests", "20", "--die-on-term",
    "--min-worker-lifetime", "0", "--need-app", "--module", "site_:site", "--http-socket", "{path}",
]  # fmt: skip


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[[list[str]], Path]]:
    """Starts a server of ``site_``; what it listens to."""
    path, log, started = tmp_path / "s", tmp_path / "log", []

    def begin(command: list[str]) -> Path:
        with log.open("wb") as told:
            master = subprocess.Popen(
                [sys.executable, *(part.format(path=path) for part in command)],
                env=environ,
                cwd=tmp_path,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
        started.append(master)
        deadline = time.monotonic() + DEADLINE
        while not path.exists():
            assert master.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return path

    yield begin
    [master] = started
    try:
        if "gunicorn" in master.args:  # uWSGI sometimes waits for a worker that it has just started
            master.send_signal(signal.SIGTERM)
            assert master.wait(DEADLINE) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(master.pid, signal.SIGKILL)
        master.wait()


class _Unix(HTTPConnection):
    """Over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(path: Path, what: str) -> list[str]:
    connection = _Unix(path)
    connection.request("GET", what)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text.split()


@pytest.mark.parametrize("server", ["gunicorn", "uwsgi", "uwsgi with threads"])
def test_servers(start: Callable[[list[str]], Path], server: str, place: Store) -> None:
    """Their workers are replaced after a few requests, by forks of a master that has used the app. uWSGI does not tell
    Python of them; so on SQLite, where that is refused, its workers load the app themselves."""
    lazy = server != "gunicorn" and place.kind == "sqlite"
    command = GUNICORN if server == "gunicorn" else UWSGI
    more = ["--lazy-apps"] * lazy + ["--enable-threads"] * (server == "uwsgi with threads")
    path = start([*command, *more])
    told = [_ask(path, f"/view/{n * EACH}") for n in range(REQUESTS)]
    assert len({pid for pid, _ in told}) >= 3, "workers were replaced"
    assert {queues for _, queues in told} == {"1"}
    stored = asyncio.run(_stored(place))
    loaded = stored.pop(("master", 0))
    assert loaded >= 3 if lazy else loaded == 1
    assert stored == {("view", n): 1 for n in range(REQUESTS * EACH)}


def test_a_pool(environ: dict[str, str], place: Store) -> None:
    assert _python(["-c", POOL], environ) == ["notes"] * 4
    expected = {("pool", n): 1 for n in range(1_000)} | {("parent", 0): 1, ("parent after", 0): 1}
    assert asyncio.run(_stored(place)) == expected
