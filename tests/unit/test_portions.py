"""Batches are cut so that no step of a store takes long."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from headrace.backends.portions import Costs, Portions, of_selection
from headrace.seam.records import JobKey, Row, Selector, Settlement
from headrace.testing.conformance.base import job_id, row
from headrace.types import JobState

COSTS = Costs(row=9, key=45, inbox=4, group=60, tenant=60, queue=130, completed=12, settled=230)
FEW = 40


def rows(number: int, **names: str) -> list[Row]:
    return [row(n, **{name: f"{value}{n}" for name, value in names.items()}) for n in range(number)]


def sizes(portions: list[Any]) -> list[int]:
    return [len(portion) for portion in portions]


def test_a_full_batch_of_plain_rows_is_one_statement() -> None:
    assert sizes(Portions(COSTS).of_rows(rows(1_000))) == [1_000]
    assert len(Portions(COSTS).of_rows(rows(1_000, key="k"))) == 2


@pytest.mark.parametrize("known", [True, False])
def test_the_last_statement_of_a_large_batch_is_about_as_large_as_the_others(known: bool) -> None:
    portions = Portions(COSTS)
    if known:
        portions.of_rows(rows(100))
    found = sizes(portions.of_rows(rows(10_000)))
    assert sum(found) == 10_000
    assert len(found) == 4
    assert min(found) > 2_400


def test_rows_of_new_queues_and_groups_are_cut_in_order() -> None:
    for names in (
        {"queue": "q"},
        {"group": "g"},
        {"tenant": "t"},
        {"queue": "q", "group": "g", "key": "k", "reply_to": "r"},
    ):
        given = rows(1_000, **names)
        cut = Portions(COSTS).of_rows(given)
        assert len(cut) > 1
        assert list(chain(*cut)) == given
        assert max(sizes(cut)) < 500


def test_queues_that_were_seen_before_cost_little() -> None:
    portions = Portions(COSTS)
    assert len(portions.of_rows(rows(1_000, queue="q"))) > 3
    assert sizes(portions.of_rows(rows(1_000, queue="q"))) == [1_000]


def test_completions_are_cheap_and_everything_else_is_not() -> None:
    done = [Settlement(job_id(n), 1, "w", JobState.COMPLETED) for n in range(1_000)]
    assert sizes(Portions(COSTS).of_settlements(done)) == [1_000]
    retried = [Settlement(job_id(n), 1, "w", JobState.AVAILABLE) for n in range(1_000)]
    assert list(chain(*Portions(COSTS).of_settlements(retried))) == retried
    assert max(sizes(Portions(COSTS).of_settlements(retried))) < 150


@pytest.mark.parametrize("count", [1, 1_000])
def test_what_no_settlement_may_say_is_refused_before_anything_is_cut(count: int) -> None:
    done = [Settlement(job_id(n), 1, "w", JobState.COMPLETED) for n in range(count - 1)]
    with pytest.raises(ValueError, match="says running"):
        Portions(COSTS).of_settlements([*done, Settlement(job_id(count), 1, "w", JobState.RUNNING)])


def test_what_is_spawned_counts() -> None:
    ends = [Settlement(job_id(n), 1, "w", JobState.COMPLETED, spawn=rows(500)) for n in range(10)]
    cut = Portions(COSTS).of_settlements(ends)
    assert list(chain(*cut)) == ends
    assert max(sizes(cut)) < 10


def test_a_change_of_many_jobs_meets_each_once() -> None:
    ids = [job_id(n) for n in range(2 * FEW + 1)]
    assert [some.ids for some in of_selection(Selector(ids=ids * 2), FEW)] == [
        ids[:27], ids[27:54], ids[54:],
    ]  # fmt: skip
    keys = [JobKey("q", str(n)) for n in range(FEW + 1)]
    assert sizes([some.keys for some in of_selection(Selector(keys=keys), FEW)]) == [21, 20]
    few = Selector(ids=ids[:2], keys=keys[:1])
    assert of_selection(few, FEW) == [few]
