"""A crash at any point of any flow loses nothing and doubles nothing where PostgreSQL keeps the jobs and Valkey gives
them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.crashpoints import CrashPoint, check_crash, crash_points
from tests.streams import stores


@pytest.mark.parametrize("point", crash_points(), ids=str)
async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
    await check_crash(stores.connect, tmp_path, point)
