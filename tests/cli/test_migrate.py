"""``headrace migrate``: on a real PostgreSQL server, and on stores that need none of it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from servers.postgres import BINARIES, Postgres
from sqlalchemy import NullPool, create_engine

from headrace.api.connection import connect, migrator
from headrace.backends.postgres import schema as schemas
from headrace.backends.postgres.schema import migrations
from headrace.cli.problems import FAILED, UNAVAILABLE, USAGE
from headrace.types import NewJob
from tests.cli.conftest import Run
from tests.postgres import server

RunJson = Callable[..., Any]
NAMES = [step.name for step in migrations()]
NEWEST = migrations()[-1].version
_numbers = count(1)


@pytest.fixture
def schema() -> str:
    """A name that nobody has used."""
    return f"cli_{next(_numbers)}"


@pytest.fixture
def url(schema: str) -> str:
    return f"{server().url()}?schema={schema}"


def execute(text: str, *, user: str = "headrace") -> list[Any]:
    with psycopg.connect(server().url(user=user), autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def up_to(url: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store as it was before the later steps came."""

    async def apply() -> None:
        found = migrator(url)
        assert found is not None
        async for _ in found.up():
            pass

    with monkeypatch.context() as patched:
        patched.setattr(schemas, "migrations", lambda: migrations()[:version])
        asyncio.run(apply())


def enqueue(url: str) -> None:
    async def main() -> None:
        async with connect(url) as client:
            await client.insert([NewJob(task="mail", tenant="acme")])

    asyncio.run(main())


def test_from_nothing_to_a_store(run: Run, run_json: RunJson, url: str, schema: str) -> None:
    before = run_json("migrate", "status", "--url", url, code=FAILED)
    assert (before["found"], before["needed"], before["current"]) == (None, NEWEST, False)
    assert (before["schema"], before["applied"]) == (schema, [])
    assert [step["name"] for step in before["pending"]] == NAMES
    done = run("migrate", "up", "--url", url).stdout.splitlines()
    assert done == [*(f"{name}  applied" for name in NAMES), f"schema {schema} is at version {NEWEST}"]
    after = run_json("migrate", "status", "--url", url)
    assert (after["found"], after["current"], after["pending"]) == (NEWEST, True, [])
    assert [step["name"] for step in after["applied"]] == NAMES
    assert all(re.match(r"\d{4}-\d\d-\d\dT", step["applied_at"]) for step in after["applied"])
    assert run("migrate", "up", "--url", url).stdout.splitlines() == [f"schema {schema} is at version {NEWEST}"]
    enqueue(f"{url}&migrate=no")


