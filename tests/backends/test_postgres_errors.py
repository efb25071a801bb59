"""What passes and what does not, of all that PostgreSQL says: only the content is ever at fault."""

from __future__ import annotations

import secrets
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.translate import allowed, translated
from headrace.backends.refusal import NotLetIn
from headrace.errors import ConfigError, Corrupt, Rejected, SchemaMismatch, StoreFull, Unavailable
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, row, settle
from headrace.types import JobState
from tests.postgres import server

PASSING = (
    "08006", "08P01", "0A000", "25P02", "25P03", "25P04", "40001", "40P01", "53000", "53200", "53300", "53400", "55000",
    "55006", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "58000", "58030", "XX000",
)  # fmt: skip
CONTENT = ("22001", "22003", "22021", "22023", "22P05", "23502", "23505", "23514", "54000", "54001", "54023")


def raised(statement: LiteralString | sql.Composable, options: str = "") -> psycopg.Error:
    """What the server says to it."""
    with psycopg.connect(server().url(), autocommit=True, options=options) as connection:
        with pytest.raises(psycopg.Error) as told:
            connection.execute(statement)
        return told.value


def of(code: str) -> Exception:
    return translated(raised(sql.SQL("DO $$ BEGIN RAISE 'no' USING ERRCODE = {}; END $$").format(code)), "there")


@pytest.mark.parametrize("code", PASSING)
def test_what_passes(code: str) -> None:
    assert isinstance(of(code), Unavailable)


@pytest.mark.parametrize("code", CONTENT)
def test_what_is_wrong_with_the_content(code: str) -> None:
    assert isinstance(of(code), Rejected)


def test_what_neither_passes_nor_is_anybodys_fault() -> None:
    for code, kind in (("53100", StoreFull), ("XX001", Corrupt), ("XX002", Corrupt), ("42883", SchemaMismatch)):
        assert type(of(code)) is kind
    assert not isinstance(of("42601"), Unavailable | Rejected)


@pytest.mark.parametrize("setting", ["transaction_timeout", "statement_timeout"])
def test_a_time_limit(setting: str) -> None:
    assert isinstance(translated(raised("SELECT pg_sleep(9)", f"-c {setting}=5ms"), "there"), Unavailable)


def test_a_transaction_that_waited_for_its_next_statement() -> None:
    options = "-c idle_in_transaction_session_timeout=500ms"
    with psycopg.connect(server().url(), options=options, autocommit=True) as connection:
        connection.execute("BEGIN")
        assert select.select([connection], [], [], 30)[0]
        with pytest.raises(psycopg.Error) as told:
            connection.execute("SELECT")
    assert isinstance(translated(told.value, "there"), Unavailable)


# -- a store, and a role that may use it


ROLE = "passing"


@pytest.fixture
def database() -> Iterator[str]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE passing")
        connection.execute("CREATE ROLE passing LOGIN")
        yield "passing"
        connection.execute("DROP DATABASE passing WITH (FORCE)")
        connection.execute("DROP ROLE passing")


@asynccontextmanager
async def opened(database: str, user: str = ROLE, *parts: str) -> AsyncIterator[PostgresBackend]:
    """A backend of a role with these parts."""
    owner = PostgresBackend(server().url(database), listen=False)
    store = PostgresBackend(server().url(database, user), listen=False)
    await owner.open()
    try:
        for part in parts:
            await owner.migrator.grant(part, user)
        await store.open()
        yield store
    finally:
        await store.close()
        await owner.close()


