"""Sends parts that handlers hand over before they return."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from headrace.core.batcher import Batcher
from headrace.core.clock import Clock
from headrace.core.tasks import Tasks
from headrace.errors import ConfigError, PayloadTooLarge
from headrace.payloads.codec import JsonSerde
from headrace.payloads.pack import Packer
from headrace.seam.parts import LARGEST, Part
from headrace.seam.protocol import Backend
from headrace.seam.records import Leased

_ANY = JsonSerde[Any]()


class PartSender:
    """Takes parts to the store: one trip at a time, for all jobs of a worker together."""

    def __init__(self, backend: Backend, clock: Clock, packer: Packer, rng: Random, patience: float) -> None:
        self._backend = backend
        self._clock = clock
        self._packer = packer
        self._tasks = Tasks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batcher: Batcher[Part, None] = Batcher(
            self._send,
            self._tasks,
            rng,
            patience=patience,
            max_batch=backend.limits.max_batch,
            max_bytes=4 * 1024 * 1024,
            weigh=lambda part: len(part.body),
            name="headrace-parts",
        )

    def start(self) -> None:
        """Called on the consumer's loop."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Send no more."""
        await self._tasks.close()

    def part(self, leased: Leased, number: int, value: Any) -> Part:
        """The value as a part. Raises ``PayloadError``."""
        cell = self._packer.seal_result(self._packer.wrap_value(value, _ANY, "part"), leased.id)
        if len(cell) > LARGEST:
            raise PayloadTooLarge(f"part: expected at most {LARGEST:,} bytes, got {len(cell):,}; send it in pieces")
        return Part(leased.id, leased.epoch, number, cell)

    async def send(self, part: Part) -> None:
        """Return when the store has it."""
        if self._backend.parts is None:
            raise ConfigError("this store keeps no parts of results; return what you have at the end")
        await self._batcher.put(part)

    def wait_for(self, sending: Coroutine[Any, Any, None]) -> None:
        """Block this thread until a part was sent."""
        if self._loop is None or asyncio._get_running_loop() is not None:
            sending.close()
            raise ConfigError("send_sync would block the event loop that runs here; await job.send(…) instead")
        asyncio.run_coroutine_threadsafe(sending, self._loop).result()

    async def _send(self, parts: list[Part]) -> list[None]:
        assert self._backend.parts is not None
        await self._backend.parts.send(parts, self._clock.stamp())
        return [None] * len(parts)
