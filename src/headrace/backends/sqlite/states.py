"""The states of jobs as the tables have them."""

from __future__ import annotations

from headrace.backends.states import CODES as CODES
from headrace.backends.states import STATES as STATES

AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = range(6)
LIVE = frozenset((AVAILABLE, RUNNING, PAUSED))
ENDED = (COMPLETED, CANCELLED, FAILED)
KEYS, TICKS = 6, 7
"""No states: the places of keys that outlive their jobs, and of ticks, beside those of ended jobs."""
ASKED = ("", "cancelled", "superseded")
"""What a running job ends with whose cancellation somebody asked for, or a plan; by ``running.cancel``."""
