"""What simulations have found, each once more in its smallest form."""

from __future__ import annotations

import pytest

from headrace.seam.records import Beat, Cancel, Move, Reap, Requeue, Selector
from headrace.testing.sim.casts import CORE
from headrace.testing.sim.scenarios import simulate
from headrace.types import JobState
from tests.sim.tale import SECOND, Tale, job, row


def test_a_requeued_job_is_not_ended_by_the_expiry_it_had_before() -> None:
    tale = Tale()
    tale.insert(row(1, expires=5 * SECOND))
    tale.claim()
    tale.finish(state=JobState.FAILED)
    tale.alter(1, Requeue())
    tale.wait(6)
    assert tale.reap() == []
    tale.run()
    tale.look(final=True)
    assert tale.verdict().ok, tale.verdict().story


def test_a_job_enqueued_again_is_not_ended_by_the_expiry_of_its_namesake() -> None:
    tale = Tale()
    tale.insert(row(1, expires=SECOND))
    tale.run(keep=False)
    tale.insert(row(1, expires=60 * SECOND))
    tale.wait(2)
    assert tale.reap() == []


def test_a_scheduled_job_that_was_moved_is_counted_where_it_is() -> None:
    tale = Tale()
    tale.insert(row(1, delay=SECOND), row(2))
    tale.alter(1, Move("r"))
    tale.look()
    assert tale.verdict().ok, tale.verdict().story


def test_a_beat_that_names_two_epochs_of_one_job_is_answered_for_each() -> None:
    tale = Tale()
    tale.insert(row(1))
    [first] = tale.claim()
    tale.finish(state=JobState.AVAILABLE, reply="lost")
    [second] = tale.claim()
    leases = [(one.id, one.epoch) for one in (first, second)]
    renewed = tale.call("w1", "renew", Beat("w1", "w1", ("q",), 3 * SECOND, leases))
    assert list(renewed.lost) == leases[:1]
    assert tale.verdict().ok, tale.verdict().story


def test_a_loss_is_not_counted_against_a_job_that_ends_by_it() -> None:
    tale = Tale()
    tale.insert(row(1))
    tale.lose()
    tale.call("op", "alter", Selector(ids=[job(1)]), Cancel())
    [reaped] = tale.call("w1", "reap", Reap())
    assert (reaped.state, reaped.lost) == (JobState.CANCELLED, 0)
    assert tale.verdict().ok, tale.verdict().story


@pytest.mark.parametrize("seed", [10, 29])
def test_a_worker_outlives_two_runs_of_one_job_at_once(seed: int) -> None:
    """It lost a lease without noticing, and claimed the job again while the first handler was still running."""
    _, verdict = simulate(seed, cast=CORE)
    assert verdict.ok, verdict.story
