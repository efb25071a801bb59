"""The study of the vault asks, drains and compares."""

import asyncio

from benchmarks.studies.vault import QUESTIONS, study, table


def test_questions_are_answered_and_drains_compared() -> None:
    answers, drains = asyncio.run(study(3_000, 50, 1))
    assert {one.question: one.rows for one in answers} == {
        "by task and state": 40,
        "one tenant, by day": 1,
        "one job": 1,
    }
    assert [one.keeping for one in drains] == [False, True]
    assert all(one.seconds > 0 for one in (*answers, *drains))
    assert len(table(answers, drains)) == len(QUESTIONS) + 1
