"""The study of a flood of failures counts dead letters while they come."""

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.flood import Found, Plan, measure, table
from benchmarks.studies.stores import fresh


def test_a_flood_is_watched(servers: Servers, tmp_path: Path) -> None:
    with fresh("sqlite", servers, tmp_path) as store:
        found = asyncio.run(measure(store.url, Plan(jobs=600, others=100, bound=200, tenants=2, probes=1_000)))
    assert found.most <= 1.1 * found.bound
    assert found.others_kept == found.others_had == 40
    assert found.looks > 0
    assert found.before_p99 > 0
    assert len(table({"sqlite": found}).splitlines()) == 2


def test_the_verdict_names_what_is_not_as_it_should_be() -> None:
    fine = Found(1_000, 100, 109, 50, 40, 40, 1.0, 1.9, 3.0, 9.0)
    assert fine.faults == []
    assert "111 dead letters" in replace(fine, most=111).faults[0]
    assert "39 of 40" in replace(fine, others_kept=39).faults[0]
    assert "percentile" in replace(fine, flood_p99=2.1).faults[0]
    assert "alert" in replace(fine, told_after=11.0).faults[0]