def admin(database: str, *statements: LiteralString) -> None:
    with psycopg.connect(server().url(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_rights_that_are_gone_are_waited_for_by_those_who_had_them(database: str) -> None:
    async with opened(database, ROLE, "producer", "worker") as store:
        await store.insert([row(1)])
        admin(database, "REVOKE USAGE ON SCHEMA headrace FROM passing")
        with pytest.raises(NotLetIn, match="permission denied for schema"):
            await store.insert([row(2)])
        with pytest.raises(NotLetIn, match="permission denied for schema"):
            await store.sibling().open()
        admin(database, "GRANT USAGE ON SCHEMA headrace TO passing")
        await store.insert([row(2)])


async def test_so_are_those_of_other_calls_that_go_with_them(database: str) -> None:
    """Whoever has stored one job could have stored several."""
    async with opened(database, ROLE, "producer") as store:
        await store.insert([row(1), row(2)])
        other = PostgresBackend(server().url(database, ROLE), listen=False)
        await other.open()
        await other.insert([row(3)])
        admin(database, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA headrace FROM passing")
        with pytest.raises(NotLetIn):
            await other.insert([row(4, key="k"), row(5)])
        with pytest.raises(ConfigError, match="grant worker"):
            await other.claim(Claim("w1", ("q",), 1, LEASE))
        await other.close()


async def test_it_is_told_who_may_call_each_function(database: str) -> None:
    async with opened(database, "headrace"):
        with psycopg.connect(server().url(database)) as connection:
            rights = connection.execute("SELECT part, name FROM headrace.rights WHERE part !~ 'confined'").fetchall()
    functions = {name for _, name in rights if name.endswith("_v1")}
    for name in functions:
        assert allowed(f"SELECT {name}(") == {part for part, granted in rights if granted == name}, name


async def test_a_user_who_never_had_a_right_is_told_at_once(database: str) -> None:
    async with opened(database, ROLE, "reader") as store:
        with pytest.raises(ConfigError, match=r"grant producer ROLE") as told:
            await store.insert([row(1)])
    assert not isinstance(told.value, Unavailable)


async def test_a_sibling_knows_what_was_there(database: str) -> None:
    """The heartbeat begins anew on another one after every stumble."""
    async with opened(database, ROLE, "worker") as store:
        await store.claim(Claim("w1", ("q",), 1, LEASE))
        other = store.sibling()
        await other.open()
        admin(database, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA headrace FROM passing")
        with pytest.raises(NotLetIn):
            await other.claim(Claim("w1", ("q",), 1, LEASE))
        await other.close()


async def test_a_function_that_is_made_anew(database: str) -> None:
    async with opened(database, "headrace") as store:
        await store.insert([row(1), row(2)])
        admin(database, "ALTER FUNCTION headrace.insert_v1 RENAME TO gone_for_now")
        with pytest.raises(SchemaMismatch, match="insert_v1") as told:
            await store.insert([row(3), row(4)])
        assert isinstance(told.value, Unavailable)
        admin(database, "ALTER FUNCTION headrace.gone_for_now RENAME TO insert_v1")
        await store.insert([row(3), row(4)])


async def test_a_function_that_never_was_there(database: str) -> None:
    async with opened(database, "headrace") as store:
        admin(database, "ALTER FUNCTION headrace.claim_v1 RENAME TO gone_for_now")
        with pytest.raises(SchemaMismatch, match="claim_v1") as told:
            await store.claim(Claim("w1", ("q",), 1, LEASE))
        assert not isinstance(told.value, Unavailable)


async def test_an_answer_that_has_got_another_shape(database: str) -> None:
    """A session remembers the first one for as long as it lives."""
    async with opened(database, "headrace") as store:
        for _ in range(3):
            await store.stats()
        admin(
            database,
            "ALTER FUNCTION headrace.workers_v1 RENAME TO gone_for_now",
            "CREATE FUNCTION headrace.workers_v1(bigint) RETURNS TABLE (worker text, queues text[], slots integer,"
            " busy integer, started_at bigint, seen_at text) LANGUAGE sql AS"
            " 'SELECT worker, queues, slots, busy, started_at, seen_at::text FROM headrace.gone_for_now($1)'",
        )
        with pytest.raises(Unavailable, match="cached plan"):
            await store.stats()
        await store.stats()


async def test_a_setting_of_the_role_is_not_remembered_for_longer_than_it_lasts(database: str) -> None:
    async with opened(database, ROLE, "producer") as store:
        admin(
            database,
            "ALTER ROLE passing SET statement_timeout = '1ms'",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'passing'",
            "CREATE FUNCTION headrace.slow() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END'",
            "CREATE TRIGGER slow AFTER INSERT ON headrace.ready EXECUTE FUNCTION headrace.slow()",
        )
        for _ in range(2):
            with pytest.raises(Unavailable):
                await store.insert([row(1)])
        admin(database, "ALTER ROLE passing RESET statement_timeout")
        for number in range(4):  # one may have begun before
            try:
                await store.insert([row(number)])
            except Unavailable:
                assert number == 0


async def test_what_is_too_large_for_an_index_is_told_at_once(database: str) -> None:
    async with opened(database, "headrace") as store:
        with pytest.raises(Rejected, match="key: expected"):
            await store.insert([row(1, key=secrets.token_hex(5_000))])
        await store.insert([row(2)])
        [job] = (await store.claim(Claim("w1", ("q",), 1, LEASE))).jobs
        assert await store.finish([settle(job)]) == [JobState.COMPLETED]
