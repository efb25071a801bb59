"""What a claim has taken so far, and how it shares itself out, for stores that are written in Python."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from headrace.seam.records import Claim, Claimed, Leased, Reaped

Part = TypeVar("Part")

_VISITS = 500
"""What a claim does takes as long as this many visits of tenants, at most; the next claim goes on."""
_PART = 4
"""Looking at a part of the queues takes as long as this many visits."""


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
        self.visits = _VISITS
        """How many more visits it may make."""

    @property
    def left(self) -> int:
        """How many jobs there is room for."""
        return self.req.limit - len(self.jobs) if self.bytes > 0 and self.visits > 0 else 0

    def work(self, visits: int = 1) -> None:
        """Something was done that takes as long as this many visits."""
        self.visits -= visits
        if self.visits <= 0:
            self.unfinished = True


def share_out(taken: Taken, parts: Sequence[Part], take: Callable[[Part, int], None]) -> None:
    """Take from each part of the queues: first an even share, then what other parts left."""
    plenty: list[Part] = []
    for index, part in enumerate(parts):
        share = -(-taken.left // (len(parts) - index))
        goal = len(taken.jobs) + share
        if share:
            take(part, share)
            taken.work(_PART)
            if len(taken.jobs) == goal:
                plenty.append(part)
    for part in plenty:
        if taken.left:
            take(part, taken.left)


class ClaimParts:
    """Cuts claims that name more queues than one step looks at. Each time another part comes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rotation = 0

    def of(self, req: Claim) -> list[Claim]:
        """Claims that name all queues of one, in batches of that size."""
        if len(req.queues) <= self._most:
            return [req]
        self._rotation += 1
        pieces = [req.queues[start : start + self._most] for start in range(0, len(req.queues), self._most)]
        begin = self._rotation % len(pieces)
        return [replace(req, queues=piece) for piece in (*pieces[begin:], *pieces[:begin])]

    async def claim(self, req: Claim, claim: Callable[[Claim], Awaitable[Claimed]]) -> Claimed:
        """Claim from one part after the other, until one has something."""
        first, *others = self.of(req)
        return await self.go_on(await claim(first), others, claim)

    async def go_on(
        self, claimed: Claimed, others: Sequence[Claim], claim: Callable[[Claim], Awaitable[Claimed]]
    ) -> Claimed:
        """The same, after the claim from the first part."""
        for number, other in enumerate(others):
            if claimed.jobs:
                rest = len(others) - number
                return replace(claimed, next_in=0) if rest and len(claimed.jobs) < other.limit else claimed
            claimed = both(claimed, await claim(other))
        return claimed


def both(one: Claimed, other: Claimed) -> Claimed:
    """The answers to two claims, as one."""
    times = [next_in for next_in in (one.next_in, other.next_in) if next_in is not None]
    return replace(
        other,
        jobs=[*one.jobs, *other.jobs],
        next_in=min(times, default=None),
        expired=[*one.expired, *other.expired],
        passed_over=one.passed_over or other.passed_over,
        chosen=one.chosen or other.chosen,
    )
