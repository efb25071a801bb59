"""The study of fairness measures what turns cost and bring, and writes it down."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies import turns, waits
from benchmarks.studies.stores import fresh, keep
from benchmarks.studies.tenants import HEAVY, Crowd, jain

CROWD = Crowd(tenants=10, each=40, load=10)


def test_equals_that_have_the_same_are_even() -> None:
    assert jain([2, 2, 2]) == 1.0
    assert jain([4, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0.0


def test_the_first_half_of_all_jobs_counts() -> None:
    crowd = Crowd(tenants=3, each=2, load=2)
    assert crowd.in_order() == [HEAVY] * 4 + [1, 1, 2, 2]
    assert (crowd.jobs, crowd.evenness(crowd.in_order()), crowd.heavy_share(crowd.in_order())) == (8, 0.0, 1.0)
    assert crowd.evenness([1, 2, HEAVY, HEAVY, 1, 2, HEAVY, HEAVY]) == 1.0
    assert crowd.heavy_share([1, 2, HEAVY, 1, HEAVY, 2, HEAVY, HEAVY]) == 0.25


def test_both_kinds_of_queues_are_emptied_in_both_ways(servers: Servers) -> None:
    cells = turns.study("postgres", servers, CROWD, 1)
    assert [(cell.way, cell.governed) for cell in cells] == [
        ("worker", False), ("worker", True), ("waist", False), ("waist", True),
    ]  # fmt: skip
    for cell in cells:
        assert cell.jobs == 760
        assert cell.rate > 0
        assert cell.cpu[0] > 0
    plain, fair = cells[2:]
    assert plain.heavy_share == 1.0
    assert fair.heavy_share < 0.2
    assert fair.evenness > 0.9
    assert len(turns.table(cells).splitlines()) == 5


def test_light_tenants_wait_beside_bursts(servers: Servers) -> None:
    plan = replace(waits.QUICK, workers=1, slots=10, seconds=1.2, warm=0.2, burst=0.6)
    with fresh("postgres", servers) as at:
        light, heavy, late = waits.measure(at.url, plan, waits.SITUATIONS[2], True, Random(1))
    assert len(light) > 10
    assert len(heavy) >= 60
    assert min(*light, *heavy, late) >= 0


def test_every_situation_is_held_against_light_tenants_alone() -> None:
    def cell(situation: str, p99: float, *, governed: bool = True) -> waits.Cell:
        return waits.Cell(situation, governed, 10, 5, 1.0, p99, p99, 9.0, 0.0, 0.0)

    alone, beside, bursts = waits.SITUATIONS
    times = [cell(alone, 10.0), cell(beside, 12.0), cell(bursts, 30.0), cell(bursts, 15.0), cell(bursts, 16.0)]
    cells = [*times, cell(alone, 5.0, governed=False), cell(bursts, 50.0, governed=False)]
    assert waits.p99(cells, bursts, True) == 16.0
    lines = waits.table(cells).splitlines()
    assert len(lines) == 1 + len(cells) + 2
    assert lines[-1].split()[-2:] == ["16.0", "1.60"]
    assert "10.00" in lines[-3]


@pytest.mark.parametrize("situation", waits.SITUATIONS)
def test_the_load_is_what_the_plan_says(situation: str) -> None:
    plan = waits.Plan(seconds=70.0)
    came = [(instant, tenant) for instant, tenants in waits.arrivals(plan, situation, Random(1)) for tenant in tenants]
    heavy = [instant for instant, tenant in came if tenant == HEAVY]
    assert len(came) - len(heavy) == pytest.approx(999 * 70, rel=0.02)
    if situation == waits.SITUATIONS[0]:
        assert heavy == []
    elif situation == waits.SITUATIONS[1]:
        assert len(heavy) == pytest.approx(100 * 70, rel=0.05)
    else:
        assert sorted({round(instant) for instant in heavy}) == [10, 40]
        assert len(heavy) == 2 * 3_000
    assert plan.share == pytest.approx(0.5, abs=0.01)


def test_what_one_store_said_stays_when_another_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    keep(path, "postgres", {"cores": 2}, [{"kind": "turns", "rate": 1}])
    keep(path, "sqlite", {"cores": 2}, [{"kind": "turns", "rate": 2}])
    keep(path, "postgres", {"cores": 4}, [{"kind": "turns", "rate": 3}])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["store"], line.get("rate"), line.get("machine")) for line in lines] == [
        ("sqlite", None, {"cores": 2}), ("sqlite", 2, None), ("postgres", None, {"cores": 4}), ("postgres", 3, None),
    ]  # fmt: skip


def test_half_a_study_leaves_the_other_half_alone(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    keep(path, "sqlite", {"cores": 2}, [{"kind": "turns", "rate": 1}, {"kind": "waits", "p99": 2}])
    keep(path, "sqlite", {"cores": 4}, [{"kind": "waits", "p99": 3}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"kind": "run", "store": "sqlite", "found": ["turns"], "machine": {"cores": 2}},
        {"store": "sqlite", "kind": "turns", "rate": 1},
        {"kind": "run", "store": "sqlite", "found": ["waits"], "machine": {"cores": 4}},
        {"store": "sqlite", "kind": "waits", "p99": 3},
    ]
