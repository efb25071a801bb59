"""What statements come to one after the other, by the memory store."""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.store import MemoryStore
from headrace.seam.records import JobId, JobKey
from tests.backends.interleaving.scenes import NOW, Scene
from tests.backends.interleaving.statements import Run
from tests.backends.interleaving.view import Strands, Traces, by_strand, view

T = TypeVar("T")


class Outcome(NamedTuple):
    """What each statement told, and what is there in the end."""

    told: tuple[Strands, ...]
    seen: Strands
    waited: bool = False
    """Whether the second had to wait for the first."""

    def of(self, strand: int) -> tuple[list[Any], ...]:
        """All that concerns one strand."""
        return (*(told.get(strand, []) for told in self.told), self.seen.get(strand, []))

    @property
    def strands(self) -> set[int]:
        """Of which there is anything to say."""
        return set(self.seen).union(*self.told)

    def swapped(self) -> Outcome:
        """With the two statements named in the other order."""
        return self._replace(told=self.told[::-1])


class _Store(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, JobId | None]] = []

    def publish(self, topic: str, job_id: JobId | None = None) -> None:
        self.told.append((topic, job_id))


@functools.cache
def in_order(scene: Scene, *statements: Run) -> Outcome:
    """The outcome when these come one after the other."""
    return _at_once(_in_order(scene, statements))


async def _in_order(scene: Scene, statements: tuple[Run, ...]) -> Outcome:
    store = _Store()
    memory = MemoryBackend(store)
    await scene.build(memory)
    told = []
    for run in statements:
        store.told.clear()
        facts = await run(memory, scene)
        told.append(by_strand(facts, store.told))
    traces = Traces(
        list(store.jobs),
        [(JobKey(*name), job_id) for name, job_id in store.keys.items()],
        [(name, inbox) for name, inboxes in store.inboxes.items() for inbox in inboxes],
        [listed.stats.worker for listed in store.workers.values() if listed.until > NOW],
        list(store.paused_queues),
        list({one.uid for one in store.ledger.schedules.values()} | store.ledger.slots.keys()),
        [(JobKey(*name), job_id, until) for name, (job_id, until) in store.outlived.items()],
    )
    return Outcome(tuple(told), await view(memory, traces))


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """The memory store never waits, so this takes no event loop."""
    try:
        call.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("the memory store kept a caller waiting")
