"""SIGINT and SIGTERM: the first asks for a graceful stop, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_sigterm(tell: Callable[[str], None]) -> Iterator[None]:
    """Around a worker: until it listens to signals itself, SIGTERM ends the process, which has no jobs yet. Process 1
    of a container would ignore the signal."""

    def end(number: int, frame: FrameType | None) -> None:
        tell("stopped on SIGTERM before it had any jobs")
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stopper:
    """Listens to signals during its block; ``stop`` is called once, on the loop.

    The signal handlers are Python's own, not the loop's: a job that blocks the loop cannot keep the second signal out.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._signalled = False
        self.asked = False
        """Whether a stop was asked for."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._received) for number in SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, why: str) -> None:
        """Ask for a graceful stop."""
        if not self.asked:
            self.asked = True
            self._stop()

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            end_now(number)
        self._signalled = True
        self._loop.call_soon_threadsafe(self.ask, f"stopping on {signal.Signals(number).name}")


def end_now(number: int) -> None:
    """No clean-up, no waiting: unfinished jobs are taken back when their leases end; child processes end with this."""
    with suppress(OSError):
        os.write(2, b"forced to end: unfinished jobs are taken back when their leases run out\n")
    os._exit(128 + number)
