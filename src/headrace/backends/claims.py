"""What a claim has taken so far, and how it shares itself out, for stores that are written in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.seam.records import Claim, Leased, Reaped

Part = TypeVar("Part")


class Taken:
    """The answer to one claim, as it grows."""

    def __init__(self, req: Claim) -> None:
        self.req = req
        self.jobs: list[Leased] = []
        self.expired: list[Reaped] = []
        self.bytes = req.max_bytes
        """How many bytes there is room for."""
        self.unfinished = False
        """Whether the next claim may find something at once."""

    @property
    def left(self) -> int:
        """How many jobs there is room for."""
        return self.req.limit - len(self.jobs) if self.bytes > 0 else 0


def share_out(taken: Taken, parts: Sequence[Part], take: Callable[[Part, int], None]) -> None:
    """Take from each part of the queues: first an even share, then what other parts left."""
    plenty: list[Part] = []
    for index, part in enumerate(parts):
        share = -(-taken.left // (len(parts) - index))
        goal = len(taken.jobs) + share
        if share:
            take(part, share)
            if len(taken.jobs) == goal:
                plenty.append(part)
    for part in plenty:
        if taken.left:
            take(part, taken.left)
