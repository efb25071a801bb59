"""What must hold whatever the fault was, from the store's records and the handlers' ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from chaos.jobs import dashed
from chaos.ledger import Ledger
from headrace import JobState
from headrace.seam.records import JobId, Record


class Findings:
    """Every acknowledged job is done, by a handler that had the right to; and nothing else has run."""

    def __init__(
        self, ids: Sequence[JobId], records: Sequence[Record | None], ledger: Ledger, *, asked: Collection[JobId] = ()
    ) -> None:
        """``ids`` were acknowledged; ``asked`` may have been stored too, their answer was lost."""
        known = {dashed(job_id) for job_id in (*ids, *asked)}
        runs = ledger.runs()
        there = [record for record in records if record is not None]
        self.jobs = len(ids)
        self.lost = len(records) - len(there)
        self.undone = sum(record.state is not JobState.COMPLETED for record in there)
        self.stale = sum(record.state is JobState.COMPLETED and _stale(record) for record in there)
        self.phantom = sum(name not in known for name in runs)
        self.unrun = sum(runs[dashed(job_id)] == 0 for job_id in ids)
        self.burnt = sum(record.attempt for record in there)
        self.doubled = ledger.doubled()

    def problems(self) -> list[str]:
        """What does not hold."""
        said = (
            (self.lost, f"{self.lost} acknowledged jobs are gone"),
            (self.undone, f"{self.undone} jobs are not completed"),
            (self.unrun, f"{self.unrun} jobs are said to be done but no handler ran"),
            (self.phantom, f"{self.phantom} jobs ran that nobody enqueued"),
            (self.stale, f"{self.stale} outcomes of stale workers were accepted"),
            (self.doubled, f"{self.doubled} leases were given out twice: two runs under one epoch"),
            (self.burnt, f"{self.burnt} attempts were counted although no handler failed"),
        )
        return [text for bad, text in said if bad]

    def figures(self) -> dict[str, Any]:
        """For the results."""
        return {
            "jobs": self.jobs,
            "lost": self.lost,
            "stale outcomes accepted": self.stale,
            "epochs given out twice": self.doubled,
        }


def _stale(record: Record) -> bool:
    """Results name the epoch that made them: it must be the last one granted."""
    return record.result is None or int(record.result[5:]) != record.epoch
