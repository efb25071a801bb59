"""How bad the network is."""

from __future__ import annotations

from random import Random

from msgspec import Struct


class Plan(Struct, frozen=True, kw_only=True):
    """The chance of each fault, per call or per hint, and the times that they play with, in microseconds."""

    latency: tuple[int, int] = (200, 4_000)
    """Shortest and longest usual way, each direction."""
    patience: int = 1_000_000
    """How long a caller waits for an answer before the call counts as :class:`~headrace.errors.Unavailable`."""
    slow: float = 0.0
    """One way takes up to half the patience: calls overtake each other."""
    late: float = 0.0
    """The request arrives after the caller has given up."""
    drop: float = 0.0
    """The request is lost."""
    mute: float = 0.0
    """The request is carried out and its answer is lost."""
    double: float = 0.0
    """The request is carried out twice, the second time a while later."""
    hint_drop: float = 0.0
    hint_double: float = 0.0
    hint_delay: float = 0.0


CALM = Plan()
"""Nothing but latency."""


class Fate(Struct, frozen=True):
    """What the network will do to one call."""

    out: int
    back: int
    drop: bool
    mute: bool
    again_after: int | None
    reset: bool
    """Whether a loss is noticed at once, as a broken connection, instead of by waiting."""
    faults: tuple[str, ...]


def draw_fate(plan: Plan, rng: Random) -> Fate:
    """Draw lots for one call."""
    low, high = plan.latency
    out = rng.randint(low, high)
    back = rng.randint(low, high)
    lot = rng.random()
    reset = rng.random() < 0.5
    if lot < plan.drop:
        return Fate(out, back, True, False, None, reset, ("drop",))
    lot -= plan.drop
    if lot < plan.mute:
        return Fate(out, back, False, True, None, reset, ("mute",))
    lot -= plan.mute
    if lot < plan.double:
        again = rng.randint(low, rng.choice((plan.patience // 4, 2 * plan.patience)))
        return Fate(out, back, False, False, again, reset, ("double",))
    lot -= plan.double
    if lot < plan.late:
        return Fate(plan.patience + rng.randint(0, 3 * plan.patience), back, False, False, None, reset, ("late",))
    lot -= plan.late
    if lot < plan.slow:
        return Fate(out + rng.randint(high, plan.patience // 2), back, False, False, None, reset, ("slow",))
    return Fate(out, back, False, False, None, reset, ())
