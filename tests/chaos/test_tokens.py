"""Those who judge tokens and lines, on ledgers whose verdict is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos.jobs import dashed
from chaos.kill_holders import HEAVY, HEAVY_LIMIT, LIMIT, Seen, judge
from chaos.ledger import Ledger, LedgerWriter
from chaos.lines import Lines
from chaos.tokens import SLACK, Tokens
from chaos.witness import Witness

from headrace.backends.memory import MemoryBackend
from headrace.seam.records import Beat, Claim, Row, Settlement
from headrace.testing.conformance.base import job_id
from headrace.types import JobState

SECOND = 1_000_000_000
Line = tuple[str, str, int, int, float]
"""kind, job, epoch, pid, second."""


def ledger(folder: Path, *lines: Line) -> Ledger:
    for kind, job, epoch, pid, second in lines:
        with (folder / f"{pid}.log").open("a") as file:
            file.write(f"{kind} {job} {epoch} {pid} {int(second * SECOND)}\n")
    return Ledger(folder)


def held(job: str, pid: int, since: float, until: float, ending: float | None = None) -> list[Line]:
    """What a worker writes of one lease."""
    lines: list[Line] = [("leased", job, 1, pid, since), ("until", job, 1, pid, until)]
    return lines if ending is None else [*lines, ("ending", job, 1, pid, ending)]


def tokens(folder: Path, *lines: Line) -> Tokens:
    """Jobs are called by their tenant and a digit."""
    found = ledger(folder, *lines)
    return Tokens(found, {entry.id: entry.id[:-1] for entry in found.entries})


@pytest.mark.parametrize(
    ("lines", "overlaps"),
    [
        ([*held("a1", 7, 1, 4, 2), *held("a2", 8, 2.1, 5, 3)], 0),
        ([*held("a1", 7, 1, 4, 2), *held("b1", 8, 1.5, 5, 3)], 0),  # another tenant
        ([*held("a1", 7, 1, 4, 2), *held("a2", 7, 1.5, 5, 3)], 0),  # the same worker
        ([*held("a1", 7, 1, 4, 2), *held("a2", 8, 1.5, 5, 3)], 1),
        ([*held("a1", 7, 1, 4), *held("a2", 8, 3.9, 7, 5)], 1),  # of one that died, before its lease had run out
        ([*held("a1", 7, 1, 4), *held("a2", 8, 4.1, 7, 5)], 0),
        ([*held("a1", 7, 1, 4), ("until", "a1", 1, 7, 6), *held("a2", 8, 4.1, 7, 5)], 1),  # it was renewed
        ([*held("a1", 7, 1, 4, 2), *held("a2", 7, 1.5, 6, 5), *held("a3", 8, 3, 9, 4)], 1),  # the last one counts
        ([*held("a1", 7, 1, 4, 3), *held("a2", 8, 2, 5, 2.5), *held("a3", 9, 2.6, 5, 4)], 2),
    ],
)
def test_two_workers_with_jobs_of_one_tenant(lines: list[Line], overlaps: int, tmp_path: Path) -> None:
    found = tokens(tmp_path, *lines)
    assert found.overlaps(1) == overlaps
    assert (max(found.holders.values()) > 1) is (overlaps > 0)


def test_where_two_holders_are_allowed_the_third_is_one_too_many(tmp_path: Path) -> None:
    found = tokens(tmp_path, *held("a1", 7, 1, 9, 8), *held("a2", 8, 2, 9, 8), *held("a3", 9, 3, 9, 8))
    assert (found.overlaps(1), found.overlaps(2), found.overlaps(3)) == (1, 1, 0)
    assert found.holders == {"a": 3}


def test_how_many_jobs_of_a_tenant_were_out_at_once(tmp_path: Path) -> None:
    found = tokens(
        tmp_path,
        *held("a1", 7, 1, 4, 2), *held("a2", 7, 1, 4, 3), *held("a3", 7, 2.5, 5, 4),
        *held("b1", 8, 1, 4), *held("b2", 8, 3.9, 5), *held("b3", 8, 4.5, 5, 4.6),
    )  # fmt: skip
    assert found.running == {"a": 2, "b": 2}
    assert found.leases == 6


def test_how_often_tenants_went_to_another_worker(tmp_path: Path) -> None:
    found = tokens(tmp_path, *held("a1", 7, 1, 4, 2), *held("a2", 8, 3, 9, 4), *held("a3", 7, 5, 9, 6))
    assert found.passed_on == 2


@pytest.mark.parametrize(
    ("tenant", "count", "seen", "said"),
    [
        ("light", LIMIT, Seen(1, LIMIT, HEAVY_LIMIT), []),
        (HEAVY, HEAVY_LIMIT, Seen(), []),
        ("light", LIMIT + 1, Seen(), ["4 jobs of a light tenant ran at once, where 3 may"]),
        (HEAVY, HEAVY_LIMIT + 1, Seen(), ["7 jobs of the heavy tenant ran at once, where 6 may"]),
        ("light", 1, Seen(holders=2), ["the store told of 2 workers with jobs of one tenant"]),
        ("light", 1, Seen(light=4), ["the store told of 4 running jobs of a light tenant, where 3 may"]),
        ("light", 1, Seen(heavy=7), ["the store told of 7 of the heavy one, where 6 may"]),
    ],
)
def test_what_is_said_of_limits(tenant: str, count: int, seen: Seen, said: list[str], tmp_path: Path) -> None:
    leases = [line for number in range(count) for line in held(f"{tenant}{number}", 7, 1, 4, 2)]
    assert [text for bad, text in judge(tokens(tmp_path, *leases), seen) if bad] == said


ONE, TWO, THREE = (job_id(number) for number in (1, 2, 3))


def ran(number: int, epoch: int, start: float, end: float | None = None) -> list[Line]:
    name = dashed(job_id(number))
    lines: list[Line] = [("start", name, epoch, 7, start)]
    return lines if end is None else [*lines, ("end", name, epoch, 7, end)]


@pytest.mark.parametrize(
    ("lines", "early"),
    [
        ([*ran(1, 1, 1, 2), *ran(2, 1, 2, 3), *ran(3, 1, 4, 5)], 0),
        ([*ran(1, 1, 1, 2), *ran(2, 1, 1.9, 3), *ran(3, 1, 4, 5)], 1),
        ([*ran(2, 1, 1, 2), *ran(1, 1, 3, 4), *ran(3, 1, 5, 6)], 1),  # the wrong way round
        ([*ran(1, 1, 1), *ran(1, 2, 4, 5), *ran(2, 1, 6, 7)], 0),  # one that was killed, and done again
        ([*ran(1, 1, 1, 2), *ran(1, 2, 4, 5), *ran(2, 1, 3, 6)], 1),  # its first end did not count
        ([*ran(1, 1, 1), *ran(2, 1, 3, 6)], 1),  # it never ended
        ([*ran(1, 1, 1, 2), *ran(2, 1, 1.5), *ran(2, 2, 4, 5)], 1),  # a first start counts
    ],
)
def test_jobs_of_a_group_that_were_started_too_soon(lines: list[Line], early: int, tmp_path: Path) -> None:
    epochs = {
        job_id(number): max((e for _, n, e, _, _ in lines if n == dashed(job_id(number))), default=1)
        for number in (1, 2, 3)
    }
    assert Lines(ledger(tmp_path, *lines), epochs).early([[ONE, TWO, THREE]]) == early
    assert Lines(ledger(tmp_path), epochs).early([[ONE], [TWO]]) == 0


async def test_a_witness_tells_what_is_certain_of_leases(tmp_path: Path) -> None:
    witness: Any = Witness(MemoryBackend(), LedgerWriter(tmp_path))
    await witness.open()
    await witness.insert([Row(job_id(number), "q", "t", {}, tenant="a") for number in (1, 2, 3)])
    [first] = (await witness.claim(Claim("h", ("q",), 1, 3_000_000))).jobs
    done = Settlement(first.id, first.epoch, "h", JobState.COMPLETED)
    _, claimed = await witness.finish_and_claim([done], Claim("h", ("q",), 1, 3_000_000))
    [second] = claimed.jobs
    leases = [(second.id, second.epoch), (first.id, first.epoch)]
    renewed = await witness.renew(Beat("h", "w", ("q",), 5_000_000, leases))
    assert renewed.lost == leases[1:]
    await witness.close()

    found = Ledger(tmp_path)
    assert [(entry.kind, entry.id) for entry in found.entries] == [
        ("leased", first.id.hex()), ("until", first.id.hex()), ("ending", first.id.hex()),
        ("leased", second.id.hex()), ("until", second.id.hex()), ("until", second.id.hex()),
    ]  # fmt: skip
    leased, until, ending, _, granted, kept = (entry.ns for entry in found.entries)
    assert 2.9 * SECOND < until - leased <= 3 * SECOND
    assert 1.9 * SECOND < kept - granted < 3 * SECOND
    assert ending > leased
    assert Tokens(found, {each.id.hex(): "a" for each in (first, second)}).running == {"a": 1}
    assert SLACK < SECOND / 100
