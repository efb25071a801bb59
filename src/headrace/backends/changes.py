"""A change of jobs as servers take it."""

from __future__ import annotations

from headrace.seam import records as r

_KINDS: dict[type[r.Change], int] = {
    r.Cancel: 1, r.Pause: 2, r.Resume: 3, r.Requeue: 4, r.Move: 5, r.Reprioritise: 6, r.Watch: 7, r.Hold: 8,
    r.Delete: 9, r.Reschedule: 10,
}  # fmt: skip
_TO_AN_INSTANT = 11


def arguments(change: r.Change) -> tuple[int, str, int]:
    """The kind of a change, its text and its number.

    >>> arguments(r.Move("mail")), arguments(r.Reschedule(run_at=5))
    ((5, 'mail', 0), (11, '', 5))
    """
    kind = _KINDS[type(change)]
    match change:
        case r.Cancel(text) | r.Move(text) | r.Watch(text):
            return kind, text, 0
        case r.Reprioritise(number) | r.Hold(number) | r.Reschedule(number, None):
            return kind, "", number
        case r.Reschedule(_, int(run_at)):
            return _TO_AN_INSTANT, "", max(0, run_at)
    return kind, "", 0
