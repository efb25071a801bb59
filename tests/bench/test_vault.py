"""The study of the vault writes what the archiver would, and asks."""

import asyncio

from benchmarks.studies.vault import QUESTIONS, Pages, record, study, table, verdict

from headrace.vault.tables import jobs_table


def test_questions_are_answered() -> None:
    filled, answers = asyncio.run(study(3_000))
    assert {one.question: one.rows for one in answers} == {
        "by task and state": 40,
        "one tenant, by day": 1,
        "one job": 1,
    }
    assert filled.bytes > 0
    assert all(one.seconds > 0 for one in answers)
    assert len(table(answers)) == len(QUESTIONS)
    assert verdict(answers) == []


def test_pages_have_each_job_once_as_the_archiver_would_write_it() -> None:
    jobs, start = 4_000, 0
    for key, page in Pages(jobs):
        expected = [record(number, jobs) for number in range(start, start + page.num_rows)]
        assert page.equals(jobs_table(expected))
        assert key.startswith("jobs/date=")
        start += page.num_rows
    assert start == jobs
