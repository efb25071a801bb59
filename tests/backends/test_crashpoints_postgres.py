"""A kill -9 at any point of any flow loses nothing and doubles nothing in the PostgreSQL backend.

A milder death, in the process of the test, leaves the server with the same: other stores are crashed so.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headrace.backends.postgres import PostgresBackend
from headrace.testing.crashpoints import check_kill, kill_everywhere
from tests.postgres import server

SERVER = "TESTS_POSTGRES"
"""Tells the processes that are to be killed where the server is, as it is not theirs."""


def connect(place: Path) -> PostgresBackend:
    """A backend on the database that belongs to ``place``; it is made when it is first asked for."""
    name = f"{place.parent.parent.name}/{place.parent.name}"
    with psycopg.connect(os.environ[SERVER].format("template1"), autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchall():
            query = sql.SQL("CREATE DATABASE {} TEMPLATE blank STRATEGY file_copy")
            connection.execute(query.format(sql.Identifier(name)))
    return PostgresBackend(os.environ[SERVER].format(name.replace("/", "%2F")))


@pytest.mark.timeout(400)
async def test_a_kill_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE blank")
        blank = PostgresBackend(server().url("blank"))
        await blank.open()
        await blank.close()
        monkeypatch.setenv(SERVER, server().url("{}"))
        for point, place in kill_everywhere(f"{__name__}:connect", tmp_path):
            await check_kill(connect, place, point)
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(f"{tmp_path.name}/{place.name}")))
        connection.execute("DROP DATABASE blank")
