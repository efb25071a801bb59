"""The checker on histories whose verdict is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headrace.backends.memory.entry import Entry
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Misfire, tick, unpack
from headrace.seam.policy import Rate, TenantLimit, TenantState
from headrace.seam.records import (
    Altered,
    Beat,
    Claim,
    Claimed,
    Delete,
    Hold,
    Inserted,
    InsertStatus,
    Move,
    Pause,
    Reap,
    Reaped,
    Renewed,
    Requeue,
    Resume,
    Settlement,
    Stats,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.seam.ticks import Drop, Look, Looked, Overlap, Plan, TickOutcome
from headrace.testing.sim.invariants import INVARIANTS
from headrace.types import JobState
from tests.sim.tale import LEASE, SECOND, UID, Tale, job, leased, row

A, R, P = JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED
FIRED = TickOutcome.FIRED
C, X, F = JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED

LEGAL: list[Callable[[Tale], None]] = []
ILLEGAL: list[tuple[str, Callable[[Tale], None]]] = []


def legal(tell: Callable[[Tale], None]) -> Callable[[Tale], None]:
    LEGAL.append(tell)
    return tell


def illegal(invariant: str) -> Callable[[Callable[[Tale], None]], Callable[[Tale], None]]:
    def mark(tell: Callable[[Tale], None]) -> Callable[[Tale], None]:
        ILLEGAL.append((invariant, tell))
        return tell

    return mark


@pytest.mark.parametrize("tell", LEGAL, ids=lambda tell: tell.__name__)
def test_a_legal_history_passes(tell: Callable[[Tale], None]) -> None:
    tale = Tale()
    tell(tale)
    verdict = tale.verdict()
    assert verdict.ok, verdict.story


@pytest.mark.parametrize(("invariant", "tell"), ILLEGAL, ids=lambda given: getattr(given, "__name__", given))
def test_an_illegal_history_is_caught(invariant: str, tell: Callable[[Tale], None]) -> None:
    tale = Tale()
    tell(tale)
    verdict = tale.verdict()
    assert invariant in verdict.broken, f"{invariant} should be broken, found {verdict.broken}: {verdict.story}"
    first = verdict.violations[0]
    assert first.message in verdict.story
    assert INVARIANTS[first.invariant] in verdict.story


def test_there_are_enough_of_both_and_every_invariant_has_its_own() -> None:
    assert len(LEGAL) >= 20
    assert len(ILLEGAL) >= 20
    assert {invariant for invariant, _ in ILLEGAL} == set(INVARIANTS)


# -- what may happen


def _lost_twice(t: Tale) -> None:
    """Job 1 has been lost twice, and waits."""
    t.insert(row(1))
    for _ in range(2):
        t.lose("w0")
        t.reap()


@legal
def nothing_at_all(t: Tale) -> None:
    t.look(final=True)


@legal
def a_job_runs_and_completes(t: Tale) -> None:
    t.insert(row(1))
    t.run(result=b"r", result_ttl=SECOND)
    t.look(final=True)


@legal
def a_lost_reply_and_the_same_insert_again(t: Tale) -> None:
    t.insert(row(1), reply="lost")
    t.insert(row(1))
    t.run()
    t.look(final=True)


@legal
def an_insert_whose_sender_died_is_run_all_the_same(t: Tale) -> None:
    t.insert(row(1), reply="")
    t.run()
    t.look(final=True)


@legal
def an_insert_delivered_twice_counts_once(t: Tale) -> None:
    t.insert(row(1, key="k"), times=2)
    t.run()
    t.look(final=True)


@legal
def a_crashed_workers_job_runs_again(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.history.fault("w1", "crash")
    t.reap()
    t.run("w2")
    t.look(final=True)


@legal
def a_zombie_runs_on_and_is_refused(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.reap()
    t.claim("w2")
    t.start("w2")
    t.end("w1")
    t.finish("w1")
    t.end("w2")
    t.finish("w2")
    t.look(final=True)


@legal
def an_expired_lease_that_nobody_took_is_still_good(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.beat("w1", 1)
    t.wait(4)
    t.end("w1")
    t.finish("w1")
    t.look(final=True)


@legal
def a_settlement_delivered_twice_counts_once(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.finish(state=A, failed_attempt=True, times=2, reply="lost")
    t.run()
    t.look(final=True)


@legal
def a_poisoned_job_is_given_up(t: Tale) -> None:
    t.insert(row(1))
    for _ in range(3):
        t.lose("w1")
        t.history.fault("w1", "crash")
        t.reap(max_lost=2)
    t.look(final=True)


@legal
def an_absence_of_the_fleet_poisons_nobody(t: Tale) -> None:
    t.insert(row(1))
    t.show("w1", "w2")
    t.claim("w1")
    t.wait(4)
    t.show("w3")
    t.reap(max_lost=0)
    t.look()


@legal
def the_only_worker_is_no_fleet(t: Tale) -> None:
    t.insert(row(1))
    t.show("w1")
    t.claim("w1")
    t.wait(4)
    t.show("w3")
    t.reap(max_lost=0)
    t.look()


@legal
def retries_up_to_the_last_attempt(t: Tale) -> None:
    t.insert(row(1, max_attempts=2))
    t.claim()
    t.finish(state=A, delay=SECOND, failed_attempt=True, error=b"e")
    t.wait(1)
    t.claim()
    t.finish(state=F, failed_attempt=True)
    t.look(final=True)


@legal
def claims_follow_priority_then_time_then_id(t: Tale) -> None:
    t.insert(row(3), row(1, priority=1), row(2, priority=-1), row(4, delay=SECOND, priority=-9))
    assert [held.id for held in t.claim(limit=9)] == [job(2), job(3), job(1)]
    t.wait(1)
    t.claim(limit=9)
    t.look()


@legal
def a_waiting_job_is_cancelled(t: Tale) -> None:
    t.insert(row(1, key="k"))
    t.cancel()
    t.claim()
    t.insert(row(2, key="k"))
    t.run(number=2)
    t.look(final=True)


@legal
def a_cancel_request_ends_a_retry(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.cancel()
    t.beat("w1")
    t.finish(state=A)
    t.look(final=True)


@legal
def a_cancel_request_comes_too_late_for_an_end(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.cancel()
    t.finish(state=C)
    t.look(final=True)


@legal
def a_key_is_held_and_then_free_again(t: Tale) -> None:
    t.insert(row(1, key="k"))
    t.insert(row(2, key="k"))
    t.run(result=b"r", result_ttl=SECOND)
    t.insert(row(3, key="k"))
    t.wait(2)
    t.insert(row(4, key="k"))
    t.run(number=4)
    t.look(final=True)


@legal
def spawned_jobs_come_with_an_outcome(t: Tale) -> None:
    t.insert(row(1, key="k"))
    t.claim()
    t.finish(spawn=[row(2, key="k"), row(3)])
    t.run(number=2)
    t.run(number=3)
    t.look(final=True)


@legal
def a_paused_queue_and_a_paused_job_may_wait(t: Tale) -> None:
    t.insert(row(1), row(2, queue="r"))
    t.alter(2, Pause())
    t.pause()
    t.claim(queues=("q", "r"))
    t.look(final=True)


@legal
def a_paused_queue_goes_on_later(t: Tale) -> None:
    t.insert(row(1))
    t.pause()
    t.claim()
    t.pause(paused=False)
    t.run()
    t.look(final=True)


@legal
def an_expired_job_is_cancelled_not_run(t: Tale) -> None:
    t.insert(row(1, expires=SECOND), row(2, expires=SECOND, queue="nobody's"))
    t.wait(2)
    t.claim()
    t.reap()
    t.look(final=True)


@legal
def a_dead_letter_is_requeued_and_starts_afresh(t: Tale) -> None:
    t.insert(row(1, max_attempts=1))
    t.claim()
    t.finish(state=F, failed_attempt=True, error=b"e")
    t.alter(1, Requeue())
    t.run()
    t.look(final=True)


@legal
def a_sweep_takes_what_is_old_and_done(t: Tale) -> None:
    t.insert(row(1), row(2), row(3))
    t.run(result=b"r", result_ttl=SECOND)
    t.wait(5)
    t.run(number=2)
    t.sweep(SweepTarget.RESULTS)
    t.sweep()
    t.insert(row(1))
    t.run(number=3)
    t.run(number=1)
    t.look(final=True)


@legal
def a_waiter_hears_of_the_end_or_of_the_timeout(t: Tale) -> None:
    t.insert(row(1), row(2), row(3))
    t.run(result=b"r", result_ttl=SECOND)
    t.waiter(1, (C, b"r"))
    t.waiter(2, None, after=1.2, timeout=1.0)
    t.cancel(2)
    t.waiter(2, (X, None))


@legal
def sections_are_patched_and_the_rest_is_kept(t: Tale) -> None:
    t.insert(row(1, cells={"parameters": b"p", "blob": b"b", "vm_state": b""}))
    t.claim()
    t.finish(state=A, cells={"blob": None, "metadata": b"m"}, queue="q", priority=3)
    t.run()
    t.look(final=True)


@legal
def jobs_are_moved_held_and_deleted(t: Tale) -> None:
    t.insert(row(1, key="k"), row(2, queue="r", key="k"), row(3))
    t.alter(1, Move("r"))
    t.alter(3, Delete())
    t.run(result=b"r", result_ttl=SECOND)
    t.alter(1, Hold(60 * SECOND))
    t.wait(30)
    t.insert(row(4, key="k"))
    t.look()


@legal
def a_turn_settles_and_claims(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    again = Settlement(held.id, held.epoch, "w1", A, delay=0)
    t.call("w1", "finish_and_claim", (again,), Claim("w1", ("q",), 1, 3 * SECOND))
    t.look()


@legal
def slots_are_fired_missed_and_made_up_for(tale: Tale) -> None:
    tale.schedule(misfire=Misfire.SKIP, grace=0)
    tale.wait(10)
    tale.plan()
    tale.wait(35)
    tale.plan()
    tale.call("k", "ticks.plan", (_made_up(tale, 2),), times=2)
    tale.look()


@legal
def the_second_of_two_planners_has_done_nothing(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    plan = tale.planned("w2")
    tale.plan(reply="lost")
    assert tale.plan(plan, "w2") == [None]
    tale.plan(plan, "w2", times=2)
    tale.look()


@legal
def the_job_of_the_slot_before_is_cancelled(tale: Tale) -> None:
    tale.schedule(overlap=Overlap.CANCEL)
    for _ in range(2):
        tale.wait(10)
        tale.plan()
    tale.look()


@legal
def a_slot_is_skipped_while_the_job_before_it_is_alive(tale: Tale) -> None:
    tale.schedule(overlap=Overlap.SKIP)
    for _ in range(2):
        tale.wait(10)
        tale.plan()
    tale.look()


@legal
def a_job_on_its_last_chance_runs_alone(t: Tale) -> None:
    _lost_twice(t)
    t.insert(row(2), row(3))
    t.claim("w1", limit=2, lost_below=2)
    t.claim("w2", lost_below=2)
    for number in (2, 3):
        t.start("w1", number)
        t.end("w1", number)
        t.finish("w1", number)
    t.run("w1", 1)
    t.look(final=True)


@legal
def another_worker_makes_room_when_the_first_does_not(t: Tale) -> None:
    _lost_twice(t)
    t.claim("w1", lost_below=2)
    t.wait(4)
    t.claim("w1", lost_below=2)
    t.claim("w2", lost_below=2)
    t.run("w2", 1)
    t.look(final=True)


# -- what may not


@illegal("I1")
def an_acknowledged_job_is_gone(t: Tale) -> None:
    t.insert(row(1), row(2))
    t.look(without=1)


@illegal("I1")
def a_job_is_cancelled_as_expired_that_has_not_expired(t: Tale) -> None:
    t.insert(row(1))
    t.claim(lie=Claimed([], None, [Reaped(job(1), "q", "t", X, 0, "expired")]))


@illegal("I1")
def a_spawned_job_is_dropped(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.finish(spawn=[row(2)])
    t.look(without=2)


@illegal("I2")
def a_job_runs_that_nobody_enqueued(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.grant("w2", replace(held, id=job(9)))


@illegal("I2")
def a_fenced_worker_spawns_all_the_same(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.reap()
    t.finish("w1", spawn=[row(2)])
    t.store.store.add(Entry(row(2), t.now))
    t.look()


@illegal("I2")
def a_handler_starts_out_of_nowhere(t: Tale) -> None:
    t.start("w1", 7, epoch=1)


@illegal("I3")
def a_job_is_given_to_two(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim("w1")
    t.grant("w2", replace(held, epoch=2))


@illegal("I3")
def a_live_lease_is_taken_back(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.reap(lie=[Reaped(job(1), "q", "t", A, 1, "")])


@illegal("I4")
def a_zombies_settlement_is_accepted(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.reap()
    t.claim("w2")
    t.finish("w1", lie=C)


@illegal("I4")
def a_settlement_with_a_guessed_epoch_is_accepted(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.finish(epoch=2, lie=C)


@illegal("I4")
def a_good_settlement_is_refused(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.finish(lie=None)


@illegal("I4")
def a_lost_lease_is_renewed(t: Tale) -> None:
    t.insert(row(1))
    t.lose("w1")
    t.reap()
    t.beat("w1", 1, lie=Renewed())


@illegal("I4")
def a_good_lease_is_called_lost(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.beat("w1", 1, lie=Renewed([(job(1), 1)]))


@illegal("I5")
def a_completed_job_is_completed_again(t: Tale) -> None:
    t.insert(row(1))
    t.run(result=b"r", result_ttl=SECOND)
    t.finish(result=b"other", lie=C)


@illegal("I5")
def a_failed_job_is_granted(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=F)
    t.grant("w2", replace(held, epoch=2))


@illegal("I5")
def a_completed_job_is_found_waiting(t: Tale) -> None:
    t.insert(row(1))
    t.run()
    t.look(state=A)


@illegal("I6")
def an_epoch_is_given_twice(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=A)
    t.grant("w2", replace(held, run_at=t.now))


@illegal("I6")
def a_job_is_said_to_have_begun_that_has_not(t: Tale) -> None:
    t.insert(row(1))
    t.grant("w1", replace(leased(1, t.now), epoch=t.now + 1, begun=True))


@illegal("I7")
def a_store_that_forgot_a_claim_gives_the_same_epoch_to_another(t: Tale) -> None:
    """As one whose claims are not on its disk when it crashes."""
    t.insert(row(1))
    [held] = t.claim("w1")
    t.start("w1")
    t.grant("w2", held)
    t.start("w2")


@illegal("I3")
def a_holder_whose_beats_have_paused_takes_leases_away(t: Tale) -> None:
    """As a reap does that lay in the input of a store which stood still."""
    t.insert(row(1))
    t.lose()
    t.call("w2", "renew", Beat("w2", "w2", ("q",), LEASE, gap=SECOND))
    t.wait(2)
    request = Reap(holder="w2", gap=SECOND, steady=SECOND)
    t.call("w2", "reap", request, lie=[Reaped(job(1), "q", "t", A, 1, "")])


@illegal("I4")
def a_holder_is_not_told_what_it_holds(t: Tale) -> None:
    t.insert(row(1))
    t.claim("w1", reply="lost")
    t.call("w1", "renew", Beat("w1", "w1", ("q",), LEASE, census=True), lie=Renewed())


@illegal("I6")
def a_loss_is_not_counted(t: Tale) -> None:
    t.insert(row(1))
    t.lose()
    t.reap(lie=[Reaped(job(1), "q", "t", A, 0, "")])


@illegal("I6")
def a_poisoned_job_is_never_given_up(t: Tale) -> None:
    t.insert(row(1))
    t.lose()
    t.reap(max_lost=0, lie=[Reaped(job(1), "q", "t", A, 1, "")])


@illegal("I6")
def an_absence_is_charged_to_the_job(t: Tale) -> None:
    t.insert(row(1))
    t.show("w1", "w2")
    t.claim("w1")
    t.wait(4)
    t.show("w3")
    t.reap(lie=[Reaped(job(1), "q", "t", A, 1, "")])


@illegal("I6")
def a_worker_that_vanished_alone_costs_nothing(t: Tale) -> None:
    t.insert(row(1))
    t.show("w1", "w2")
    t.claim("w1")
    t.wait(2)
    t.show("w2")
    t.wait(2)
    t.show("w3")
    t.reap(lie=[Reaped(job(1), "q", "t", A, 0, "")])


@illegal("I6")
def a_job_is_tried_more_often_than_allowed(t: Tale) -> None:
    t.insert(row(1, max_attempts=1))
    t.claim()
    t.finish(state=A, failed_attempt=True)
    t.claim()


@illegal("I7")
def a_job_runs_twice_under_one_lease(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.start()
    t.end()
    t.start()


@illegal("I7")
def a_job_runs_on_a_node_that_does_not_hold_it(t: Tale) -> None:
    t.insert(row(1))
    t.claim("w1")
    t.start("w2", 1, epoch=1)


@illegal("I7")
def a_job_starts_after_its_worker_was_told_of_the_loss(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.wait(4)
    t.reap()
    t.beat("w1", 1)
    t.start()


@illegal("I7")
def two_runs_overlap_while_the_first_lease_holds(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim("w1")
    t.start("w1")
    t.grant("w2", replace(held, epoch=2))
    t.start("w2")


@illegal("I8")
def a_later_job_is_preferred(t: Tale) -> None:
    t.insert(row(1), row(2, priority=-1))
    t.grant("w1", leased(1, t.now))


@illegal("I8")
def claimable_jobs_are_left_lying(t: Tale) -> None:
    t.insert(row(1))
    t.claim(lie=Claimed([]))


@illegal("I9")
def a_job_starts_before_it_is_due(t: Tale) -> None:
    t.insert(row(1, delay=SECOND))
    inserted = t.now
    t.wait(0.5)
    t.grant("w1", replace(leased(1, inserted), run_at=inserted + SECOND))


@illegal("I9")
def an_expired_job_starts(t: Tale) -> None:
    t.insert(row(1, expires=SECOND))
    inserted = t.now
    t.wait(2)
    t.grant("w1", leased(1, inserted))


@illegal("I13")
def two_jobs_get_in_under_one_key(t: Tale) -> None:
    t.insert(row(1, key="k"))
    t.insert(row(2, key="k"), lie=[Inserted(InsertStatus.NEW, job(2))])


@illegal("I13")
def a_key_leaks_when_its_job_fails(t: Tale) -> None:
    t.insert(row(1, key="k"))
    t.claim()
    t.finish(state=F)
    t.insert(row(2, key="k"), lie=[Inserted(InsertStatus.DUPLICATE, job(1), F)])


@illegal("I13")
def an_id_is_accepted_twice(t: Tale) -> None:
    t.insert(row(1), reply="lost")
    t.insert(row(1), lie=[Inserted(InsertStatus.NEW, job(1))])


@illegal("I13")
def a_request_is_repeated_under_another_id(t: Tale) -> None:
    t.insert(row(1, headers=b"once:7"), reply="lost")
    t.insert(row(2, headers=b"once:7"))


@illegal("I14")
def a_cancelled_job_is_granted(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=A)
    t.cancel()
    t.grant("w2", replace(held, epoch=2))


@illegal("I14")
def a_cancel_flips_a_running_job(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.cancel(lie=[Altered(job(1), R, X)])


@illegal("I14")
def a_cancel_request_is_lost_in_a_retry(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.cancel()
    t.finish(state=A, lie=A)


@illegal("I14")
def a_cancel_request_never_reaches_the_holder(t: Tale) -> None:
    t.insert(row(1))
    t.claim()
    t.cancel()
    t.beat("w1", lie=Renewed())


@illegal("I15")
def a_waiter_gets_anothers_result(t: Tale) -> None:
    t.insert(row(1))
    t.run(result=b"r", result_ttl=SECOND)
    t.waiter(1, (C, b"another's"))


@illegal("I15")
def a_waiter_hears_too_late(t: Tale) -> None:
    t.insert(row(1))
    t.waiter(1, None, after=5, timeout=1)


@illegal("I15")
def a_result_outlives_its_ttl(t: Tale) -> None:
    t.insert(row(1))
    t.run(result=b"r", result_ttl=SECOND)
    t.wait(2)
    t.look(result=b"r")


@illegal("I16")
def a_row_of_a_batch_goes_unanswered(t: Tale) -> None:
    t.insert(row(1), row(2), lie=[Inserted(InsertStatus.NEW, job(1))])


@illegal("I16")
def an_answer_comes_that_the_store_never_gave(t: Tale) -> None:
    number = t.history.invoke("p", "insert", ((row(1),),))
    t.history.ok(number, [Inserted(InsertStatus.NEW, job(1))])


@illegal("I16")
def a_resume_is_told_of_and_not_done(t: Tale) -> None:
    t.insert(row(1))
    t.alter(1, Pause())
    t.alter(1, Resume())
    t.look(state=P)


@illegal("I17")
def a_sweep_takes_a_young_one(t: Tale) -> None:
    t.insert(row(1))
    t.run()
    t.removed([job(1)], SweepClause(target=SweepTarget.COMPLETED, older_than=60 * SECOND), Swept(1, 1, 0, more=False))


@illegal("I17")
def a_sweep_takes_a_waiting_one(t: Tale) -> None:
    t.insert(row(1))
    t.removed([job(1)], SweepClause(target=SweepTarget.COMPLETED, older_than=0), Swept(0, 0, 0, more=False))


@illegal("I17")
def a_dry_run_tells_something_else(t: Tale) -> None:
    t.insert(row(1))
    t.run()
    t.wait(5)
    t.call(
        "j",
        "sweep",
        SweepClause(target=SweepTarget.COMPLETED, older_than=0, dry_run=True),
        lie=Swept(0, 0, 1, more=False),
    )


@illegal("I17")
def a_job_is_swept_that_has_just_ended(t: Tale) -> None:
    t.insert(row(1))
    t.run()
    t.wait(2)
    clause = SweepClause(target=SweepTarget.COMPLETED, older_than=SECOND, max_count=0, spare=60 * SECOND)
    t.removed([job(1)], clause, Swept(1, 0, 0, more=False))


@illegal("I21")
def a_counter_is_wrong(t: Tale) -> None:
    t.insert(row(1))
    t.call("op", "stats", lie=Stats([], [], []))


@illegal("I22")
def a_due_job_is_left_for_ever(t: Tale) -> None:
    t.insert(row(1))
    t.wait(60)
    t.look(final=True)


@illegal("I22")
def a_running_job_is_left_for_ever(t: Tale) -> None:
    t.insert(row(1))
    t.lose()
    t.wait(60)
    t.look(final=True)


@illegal("I22")
def an_expired_lease_is_overlooked(t: Tale) -> None:
    t.insert(row(1))
    t.lose()
    t.reap(lie=[])


@illegal("I22")
def a_claim_forgets_what_is_next(t: Tale) -> None:
    t.insert(row(1, delay=SECOND))
    t.claim(lie=Claimed([], None))


@illegal("I23")
def a_payload_comes_out_changed(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=A)
    t.grant("w2", replace(held, epoch=2, run_at=t.now, cells={"parameters": b"q"}))


@illegal("I23")
def an_empty_section_is_dropped(t: Tale) -> None:
    t.insert(row(1, cells={"blob": b""}))
    t.look(cells={})


@illegal("I26")
def a_paused_queue_gives_out_jobs(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=A)
    t.pause()
    t.grant("w2", replace(held, epoch=2, run_at=t.now))


@illegal("I26")
def a_paused_job_is_given_out(t: Tale) -> None:
    t.insert(row(1))
    [held] = t.claim()
    t.finish(state=P)
    t.grant("w2", replace(held, epoch=2))


@illegal("I28")
def a_job_on_its_last_chance_runs_beside_another(t: Tale) -> None:
    _lost_twice(t)
    t.insert(row(2))
    t.claim("w1", lost_below=2)
    t.start("w1", 2)
    t.claim("w1")
    t.start("w1", 1)


@illegal("I28")
def another_runs_beside_a_job_on_its_last_chance(t: Tale) -> None:
    _lost_twice(t)
    t.claim("w1", lost_below=2)
    t.claim("w1")
    t.start("w1", 1)
    t.insert(row(2))
    t.claim("w1", lost_below=2)
    t.start("w1", 2)


@illegal("I28")
def two_workers_make_room(t: Tale) -> None:
    _lost_twice(t)
    t.claim("w1", lost_below=2)
    t.claim("w2", lost_below=2, lie=Claimed([], passed_over=True, chosen=True))


@illegal("I28")
def nobody_makes_room(t: Tale) -> None:
    _lost_twice(t)
    t.claim("w1", lost_below=2, lie=Claimed([], passed_over=True))


# -- schedules


def _made_up(tale: Tale, nth: int) -> Plan:
    """Its nth slot out of turn."""
    [one] = tale.store.store.ledger.schedules.values()
    definition = unpack(one.definition)
    assert isinstance(definition.rule, EveryRule)
    slot = definition.rule.anchor + nth * definition.rule.interval
    return Plan("s", UID, None, [tick(one, definition, slot, slot, tale.now)])


@illegal("I10")
def a_plan_for_an_old_version_is_carried_out(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    plan = tale.planned()
    tale.plan(plan)
    tale.plan(plan, lie=[[FIRED]])


@illegal("I10")
def a_plan_for_the_current_version_is_refused(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    tale.plan(lie=[None])


@illegal("I10")
def a_slot_fires_twice(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    tale.plan()
    tale.call("k", "ticks.plan", (_made_up(tale, 1),), lie=[[FIRED]])


@illegal("I10")
def a_slot_is_left_out(tale: Tale) -> None:
    tale.schedule()
    tale.wait(20)
    plan = tale.planned()
    tale.plan(replace(plan, ticks=plan.ticks[1:]), lie=[[FIRED]])


@illegal("I10")
def a_slot_lies_beside_the_grid(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    plan = tale.planned()
    tale.plan(replace(plan, ticks=[replace(one, slot=one.slot + 1) for one in plan.ticks]))


@illegal("I10")
def a_job_is_due_far_from_its_slot(tale: Tale) -> None:
    tale.schedule(jitter=0.1)
    tale.wait(11)
    plan = tale.planned()
    tale.plan(replace(plan, ticks=[replace(one, run_at=one.slot + 2 * SECOND) for one in plan.ticks]))


@illegal("I10")
def a_schedule_stands_where_it_should_not(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    plan = tale.planned()
    assert plan.slot is not None
    tale.plan(replace(plan, slot=plan.slot + 10 * SECOND))


@illegal("I10")
def late_slots_fire_that_should_not(tale: Tale) -> None:
    tale.schedule(misfire=Misfire.SKIP, grace=0)
    tale.wait(60)
    [one] = tale.call("w1", "ticks.due", Look()).schedules
    definition = unpack(one.definition)
    assert one.slot is not None
    late = [tick(one, definition, one.slot + n * 10 * SECOND, one.slot + n * 10 * SECOND, tale.now) for n in range(5)]
    tale.plan(Plan("s", UID, one.version, late, one.slot + 50 * SECOND, tale.now))


@illegal("I10")
def a_slot_is_missed_that_was_in_time(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    plan = tale.planned()
    tale.plan(replace(plan, ticks=[replace(one, row=None) for one in plan.ticks]))


@illegal("I10")
def nobody_plans_any_more(tale: Tale) -> None:
    tale.schedule()
    tale.wait(60)
    tale.look(final=True)


@illegal("I10")
def a_change_is_made_on_top_of_another(tale: Tale) -> None:
    tale.schedule()
    tale.call("k", "ticks.save", (Drop("s", 7),), lie=[True])


@illegal("I10")
def a_schedule_is_not_shown_that_is_due(tale: Tale) -> None:
    tale.schedule()
    tale.wait(10)
    tale.call("w1", "ticks.due", Look(), lie=Looked(tale.now, []))


# -- rules


@legal
def a_queue_with_all_kinds_of_rules(tale: Tale) -> None:
    tale.govern(running=3, tenant_running=2, tenant_workers=1, tenant_batch=1, rate=Rate(SECOND, 3), depth=6)
    tale.insert(*(row(n, tenant="ab"[n % 2], group="g" if n > 4 else None) for n in range(1, 9)))
    assert len(tale.claim("w1", limit=9)) == 3
    assert tale.claim("w2", limit=9) == []
    tale.call("g", "policies.tenants", "q", None, None, 100)
    tale.call("g", "policies.find", ("q",))
    tale.wait(4)
    tale.reap()
    assert len(tale.claim("w2", limit=9)) == 3
    tale.call("g", "policies.limit", TenantLimit("q", "a", 1))
    tale.pause("b")
    assert tale.claim("w2", limit=9) == []


@legal
def a_group_keeps_its_turn_through_a_retry(tale: Tale) -> None:
    tale.insert(row(1, group="g"), row(2, group="g"))
    tale.claim()
    tale.finish(state=JobState.AVAILABLE, delay=SECOND)
    assert tale.claim() == []
    tale.wait(1)
    assert [held.id for held in tale.claim()] == [job(1)]


@illegal("I11")
def more_run_than_may(tale: Tale) -> None:
    tale.govern(running=1)
    tale.insert(row(1), row(2))
    tale.claim("w1")
    tale.grant("w2", leased(2, tale.now - 1))


@illegal("I11")
def two_holders_have_the_one_token_of_a_tenant(tale: Tale) -> None:
    tale.govern(tenant_workers=1)
    tale.insert(row(1, tenant="a"), row(2, tenant="a"))
    tale.claim("w1")
    tale.grant("w2", leased(2, tale.now - 1, tenant="a"))


@illegal("I11")
def more_are_started_than_the_rate_allows(tale: Tale) -> None:
    tale.govern(rate=Rate(SECOND))
    tale.insert(row(1), row(2))
    tale.run("w1")
    tale.grant("w1", leased(2, tale.now - 2))


@illegal("I11")
def a_paused_tenant_is_served(tale: Tale) -> None:
    tale.insert(row(1, tenant="a"))
    at = tale.now
    tale.pause("a")
    tale.grant("w1", leased(1, at, tenant="a"))


@illegal("I12")
def a_claim_leaves_what_it_could_have_had(tale: Tale) -> None:
    tale.govern(tenant_running=1)
    tale.insert(row(1, tenant="a"), row(2, tenant="b"))
    tale.claim("w1", limit=2, lie=Claimed([leased(1, tale.now, tenant="a")], 0))


@illegal("I12")
def one_tenant_is_served_and_another_waits(tale: Tale) -> None:
    tale.govern(tenant_workers=9, tenant_batch=1)
    tale.insert(*(row(n, tenant="a") for n in range(1, 9)), row(9, tenant="b"))
    at = tale.now
    for n in range(1, 9):
        tale.grant("w1", leased(n, at, tenant="a"))


@illegal("I12")
def nobody_is_told_when_the_rate_opens(tale: Tale) -> None:
    tale.govern(rate=Rate(SECOND))
    tale.insert(row(1), row(2))
    tale.claim("w1", limit=2, lie=Claimed([leased(1, tale.now)]))


@illegal("I27")
def two_jobs_of_a_group_run_at_once(tale: Tale) -> None:
    tale.insert(row(1, group="g"), row(2, group="g"))
    at = tale.now
    tale.claim("w1")
    tale.grant("w2", leased(2, at, group="g"))


@illegal("I27")
def a_group_goes_on_while_one_of_it_is_to_be_tried_again(tale: Tale) -> None:
    tale.insert(row(1, group="g"), row(2, group="g"))
    at = tale.now
    tale.claim("w1")
    tale.finish(state=JobState.AVAILABLE, delay=SECOND)
    tale.grant("w2", leased(2, at, group="g"))


@illegal("I21")
def more_wait_than_may(tale: Tale) -> None:
    tale.govern(depth=1)
    tale.insert(row(1), row(2), lie=[Inserted(InsertStatus.NEW, job(1)), Inserted(InsertStatus.NEW, job(2))])


@illegal("I21")
def a_tenant_is_told_in_wrong_numbers(tale: Tale) -> None:
    tale.govern(tenant_workers=1)
    tale.insert(row(1, tenant="a"))
    tale.call("g", "policies.tenants", "q", None, None, 100, lie=[TenantState("q", "a", 0, 1)])


@illegal("I16")
def a_policy_is_saved_on_top_of_another(tale: Tale) -> None:
    tale.govern(tenant_workers=1)
    tale.govern(version=7, tenant_workers=2, lie=True)
