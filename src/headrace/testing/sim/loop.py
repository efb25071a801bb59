"""An event loop whose time is virtual and whose order is drawn from a seed.

When nothing is ready, the clock jumps to the next timer, so a year of sleeping costs nothing; when no timer is left
either, nothing can ever happen again, and that is reported as a :class:`Deadlock`. Stock ``asyncio`` runs on it:
tasks, timeouts, task groups, queues. There is no I/O and there are no threads: executors run their work inline.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, TypeVar

from headrace.testing.sim.nodes import Node
from headrace.testing.sim.ready import Ready, SimTask

T = TypeVar("T")

_STANDSTILL = 200_000
"""Turns of the loop without a step in time that count as going round in circles."""

_CANCELLATIONS = 20


class Deadlock(RuntimeError):
    """No callback is ready and no timer is set, so no task can ever go on."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__(f"nothing is scheduled, and these tasks wait for ever: {', '.join(waiting) or 'none'}")
        self.waiting = waiting


class Livelock(RuntimeError):
    """Callbacks keep each other busy and time stands still."""


class _Selector(selectors.BaseSelector):
    """Never waits: a wait for so long moves the loop's clock by so much."""

    def __init__(self) -> None:
        self.now = 0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock([])
        step = round(timeout * 1e6)
        self.now += step
        self._turns = 0 if step else self._turns + 1
        if self._turns > _STANDSTILL:
            self._turns = 0
            raise Livelock(f"{_STANDSTILL} turns of the loop without a step in time, at {self.now} µs")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise RuntimeError("there is no I/O in a simulation: give the code a simulated port instead of a socket")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class SimLoop(asyncio.SelectorEventLoop):
    """Virtual time in whole microseconds from 0, and a scheduler that draws lots from ``seed``."""

    def __init__(self, seed: int | str = 0) -> None:
        self._sim_selector = _Selector()
        super().__init__(self._sim_selector)
        # With the default of 1 ns the loop would spin for ever once a float second is coarser than that.
        self._clock_resolution = 1e-6
        self.nodes: list[Node] = []
        nothing = asyncio.Handle(_do_nothing, (), self)
        nothing.cancel()
        self._ready = Ready(Random(f"{seed}:loop"), nothing)
        self._made = 0
        self._failures: list[BaseException] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        return self._sim_selector.now / 1e6

    @property
    def micros(self) -> int:
        """Virtual time as it is kept."""
        return self._sim_selector.now

    def unpark(self, handle: asyncio.Handle) -> None:
        """A callback of a node that stood still may run again."""
        self._ready.append(handle)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run ``func`` on this very loop, in one of its next turns."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_soon(work)
        return future

    def run_until_complete(self, future: Any) -> Any:
        try:
            return super().run_until_complete(future)
        except Deadlock:
            raise Deadlock(sorted(describe(task) for task in asyncio.all_tasks(self))) from None

    def dispose(self) -> None:
        """Cancel what is left, frozen and killed nodes included, and close.

        Raises the first error that nobody has seen: of a callback, or of a task that was never awaited.
        """
        if self.is_closed():
            return
        try:
            for node in self.nodes:
                node.frozen = node.dead = False
                node.release()
            self._cancel_all()
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()
        if self._failures:
            raise self._failures[0]

    def _cancel_all(self) -> None:
        """Several times if need be: a task that is being stopped already may take the first for part of that."""
        for _ in range(_CANCELLATIONS):
            if not (left := asyncio.all_tasks(self)):
                return
            for task in left:
                task.cancel()
            done, _ = self.run_until_complete(asyncio.wait(left, timeout=60))
            for task in done:
                task.cancelled() or task.exception()
        raise RuntimeError(f"would not be cancelled: {', '.join(sorted(map(describe, asyncio.all_tasks(self))))}")

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> SimTask:
        self._made += 1
        return SimTask(coro, number=self._made, loop=loop, **{"name": f"task {self._made}", **options})

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(context.get("exception") or RuntimeError(context["message"]))

    # A loop without I/O needs no pipe to wake itself.
    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def describe(task: asyncio.Task[Any]) -> str:
    """A task's name and the place that it waits at."""
    stack = task.get_stack(limit=1)
    place = f" at {stack[-1].f_code.co_qualname}:{stack[-1].f_lineno}" if stack else ""
    return f"{task.get_name()}{place}"


def run(main: Coroutine[Any, Any, T], *, seed: int | str = 0) -> T:
    """Run ``main`` on a new :class:`SimLoop`, as ``asyncio.run`` would on a real one.

    >>> async def main() -> float:
    ...     await asyncio.sleep(365 * 24 * 3600)
    ...     return asyncio.get_running_loop().time()
    >>> run(main())
    31536000.0
    """
    loop = SimLoop(seed)
    try:
        result: T = loop.run_until_complete(main)
    except BaseException:
        # The error that ended the run is the one to tell; what its wreckage raises is not.
        loop._failures.clear()
        try:
            loop.dispose()
        except Exception:
            pass
        raise
    loop.dispose()
    return result


def _do_nothing() -> None:
    pass
