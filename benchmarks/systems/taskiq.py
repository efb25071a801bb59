"""taskiq: an asyncio framework with two brokers, a list that is popped and a stream that is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.system import Answer
from benchmarks.systems.valkey import ValkeySystem

_SLOTS = 100
_PATIENCE = 0.5
_STREAM = """
    (function()
        for _, group in ipairs(call('XINFO', 'GROUPS', 'bench')) do
            for place = 1, #group, 2 do
                local name, value = group[place], group[place + 1]
                if (name == 'pending' or name == 'lag') and value ~= 0 then return true end
            end
        end
        return false
    end)()
"""


class Taskiq(AsyncPeer, ValkeySystem):
    """Its receiver, as its own command runs it."""

    packages = ("taskiq-redis", "hiredis", "uvloop")
    distributions = ("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop")
    roles = AsyncPeer.roles - {"bulk"}

    def __init__(self, name: str, broker: str) -> None:
        promise = "at most once (popped from a list)" if broker == "list" else "at least once (stream)"
        super().__init__(name, f"{promise}, {_SLOTS} tasks at once (its default), no results, uvloop")
        self._broker = broker

    @property
    def unfinished(self) -> str:  # type: ignore[override]
        return "call('LLEN', 'bench') > 0" if self._broker == "list" else _STREAM

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        return on_uvloop(main)

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        from taskiq_redis import ListQueueBroker, RedisStreamBroker

        logging.getLogger("taskiq").setLevel(logging.WARNING)
        made = ListQueueBroker if self._broker == "list" else RedisStreamBroker
        broker = made(url, queue_name="bench")
        session = _Session(broker)
        await broker.startup()
        try:
            yield session
        finally:
            await broker.shutdown()


class _Session(Session):
    def __init__(self, broker: Any) -> None:
        super().__init__()
        self._broker = broker

        async def noop(n: int, pad: str) -> None:
            self.ran += 1

        async def stamp(sent: int) -> None:
            self.latencies.append(time.monotonic_ns() - sent)

        self._noop = broker.register_task(noop, task_name="noop")
        self._stamp = broker.register_task(stamp, task_name="stamp")

    async def put(self) -> None:
        await self._noop.kiq(**payload())

    async def stamp(self) -> None:
        await self._stamp.kiq(time.monotonic_ns())

    async def work(self, stop: asyncio.Event) -> None:
        from taskiq.receiver import Receiver

        receiver = Receiver(self._broker, max_async_tasks=_SLOTS, run_startup=False)
        listening = asyncio.ensure_future(receiver.listen(stop))
        await stop.wait()
        while not (await asyncio.wait([listening], timeout=_PATIENCE))[0]:
            await self.put()  # its read now and then survives being cancelled, and ends only when it finds something
        await listening
