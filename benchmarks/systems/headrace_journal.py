"""A load that Headrace stores, works off and deletes, while the bytes of the server's log are counted."""

from __future__ import annotations

from typing import Any

from benchmarks.systems.aof import Aof
from benchmarks.systems.headrace import QUEUE, Bench
from benchmarks.systems.load import Load
from benchmarks.systems.log import Log

_CHUNK = 1_000


class Journal:
    """One load on one store, through the app and its worker; only deleting goes to the waist."""

    def __init__(self, bench: Bench, load: Load, count: int) -> None:
        self._bench = bench
        self._load = load
        self._count = count
        self._again: set[int] = set()
        self._task = bench.app.task(name="load", queue=QUEUE)(self._run)

    async def insert(self) -> None:
        """Store the jobs."""
        for first in range(0, self._count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, self._count))
            await self._bench.app.enqueue_many([self._job(number) for number in numbers])

    async def work(self) -> None:
        """Run them all; some come back once, with another state."""
        await self._bench.drain(self._count, [])

    async def delete(self) -> None:
        """Delete the record of what has ended."""
        await swept(self._bench.probe)

    async def measure(self, log: Log | Aof, *, history: bool) -> dict[str, Any]:
        """All of it, part by part."""
        with log.part("insert"):
            await self.insert()
        with log.part("work"):
            await self.work()
        relations = log.relations()
        if history:
            with log.part("delete"):
                await self.delete()
        log.vacuum()
        return {"parts": log.parts, "payload": self._load.payload(self._count), "relations": relations}

    def _job(self, number: int) -> Any:
        from msgspec.structs import replace

        from headrace.types import Sections

        arguments: dict[str, Any] = self._load.parameters(number)
        made = self._task.job(**arguments)
        sections = self._load.sections(number)
        return replace(made, sections=Sections(**sections)) if sections else made

    async def _run(self, n: int, pad: str) -> Any:
        from headrace.types import Patch, Retry, Sections

        vm_state = None if n in self._again else self._load.retried(n)
        if vm_state is None:
            return None
        self._again.add(n)
        return Retry(0, patch=Patch(sections=Sections(vm_state=vm_state)))


async def swept(probe: Any) -> None:
    """Delete the record of everything that has completed."""
    from headrace.seam.records import SweepClause, SweepTarget

    while (await probe.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))).more:
        pass
