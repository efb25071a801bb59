"""The study of hostile batches makes every call, and tells the longest step of each."""

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies import hostile, hostile_cases
from benchmarks.studies.stores import STORES

SERVED = ("insert, new queues", "finish, retries", "rates of tasks", "claim, expired jobs", "rules for all tenants")
"""Cases that are tried on servers too."""


@pytest.mark.parametrize(
    ("store", "name"),
    [(store, name) for store in STORES for name in hostile.CASES if store == "sqlite" or name in SERVED],
)
def test_every_call_is_measured(servers: Servers, store: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_cases, "FULL", 12)
    cell = hostile.study(store, servers, name, 1)
    assert cell.case == name
    assert cell.cpu >= 0
    assert 0 <= cell.step <= min(cell.clock, cell.cpu)
    assert store == "valkey" or min(cell.clock, cell.steps) > 0
    assert len(hostile.table([cell]).splitlines()) == 2


def test_what_is_too_long_is_told() -> None:
    cells = [hostile.Cell("short", 50.0, 70.0, 50.0, 1), hostile.Cell("long", 50.1, 70.0, 50.1, 1)]
    assert [line.endswith("TOO LONG") for line in hostile.table(cells).splitlines()] == [False, False, True]
