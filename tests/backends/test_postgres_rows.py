"""Rows and settlements as they travel to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.composites import TYPES, Column
from headrace.testing.conformance.base import job_id, row
from tests.postgres import server

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
