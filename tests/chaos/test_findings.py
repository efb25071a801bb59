"""Those who judge chaos runs, on histories whose verdict is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.findings import Findings
from chaos.freeze_workers import Freeze, _late
from chaos.jobs import dashed
from chaos.kill_server import Outage, _recovery
from chaos.ledger import Ledger, latest

from headrace import JobState
from headrace.records import JobId, Record
from headrace.testing.conformance.base import job_id

ONE, TWO = job_id(1), job_id(2)
SECOND = 1_000_000_000


def ledger(folder: Path, *lines: tuple[str, str, int, int, float]) -> Ledger:
    """Entries of (kind, job, epoch, pid, second)."""
    for kind, job, epoch, pid, second in lines:
        with (folder / f"{pid}.log").open("a") as file:
            file.write(f"{kind} {job} {epoch} {pid} {int(second * SECOND)}\n")
    return Ledger(folder)


def record(
    name: JobId, state: JobState = JobState.COMPLETED, *, epoch: int = 1, by: int = 1, attempt: int = 0
) -> Record:
    result = b"\1\0\0\0\0" + str(by).encode()
    return Record(name, "q", "work", state, epoch=epoch, attempt=attempt, result=result)


def run_of(name: JobId, epoch: int = 1) -> tuple[str, str, int, int, float]:
    return "start", dashed(name), epoch, 7, float(epoch)


def test_a_run_without_fault_is_good(tmp_path: Path) -> None:
    found = Findings(
        [ONE, TWO], [record(ONE), record(TWO, epoch=2, by=2)], ledger(tmp_path, run_of(ONE), run_of(TWO, 2))
    )
    assert found.problems() == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([record(ONE), None], "1 acknowledged jobs are gone"),
        ([record(ONE), record(TWO, JobState.FAILED)], "1 jobs are not completed"),
        ([record(ONE), record(TWO, epoch=2, by=1)], "1 outcomes of stale workers were accepted"),
        ([record(ONE), record(TWO, attempt=1)], "1 attempts were counted although no handler failed"),
    ],
)
def test_records_that_tell_of_a_fault(records: list[Record | None], said: str, tmp_path: Path) -> None:
    assert Findings([ONE, TWO], records, ledger(tmp_path, run_of(ONE), run_of(TWO))).problems() == [said]


def test_what_ran_and_was_never_enqueued(tmp_path: Path) -> None:
    found = Findings([ONE], [record(ONE)], ledger(tmp_path, run_of(ONE), run_of(TWO)))
    assert found.problems() == ["1 jobs ran that nobody enqueued"]
    assert Findings([ONE], [record(ONE)], Ledger(tmp_path), asked=[TWO]).problems() == []


def test_what_is_said_to_be_done_and_never_ran(tmp_path: Path) -> None:
    found = Findings([ONE], [record(ONE)], ledger(tmp_path))
    assert found.problems() == ["1 jobs are said to be done but no handler ran"]


OUTAGE = Outage(killed=10 * SECOND, ready=20 * SECOND, over=40 * SECOND)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([("store_away", "-", 0, 7, 11), ("store_back", "-", 0, 7, 22), ("start", "a", 1, 7, 23)], 3.0),
        ([("start", "a", 1, 7, 21)], 1.0),
        ([("store_away", "-", 0, 7, 11), ("start", "a", 1, 7, 21)], None),  # from its buffer
        ([("store_away", "-", 0, 7, 11), ("store_back", "-", 0, 7, 22)], None),
        ([("start", "a", 1, 7, 19)], None),
        ([("start", "a", 1, 7, 41)], None),
        ([("start", "a", 1, 8, 21)], None),  # another worker
    ],
)
def test_when_a_worker_consumes_again(
    lines: list[tuple[str, str, int, int, float]], seconds: float | None, tmp_path: Path
) -> None:
    assert _recovery(ledger(tmp_path, *lines), 7, OUTAGE) == seconds


def test_which_runs_were_under_way_in_a_frozen_process(tmp_path: Path) -> None:
    found = ledger(
        tmp_path,
        ("start", "before", 1, 7, 1), ("end", "before", 1, 7, 2),
        ("start", "told", 1, 7, 3), ("told", "told", 1, 7, 20.5),
        ("start", "ended", 1, 7, 4), ("end", "ended", 1, 7, 22),
        ("start", "silent", 1, 7, 5),
        ("start", "elsewhere", 1, 8, 5),
        ("start", "after", 1, 7, 21), ("end", "after", 1, 7, 23),
    )  # fmt: skip
    late = _late(found, Freeze(7, 10 * SECOND, 20 * SECOND))
    assert {each.id: each.known for each in late} == {"told": 0.5, "ended": 2.0, "silent": None}


def test_the_last_lines_of_a_ledger_that_is_still_written(tmp_path: Path) -> None:
    (tmp_path / "7.log").write_text("".join(f"start a 1 7 {ns}\nend a 1 7 {ns}\n" for ns in range(5_000)))
    (tmp_path / "8.log").write_text("start a 1 8 5\nstart b 1 8 6\nstart c 1 8 7")
    assert latest(tmp_path, "start") == {7: 4_999, 8: 6}
