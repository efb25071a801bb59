"""Jobs of which nobody may run too much: those that may be started once, and those of groups, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from chaos.findings import Findings
from chaos.jobs import dashed
from chaos.ledger import Ledger
from chaos.lines import Lines
from headrace import App, JobState
from headrace.errors import Unavailable
from headrace.schedules.plan import DELIVERY, Delivery
from headrace.seam.records import JobId, Record, Row

GROUPS = 4
_ONCE = msgspec.msgpack.encode({DELIVERY: Delivery.AT_MOST_ONCE.value})
"""The headers of a slot of a schedule that asks for it."""


class StrictJobs:
    """What was enqueued of them, and what became of it."""

    def __init__(self, app: App, steps: int) -> None:
        """``steps``: how long each runs."""
        self._app = app
        self._steps = steps
        self.once: list[JobId] = []
        self._lines: list[list[JobId]] = [[] for _ in range(GROUPS)]
        self.enough = False

    @property
    def ids(self) -> list[JobId]:
        return [*self.once, *(job_id for line in self._lines for job_id in line)]

    def rows(self, each: int) -> list[Row]:
        """So many of either kind, noted: the caller stores them all, in this order."""
        walk: Any = self._app.tasks["walk"]
        line: Any = self._app.tasks.get("line", walk)
        pack = self._app.client.packer.pack
        once = [replace(pack(walk.job(self._steps)), headers=_ONCE) for _ in range(each)]
        grouped = [pack(line.options(group=f"g{n % GROUPS}").job(self._steps)) for n in range(each)]
        self.once += [row.id for row in once]
        for number, row in enumerate(grouped):
            self._lines[number % GROUPS].append(row.id)
        return once + grouped

    async def produce(self, pause: float) -> None:
        """Enqueue some again and again; a call that was given up is repeated, under the same ids."""
        backend = await self._app.client.backend()
        while not self.enough:
            rows = self.rows(GROUPS)
            while True:
                try:
                    await backend.insert(rows)
                    break
                except (Unavailable, TimeoutError):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(pause)

    def judge(
        self,
        ids: Sequence[JobId],
        records: Sequence[Record | None],
        ledger: Ledger,
        *,
        asked: Collection[JobId] = (),
        forgets: bool,
    ) -> tuple[Findings, dict[str, Any], list[str]]:
        """``ids`` and ``records``: of all jobs of the run. If the store ``forgets`` what it gave out, or workers are
        killed, those that may be started once may be cancelled instead."""
        cancelled: set[JobId] = set()
        if forgets:
            ended = {one.id for one in records if one is not None and one.state is JobState.CANCELLED}
            cancelled = ended & set(self.once)
        kept = [(job_id, record) for job_id, record in zip(ids, records, strict=True) if job_id not in cancelled]
        found = Findings([one for one, _ in kept], [one for _, one in kept], ledger, asked=[*asked, *cancelled])
        runs = ledger.runs()
        twice = sum(runs[dashed(job_id)] > 1 for job_id in self.once)
        epochs = {record.id: record.epoch for record in records if record is not None}
        early = Lines(ledger, epochs).early(self._lines)
        figures = {
            "at most once": len(self.once),
            "at most once, started twice": twice,
            "at most once, cancelled": len(cancelled),
            "at most once, cancelled though never started": sum(runs[dashed(job_id)] == 0 for job_id in cancelled),
            "jobs of groups": sum(map(len, self._lines)),
            "jobs of groups out of order": early,
        }
        said = (
            (twice, f"{twice} jobs that may be started once were started twice"),
            (early, f"{early} jobs of groups were started before the one in front of them had ended"),
        )
        return found, figures, [text for bad, text in said if bad]
