"""The studies of ten times the size measure what they say, in small."""

import asyncio
from pathlib import Path

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies import aftermath, drop, fleet, volume
from benchmarks.studies.stores import STORES, fresh

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim


def test_a_fleet_is_counted_by_the_server(servers: Servers) -> None:
    crew = fleet.Fleet(3, 2, pooled=True)
    plan = fleet.Plan((crew,), 0.5, 1.0, 2, 5.0)
    with fresh("postgres", servers, kind="large") as at:
        cell = fleet.measure(servers.postgres("large"), at.url, at.database, crew, plan)
        bell = fleet.ring(servers.postgres("large"), at.database, 3, 2)
    assert (cell.workers, cell.jobs) == (crew.workers, 2)
    assert cell.connections >= 2
    assert cell.sessions == fleet.SESSIONS
    assert 0 < cell.p50 <= cell.p99
    assert cell.statements > 0
    assert cell.notes > 0
    assert len(fleet.table([cell], [bell]).splitlines()) == 5


async def test_claims_are_counted_as_they_are_sent(servers: Servers) -> None:
    with fresh("postgres", servers, kind="large") as at:
        server = servers.postgres("large")
        backend = PostgresBackend(at.url, listen=False)
        await backend.open()
        before = fleet.Counts.now(server, at.database)
        for _ in range(3):
            await backend.claim(Claim("holder", ("q",), 1, 30_000_000))
        after = fleet.Counts.now(server, at.database)
        await backend.close()
    assert after.claims - before.claims == 3


def test_a_day_goes_and_others_are_timed(servers: Servers) -> None:
    with fresh("postgres", servers, kind="large") as at:
        going, cells = asyncio.run(drop.measure(servers.postgres("large"), at.url, at.database, 5_000, 0.3))
    assert going.rows == 5_000
    assert going.drop > 0
    assert going.step > 0
    assert going.left < going.size
    assert {cell.call for cell in cells} == {"insert", "claim", "fetch", "finish"}
    assert len(drop.table(going, cells).splitlines()) == 3 + len(cells)


def test_who_waits_while_a_day_goes_is_told() -> None:
    usual, quick = drop.Cell("before", "claim", 9, 1.0, 30.0, 90.0), drop.Cell("after", "claim", 9, 1.0, 60.0, 900.0)
    slow = drop.Cell("it is counted off", "claim", 9, 1.0, 61.0, 90.0)
    assert drop.wrong([usual, quick]) == []
    assert drop.wrong([usual, slow]) == ["claim, it is counted off: p99 61 ms, before 30 ms"]


def test_ids_and_vacuums_are_counted(servers: Servers, tmp_path: Path) -> None:
    plan = volume.Plan((10,), 5, 50, 0.2, 10, 500.0)
    with fresh("postgres", servers, tmp_path) as at:
        cost = asyncio.run(volume.cost(at.url, plan, 10))
        minutes = asyncio.run(volume.load(at.url, plan))
    assert 0.05 < cost.ids < 1
    assert cost.log > 200
    assert [minute.jobs > 0 for minute in minutes] == [True] * 4
    assert len(volume.table([cost], minutes).splitlines()) == 2 + 2 + 1 + 4


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("burst", aftermath.bursts(0.0005), ids=lambda burst: str(burst.name))
def test_a_burst_leaves_nothing_behind(servers: Servers, store: str, burst: aftermath.Burst) -> None:
    steps = aftermath.study(store, servers, burst, 10)
    calls = {(step.phase, step.call) for step in steps}
    assert {("before", "claim"), ("drained", "janitor"), ("two days later", "claim")} <= calls
    assert len(aftermath.table(steps).splitlines()) == 1 + len(steps)
