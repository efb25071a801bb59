"""Faults planted into the functions on the server are found: by pairs of statements, or by the conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.types import JobState
from tests.backends import test_postgres
from tests.backends.interleaving import Stage
from tests.backends.interleaving.scenes import ALONE as SINGLE
from tests.backends.interleaving.scenes import CROWD
from tests.backends.interleaving.statements import STATEMENTS
from tests.backends.interleaving.ticking import SCHEDULES, SINGLE_SCHEDULES, TICKING
from tests.backends.interleaving.verdict import check_pair
from tests.postgres import server

SCHEMA = "planted"


class Fault(NamedTuple):
    """What a function says, and what it says wrongly instead."""

    name: str
    function: str
    right: str
    wrong: str
    proof: Any
    """Two statements; or a test of the conformance suite and what it is called with."""


LOCK = "FOR UPDATE SKIP LOCKED"

BETWEEN_TWO = [
    Fault(
        "a completion under any epoch",
        "complete",
        "AND l.epoch = n.epoch",
        "",
        ("reap", "complete under the lease before"),
    ),
    Fault("a reap that does not look again", "reap_v1", LOCK, "", ("renew", "reap")),
    Fault("a sweep that does not look again", "aged", LOCK, "", ("requeue", "sweep failed by age")),
    Fault(
        "a change that does not look again",
        "alter_v1",
        "CONTINUE WHEN p.state <> ALL (p_states)",
        "CONTINUE WHEN false",
        ("requeue", "delete the failed"),
    ),
    Fault(
        "a key that is let go before the next is had",
        "move_key",
        "RETURN false",
        "DELETE FROM keys AS k WHERE k.qid = p_from AND k.key = v_key AND k.id = p_id; RETURN false",
        ("insert with a key elsewhere", "move"),
    ),
    Fault("claims that nobody counts", "claim_v1", "x.sign * c.jobs", "0", ("insert", "claim")),
    Fault(
        "an insert that takes what is taken",
        "take_key",
        "NOT (k.failed AND p_hold)",
        "true",
        ("fail", "insert with a key that a failed job holds"),
    ),
    Fault(
        "keys that outlive their jobs, and that nobody counts",
        "forget_jobs",
        "SELECT a.qid, 7, count(*)",
        "SELECT a.qid, 7, 0",
        ("insert", "sweep completed by bytes"),
    ),
    Fault(
        "a sweep that frees the key of a result still held",
        "remove_doomed",
        "ARRAY(SELECT d.qid FROM unnest(p_doomed) AS d), p_now)",
        "ARRAY(SELECT d.qid FROM unnest(p_doomed) AS d))",
        ("insert", "sweep completed by bytes"),
    ),
]

CAS = "AND a.version = p_versions[i]"

ON_SCHEDULES = [
    Fault(
        "a plan that waits and takes any version",
        "plan_v1",
        f"{CAS} {LOCK}",
        "FOR UPDATE",
        ("plan", "plan, skipping"),
    ),
    Fault("a plan that does not look again", "plan_v1", f"{CAS} {LOCK}", CAS, ("plan", "plan, skipping")),
    Fault(
        "a ledger that takes a slot twice",
        "plan_v1",
        "WHERE k.outcome <> 0",
        "",
        ("plan", "plan out of turn"),
    ),
    Fault("a save over any version", "save_schedules", "AND a.version = n.version", "", ("plan", "save schedules")),
    Fault(
        "a plan that passes over all that it would cancel",
        "plan_v1",
        "try_live(s.last_job, false) IS NOT FALSE",
        "false",
        ("note ticks", "plan, cancelling"),
    ),
    Fault(
        "a plan that asks for the end of no job",
        "ask_to_stop",
        "INSERT INTO asks (id, superseded) SELECT p_id, p_reason = 'superseded' WHERE NOT asked_for(p_id)",
        "NULL",
        ("note ticks", "plan, cancelling"),
    ),
    Fault("ticks that nobody counts", "plan_v1", "v_count * 100", "0", ("plan", "note ticks")),
]

ALONE = [
    Fault("a plan under any version", "plan_v1", CAS, "", ("test_a_plan_by_an_old_version_does_nothing",)),
    Fault(
        "a ledger that takes a slot twice",
        "plan_v1",
        "WHERE k.outcome <> 0",
        "",
        ("test_a_slot_is_never_on_the_ledger_twice",),
    ),
    Fault(
        "ranks that are passed over",
        "due_v1",
        "EXIT WHEN v_left <= 0",
        "EXIT",
        ("test_due_in_the_order_of_rank_then_instant_then_name",),
    ),
    Fault(
        "a settlement by any holder",
        "take_leases",
        "AND d.holder = n.holder",
        "",
        ("test_a_wrong_fence_changes_nothing", JobState.FAILED, "holder"),
    ),
    Fault(
        "an insert that forgets its key",
        "insert_v1",
        "IF v_keyed AND v_known = '{}'",
        "IF false",
        ("test_a_key_is_taken_while_its_job_lives",),
    ),
    Fault(
        "a lease that is renewed for anybody",
        "renew_v1",
        "AND l.epoch = n.epoch",
        "",
        ("test_an_older_lease_on_the_same_job_is_told_apart",),
    ),
]


def named(faults: list[Fault]) -> list[Any]:
    return [pytest.param(fault, id=fault.name) for fault in faults]


Run = Callable[[Awaitable[Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One loop for all tests, as they share their connections."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture(scope="module")
def stage(run: Run) -> Iterator[Stage]:
    """Its scenes are built before there is any fault: what one leaves wrong must not be kept for the tests after it."""
    stage = Stage(SCHEMA)
    run(stage.open())
    for scene in (CROWD, *SINGLE, SCHEDULES, *SINGLE_SCHEDULES):
        run(stage.set(scene))
    yield stage
    run(stage.close())


@pytest.mark.parametrize("fault", named(BETWEEN_TWO))
def test_the_pairs_find_it(fault: Fault, stage: Stage, run: Run) -> None:
    first, second = [next(one for one in STATEMENTS if one.name == name) for name in fault.proof]

    async def problems() -> list[str]:
        async with stage.fault(fault.function, fault.right, fault.wrong):
            return await check_pair(stage, first, second)

    assert run(problems())
    assert run(check_pair(stage, first, second)) == []


@pytest.mark.parametrize("fault", named(ON_SCHEDULES))
def test_the_pairs_on_schedules_find_it(fault: Fault, stage: Stage, run: Run) -> None:
    first, second = [next(one for one in TICKING if one.name == name) for name in fault.proof]

    async def problems() -> list[str]:
        async with stage.fault(fault.function, fault.right, fault.wrong):
            return await check_pair(stage, first, second, SCHEDULES, SINGLE_SCHEDULES)

    assert run(problems())
    assert run(check_pair(stage, first, second, SCHEDULES, SINGLE_SCHEDULES)) == []


@pytest.mark.parametrize("fault", named(ALONE))
def test_the_conformance_suite_finds_it(fault: Fault, stage: Stage, run: Run) -> None:
    test, *given = fault.proof

    async def conform() -> None:
        await stage.clear()
        store = PostgresBackend(server().url(), schema=SCHEMA)
        await store.open()
        try:
            await getattr(test_postgres.TestPostgres(), test)(store, *given)
        finally:
            await store.close()

    async def conform_with_it() -> None:
        async with stage.fault(fault.function, fault.right, fault.wrong):
            await conform()

    with pytest.raises(AssertionError):
        run(conform_with_it())
    run(conform())
