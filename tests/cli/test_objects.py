"""The object store from the shell."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from headrace import NewJob, connect
from headrace.errors import ConfigError
from headrace.seam.records import Delete, Selector
from headrace.types import Sections
from tests.cli.conftest import Run
from tests.objects import server

STORE = ("--url", "sqlite:///jobs.db")


def test_without_an_object_store(run: Run) -> None:
    result = run("objects", "plan", *STORE, code=2)
    assert "objects.url is not set" in result.stderr


def test_the_plan(run: Run) -> None:
    env = {"HEADRACE_OBJECTS__URL": "gs://jobs/prod"}
    [rule] = json.loads(run("objects", "plan", "--days", 60, *STORE, env=env).stdout)["rule"]
    assert rule["condition"] == {"age": 60, "matchesPrefix": ["prod/segments/"]}
    assert "gcloud" in run("objects", "apply", *STORE, env=env, code=2).stderr


def test_rules_of_a_bucket(run: Run, tmp_path: Path) -> None:
    env = {"HEADRACE_OBJECTS__URL": server().url(f"cli/{tmp_path.name}")}
    assert "no rule ends segments" in run("objects", "check", *STORE, env=env, code=1).stderr
    run("objects", "apply", *STORE, env=env)
    assert json.loads(run("objects", "check", "--json", *STORE, env=env).stdout) == {"ok": True, "problems": []}
    assert "lengthen it" in run("objects", "check", "--days", 500, *STORE, env=env, code=1).stderr


@pytest.mark.parametrize("command", ["plan", "apply", "check"])
def test_a_rule_that_is_shorter_than_objects_are_needed_is_refused(run: Run, command: str) -> None:
    env = {"HEADRACE_OBJECTS__URL": server().url("cli/short"), "HEADRACE_OBJECTS__KEEP": "50h"}
    told = run("objects", command, "--days", 3, *STORE, env=env, code=2).stderr
    assert "--days: expected 4 or more, got 3" in told
    assert "and as many days more as jobs are ever delayed" in told


@pytest.mark.usefixtures("project")
def test_a_sweep(run: Run, tmp_path: Path) -> None:
    env = {"HEADRACE_OBJECTS__URL": f"file://{tmp_path}/objects", "HEADRACE_OBJECTS__GRACE": "10ms"}

    async def leave_one() -> None:
        async with connect("sqlite:///jobs.db", objects={"url": env["HEADRACE_OBJECTS__URL"]}) as client:
            [gone] = await client.insert([NewJob(task="t", sections=Sections(blob=os.urandom(100_000)))])
            await client.insert([NewJob(task="t", sections=Sections(blob=os.urandom(100_000)))])
            await client.alter(Selector(ids=[gone.id]), Delete())

    asyncio.run(leave_one())
    found = json.loads(run("objects", "sweep", "--dry-run", "--json", *STORE, env=env).stdout)["objects"]
    assert len(found) == 1
    assert run("objects", "sweep", "--dry-run", *STORE, env=env).stdout.splitlines() == found
    assert "1 object deleted" in run("objects", "sweep", *STORE, env=env).stderr
    assert json.loads(run("objects", "sweep", "--json", *STORE, env=env).stdout)["objects"] == []


@pytest.mark.usefixtures("project")
def test_objects_of_another_store_are_adopted(run: Run, tmp_path: Path) -> None:
    env = {"HEADRACE_OBJECTS__URL": f"file://{tmp_path}/objects"}

    async def use(url: str) -> None:
        async with connect(url, objects={"url": env["HEADRACE_OBJECTS__URL"]}) as client:
            await client.insert([NewJob(task="t", sections=Sections(blob=os.urandom(100_000)))])

    asyncio.run(use("sqlite:///other.db"))
    with pytest.raises(ConfigError, match="headrace objects adopt"):
        asyncio.run(use("sqlite:///jobs.db"))
    assert "confirmation needed" in run("objects", "adopt", *STORE, env=env, code=2).stderr
    assert "its objects are this store's" in run("objects", "adopt", "--yes", *STORE, env=env).stderr
    asyncio.run(use("sqlite:///jobs.db"))
    with pytest.raises(ConfigError, match="expected a prefix of this store's own"):
        asyncio.run(use("sqlite:///other.db"))
