"""The tightest loops over redis-py that make the writes that a job cannot do without: itself and its place."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.system import WARM, Answer, job
from benchmarks.systems.valkey import ValkeySystem

_INSERT = """
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
"""
_CHUNK = 1_000


class BareValkey(ValkeySystem):
    """One call of a script for one job; a pipeline of two commands a job for many. Nothing is run."""

    roles = frozenset({"enqueue", "bulk"})
    distributions = ("redis", "hiredis", "uvloop")

    def __init__(self, name: str) -> None:
        super().__init__(name, "a hash of jobs and a sorted set of their places; a pipeline of two commands a job")

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """One awaited call per job."""

        async def main() -> Answer:
            async with _connected(self.url(place)) as client:
                put, text = client.register_script(_INSERT), job()
                for number in range(WARM):
                    await put(keys=("jobs", "ready"), args=(_id(number), number, text))
                gate.ready()
                start = time.perf_counter()
                for number in range(count):
                    await put(keys=("jobs", "ready"), args=(_id(number), number, text))
                return {"seconds": time.perf_counter() - start, **gate.used()}

        return on_uvloop(main)

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """Many jobs in one go."""

        async def main() -> Answer:
            async with _connected(self.url(place)) as client:
                await self.store(client, WARM)
                gate.ready()
                start = time.perf_counter()
                await self.store(client, count)
                return {"seconds": time.perf_counter() - start, **gate.used()}

        return on_uvloop(main)

    async def store(self, client: Any, count: int) -> None:
        """All of them in one pipeline."""
        text, now = job(), time.time_ns() // 1_000
        pipe = client.pipeline(transaction=False)
        for number in range(count):
            job_id = _id(number)
            pipe.hset("jobs", job_id, text)
            pipe.zadd("ready", {job_id: now})
        await pipe.execute()


class VariadicValkey(BareValkey):
    """As few commands as there can be: what a client costs that pays per batch, not per command."""

    roles = frozenset({"bulk"})

    def __init__(self, name: str) -> None:
        ValkeySystem.__init__(self, name, f"the same writes, two commands for {_CHUNK:,} jobs")

    async def store(self, client: Any, count: int) -> None:
        text, now = job(), time.time_ns() // 1_000
        pipe = client.pipeline(transaction=False)
        for first in range(0, count, _CHUNK):
            ids = [_id(number) for number in range(first, min(first + _CHUNK, count))]
            jobs = [part for job_id in ids for part in (job_id, text)]
            places = [part for job_id in ids for part in (now, job_id)]
            pipe.execute_command("HSET", "jobs", *jobs)
            pipe.execute_command("ZADD", "ready", *places)
        await pipe.execute()


def _connected(url: str) -> Any:
    from redis.asyncio import Redis

    return Redis.from_url(url)


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")
