"""What is to be seen of a store, strand by strand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, JobKey
from headrace.seam.ticks import ScheduleSelector
from headrace.types import SECTIONS
from tests.backends.interleaving.scenes import NOW, strand_of
from tests.backends.interleaving.statements import Facts

_EVERYTHING = frozenset((*SECTIONS, "result", "error"))

Strands = dict[int, list[Any]]
"""Something for each strand; 0 is what belongs to none."""


class Traces(NamedTuple):
    """What a store keeps beside the records."""

    jobs: list[JobId]
    keys: list[tuple[JobKey, JobId]]
    """Whom each key leads to."""
    waiters: list[tuple[JobId, str]]
    workers: list[str]
    paused: list[str]
    uids: list[bytes]
    """Of schedules, and of those that ticks are left of."""
    outlived: list[tuple[JobKey, JobId, int]]
    """Keys that outlive the records of their jobs, and until when."""


async def view(store: Backend, traces: Traces) -> Strands:
    """The records, whom each key leads to or outlives, who waits, and the schedules with their ticks; and for no
    strand: the workers, and the queues that are paused."""
    seen: defaultdict[int, list[Any]] = defaultdict(list)
    jobs = sorted(traces.jobs)
    for name, record in zip(jobs, await store.fetch(jobs, _EVERYTHING, NOW), strict=True):
        seen[strand_of(name)].append(record or ("not to be found", name))
    for key, name in sorted(traces.keys, key=lambda led: (led[1], led[0].queue, led[0].key)):
        seen[strand_of(name)].append((key, name))
    for key, name, until in sorted(traces.outlived, key=lambda led: (led[1], led[0].queue, led[0].key)):
        seen[strand_of(name)].append((key, name, until))
    for name, inbox in sorted(traces.waiters):
        seen[strand_of(name)].append((name, inbox))
    if traces.uids and store.ticks is not None:
        for schedule in await store.ticks.find(ScheduleSelector(), None, 1_000):
            seen[int.from_bytes(schedule.uid)].append(schedule)
        for uid in sorted(traces.uids):
            seen[int.from_bytes(uid)].append(await store.ticks.history(uid))
    seen[0] = [sorted(traces.workers), sorted(traces.paused)]
    return dict(seen)


def by_strand(facts: Facts, hints: Iterable[tuple[str, JobId | None]]) -> Strands:
    """What a statement told, and which inboxes."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for strand, fact in facts:
        found[strand].append(fact)
    for topic, name in sorted((topic, name) for topic, name in hints if topic.startswith("inbox:") and name):
        found[strand_of(name)].append((topic, name))
    return dict(found)
