"""The SQLite backend equals the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backends.sqlite import SqliteBackend
from headrace.testing.machine import machine_for, run_machine


def connect(place: Path) -> SqliteBackend:
    return SqliteBackend(place / "jobs.db", durability="normal")


@pytest.mark.parametrize("seed", range(10))
def test_sqlite_equals_the_model(seed: int, tmp_path: Path) -> None:
    run_machine(machine_for(connect, durable=True, root=tmp_path), seed=seed, examples=30)
