"""The ceiling on Valkey: a worker with nothing but asyncio, batches, decoded no-op jobs and their acknowledgement.

A stream, read by a group. The next batch is on its way while one runs, and what has run is acknowledged and deleted
with the read after that. The jobs of a batch run at the same time, each in a task of its own, as handlers may wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.resp import Resp
from benchmarks.systems.system import WARM, Answer, job
from benchmarks.systems.valkey import ValkeySystem

_BATCH = 200
_CHUNK = 1_000
_BLOCK = 100
"""Milliseconds that the server holds a read of an empty stream."""


class MinimalValkey(ValkeySystem):
    """The group knows what is not acknowledged, so a crash could be recovered from; no record, retries, schedules,
    priorities or results."""

    roles = frozenset({"fill", "work", "watch", "produce"})
    distributions = ("hiredis", "redis", "msgspec", "uvloop")
    unfinished = "call('XLEN', 'bench') > 0"

    def __init__(self, name: str) -> None:
        super().__init__(
            name, f"a stream, batches of {_BATCH}, a task per job, hiredis on a protocol of its own, uvloop"
        )

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""

        async def main() -> Answer:
            gate.ready()
            await _fill(self.url(place), count)
            return {}

        answer = on_uvloop(main)
        self.settle(place)
        return answer

    def work(self, gate: Gate, place: str) -> Answer:
        """Run jobs until told to stop; the latencies of those that say when they were sent."""

        async def main() -> Answer:
            await _fill(self.url(place, "warm"), WARM)
            await _run(self.url(place, "warm"), lambda: None, lambda ran: ran >= WARM)
            latencies = await _run(self.url(place), gate.ready, lambda ran: gate.stopped)
            return {"latencies": latencies, **gate.used()}

        return on_uvloop(main)

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until the server has none left."""

        async def main() -> Answer:
            line = await Resp.connect(self.url(place))
            gate.ready()
            for _ in range(count):
                await asyncio.sleep(gap)
                await line.ask(("XADD", "bench", "*", "j", f'{{"sent": {time.monotonic_ns()}}}'))
            while (await line.ask(("XLEN", "bench")))[0]:
                await asyncio.sleep(gap)
            return {}

        return on_uvloop(main)


async def _fill(url: str, count: int) -> None:
    line, text = await Resp.connect(url), job()
    for first in range(0, count, _CHUNK):
        await line.ask(*[("XADD", "bench", "*", "j", text)] * min(_CHUNK, count - first))
    line.close()


async def _run(url: str, ready: Callable[[], None], over: Callable[[int], bool]) -> list[int]:
    import hiredis
    import msgspec

    decode, start = msgspec.json.Decoder().decode, asyncio.get_running_loop().create_task
    line = await Resp.connect(url)
    try:
        await line.ask(("XGROUP", "CREATE", "bench", "workers", "0", "MKSTREAM"))
    except hiredis.ReplyError:
        pass  # there is one
    done: list[bytes] = []
    latencies: list[int] = []

    async def run(number: bytes, payload: bytes) -> None:
        await _noop(latencies, **decode(payload))
        done.append(number)

    ready()
    coming, ran = line.ask(_read()), 0
    while not over(ran):
        *_, found = await coming
        ran += len(done)
        coming = line.ask(*_ended(done), _read(block=not (found or done)))
        done.clear()
        running = [start(run(number, fields[1])) for _, entries in found or () for number, fields in entries]
        while len(done) < len(running):
            await asyncio.sleep(0)
    await coming
    line.close()
    return latencies


def _read(*, block: bool = False) -> tuple[Any, ...]:
    held = ("BLOCK", _BLOCK) if block else ()
    return ("XREADGROUP", "GROUP", "workers", "one", "COUNT", _BATCH, *held, "STREAMS", "bench", ">")


def _ended(done: list[bytes]) -> list[tuple[Any, ...]]:
    return [("XACK", "bench", "workers", *done), ("XDEL", "bench", *done)] if done else []


async def _noop(latencies: list[int], n: int = 0, pad: str = "", sent: int = 0) -> None:
    if sent:
        latencies.append(time.monotonic_ns() - sent)
