"""C25: what goes by each retention, as a table. Live jobs never do."""

from __future__ import annotations

import pytest

from headrace.core.durations import micros
from headrace.errors import ConfigError, SafetyStop
from headrace.seam.records import Claim, Row
from headrace.types import JobState
from tests.facades.harness import Store
from tests.facades.test_janitor import Jobs, make

_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
_FILLS = {
    "empty": [],
    "all old": [("400d", 6)],
    "all old but one": [("400d", 5), ("10m", 1)],
    "one a day": [(f"{24 * day + 12}h", 1) for day in range(9)],
}
"""By queue: ages of jobs that have ended, and how many there are."""
_EXPECTED = {
    "0s": {"empty": 0, "all old": 6, "all old but one": 6, "one a day": 9},
    "1h": {"empty": 0, "all old": 6, "all old but one": 5, "one a day": 9},
    "1d": {"empty": 0, "all old": 6, "all old but one": 5, "one a day": 8},
    "7d": {"empty": 0, "all old": 6, "all old but one": 5, "one a day": 2},
    "30d": {"empty": 0, "all old": 6, "all old but one": 5, "one a day": 0},
    "3650d": {"empty": 0, "all old": 0, "all old but one": 0, "one a day": 0},
    "forever": {"empty": 0, "all old": 0, "all old but one": 0, "one a day": 0},
}
"""By retention, how many jobs of each queue go."""


async def fill(jobs: Jobs, state: JobState) -> dict[str, int]:
    """Ended jobs of one state, by queue, in the order in which they ended; returns how many there are of each."""
    ends = [(micros(age), age, count, queue) for queue, given in _FILLS.items() for age, count in given]
    for _, age, count, queue in sorted(ends, reverse=True):
        await jobs.end(age, count, state, queue=queue)
    return {queue: sum(count for _, count in given) for queue, given in _FILLS.items()}


async def live(jobs: Jobs) -> None:
    """Jobs that wait, run and are scheduled, and are older than any retention."""
    store, at = await jobs.app.client.backend(), jobs.clock.now() - micros("3000d")
    rows = [Row(id=(n + 10_000).to_bytes(16), queue="live", task="t", cells={}, delay=delay) for n, delay in
            enumerate((0, 0, micros("3600d")))]  # fmt: skip
    await store.insert(rows, at)
    assert len((await store.claim(Claim("busy", ("live",), 1, micros("3649d")), at)).jobs) == 1


async def check(jobs: Jobs, made: dict[str, int], expected: dict[str, int]) -> None:
    """Just these jobs are gone, and every live one is there."""
    left = {queue.partition("/")[0]: count for queue, count in (await jobs.left()).items()}
    assert {queue: made[queue] - left.get(queue, 0) for queue in made} == expected
    [queue] = [one for one in (await jobs.app.client.stats()).queues if one.queue == "live"]
    assert (queue.available, queue.running) == (2, 1)


@pytest.mark.parametrize("state", _ENDS, ids=lambda one: one.value)
@pytest.mark.parametrize("keep", _EXPECTED)
async def test_what_goes_by_each_retention(store: Store, keep: str, state: JobState) -> None:
    jobs = await make(store)
    made = await fill(jobs, state)
    await live(jobs)
    await jobs.app.janitor.keep(keep, states=state.value)
    expected = _EXPECTED[keep]
    plan = await jobs.app.janitor.preview()
    assert plan.deleted == sum(expected.values())
    done = await jobs.app.janitor.run()
    assert done.deleted == plan.deleted
    await check(jobs, made, expected)


@pytest.mark.parametrize("keep", _EXPECTED)
async def test_workers_go_by_the_same_table(memory: Store, keep: str) -> None:
    jobs = await make(memory)
    made = await fill(jobs, JobState.COMPLETED)
    await live(jobs)
    await jobs.app.janitor.keep(keep, states="completed")
    assert await jobs.duty().sweep() == sum(_EXPECTED[keep].values())
    await check(jobs, made, _EXPECTED[keep])


@pytest.mark.parametrize("keep", [keep for keep in _EXPECTED if keep != "forever"])
async def test_nothing_goes_while_the_clock_is_ten_years_ahead(store: Store, keep: str) -> None:
    jobs = await make(store)
    await jobs.app.janitor.keep(keep, states="failed")
    await jobs.app.janitor.run()
    made = await fill(jobs, JobState.FAILED)
    jobs.clock.advance("3649d")
    await live(jobs)
    with pytest.raises(SafetyStop, match="ahead of the last run"):
        await jobs.app.janitor.run()
    assert await jobs.duty().sweep() == 0
    await check(jobs, made, dict.fromkeys(_FILLS, 0))


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (1, 1), (5, 5), (20, 20), (21, 21), (1 << 53, 21)])
async def test_what_goes_by_each_count(store: Store, count: int, kept: int) -> None:
    """The oldest go; a count that is larger than what there is keeps all."""
    jobs = await make(store)
    made = await fill(jobs, JobState.FAILED)
    await live(jobs)
    assert sum(made.values()) == 21
    await jobs.app.janitor.keep("3650d", states="failed", count=count)
    assert (await jobs.app.janitor.preview()).deleted == (await jobs.app.janitor.run()).deleted == 21 - kept
    assert (await jobs.kept())["failed"] == kept


@pytest.mark.parametrize("bad", ["-1d", "4000d", "1 fortnight", ""])
async def test_a_retention_that_makes_no_sense_is_refused_and_nothing_goes(memory: Store, bad: str) -> None:
    jobs = await make(memory, failed={"age": "7d", "count": None, "bytes": None})
    made = await fill(jobs, JobState.FAILED)
    await live(jobs)
    with pytest.raises(ConfigError, match="age: expected"):
        await jobs.app.janitor.keep(bad, states="failed")
    assert await jobs.duty().sweep() == sum(_EXPECTED["7d"].values()), "the setting still counts"
    await check(jobs, made, _EXPECTED["7d"])


@pytest.mark.parametrize(
    ("floor", "share", "goes"), [(10, 0.0, False), (11, 0.0, True), (0, 0.5, False), (0, 0.9, True)]
)
async def test_no_more_than_a_share_or_a_number_goes_by_a_rule_that_is_new(
    store: Store, floor: int, share: float, goes: bool
) -> None:
    """11 jobs of 17 are too old: more than half of them, less than nine tenths."""
    jobs = await make(store, safety={"floor": floor, "share": share})
    await jobs.end("400d", 11, JobState.FAILED)
    await jobs.end("10m", 6, JobState.FAILED)
    await live(jobs)
    await jobs.app.janitor.keep("7d", states="failed")
    if not goes:
        with pytest.raises(SafetyStop):
            await jobs.app.janitor.run()
        assert await jobs.duty().sweep() == 0
        assert (await jobs.kept())["failed"] == 17
    assert (await jobs.app.janitor.run(force=True)).deleted == 11
