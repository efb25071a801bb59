"""Histories: their digest, and the story of a violation."""

from __future__ import annotations

from headrace.testing.sim.history import Run
from headrace.testing.sim.story import brief
from headrace.types import JobState
from tests.sim.tale import Tale, job, row


def told(*, number: int = 1) -> Tale:
    tale = Tale()
    tale.insert(row(number), row(7, key="k", expires=5))
    tale.claim()
    return tale


def test_equal_histories_have_equal_digests_and_others_do_not() -> None:
    assert told().history.trace_hash() == told().history.trace_hash()
    assert told().history.trace_hash() != told(number=2).history.trace_hash()
    longer = told()
    longer.beat()
    assert longer.history.trace_hash() != told().history.trace_hash()


def test_a_closed_history_takes_nothing_more() -> None:
    tale = told()
    tale.history.close()
    before = len(tale.history)
    tale.history.start("w1", Run(job(1), 1))
    assert len(tale.history) == before


def test_a_story_tells_of_the_job_concerned_and_how_to_see_it_again() -> None:
    tale = Tale()
    tale.history.replay = "play it again"
    tale.insert(row(2))
    tale.run(number=2)
    tale.insert(row(1))
    tale.claim()
    tale.history.fault("w1", "freeze")
    tale.finish(lie=None)
    story = tale.verdict().story
    assert "I4" in story
    assert "play it again" in story
    assert "freeze" in story
    assert job(1).hex() in story
    assert story.count("insert") == 3, "only the events of that job"


def test_a_violation_without_a_job_shows_what_came_just_before() -> None:
    tale = told()
    tale.insert(row(3), row(4), lie=[])
    assert "2 rows were inserted and 0 answered" in tale.verdict().story


def test_brief_leaves_out_what_goes_without_saying() -> None:
    assert brief(row(1)) == "Row(id=#00000001, queue=q, task=t, cells={parameters: b'p'})"
    assert brief([JobState.FAILED, None, b"sixteen letters!"]) == "[failed, , b'sixteen letters!']"
    assert brief("x" * 1_000).endswith("x…")


def test_the_four_classes() -> None:
    tale = Tale()
    tale.insert(row(1), row(2))
    tale.insert(row(3), reply="lost")
    tale.lose("w1")
    tale.reap()
    tale.run("w2", 2)
    tale.run("w2", 3)
    tale.run("w2", 1)
    tale.look(final=True, without=2)
    verdict = tale.verdict()
    assert verdict.lost == (job(2),)
    assert verdict.recovered == (job(3),)
    assert verdict.duplicated == (job(1),)
    assert verdict.unexpected == ()
