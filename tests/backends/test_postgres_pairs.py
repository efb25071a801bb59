"""Every two statements that change something, in either order, on a real server: the second comes while the first is
done but not committed. Together they come to what they could have come to one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from typing import Any, TypeVar

import pytest

from tests.backends.interleaving import Stage
from tests.backends.interleaving.crossing import (
    GATES,
    GROUNDS,
    SCHEDULE_GATES,
    SCHEDULED,
    Gate,
    Ground,
    cross,
)
from tests.backends.interleaving.model import in_order
from tests.backends.interleaving.scenes import CROWD
from tests.backends.interleaving.statements import (
    INSERTS,
    JOINING,
    LOCKING,
    LOOKING,
    SERVING,
    STATEMENTS,
    THINNING,
    Statement,
)
from tests.backends.interleaving.ticking import MEETING, PLANS, SCHEDULES, SINGLE_SCHEDULES, TICKING
from tests.backends.interleaving.verdict import (
    REPEATABLE_READ,
    SERIALIZABLE,
    check_bound,
    check_migration,
    check_overtaking,
    check_pair,
    check_thinning,
)

T = TypeVar("T")

Run = Callable[[Awaitable[T]], T]


def pairs(firsts: Any, seconds: Any) -> list[Any]:
    return [pytest.param(one, other, id=f"{one.name} + {other.name}") for one, other in product(firsts, seconds)]


def named(things: Any) -> list[Any]:
    return [pytest.param(thing, id=thing.name) for thing in things]


@pytest.fixture(scope="module")
def run() -> Iterator[Run[Any]]:
    """One loop for all tests, as they share their connections."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture(scope="module")
def stage(run: Run[Any]) -> Iterator[Stage]:
    stage = Stage()
    run(stage.open())
    yield stage
    run(stage.close())


@pytest.mark.parametrize(("first", "second"), pairs(STATEMENTS, STATEMENTS))
def test_two_at_once_are_as_one_after_the_other(
    first: Statement, second: Statement, stage: Stage, run: Run[list[str]]
) -> None:
    problems = run(check_pair(stage, first, second))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("first", "second"), pairs(TICKING, TICKING) + pairs(PLANS, MEETING) + pairs(MEETING, PLANS))
def test_two_at_once_on_schedules_are_as_one_after_the_other(
    first: Statement, second: Statement, stage: Stage, run: Run[list[str]]
) -> None:
    problems = run(check_pair(stage, first, second, SCHEDULES, SINGLE_SCHEDULES))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("second", named(SERVING))
def test_what_serves_everybody_waits_for_nobody(second: Statement, stage: Stage, run: Run[Any]) -> None:
    """A caller's own transaction may last: it must not keep others from their work."""
    waited = []
    for first in STATEMENTS:
        if first not in (*LOCKING, *JOINING):
            outcome, _ = run(stage.play(CROWD, first, second, commit=False))
            if outcome.waited:
                waited.append(first.name)
    assert waited == []


@pytest.mark.parametrize("first", named(statement for statement in STATEMENTS if statement not in LOCKING))
def test_a_reader_waits_for_nobody_and_sees_what_was_before(first: Statement, stage: Stage, run: Run[Any]) -> None:
    outcome, wrong = run(stage.play(CROWD, first, LOOKING, commit=True))
    assert not wrong
    assert not outcome.waited
    assert outcome.told[1] == in_order(CROWD, LOOKING.run).told[0]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize(("first", "second"), pairs(THINNING, THINNING))
def test_no_more_is_removed_than_is_too_much(
    first: Statement, second: Statement, commit: bool, stage: Stage, run: Run[None]
) -> None:
    run(check_thinning(stage, first, second, commit=commit))


@pytest.mark.parametrize("gate", named(GATES))
@pytest.mark.parametrize("ground", named(GROUNDS))
def test_batches_that_cross_never_lock_each_other_out(ground: Ground, gate: Gate, stage: Stage, run: Run[Any]) -> None:
    undone = []
    for first, second in product(ground.batches, ground.batches):
        deadlock, wrong = run(cross(stage, ground, gate, first, second))
        assert not wrong, f"{first.name} + {second.name}: {wrong}"
        if deadlock:
            undone.append(f"{first.name} + {second.name}")
    assert undone == []


@pytest.mark.parametrize("gate", named(SCHEDULE_GATES))
def test_batches_on_schedules_that_cross_never_lock_each_other_out(gate: Gate, stage: Stage, run: Run[Any]) -> None:
    test_batches_that_cross_never_lock_each_other_out(SCHEDULED, gate, stage, run)


@pytest.mark.parametrize("second", named(STATEMENTS))
def test_a_caller_s_own_transaction_is_as_any_other(second: Statement, stage: Stage, run: Run[list[str]]) -> None:
    problems = run(check_bound(stage, second))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE])
@pytest.mark.parametrize(("first", "second"), pairs(INSERTS, STATEMENTS))
def test_a_transaction_that_is_overtaken_is_as_one_before_or_after_or_refused(
    first: Statement, second: Statement, level: str, stage: Stage, run: Run[list[str]]
) -> None:
    problems = run(check_overtaking(stage, level, first, second))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("statement", named(STATEMENTS))
def test_work_goes_on_while_the_store_is_migrated(statement: Statement, stage: Stage, run: Run[list[str]]) -> None:
    problems = run(check_migration(stage, statement))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("statement", named(TICKING))
def test_planning_goes_on_while_the_store_is_migrated(statement: Statement, stage: Stage, run: Run[list[str]]) -> None:
    problems = run(check_migration(stage, statement, SCHEDULES))
    assert not problems, "\n".join(problems)
