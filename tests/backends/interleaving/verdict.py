"""Whether what two statements came to together is what they could have come to one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.seam.records import Altered, Record
from headrace.types import JobState
from tests.backends.interleaving.model import Outcome, in_order
from tests.backends.interleaving.scenes import ALONE, CROWD, THIRTY_FAILED, Scene
from tests.backends.interleaving.shown import shown
from tests.backends.interleaving.stage import Stage
from tests.backends.interleaving.statements import BOUND, Statement, migration

REPEATABLE_READ, SERIALIZABLE = "REPEATABLE READ", "SERIALIZABLE"


def clash(scene: Scene, first: Statement, second: Statement) -> bool:
    """Whether it matters in this scene which of the two comes first, or both change the same."""
    untouched, one, other = in_order(scene), in_order(scene, first.run), in_order(scene, second.run)
    forth, back = in_order(scene, first.run, second.run), in_order(scene, second.run, first.run).swapped()
    return any(
        forth.of(strand) != back.of(strand)
        or untouched.seen.get(strand) not in (one.seen.get(strand), other.seen.get(strand))
        for strand in scene.numbers
    )


async def check_pair(
    stage: Stage, first: Statement, second: Statement, crowd: Scene = CROWD, alone: Sequence[Scene] = ALONE
) -> list[str]:
    """What is wrong when the second statement comes while the first is done but not committed.

    If the second has to wait then, the two are played once more for each strand alone, and once with the first rolled
    back. Else neither would bring anything new: the second came to its end before the first did.
    """
    waited, problems = await _check(stage, crowd, first, second, commit=True)
    if waited:
        problems += (await _check(stage, crowd, first, second, commit=False))[1]
        for scene in alone:
            if clash(scene, first, second):
                problems += (await _check(stage, scene, first, second, commit=True))[1]
    return problems


async def check_migration(stage: Stage, statement: Statement, crowd: Scene = CROWD) -> list[str]:
    """What is wrong when a step of a migration is done but not committed when a statement comes; and the other way
    round."""
    _, problems = await _check(stage, crowd, migration(), statement, commit=True)
    return problems + (await _check(stage, crowd, statement, migration(), commit=True))[1]


async def check_bound(stage: Stage, second: Statement) -> list[str]:
    """What is wrong when a statement comes while a caller's own transaction has enqueued and not yet committed. When it
    commits, the clock of its jobs is the server's, so only the truth is compared; when it does not, everything is."""
    _, wrong = await stage.play(CROWD, BOUND, second, commit=True)
    return wrong + (await _check(stage, CROWD, BOUND, second, commit=False))[1]


async def check_overtaking(stage: Stage, level: str, first: Statement, second: Statement) -> list[str]:
    """What is wrong when the second statement comes and goes within a transaction that then sends the first. What is
    refused in the crowd because of one strand need not be because of each."""
    problems = []
    for scene in (CROWD, *(alone for alone in ALONE if level != SERIALIZABLE and clash(alone, first, second))):
        outcome, wrong = await stage.overtake(scene, level, first, second)
        wrong = wrong + _judge(scene, first, second, outcome, commit=len(outcome.told) == 2)
        problems += [f"{scene.name}: {problem}" for problem in wrong]
    return problems


async def check_thinning(stage: Stage, first: Statement, second: Statement, *, commit: bool) -> None:
    """Of thirty jobs no fewer are left than if the two had come one after the other."""
    outcome, wrong = await stage.play(THIRTY_FAILED, first, second, commit=commit)
    assert not wrong
    lawful = {order: _left(story) for order, story in _lawful(THIRTY_FAILED, first, second, commit=commit).items()}
    assert _left(outcome) >= min(lawful.values()), f"{_left(outcome)} are left; lawful is {lawful}"


def _left(outcome: Outcome) -> int:
    records = [seen for strand in outcome.seen.values() for seen in strand if isinstance(seen, Record)]
    return sum(record.state is JobState.FAILED for record in records)


async def _check(
    stage: Stage, scene: Scene, first: Statement, second: Statement, *, commit: bool
) -> tuple[bool, list[str]]:
    outcome, wrong = await stage.play(scene, first, second, commit=commit)
    if outcome.told:
        wrong = wrong + _judge(scene, first, second, outcome, commit=commit)
    where = f"{scene.name}, {'committed' if commit else 'rolled back'}"
    return outcome.waited, [f"{where}: {problem}" for problem in wrong]


def _judge(scene: Scene, first: Statement, second: Statement, outcome: Outcome, *, commit: bool) -> list[str]:
    problems = []
    lawful = _lawful(scene, first, second, commit=commit)
    for strand in sorted(outcome.strands.union(*(story.strands for story in lawful.values()))):
        found = outcome.of(strand)
        stories = {order: story.of(strand) for order, story in lawful.items()}
        if found not in stories.values():
            expected = "\n".join(f"    {order}: {shown(story)}" for order, story in stories.items())
            problems.append(f"strand {strand}:\n    came to {shown(found)}\n{expected}")
    return problems


def _lawful(scene: Scene, first: Statement, second: Statement, *, commit: bool) -> dict[str, Outcome]:
    variants = {"the second": second.run, "what the second has not passed over": second.passing}
    if second.upon is not None:
        [told] = in_order(scene, second.run).told
        met = [fact.id for facts in told.values() for fact in facts if isinstance(fact, Altered)]
        variants["the second, on the jobs that it had found"] = second.upon(tuple(sorted(met)))
    lawful: dict[str, Any] = {}
    for name, run in variants.items():
        if run is None:
            continue
        if commit:
            lawful[f"the first, then {name}"] = in_order(scene, first.run, run)
            lawful[f"{name}, then the first"] = in_order(scene, run, first.run).swapped()
        else:
            lawful[f"{name}, alone"] = in_order(scene, run)
    if commit and first.asking is not None:
        lawful["the second, then the first, which has only asked"] = _heard(
            in_order(scene, second.run, *first.asking)
        ).swapped()
    if commit and second.asking is not None:
        lawful["the first, then the second, which has only asked"] = _heard(in_order(scene, first.run, *second.asking))
    return lawful


def _heard(outcome: Outcome) -> Outcome:
    """What is done later tells nobody here."""
    return outcome._replace(told=outcome.told[:2])
