"""What a settlement may ask for, the same for every store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import SETTLED, Settlement, overspawned
from headrace.types import JobState

_COMPLETED = JobState.COMPLETED


def check_settled(batch: Sequence[Settlement]) -> None:
    """Raises ``ValueError`` where a settlement does not end its lease, or spawns too much. Call it before anything is
    stored.

    >>> from headrace.types import JobState
    >>> check_settled([Settlement(bytes(16), 1, "w", JobState.RUNNING)])
    Traceback (most recent call last):
    ValueError: a lease ends in available, cancelled, completed, failed or paused, but settlement 1 says running
    """
    if not [one for one in batch if one.state is not _COMPLETED or one.spawn]:
        return
    for number, settlement in enumerate(batch, start=1):
        if settlement.spawn and (problem := overspawned(settlement.spawn)) is not None:
            raise ValueError(f"settlement {number}: spawn: {problem}")
    for number, settlement in enumerate(batch, start=1):
        if settlement.state not in SETTLED:
            *names, last = sorted(state.value for state in SETTLED)
            raise ValueError(
                f"a lease ends in {', '.join(names)} or {last}, but settlement {number} says {settlement.state}"
            )
