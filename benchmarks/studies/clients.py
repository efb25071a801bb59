"""What one call of a script costs this process, by the way in which it is sent: redis-py's client, its bare connection,
and the connection that Headrace has of its own.

``python -m benchmarks.studies.clients`` takes half a minute. What counts is the CPU time of this process: a busy
machine changes it less than seconds on the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hiredis
import uvloop
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from servers.valkey import Valkey

from benchmarks.machine import Cores, facts, on_core
from benchmarks.results import HOME, aligned, shown
from headrace.backends.redis.connection import connect
from headrace.backends.redis.endpoint import Address, parse

OUTPUT = HOME / "clients.jsonl"
LOOPS: dict[str, Callable[[Any], Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}
_SCRIPT = "return redis.call('SET', KEYS[1], ARGV[1])"
_BODY = b"x" * 200


@dataclass(frozen=True)
class Cell:
    """One way on one loop; microseconds per call, medians."""

    loop: str
    way: str
    client: float
    wall: float


async def measure(server: Valkey, loop: str, calls: int, times: int) -> list[Cell]:
    """All ways in turns."""
    client = Redis.from_url(server.url(), retry=Retry(NoBackoff(), 0))
    bare = client.connection_pool.make_connection()
    connection = await connect(parse(server.url(), {}, "valkey"), Address("127.0.0.1", server.port), limit=10.0)
    try:
        digest = await client.script_load(_SCRIPT)
        await bare.connect()
        request = ("EVALSHA", digest, 1, "key", _BODY)
        packed = hiredis.pack_command(request)  # type: ignore[arg-type]

        async def through_connection() -> object:
            await bare.send_packed_command(packed, check_health=False)
            return await bare.read_response()

        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "redis-py, client": lambda: client.execute_command(*request),  # type: ignore[no-untyped-call]
            "redis-py, connection": through_connection,
            "headrace": lambda: connection.call(*request),
        }
        rounds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(times):
            for way, call in ways.items():
                rounds[way].append(await _timed(call, calls))
    finally:
        connection.end()
        await bare.disconnect()
        await client.aclose()
    return [
        Cell(loop, way, *[statistics.median(part) for part in zip(*found, strict=True)])
        for way, found in rounds.items()
    ]


async def _timed(call: Callable[[], Awaitable[object]], calls: int) -> tuple[float, float]:
    used, began = time.process_time(), time.perf_counter()
    for _ in range(calls):
        await call()
    return (time.process_time() - used) / calls * 1e6, (time.perf_counter() - began) / calls * 1e6


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [("loop", "way", "client us/call", "wall us/call")]
    rows += [(c.loop, c.way, shown(c.client), shown(c.wall)) for c in cells]
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.clients", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few calls, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    calls, times = (50, 1) if given.quick else (5_000, 5)
    cores = Cores.pick()
    server = Valkey()
    try:
        with on_core(cores.other):
            server.start()
        with on_core(cores.measured):
            cells = [cell for loop, run in LOOPS.items() for cell in run(measure(server, loop, calls, times))]
    finally:
        server.close()
    lines = [
        {"kind": "run", "machine": facts(Path(tempfile.gettempdir()))},
        *[{"kind": "cell", **asdict(cell)} for cell in cells],
    ]
    given.output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
