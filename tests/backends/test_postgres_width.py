"""What a plain job leaves in each place is narrow: every byte of it is logged, for every job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState
from tests.postgres import server

Connection = psycopg.Connection[tuple[int, ...]]

_HEADER = 32
"""Of every row here: 23 bytes, and two for the columns that it does not have, rounded up."""


@pytest.fixture
def connection() -> Iterator[Connection]:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=width") as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS width CASCADE")


@pytest.fixture
async def store(connection: Connection) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(server().url(), schema="width")
    await backend.open()
    yield backend
    await backend.close()


async def test_places_are_narrow(store: PostgresBackend, connection: Connection) -> None:
    await store.insert([Row(id=bytes(15) + b"\1", queue="q", task="t", cells={})])
    assert _width(connection, "ready") == 51
    [job] = (await store.claim(Claim("h", ("q",), 1, 60_000_000))).jobs
    assert _width(connection, "leased") == 56 + len("_h")
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED)])
    assert _width(connection, "ended") == 65 + len("_")


def _width(connection: Connection, table: str) -> int:
    [[width]] = connection.execute(f"SELECT pg_column_size(t) FROM {table} AS t".encode())
    return width - _HEADER


def test_an_entry_in_the_line_of_a_queue_is_narrow(store: PostgresBackend, connection: Connection) -> None:
    """Queue and priority fill one word: beside them lie run_at, and the id."""
    [[columns]] = connection.execute(
        "SELECT sum(a.attlen) FROM pg_attribute AS a WHERE a.attrelid = 'ready_line'::regclass"
    )
    assert columns == 4 + 2 + 8 + 16
