"""alter: each change applies to its states and to no other (I5, I14, I16), and takes effect as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import (
    Altered,
    Cancel,
    Change,
    Delete,
    Hold,
    JobId,
    Move,
    Pause,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
    Watch,
)
from headrace.testing.sim.ledger import LIVE, Ledger
from headrace.testing.sim.life import Life
from headrace.types import JobState

_WAITING = (JobState.AVAILABLE, JobState.PAUSED)


def on_alter(book: Ledger, sel: Selector, change: Change, answers: Sequence[Altered], now: int) -> None:
    """A change was answered."""
    named = sel.ids is not None or sel.keys is not None
    right = _named(book, sel, now) if named else _met(book, sel, change, now)
    if named and [answer.id for answer in answers] != right:
        book.blame("I16", next(iter(right), None), f"{len(right)} named jobs exist, {len(answers)} were answered")
    if not named and (len(answers) != min(len(right), sel.limit) or not {a.id for a in answers} <= set(right)):
        book.blame("I16", None, f"a filter should meet {min(len(right), sel.limit)} jobs, and met {len(answers)}")
    for answer in answers:
        _judge(book, change, answer, now)


def outcome(book: Ledger, change: Change, life: Life, now: int) -> tuple[JobState | None, bool]:
    """What the change must make of the job: its state then, and whether the change takes effect."""
    state = life.state
    match change:
        case Cancel():
            return (JobState.CANCELLED if state in _WAITING else state), state in LIVE
        case Pause() if state is JobState.AVAILABLE:
            return JobState.PAUSED, True
        case Resume() if state is JobState.PAUSED:
            return JobState.AVAILABLE, True
        case Requeue() if state.terminal and _may_take_key(book, life, life.queue, now):
            return JobState.AVAILABLE, True
        case Move(queue):
            return state, state in _WAITING and queue != life.queue and _may_take_key(book, life, queue, now)
        case Reprioritise() | Reschedule():
            return state, state in _WAITING
        case Watch():
            return state, state in LIVE
        case Hold():
            return state, life.held(now)
        case Delete() if state is not JobState.RUNNING:
            return None, True
    return state, False


def take_effect(book: Ledger, change: Change, life: Life, now: int) -> None:
    """The store has made the change on its own."""
    after, changed = outcome(book, change, life, now)
    if changed:
        _apply(book, change, life, after, now)


def _named(book: Ledger, sel: Selector, now: int) -> list[JobId]:
    lives = [book.jobs.get(job_id) for job_id in sel.ids or ()]
    lives += [book.by_key(name.queue, name.key) for name in sel.keys or ()]
    return [life.id for life in dict.fromkeys(lives) if life is not None and _matches(life, sel, now)]


def _met(book: Ledger, sel: Selector, change: Change, now: int) -> list[JobId]:
    return [
        life.id
        for life in book.jobs.values()
        if _matches(life, sel, now)
        and _applies(change, life)
        and not (isinstance(change, Cancel) and life.cancel_requested)
    ]


def _applies(change: Change, life: Life) -> bool:
    """Whether a filter meets a job in this state, though the change may then be refused for its key or its ttl."""
    match change:
        case Cancel() | Watch():
            return life.state in LIVE
        case Pause():
            return life.state is JobState.AVAILABLE
        case Resume():
            return life.state is JobState.PAUSED
        case Requeue():
            return life.state.terminal
        case Hold():
            return life.state is JobState.COMPLETED
        case Delete():
            return life.state is not JobState.RUNNING
        case _:
            return life.state in _WAITING


def _matches(life: Life, sel: Selector, now: int) -> bool:
    return (
        (sel.queue is None or life.queue == sel.queue)
        and (sel.tenant is None or life.row.tenant == sel.tenant)
        and (sel.task is None or life.row.task == sel.task)
        and (sel.states is None or life.state in sel.states)
        and (sel.older_than is None or life.enqueued_at <= now - sel.older_than)
        and (sel.reason is None or life.reason == sel.reason)
        and (sel.above is None or life.id > sel.above)
    )


def _may_take_key(book: Ledger, life: Life, queue: str, now: int) -> bool:
    if life.key is None:
        return True
    holder = book.key_holder(queue, life.key, now)
    return holder in (None, life.id)


def _judge(book: Ledger, change: Change, answer: Altered, now: int) -> None:
    life = book.jobs.get(answer.id)
    what = type(change).__name__.lower()
    if life is None:
        book.blame("I2", answer.id, f"{what} was answered for a job that is not there")
        return
    if answer.before is not life.state:
        invariant = "I5" if life.state.terminal else "I16"
        book.blame(invariant, life.id, f"{what} found the job {answer.before}, which should be {life.state}")
        book.put(life, answer.before)
    right = outcome(book, change, life, now)
    if (answer.after, answer.changed) != right:
        keyed = isinstance(change, Requeue | Move) and life.key is not None
        invariant = "I14" if isinstance(change, Cancel) else "I13" if keyed else "I16"
        book.blame(invariant, life.id, f"{what} gave {answer.after}, {answer.changed}; should be {right}")
    if answer.changed:
        book.reach(f"{what} {life.state}")
        _apply(book, change, life, answer.after, now)
    else:
        book.reach(f"{what} refused")


def _apply(book: Ledger, change: Change, life: Life, after: JobState | None, now: int) -> None:
    match change:
        case Cancel(reason):
            if life.state is JobState.RUNNING and after is JobState.RUNNING:
                life.superseded |= reason == "superseded" and not life.cancel_requested
                life.cancel_requested = True
            elif after is not None and after.terminal:
                book.finish(life, after, now, reason)
        case Pause() | Resume():
            if after is not None:
                book.put(life, after)
        case Requeue():
            _start_afresh(book, life, now)
        case Move(queue):
            book.change_queue(life, queue, now)
        case Reprioritise(priority):
            life.priority = priority
        case Reschedule(delay, run_at):
            life.run_at = now + delay if run_at is None else run_at
            book.put(life, life.state)
        case Hold(result_ttl):
            life.held_until = now + result_ttl
        case Delete():
            book.remove(life, "deleted")


def _start_afresh(book: Ledger, life: Life, now: int) -> None:
    life.attempt = life.lost = life.held_until = 0
    life.error = life.result = life.finished_at = life.expires_at = None
    life.reason = ""
    life.run_at = now
    book.put(life, JobState.AVAILABLE)
    if life.key is not None:
        book.keys[life.queue, life.key] = life.id
