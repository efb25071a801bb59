"""One shard of a router: a store that may be away, or hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from headrace.core.asking import Asking
from headrace.core.backoff import Backoff
from headrace.core.tasks import Tasks
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend

log = logging.getLogger("headrace")

T = TypeVar("T")
PATIENCE = 1.5
"""Seconds after which a shard that owes an answer is asked for the time. It has as long again to tell it."""
OPENING = 10.0
"""Seconds within which it must open; after that it counts as away, and is opened as soon as it is there."""


class Shard:
    """The same store, which keeps nobody waiting: if it does not even tell the time, it is *away*. Then all its calls
    end with ``Unavailable``, and new ones at once, until it tells the time again. A call that just takes long goes on.
    """

    def __init__(self, name: str, store: Backend, came: Callable[[], None]) -> None:
        """``came`` is called when it is open."""
        self.name = name
        self.store = store
        self._asking = Asking(store, lambda _, call: self.ask(call))
        self.problem = ""
        """Why it is away; empty: it is not."""
        self._came = came
        self._tasks = Tasks()
        self._calls: set[asyncio.Timeout] = set()
        self._heard = False
        """Whether it has answered anything lately."""
        self._watch: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open it, now or as soon as it is there."""
        try:
            async with asyncio.timeout(OPENING):
                await self.store.open()
        except (Unavailable, TimeoutError) as error:
            self._lose(str(error) or f"it did not open within {OPENING:g} s")
        else:
            self.problem = ""
            self._came()

    async def close(self) -> None:
        """Close it."""
        await self._tasks.close()
        await self.store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asking, name)

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to a call, or ``Unavailable`` as soon as the store turns out to be away."""
        if self.problem:
            raise self._unavailable()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._calls.add(limit)
                if self._watch is None or self._watch.done():
                    self._heard = False
                    self._watch = self._tasks.start(self._watch_calls(), "headrace-shard-watch")
                try:
                    answer = await call()
                except Exception:
                    self._heard = True
                    raise
                self._heard = True
                return answer
        except TimeoutError:
            if limit.expired():
                raise self._unavailable() from None
            raise
        finally:
            self._calls.discard(limit)

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"shard {self.name} is away: {self.problem}")

    async def _watch_calls(self) -> None:
        """Ask a store for the time that has answered nothing for a while, though some may have given it up."""
        while self._calls or not self._heard:
            self._heard = False
            await asyncio.sleep(PATIENCE)
            if self._heard:
                continue
            if await self._tells_the_time():
                self._heard = True
                continue
            self._lose(f"expected an answer within {2 * PATIENCE:g} s, got none: it hangs or cannot be reached")
            given_up, self._calls = self._calls, set()
            for limit in given_up:
                limit.reschedule(0)
            return

    async def _tells_the_time(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.store.now()
        except TimeoutError:
            return False
        except Unavailable:
            pass  # it says so itself, to everybody
        return True

    def _lose(self, problem: str) -> None:
        log.warning("shard %s is away; the others go on: %s", self.name, problem)
        self.problem = problem
        if self._return is None or self._return.done():
            self._return = self._tasks.start(self._wait_for_it(), "headrace-shard-return")

    async def _wait_for_it(self) -> None:
        backoff = Backoff(Random())
        while self.problem:
            await asyncio.sleep(backoff.pause())
            try:
                await self.store.open()
                if await self._tells_the_time():
                    self.problem = ""
            except Unavailable as error:
                self.problem = str(error)
            except Exception as error:
                log.exception("shard %s cannot be opened; it is tried again", self.name)
                self.problem = str(error)
        log.warning("shard %s is there again", self.name)
        self._came()
