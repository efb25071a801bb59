"""Servers and pools that fork their workers from a process which has used the app already."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
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


@pytest.fixture
def gunicorn(environ: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """Its workers are replaced after a few requests, by forks of a master that has used the app."""
    path, log = tmp_path / "s", tmp_path / "log"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--max-requests", "20"]
    with log.open("wb") as told:
        master = subprocess.Popen(
            [*command, "--bind", f"unix:{path}", "--no-control-socket", "site_:site"],
            env=environ,
            cwd=tmp_path,
            stdout=told,
            stderr=told,
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while not path.exists():
            assert master.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield path
        master.send_signal(signal.SIGTERM)
        assert master.wait(DEADLINE) == 0, log.read_text()
    finally:
        master.kill()
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


def test_gunicorn(gunicorn: Path, place: Store) -> None:
    told = [_ask(gunicorn, f"/view/{n * EACH}") for n in range(REQUESTS)]
    assert len({pid for pid, _ in told}) >= 3, "workers were replaced"
    assert {queues for _, queues in told} == {"1"}
    expected = {("view", n): 1 for n in range(REQUESTS * EACH)} | {("master", 0): 1}
    assert asyncio.run(_stored(place)) == expected


def test_a_pool(environ: dict[str, str], place: Store) -> None:
    assert _python(["-c", POOL], environ) == ["notes"] * 4
    expected = {("pool", n): 1 for n in range(1_000)} | {("parent", 0): 1, ("parent after", 0): 1}
    assert asyncio.run(_stored(place)) == expected
