"""Those who judge chaos runs, on histories whose verdict is known."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from chaos.books import disagreements
from chaos.findings import Findings
from chaos.freeze_workers import Freeze, _late
from chaos.fsync_window import Cut, problems, shorten, told_of
from chaos.jobs import dashed
from chaos.kill_server import Outage, _recovery, at_work
from chaos.ledger import Ledger, Run, latest
from chaos.syncs import Sync
from chaos.worker import make_app

from chaos import poison
from headrace import JobState
from headrace.backends.memory import MemoryBackend
from headrace.seam.records import JobId, Record
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


def test_a_lease_under_which_a_job_is_started_twice_is_told_of_whoever_starts_it(tmp_path: Path) -> None:
    a, b = dashed(ONE), dashed(TWO)
    fine = [("start", a, 1, 1, 0.0), ("end", a, 1, 1, 1.0), ("start", a, 2, 2, 2.0), ("start", b, 1, 1, 3.0)]
    assert ledger(tmp_path, *fine).doubled() == 0
    found = ledger(tmp_path, ("start", a, 2, 3, 4.0), ("start", b, 1, 1, 5.0), ("start", b, 1, 2, 6.0))
    assert found.doubled() == 2


def test_a_run_of_poison_is_no_good_if_a_lease_was_given_out_twice() -> None:
    reached = {
        "innocent jobs done": 5, "innocent dead letters": 0, "killers set aside": 2, "most crashes by one killer": 3,
        "unreadable jobs set aside": 2, "worker deaths": 6, "epochs given out twice": 0,
    }  # fmt: skip
    assert poison.problems_of(reached, 5, 2) == []
    [problem] = poison.problems_of(reached | {"epochs given out twice": 1}, 5, 2)
    assert "given out twice" in problem


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


@pytest.mark.parametrize(
    ("lines", "works"),
    [
        ([("start", "a", 1, 7, 21)], True),
        ([("start", "a", 1, 7, 19)], False),
        ([("start", "a", 1, 8, 21)], False),  # another worker
        ([("store_away", "-", 0, 7, 11), ("start", "a", 1, 7, 21)], False),  # from its buffer
        ([("store_away", "-", 0, 7, 11), ("start", "a", 1, 7, 21), ("store_back", "-", 0, 7, 22)], False),
        ([("store_away", "-", 0, 7, 11), ("store_back", "-", 0, 7, 22), ("start", "a", 1, 7, 23)], True),
    ],
)
def test_who_is_at_work(lines: list[tuple[str, str, int, int, float]], works: bool, tmp_path: Path) -> None:
    ledger(tmp_path, ("start", "earlier", 1, 7, 0), *lines)
    assert at_work(tmp_path, [7], 20 * SECOND) is works


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


def test_a_file_is_cut_where_its_last_sync_found_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"synced, and not")
    assert shorten(path, Sync(6, 0, 1), Random(1), worst=True) == 9
    assert path.read_bytes() == b"synced"


@pytest.mark.parametrize("seed", range(5))
def test_or_anywhere_behind_that(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"synced, and not")
    gone = shorten(path, Sync(6, 0, 1), Random(seed), worst=False)
    assert path.read_bytes() == b"synced, and not"[: 15 - gone]
    assert 0 <= gone <= 9


def test_a_file_tells_of_a_job_when_the_step_that_made_it_is_whole() -> None:
    made = [
        b"*1\r\n$5\r\nMULTI\r\n*4\r\n$4\r\nHSET\r\n$1\r\nj\r\n$16\r\n%b\r\n$2\r\n{}\r\n" % name for name in (ONE, TWO)
    ]
    end = b"*1\r\n$4\r\nEXEC\r\n"
    assert told_of(made[0] + end + made[1] + end) == {ONE, TWO}
    assert told_of(made[0] + end + made[1]) == {ONE}
    assert told_of(made[0] + end + made[1][:-30] + end) == {ONE}
    assert told_of(made[0]) == set()


@pytest.mark.parametrize(
    ("kept", "gone", "ended", "said"),
    [
        ({ONE, TWO}, set(), 8.5, []),
        ({ONE}, {TWO}, 12.5, []),
        ({ONE, TWO}, {TWO}, None, ["1 enqueues are gone that were on the disk"]),
        ({ONE}, set(), None, ["1 enqueues are there that were not on the disk"]),
        ({TWO}, {ONE}, None, ["1 enqueues are gone that were acknowledged up to 2.10 s before a sync"]),
        ({ONE, TWO}, set(), 7.5, ["1 jobs ran again although they had ended long before the cut"]),
        ({ONE, TWO}, set(), 13.5, ["1 jobs ran again although they had ended long before the cut"]),
    ],
)
def test_what_a_power_cut_explains(kept: set[JobId], gone: set[JobId], ended: float | None, said: list[str]) -> None:
    told = {ONE: int(8.5 * SECOND), TWO: int(10.5 * SECOND)}
    cut = Cut(int(10.6 * SECOND), 11 * SECOND, 13 * SECOND, 1, told, frozenset(kept), frozenset(gone))
    again = [Run("a", 7, None if ended is None else int(ended * SECOND))]
    assert problems([cut], again) == said


async def test_a_store_that_disagrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app("memory://")
    async with app:
        await app.client.insert([app.tasks["work"].job(number) for number in range(3)])
        await app.drain()
        assert await disagreements(app) == []
        fetch = MemoryBackend.fetch

        async def forgetful(self: MemoryBackend, names: list[JobId]) -> list[Record | None]:
            return [None, *(await fetch(self, names))[1:]]

        monkeypatch.setattr(MemoryBackend, "fetch", forgetful)
        assert await disagreements(app) == ["of 3 jobs that are listed, 2 are there"]
