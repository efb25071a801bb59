"""The flows: what a process does when it dies, and what others then do in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from headrace.testing.crashpoints import steps
from headrace.testing.crashpoints.actor import Actor, Handler, done
from headrace.types import JobState

Step = Callable[[Actor], Awaitable[object]]

COMPLETED, CANCELLED, FAILED = JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED


async def _nothing(actor: Actor) -> None:
    pass


class Flow(Struct, frozen=True):
    """One story of a process that may die at any call of ``act``.

    ``before`` comes first, and nobody dies in it. ``after`` is what the contract tells those to do who were left
    without an answer: repeat. ``ends`` tells every job that there must be in the end, by its task.
    """

    name: str
    act: Step
    ends: dict[str, JobState]
    before: Step = _nothing
    after: Step = _nothing
    handler: Handler = done
    together: tuple[str, ...] = ()
    """Tasks that came in one batch: right after the crash all of them are there, or none."""
    removes: bool = False
    """Whether records of jobs that ended may be gone in the end."""


_TWO = {"a": COMPLETED, "b": COMPLETED}
_FIVE = dict.fromkeys("abcde", COMPLETED)

FLOWS: tuple[Flow, ...] = (
    Flow("enqueue", steps.enqueue, {"a": COMPLETED}, after=steps.enqueue),
    Flow("enqueue with a key", steps.enqueue_key, {"a": COMPLETED}, after=steps.enqueue_key),
    Flow("enqueue with a key, anew", steps.enqueue_key_anew, {"a": COMPLETED}, after=steps.enqueue_key_anew),
    Flow(
        "enqueue in bulk",
        steps.enqueue_bulk,
        {"a": COMPLETED, "b": COMPLETED, "c": COMPLETED},
        after=steps.enqueue_bulk,
        together=("a", "b", "c"),
    ),
    Flow("work", steps.work, _TWO, before=steps.enqueue_two),
    Flow(
        "work and spawn",
        steps.work,
        {"a": COMPLETED, "child": COMPLETED, "successor": COMPLETED},
        before=steps.enqueue_key,
        handler=steps.spawn,
    ),
    Flow("retry", steps.work_off, _TWO, before=steps.enqueue_two, handler=steps.fail_once),
    Flow("release", steps.work_off, _TWO, before=steps.enqueue_two, handler=steps.release),
    Flow("go to another queue", steps.work_off, _TWO, before=steps.enqueue_two, handler=steps.go_elsewhere),
    Flow("leave no record", steps.work, {}, before=steps.enqueue_two, handler=steps.leave_nothing, removes=True),
    Flow(
        "fail and requeue",
        steps.fail_and_repair,
        _TWO,
        before=steps.enqueue_two,
        after=steps.repair,
        handler=steps.fail_until_repaired,
    ),
    Flow("renew", steps.work_long, _TWO, before=steps.enqueue_two),
    Flow("turn", steps.turn, _TWO, before=steps.enqueue_two),
    Flow("reap", steps.reap_and_work, _TWO, before=steps.vanish),
    Flow("reap poison", steps.reap, {"a": FAILED, "b": FAILED}, before=steps.vanish_thrice),
    Flow("reap cancelled", steps.reap, {"a": CANCELLED, "b": CANCELLED}, before=steps.vanish_cancelled),
    Flow("reap expired", steps.reap, {"a": CANCELLED}, before=steps.let_expire),
    Flow("claim expired", steps.work, {"a": CANCELLED}, before=steps.let_expire),
    Flow("cancel", steps.cancel, {"a": CANCELLED, "b": CANCELLED}, before=steps.enqueue_two, after=steps.cancel),
    Flow(
        "cancel running",
        steps.cancel_running,
        {"a": CANCELLED, "b": CANCELLED},
        before=steps.enqueue_two,
        after=steps.cancel,
        handler=steps.release,
    ),
    Flow("pause and resume", steps.pause_and_resume, _TWO, before=steps.enqueue_two, after=steps.resume),
    Flow("move", steps.move, _TWO, before=steps.enqueue_two, after=steps.move),
    Flow("reprioritise", steps.reprioritise, _TWO, before=steps.enqueue_two, after=steps.reprioritise),
    Flow("watch", steps.watch, _TWO, before=steps.enqueue_two, after=steps.watch),
    Flow("hold", steps.hold, _TWO, before=steps.complete_two, after=steps.hold),
    Flow("delete", steps.delete, {}, before=steps.enqueue_two, after=steps.delete, removes=True),
    Flow(
        "pause a queue and resume",
        steps.pause_queue_and_resume,
        _TWO,
        before=steps.enqueue_two,
        after=steps.resume_queue,
    ),
    Flow(
        "sweep",
        steps.sweep,
        {"d": FAILED, "e": FAILED},
        before=steps.end_five,
        after=steps.sweep,
        handler=steps.fail_until_repaired,
        removes=True,
    ),
    Flow("sweep results", steps.sweep_results, _FIVE, before=steps.complete_five, after=steps.sweep_results),
    Flow("look", steps.look, _TWO, before=steps.enqueue_two, after=steps.look),
)
"""Every operation of the waist, and the ways in which they follow each other."""