def test_status_for_people(run: Run, url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    up_to(url, 2, monkeypatch)
    told = run("migrate", "status", "--url", url, code=FAILED)
    assert re.search(rf"schema +{schema}\nversion +2\nneeded +{NEWEST}\n", told.stdout)
    assert re.search(rf"{NAMES[1]} +\d{{4}}-.* \(just now\)|{NAMES[1]} .*ago\)", told.stdout)
    assert re.search(rf"{NAMES[2]} +pending", told.stdout)
    assert "headrace migrate up" in told.stderr
    run("migrate", "up", "--url", url)
    assert "pending" not in run("migrate", "status", "--url", url).output


def test_the_plan_changes_nothing(run: Run, run_json: RunJson, url: str, schema: str) -> None:
    told = run("migrate", "plan", "--url", url).stdout
    assert re.search(rf"{NAMES[0]} +new: \d+ tables, .*; locks no table in use", told)
    plan = run_json("migrate", "plan", "--url", url)
    assert [step["name"] for step in plan["steps"]] == NAMES
    assert execute(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'") == []
    run("migrate", "up", "--url", url)
    assert "up to date" in run("migrate", "plan", "--url", url).stderr
    assert run_json("migrate", "plan", "--url", url)["steps"] == []


def test_the_printed_sql_makes_a_store(run: Run, url: str, schema: str) -> None:
    execute(run("migrate", "sql", "--schema", schema).stdout)
    run("migrate", "status", "--url", url)
    enqueue(f"{url}&migrate=no")


def test_sql_needs_no_server(run: Run) -> None:
    """The schema is that of the URL, unless given; the URL of a store that has no SQL is no obstacle."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none?schema=from_url"
    assert '"from_url", pg_temp' in run("migrate", "sql", "--url", nowhere).stdout
    assert '"given", pg_temp' in run("migrate", "sql", "--url", nowhere, "--schema", "given").stdout
    plain = run("migrate", "sql")
    assert '"headrace", pg_temp' in plain.stdout
    assert "sqlite:///headrace.db migrates itself" in plain.stderr
    run("migrate", "sql", "--schema", "x" * 64, code=USAGE)


def test_sql_from_a_version_on(run: Run, url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    up_to(url, 3, monkeypatch)
    text = run("migrate", "sql", "--url", url, "--from", 3).stdout
    assert (text.count("\nBEGIN;"), text.count("\nCOMMIT;")) == (NEWEST - 3, NEWEST - 3)
    execute(text)
    run("migrate", "status", "--url", url)
    assert run("migrate", "sql", "--from", NEWEST).stdout == ""


def test_sql_for_tools_with_transactions_of_their_own(run: Run, url: str, schema: str) -> None:
    text = run("migrate", "sql", "--url", url, "--bare").stdout
    assert "BEGIN;" not in text
    with psycopg.connect(server().url()) as connection:
        connection.execute(text.encode())
    run("migrate", "status", "--url", url)


def test_a_store_that_is_locked(run: Run, url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_PAUSE", 0.01)
    up_to(url, NEWEST - 1, monkeypatch)
    with psycopg.connect(server().url()) as other:
        other.execute(f"LOCK TABLE {schema}.migrations IN SHARE MODE".encode())
        told = run("migrate", "up", "--url", url, "--lock-timeout", "20ms", code=UNAVAILABLE)
        assert f"step {NAMES[-1]} needs a lock that another session has" in told.stderr
    assert run("migrate", "up", "--url", url).stdout.startswith(f"{NAMES[-1]}  applied\n")


def test_a_store_that_is_away(run: Run) -> None:
    for command in ("status", "plan", "up"):
        run("migrate", command, "--url", "postgresql://nobody@127.0.0.1:1/none", code=UNAVAILABLE)


def test_a_command_on_a_store_that_is_behind_says_what_to_run(
    run: Run, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_to(url, 3, monkeypatch)
    told = run("queue", "list", "--url", f"{url}&migrate=no", code=FAILED).stderr
    assert f"is at version 3, this Headrace needs version {NEWEST}" in told
    assert f"headrace migrate up --url 'postgresql://***@127.0.0.1:{server().port}/postgres?schema={schema}'" in told
    assert f"headrace migrate sql --from 3 --schema {schema}" in told


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_stores_that_need_no_commands(run: Run, run_json: RunJson, url: str, project: Path) -> None:
    for command in ("status", "plan", "up"):
        assert f"{url} migrates itself when it is opened" in run("migrate", command, "--url", url).stdout
    assert run_json("migrate", "status", "--url", url)["current"] is True
    assert run_json("migrate", "plan", "--url", url)["steps"] == []
    assert not (project / "jobs.db").exists()
    for command in ("grant", "revoke"):
        assert "has no roles" in run("migrate", command, "reader", "me", "--url", url, code=USAGE).stderr


def test_granting(run: Run, url: str, schema: str) -> None:
    run("migrate", "up", "--url", url)
    enqueue(url)
    role = f"{schema}_reader"
    execute(f"CREATE ROLE {role} LOGIN")
    theirs = url.replace("headrace@", f"{role}@")
    refused = run("job", "list", "--url", theirs, code=USAGE).stderr
    assert "headrace migrate grant" in refused
    assert run("migrate", "grant", "reader", role, "--url", url).stdout == f"{role}  reader\n"
    assert "mail" in run("job", "list", "--url", theirs).stdout
    run("migrate", "status", "--url", theirs)
    assert "headrace migrate grant janitor" in run("queue", "pause", "default", "--url", theirs, code=USAGE).stderr
    assert run("migrate", "revoke", "reader", role, "--url", url).stdout == f"{role}  no longer reader\n"
    run("job", "list", "--url", theirs, code=USAGE)


def test_granting_for_tenants(run: Run, url: str, schema: str) -> None:
    run("migrate", "up", "--url", url)
    enqueue(url)
    role = f"{schema}_tenant"
    execute(f"CREATE ROLE {role} LOGIN")
    theirs = url.replace("headrace@", f"{role}@")
    assert "tenant other\n" in run("migrate", "grant", "reader", role, "--tenant", "other", "--url", url).stdout
    assert "mail" not in run("job", "list", "--url", theirs).stdout
    more = ("--tenant", "acme", "--tenant", "other")
    assert "tenants acme, other\n" in run("migrate", "grant", "reader", role, *more, "--url", url).stdout
    assert "mail" in run("job", "list", "--url", theirs).stdout
    assert "sees the jobs of all tenants" in run("migrate", "grant", "worker", role, "--url", url, code=USAGE).stderr
    run("migrate", "grant", "reader", role, "--tenant", "a", "--any-tenant", "--url", url, code=USAGE)
    run("migrate", "grant", "worker", role, "--any-tenant", "--url", url)


def test_granting_to_whom_there_is_not(run: Run, url: str) -> None:
    run("migrate", "up", "--url", url)
    told = run("migrate", "grant", "reader", "nobody at all", "--url", url, code=USAGE).stderr
    assert 'there is no role "nobody at all". CREATE ROLE "nobody at all" LOGIN' in told
    run("migrate", "grant", "king", "me", "--url", url, code=USAGE)


PAGE = Path(__file__).parents[2] / "docs/howto/postgres-operations.md"


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A server with no roles but its own, as the pages make some by name."""
    postgres = Postgres()
    postgres.start()
    yield postgres
    postgres.stop("immediate")
    postgres.close()


def test_what_the_page_says_works(own_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom: SQL as a superuser, commands in a shell as the owner, and the revision on a real transaction."""
    monkeypatch.chdir(tmp_path)
    owner = own_server.url(user="jobs_owner")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(BINARIES), os.environ["PATH"]])
    shell = {**os.environ, "PATH": path, "HEADRACE_URL": owner}
    ran = 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        match language:
            case "sql":
                with psycopg.connect(own_server.url(), autocommit=True) as connection:
                    connection.execute(block.encode())
            case "console":
                commands = [line.removeprefix("$ ") for line in block.splitlines() if "export" not in line]
                for command in commands:
                    done = subprocess.run(command, shell=True, env=shell, capture_output=True, text=True, check=False)
                    assert done.returncode == 0, f"{command}: {done.stderr}"
                    ran += 1
            case "py":
                engine = create_engine(owner.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
                with engine.begin() as bind:
                    names: dict[str, Any] = {"op": SimpleNamespace(get_bind=lambda bind=bind: bind), "Path": Path}
                    exec(block + "upgrade()", names)
    assert ran > 10
    with psycopg.connect(own_server.url()) as connection:
        for schema in ("headrace", "staging", "billing"):
            [[version]] = connection.execute(f"SELECT max(version) FROM {schema}.migrations".encode()).fetchall()
            assert version == NEWEST


@pytest.mark.parametrize("length", ["0s", "0", "400us", "3000d", "25d"])
def test_a_lock_timeout_that_the_server_would_take_for_none(run: Run, url: str, length: str) -> None:
    told = run("migrate", "up", "--url", url, "--lock-timeout", length, code=USAGE).stderr
    assert "lock timeout: expected between 1 ms and 24 days, got " in told
    run("migrate", "status", "--url", url, code=FAILED)


@pytest.mark.parametrize("length", ["1ms", "24d"])
def test_the_shortest_and_the_longest_lock_timeout(run: Run, url: str, length: str) -> None:
    run("migrate", "up", "--url", url, "--lock-timeout", length)


def test_a_login_in_vain_is_told_as_such(run: Run) -> None:
    """It is no wrong command: a supervisor starts the worker again, as the server may let it in later."""
    for user, database, remedy in (
        ("nobody", "postgres", "Look at the user and password in the URL"),
        ("headrace", "nowhere", "Look at the database in the URL, or create it"),
    ):
        for command in ("status", "plan", "up"):
            told = run("migrate", command, "--url", server().url(database, user), code=UNAVAILABLE).stderr
            assert remedy in told
            assert "the store is away" not in told


@pytest.mark.parametrize("password", ["hun/ter2", "100%hunter2", "hun?ter2"])
def test_a_password_that_is_not_encoded_is_not_told(run: Run, password: str) -> None:
    told = run("migrate", "status", "--url", f"postgresql://ada:{password}@127.0.0.1:1/db", code=USAGE).stderr
    assert "hun" not in told
    assert "ter2" not in told
    assert '"/" is %2F, "%" is %25, "?" is %3F' in told


def test_a_schema_with_a_blank(run: Run) -> None:
    """It is what was typed, and what a message tells one to type leads to it."""
    assert "set_config('headrace.schema', 'a b+c', " in run("migrate", "sql", "--schema", "a b+c").stdout
    told = run("queue", "list", "--url", f"{server().url()}?schema=a%20b+c&migrate=no", code=FAILED).stderr
    assert "?schema=a%20b%2Bc'" in told
