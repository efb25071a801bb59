"""Patience: a call is repeated while the store is away, and given up if the store hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Generic, TypeVar, cast

from headrace.core.alerts import moment
from headrace.core.asking import Asking
from headrace.core.backoff import Backoff
from headrace.errors import StoreFull, Unavailable
from headrace.seam.protocol import Backend

T = TypeVar("T")
R = TypeVar("R")

GRACE = 1.0
"""Seconds that an answer may take longer than patience lasts: with little patience, a call still has some time."""
SLOWEST = 256 * 1024
"""Bytes a second. A request that takes longer than patience at this rate has the time that it takes."""


def _light(item: object) -> int:
    return 0


class Wait(Generic[T]):
    """Waits for one answer after the other, and gives up a call that is not answered in time.

    Its timer is set if there is none, and stays when an answer comes: so a call costs neither a timer nor a task.
    """

    __slots__ = ("_asked", "_began", "_items", "_seconds", "_task", "_timer", "_weigh")

    def __init__(self, seconds: float, weigh: Callable[[T], int] = _light) -> None:
        self._seconds = seconds
        self._weigh = weigh
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        """Waits now; None: nobody does, or the call has been given up."""
        self._asked = 0
        """How often others had asked it to end when it began to wait."""
        self._began = 0.0
        self._items: Sequence[T] = ()

    async def answer(self, call: Awaitable[R], began: float, items: Sequence[T] = ()) -> R:
        """The answer to a call that sends ``items``; raises ``Unavailable`` if there is none so long after its caller
        ``began`` to wait."""
        loop = asyncio.get_running_loop()
        task: asyncio.Task[Any] = asyncio.current_task(loop)  # type: ignore[assignment]  # an assert would cost time
        self._task = task
        self._asked = task.cancelling()
        self._began = began
        self._items = items
        if self._timer is None:
            self._timer = loop.call_at(began + self._seconds + GRACE, self._look)
        try:
            return await call
        except BaseException as error:
            if not self._gave_up(task) or not isinstance(error, asyncio.CancelledError):
                raise
            raise Unavailable(
                f"expected an answer from the store within {self._seconds:.3g} s, got none in "
                f"{loop.time() - began:.3g} s: it hangs, is locked or cannot be reached; check it, then try again"
            ) from None
        finally:
            self._task = None
            self._items = ()

    def _gave_up(self, task: asyncio.Task[Any]) -> bool:
        """Whether the task was cancelled for want of an answer, and for nothing else."""
        return self._task is None and task.uncancel() <= self._asked

    def _look(self) -> None:
        self._timer = None
        task = self._task
        if task is None:
            return
        loop = asyncio.get_running_loop()
        deadline = self._began + max(self._seconds + GRACE, sum(map(self._weigh, self._items)) / SLOWEST)
        if loop.time() < deadline:
            self._timer = loop.call_at(deadline, self._look)
        else:
            self._task = None
            task.cancel()

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()


class Patience:
    """For how long a caller waits, whatever the store does."""

    def __init__(self, rng: Random, seconds: float, took: Callable[[str, float], None] | None = None) -> None:
        """``took`` is told how many seconds each call of a kept store took."""
        self._rng = rng
        self.seconds = seconds
        self._took = took

    async def once(self, call: Awaitable[R]) -> R:
        """The answer to the call, or ``Unavailable``."""
        wait: Wait[object] = Wait(self.seconds)
        try:
            return await wait.answer(call, asyncio.get_running_loop().time())
        finally:
            wait.close()

    async def repeat(
        self,
        call: Callable[[], Awaitable[R]],
        items: Sequence[T] = (),
        weigh: Callable[[T], int] = _light,
        *,
        final: type[Exception] = StoreFull,
    ) -> R:
        """The answer to the call, which is repeated with growing pauses and must be safe to repeat; or the last
        ``Unavailable``. An error that is also ``final`` is raised at once. A call that sends heavy ``items`` has more
        time."""
        backoff, wait = Backoff(self._rng), Wait(self.seconds, weigh)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while True:
                try:
                    return await wait.answer(call(), began, items)
                except Unavailable as error:
                    pause = backoff.pause()
                    if isinstance(error, final) or loop.time() + pause > began + self.seconds:
                        raise
                    await asyncio.sleep(pause)
        finally:
            wait.close()

    def kept(self, backend: Backend) -> Backend:
        """The same store. Its calls, also those of its capabilities, are made once and given up in time."""
        return cast("Backend", Asking(backend, self._ask))

    async def _ask(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        began = moment()
        try:
            return await self.once(call())
        except Unavailable as error:
            if name not in _CHANGES or type(error) is not Unavailable:
                raise
            doubt = "The change may have been made all the same: look before you make it again"
            raise Unavailable(f"{error}. {doubt}") from error.__cause__
        finally:
            if self._took is not None:
                self._took(name, moment() - began)


_CHANGES = frozenset(
    {
        "add_ticks", "alter", "arrive", "backfill", "close_leg", "confirm", "create", "delete", "depart",
        "forget_removals", "hold_keys", "limit", "note", "open_leg", "pause", "plan", "prepare", "put", "save", "send",
        "swap", "update", "write",
    }
)  # fmt: skip
