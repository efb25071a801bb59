"""The budget of bytes, on a store that takes up what it is told to."""

from __future__ import annotations

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.core.clock import ManualClock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.tasks import Tasks
from headrace.errors import StoreFull
from headrace.keeping.budget import Budget, BudgetWatch, Measured, read_budget, save_budget
from headrace.seam.usage import MeasureUsage, Usage
from headrace.testing.wrapped import Wrapped


class Sized(Wrapped):
    """A store of so many bytes."""

    used = 0
    capacity: int | None = None

    @property
    def usage(self) -> MeasureUsage | None:
        async def measure() -> Usage:
            return Usage(self.used, self.capacity)

        return measure


@pytest.mark.parametrize(
    ("used", "alerts", "refuses"),
    [
        (0, False, False),
        (799, False, False),
        (800, True, False),
        (849, True, False),
        (850, True, True),
        (2_000, True, True),
    ],
)
async def test_somebody_is_told_at_80_percent_and_new_jobs_are_refused_at_85(
    used: int, alerts: bool, refuses: bool
) -> None:
    store, observers, told, tasks = Sized(MemoryBackend()), Observers(), list[Event](), Tasks()
    observers.add(told.append)
    store.used = used
    assert store.documents is not None
    await save_budget(store.documents, Budget(bytes=1_000))
    watch = BudgetWatch(store, observers, ManualClock())
    assert watch.refusal(tasks) is None, "it is not measured yet"
    await watch.measure()
    refusal = watch.refusal(tasks)
    await tasks.close()
    assert isinstance(refusal, StoreFull) is refuses
    assert [event.alert for event in told if event.kind is EventKind.ALERT] == ["budget_nearly_used"] * alerts


async def test_without_a_budget_what_the_store_has_is_watched_but_nothing_refused() -> None:
    store, observers, told = Sized(MemoryBackend()), Observers(), list[Event]()
    observers.add(told.append)
    store.used, store.capacity = 999, 1_000
    watch = BudgetWatch(store, observers, ManualClock())
    measured = await watch.measure()
    assert measured is not None
    assert (measured.refuses, measured.limit) == (False, 1_000)
    assert len(told) == 1


async def test_a_budget_is_kept_in_the_store_and_the_last_one_counts() -> None:
    documents = MemoryBackend().documents
    assert await read_budget(documents) is None
    for budget in (Budget(bytes=5), Budget(), None, Budget(bytes=7, refuse=0.9)):
        await save_budget(documents, budget)
        assert await read_budget(documents) == budget


def test_a_store_of_unknown_size_is_never_full() -> None:
    assert Measured(Usage(10**12), Budget()).share == 0
