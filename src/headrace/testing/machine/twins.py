"""The store under test and the model side by side, and how far their answers have to be equal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from msgspec.structs import astuple

from headrace.backends.memory import MemoryBackend
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, JobId, Record, Renewed, Selector, Stats
from headrace.testing.machine.difference import difference
from headrace.testing.machine.following import Following

T = TypeVar("T")


class Twins:
    """Two stores on one private event loop and in one private directory."""

    def __init__(self, connect: Callable[[Path], Backend], root: Path | None = None, *, strict: bool = True) -> None:
        with ExitStack() as stack:
            self.place = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-machine-", dir=root)))
            self._loop = asyncio.new_event_loop()
            stack.callback(self._loop.close)
            self.connect = connect
            self.model = MemoryBackend()
            self._following = None if strict else Following(self.model.store)
            if self._following is not None:
                self.model._claiming = self._following
            self.store = connect(self.place)
            self.run(self.store.open())
            stack.callback(lambda: self.run(self.store.close()))
            self._exit = stack.pop_all()

    def close(self) -> None:
        """Let go of the store, the loop and the directory."""
        self._exit.close()

    def run(self, call: Awaitable[T]) -> T:
        """Wait for one operation."""

        async def wait() -> T:
            return await call

        return self._loop.run_until_complete(wait())

    def ask(self, call: Callable[[Backend], Awaitable[T]], tidy: Callable[[T], Any] = lambda answer: answer) -> T:
        """The store's answer, which is the model's too."""

        async def both() -> tuple[T, T]:
            return await call(self.store), await call(self.model)

        given, expected = self.run(both())
        check_equal(tidy(given), tidy(expected))
        return given

    def ask_for_jobs(
        self, call: Callable[[Backend], Awaitable[T]], claimed: Callable[[T], Claimed], tidy: Callable[[T], Any]
    ) -> T:
        """The same for an answer with claimed jobs. If the store orders by bands, the model takes what it took."""

        async def both() -> tuple[T, T]:
            given = await call(self.store)
            if self._following is not None:
                self._following.first = [job.id for job in claimed(given).jobs]
            return given, await call(self.model)

        given, expected = self.run(both())
        check_equal(tidy(given), tidy(expected))
        return given

    def swap(self, successor: Backend) -> None:
        """Close the store and go on with another handle on it."""
        self.run(self.store.close())
        self.store = successor
        self.run(self.store.open())

    def scan(self, backend: Backend, sel: Selector, limit: int, at: int) -> list[Record]:
        """Every page of a scan, one after the other."""
        found: list[Record] = []
        after = None
        for _ in range(1_000):
            page = self.run(backend.scan(sel, after, limit, at))
            assert len(page.records) <= limit, f"a page of {len(page.records)}, over its limit of {limit}"
            found += page.records
            if (after := page.after) is None:
                return found
        raise AssertionError("a scan of a few jobs does not come to its end")

    def sweep_away(self, job_id: JobId, now: int) -> None:
        """The model's job is swept as the store's was, where the protocol leaves it to the store which goes first."""
        self.model.store.sweep_away(self.model.store.jobs[job_id], now)

    def put_off(self, job_id: JobId, run_at: int) -> None:
        """The model's job is due when the store's is, where the protocol leaves the instant to the store."""
        entry = self.model.store.jobs[job_id]
        entry.run_at = run_at
        self.model.store.move(entry, entry.state)


def check_equal(given: object, expected: object) -> None:
    """The store's answer is the model's."""
    assert given == expected, difference(given, expected)


def tidy_claimed(req: Claim, *, strict: bool = True) -> Callable[[Claimed], Any]:
    """``next_in`` means something only in an answer that is short of the limit. Which jobs are passed over follows from
    the order."""

    def tidy(claimed: Claimed) -> Any:
        next_in = claimed.next_in if len(claimed.jobs) < req.limit else None
        if not strict:
            return claimed.jobs, None if next_in is None else max(1, next_in), {}, False
        return claimed.jobs, next_in, {job.id: job for job in claimed.expired}, claimed.passed_over

    return tidy


def tidy_renewed(renewed: Renewed) -> Any:
    """Three sets."""
    return set(renewed.lost), set(renewed.cancels), set(renewed.paused), set(renewed.held)


def tidy_stats(stats: Stats) -> Any:
    """All but the bytes, in one order. Something takes up bytes exactly where something is."""
    return {
        "queues": sorted(stats.queues, key=astuple),
        "workers": sorted(stats.workers, key=astuple),
        "kept": {kept.target: (kept.count, kept.bytes > 0) for kept in stats.kept},
    }
