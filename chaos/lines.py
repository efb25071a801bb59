"""Groups whose jobs go one after the other: whether anybody was started before the one in front of him had ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from chaos.jobs import dashed
from chaos.ledger import Ledger
from headrace.seam.records import JobId


class Lines:
    """What the handlers of grouped jobs wrote down."""

    def __init__(self, ledger: Ledger, epochs: Mapping[JobId, int]) -> None:
        """``epochs``: under which each job was done, so which of its runs counts."""
        self._started: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        counts = {dashed(job_id): epoch for job_id, epoch in epochs.items()}
        for entry in ledger.entries:
            if entry.kind == "start":
                self._started[entry.id] = min(entry.ns, self._started.get(entry.id, entry.ns))
            elif entry.kind == "end" and counts.get(entry.id) == entry.epoch:
                self._ended[entry.id] = entry.ns

    def early(self, lines: Iterable[Sequence[JobId]]) -> int:
        """How many jobs were started too soon; each line is in the order in which its jobs came."""
        return sum(self._too_soon(*map(dashed, pair)) for line in lines for pair in pairwise(line))

    def _too_soon(self, front: str, behind: str) -> bool:
        started, ended = self._started.get(behind), self._ended.get(front)
        return started is not None and (ended is None or started < ended)
