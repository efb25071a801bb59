"""A kill -9 at any point of any flow loses nothing and doubles nothing in the PostgreSQL backend.

A milder death, in the process of the test, leaves the server with the same: other stores are crashed so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.testing.crashpoints import check_kill, crash_points, kill_everywhere
from tests.postgres import SCHEMA, server, stores

SERVER = "TESTS_POSTGRES"
"""Tells the processes that are to be killed where the server is, as it is not theirs."""
PARTS = 12


def connect(place: Path) -> PostgresBackend:
    """A backend on the one store there is; it is blank when the next process comes."""
    return PostgresBackend(os.environ[SERVER], schema=SCHEMA)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_loses_and_doubles_nothing(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER, server().url())
    stores.blank()
    for point, place in kill_everywhere(f"{__name__}:connect", tmp_path, points=crash_points()[part::PARTS]):
        await check_kill(connect, place, point)
        stores.blank()
