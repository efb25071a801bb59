"""A crash at any point of any flow loses nothing and doubles nothing where PostgreSQL keeps the jobs and Valkey gives
them out.

Between the two servers more can be left undone than in one: what is told to Valkey after a commit, and a window that is
being fed. So there are three deaths: a milder one, whose process still ends what it had begun; kill -9; and kill
-9 while Valkey loses its memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.backends.redis import parse
from headrace.backends.streams import StreamsBackend
from headrace.backends.streams.truth import Truth
from headrace.testing.crashpoints import CrashPoint, check_crash, check_kill, crash_points, kill_everywhere
from tests import postgres, valkey
from tests.streams import stores

KEEPS, GIVES = "TESTS_POSTGRES", "TESTS_VALKEY"
"""Tell the processes that are to be killed where the servers are, as they are not theirs."""
PARTS = 12


@pytest.mark.parametrize("point", crash_points(), ids=str)
async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
    await check_crash(stores.connect, tmp_path, point)


def connect(place: Path) -> StreamsBackend:
    """A backend on the one store there is; it is blank when the next process comes."""
    return StreamsBackend(Truth(os.environ[KEEPS], schema=postgres.SCHEMA), parse(os.environ[GIVES], {}, "valkey"))


def blank() -> None:
    """Both servers."""
    postgres.stores.blank()
    flush()


def flush() -> None:
    """Valkey forgets every window and every delivery."""
    valkey.server().call("FLUSHALL")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("forget", [None, flush], ids=["valkey stays", "valkey is flushed"])
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_kill_loses_and_doubles_nothing(
    part: int, forget: Callable[[], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEEPS, postgres.server().url())
    monkeypatch.setenv(GIVES, valkey.server().url())
    blank()
    for point, place in kill_everywhere(f"{__name__}:connect", tmp_path, points=crash_points()[part::PARTS]):
        await check_kill(connect, place, point, forget)
        blank()
