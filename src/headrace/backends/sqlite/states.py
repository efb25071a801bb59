"""The job states as the tables know them: a state's code is its place in :class:`~headrace.types.JobState`."""

from __future__ import annotations

from headrace.types import JobState

STATES = tuple(JobState)
CODES = {state: code for code, state in enumerate(STATES)}
AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = range(6)
LIVE = frozenset((AVAILABLE, RUNNING, PAUSED))
ENDED = (COMPLETED, CANCELLED, FAILED)
KEYS, TICKS = 6, 7
"""No states: the places of keys that outlive their jobs, and of ticks, beside those of ended jobs."""
ASKED = ("", "cancelled", "superseded")
"""What a running job ends with whose cancellation somebody asked for, or a plan; by ``running.cancel``."""
