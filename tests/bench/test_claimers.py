"""The study of many claimers measures both kinds of queue."""

from dataclasses import replace

from benchmarks.fleet import Servers
from benchmarks.studies.claimers import QUICK, study, table


def test_claimers_of_both_kinds_of_queue_are_measured(servers: Servers) -> None:
    cells = study(servers, replace(QUICK, seconds=0.2, jobs=2_000))
    assert [(cell.queue, cell.batch) for cell in cells] == [("plain", 10), ("turns", 10)]
    assert all(cell.rate > 0 and cell.server > 0 and cell.clients > 0 for cell in cells)
    assert len(table(cells).splitlines()) == 3
