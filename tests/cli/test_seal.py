"""Keys from the shell."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace import NewJob, connect
from tests.cli.conftest import Run

STORE = ("--url", "sqlite:///jobs.db")
OLD, NEW = f"old:{bytes(range(32)).hex()}", f"new:{bytes(range(32, 64)).hex()}"


def keys(*listed: str) -> dict[str, str]:
    return {"HEADRACE_PAYLOADS__SEALING__KEYS": "env:JOB_KEYS", "JOB_KEYS": ",".join(listed)}


@pytest.fixture
def some_jobs(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("JOB_KEYS", OLD)

    async def enqueue() -> None:
        async with connect("sqlite:///jobs.db", payloads={"sealing": {"keys": "env:JOB_KEYS"}}) as client:
            await client.insert([NewJob(task="t", args={"n": n}) for n in range(5)])

    asyncio.run(enqueue())


def test_without_keys(run: Run) -> None:
    assert "payloads.sealing.keys is not set" in run("seal", "status", "--url", "memory://", code=2).stderr


@pytest.mark.usefixtures("some_jobs")
def test_a_rotation(run: Run) -> None:
    shown = run("seal", "status", *STORE, env=keys(NEW, OLD)).stdout
    assert [line.split() for line in shown.splitlines()[-2:]] == [["new", "0", "seals"], ["old", "5", "opens"]]
    assert "5 cells of 5 sealed again, with new" in run("seal", "rotate", *STORE, env=keys(NEW, OLD)).stderr
    found = json.loads(run("seal", "status", "--json", *STORE, env=keys(NEW)).stdout)
    assert found == {"seals_with": "new", "opens": ["new"], "sealed": {"new": 5}}
    assert json.loads(run("seal", "rotate", "--json", *STORE, env=keys(NEW, OLD)).stdout)["resealed"] == 0


@pytest.mark.usefixtures("some_jobs")
def test_a_key_that_was_removed_too_early(run: Run) -> None:
    assert "5 cells could not be opened" in run("seal", "rotate", *STORE, env=keys(NEW), code=1).stderr
    assert "unknown here" in run("seal", "status", *STORE, env=keys(NEW)).stdout
    run("seal", "rotate", *STORE, env=keys(NEW, OLD))
