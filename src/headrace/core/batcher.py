"""Natural batching: the one buffer between callers and a trip to the store.

While one trip is under way, arrivals pile up; the next trip takes them all, up to the limits. At low load a caller
waits for one trip, at high load trips are full, and nothing ever lingers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from random import Random
from typing import Generic, TypeVar

from headrace.core.backoff import Backoff
from headrace.core.patience import GRACE, Wait
from headrace.core.tasks import Tasks
from headrace.errors import PartlyUnavailable, StoreFull, Unavailable

T = TypeVar("T")
R = TypeVar("R")

_Entry = tuple[T, asyncio.Future[R], float]
"""An item, its answer, and when it arrived."""
_YIELD_EVERY = 16
"""Lone items that may follow each other without a turn of the loop."""


class Batcher(Generic[T, R]):
    """Sends items in batches and hands each its answer.

    A trip that fails with ``Unavailable`` is repeated until ``patience`` seconds after an item arrived; the operations
    behind it are safe to repeat. A trip without an answer is given up when its oldest item has waited that long.
    Meanwhile its items are set aside, grouped by ``apart``: if only part of a store is reachable, items for the
    reachable part do not wait. ``PartlyUnavailable`` says which have their answers already. ``StoreFull`` is raised at
    once. If the store rejects a batch for its contents, the items are sent one by one, so that none fails because of
    its neighbours. ``weigh`` and ``max_bytes`` bound a batch by size.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R]]],
        tasks: Tasks,
        rng: Random,
        *,
        patience: float,
        max_batch: int,
        max_bytes: int | None = None,
        weigh: Callable[[T], int] = lambda item: 0,
        apart: Callable[[T], Hashable] = lambda item: None,
        name: str = "batcher",
    ) -> None:
        self._send = send
        self._tasks = tasks
        self._rng = rng
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._weigh = weigh
        self._patience = patience
        self._wait = Wait(patience, weigh)
        """For the answer to the one trip under way; not for those of items that were set aside."""
        self._apart = apart
        self._name = name
        self._waiting: list[_Entry[T, R]] = []
        self._aside: dict[Hashable, list[_Entry[T, R]]] = {}
        """Items that wait for their part of the store to come back."""
        self._crowd = 0
        """How many items the last trip carried."""
        self._alone = 0
        """How many lone items were sent since other coroutines got to run."""
        self._busy = False
        self._quiet: asyncio.Event | None = None
        """Set when nothing is under way; there only if somebody waits for that."""

    def submit(self, item: T) -> asyncio.Future[R]:
        """Buffer an item. The future holds its answer, which proves that it was stored."""
        entry = self._entry(item)
        aside = self._aside.get(self._apart(item))
        if aside is not None:
            aside.append(entry)
            return entry[1]
        self._waiting.append(entry)
        if not self._busy:
            self._busy = True
            self._tasks.start(self._run(), self._name)
        return entry[1]

    def _entry(self, item: T) -> _Entry[T, R]:
        loop = asyncio.get_running_loop()
        return item, loop.create_future(), loop.time()

    async def put(self, item: T) -> R:
        """The answer to an item. A lone item that follows a lone item is sent directly, which saves a task and a turn
        of the loop; what arrives meanwhile goes with the next trip."""
        if self._busy or self._crowd > 1 or self._aside:
            return await self.submit(item)
        self._busy = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._alone = (self._alone + 1) % _YIELD_EVERY
            if not self._alone:  # a store that answers at once must not starve other coroutines
                await asyncio.sleep(0)
            items = [item]
            [answer] = await self._wait.answer(self._send(items), began, items)
            return answer
        except StoreFull:
            raise
        except Unavailable as error:
            entry: _Entry[T, R] = (item, loop.create_future(), began)
            self._set_aside([entry], error)
        finally:
            if self._waiting:
                self._tasks.start(self._run(), self._name)
            else:
                self._busy = False
                self._rest()
        return await entry[1]

    @property
    def quiet(self) -> bool:
        """Whether everything that was submitted has its answer."""
        return not (self._busy or self._aside)

    async def flush(self) -> None:
        """Return when everything submitted so far has its answer."""
        if not self.quiet:
            self._quiet = self._quiet or asyncio.Event()
            await self._quiet.wait()

    async def _run(self) -> None:
        batch: list[_Entry[T, R]] = []
        try:
            while batch := self._take():
                try:
                    await self._deliver(batch, self._wait)
                except Unavailable as error:
                    self._set_aside(batch, error)
                    batch = []
        finally:
            self._busy = False
            self._rest()
            for _, future, _ in (*batch, *self._waiting):
                future.cancel()

    def _rest(self) -> None:
        if self._quiet is not None and not self._busy and not self._aside:
            self._quiet.set()
            self._quiet = None

    def _take(self) -> list[_Entry[T, R]]:
        batch, self._waiting = self._split(self._waiting)
        self._crowd = len(batch) or self._crowd
        return batch

    def _split(self, entries: list[_Entry[T, R]]) -> tuple[list[_Entry[T, R]], list[_Entry[T, R]]]:
        """What goes with the next trip, and what is left. Items that nobody waits for any more are dropped."""
        waiting = [entry for entry in entries if not entry[1].done()]
        count = min(len(waiting), self._max_batch)
        if self._max_bytes is not None:
            weight = 0
            for position in range(count):
                weight += self._weigh(waiting[position][0])
                if weight > self._max_bytes and position > 0:
                    count = position
                    break
        return waiting[:count], waiting[count:]

    async def _deliver(self, batch: list[_Entry[T, R]], wait: Wait[T]) -> None:
        """Send the batch and hand out the answers. After ``Unavailable``, items without an answer may be sent again."""
        try:
            items = [item for item, _, _ in batch]
            answers = await wait.answer(self._send(items), min(began for _, _, began in batch), items)
            found = list(zip(batch, answers, strict=True))
        except StoreFull as error:
            _fail(batch, error)
        except PartlyUnavailable as error:
            batch[:] = _hand_out(batch, error)
            raise
        except Unavailable:
            raise
        except Exception as refused:
            if len(batch) == 1:
                _fail(batch, refused)
            else:
                for entry in batch:
                    await self._deliver([entry], wait)
        else:
            for (_, future, _), answer in found:
                if not future.done():
                    future.set_result(answer)

    # -- while the store is away, or a part of it

    def _set_aside(self, batch: list[_Entry[T, R]], error: Unavailable) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = self._patient(self._waiting, loop.time(), error)
        for entry in batch:
            part = self._apart(entry[0])
            if part not in self._aside:
                self._aside[part] = []
                self._tasks.start(self._persist(part, error), f"{self._name}-again")
            self._aside[part].append(entry)
            _, future, began = entry  # a trip for items that arrived later may be under way
            loop.call_at(began + self._patience + GRACE, _end, future, error)

    async def _persist(self, part: Hashable, error: Unavailable) -> None:
        """Repeat the items of one part until they get through, their patience ends, or nobody waits for them."""
        backoff, wait = Backoff(self._rng), Wait(self._patience, self._weigh)
        loop = asyncio.get_running_loop()
        pause = backoff.pause()
        batch: list[_Entry[T, R]] = []
        try:
            while True:
                self._aside[part] = self._patient(self._aside[part], loop.time() + pause, error)
                if not self._aside[part]:
                    break
                await asyncio.sleep(pause)
                batch, self._aside[part] = self._split(self._aside[part])
                if not batch:
                    break
                try:
                    await self._deliver(batch, wait)
                    pause = 0.0
                except Unavailable as again:
                    error, pause = again, backoff.pause()
                    self._aside[part][:0] = batch
        finally:
            wait.close()
            for _, future, _ in (*batch, *self._aside.pop(part)):
                future.cancel()
            self._rest()

    def _patient(self, entries: list[_Entry[T, R]], by: float, error: Unavailable) -> list[_Entry[T, R]]:
        """Those that may still wait ``by`` then; the others fail."""
        last = by - self._patience
        _fail([entry for entry in entries if entry[2] < last], error)
        return [entry for entry in entries if entry[2] >= last]


def _hand_out(batch: list[_Entry[T, R]], error: PartlyUnavailable) -> list[_Entry[T, R]]:
    """Give those their answers that have one; returns the others."""
    for position, (_, future, _) in enumerate(batch):
        if position not in error.unanswered and not future.done():
            future.set_result(error.answers[position])
    return [entry for position, entry in enumerate(batch) if position in error.unanswered]


def _fail(batch: list[_Entry[T, R]], error: Exception) -> None:
    for _, future, _ in batch:
        _end(future, error)


def _end(future: asyncio.Future[R], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
