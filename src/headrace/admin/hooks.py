"""Hooks for alerts: each is told in order, and nobody waits for a slow one."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from headrace.admin.firing import AlertChange

log = logging.getLogger("headrace.alerts")

Hook = Callable[[AlertChange], Awaitable[None] | None]
"""Told of every change. One that raises is logged, and told of the next change all the same."""
_BEHIND = 1_000
"""Changes that a hook may be behind; then it loses the oldest."""


class Hooks:
    """Tells hooks of changes."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._lines = [_Line(hook) for hook in hooks]

    def tell(self, change: AlertChange) -> None:
        """Hooks that are plain functions have been called when this returns; others are called on the running loop."""
        for line in self._lines:
            line.tell(change)

    async def told(self) -> None:
        """Wait until all have been told everything."""
        await asyncio.gather(*(line.task for line in self._lines if line.task is not None))

    async def close(self) -> None:
        """Tell nothing more."""
        for line in self._lines:
            if line.task is not None:
                line.task.cancel()
        await asyncio.gather(*(line.task for line in self._lines if line.task is not None), return_exceptions=True)


class _Line:
    """What one hook is still to be told."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._waiting: deque[AlertChange] = deque(maxlen=_BEHIND)
        self.task: asyncio.Task[None] | None = None

    def tell(self, change: AlertChange) -> None:
        self._waiting.append(change)
        if self.task is None or self.task.done():
            answer = self._call()
            if answer is not None:
                self.task = asyncio.get_running_loop().create_task(self._go_on(answer), name="headrace-alert-hook")

    def _call(self) -> Awaitable[None] | None:
        """Call a plain function with all that waits, or begin a call that has to be waited for."""
        while self._waiting:
            try:
                answer = self._hook(self._waiting.popleft())
            except Exception:
                log.exception("a hook for alerts raised")
                continue
            if inspect.isawaitable(answer):
                return answer
        return None

    async def _go_on(self, answer: Awaitable[None] | None) -> None:
        while answer is not None:
            try:
                await answer
            except Exception:
                log.exception("a hook for alerts raised")
            answer = self._call()
