"""The states of jobs as stores keep them: a state's code is its place in :class:`~headrace.types.JobState`."""

from __future__ import annotations

from headrace.types import JobState

STATES = tuple(JobState)
CODES = {state: code for code, state in enumerate(STATES)}
