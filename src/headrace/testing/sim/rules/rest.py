"""At rest: faults have stopped and time was given, so nothing that could be done is left undone (I22)."""

from __future__ import annotations

from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.life import Life
from headrace.testing.sim.rules.ticks import on_rest_of_ticks
from headrace.types import JobState


def on_rest(book: Ledger, now: int) -> None:
    """The run is at its end."""
    for life in book.jobs.values():
        if not (life.state.terminal or _may_wait(book, life, now)):
            book.blame("I22", life.id, f"still {life.state}, due since {now - life.run_at} µs, epoch {life.epoch}")
    on_rest_of_ticks(book, now)


def _may_wait(book: Ledger, life: Life, now: int) -> bool:
    if life.state is JobState.PAUSED:
        return True
    return life.state is JobState.AVAILABLE and (life.run_at > now or life.queue in book.paused)
