"""Whose dead letters go where there are too many: those of the tenants that hold most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from headrace.seam.records import SweepClause

Name = TypeVar("Name")
Job = TypeVar("Job")


def bound_of(clause: SweepClause, jobs: int, size: int) -> tuple[str, int]:
    """The first bound, ``jobs`` or ``bytes``, that dead letters are over, and by how much; none: an empty name."""
    if clause.max_count is not None and jobs > clause.max_count:
        return "jobs", jobs - clause.max_count
    if clause.max_bytes is not None and size > clause.max_bytes:
        return "bytes", size - clause.max_bytes
    return "", 0


def goes_on(clause: SweepClause, done: str, jobs: int, size: int) -> bool:
    """Whether, after dead letters were removed by one bound, these are over another one. What is too old, but spared,
    no other takes."""
    left, _ = bound_of(clause, jobs, size)
    if done == "age":
        return bool(left) and (clause.older_than or 0) > clause.spare
    return left not in ("", done)


def gives(bound: str, held: Sequence[int], excess: int, limit: int) -> list[int]:
    """How much each of those that hold most, up to one more than the limit and heaviest first, gives of what is too
    much, so that nobody is left with more than need be. Those behind it in ``held`` give nothing.

    Where there may be more of them than are told of, all stay as heavy as the last one, but for one.
    """
    if not held:
        return []
    floor = max(held[-1] - 1, 0) if len(held) > limit else 0
    most = limit + 1 if bound == "jobs" else excess
    excess = min(excess, most, sum(held) - len(held) * floor)
    total = 0
    for givers, (mine, following) in enumerate(zip(held, [*held[1:], floor], strict=True), start=1):
        total += mine
        if total - givers * following >= excess:
            break
    level, rest = divmod(total - excess, givers)
    return [mine - level - (n < rest) for n, mine in enumerate(held[:givers])]


def condemn(
    bound: str,
    excess: int,
    limit: int,
    heaviest: Sequence[tuple[Name, int]],
    oldest: Callable[[Name | None], Iterable[tuple[Job, int]]],
) -> list[tuple[Job, int]]:
    """What goes of those that hold most, the oldest of each, up to one more than the limit. Where nobody holds more
    than one, the oldest of all go.

    ``heaviest``: tenants and what they hold, up to one more than the limit. ``oldest``: the jobs of one, or of all,
    that may go, and what they weigh.
    """
    if bound == "jobs" and heaviest and heaviest[0][1] <= 1:
        return list(islice(oldest(None), min(excess, limit + 1)))
    condemned: list[tuple[Job, int]] = []
    shares = gives(bound, [held for _, held in heaviest], excess, limit)
    for (tenant, _), gift in zip(heaviest, shares, strict=False):
        given = 0
        for job, size in oldest(tenant):
            if given >= gift or len(condemned) > limit:
                break
            condemned.append((job, size))
            given += 1 if bound == "jobs" else size
    return condemned
