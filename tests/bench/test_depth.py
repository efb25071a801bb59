"""The study of depth fills a queue to its limit, is refused there, and lets producers rush at it."""

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies import depth, rush


def test_a_full_queue_is_read_and_refuses(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "_SEEDS", 50)
    cells = depth.study("postgres", servers, (50, 500), 3)
    assert [cell.depth for cell in cells] == [50, 500]
    for cell in cells:
        assert 0 < cell.stats <= cell.stats_p99
        assert 0 < cell.refused <= cell.refused_p99
        assert min(cell.crowd, cell.admitted) > 0
    assert len(depth.table(cells).splitlines()) == 3


def test_a_rush_is_held_back_at_the_limit(servers: Servers) -> None:
    [cell] = rush.study("postgres", servers, rush.QUICK)
    assert cell.over <= 0.01
    assert cell.full >= 0.99 * cell.depth
    assert cell.refused > 0
    assert cell.admitted > cell.depth
    assert len(rush.table([cell]).splitlines()) == 2


@pytest.mark.parametrize(("full", "most", "over"), [(100, 100, 0.0), (101, 99, 0.01), (100, 103, 0.03)])
def test_how_far_over_the_limit_it_was(full: int, most: int, over: float) -> None:
    cell = rush.Cell(100, 10, full, most, 0, 1, 1, 1)
    assert cell.over == pytest.approx(over)
