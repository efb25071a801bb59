"""The study of what keeping costs a drain archives, removes and compares."""

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.keeping import Drained, drain, table, verdict
from benchmarks.studies.stores import fresh


def test_what_has_ended_is_archived_and_removed_beside_a_drain(servers: Servers, tmp_path: Path) -> None:
    found = []
    for number, (keeping, old) in enumerate([(False, False), (True, False), (True, True)]):
        with fresh("sqlite", servers, tmp_path) as place:
            found.append(asyncio.run(drain(place, tmp_path / str(number), 2_000, keeping=keeping, old=old)))
    assert [one.archived for one in found] == [0, 0, 2_000]
    assert found[0].removed == 0
    assert found[2].removed >= 1_000
    assert all(one.seconds > 0 and one.cpu > 0 for one in found)
    assert len(table({"sqlite": found}).splitlines()) == 2


def test_the_verdict_is_by_the_clock_and_by_cpu() -> None:
    plain = Drained(10_000, False, False, 1.0, 1.0, 0, 0, 0)
    kept = replace(plain, keeping=True)
    old = replace(kept, old=True, meanwhile=5_000, archived=10_000, removed=10_000)
    assert verdict("sqlite", [plain, kept, old]) == []
    assert "CPU" in verdict("sqlite", [plain, replace(kept, cpu=1.2), old])[0]
    assert "clock" in verdict("sqlite", [plain, replace(kept, seconds=1.2), old])[0]
    assert "while others are archived" in verdict("sqlite", [plain, kept, replace(old, seconds=1.2)])[0]
    assert "few were archived" in verdict("sqlite", [plain, kept, replace(old, meanwhile=900)])[0]
    assert "shows nothing" in verdict("sqlite", [plain, kept, replace(old, archived=5)])[0]
