"""The study of a flood of failures counts dead letters while they come."""

import asyncio
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.flood import Plan, measure, table
from benchmarks.studies.stores import fresh


def test_a_flood_is_watched(servers: Servers, tmp_path: Path) -> None:
    with fresh("sqlite", servers, tmp_path) as store:
        found = asyncio.run(measure(store.url, Plan(jobs=600, others=100, bound=200, tenants=2, probes=1_000)))
    assert found.most <= 1.1 * found.bound
    assert found.others_kept == found.others_had == 40
    assert found.looks > 0
    assert found.before_p99 > 0
    assert len(table({"sqlite": found}).splitlines()) == 2
