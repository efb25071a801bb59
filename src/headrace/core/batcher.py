"""Natural batching: the one buffer between callers and a trip to the store.

While one trip is under way, arrivals pile up; the next trip takes them all, up to the limits. At low load a caller
waits for one trip, at high load trips are full, and nothing ever lingers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Generic, TypeVar

from headrace.core.backoff import Backoff
from headrace.core.tasks import Tasks
from headrace.errors import StoreFull, Unavailable

T = TypeVar("T")
R = TypeVar("R")

_Entry = tuple[T, asyncio.Future[R], float]
"""An item, its answer, and when it came."""


class Batcher(Generic[T, R]):
    """Sends items in batches and hands each its answer.

    A trip that fails with ``Unavailable`` is repeated, the same batch first, until ``patience`` seconds have gone by
    since its first item came (None: for ever); the operations behind it are safe to repeat. A full store is told at
    once. A batch that is refused for what is in it is sent item by item: none fails for its neighbours. ``weigh`` and
    ``max_bytes`` bound a batch by size.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R]]],
        tasks: Tasks,
        rng: Random,
        *,
        max_batch: int,
        max_bytes: int | None = None,
        weigh: Callable[[T], int] | None = None,
        patience: float | None = None,
        name: str = "batcher",
    ) -> None:
        self._send = send
        self._tasks = tasks
        self._rng = rng
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._weigh = weigh
        self._patience = patience
        self._name = name
        self._waiting: list[_Entry[T, R]] = []
        self._crowd = 0
        """How many went with the last trip."""
        self._busy = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    def submit(self, item: T) -> asyncio.Future[R]:
        """Put an item in the buffer; the future is its answer, and its proof that it was stored."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future, loop.time()))
        if not self._busy:
            self._busy = True
            self._quiet.clear()
            self._tasks.start(self._run(), self._name)
        return future

    async def put(self, item: T) -> R:
        """The answer to an item. Who comes alone after one that came alone makes the trip himself, which saves a task
        and a turn of the loop; what arrives meanwhile goes with the next."""
        if self._busy or self._crowd > 1:
            return await self.submit(item)
        self._busy = True
        self._quiet.clear()
        try:
            await asyncio.sleep(0)  # a store that answers at once must not keep the others from their turn
            [answer] = await self._send_patiently([item], asyncio.get_running_loop().time(), lambda: True)
        finally:
            if self._waiting:
                self._tasks.start(self._run(), self._name)
            else:
                self._busy = False
                self._quiet.set()
        return answer

    async def flush(self) -> None:
        """Return when everything submitted so far has its answer."""
        await self._quiet.wait()

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._deliver(batch)
        finally:
            self._busy = False
            self._quiet.set()
            for _, future, _ in self._waiting:
                future.cancel()

    def _take(self) -> list[_Entry[T, R]]:
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        count = min(len(waiting), self._max_batch)
        if self._weigh is not None and self._max_bytes is not None:
            weight = 0
            for position in range(count):
                weight += self._weigh(waiting[position][0])
                if weight > self._max_bytes and position > 0:
                    count = position
                    break
        self._waiting = waiting[count:]
        self._crowd = count or self._crowd
        return waiting[:count]

    async def _deliver(self, batch: list[_Entry[T, R]]) -> None:
        try:
            refused = await self._answer(batch)
            if refused is not None and len(batch) > 1:
                for entry in batch:
                    await self._deliver([entry])
            elif refused is not None:
                _fail(batch, refused)
        except BaseException:
            for _, future, _ in batch:
                future.cancel()
            raise

    async def _answer(self, batch: list[_Entry[T, R]]) -> Exception | None:
        """Send the batch, and hand out what comes of it; or say why the store refuses it."""
        items = [item for item, _, _ in batch]
        try:
            answers = await self._send_patiently(
                items, batch[0][2], lambda: any(not entry[1].done() for entry in batch)
            )
            answered = list(zip(batch, answers, strict=True))
        except Unavailable as error:
            _fail(batch, error)
            return None
        except Exception as error:
            return error
        for (_, future, _), answer in answered:
            if not future.done():
                future.set_result(answer)
        return None

    async def send(self, items: list[T]) -> Sequence[R]:
        """Send a batch that is whole already, with the same patience, past the buffer."""
        return await self._send_patiently(items, asyncio.get_running_loop().time(), lambda: True)

    async def _send_patiently(self, items: list[T], since: float, wanted: Callable[[], bool]) -> Sequence[R]:
        """Send until it gets through, patience ends, or nobody waits for the answers any more."""
        backoff = Backoff(self._rng)
        loop = asyncio.get_running_loop()
        deadline = None if self._patience is None else since + self._patience
        while True:
            try:
                return await self._send(items)
            except StoreFull:
                raise
            except Unavailable:
                pause = backoff.pause()
                late = deadline is not None and loop.time() + pause > deadline
                if late or not wanted():
                    raise
                await asyncio.sleep(pause)


def _fail(batch: list[_Entry[T, R]], error: Exception) -> None:
    for _, future, _ in batch:
        if not future.done():
            future.set_exception(error)
