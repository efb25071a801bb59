"""A crash at any point of any flow loses nothing and doubles nothing in the SQLite backend, kill -9 included."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backends.sqlite import SqliteBackend
from headrace.testing.crashpoints import CrashPoint, check_crash, check_kill, crash_points, kill_everywhere

PARTS = 4


def connect(place: Path) -> SqliteBackend:
    return SqliteBackend(place / "jobs.db")


@pytest.mark.parametrize("point", crash_points(), ids=str)
async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
    await check_crash(connect, tmp_path, point)


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_loses_and_doubles_nothing(part: int, tmp_path: Path) -> None:
    for point, place in kill_everywhere(f"{__name__}:connect", tmp_path, points=crash_points()[part::PARTS]):
        await check_kill(connect, place, point)
