"""What a tracker's handler gets and returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from headrace.errors import ConfigError
from headrace.text import shown


class Subject(Struct, frozen=True):
    """Something that is visited: its id, and when.

    >>> from datetime import UTC
    >>> added, due = datetime(2026, 11, 18, tzinfo=UTC), datetime(2026, 11, 19, tzinfo=UTC)
    >>> Subject("dQw4w9WgXcQ", "HOURLY", added, None, due).tier
    'HOURLY'
    """

    id: str
    tier: str
    added_at: datetime
    """To the second."""
    last_at: datetime | None
    """When it was last visited; None: it has not been."""
    next_at: datetime
    """When its next visit is due. Of a subject in a handler's hands: when this visit was."""


class Visited(Struct, frozen=True, kw_only=True):
    """What a handler says of the subjects that it visited. Those that it does not name stay in their tier.

    >>> Visited(move={"dQw4w9WgXcQ": "DAILY"}, stop=["jNQXAC9IVRw"]).move
    {'dQw4w9WgXcQ': 'DAILY'}
    """

    move: Mapping[str, str] = {}
    """Subjects that go to another tier, by id."""
    stop: Collection[str] = ()
    """Subjects that are tracked no more."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Results, for the tracker's ``results``."""


def check_visited(answer: object, subjects: Sequence[Subject], tiers: Collection[str], where: str) -> Visited:
    """The answer of a handler, if it can be followed."""
    if answer is None:
        return Visited()
    if not isinstance(answer, Visited):
        raise ConfigError(f"{where}: expected its handler to return Visited(…) or None, got {shown(answer)}")
    if isinstance(answer.stop, str):
        raise ConfigError(f"{where}: stop: expected a list of ids, got the text {shown(answer.stop)}")
    known = {subject.id for subject in subjects}
    for one in (*answer.move, *answer.stop):
        if one not in known:
            raise ConfigError(f"{where}: expected ids of the subjects that were visited, got {shown(one)}")
    for one, tier in answer.move.items():
        if tier not in tiers:
            raise ConfigError(f"{where}: {shown(one)}: expected one of the tiers {', '.join(tiers)}, got {shown(tier)}")
        if one in answer.stop:
            raise ConfigError(f"{where}: {shown(one)}: expected a move or a stop, got both")
    return answer
