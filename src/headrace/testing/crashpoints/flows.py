"""The flows: what a process does when it dies, and what others then do in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from headrace.seam.policy import Policy
from headrace.testing.crashpoints import steps
from headrace.testing.crashpoints.actor import Actor, Handler, done
from headrace.types import JobState

Step = Callable[[Actor], Awaitable[object]]

COMPLETED, CANCELLED, FAILED = JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED


async def _nothing(actor: Actor) -> None:
    pass


class Flow(Struct, frozen=True):
    """One story of a process that may die at any call of ``act``.

    ``before`` comes first, and no process dies in it. ``after`` is what the contract tells a caller without an answer
    to do: repeat. ``ends`` says which jobs there must be in the end, by task.
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
    line: str = ""
    """Tasks of the jobs of one group: they run one at a time, in this order."""
    rules: Policy | None = None
    """What holds for the queue from the beginning to the end."""
    needs: frozenset[str] = frozenset()
    """Capabilities that the flow needs: ``finish_and_claim``, ``policies``."""


_TWO = {"a": COMPLETED, "b": COMPLETED}
_FIVE = dict.fromkeys("abcde", COMPLETED)
_LINE = dict.fromkeys(steps.LINE, COMPLETED)
_BOTH, _RULES = frozenset({"finish_and_claim"}), frozenset({"policies"})

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
    Flow("finish and claim", steps.finish_and_claim, _TWO, before=steps.enqueue_two, needs=_BOTH),
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
    Flow("reschedule", steps.reschedule, _TWO, before=steps.enqueue_two, after=steps.reschedule),
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
    Flow("enqueue a group", steps.enqueue_group, _LINE, after=steps.enqueue_group, line="abc", together=tuple("abc")),
    Flow("a group, retry", steps.work_twice, _LINE, before=steps.enqueue_group, handler=steps.fail_once, line="abc"),
    Flow(
        "a group, spawn",
        steps.work,
        {**_LINE, "d": COMPLETED},
        before=steps.enqueue_group,
        handler=steps.follow,
        line="abcd",
    ),
    Flow(
        "a group, finish and claim", steps.finish_and_claim, _LINE, before=steps.enqueue_group, line="abc", needs=_BOTH
    ),
    Flow("a group, reap", steps.reap_and_work, _LINE, before=steps.vanish_in_group, line="abc"),
    Flow(
        "a group, cancel",
        steps.cancel_first,
        {**_LINE, "a": CANCELLED},
        before=steps.enqueue_group,
        after=steps.cancel_first,
        line="abc",
    ),
    Flow(
        "govern a queue", steps.govern_and_work, _FIVE, before=steps.enqueue_tenants, after=steps.govern, needs=_RULES
    ),
    Flow(
        "retry under rules",
        steps.work_twice,
        _FIVE,
        before=steps.enqueue_under_rules,
        handler=steps.fail_once,
        rules=steps.RULES,
        needs=_RULES,
    ),
    Flow(
        "finish and claim under rules",
        steps.finish_and_claim,
        _LINE,
        before=steps.enqueue_group_under_rules,
        line="abc",
        rules=steps.RULES,
        needs=_BOTH | _RULES,
    ),
    Flow(
        "reap under rules",
        steps.reap_and_work,
        _FIVE,
        before=steps.vanish_under_rules,
        rules=steps.RULES,
        needs=_RULES,
    ),
    Flow(
        "come under rules",
        steps.work_twice,
        _TWO,
        before=steps.enqueue_elsewhere,
        handler=steps.come_back,
        needs=_RULES,
    ),
    Flow(
        "change rules",
        steps.change_rules,
        _FIVE,
        before=steps.enqueue_under_rules,
        after=steps.loosen,
        needs=_RULES,
    ),
    Flow(
        "pause a tenant and resume",
        steps.pause_tenant_and_resume,
        _FIVE,
        before=steps.enqueue_under_rules,
        after=steps.resume_tenant,
        rules=steps.RULES,
        needs=_RULES,
    ),
    Flow(
        "enqueue too many", steps.enqueue_too_many, _TWO, before=steps.narrow, after=steps.enqueue_second, needs=_RULES
    ),
    Flow("look", steps.look, _TWO, before=steps.enqueue_two, after=steps.look),
)
"""Every operation of the waist, and the ways in which they follow each other."""
