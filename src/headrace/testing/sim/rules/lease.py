"""renew and reap: which holder keeps a lease and which loses it (I3, I4), and what a loss costs (I6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.seam.records import CENSUS, Beat, JobId, Reap, Reaped, Renewed
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.life import Life
from headrace.testing.sim.rules.absence import is_spared, note_beat, unlist
from headrace.testing.sim.rules.claim import expire
from headrace.types import JobState


def on_renew(book: Ledger, beat: Beat, renewed: Renewed, now: int) -> None:
    """A beat was answered."""
    running = book.places[JobState.RUNNING]
    note_beat(book, beat, now)
    lost = Counter(renewed.lost)
    for job_id, epoch in beat.leases:
        life = running.get(job_id)
        if life is None or (life.epoch, life.holder) != (epoch, beat.holder):
            lost[job_id, epoch] -= 1
        else:
            book.reach("renewed past its expiry" if life.lease_until <= now else "renewed")
            life.lease_until = now + beat.lease_for
    for (job_id, _), surplus in lost.items():
        if surplus:
            said = "reported lost, but is current" if surplus > 0 else "renewed, but is not current"
            book.blame("I4", job_id, f"a lease of {beat.holder} was {said}")
    asked = {life.id for life in running.values() if life.cancel_requested and life.holder == beat.holder}
    for job_id in sorted(asked.symmetric_difference(renewed.cancels)):
        said = "did not hear of it" if job_id in asked else "heard of one that nobody made"
        book.blame("I14", job_id, f"a cancel request: the holder {said}")
    if asked:
        book.reach("cancel request told")
    mine = {(life.id, life.epoch, life.begun_before) for life in running.values() if life.holder == beat.holder}
    if beat.census and len(mine) <= CENSUS and mine != set(renewed.held):
        book.blame("I4", None, f"{beat.holder} asked for its leases and got {len(renewed.held)} of {len(mine)}")
    if renewed.overdue != (beat.census and any(life.lease_until <= now for life in running.values())):
        book.blame("I4", None, f"whether leases have expired was answered {renewed.overdue}")
    if frozenset(renewed.paused) != book.paused.intersection(beat.queues):
        book.blame("I26", None, f"paused queues were answered as {list(renewed.paused)}, not {sorted(book.paused)}")


def _steady(book: Ledger, req: Reap, now: int) -> bool:
    if req.holder is None:
        return True
    beats = book.beats.get(req.holder)
    return beats is not None and beats.seen_at >= now - req.gap and beats.steady_since <= now - req.steady


def on_reap(book: Ledger, req: Reap, reaped: Sequence[Reaped], seen: Sequence[tuple[JobId, int]], now: int) -> None:
    """A reap was answered; ``seen`` is when those that came back are due, as the observer saw it."""
    due = dict(seen)
    running = book.places[JobState.RUNNING]
    steady = _steady(book, req, now)
    book.reach("reaped by one that is steady" if steady else "kept from reaping")
    over = [life for life in running.values() if life.lease_until <= now] if steady else []
    if steady:
        unlist(book, now)
    if len(reaped) > req.limit:
        book.blame("I16", None, f"a reap took {len(reaped)} jobs where {req.limit} were allowed")
    for one in reaped:
        life = book.jobs.get(one.id)
        if life is None:
            book.blame("I2", one.id, "a reap took a job that is not there")
        elif one.reason == "expired" and life.state is JobState.AVAILABLE:
            expire(book, one.id, now, "reap")
        elif not steady:
            book.blame("I3", one.id, f"{req.holder}, whose own beats had paused, took a lease away")
        elif life.state is not JobState.RUNNING:
            book.blame("I5" if life.state.terminal else "I4", one.id, f"a reap took a job that is {life.state}")
        else:
            _take_back(book, req, life, one, due.get(one.id, now), now)
    left = [life.id for life in over if life.state is JobState.RUNNING]
    if left and len(reaped) < req.limit:
        book.blame("I22", left[0], f"a reap with room to spare left {len(left)} expired leases alone")


def _take_back(book: Ledger, req: Reap, life: Life, one: Reaped, run_at: int, now: int) -> None:
    if life.lease_until > now:
        book.blame("I3", life.id, f"a lease was taken {life.lease_until - now} µs before it expired")
    spared = is_spared(book, life.lease_until)
    lost = life.lost + (not spared and not life.cancel_requested)
    if one.lost != lost:
        book.blame("I6", life.id, f"a loss was counted as {one.lost}, which should be {lost}")
    poison = lost > req.max_lost and not spared
    right = JobState.CANCELLED if life.cancel_requested else JobState.FAILED if poison else JobState.AVAILABLE
    if one.state is not right:
        book.blame("I14" if life.cancel_requested else "I6", life.id, f"reaped as {one.state}, should be {right}")
    book.reach("absence spared the job" if spared else f"reaped {one.state}")
    life.lost = one.lost
    if one.state.terminal:
        book.finish(life, one.state, now, one.reason)
        return
    if not now <= run_at <= now + req.spread:
        book.blame("I9", life.id, f"reaped to be due in {run_at - now} µs, where at most {req.spread} was asked for")
    life.run_at = run_at
    book.put(life, one.state)
