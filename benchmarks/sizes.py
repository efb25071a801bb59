"""How much of everything is measured: every count and every wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The counts of one run."""

    repeats: int = 3
    enqueue: int = 2_000
    """Enqueued one after the other."""
    concurrent: int = 20_000
    callers: int = 200
    bulk: int = 10_000
    drain: int = 10_000
    solo: int = 30_000
    """Drained inside one process, where nothing but Python is measured."""
    counted: int = 10_000
    """Drained once with every trip and statement counted."""
    samples: int = 300
    """Jobs whose latency is taken, one at a time."""
    starts: int = 21
    """Fresh processes for the start-up figures."""
    slots: int = 1_000
    wide: int = 4_500
    """Bytes of a wide payload."""
    deep: int = 1_000_000
    """Jobs in the store while ``drain`` of them are drained; 0 leaves it out."""
    claims: int = 300
    """Single claims from deep and shallow queues, three times."""
    journal: int = 2_000
    """Jobs whose bytes in a server's log are counted."""
    resident: int = 100_000
    """Jobs whose memory in the server is taken."""
    backlog: int = 5_000
    """Jobs that wait while a snapshot is held."""
    baseline: float = 30.0
    held: float = 180.0
    """Seconds under load before and while a snapshot is held; 0 leaves it out."""
    crowd: int = 100
    """Workers whose single operations are timed …"""
    rounds: int = 10
    """… so many times each."""
    instructions: int = 2_000
    """Drained under an instruction counter; 0 leaves it out."""
    limit: float = 240.0
    """Seconds after which a process of the benchmark is killed."""


QUICK = Sizes(
    repeats=1,
    enqueue=1_000,
    concurrent=10_000,
    solo=20_000,
    counted=5_000,
    samples=80,
    starts=7,
    deep=0,
    journal=500,
    resident=20_000,
    baseline=3.0,
    held=6.0,
    rounds=3,
    instructions=0,
    limit=60.0,
)
