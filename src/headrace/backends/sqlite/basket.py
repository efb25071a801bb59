"""What a claim has taken so far, and what it may still take."""

from __future__ import annotations

from headrace.seam.records import Claim, JobId, Leased, Reaped

EXPIRED_AT_ONCE = 1_000
"""So many expired jobs a claim cancels at most; it passes over the others, and the reapers come for them."""
_NEVER = 2**31
"""More losses than any job has."""


class Basket:
    """The answer to one claim, as it grows."""

    def __init__(self, req: Claim) -> None:
        self.req = req
        self.jobs: list[Leased] = []
        self.expired: list[Reaped] = []
        self.passed_in: set[int] = set()
        """The queues of jobs that were passed over."""
        self.passed: dict[JobId, tuple[int, int]] = {}
        """Jobs of governed queues that were passed over: their tenants, and since when they are due."""
        self.bytes = req.max_bytes
        self.unfinished = False
        """Whether tenants were left that could have been visited."""
        self.lost_bound = _NEVER if req.lost_below is None else req.lost_below

    @property
    def left(self) -> int:
        """How many jobs there is room for."""
        return self.req.limit - len(self.jobs) if self.bytes > 0 else 0
