"""One helper that enqueues, called from everywhere: a view, a plain task, an async task, threads, forked children and a
shell. Nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.api.info import job_info
from headrace.seam.records import Selector
from tests.facades.harness import Store, within

EACH = 1_000
SHOP = """
import os
from headrace import App, never

app = App(os.environ["SHOP_URL"])

@app.task(queue="notes")
def note(place: str, n: int) -> None: ...

def remember(place: str, count: int) -> int:
    \"""The helper: it does not care where it is called.\"""
    for n in range(count):
        note.enqueue_sync(place, n)
    return count

@app.task(queue="work", retry=never())
def plain(count: int) -> int:
    return remember("def task", count)

@app.task(queue="work", retry=never())
async def awaited(count: int) -> int:
    return remember("async task", count)
"""
PROGRAM = """
import asyncio, logging, os, threading
from wsgiref.util import setup_testing_defaults
import shop

EACH = {each}

def view(environ, start_response):
    shop.remember("view", EACH)
    start_response("204 No Content", [])
    return []

environ = {{}}
setup_testing_defaults(environ)
view(environ, lambda *given: None)

halves = [threading.Thread(target=shop.remember, args=("thread", EACH // 2)) for _ in range(2)]
for thread in halves:
    thread.start()

children = []
for _ in range(2):  # forked while the threads above are at work, and the background has connections
    if (child := os.fork()) == 0:
        try:
            shop.remember("forked child", EACH // 2)
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    children.append(child)
for thread in halves:
    thread.join()
print(*[os.waitpid(child, 0)[1] for child in children])

async def work():
    async with shop.app:
        both = [await shop.plain.enqueue(EACH), await shop.awaited.enqueue(EACH)]
        await shop.app.drain(["work"])
        return [await handle.result() for handle in both]

print(*asyncio.run(work()))
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
def test_none_lost_and_none_twice(kind: str, tmp_path: Path) -> None:
    place = Store(kind, tmp_path)
    asyncio.run(_make(place))
    (tmp_path / "shop.py").write_text(SHOP)
    environ = os.environ | {"SHOP_URL": place.url, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    told = _python(["-c", PROGRAM.format(each=EACH)], environ)
    assert told == ["0", "0", str(EACH), str(EACH)]
    shell = "\n".join([f"import shop; shop.remember('shell', {EACH})", "print('bye')"])
    assert _python(["-i", "-q"], environ, shell + "\n") == [str(EACH), "bye"]
    halves = ("thread", "forked child")
    expected = {
        (where, n): 2 if where in halves else 1
        for where in ("view", "shell", "def task", "async task", *halves)
        for n in range(EACH // 2 if where in halves else EACH)
    }
    assert asyncio.run(_stored(place)) == expected


def _python(arguments: list[str], environ: dict[str, str], given: str = "") -> list[str]:
    program = [sys.executable, *arguments]
    done = subprocess.run(program, env=environ, input=given, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


async def _make(place: Store) -> None:
    """Nobody competes to make the schema."""
    await place.count()


async def _stored(place: Store) -> Counter[tuple[Any, Any]]:
    client, found = place.client(), Counter[tuple[Any, Any]]()
    backend, after = await client.backend(), None
    while True:
        page = await backend.scan(Selector(queue="notes"), after, 500)
        records = await backend.fetch([record.id for record in page.records], frozenset({"parameters"}))
        for record in records:
            assert record is not None
            args = job_info(record, client.packer.envelope).args
            found[args["place"], args["n"]] += 1
        if (after := page.after) is None:
            break
    await client.close()
    return found


async def test_threads_and_loops_at_once(memory: Store) -> None:
    """Sync callers come and go while the app is opened and closed on a loop: each call finds a home."""
    app = memory.app()

    @app.task
    def note(n: int) -> None: ...

    stop = threading.Event()
    counts = [0] * 3

    def hammer(i: int) -> None:
        while not stop.is_set():
            note.enqueue_sync(i)
            counts[i] += 1

    threads = [threading.Thread(target=hammer, args=(i,), daemon=True) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    for _ in range(30):
        async with app:
            await note.enqueue(9)
    stop.set()
    for thread in threads:
        await within(asyncio.to_thread(thread.join, 60))
    assert await memory.count() == sum(counts) + 30
