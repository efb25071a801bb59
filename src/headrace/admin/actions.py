"""What operators can do to jobs, by name: the same names in code, over HTTP and on the command line."""

from __future__ import annotations

from enum import StrEnum

from headrace.core.durations import micros
from headrace.core.names import check_queue
from headrace.errors import ConfigError, InvalidJob
from headrace.seam import records as r
from headrace.text import shown


class Action(StrEnum):
    """Changes to jobs.

    >>> Action("requeue") is Action.REQUEUE
    True
    """

    REQUEUE = "requeue"
    """Run ended jobs again, now."""
    CANCEL = "cancel"
    """Cancel waiting jobs; ask running ones to stop."""
    PAUSE = "pause"
    RESUME = "resume"
    RESCHEDULE = "reschedule"
    """Make waiting jobs due after a delay, the argument; without one, now."""
    MOVE = "move"
    """Move waiting jobs to another queue, the argument."""
    PRIORITISE = "prioritise"
    """Give waiting jobs another priority, the argument."""
    DELETE = "delete"
    """Remove jobs that do not run, for good."""


_PLAIN: dict[Action, r.Change] = {
    Action.REQUEUE: r.Requeue(),
    Action.CANCEL: r.Cancel("cancelled by an operator"),
    Action.PAUSE: r.Pause(),
    Action.RESUME: r.Resume(),
    Action.DELETE: r.Delete(),
}


def change_of(action: Action | str, argument: str | None = None) -> r.Change:
    """The change that an action stands for.

    >>> change_of("move", "mail")
    Move(queue='mail')
    """
    if action not in list(Action):
        raise ConfigError(f"action: expected one of {', '.join(Action)}, got {shown(action)}")
    plain = _PLAIN.get(Action(action))
    if plain is not None:
        if argument is not None:
            raise ConfigError(f"{action}: expected no argument, got {shown(argument)}")
        return plain
    if action == Action.RESCHEDULE:
        return r.Reschedule(0 if argument is None else micros(argument, "reschedule"))
    if argument is None:
        raise ConfigError(f"{action}: expected an argument, got none")
    if action == Action.MOVE:
        try:
            return r.Move(check_queue(argument))
        except InvalidJob as error:
            raise ConfigError(str(error)) from None
    try:
        return r.Reprioritise(int(argument))
    except ValueError:
        raise ConfigError(f"prioritise: expected a whole number, got {shown(argument)}") from None
