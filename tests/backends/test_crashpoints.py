"""A crash at any point of any flow loses nothing and doubles nothing; and the enumeration would notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.entry import Entry
from headrace.seam.records import (
    Claim,
    Claimed,
    Inserted,
    InsertStatus,
    Reap,
    Reaped,
    Row,
    Settlement,
    Stamp,
    SweepClause,
    Swept,
)
from headrace.testing.crashpoints import CrashPoint, check_crash, check_kill, crash_points, kill_everywhere, listing
from headrace.types import JobState
from tests.backends import planted, planted_rules
from tests.backends.hooked import HookedBackend
from tests.backends.journal import JournalBackend, LazyJournalBackend

LIST = Path(__file__).with_name("crashpoints.txt")
POINTS = crash_points()
PARTS = 4


def memory(place: Path) -> MemoryBackend:
    return MemoryBackend()


def test_the_list_of_points_is_up_to_date() -> None:
    update = f"python -m headrace.testing.crashpoints > tests/backends/{LIST.name}"
    assert LIST.read_text() == listing(), f"the flows have changed; look at the difference after\n    {update}"


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
    await check_crash(memory, tmp_path, point)


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_loses_and_doubles_nothing(part: int, tmp_path: Path) -> None:
    points = POINTS[part::PARTS]
    for point, place in kill_everywhere("tests.backends.journal:JournalBackend", tmp_path, points=points):
        await check_kill(JournalBackend, place, point)


async def test_a_store_that_answers_before_it_writes_is_found_out(tmp_path: Path) -> None:
    found = []
    points = [point for point in POINTS if point.flow == "work"]
    for point, place in kill_everywhere("tests.backends.journal:LazyJournalBackend", tmp_path, points=points):
        try:
            await check_kill(LazyJournalBackend, place, point)
        except AssertionError:
            found.append(str(point))
    assert "work: after call 1 (claim)" in found


async def test_a_point_beyond_the_end_of_its_flow_is_an_error(tmp_path: Path) -> None:
    last = [point for point in POINTS if point.flow == "enqueue"][-1]
    with pytest.raises(AssertionError, match="ended before the point was reached"):
        await check_crash(memory, tmp_path, replace(last, call=2))


class KnowsNoRepeats(HookedBackend):
    """A repeated insert makes a second job."""

    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        answer = super()._insert(row, now, gate=gate)
        if answer.status is InsertStatus.SAME:
            super()._insert(replace(row, id=row.id[:-1] + b"\xff", key=None), now, gate=gate)
        return answer


class RunsEndedJobsAgain(HookedBackend):
    """A repeated insert revives a job that has ended."""

    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        answer = super()._insert(row, now, gate=gate)
        if answer.status is InsertStatus.SAME and answer.state.terminal:
            self._requeue(self.store.jobs[row.id], now)
        return answer


class HalfABatch(HookedBackend):
    """Stores the first row of a batch, and the rest when it is asked once more."""

    async def insert(self, rows: list[Row], at: Stamp = None) -> list[Inserted]:
        known = any(row.id in self.store.jobs for row in rows)
        await super().insert(rows if known else rows[:1], at)
        return await super().insert(rows, at) if known else [Inserted(InsertStatus.NEW, row.id) for row in rows]


class TakesFromTheLiving(HookedBackend):
    """Claims do not look whether a job is under a lease."""

    def _claim(self, req: Claim, now: int) -> Claimed:
        for entry in list(self.store.running.values()):
            self._release(entry, JobState.AVAILABLE, now)
        return super()._claim(req, now)


class LosesWhatItReaps(HookedBackend):
    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        reaped = await super().reap(req, at)
        for answer in reaped:
            self.store.remove(self.store.jobs[answer.id])
        return reaped


class ForgetsCancelsWhenItReaps(HookedBackend):
    def _reap(self, entry: Entry, req: Reap, now: int, *, offset: int) -> Reaped:
        entry.cancel_requested = False
        return super()._reap(entry, req, now, offset=offset)


class SpawnsBeforeItLooks(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        for row in s.spawn:
            self._insert(row, now)
        return super()._finish(replace(s, spawn=()), now)


class SweepsOneMore(HookedBackend):
    """Each call removes one job too many, so repeating it does harm."""

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        count = len(self.store.ended[JobState.FAILED])
        return await super().sweep(replace(clause, max_count=min(clause.max_count or 0, count - 1)), at)


@pytest.mark.parametrize(
    "faulty",
    [
        KnowsNoRepeats,
        RunsEndedJobsAgain,
        HalfABatch,
        TakesFromTheLiving,
        LosesWhatItReaps,
        ForgetsCancelsWhenItReaps,
        SpawnsBeforeItLooks,
        SweepsOneMore,
        planted.AnyEpochFits,
        planted.FencedOffButSpawns,
        planted.StartsExpiredJobs,
        planted.FailedJobsKeepTheirKey,
        planted.CompletedJobsLoseTheirKey,
        planted.BlindWithinABatch,
        planted.OneLossTooMany,
        planted_rules.LostTokensStayTaken,
        planted_rules.TheFullStayFull,
        planted_rules.OneMoreRuns,
        planted_rules.OneMoreOfATenantRuns,
        planted_rules.RetriesGiveTheirTurnBack,
        planted_rules.GroupsGoTwoByTwo,
        planted_rules.OneMoreWaits,
    ],
)
async def test_a_planted_fault_is_found(faulty: type[MemoryBackend], tmp_path: Path) -> None:
    async def check_all() -> None:
        for point in POINTS:
            await check_crash(lambda place: faulty(), tmp_path, point)

    with pytest.raises(AssertionError):
        await check_all()
