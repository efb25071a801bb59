"""``headrace queue windows``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Streams
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, row
from tests import postgres, valkey
from tests.cli.conftest import Run
from tests.streams import stores


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a window that has two jobs, and gave out one."""

    async def work() -> None:
        store = stores.connect(tmp_path)
        await store.open()
        await store.insert([row(n) for n in range(3)])
        await store.claim(Claim("w1", ("q",), 1, LEASE))
        await store.close()

    asyncio.run(work())
    monkeypatch.chdir(tmp_path)
    return Streams(pg=postgres.server().url(), valkey=valkey.server().url()).url


def test_a_window_is_shown_in_numbers(url: str, run: Run, run_json: Callable[..., Any]) -> None:
    [shown] = run_json("queue", "windows", "--url", url)["windows"]
    assert (shown["queue"], shown["mode"], shown["waiting"], shown["pending"]) == ("q", "open", 2, 1)
    assert "PENDING" in run("queue", "windows", "q", "--url", url).stdout
    assert run("queue", "windows", "--max-pending", 0, "--url", url, code=1).stderr


def test_other_stores_have_none(run: Run) -> None:
    assert "no windows" in run("queue", "windows", "--url", "memory://", code=2).stderr
