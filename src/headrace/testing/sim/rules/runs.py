"""Handlers: each run belongs to a lease, and runs overlap only where the lease was lost (I2, I7)."""

from __future__ import annotations

from headrace.seam.records import JobId, Settlement
from headrace.testing.sim.history import Run
from headrace.testing.sim.ledger import Ledger, Span, short

_CARELESS = 1
"""What scripted workers pass over was lost this often, or more."""


class Runs:
    """The runs that are under way, by job, and what their workers know."""

    def __init__(self, book: Ledger) -> None:
        self._book = book
        self._open: dict[JobId, dict[tuple[str, int], None]] = {}
        self._told_lost: set[tuple[str, JobId, int]] = set()
        self._interrupted: set[JobId] = set()
        self._started: set[tuple[JobId, int]] = set()
        self.repeated: dict[JobId, None] = {}
        """Jobs that ran again after a run whose lease was lost."""

    def told_lost(self, node: str, job_id: JobId, epoch: int) -> None:
        """A worker has learned that a lease is no longer its own."""
        self._told_lost.add((node, job_id, epoch))
        self._book.reach("lost lease told")

    def start(self, node: str, run: Run) -> None:
        """A handler begins."""
        book = self._book
        span = book.spans.get((run.id, run.epoch, node))
        if span is None:
            known = run.id in book.jobs or run.id in book.gone
            book.blame("I7" if known else "I2", run.id, f"runs with epoch {run.epoch}, which {node} was never granted")
            return
        if (run.id, run.epoch) in self._started:
            book.blame("I7", run.id, f"runs a second time under one lease, epoch {run.epoch}")
        self._started.add((run.id, run.epoch))
        if span.settled:
            book.blame("I7", run.id, f"{node} starts it after it has settled it, epoch {run.epoch}")
        if (node, run.id, run.epoch) in self._told_lost:
            book.blame("I7", run.id, f"{node} starts it though it knows that the lease, epoch {run.epoch}, is lost")
        self._check_alone(node, run, span)
        under_way = self._open.setdefault(run.id, {})
        for where, epoch in under_way:
            self._check_overlap(run, span, book.spans[run.id, epoch, where], epoch)
        under_way[node, run.epoch] = None
        if run.id in self._interrupted:
            self.repeated[run.id] = None
        self._interrupted.add(run.id)

    def end(self, node: str, run: Run) -> None:
        """A handler is through."""
        self._open.get(run.id, {}).pop((node, run.epoch), None)

    def settling(self, node: str, settlement: Settlement) -> None:
        """A worker has sent the outcome of a run; there is nothing left to run."""
        span = self._book.spans.get((settlement.id, settlement.epoch, node))
        if span is not None:
            span.settled = True

    def settled(self, job_id: JobId) -> None:
        """An outcome was accepted: a further run is a new one, not a repetition."""
        self._interrupted.discard(job_id)

    def crashed(self, node: str) -> None:
        """Whatever ran there does so no more."""
        for under_way in self._open.values():
            for place in [place for place in under_way if place[0] == node]:
                del under_way[place]

    def _check_alone(self, node: str, run: Run, span: Span) -> None:
        """Scripted workers do not care, and never pass over jobs that were lost more than once."""
        bound = self._book.bounds.get(node, 0)
        if bound <= _CARELESS:
            return
        others = [(job, epoch) for job, places in self._open.items() for where, epoch in places if where == node]
        if span.lost >= bound:
            self._book.reach("run on its last chance")
        for job, epoch in others:
            if max(span.lost, self._book.spans[job, epoch, node].lost) >= bound:
                self._book.blame("I28", run.id, f"runs in {node} beside {short(job)}, one of them on its last chance")

    def _check_overlap(self, run: Run, span: Span, known: Span, epoch: int) -> None:
        if known is span:
            return
        first, second = (known, span) if known.granted < span.granted else (span, known)
        if first.ended is None or first.ended > second.granted:
            message = f"epochs {run.epoch} and {epoch} run at once, and the first one's lease had not ended"
            self._book.blame("I7", run.id, message)
        else:
            self._book.reach("runs overlap after a lost lease")
