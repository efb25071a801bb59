"""What a claim from a file has taken and passed over."""

from __future__ import annotations

from headrace.backends.claims import Taken
from headrace.seam.records import Claim, JobId

EXPIRED_AT_ONCE = 1_000
"""A claim cancels at most this many expired jobs. It passes over the others, which are left to the reapers."""
_NEVER = 2**31
"""More losses than any job has."""


class SqliteTaken(Taken):
    """The answer to one claim, as it grows."""

    def __init__(self, req: Claim) -> None:
        super().__init__(req)
        self.passed_in: set[int] = set()
        """The queues of jobs that were passed over."""
        self.passed: dict[JobId, tuple[int, int]] = {}
        """Jobs of governed queues that were passed over: their tenants, and since when they are due."""
        self.lost_bound = _NEVER if req.lost_below is None else req.lost_below
