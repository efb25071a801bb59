"""The study of what users choose fills stores with many of something, asks the same of each, and judges."""

from dataclasses import replace

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies import flat, flat_crowds, flat_producers
from benchmarks.studies.flat_lines import Line, lines
from benchmarks.studies.stores import STORES

TINY = flat.Plan(0.0005, 1, 2, 30.0, 1, 60, 1, 2, 2)
SMALL = [replace(line, jobs=30, at_once=min(2, line.at_once)) for line in lines(TINY.scale)]


SERVED = ("priorities, few due", "queues")
"""Lines that are tried on servers too."""


@pytest.mark.parametrize(
    ("store", "line"),
    [(store, line) for store in STORES for line in SMALL if store == "sqlite" or line.name in SERVED],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_size_is_filled_and_measured(servers: Servers, store: str, line: Line) -> None:
    cells = flat.study(store, servers, line, TINY)
    assert [(cell.size, cell.call) for cell in cells] == [
        (size, call) for size in line.sizes for call in dict.fromkeys(line.calls)
    ]
    for cell in cells:
        assert 0 < cell.p50 <= cell.p99
        assert cell.effort > 0
        assert cell.slowest >= 0
    assert len(flat.table(cells).splitlines()) == 1 + len(cells)


def test_crowds_are_compared(servers: Servers) -> None:
    idle = flat_crowds.idle("valkey", servers, TINY.trickle, TINY.workers)
    assert min(idle[0].before, idle[0].after) >= 1
    turns = flat_crowds.governed("valkey", servers, TINY.jobs, TINY.claimers, TINY.times)
    assert [crowd.unit for crowd in turns] == ["jobs/s", "jobs/s of CPU"]
    assert all(min(crowd.before, crowd.after) > 0 for crowd in turns)
    assert len(flat.crowds_table([*idle, *turns]).splitlines()) == 1 + len(idle) + 2


def test_producers_are_compared(servers: Servers) -> None:
    found = flat_producers.compared(servers, 0.3)
    assert [(crowd.name, crowd.unit) for crowd in found] == [
        ("32 transactions, 8 listen", "commits/s"),
        ("4 producers of groups", "jobs/s"),
        ("16 producers of groups", "jobs/s"),
    ]
    assert all(min(crowd.before, crowd.after) > 0 for crowd in found)


@pytest.mark.parametrize(
    ("call", "p99", "effort", "slowest", "note", "judged"),
    [
        ("claim", 2.0, 10.0, 50.0, "", (True, "")),
        ("claim", 2.1, 16.0, 1.0, "", (False, "")),
        ("claim", 2.1, 14.0, 1.0, "", (True, "noise")),
        ("claim", 1.0, 10.0, 50.1, "", (False, "")),
        ("claim", 1.0, 10.0, 1.0, "only 7 jobs came in", (False, "only 7 jobs came in")),
        ("stats", 9.0, 90.0, 50.0, "", (True, "as many as there are")),
        ("stats", 9.0, 90.0, 51.0, "", (False, "")),
    ],
)
def test_what_is_flat(
    call: str, p99: float, effort: float, slowest: float, note: str, judged: tuple[bool, str]
) -> None:
    line = Line("things", (1, 9), lambda _size, _number: {}, (call,), proportional=("stats",))
    first = flat.Cell("things", call, 1, 10, 0.5, 1.0, 10.0, "steps", 1.0)
    other = replace(first, size=9, p99=p99, effort=effort, slowest=slowest, note=note)
    [small, big] = flat.judged(line, [first, other])
    assert (small.flat, small.times, small.effort_times) == (True, 1.0, 1.0)
    assert (big.flat, big.note) == judged


@pytest.mark.parametrize("name", ["tenants", "tenants, after a burst", "priorities, all due", "groups"])
def test_a_call_of_sqlite_does_at_most_twice_as_much_beside_many(servers: Servers, name: str) -> None:
    """By its own count of steps: that of a claim which wakes tenants, too."""
    [line] = [line for line in lines(0.02) if line.name == name]
    cells = flat.study("sqlite", servers, line, replace(TINY, calls=20))
    assert {cell.call: cell.effort_times for cell in cells if cell.effort_times > flat.FACTOR} == {}
