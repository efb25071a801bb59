"""Rows and settlements as they travel to PostgreSQL, and the functions that take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from uuid import UUID

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.composites import TYPES, Column
from headrace.backends.postgres.schema import migrations
from headrace.testing.conformance.base import job_id, row
from tests.postgres import server

_FUNCTION = re.compile(r"^CREATE FUNCTION (\w+).*?\bAS\s*(\$\$|').*?\2;$", re.MULTILINE | re.DOTALL)
_LONGEST = 120
_NAMES = {"uuid": "uuid", "text": "text", "bytea": "bytea", "bool": "boolean", "int2": "smallint", "int4": "integer"}


@pytest.fixture
def url() -> Iterator[str]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE rows")
        yield server().url("rows")
        connection.execute("DROP DATABASE rows WITH (FORCE)")


@pytest.mark.parametrize(("name", "columns"), TYPES.values())
async def test_the_table_of_columns_is_the_type_of_the_schema(url: str, name: str, columns: Sequence[Column]) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT a.attname, t.typname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid"
            " WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum",
            (f"headrace.{name}",),
        ).fetchall()
    assert [(column.name, column.kind.name) for column in columns] == [
        (attribute, _NAMES.get(kind, "bigint")) for attribute, kind in found
    ]


async def test_a_store_that_was_made_anew_is_served_by_those_who_were_there_before(url: str) -> None:
    """Its types have other numbers."""
    backend, other = PostgresBackend(url), PostgresBackend(url)
    await backend.open()
    await backend.insert([row(1)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA headrace CASCADE")
    await other.open()
    await backend.insert([row(2), row(3)])
    assert [found and found.id for found in await other.fetch([job_id(1), job_id(2)])] == [None, job_id(2)]
    await backend.close()
    await other.close()


async def test_a_queue_without_a_mark_is_looked_at_from_its_beginning(url: str) -> None:
    """Also where all that a client knows is up to when jobs were promoted."""
    backend = PostgresBackend(url)
    await backend.open()
    await backend.insert([row(1)])
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT x.kind, x.id FROM headrace.claim_v1(NULL, 'h', '{q}', 1, 1000000, 0::smallint, NULL, 1000, true,"
            " '{}', '{}', '{}', '{}', 0) AS x ORDER BY x.kind"
        ).fetchall()
    assert found == [(1, UUID(bytes=job_id(1))), (3, None)]
    await backend.close()


def test_no_function_is_too_long_to_be_read_in_one_go() -> None:
    long = {
        found[1]: lines
        for step in migrations()
        if step.version not in (3, 11)  # claims are still to be cut into steps, at no cost
        for found in _FUNCTION.finditer(step.script)
        if (lines := found[0].count("\n") + 1) > _LONGEST
    }
    assert not long
