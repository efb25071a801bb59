"""Whether this process is alive, ready, and has started: the truth, told from a thread that nothing blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from headrace.api.client import Client
from headrace.errors import HeadraceError
from headrace.text import without_secrets
from headrace.web.pulse import STILL, Pulse
from headrace.worker.worker import Worker

BEATS = 1.5
"""Seconds between the beats of a worker that is looked at, and between the looks at a store without a worker."""
_TIMEOUT = 2.0
_WRITES = 2 * BEATS
"""Seconds between two writes of a process without a worker, while they succeed."""
_DOCUMENT = "probe"


class Verdict(Struct, frozen=True):
    """An answer to a probe."""

    ok: bool
    problems: list[str]


class Vitals(Protocol):
    """What probes ask."""

    def live(self) -> Verdict:
        """Whether the process should go on; if not, it should be started again."""

    def ready(self) -> Verdict:
        """Whether it does its work now."""

    def started(self) -> Verdict:
        """Whether it has come up."""


class WorkerVitals:
    """A worker, seen from another thread than its own."""

    def __init__(self, worker: Callable[[], Worker | None], pulse: Pulse) -> None:
        self._worker = worker
        self._pulse = pulse
        self._quickened: Worker | None = None

    def look(self) -> Worker | None:
        """The worker that runs now. It beats quickly from now on."""
        worker = self._worker()
        if worker is not None and worker is not self._quickened:
            worker.quicken(BEATS)
            self._quickened = worker
        return worker

    async def watch(self) -> None:
        """Look for the worker now and then, until cancelled: it may be started later, or again."""
        while True:
            worker = self.look()
            if worker is not None and worker.running:
                worker.nudge()
            await asyncio.sleep(BEATS / 3)

    def live(self) -> Verdict:
        return _verdict(self._blocked())

    def ready(self) -> Verdict:
        worker = self.look()
        if worker is None or not worker.running:
            return _verdict([*self._blocked(), "the worker has not started yet" if worker else "no worker runs here"])
        health = worker.health(time.monotonic())
        problems = [] if health.ok else [without_secrets(health.detail)]
        if worker.stopping:
            problems.append("the worker is stopping")
        return _verdict(self._blocked() + problems)

    def started(self) -> Verdict:
        worker = self.look()
        return _verdict([] if worker is not None and worker.running else ["the worker has not started yet"])

    def _blocked(self) -> list[str]:
        still = self._pulse.still_for()
        return [f"the event loop has been blocked for {still:.1f} s: a handler hogs it"] if still > STILL else []


class StoreVitals:
    """A process without a worker: whether its store answers, and where people may change things, whether it takes
    writes. Its own loop must turn for anybody to hear this."""

    def __init__(self, client: Client, *, writes: bool) -> None:
        self._client = client
        self._writes = writes
        self._wrote = -_WRITES
        self._problem: str | None = "the store has not answered yet"
        self._answered = time.monotonic()

    async def watch(self) -> None:
        """Ask the store now and then, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await self._client.store_now()
                    await self._write()
                self._problem, self._answered = None, time.monotonic()
            except TimeoutError:
                self._problem = f"the store gave no answer within {_TIMEOUT:g} s"
            except (HeadraceError, OSError) as error:
                self._problem = without_secrets(str(error)) or type(error).__name__
            await asyncio.sleep(BEATS)

    async def _write(self) -> None:
        """A store that is read-only, or full, still answers. Whether somebody else has written meanwhile is all the
        same."""
        documents = (await self._client.backend()).documents
        if not self._writes or documents is None or time.monotonic() - self._wrote < _WRITES:
            return
        [found] = await documents.get([_DOCUMENT])
        await documents.put(_DOCUMENT, b"", 0 if found is None else found.version)
        self._wrote = time.monotonic()

    def live(self) -> Verdict:
        return Verdict(True, [])

    def ready(self) -> Verdict:
        if self._problem is None and time.monotonic() - self._answered > BEATS + 2 * _TIMEOUT:
            return _verdict(["the store is no longer asked"])
        return _verdict([] if self._problem is None else [self._problem])

    def started(self) -> Verdict:
        return self.ready()


def _verdict(problems: list[str]) -> Verdict:
    return Verdict(not problems, problems)
