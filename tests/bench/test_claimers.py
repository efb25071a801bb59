"""The study of many claimers measures both kinds of queue."""

from dataclasses import replace

from benchmarks.fleet import Servers
from benchmarks.studies.claimers import QUICK, Cell, reached, study, table, wrong


def test_claimers_of_both_kinds_of_queue_are_measured(servers: Servers) -> None:
    cells = study(servers, replace(QUICK, seconds=0.2, jobs=2_000))
    assert [(cell.queue, cell.batch) for cell in cells] == [("plain", 10), ("turns", 10)]
    assert all(cell.rate > 0 and cell.server > 0 and cell.clients > 0 for cell in cells)
    assert len(table(cells).splitlines()) == 3


def test_what_is_reached_is_told() -> None:
    plain = Cell("plain", 10, 1_000.0, 100.0, 100.0)
    by_clock, by_cpu = Cell("turns", 10, 700.0, 900.0, 0.0), Cell("turns", 10, 1.0, 100.0, 180.0)
    assert wrong([plain, by_clock]) == wrong([plain, by_cpu]) == []
    assert reached([plain, by_clock]) == "turns give at least 0.7 of the plain queue"
    assert "; by CPU time alone in trips of 10 (0.00 by the clock)" in reached([plain, by_cpu])
    assert wrong([plain, Cell("turns", 10, 650.0, 200.0, 200.0)]) == ["trips of 10: 0.65 of the plain queue"]
