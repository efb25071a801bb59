"""Producers that keep a store busy, whatever happens to it, and remember what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from headrace import App, NewJob
from headrace.errors import HeadraceError, Unavailable
from headrace.seam.records import JobId

PRODUCERS = 2
CHUNK = 50
SINGLE = 0.02
"""Seconds between two jobs that come one by one: most of a producer's come so, and take a way of their own."""
LONG = 40
"""Every so many jobs comes one that takes two seconds: longer than the server needs to come back."""
WEIGHT = 1_200_000
"""Bytes of a heavy job when it is packed: PostgreSQL gets it in two statements of one transaction."""


class Load:
    """``rate`` jobs a second, and a few that come one by one, for as long as nobody says that it is enough."""

    def __init__(self, app: App, rate: float, *, heavy: int = 0) -> None:
        """``heavy``: every batch has one more job, of so many bytes."""
        self._app = app
        self._heavy = heavy
        self._pause = PRODUCERS * CHUNK / rate
        self.acknowledged: dict[JobId, int] = {}
        """When the store said that it has each job, by the machine's monotonic clock, in nanoseconds."""
        self.asked: set[JobId] = set()
        self.given_up = 0
        self.refused: list[HeadraceError] = []
        self.enough = False
        self.answers: list[int] = []
        """When it said so at all."""

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """All producers: of batches, and one of jobs that come one by one."""
        batches = [group.create_task(self._produce(self._batch, self._pause)) for _ in range(PRODUCERS)]
        return [*batches, group.create_task(self._produce(self._single, SINGLE))]

    def _batch(self) -> list[NewJob]:
        work: Any = self._app.tasks["work"]
        walk: Any = self._app.tasks["walk"]
        carry: Any = self._app.tasks["carry"]
        batch = [walk.job(40) if number % LONG == 0 else work.job(number) for number in range(CHUNK)]
        if self._heavy:
            batch.append(carry.job(random.randbytes(self._heavy).hex()))
        return batch

    def _single(self) -> list[NewJob]:
        work: Any = self._app.tasks["work"]
        return [work.job(0)]

    async def _produce(self, make: Callable[[], list[NewJob]], pause: float) -> None:
        while not self.enough:
            batch = make()
            self.asked |= {job.id for job in batch}
            try:
                stored = await self._app.client.insert(batch)
            except Unavailable:
                self.given_up += 1
            except HeadraceError as error:
                self.refused.append(error)
            else:
                self.answers.append(time.monotonic_ns())
                self.acknowledged |= {answer.id: self.answers[-1] for answer in stored}
            await asyncio.sleep(pause)

    def acknowledges_since(self, instant: int) -> bool:
        """Whether the store has taken jobs after that."""
        return bool(self.answers) and self.answers[-1] > instant
